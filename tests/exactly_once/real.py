"""Kafka 4.3 in the place of our broker."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.kafka.servers import Kafka4


class Theirs:
    has_two_phase = False

    def __init__(self, kafka: Kafka4) -> None:
        self._kafka = kafka

    @property
    def bootstrap(self) -> str:
        return self._kafka.bootstrap

    def restart(self, *, kill: bool) -> None:
        if kill:
            self._kafka.kill()
        else:
            self._kafka.stop()
        self._kafka.start()

    def _signal(self, number: int) -> None:
        process = self._kafka._process
        assert process is not None
        os.kill(process.pid, number)

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def surprises(self) -> list[str]:
        return []


@contextmanager
def running_kafka(folder: Path, settings: dict[str, str]) -> Iterator[Theirs]:
    kafka = Kafka4(folder / "kafka", folder / "data", settings)
    kafka.format()
    with kafka:
        yield Theirs(kafka)
