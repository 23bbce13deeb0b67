"""aiokafka's coordination survives heartbeats that are cancelled while they leave the group."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from aiokafka.consumer.group_coordinator import GroupCoordinator

from tests.groups import aiokafka_heartbeats


class Coordination(SimpleNamespace):
    """The parts of a GroupCoordinator that its heartbeats use, with nothing read for a long time."""

    member_id, generation, group_id = "m", 1, "g"
    _heartbeat_interval_ms, _session_timeout_ms, _retry_backoff_ms, _max_poll_interval = 1, 2000, 50, 10.0
    _group_instance_id = None
    _subscription = SimpleNamespace(fetcher_idle_time=11.0)
    _maybe_leave_group = GroupCoordinator._maybe_leave_group

    async def ensure_coordinator_known(self) -> None:
        pass

    async def _do_heartbeat(self) -> bool:
        return True

    async def _send_req(self, _request: object) -> None:
        self.leaving.set()
        await asyncio.get_running_loop().create_future()  # the answer takes its time


async def leaving() -> Coordination:
    """Heartbeats that wait for the answer to their LeaveGroup."""
    found = Coordination(leaving=asyncio.Event())
    found._heartbeat_task = asyncio.create_task(GroupCoordinator._heartbeat_routine(found))
    await found.leaving.wait()
    return found


def test_without_the_mend_the_coordination_ends_with_the_heartbeats() -> None:
    """If this fails, aiokafka is mended, and the module can go."""

    async def stop() -> None:
        await aiokafka_heartbeats.stop_heartbeats(await leaving())

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(stop())


def test_the_coordination_goes_on() -> None:
    async def stop() -> bool:
        found = await leaving()
        await aiokafka_heartbeats._stop_heartbeat_task(found)
        return found._heartbeat_task is None

    assert asyncio.run(stop())
