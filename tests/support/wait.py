"""Waiting for a condition instead of for a time."""

from __future__ import annotations

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
