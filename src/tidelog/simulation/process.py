"""Hosts and processes of a simulated world."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Final

from tidelog.simulation.disk import Crash, SimulatedDisk
from tidelog.simulation.loop import SimLoop

if TYPE_CHECKING:
    from tidelog.simulation.world import World

START_MS: Final = 1_700_000_000_000
TURN_SECONDS: Final = (5e-6, 60e-6)
"""What a turn of a loop costs: it orders processes that all have work."""

JOB_SECONDS: Final = (20e-6, 2e-3)


class SimClock:
    """The clock of a host. Only its wall clock can jump."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.jumped_ms = 0

    def ms(self) -> int:
        return START_MS + self.jumped_ms + int(self._world.now * 1000)

    def monotonic(self) -> float:
        return self._world.now


class Host:
    """A machine: its disk and clock outlive its processes."""

    def __init__(self, name: str, world: World) -> None:
        self.name = name
        self.clock = SimClock(world)
        self.disk = SimulatedDisk()
        self.slow_disk_seconds = 0.0
        self.on_loop_sync: Callable[[Process, str], None] | None = None
        """Called with a file that a process syncs in a turn of its loop, not on a thread."""
        self._world = world
        self._connect(self.disk)

    def _connect(self, disk: SimulatedDisk) -> None:
        disk.on_step = self._operation
        disk.on_sync = self._sync

    def _operation(self) -> None:
        """An operation of the disk delays the loop or thread that asked for it, and ends with its process."""
        process = self._world.current
        if process is None:
            return
        if not process.is_alive:
            raise Crash
        if self.slow_disk_seconds:
            process.sleep(process.rng.uniform(0.0, self.slow_disk_seconds))

    def _sync(self, path: str) -> None:
        process = self._world.current
        if process is not None and process.loop.is_in_turn and self.on_loop_sync is not None:
            self.on_loop_sync(process, path)

    def lose_power(self, rng: random.Random) -> None:
        """Leave what a power cut leaves: of what was not synced some, and torn."""
        self.replace_disk(self.disk.after_crash(rng))

    def replace_disk(self, disk: SimulatedDisk) -> None:
        self.disk.on_step = _gone
        self.disk = disk
        self._connect(disk)


def _gone() -> None:
    raise Crash


class Process:
    """A process on a host: one loop, sockets, threads."""

    def __init__(self, world: World, name: str, host: Host, rng: random.Random) -> None:
        self.world = world
        self.name = name
        self.host = host
        self.rng = rng
        self.clock = host.clock
        self.is_alive = True
        self.is_paused = False
        self.has_events = False
        """Whether a socket of this process may be ready."""
        self.busy_until = 0.0
        self._thread_delay = 0.0
        self.on_exit: Callable[[], None] | None = None
        """Called when the main coroutine has returned; a process that is killed does not call it."""
        self._held: list[Callable[[], None]] = []
        self.loop = SimLoop(self)
        self.loop.set_exception_handler(self._failed)

    def start(self, main: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task: asyncio.Task[None] = self.loop.create_task(main)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not self.is_alive:
            return
        if not task.cancelled() and (error := task.exception()) is not None:
            self.world.unexpected(self, "the process failed", error)
        self.world.after(0.0, self._exit)

    def _exit(self) -> None:
        if self.is_alive:
            self.world.kill(self)
            if self.on_exit is not None:
                self.on_exit()

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        error = context.get("exception")
        if self.is_alive and not isinstance(error, Crash):
            self.world.unexpected(self, str(context.get("message")), error)

    # Time

    def next_turn(self) -> float | None:
        """When this process runs next, if nothing happens before."""
        if self.is_paused or not self.is_alive:
            return None
        if self.has_events:
            return self.busy_until
        due = self.loop.next_turn()
        return due if due is None or due > self.busy_until else self.busy_until

    def run_turn(self) -> None:
        self.busy_until = self.world.now + self.rng.uniform(*TURN_SECONDS)
        self.loop.run_turn()

    def sleep(self, seconds: float) -> None:
        """Delay what runs now: the loop in a turn of it, else the job of a thread."""
        if self.loop.is_in_turn:
            self.busy_until = max(self.busy_until, self.world.now) + seconds
        else:
            self._thread_delay += seconds

    def take_thread_delay(self) -> float:
        """How long the job of a thread that ran just now has slept."""
        delay, self._thread_delay = self._thread_delay, 0.0
        return delay

    def job_seconds(self) -> float:
        return self.rng.uniform(*JOB_SECONDS) + self.rng.uniform(0.0, self.host.slow_disk_seconds)

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Do something of this process later: not while it is paused, and never once it has ended."""

        def due() -> None:
            if self.is_paused:
                self._held.append(action)
            elif self.is_alive:
                self.world.in_process(self, action)

        self.world.after(seconds, due)

    # Faults

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False
        held, self._held = self._held, []
        for action in held:
            self.after(0.0, action)

    def end(self, *, power: bool) -> None:
        """End this process at once; `power` says whether its kernel lives on and closes its sockets."""
        self.is_alive = False
        for sock in self.world.network.sockets_of(self):
            if power:
                sock.abort()
            else:
                sock.lose_power()
        if power:
            self.host.disk.locks.clear()
