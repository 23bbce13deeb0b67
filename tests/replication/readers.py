"""Readers that follow partitions all the time, and whether an offset ever showed two values."""

from __future__ import annotations

import threading
from collections.abc import Collection

import confluent_kafka

from tests.support.contents import Contents

Partition = tuple[str, int]
Place = tuple[str, int, int]
"""Topic, partition and offset."""


class Sightings:
    """What readers saw at each offset. All readers share one."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self._values: dict[Place, tuple[bytes | None, str]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._values)

    def saw(self, place: Place, value: bytes | None, who: str) -> None:
        with self._lock:
            first, by = self._values.setdefault(place, (value, who))
            if first != value:
                self.problems.append(f"{place}: {by} saw {first!r}, {who} saw {value!r}")

    def check(self, found: dict[Partition, Contents], who: str) -> list[str]:
        """The problems, also those with the logs as they are in the end."""
        there: set[Place] = set()
        for (topic, index), log in found.items():
            for record in log.records:
                there.add((topic, index, record.offset))
                self.saw((topic, index, record.offset), record.value, who)
        lost = [place for place in self._values if place[:2] in found and place not in there]
        return [*self.problems, *(f"{place} was seen and is gone" for place in lost)]


class SteadyReader:
    """Reads partitions with librdkafka, again from the beginning after every `seconds`.

    With `rack`, it reads from the replica in that rack.
    """

    def __init__(
        self,
        bootstrap: str,
        partitions: Collection[Partition],
        sightings: Sightings,
        *,
        rack: str = "",
        seconds: float = 10.0,
    ) -> None:
        self._settings: dict[str, str | int | bool] = {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "client.rack": rack,
            "enable.auto.commit": False,
            "isolation.level": "read_uncommitted",
            "auto.offset.reset": "error",
            "reconnect.backoff.max.ms": 200,
            "fetch.wait.max.ms": 100,
            "log_level": 0,
        }
        self._partitions = partitions
        self._sightings = sightings
        self._seconds = seconds
        self._name = f"reader in {rack or 'no rack'}"
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> SteadyReader:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._ends.set()
        self._thread.join(30)

    def _run(self) -> None:
        while not self._ends.is_set():
            consumer = confluent_kafka.Consumer(self._settings)
            try:
                self._follow(consumer)
            finally:
                consumer.close()

    def _follow(self, consumer: confluent_kafka.Consumer) -> None:
        beginning = confluent_kafka.OFFSET_BEGINNING
        consumer.assign([confluent_kafka.TopicPartition(t, i, beginning) for t, i in self._partitions])
        next_turn = threading.Event()
        timer = threading.Timer(self._seconds, next_turn.set)
        timer.start()
        try:
            while not (self._ends.is_set() or next_turn.is_set()):
                for message in consumer.consume(500, 0.2):
                    if message.error() is None:
                        place = (str(message.topic()), message.partition() or 0, message.offset() or 0)
                        self._sightings.saw(place, message.value(), self._name)
        finally:
            timer.cancel()
