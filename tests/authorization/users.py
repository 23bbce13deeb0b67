"""Connections as users of a broker in this process, without SASL: requests have the principal of a test."""

from __future__ import annotations

import pytest

from tests.support.raw import RawConnection
from tidelog.network.request import Request


class Users:
    """`connect` makes connections as a user; the other connections are of User:ANONYMOUS."""

    def __init__(self, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self._address = address
        self._users: dict[str, str] = {}
        users = self._users
        monkeypatch.setattr(
            Request,
            "principal",
            property(lambda request: users.get(request.channel.peer, request.channel.principal)),
        )

    def connect(self, user: str) -> RawConnection:
        connection = RawConnection(self._address)
        host, port = connection.socket.getsockname()
        self._users[f"{host}:{port}"] = f"User:{user}"
        return connection
