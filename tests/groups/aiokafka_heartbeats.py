"""Mends a fault of aiokafka 0.14: a member that leaves its group while it joins again never goes on.

Its task of heartbeats leaves the group when nothing was read for `max_poll_interval_ms`. The task of the
coordination cancels the heartbeats before it joins again, and awaits them. If that interrupts the LeaveGroup,
the cancellation ends the coordination, too, without a word: `getmany()` waits for an assignment for ever. A
member that was paused comes there. Over TLS the LeaveGroup takes long enough for it to happen.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from aiokafka.consumer.group_coordinator import GroupCoordinator

stop_heartbeats = GroupCoordinator._stop_heartbeat_task


async def _stop_heartbeat_task(self: GroupCoordinator) -> None:
    with suppress(asyncio.CancelledError):  # of the heartbeats: nobody cancels the coordination
        await stop_heartbeats(self)
    self._heartbeat_task = None


def install() -> None:
    GroupCoordinator._stop_heartbeat_task = _stop_heartbeat_task
