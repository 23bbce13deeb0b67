"""The world of a run: processes, network and time, and the seed that decides what happens next."""

from __future__ import annotations

import asyncio
import gc
import heapq
import logging
import random
import sys
import warnings
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from tidelog.simulation.disk import Crash
from tidelog.simulation.history import History
from tidelog.simulation.network import Network
from tidelog.simulation.process import START_MS, Host, Process
from tidelog.simulation.virtual_time import installed

Main = Callable[[Process], Coroutine[None, None, None]]
MOST_STEPS: Final = 5_000_000


class World:
    """Runs processes one turn at a time. Use it as `with World(seed).running() as world:`."""

    def __init__(self, seed: int, log_level: int = logging.WARNING) -> None:
        self.seed = seed
        self._log_level = log_level
        self.rng = random.Random(seed)
        self.now = 0.0
        self.history = History(lambda: self.now)
        self.network = Network(self.fork("network"), self.after)
        self.hosts: dict[str, Host] = {}
        self.processes: list[Process] = []
        self.current: Process | None = None
        self.steps = 0
        self.after_turn: Callable[[Process], None] | None = None
        """Called after each turn of a process, for checks."""
        self.failures: list[str] = []
        """What a correct program never does; a run without faults in the program has none."""
        self._ended: list[Process] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0
        self._started = 0

    @contextmanager
    def running(self) -> Iterator[World]:
        """Simulate time and randomness in this block, and write log lines to the history."""
        handler = _LogLines(self)
        logger = logging.getLogger("tidelog")
        level, propagates = logger.level, logger.propagate
        logger.addHandler(handler)
        logger.setLevel(self._log_level)
        logger.propagate = False
        collects = gc.isenabled()
        # Finalizers must not run at moments that depend on the memory of this process.
        gc.disable()
        try:
            with installed(self, self.fork("system")):
                yield self
        finally:
            self._discard()
            logger.removeHandler(handler)
            logger.setLevel(level)
            logger.propagate = propagates
            if collects:
                gc.enable()

    def fork(self, name: str) -> random.Random:
        """Random numbers of their own for a part of the world: parts do not disturb each other."""
        return random.Random(f"{self.seed}/{name}")

    # Hosts and processes

    def host(self, name: str) -> Host:
        if name not in self.hosts:
            self.hosts[name] = Host(name, self)
        return self.hosts[name]

    def start(self, name: str, host: str, main: Main, on_exit: Callable[[], None] | None = None) -> Process:
        """Start a process whose only task is `main`; it ends when that returns."""
        self._started += 1
        process = Process(self, name, self.host(host), self.fork(f"process {self._started}"))
        process.on_exit = on_exit
        self.processes.append(process)
        self.in_process(process, lambda: process.start(main(process)))
        return process

    def kill(self, process: Process) -> None:
        """End a process as `kill -9` does: what it wrote stays, its sockets are closed."""
        self._end(process, power=True)

    def lose_power(self, process: Process) -> None:
        """End a process and its host: what was not synced may be lost."""
        self.network.power_off(process.host.name)
        self._end(process, power=False)
        process.host.lose_power(self.fork(f"power {self._order}"))

    def _end(self, process: Process, *, power: bool) -> None:
        process.end(power=power)
        self.processes.remove(process)
        self._ended.append(process)

    # Time

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._events, (self.now + seconds, self._order, action))

    def in_process(self, process: Process, action: Callable[[], object]) -> None:
        """Do something as a process: its clock answers, its random numbers are drawn."""
        before, self.current = self.current, process
        asyncio._set_running_loop(process.loop)
        try:
            action()
        finally:
            self.current = before
            asyncio._set_running_loop(None if before is None else before.loop)

    def step(self) -> bool:
        """Let the next thing happen; False if nothing is left to happen."""
        now = self.now
        due = self._events[0][0] if self._events else None
        runnable: list[Process] = []
        for process in self.processes:
            when = process.next_turn()
            if when is None:
                continue
            if when < now:
                when = now
            if due is None or when < due:
                due = when
                runnable = [process]
            elif when == due and runnable:
                runnable.append(process)
        if due is None:
            return False
        self.now = max(self.now, due)
        self.steps += 1
        if runnable:
            process = runnable[0] if len(runnable) == 1 else self.rng.choice(runnable)
            self.current = process
            try:
                process.run_turn()
            finally:
                self.current = None
            if self.after_turn is not None:
                self.after_turn(process)
        else:
            heapq.heappop(self._events)[2]()
        return True

    def run(self, seconds: float, until: Callable[[], bool] | None = None) -> bool:
        """Simulate for some seconds, or until a condition holds; returns whether it held."""
        end = self.now + seconds
        ended = False

        def end_of_time() -> None:
            nonlocal ended
            ended = True

        self.after(end - self.now, end_of_time)
        while not ended:
            if until is not None and until():
                return True
            if not self.step() or self.steps > MOST_STEPS:
                break
        return until is not None and until()

    # The time of the process that runs, for `time`

    def monotonic(self) -> float:
        return self.now

    def wall_seconds(self) -> float:
        jumped = 0 if self.current is None else self.current.clock.jumped_ms
        return (START_MS + jumped) / 1000 + self.now

    def sleep(self, seconds: float) -> None:
        if self.current is not None:
            self.current.sleep(seconds)

    # What goes wrong

    def unexpected(self, process: Process, what: str, error: object) -> None:
        line = f"{what}: {error!r}"
        self.history.add(process.name, line)
        self.failures.append(f"{process.name}: {line}")

    def _discard(self) -> None:
        """Forget all processes; their coroutines end without a word."""
        hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of coroutines that never began
            try:
                self._end_tasks()
            finally:
                sys.unraisablehook = hook

    def _end_tasks(self) -> None:
        for process in [*self._ended, *self.processes]:
            process.is_alive = False
            process.loop.close()
            for task in asyncio.all_tasks(process.loop):
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                with suppress(Exception, Crash):  # its last steps find no loop, and maybe no disk
                    task.get_coro().close()
        self._ended.clear()
        self.processes.clear()
        self._events.clear()
        gc.collect()


class _LogLines(logging.Handler):
    """Writes what a process logs to the history."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        process = self._world.current
        if process is None or not process.is_alive:
            return
        text = record.getMessage()
        fields: dict[str, object] = getattr(record, "fields", {})
        text += "".join(f" {name}={value}" for name, value in fields.items())
        if record.exc_info and record.exc_info[1] is not None:
            text += f" ({record.exc_info[1]!r})"
        self._world.history.add(process.name, f"{record.levelname}: {text}")
