"""The mechanism PLAIN: one message with user and password."""

from __future__ import annotations

from collections.abc import Generator

from tidelog.clients.sasl.credentials import Credentials


def plain_steps(credentials: Credentials) -> Generator[bytes, bytes, None]:
    yield b"\0" + credentials.username.encode() + b"\0" + credentials.password.encode()
