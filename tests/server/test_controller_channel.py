"""The channel to the controller: one queue, retries, time limits. Without sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import TypeVar

import pytest

from tidelog.endpoints import Endpoint
from tidelog.errors import ErrorCode, NetworkException, RequestTimedOut, UnsupportedVersion
from tidelog.protocol.message import Message, decode
from tidelog.protocol.messages.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from tidelog.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from tidelog.protocol.messages.principal import DefaultPrincipalData
from tidelog.server.apis.envelope import read_principal
from tidelog.server.controller_channel import ControllerChannel, ControllerNode
from tidelog.server.forwarding import serialized_principal

R = TypeVar("R", bound=Message)
Answer = Callable[[int, Message], Awaitable[Message]]


class Connection:
    def __init__(self, broker_id: int, answer: Answer) -> None:
        self.broker_id = broker_id
        self.closed = False
        self.correlation_id = 0
        self._answer = answer

    async def call(
        self, request: Message, answer: type[R], *, version: int | None = None, timeout: float | None = None
    ) -> R:
        found = await self._answer(self.broker_id, request)
        assert isinstance(found, answer)
        return found

    def close(self, reason: str = "") -> None:
        self.closed = True


class Network:
    """Connects to every broker; `answer` says what a broker answers."""

    def __init__(self, answer: Answer) -> None:
        self.connected: list[int] = []
        self._answer = answer

    async def connect(self, broker_id: int, endpoint: Endpoint, *, timeout: float) -> Connection:
        self.connected.append(broker_id)
        return Connection(broker_id, self._answer)


def node(broker_id: int) -> ControllerNode:
    return ControllerNode(broker_id, Endpoint("PLAINTEXT", "PLAINTEXT", "host", 9000 + broker_id))


def channel(
    network: Network, known: Callable[[], ControllerNode | None], limit: float = 5
) -> ControllerChannel:
    return ControllerChannel(network, known, timeout=1, retry_timeout=limit, backoff=0.001)


def run(work: Coroutine[None, None, R]) -> R:
    return asyncio.run(work)


def ids(start: int) -> AllocateProducerIdsResponse:
    return AllocateProducerIdsResponse(producer_id_start=start, producer_id_len=1000)


async def ask(asked: ControllerChannel) -> AllocateProducerIdsResponse:
    return await asked.call(AllocateProducerIdsRequest(broker_id=1), AllocateProducerIdsResponse)


def test_the_answer_of_the_controller_comes_back_over_one_connection() -> None:
    async def answer(broker_id: int, request: Message) -> Message:
        return ids(broker_id)

    async def story() -> Network:
        network = Network(answer)
        asked = channel(network, lambda: node(2))
        assert [(await ask(asked)).producer_id_start for _ in range(3)] == [2, 2, 2]
        return network

    assert asyncio.run(story()).connected == [2]


def test_a_request_waits_for_a_controller() -> None:
    known: list[ControllerNode] = []

    async def answer(broker_id: int, request: Message) -> Message:
        return ids(7)

    async def story() -> int:
        asked = channel(Network(answer), lambda: known[0] if known else None)
        waiting = asyncio.create_task(ask(asked))
        await asyncio.sleep(0.01)
        known.append(node(1))
        return (await waiting).producer_id_start

    assert asyncio.run(story()) == 7


def test_a_broker_that_is_not_the_controller_is_asked_again_until_another_is_known() -> None:
    asked_brokers: list[int] = []

    async def answer(broker_id: int, request: Message) -> Message:
        asked_brokers.append(broker_id)
        code = ErrorCode.NOT_CONTROLLER if broker_id == 1 else 0
        topic = CreateTopicsResponse.CreatableTopicResult(name="t", error_code=code)
        return CreateTopicsResponse(topics=[topic])

    async def story() -> CreateTopicsResponse:
        network = Network(answer)
        asked = channel(network, lambda: node(1 if len(asked_brokers) < 3 else 2))
        return await asked.call(CreateTopicsRequest(), CreateTopicsResponse)

    assert run(story()).topics[0].error_code == 0
    assert asked_brokers == [1, 1, 1, 2], "the error of a topic counts as well"


def test_a_lost_connection_is_opened_again() -> None:
    calls = 0

    async def answer(broker_id: int, request: Message) -> Message:
        nonlocal calls
        calls += 1
        if calls < 3:
            raise NetworkException("reset")
        return ids(1)

    async def story() -> Network:
        network = Network(answer)
        await ask(channel(network, lambda: node(2)))
        return network

    assert asyncio.run(story()).connected == [2, 2, 2]


def test_a_controller_that_hangs_is_given_up_when_another_is_known() -> None:
    async def answer(broker_id: int, request: Message) -> Message:
        if broker_id == 1:
            await asyncio.Event().wait()
        return ids(broker_id)

    async def story() -> Network:
        controllers = [node(1)]
        network = Network(answer)
        waiting = asyncio.create_task(ask(channel(network, lambda: controllers[-1])))
        await asyncio.sleep(0.01)
        assert not waiting.done(), "it stays the controller: it is awaited"
        controllers.append(node(2))
        async with asyncio.timeout(10):
            assert (await waiting).producer_id_start == 2
        return network

    assert asyncio.run(story()).connected == [1, 2]


def test_a_request_that_ends_slowly_is_given_up_once() -> None:
    known = [node(1)]
    failures: list[dict[str, object]] = []

    async def answer(broker_id: int, request: Message) -> Message:
        if broker_id == 1:
            known[0] = node(2)
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await asyncio.sleep(0.02)
                raise
        return ids(broker_id)

    async def story() -> int:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
        return (await ask(channel(Network(answer), lambda: known[0]))).producer_id_start

    assert asyncio.run(story()) == 2
    assert failures == []


def test_requests_are_answered_in_their_order_one_at_a_time() -> None:
    running = 0
    order: list[int] = []

    async def answer(broker_id: int, request: Message) -> Message:
        nonlocal running
        assert isinstance(request, AllocateProducerIdsRequest)
        running += 1
        assert running == 1
        await asyncio.sleep(0.001)
        running -= 1
        order.append(request.broker_id)
        return ids(0)

    async def story() -> None:
        asked = channel(Network(answer), lambda: node(2))
        await asyncio.gather(
            *(
                asked.call(AllocateProducerIdsRequest(broker_id=number), AllocateProducerIdsResponse)
                for number in range(5)
            )
        )

    asyncio.run(story())
    assert order == [0, 1, 2, 3, 4]


def test_after_the_time_limit_the_caller_is_told() -> None:
    async def answer(broker_id: int, request: Message) -> Message:
        raise NetworkException("refused")

    with pytest.raises(RequestTimedOut, match=r"AllocateProducerIds: no controller answered within 0\.05 s"):
        run(ask(channel(Network(answer), lambda: node(2), 0.05)))


def test_what_the_controller_does_not_serve_is_not_tried_again() -> None:
    calls = 0

    async def answer(broker_id: int, request: Message) -> Message:
        nonlocal calls
        calls += 1
        raise UnsupportedVersion("no such API")

    with pytest.raises(UnsupportedVersion):
        run(ask(channel(Network(answer), lambda: node(2))))
    assert calls == 1


def test_a_broker_that_stops_waits_for_no_controller() -> None:
    async def answer(broker_id: int, request: Message) -> Message:
        raise NetworkException("refused")

    async def story() -> None:
        asked = channel(Network(answer), lambda: None, 60)
        waiting = asyncio.create_task(ask(asked))
        await asyncio.sleep(0.005)
        asked.close()
        with pytest.raises(NetworkException, match="stops"):
            await waiting

    asyncio.run(story())


def test_a_broker_that_stops_waits_for_no_connection() -> None:
    class Silent(Network):
        """A host that is gone: nothing answers the attempt to connect."""

        async def connect(self, broker_id: int, endpoint: Endpoint, *, timeout: float) -> Connection:
            await asyncio.Event().wait()
            raise AssertionError

    async def answer(broker_id: int, request: Message) -> Message:
        raise AssertionError

    async def story() -> None:
        asked = channel(Silent(answer), lambda: node(2), 60)
        waiting = asyncio.create_task(ask(asked))
        await asyncio.sleep(0.005)
        asked.close()
        async with asyncio.timeout(10):
            with pytest.raises(NetworkException, match="stops"):
                await waiting

    asyncio.run(story())


def test_a_request_that_was_given_up_holds_up_no_other() -> None:
    made: list[Connection] = []

    class Kept(Network):
        async def connect(self, broker_id: int, endpoint: Endpoint, *, timeout: float) -> Connection:
            made.append(await super().connect(broker_id, endpoint, timeout=timeout))
            return made[-1]

    async def answer(broker_id: int, request: Message) -> Message:
        if len(made) == 1:
            await asyncio.Event().wait()
        return ids(3)

    async def story() -> None:
        asked = channel(Kept(answer), lambda: node(2))
        with pytest.raises(RequestTimedOut):
            await asked.call(
                AllocateProducerIdsRequest(broker_id=1), AllocateProducerIdsResponse, timeout=0.01
            )
        assert (await ask(asked)).producer_id_start == 3
        assert [connection.closed for connection in made] == [True, False], "the answer may still come"

    asyncio.run(story())


def test_a_principal_has_the_form_of_kafka() -> None:
    data = serialized_principal("User:ANONYMOUS")
    assert data[:2] == b"\0\0"
    found, _ = decode(DefaultPrincipalData, 0, data[2:])
    assert (found.type, found.name, found.token_authenticated) == ("User", "ANONYMOUS", False)
    assert read_principal(data) == "User:ANONYMOUS"
