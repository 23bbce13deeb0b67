"""Replaces time and randomness of the system by those of a simulated world, on the thread that runs it.

Brokers take clocks and random numbers from their platform. Clients and the hot paths of the broker call
`time` and `random` directly, because a level of indirection costs there; those calls arrive here.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol

FUNCTIONS: Final = (
    "monotonic",
    "monotonic_ns",
    "perf_counter",
    "perf_counter_ns",
    "sleep",
    "time",
    "time_ns",
)


class TimeSource(Protocol):
    """The time of the process that runs now."""

    def monotonic(self) -> float: ...

    def wall_seconds(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...


@contextmanager
def installed(source: TimeSource, rng: random.Random) -> Iterator[None]:
    """Let `time`, `random` and `os.urandom` answer for a simulated world until the block ends."""
    thread = threading.get_ident()
    real = {name: getattr(time, name) for name in FUNCTIONS}
    urandom, state = os.urandom, random.getstate()

    def on_thread(simulated: Callable[..., object], original: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object) -> object:
            return simulated(*args) if threading.get_ident() == thread else original(*args)

        return call

    simulated: dict[str, Callable[..., object]] = {
        "monotonic": source.monotonic,
        "monotonic_ns": lambda: round(source.monotonic() * 1e9),
        "perf_counter": source.monotonic,
        "perf_counter_ns": lambda: round(source.monotonic() * 1e9),
        "sleep": source.sleep,
        "time": source.wall_seconds,
        "time_ns": lambda: round(source.wall_seconds() * 1e9),
    }
    replaced = {name: on_thread(simulated[name], real[name]) for name in FUNCTIONS}
    try:
        for name in FUNCTIONS:
            _replace(name, real[name], replaced[name])
        os.urandom = on_thread(rng.randbytes, urandom)  # type: ignore[assignment]
        random.seed(rng.getrandbits(64))
        yield
    finally:
        for name in FUNCTIONS:
            _replace(name, replaced[name], real[name])
        os.urandom = urandom
        random.setstate(state)


def _replace(name: str, old: object, new: object) -> None:
    """Replace a function in the module `time`, and in our modules that imported it by name."""
    setattr(time, name, new)
    for module_name, module in list(sys.modules.items()):
        if module_name.startswith("tidelog.") and getattr(module, name, None) is old:
            setattr(module, name, new)
