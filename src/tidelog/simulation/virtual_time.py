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
from typing import Any, Final, Protocol


class TimeSource(Protocol):
    """The time of the process that runs now."""

    def monotonic(self) -> float: ...

    def wall_seconds(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...


def _sleep(source: TimeSource, seconds: float) -> None:
    source.sleep(seconds)


SIMULATED: Final[dict[str, Callable[..., object]]] = {
    "monotonic": lambda source: source.monotonic(),
    "monotonic_ns": lambda source: round(source.monotonic() * 1e9),
    "perf_counter": lambda source: source.monotonic(),
    "perf_counter_ns": lambda source: round(source.monotonic() * 1e9),
    "sleep": _sleep,
    "time": lambda source: source.wall_seconds(),
    "time_ns": lambda source: round(source.wall_seconds() * 1e9),
}


class _Installed:
    """The world that answers now, and the thread that runs it."""

    source: TimeSource | None = None
    rng = random.Random()
    thread = 0


_installed = _Installed()


def _replacement(real: Callable[..., Any], simulated: Callable[..., object]) -> Callable[..., object]:
    """A function that a module may keep: it is the real one again when no world is installed."""

    def call(*args: object) -> object:
        source = _installed.source
        if source is None or threading.get_ident() != _installed.thread:
            return real(*args)
        return simulated(source, *args)

    return call


_REAL: Final = {name: getattr(time, name) for name in SIMULATED}
_REPLACED: Final = {name: _replacement(_REAL[name], simulated) for name, simulated in SIMULATED.items()}
_urandom: Final = os.urandom
_simulated_urandom: Final = _replacement(_urandom, lambda source, size: _installed.rng.randbytes(size))


@contextmanager
def installed(source: TimeSource, rng: random.Random) -> Iterator[None]:
    """Let `time`, `random` and `os.urandom` answer for a simulated world until the block ends."""
    state = random.getstate()
    try:
        for name in SIMULATED:
            _replace(name, _REAL[name], _REPLACED[name])
        os.urandom = _simulated_urandom  # type: ignore[assignment]
        _installed.source, _installed.rng, _installed.thread = source, rng, threading.get_ident()
        random.seed(rng.getrandbits(64))
        yield
    finally:
        _installed.source = None
        for name in SIMULATED:
            _replace(name, _REPLACED[name], _REAL[name])
        os.urandom = _urandom
        random.setstate(state)


def _replace(name: str, old: object, new: object) -> None:
    """Replace a function in the module `time`, and in our modules that imported it by name."""
    setattr(time, name, new)
    for module_name, module in list(sys.modules.items()):
        if module_name.startswith("tidelog.") and getattr(module, name, None) is old:
            setattr(module, name, new)
