"""AuthenticationLog: logs failed authentications like Kafka, but limits their number."""

from __future__ import annotations

import logging
from typing import Final

log = logging.getLogger("tidelog.network")

LINES_PER_SECOND: Final = 10
"""A flood of failures fills no disk: beyond so many lines in a second they are only counted."""


class AuthenticationLog:
    def __init__(self) -> None:
        self._second = 0
        self._count = 0

    def log(self, listener: str, peer: str, reason: str, now: float) -> None:
        """Log a failure, at INFO. `now` is in seconds."""
        if int(now) != self._second:
            if self._count > LINES_PER_SECOND:
                log.info("%d more authentications failed", self._count - LINES_PER_SECOND)
            self._second, self._count = int(now), 0
        self._count += 1
        if self._count <= LINES_PER_SECOND:
            log.info("failed authentication with %s (listener %s): %s", peer, listener, reason)
