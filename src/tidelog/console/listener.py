"""The listening socket of a console: it is bound before the console starts, so that its address is known."""

from __future__ import annotations

import socket
from typing import Final

BACKLOG: Final = 128
"""Browsers that connect while the console starts wait here."""


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. Raises OSError if the address cannot be bound."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=BACKLOG)


def url_of(listener: socket.socket) -> str:
    """http://HOST:PORT with the port that the system chose."""
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
