"""Requests to a controller that answers, hangs or ends while another broker becomes the controller."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

import pytest

from tidelog.endpoints import Endpoint
from tidelog.errors import NetworkException, RequestTimedOut
from tidelog.protocol.message import Message
from tidelog.protocol.messages.controlled_shutdown import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
)
from tidelog.server.controller_channel import ControllerChannel, ControllerNode

R = TypeVar("R", bound=Message)
REQUEST = ControlledShutdownRequest(broker_id=3, broker_epoch=7)
NOT_CONTROLLER = 41


class Connection:
    """Answers with an error code, hangs (None) or ends (-1)."""

    def __init__(self, code: int | None) -> None:
        self._code = code
        self.closed = False
        self.correlation_id = 0

    async def call(
        self, request: Message, answer: type[R], *, version: int | None = None, timeout: float | None = None
    ) -> R:
        if self._code is None:
            await asyncio.Event().wait()
        if self._code == -1:
            raise NetworkException("it ended")
        found = answer()
        found.error_code = self._code  # type: ignore[attr-defined]
        return found

    def close(self, reason: str = "it was closed") -> None:
        self.closed = True


class Brokers:
    """The transport and the metadata of a broker: `codes` says how each broker answers."""

    def __init__(self, controller: int, codes: dict[int, int | None]) -> None:
        self.controller = controller
        self.codes = codes
        self.asked: list[int] = []
        self.connections: list[Connection] = []
        self.after_connect: Callable[[], None] = lambda: None

    async def connect(self, broker_id: int, endpoint: Endpoint, *, timeout: float) -> Connection:
        self.asked.append(broker_id)
        self.after_connect()
        self.connections.append(Connection(self.codes[broker_id]))
        return self.connections[-1]

    def node(self) -> ControllerNode:
        return ControllerNode(self.controller, Endpoint("PLAINTEXT", "PLAINTEXT", "h", self.controller))

    def channel(self) -> ControllerChannel:
        return ControllerChannel(self, self.node, timeout=30.0, retry_timeout=30.0, backoff=0.001)

    def becomes_controller(self, broker_id: int) -> None:
        self.controller = broker_id


async def ask(channel: ControllerChannel, timeout: float | None = None) -> int:
    answer = await channel.call(REQUEST, ControlledShutdownResponse, timeout=timeout)
    return answer.error_code


def test_the_controller_answers() -> None:
    brokers = Brokers(1, {1: 8})
    assert asyncio.run(ask_once(brokers)) == 8
    assert brokers.asked == [1]


async def ask_once(brokers: Brokers) -> int:
    async with asyncio.timeout(10):
        return await ask(brokers.channel())


@pytest.mark.parametrize("first", [NOT_CONTROLLER, -1], ids=["refuses", "ends"])
def test_a_request_is_sent_to_the_controller_that_is_known_then(first: int) -> None:
    brokers = Brokers(1, {1: first, 2: 0})
    brokers.after_connect = lambda: brokers.becomes_controller(2)
    assert asyncio.run(ask_once(brokers)) == 0
    assert brokers.asked == [1, 2]


def test_a_controller_that_hangs_is_given_up_when_there_is_another() -> None:
    async def run() -> None:
        brokers = Brokers(1, {1: None, 2: 0})
        asyncio.get_running_loop().call_later(0.05, brokers.becomes_controller, 2)
        async with asyncio.timeout(10):
            assert await ask(brokers.channel()) == 0
        assert brokers.asked == [1, 2]
        assert [connection.closed for connection in brokers.connections] == [True, False]

    asyncio.run(run())


def test_a_controller_that_hangs_and_stays_the_controller_is_awaited() -> None:
    async def run() -> None:
        brokers = Brokers(1, {1: None})
        with pytest.raises(RequestTimedOut, match=r"no controller answered within 0\.1 s"):
            await ask(brokers.channel(), timeout=0.1)
        assert brokers.asked == [1]

    asyncio.run(run())


def test_a_closed_channel_fails_its_requests() -> None:
    async def run() -> None:
        channel = Brokers(1, {1: 0}).channel()
        channel.close()
        with pytest.raises(NetworkException, match="this broker stops"):
            await ask(channel)

    asyncio.run(run())
