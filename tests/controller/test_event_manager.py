"""Events are processed one at a time in order; an expired session abandons those that wait."""

from __future__ import annotations

import asyncio
import logging

import pytest

from tests.controller.controllers import LoopClock, simulated
from tidelog.controller.event_manager import (
    STUCK_SECONDS,
    ControllerEvent,
    ControllerEventManager,
    ControllerState,
    EventCleared,
)
from tidelog.errors import NotController
from tidelog.metadata.async_tree import SessionExpired
from tidelog.metadata.operations import Fenced


class Rig:
    def __init__(self) -> None:
        self.moved = 0
        self.done: list[str] = []
        self.events = ControllerEventManager(LoopClock(), self._moved)
        self.events.start()

    async def _moved(self) -> None:
        self.moved += 1

    def event(self, name: str, seconds: float = 0.0, error: Exception | None = None) -> ControllerEvent:
        async def process() -> None:
            await asyncio.sleep(seconds)
            if error is not None:
                raise error
            self.done.append(name)

        return ControllerEvent(ControllerState.TOPIC_CHANGE, name, process)

    async def idle(self) -> None:
        while not self.events.is_idle:
            await asyncio.sleep(0.01)


def test_events_are_processed_one_at_a_time_in_order() -> None:
    async def story() -> None:
        rig = Rig()
        for name, seconds in (("slow", 1.0), ("quick", 0.0), ("last", 0.5)):
            rig.events.put(rig.event(name, seconds))
        await asyncio.sleep(0.5)
        assert rig.events.state is ControllerState.TOPIC_CHANGE
        assert rig.events.queue_size == 2
        await rig.idle()
        assert rig.done == ["slow", "quick", "last"]
        assert rig.events.state is ControllerState.IDLE
        assert rig.events.metrics.queue_time.count == 3
        assert rig.events.metrics.event_times[ControllerState.TOPIC_CHANGE].count == 3
        await rig.events.close()

    simulated(story())


def test_a_failed_event_is_logged_and_the_next_one_follows(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        rig = Rig()
        rig.events.put(rig.event("bad", error=RuntimeError("a planted fault")))
        rig.events.put(rig.event("good"))
        await rig.idle()
        assert rig.done == ["good"]
        assert rig.moved == 0
        await rig.events.close()

    with caplog.at_level(logging.ERROR):
        simulated(story())
    assert "event bad failed" in caplog.text
    assert "a planted fault" in caplog.text


def test_an_event_that_meets_another_controller_resigns() -> None:
    async def story() -> None:
        rig = Rig()
        rig.events.put(rig.event("fenced", error=Fenced()))
        rig.events.put(rig.event("expired", error=SessionExpired("/x")))
        await rig.idle()
        assert rig.moved == 1
        await rig.events.close()

    simulated(story())


def test_an_expired_session_abandons_what_waits_but_not_what_runs() -> None:
    async def story() -> None:
        rig = Rig()
        rig.events.put(rig.event("running", 1.0))
        rig.events.put(rig.event("waiting"))

        async def answer() -> int:
            return 7

        call = asyncio.ensure_future(rig.events.call(ControllerState.IDLE, "request", answer))
        await asyncio.sleep(0.1)
        rig.events.clear_and_put(rig.event("expire"))
        with pytest.raises(EventCleared):
            await call
        await rig.idle()
        assert rig.done == ["running", "expire"]
        await rig.events.close()

    simulated(story())


def test_an_event_that_is_cancelled_by_what_it_waits_for_does_not_end_the_queue(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story() -> None:
        rig = Rig()
        gone = asyncio.get_running_loop().create_future()
        gone.cancel()

        async def process() -> None:
            await gone

        rig.events.put(ControllerEvent(ControllerState.TOPIC_CHANGE, "cancelled", process))
        rig.events.put(rig.event("next"))
        await asyncio.sleep(1.0)
        assert rig.done == ["next"]
        await rig.events.close()

    simulated(story())
    assert "the controller's event cancelled was cancelled" in caplog.text


def test_an_event_that_does_not_end_after_its_session_is_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        rig = Rig()
        rig.events.put(rig.event("endless", 10**9))
        rig.events.put(rig.event("waiting"))
        await asyncio.sleep(100.0)
        assert rig.done == []  # without an expiry an event has all the time that it needs
        rig.events.clear_and_put(rig.event("expire"))
        rig.events.put(rig.event("register"))
        await asyncio.sleep(STUCK_SECONDS - 1.0)
        assert rig.done == []
        await asyncio.sleep(2.0)
        assert rig.done == ["expire", "register"]
        rig.events.put(rig.event("slow", 3 * STUCK_SECONDS))
        await rig.idle()
        assert rig.done[-1] == "slow"
        await rig.events.close()

    simulated(story())
    assert "endless goes on 10 s after its session expired" in caplog.text


def test_a_call_returns_the_result_or_the_error_of_its_event(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        rig = Rig()

        async def answer() -> int:
            return 7

        async def refuse() -> int:
            raise NotController

        assert await rig.events.call(ControllerState.IDLE, "request", answer) == 7
        with pytest.raises(NotController):
            await rig.events.call(ControllerState.IDLE, "request", refuse)
        await rig.idle()
        await rig.events.close()
        with pytest.raises(EventCleared):
            await rig.events.call(ControllerState.IDLE, "request", answer)

    simulated(story())
    assert "failed" not in caplog.text  # the client has the error


def test_a_call_goes_on_when_its_caller_is_gone() -> None:
    async def story() -> None:
        rig = Rig()
        call = asyncio.ensure_future(
            rig.events.call(ControllerState.IDLE, "request", rig.event("work", 1.0).process)
        )
        await asyncio.sleep(0.1)
        call.cancel()
        await rig.idle()
        assert rig.done == ["work"]
        await rig.events.close()

    simulated(story())


def test_a_call_ends_when_its_event_is_cancelled() -> None:
    async def story() -> None:
        rig = Rig()
        call = asyncio.ensure_future(
            rig.events.call(ControllerState.IDLE, "request", rig.event("work", 1.0).process)
        )
        await asyncio.sleep(0.1)
        await rig.events.close()
        with pytest.raises(EventCleared):
            await asyncio.wait_for(call, 1.0)

    simulated(story())


def test_states_have_the_names_of_kafkas_metrics() -> None:
    names = {state.metric_name for state in ControllerState}
    assert {
        "LeaderElectionRateAndTimeMs",
        "TopicDeletionRateAndTimeMs",
        "LeaderAndIsrResponseReceivedRateAndTimeMs",
        "IsrChangeRateAndTimeMs",
    } <= names
