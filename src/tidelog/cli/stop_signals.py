"""Signals that ask a tool to stop the processes that it runs: Ctrl-C, SIGTERM and a closed terminal."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopAsked(Exception):
    """A signal asked to stop."""


@contextmanager
def stop_signals() -> Iterator[None]:
    """Raise StopAsked at a signal."""

    def ask(number: int, _frame: object) -> None:
        raise StopAsked(signal.Signals(number).name)

    before = {number: signal.signal(number, ask) for number in STOPS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ignore_stop_signals() -> None:
    """From now on the program stops: another signal changes nothing."""
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)
