"""Requests to HTTP servers of others: identity providers and collectors of traces.

Redirects are not followed: the URL of the settings is the allowed one. An answer has a size and a time as a
whole, so that a server that sends a byte now and then keeps no thread for long.
"""

from __future__ import annotations

import io
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection

from tidelog.security.tls import https_context


class _TimedReader(io.RawIOBase):
    """Reads a socket. All reads together take at most the socket's time-out."""

    def __init__(self, sock: socket.socket, raw: io.RawIOBase) -> None:
        self._sock, self._raw = sock, raw
        timeout = sock.gettimeout()
        self._end = None if timeout is None else time.monotonic() + timeout

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int | None:  # type: ignore[override]
        if self._end is not None:
            left = self._end - time.monotonic()
            if left <= 0:
                raise TimeoutError("the answer takes too long")
            self._sock.settimeout(left)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class TimedResponse(HTTPResponse):
    """Headers and body take at most the time-out that the socket has before them."""

    def __init__(
        self, sock: socket.socket, debuglevel: int = 0, method: str | None = None, url: str | None = None
    ) -> None:
        super().__init__(sock, debuglevel, method, url)
        self.fp = io.BufferedReader(_TimedReader(sock, self.fp.detach()))


class _HttpConnection(HTTPConnection):
    response_class = TimedResponse


class _HttpsConnection(HTTPSConnection):
    response_class = TimedResponse


class _Http(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> HTTPResponse:
        return self.do_open(_HttpConnection, req)


class _Https(urllib.request.HTTPSHandler):
    def https_open(self, req: urllib.request.Request) -> HTTPResponse:
        return self.do_open(_HttpsConnection, req, context=https_context())


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        return None


def ask(
    url: str,
    *,
    seconds: float,
    max_bytes: int,
    data: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> bytes:
    """The body of the answer; a POST with `data`. HTTPError for another status than 2xx, or OSError."""
    request = urllib.request.Request(url, data, dict(headers or {}))
    try:
        with urllib.request.build_opener(_NoRedirect, _Http, _Https).open(request, timeout=seconds) as answer:
            body: bytes = answer.read(max_bytes + 1)
    except urllib.error.HTTPError as error:
        error.close()
        raise
    except urllib.error.URLError as error:
        raise OSError(f"{error.reason}") from None
    except HTTPException as error:
        raise OSError(f"not an answer of HTTP: {type(error).__name__}") from None
    if len(body) > max_bytes:
        raise OSError(f"the answer has more than {max_bytes} bytes")
    return body
