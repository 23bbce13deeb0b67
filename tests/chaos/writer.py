"""A producer that writes numbered records all the time, and what must be in the logs in the end."""

from __future__ import annotations

import itertools
import logging
import re
import threading
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import confluent_kafka

from tests.support.wait import eventually

Partition = tuple[str, int]


class NewEpochs(logging.Handler):
    """Hears from librdkafka's log which records an idempotent producer numbers anew, in a higher epoch.

    librdkafka raises its epoch when a broker answers OUT_OF_ORDER_SEQUENCE_NUMBER. When a leader changes, it
    brings that about itself: it sends a record that was queued for the old leader to the new one before the
    record that was in flight comes back. It then numbers anew what is unanswered in all partitions. A record
    that a leader had written without an answer is a new one for every broker, and is there twice.
    `numbered` has the partition and the record, counted from 1, with which each new epoch begins, `reasons`
    the answers that began them, and `refused` is how many requests of a producer with debug=msg failed.
    """

    _CHANGED = re.compile(r"(\S+) \[(\d+)\] changed PID\{Id:.*\} -> PID.* with base MsgId (\d+)")

    def __init__(self) -> None:
        super().__init__()
        self.numbered: list[tuple[Partition, int]] = []
        self.reasons: list[str] = []
        self.refused = 0

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if "ERRSEQ" in text:
            self.reasons.append(text)
        elif "encountered error" in text:
            self.refused += 1
        elif (found := self._CHANGED.search(text)) is not None:
            topic, index, first = found.groups()
            self.numbered.append(((topic, int(index)), int(first)))

    def logger(self) -> logging.Logger:
        """A logger for a producer with debug=eos."""
        made = logging.Logger("librdkafka", logging.DEBUG)
        made.addHandler(self)
        return made


class SteadyWriter:
    """An idempotent producer in a thread. Its records begin with `prefix`.

    `acknowledged` has the records by partition, in order; `sent_anew` those that may be there again, with how
    often.
    """

    def __init__(self, bootstrap: str, topic: str, partitions: int, prefix: str) -> None:
        self.acknowledged: defaultdict[Partition, list[str]] = defaultdict(list)
        self.sent_anew: defaultdict[Partition, Counter[str]] = defaultdict(Counter)
        self._produced: defaultdict[Partition, list[str]] = defaultdict(list)
        self._new_epochs = NewEpochs()
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
                "log_level": 7,
                "debug": "eos",
            },
            logger=self._new_epochs.logger(),
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
            self._note_new_epochs()
        if self._producer.flush(50):
            self.errors.append("records are left that no broker took")
        self._note_new_epochs()
        if self._new_epochs.reasons:
            print(f"librdkafka raised its epoch: {self._new_epochs.reasons}")

    def _note_new_epochs(self) -> None:
        """Every record from the first of a new epoch on may have been sent in the epoch before it."""
        while self._new_epochs.numbered:
            partition, first = self._new_epochs.numbered.pop()
            self.sent_anew[partition].update(self._produced[partition][first - 1 :])

    def _write(self, partition: int, value: str) -> None:
        def delivered(error: object, _message: object) -> None:
            if error is None:
                self.acknowledged[self._topic, partition].append(value)
            else:
                self.errors.append(f"{value}: {error}")

        self._produced[self._topic, partition].append(value)
        self._producer.produce(self._topic, value.encode(), partition=partition, on_delivery=delivered)


def check_writes(
    acknowledged: Mapping[Partition, Sequence[str]],
    found: Mapping[Partition, Sequence[str]],
    sent_anew: Mapping[Partition, Counter[str]] | None = None,
) -> list[str]:
    """What is wrong: acknowledged records that are lost or out of order, records that are there twice.

    A record may be there once more for each time in `sent_anew`, when its producer numbered it anew.
    """
    problems: list[str] = []
    for (topic, index), values in found.items():
        anew = (sent_anew or {}).get((topic, index), Counter())
        problems += [
            f"{topic}-{index}: {value} is there {count} times"
            for value, count in Counter(values).items()
            if count > 1 + anew[value]
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
