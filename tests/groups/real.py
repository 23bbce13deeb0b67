"""Kafka 4.3 in the place of our broker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.kafka.servers import Kafka4


class Theirs:
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

    def surprises(self) -> list[str]:
        return []


@contextmanager
def running_kafka(folder: Path, settings: dict[str, str]) -> Iterator[Theirs]:
    kafka = Kafka4(folder / "kafka", folder / "data", settings)
    kafka.format()
    with kafka:
        yield Theirs(kafka)
