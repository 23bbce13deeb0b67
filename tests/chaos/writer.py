"""A producer that writes numbered records all the time, and what must be in the logs in the end."""

from __future__ import annotations

import itertools
import threading
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import confluent_kafka

from tests.support.wait import eventually

Partition = tuple[str, int]


class SteadyWriter:
    """An idempotent producer in a thread. Its records begin with `prefix`.

    `acknowledged` has the records by partition, in order.
    """

    def __init__(self, bootstrap: str, topic: str, partitions: int, prefix: str) -> None:
        self.acknowledged: defaultdict[Partition, list[str]] = defaultdict(list)
        self.errors: list[str] = []
        self._topic = topic
        self._partitions = partitions
        self._prefix = prefix
        self._ends = threading.Event()
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 1,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "retry.backoff.ms": 20,
                "topic.metadata.refresh.interval.ms": 400,
                "log_level": 0,
            }
        )
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> SteadyWriter:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._ends.set()
        self._thread.join(60)

    def stop(self) -> None:
        """No more records. All that were begun are acknowledged."""
        self._ends.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), "the producer does not end"
        assert self.errors == []

    def await_more(self, partitions: int, timeout: float) -> None:
        """Wait until records of that many partitions are acknowledged that were not before."""
        before = {key: len(values) for key, values in self.acknowledged.items()}

        def grown() -> bool:
            now = {key: len(values) for key, values in self.acknowledged.items()}
            return sum(now[key] > before.get(key, 0) for key in now) >= partitions

        eventually(grown, f"the producer goes on in {partitions} partitions", timeout)

    def _run(self) -> None:
        for number in itertools.count():
            if self._ends.wait(0.005):
                break
            self._write(number % self._partitions, f"{self._prefix}{number}")
            self._producer.poll(0)
        if self._producer.flush(50):
            self.errors.append("records are left that no broker took")

    def _write(self, partition: int, value: str) -> None:
        def delivered(error: object, _message: object) -> None:
            if error is None:
                self.acknowledged[self._topic, partition].append(value)
            else:
                self.errors.append(f"{value}: {error}")

        self._producer.produce(self._topic, value.encode(), partition=partition, on_delivery=delivered)


def check_writes(
    acknowledged: Mapping[Partition, Sequence[str]], found: Mapping[Partition, Sequence[str]]
) -> list[str]:
    """What is wrong: acknowledged records that are lost or out of order, records that are there twice."""
    problems: list[str] = []
    for (topic, index), values in found.items():
        problems += [
            f"{topic}-{index}: {value} is there {count} times"
            for value, count in Counter(values).items()
            if count > 1
        ]
    for (topic, index), values in acknowledged.items():
        present = found.get((topic, index), ())
        places = {value: at for at, value in enumerate(present)}
        problems += [
            f"{topic}-{index}: {value} was acknowledged and is lost"
            for value in values
            if value not in places
        ]
        kept = [value for value in values if value in places]
        problems += [
            f"{topic}-{index}: {one} comes after {two}"
            for one, two in itertools.pairwise(kept)
            if places[one] > places[two]
        ]
    return problems
