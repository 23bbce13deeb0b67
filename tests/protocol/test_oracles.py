"""Other implementations of the protocol, kio and kafka-python, read what we write and write what we read."""

from __future__ import annotations

import importlib
import io
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Protocol

import pytest

from tests.protocol.golden import messages
from tests.protocol.values import Values
from tests.support.scale import scale
from tidelog.protocol import Message
from tidelog.protocol.api import API
from tidelog.protocol.messages.api_versions import ApiVersionsResponse


class KafkaPythonMessage(Protocol):
    _header: object

    def decode(self, data: bytes, *, version: int) -> KafkaPythonMessage: ...

    def encode(self, *, version: int) -> bytes: ...


Translator = Callable[[bytes], bytes]


def kio_translator(name: str, version: int) -> Translator | None:
    """Reads bytes with kio and writes them again, where kio has the message in that version."""
    kio_serial = pytest.importorskip("kio.serial")
    api, kind = re.fullmatch(r"(\w+?)(Request|Response)", name).groups()  # type: ignore[union-attr]
    package = re.sub(r"(?<!^)(?=[A-Z])", "_", api).lower()
    try:
        module = importlib.import_module(f"kio.schema.{package}.v{version}.{kind.lower()}")
    except ModuleNotFoundError:
        return None
    entity = getattr(module, name)
    read, write = kio_serial.entity_reader(entity), kio_serial.entity_writer(entity)

    def translate(wire: bytes) -> bytes:
        out = io.BytesIO()
        message = read(wire, 0)[0]
        write(out, message)
        return out.getvalue()

    return translate


def kafka_python_translator(name: str, version: int) -> Translator | None:
    """Reads bytes with kafka-python and writes them again, where it has the message in that version."""
    for package in ("admin", "consumer", "metadata", "producer", "sasl"):
        module = importlib.import_module(f"kafka.protocol.{package}")
        cls = getattr(module, name, None)
        if cls is None or version > cls.max_version:
            continue
        return partial(kafka_python_translate, cls, version)
    return None


def kafka_python_translate(cls: KafkaPythonMessage, version: int, wire: bytes) -> bytes:
    message = cls.decode(wire, version=version)
    message._header = None  # writing looks at it, and reading without a header does not set it
    return bytes(message.encode(version=version))


def spoken() -> Iterator[tuple[str, type[Message], int]]:
    for name, cls in messages().items():
        if name.endswith(("Request", "Response")) and cls.KEY in API:
            for version in range(cls.VERSIONS.low, cls.VERSIONS.high + 1):
                yield name, cls, version


def disagreements(translator: Callable[[str, int], Translator | None]) -> tuple[int, dict[str, str]]:
    compared, wrong = 0, {}
    values = Values(seed=11, tame=True)
    for name, cls, version in spoken():
        translate = translator(name, version)
        if translate is None:
            continue
        for _ in range(scale(2, 50)):
            message = values.message(cls, version)
            if isinstance(message, ApiVersionsResponse):
                message.error_code = 0  # kafka-python takes every other answer to be version 0
            try:
                again = cls.decode(translate(message.encode(version)), version)
            except Exception as error:
                wrong[f"{name} v{version}"] = repr(error)
                continue
            if again != message:
                wrong[f"{name} v{version}"] = f"{message} became {again}"
            compared += 1
    return compared, wrong


def test_kio_understands_us_and_we_understand_kio() -> None:
    compared, wrong = disagreements(kio_translator)
    assert wrong == {}
    assert compared > 500


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_kafka_python_understands_us_and_we_understand_kafka_python() -> None:
    compared, wrong = disagreements(kafka_python_translator)
    assert wrong == {}
    assert compared > 400
