"""The controller's channels: order, retries at the head of the queue, and the ends of requests."""

from __future__ import annotations

import asyncio
from collections import deque

import pytest

from tests.controller.cluster_rig import CONTROLLER, ScriptedTransport, broker
from tests.support.virtual_time import run
from tidelog.controller.channel_manager import ChannelSettings, ControllerChannelManager, Outcome
from tidelog.controller.context import ControllerContext
from tidelog.controller.state_change_log import StateChangeLog
from tidelog.endpoints import Endpoint
from tidelog.errors import (
    KafkaError,
    NetworkException,
    RequestTimedOut,
    SaslAuthenticationFailed,
    UnknownServerError,
    UnsupportedVersion,
)
from tidelog.metadata.state import BrokerRegistration
from tidelog.protocol.messages.update_metadata import UpdateMetadataRequest, UpdateMetadataResponse


class Channels:
    """A manager with broker 1, and the outcomes of numbered requests."""

    def __init__(self, settings: ChannelSettings | None = None) -> None:
        self.transport = ScriptedTransport()
        self.queue_times: list[tuple[int, float]] = []
        self.manager = ControllerChannelManager(
            self.transport,
            settings or ChannelSettings("PLAINTEXT"),
            StateChangeLog(CONTROLLER, ControllerContext()),
            on_queue_time=lambda broker_id, seconds: self.queue_times.append((broker_id, seconds)),
        )
        self.manager.add_broker(broker(1))
        self.outcomes: dict[int, Outcome] = {}

    def send(self, *numbers: int, broker_id: int = 1) -> None:
        for number in numbers:
            self.manager.send(
                broker_id,
                UpdateMetadataRequest(controller_epoch=number),
                UpdateMetadataResponse,
                8,
                lambda outcome, number=number: self.outcomes.__setitem__(number, outcome),  # type: ignore[misc]
            )

    def received(self, broker_id: int = 1) -> list[int]:
        return [request.controller_epoch for request in self.transport.of(broker_id, UpdateMetadataRequest)]

    def answered(self) -> list[int]:
        return [n for n, outcome in self.outcomes.items() if isinstance(outcome, UpdateMetadataResponse)]


def test_a_broker_gets_its_requests_in_order_over_one_connection() -> None:
    async def story() -> None:
        channels = Channels()
        channels.send(1, 2, 3)
        assert channels.manager.queue_size(1) == channels.manager.total_queue_size == 3
        await asyncio.sleep(1)
        assert channels.received() == channels.answered() == [1, 2, 3]
        assert len(channels.transport.connected) == 1
        assert channels.manager.total_queue_size == 0

    run(story())


@pytest.mark.parametrize("error", [NetworkException("reset"), RequestTimedOut("no answer in time")])
def test_the_head_is_sent_again_over_a_new_connection(error: KafkaError) -> None:
    async def story() -> None:
        channels = Channels()
        channels.transport.script(1, error, error)
        channels.send(1, 2)
        await asyncio.sleep(1)
        assert channels.received() == [1, 1, 1, 2]
        assert channels.answered() == [1, 2]
        times = [at for _, _, at in channels.transport.connected]
        assert times == pytest.approx([0.0, 0.1, 0.2])
        assert len(channels.transport.open) == 1

    run(story())


def test_a_broker_that_is_away_for_long_gets_everything_when_it_is_back() -> None:
    async def story() -> None:
        channels = Channels()
        channels.transport.connects[1] = deque(NetworkException("refused") for _ in range(600))
        channels.send(1, 2)
        await asyncio.sleep(59)
        assert channels.outcomes == {}
        assert channels.manager.queue_size(1) == 2
        channels.send(3)
        await asyncio.sleep(2)
        assert channels.received() == channels.answered() == [1, 2, 3]
        waited = [seconds for _, seconds in channels.queue_times]
        # The first one was tried at once, the others waited for its answer.
        assert waited == pytest.approx([0.0, 60.0, 1.0], abs=0.01)

    run(story())


def test_a_slow_broker_does_not_hold_up_the_others() -> None:
    async def story() -> None:
        channels = Channels()
        channels.manager.add_broker(broker(2))
        channels.transport.script(1, None)
        channels.send(1)
        channels.send(2, broker_id=2)
        await asyncio.sleep(1)
        assert channels.answered() == [2]
        assert channels.manager.queue_size(1) == 1

    run(story())


@pytest.mark.parametrize(
    "error", [UnsupportedVersion("no v8"), SaslAuthenticationFailed("unknown user"), ValueError("a bug")]
)
def test_an_error_that_a_retry_would_not_change_ends_the_request(error: Exception) -> None:
    async def story() -> None:
        channels = Channels()
        channels.transport.script(1, error)
        channels.send(1, 2)
        await asyncio.sleep(1)
        assert channels.received() == [1, 2]
        outcome = channels.outcomes[1]
        assert outcome is error or isinstance(outcome, UnknownServerError)
        assert channels.answered() == [2]

    run(story())


def test_a_refused_login_ends_the_request() -> None:
    async def story() -> None:
        channels = Channels()
        channels.transport.connects[1] = deque([SaslAuthenticationFailed("unknown user")])
        channels.send(1, 2)
        await asyncio.sleep(1)
        assert isinstance(channels.outcomes[1], SaslAuthenticationFailed)
        assert channels.received() == channels.answered() == [2]

    run(story())


def test_a_connection_that_the_broker_closed_while_idle_is_replaced() -> None:
    async def story() -> None:
        channels = Channels()
        channels.send(1)
        await asyncio.sleep(1)
        channels.transport.connections[0].close()
        channels.send(2)
        await asyncio.sleep(1)
        assert channels.answered() == [1, 2]
        assert len(channels.transport.connected) == 2

    run(story())


# --- brokers come and go


def test_requests_to_a_removed_broker_are_dropped() -> None:
    async def story() -> None:
        channels = Channels()
        channels.transport.script(1, None)
        channels.send(1, 2)
        await asyncio.sleep(1)
        channels.manager.remove_broker(1)
        channels.send(3)
        await asyncio.sleep(60)
        assert channels.received() == [1]
        assert channels.outcomes == {}
        assert channels.transport.open == []
        assert channels.manager.queue_size(1) == 0
        assert channels.manager.broker_ids == []

    run(story())


def test_removal_ends_the_retries() -> None:
    async def story() -> None:
        channels = Channels()
        channels.transport.connects[1] = deque(NetworkException("refused") for _ in range(600))
        channels.send(1)
        await asyncio.sleep(1)
        channels.manager.remove_broker(1)
        tried = len(channels.transport.connected)
        await asyncio.sleep(5)
        assert len(channels.transport.connected) == tried

    run(story())


def test_a_broker_that_registered_anew_gets_a_new_connection_and_no_old_requests() -> None:
    async def story() -> None:
        channels = Channels()
        channels.transport.script(1, None)
        channels.send(1, 2)
        await asyncio.sleep(1)
        moved = Endpoint("PLAINTEXT", "PLAINTEXT", "elsewhere", 1)
        channels.manager.replace_broker(BrokerRegistration(1, [moved], None, 200))
        channels.send(3)
        await asyncio.sleep(1)
        assert channels.received() == [1, 3]
        assert channels.answered() == [3]
        assert channels.transport.connected[-1][1] == moved

    run(story())


def test_a_known_broker_keeps_its_channel() -> None:
    async def story() -> None:
        channels = Channels()
        channels.send(1)
        channels.manager.add_brokers([broker(1), broker(2)])
        await asyncio.sleep(1)
        assert channels.answered() == [1]
        assert channels.manager.broker_ids == [1, 2]
        channels.manager.close()
        assert channels.manager.broker_ids == []

    run(story())


def test_a_broker_without_the_listener_gets_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        channels = Channels(ChannelSettings("CONTROL", timeout=3.0))
        channels.send(1)
        channels.manager.add_broker(broker(2, listener="CONTROL"))
        channels.send(2, broker_id=2)
        await asyncio.sleep(1)
        assert channels.answered() == [2]

    run(story())
    assert "broker 1 has no listener CONTROL" in caplog.text


def test_a_callback_may_send_the_next_request() -> None:
    async def story() -> None:
        channels = Channels()

        def again(_outcome: Outcome) -> None:
            channels.send(2)

        request = UpdateMetadataRequest(controller_epoch=1)
        channels.manager.send(1, request, UpdateMetadataResponse, 8, again)
        await asyncio.sleep(1)
        assert channels.received() == [1, 2]

    run(story())


def test_a_mistake_of_a_callback_does_not_end_the_channel(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        channels = Channels()

        def fail(_outcome: Outcome) -> None:
            raise ValueError("a bug")

        request = UpdateMetadataRequest(controller_epoch=1)
        channels.manager.send(1, request, UpdateMetadataResponse, 8, fail)
        channels.send(2)
        await asyncio.sleep(1)
        assert channels.received() == [1, 2]

    run(story())
    assert "a bug" in caplog.text


def test_a_flush_waits_for_the_requests_before_it_only() -> None:
    async def story() -> None:
        channels = Channels()
        channels.transport.script(1, NetworkException("reset"))
        channels.send(1, 2)
        flush = asyncio.create_task(channels.manager.flush([1, 7]))
        await asyncio.sleep(0)
        channels.transport.connects[1] = deque(NetworkException("refused") for _ in range(10))
        channels.send(3)
        await flush
        assert 2 in channels.answered()
        await channels.manager.flush([1])
        assert channels.answered() == [1, 2, 3]
        await channels.manager.flush([1])

    run(story())


def test_a_flush_ends_when_the_broker_is_removed() -> None:
    async def story() -> None:
        channels = Channels()
        channels.transport.script(1, None)
        channels.send(1)
        flush = asyncio.create_task(channels.manager.flush([1]))
        await asyncio.sleep(1)
        assert not flush.done()
        channels.manager.remove_broker(1)
        await flush
        assert channels.outcomes == {}

    run(story())
