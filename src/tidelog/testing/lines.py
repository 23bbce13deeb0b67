"""The log lines of a broker that runs inside a test program, kept apart from the program's own.

While the broker runs, its loggers write at level INFO into memory. Warnings and errors also reach the
handlers of the program. The last broker that ends restores the loggers.
"""

from __future__ import annotations

import logging
import threading
from collections import deque

from tidelog.server.logs import LineFormatter

THREAD_PREFIX = "tidelog-broker-"
KEPT_LINES = 10_000
# The loggers of a broker; those of clients are the program's own.
PARTS = ("cluster", "controller", "coordinator", "metadata", "metrics", "network", "server", "storage")


class LogLines(logging.Handler):
    """The last lines that one broker logs between `attach` and `detach`."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(LineFormatter())
        self._thread_name = ""
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self.count = 0
        """The number of lines logged, with those that are not kept any more."""
        self._restore: dict[str, tuple[bool, int]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        name = record.threadName or ""
        if name != self._thread_name and name.startswith(THREAD_PREFIX):
            return  # the loop of another broker
        # A worker thread does not know its broker: all brokers keep its lines.
        self._lines.append(self.format(record))
        self.count += 1
        if record.levelno >= logging.WARNING and (name == self._thread_name or self._is_first()):
            logging.getLogger("tidelog").handle(record)

    def lines(self, since: int = 0) -> list[str]:
        """The kept lines, without the first `since` lines of all that were logged."""
        kept = list(self._lines)
        return kept[max(0, since - (self.count - len(kept))) :]

    def attach(self, thread_name: str) -> None:
        """Begin to keep the lines of the broker whose loop runs in the thread `thread_name`."""
        self._thread_name = thread_name
        for part in PARTS:
            logger = logging.getLogger(f"tidelog.{part}")
            if not self._others(logger):
                self._restore[part] = (logger.propagate, logger.level)
                logger.propagate = False
                logger.setLevel(logging.INFO)
            logger.addHandler(self)

    def detach(self) -> None:
        for part in PARTS:
            logger = logging.getLogger(f"tidelog.{part}")
            logger.removeHandler(self)
            before = self._restore.pop(part, None)
            others = self._others(logger)
            if before is not None and others:
                others[0]._restore[part] = before
            elif before is not None:
                logger.propagate, level = before
                logger.setLevel(level)

    def _others(self, logger: logging.Logger) -> list[LogLines]:
        return [handler for handler in logger.handlers if isinstance(handler, LogLines)]

    def _is_first(self) -> bool:
        return self._others(logging.getLogger(f"tidelog.{PARTS[0]}"))[:1] == [self]


def thread_name(port: int) -> str:
    """A name for the thread of a broker that no other thread of this process has."""
    taken = {thread.name for thread in threading.enumerate()}
    base = f"{THREAD_PREFIX}{port or 'new'}"
    return next(
        name for number in range(1000) if (name := f"{base}-{number}" if number else base) not in taken
    )
