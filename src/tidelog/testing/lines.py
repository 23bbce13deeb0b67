"""The log lines of a broker inside another program: kept for who asks, and not mixed into the program's own.

While such a broker runs, the parts of a broker log at INFO into its memory. Warnings and worse go on to the
program's own handlers as well. What was changed is put back when the last such broker has gone.
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
    """The last lines of one broker, between `attach` and `detach`."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(LineFormatter())
        self._thread_name = ""
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self.count = 0
        """How many lines there were, those that are not kept any more included."""
        self._restore: dict[str, tuple[bool, int]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        name = record.threadName or ""
        if name != self._thread_name and name.startswith(THREAD_PREFIX):
            return  # the loop of another broker
        # The threads beside the loops belong to no broker by name: all of them keep such a line.
        self._lines.append(self.format(record))
        self.count += 1
        if record.levelno >= logging.WARNING and (name == self._thread_name or self._is_first()):
            logging.getLogger("tidelog").handle(record)

    def lines(self, since: int = 0) -> list[str]:
        """The lines that are kept, from the one on before which there were `since`."""
        kept = list(self._lines)
        return kept[max(0, since - (self.count - len(kept))) :]

    def attach(self, thread_name: str) -> None:
        """Keep what is logged from now on by the broker whose loop runs in the thread of that name."""
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
    """A name for the thread of a broker, told apart from those of others in this process."""
    taken = {thread.name for thread in threading.enumerate()}
    base = f"{THREAD_PREFIX}{port or 'new'}"
    return next(
        name for number in range(1000) if (name := f"{base}-{number}" if number else base) not in taken
    )
