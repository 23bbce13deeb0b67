"""MessagePack. The package `msgpack` is imported when the first record is decoded."""

from __future__ import annotations

import math

from tidelog.console.records.decoder import MAX_DEPTH, DecodeError, Decoder, Read
from tidelog.protocol.json import Json


class MessagePackDecoder(Decoder):
    name = "msgpack"
    about = "MessagePack"

    def read(self, data: bytes) -> Read:
        try:
            import msgpack
        except ImportError:
            raise DecodeError('MessagePack needs a package: pip install "tidelog[decoders]"') from None
        try:
            found = msgpack.unpackb(data, strict_map_key=False, timestamp=3)
        except msgpack.ExtraData as error:
            raise DecodeError(f"{len(error.extra)} bytes follow the value") from None
        except msgpack.StackError:
            raise DecodeError("the value is too deeply nested") from None
        except Exception as error:  # the package raises ValueError, TypeError, UnicodeError, OverflowError
            raise DecodeError(f"not MessagePack: {str(error) or type(error).__name__}") from None
        return Read(_json(found, 0))


def _json(value: object, depth: int) -> Json:
    if depth > MAX_DEPTH:
        raise DecodeError(f"nested deeper than {MAX_DEPTH}")
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, dict):
        return {str(_json(name, depth + 1)): _json(item, depth + 1) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json(item, depth + 1) for item in value]
    if isinstance(value, bytes):
        return "0x" + value.hex()
    return str(value)  # a timestamp or an extension type
