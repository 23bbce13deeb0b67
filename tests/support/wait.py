"""Waiting for a condition instead of for a time."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(probe: Callable[[], T | None], what: str, timeout: float = 10.0, interval: float = 0.01) -> T:
    """The first truthy value of `probe`; an AssertionError that names `what` when none comes in time."""
    deadline = time.monotonic() + timeout
    while True:
        value = probe()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise AssertionError(f"{what}: not within {timeout} s (last seen: {value!r})")
        time.sleep(interval)


def known(ask: Callable[[], T | None], what: str, timeout: float = 10.0, interval: float = 0.05) -> T:
    """The first answer of `ask` that is not None, also an empty one."""
    (answer,) = eventually(lambda: None if (found := ask()) is None else (found,), what, timeout, interval)
    return answer


def answered(
    ask: Callable[[], T],
    what: str,
    errors: tuple[type[Exception], ...],
    timeout: float = 60.0,
    interval: float = 0.2,
) -> T:
    """The first result of `ask`. It is asked again after one of these errors: a broker may be coming back."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            return ask()
        except errors as error:
            if time.monotonic() >= deadline:
                error.add_note(f"{what}: not answered within {timeout} s")
                raise
        time.sleep(interval)


async def eventually_async(
    probe: Callable[[], T | None], what: str, timeout: float = 10.0, interval: float = 0.005
) -> T:
    """`eventually` on a loop, which runs other tasks meanwhile. The time is that of the loop."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    while True:
        value = probe()
        if value:
            return value
        if loop.time() >= deadline:
            raise AssertionError(f"{what}: not within {timeout} s (last seen: {value!r})")
        await asyncio.sleep(interval)


def patience(seconds: float) -> float:
    """A limit for what happens in the end, longer as more processes want each core of this machine."""
    return seconds * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
