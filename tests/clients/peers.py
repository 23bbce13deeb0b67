"""A peer that answers a connection as a test says, frame by frame, in a thread of its own."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from tidelog.protocol.messages.api_versions import ApiVersionsResponse

Answer = Callable[[bytes], bytes | None]


def frame(correlation_id: int, body: bytes) -> bytes:
    return struct.pack(">ii", len(body) + 4, correlation_id) + body


def correlation_id_of(request: bytes) -> int:
    return int(struct.unpack_from(">i", request, 4)[0])


def versions(api_keys: dict[int, tuple[int, int]], version: int = 4, error_code: int = 0) -> Answer:
    """An answer to ApiVersions."""
    keys = [
        ApiVersionsResponse.ApiVersion(api_key=key, min_version=low, max_version=high)
        for key, (low, high) in api_keys.items()
    ]
    body = ApiVersionsResponse(error_code=error_code, api_keys=keys).encode(version)
    return lambda request: frame(correlation_id_of(request), body)


def raw(data: bytes) -> Answer:
    return lambda _request: data


def silence(_request: bytes) -> bytes | None:
    return b""


def hang_up(_request: bytes) -> bytes | None:
    return None


class Peer:
    """Accepts one connection and gives each request its answer; None closes, empty says nothing."""

    def __init__(self, answers: Sequence[Answer]) -> None:
        self.requests: list[bytes] = []
        self._answers = answers
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.host, self.port = self._listener.getsockname()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        with connection, connection.makefile("rb") as incoming, contextlib.suppress(ConnectionResetError):
            for answer in self._answers:
                head = incoming.read(4)
                if len(head) < 4:
                    return
                request = incoming.read(struct.unpack(">i", head)[0])
                self.requests.append(request)
                reply = answer(request)
                if reply is None:
                    return
                connection.sendall(reply)
            incoming.read(1)  # until the client closes

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes an accept that waits in vain
        self._listener.close()
        self._thread.join(5)
