"""One consumer that does whatever a seed draws while others write, and what it must have seen.

Nothing is judged while the story runs: every step is noted, and at the end compared with what a plain Fetch
finds in the partitions. From its position on, a consumer gets each record that it may see once and in order;
a position, and so a commit, stands behind what was handed out and before the next record.

Run as a program it is a story in a process of its own, whose polls are ended by real signals.
"""

from __future__ import annotations

import contextlib
import random
import signal
import sys
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import TYPE_CHECKING

from tests.clients import reading
from tests.clients.consuming import LIMIT, make_topic
from tidelog.clients.consumer.blocking import Consumer
from tidelog.clients.errors import WakeupException
from tidelog.clients.producer.blocking import Producer
from tidelog.records.loops import ConsumerRecord

if TYPE_CHECKING:
    import pyarrow as pa

PARTITIONS = 3
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

Seen = tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]
"""Offset, key, value and headers."""


class Aborted(Exception):
    """Ends a transaction that is not to count."""


class Writers:
    """Write to a topic until they are stopped: batches plain and compressed, transactions of both ends."""

    def __init__(self, bootstrap: str, topic: str, seed: str) -> None:
        self._topic = topic
        self._chance = random.Random(f"writers {seed}")
        self._stop = threading.Event()
        self._number = 0
        self._plain = [Producer(bootstrap_servers=bootstrap, compression_type=codec) for codec in CODECS]
        self._transactional = Producer(bootstrap_servers=bootstrap, transactional_id=topic)
        self._problem: BaseException | None = None
        self._thread = threading.Thread(target=self._main, name="writers")
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        for producer in (*self._plain, self._transactional):
            producer.close()
        if self._problem is not None:
            raise self._problem

    def _main(self) -> None:
        try:
            self._transactional.init_transactions()
            while not self._stop.wait(self._chance.choice([0.0, 0.001, 0.02, 0.1])):
                if self._chance.random() < 0.3:
                    self._write_transaction()
                else:
                    producer = self._chance.choice(self._plain)
                    self._write(producer)
                    producer.flush()
        except BaseException as error:
            self._problem = error

    def _write_transaction(self) -> None:
        with contextlib.suppress(Aborted), self._transactional.transaction() as producer:
            for _ in range(self._chance.randrange(1, 4)):
                self._write(producer)
            if self._chance.random() < 0.5:
                raise Aborted

    def _write(self, producer: Producer) -> None:
        chance = self._chance
        partitions = chance.sample(range(PARTITIONS), chance.randrange(1, PARTITIONS + 1))
        for _ in range(chance.choice([1, 3, 10, 40])):
            self._number += 1
            value = b"%d " % self._number * chance.choice([1, 10, 200])
            producer.send(
                self._topic,
                None if chance.random() < 0.05 else value,
                key=chance.choice([None, b"", b"%d" % self._number]),
                headers=[("h", b"%d" % self._number), ("nothing", None)] if chance.random() < 0.1 else [],
                partition=chance.choice(partitions),
            )


class Knocks:
    """What a waiting poll listens to, which a Ctrl-C may end before or after the loop has knocked."""

    def __init__(self) -> None:
        self._signals: SimpleQueue[None] = SimpleQueue()
        self.interrupt: float | None = None
        """How long to wait before it comes; None where it does not."""

    def put(self, knock: None) -> None:
        self._signals.put(knock)

    def empty(self) -> bool:
        return self._signals.empty()

    def get(self, timeout: float | None = None) -> None:
        if self.interrupt is None:
            return self._signals.get(timeout=timeout)
        with contextlib.suppress(Exception):  # Empty
            self._signals.get(timeout=self.interrupt)
        self.interrupt = None
        raise KeyboardInterrupt


@dataclass(slots=True)
class Notes:
    """What happened to a partition, in order."""

    steps: list[tuple[str, object]] = field(default_factory=list)
    next: int = 0
    """One behind the last record that came, or where a seek went."""

    def got(self, seen: Seen) -> None:
        self.steps.append(("got", seen))
        self.next = seen[0] + 1

    def sought(self, offset: int) -> None:
        self.steps.append(("sought", offset))
        self.next = offset

    def stands(self, what: str, offset: int) -> None:
        self.steps.append((what, offset))

    def problems(self, truth: list[Seen]) -> Iterator[str]:
        """Where the steps do not fit what is in the log."""
        offsets = [seen[0] for seen in truth]
        index = position = 0

        for what, told in self.steps:
            if what == "sought":
                assert isinstance(told, int)
                index, position = bisect_left(offsets, told), told
            elif what == "got":
                assert isinstance(told, tuple)
                if index >= len(truth) or told != truth[index]:
                    expected = truth[index] if index < len(truth) else None
                    yield f"got {_short(told)} where {_short(expected)} is next"
                index = bisect_left(offsets, told[0]) + 1
                position = told[0] + 1
            else:
                assert isinstance(told, int)
                if told < position or bisect_left(offsets, told) != index:
                    expected = truth[index] if index < len(truth) else None
                    yield f"{what} {told} after {position}, where {_short(expected)} is next"
        if index != len(truth):
            yield f"{len(truth) - index} records never came, from {_short(truth[index])} on"


def _short(seen: object) -> str:
    return repr(seen)[:60]


class Story:
    """A consumer and its notes. `do` does so many steps; `finish` reads what is left and gives the problems.

    A KeyboardInterrupt is raised where a poll waits or, with `signals`, wherever a real one finds it.
    """

    def __init__(self, bootstrap: str, topic: str, seed: str, *, signals: bool) -> None:
        self.chance = chance = random.Random(f"story {seed}")
        self.bootstrap = bootstrap
        self.topic = topic
        self.notes = [Notes() for _ in range(PARTITIONS)]
        self.interrupts = 0
        self.polls = False
        self.by_group = chance.choice(["", "classic", "consumer"])
        self.settings: dict[str, object] = {
            "bootstrap_servers": bootstrap,
            "auto_offset_reset": "earliest",
            "group_id": f"group-{topic}",
            "isolation_level": chance.choice(["read_committed", "read_uncommitted"]),
            "max_partition_fetch_bytes": chance.choice([300, 3000, 1 << 20]),
            "fetch_max_wait_ms": chance.choice([5, 50, 500]),
            "max_poll_records": chance.choice([1, 7, 500]),
            "auto_commit_interval_ms": chance.choice([20, 300, 5000]),
            "enable_auto_commit": True,
        }
        if self.by_group:
            self.settings["group_protocol"] = self.by_group
        self.signals = signals
        if signals:
            signal.signal(signal.SIGINT, self._interrupted)
        self._wakeups: list[threading.Timer] = []
        self.taken = 0
        self.consumer = self._open()

    def _open(self) -> Consumer:
        consumer = Consumer(**self.settings)
        self.taken = 0
        self.paused: set[int] = set()
        if not self.signals:
            self.knocks = Knocks()
            consumer._signals = self.knocks  # type: ignore[assignment]
        if self.by_group:
            consumer.subscribe(self.topic)
        else:
            consumer.assign([(self.topic, index) for index in range(PARTITIONS)])
        self.consumer = consumer
        self._until_assigned()
        return consumer

    def _until_assigned(self) -> None:
        """Poll until the group has nothing to say and all partitions are there."""
        inner = self.consumer._core
        assert inner.group is not None
        until = time.monotonic() + LIMIT
        while (self.by_group and not inner.group.quiet) or len(self.consumer.assignment()) < PARTITIONS:
            self._poll(lambda: self.consumer.poll(0.05))
            assert time.monotonic() < until, f"not all partitions were assigned within {LIMIT} s"

    # Steps

    def do(self, steps: int) -> None:
        chance = self.chance
        for _ in range(steps):
            chance.choices(
                [
                    self._read,
                    self._read_interrupted,
                    self._wake_up,
                    self._pause,
                    self._resume,
                    self._seek,
                    self._look,
                    self._commit,
                    self._rejoin,
                    self._start_again,
                ],
                [40, 35, 5, 4, 6, 4, 8, 4, 1 if self.by_group else 0, 1],
            )[0]()

    def _poll(self, read: Callable[[], list[ConsumerRecord] | pa.Table]) -> bool:
        """A poll, and the notes of what it gave; whether it was anything."""
        self.polls = True
        try:
            found = read()
            self.polls = False
        except WakeupException:
            return False
        except KeyboardInterrupt:
            self.interrupts += 1
            return False
        finally:
            self.polls = False
        rows = (
            [(record.partition, seen_in(record)) for record in found]
            if isinstance(found, list)
            else rows_of(found)
        )
        for partition, seen in rows:
            self.notes[partition].got(seen)
            assert partition not in self.paused, f"partition {partition} is paused, and gave {seen}"
        self.taken += len(rows)
        return bool(rows)

    def _draw(self) -> Callable[[], list[ConsumerRecord] | pa.Table]:
        consumer, chance = self.consumer, self.chance
        timeout = chance.choice([0.0, 0.01, 0.06, 0.2])
        limit = chance.choice([1, 5, 100])
        polls: list[Callable[[], list[ConsumerRecord] | pa.Table]] = [
            lambda: consumer.poll(timeout),
            lambda: consumer.poll(timeout, limit),
            lambda: consumer.poll_arrow(timeout),
            lambda: consumer.poll_arrow(timeout),
            lambda: consumer.poll_arrow(timeout, limit),
        ]
        if len(self.paused) < PARTITIONS:  # somebody writes to each partition until the end
            polls.append(lambda: one_of(consumer))
        return chance.choice(polls)

    def _read(self) -> None:
        self._poll(self._draw())

    def _read_interrupted(self) -> None:
        if self.signals:
            main = threading.main_thread().ident
            assert main is not None
            after = self.chance.choice([0.0, 0.001, 0.03]) * self.chance.random()
            timer = threading.Timer(after, signal.pthread_kill, (main, signal.SIGINT))
            timer.start()
            self._read()
            timer.join()
        else:
            self.knocks.interrupt = self.chance.choice([0.0, 0.3, 0.3])  # before or after columns are made
            self._poll(self.chance.choice([self._draw(), lambda: self.consumer.poll_arrow(0.3)]))
            self.knocks.interrupt = None
            if self.chance.random() < 0.5:
                self._look()

    def _interrupted(self, *_: object) -> None:
        if self.polls:
            self.polls = False
            raise KeyboardInterrupt

    def _wake_up(self) -> None:
        timer = threading.Timer(self.chance.choice([0.0, 0.002, 0.03]), self.consumer.wakeup)
        timer.start()
        self._wakeups.append(timer)
        self._read()

    def _some(self) -> list[tuple[str, int]]:
        partitions = self.chance.sample(range(PARTITIONS), self.chance.randrange(1, PARTITIONS + 1))
        return [(self.topic, index) for index in partitions]

    def _pause(self) -> None:
        some = self._some()
        self.consumer.pause(*some)
        self.paused |= {index for _, index in some}

    def _resume(self) -> None:
        some = self._some()
        self.consumer.resume(*some)
        self.paused -= {index for _, index in some}

    def _seek(self) -> None:
        for name in self._some():
            notes = self.notes[name[1]]
            offset = max(0, notes.next + self.chance.choice([-1000000, -30, -1, 0]))
            self.consumer.seek(name, offset)
            notes.sought(offset)

    def _look(self) -> None:
        for name in self._some():
            self.notes[name[1]].stands("position", self.consumer.position(name))

    def _commit(self) -> None:
        self.consumer.commit()
        self._note_committed()

    def _note_committed(self) -> None:
        names = [(self.topic, index) for index in range(PARTITIONS)]
        for name, entry in self.consumer.committed(names).items():
            if entry is not None:
                self.notes[name.partition].stands("committed", entry.offset)

    def _rejoin(self) -> None:
        """What the group commits for it when its partitions go is where they start again."""
        self.consumer.enforce_rebalance()
        self.paused.clear()
        self._poll(lambda: self.consumer.poll_arrow(0.05))
        self._until_assigned()
        self.paused = {name.partition for name in self.consumer.paused()}

    def _start_again(self) -> None:
        self._close()
        self.consumer = self._open()

    def close(self) -> None:
        for timer in self._wakeups:
            timer.join()
        self._wakeups.clear()
        self.consumer.close()

    def _close(self) -> None:
        counted = self.consumer.metrics()["records-consumed-total"]
        assert counted == self.taken, f"{self.taken} records came, {counted} were counted"
        self.close()

    # The end

    def finish(self) -> list[str]:
        """Read to the end; what is wrong with the notes."""
        committed = self.settings["isolation_level"] == "read_committed"
        truth = [seen_by(self.bootstrap, self.topic, index, committed) for index in range(PARTITIONS)]
        self.consumer.resume(*[(self.topic, index) for index in range(PARTITIONS)])
        self.paused.clear()
        until = time.monotonic() + LIMIT
        while time.monotonic() < until and any(
            notes.next <= seen[-1][0] for notes, seen in zip(self.notes, truth, strict=True) if seen
        ):
            chance = self.chance.random()
            self._poll(
                lambda: self.consumer.poll_arrow(0.2) if chance < 0.5 else self.consumer.poll(0.2)  # noqa: B023
            )
        self._look()
        self._commit()
        self._close()
        return [
            f"{self.topic}-{index}: {problem}"
            for index, (notes, seen) in enumerate(zip(self.notes, truth, strict=True))
            for problem in list(notes.problems(seen))[:5]
        ]


def one_of(consumer: Consumer) -> list[ConsumerRecord]:
    for record in consumer:  # `next` would be a place for a signal after it was handed out
        return [record]
    return []


def seen_in(record: ConsumerRecord) -> Seen:
    return record.offset, record.key, record.value, tuple(record.headers)


def rows_of(table: pa.Table) -> list[tuple[int, Seen]]:
    return [
        (
            row["partition"],
            (
                row["offset"],
                row["key"],
                row["value"],
                tuple((header["key"], header["value"]) for header in row["headers"]),
            ),
        )
        for row in table.to_pylist()
    ]


def seen_by(bootstrap: str, topic: str, partition: int, committed: bool) -> list[Seen]:
    """What a consumer finds in a partition."""
    return [
        (record.offset, record.key, record.value, tuple(record.headers))
        for record in reading.records(bootstrap, topic, partition, committed=committed)
    ]


def tell_story(bootstrap: str, topic: str, seed: str, steps: int, *, signals: bool = False) -> Story:
    """A whole one; an AssertionError with what went wrong."""
    make_topic(bootstrap, topic, PARTITIONS)
    with (
        contextlib.closing(Writers(bootstrap, topic, seed)) as writers,
        contextlib.closing(Story(bootstrap, topic, seed, signals=signals)) as story,
    ):
        story.do(steps)
        writers.close()
        problems = story.finish()
    assert not problems, "\n".join([f"seed {seed!r}, {story.settings}:", *problems])
    return story


if __name__ == "__main__":
    tell_story(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), signals=True)
