"""Movers of one group, what happens to them and to the broker, and whether every record came over once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.exactly_once.brokers import Running
from tests.exactly_once.by_hand import HandProducer
from tests.exactly_once.history import Diary, History
from tests.exactly_once.mover import Mover, transformed
from tests.exactly_once.outside import wait_for_stable_offsets, wait_until_stable
from tests.groups.outside import Group
from tests.support.contents import read_with_client
from tests.support.wait import eventually
from tidelog import Admin, NewTopic
from tidelog.simulation.checks.transaction_checker import Log, Problem, report
from tidelog.simulation.checks.transaction_history import INFO, NEMESIS, OK, Line, Partition

PROJECT = Path(__file__).parent.parent.parent
SOURCE, TARGET, GROUP = "source", "target", "movers"


def compare(source: Sequence[str], target: Log, partition: Partition) -> list[Problem]:
    """What is wrong with one partition of the target; the first thing that is."""
    name = f"{partition[0]}-{partition[1]}"
    expected = [transformed(value.encode()).decode() for value in source]
    got = [value for _, value in target]
    if got == expected:
        return []
    offsets: dict[str, int] = {}
    for offset, value in target:
        if value in offsets:
            return [Problem("duplicate", f"{value!r} is in {name} at offsets {offsets[value]} and {offset}")]
        offsets[value] = offset
    missing = next((value for value in expected if value not in offsets), None)
    if missing is not None:
        return [Problem("lost", f"{missing!r} is not in {name}, which has {len(got)} of {len(expected)}")]
    at = next(at for at, (one, other) in enumerate(zip(got, expected, strict=False)) if one != other)
    return [Problem("order", f"{name} has {got[at]!r} where {expected[at]!r} comes next")]


class Process:
    def __init__(self, mover: Mover, folder: Path) -> None:
        self.mover = mover
        self.log_file = folder / f"{mover.name}.log"
        with self.log_file.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.exactly_once.mover", mover.text()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=PROJECT,
                env=os.environ,
            )

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


class Moving:
    """`with Moving(...) as moving`, then faults, and `finish()`."""

    def __init__(
        self,
        broker: Running,
        folder: Path,
        seed: object,
        *,
        records: int,
        batch: int,
        partitions: int = 4,
        flavours: Sequence[str] = ("confluent-kafka", "kafka-python"),
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.broker = broker
        self.folder = folder
        self.seed = seed
        self.chance = random.Random(str(seed))
        self.records = records
        self.batch = batch
        self.partitions = partitions
        self.slots = dict(enumerate(flavours))
        self.history = History(folder / "history")
        self.diary = Diary(folder / "history")
        self.processes: list[Process] = []
        self.faults: Counter[str] = Counter()
        self._started = 0
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            for topic in (SOURCE, TARGET):
                admin.create_topics([NewTopic(topic, partitions)])
        self.source: dict[int, list[str]] = {index: [] for index in range(partitions)}
        self._filled = 0

    def fill(self, count: int) -> None:
        """So many more records to move, but no more than there are in all."""
        from confluent_kafka import Producer

        producer = Producer(
            {
                "bootstrap.servers": self.broker.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 5,
                "queue.buffering.max.messages": self.records + 1,
                "log_level": 0,
            }
        )
        first, self._filled = self._filled, min(self._filled + count, self.records)
        for number in range(first, self._filled):
            index = self.chance.randrange(self.partitions)
            producer.produce(SOURCE, f"n{number}".encode(), partition=index)
            self.source[index].append(f"n{number}")
        assert producer.flush(120) == 0

    def __enter__(self) -> Self:
        self.revive()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self.processes:
            process.kill()
        if error is not None:
            error.add_note(f"seed {self.seed}; the end of its history:\n{self.history.tail()}")

    # -- movers and faults -------------------------------------------------------------------------

    def start(self, slot: int) -> Process:
        """A mover with the transactional id of its slot, whoever else has it."""
        self._started += 1
        mover = Mover(
            name=f"m{self._started}",
            flavour=self.slots[slot],
            transactional_id=f"mover-{slot}",
            bootstrap=self.broker.bootstrap,
            history=str(self.history.path),
            group=GROUP,
            source=SOURCE,
            target=TARGET,
            batch=self.batch,
        )
        process = Process(mover, self.folder)
        self.processes.append(process)
        return process

    def revive(self) -> None:
        for slot in self.slots:
            name = f"mover-{slot}"
            if not any(p.running and p.mover.transactional_id == name for p in self.processes):
                self.start(slot)

    def moved(self) -> int:
        lines = self.history.read()
        return sum(int(line.detail) for line in lines if line.kind == OK and line.what == "moved")

    def go_on(self, records: int) -> None:
        """Until so many more records are known to have come over, or all that there are."""
        until = self.moved() + records

        def enough() -> bool:
            self.revive()
            return self.moved() >= until or self.is_done()

        eventually(enough, f"{records} more records are moved", 180, 0.02)

    def is_done(self) -> bool:
        return sum(self.offsets().values()) == self._filled

    def offsets(self) -> dict[Partition, int]:
        partitions = [(SOURCE, index) for index in range(self.partitions)]
        return wait_for_stable_offsets(self.broker.bootstrap, GROUP, partitions)

    def _fault(self, kind: str, whom: str = "") -> None:
        self.faults[kind] += 1
        self.diary.write(Line(NEMESIS, INFO, "fault", detail=f"{kind} {whom}".strip()))

    def _some(self) -> Process:
        self.revive()
        return self.chance.choice([process for process in self.processes if process.running])

    def kill_mover(self) -> None:
        victim = self._some()
        self._fault("mover killed", victim.mover.name)
        victim.kill()

    def replace_mover(self) -> None:
        """A second one with the same transactional id: the first is fenced in the middle of its work."""
        victim = self._some()
        self._fault("mover replaced", victim.mover.name)
        self.start(int(victim.mover.transactional_id.rpartition("-")[2]))

    def pause_mover(self) -> None:
        """Until its group has given its partitions to others."""
        victim = self._some()
        self._fault("mover paused", victim.mover.name)
        victim.signal(signal.SIGSTOP)
        try:
            Group(self.broker.bootstrap, GROUP).wait_until_gone(victim.mover.name, 60)
        finally:
            victim.signal(signal.SIGCONT)

    def kill_broker(self) -> None:
        self._fault("broker killed")
        self.broker.restart(kill=True)

    def act(self, times: int) -> None:
        """So many faults, each while there are records to move."""
        deck: list[Callable[[], None]] = []
        chunk = self.records // times
        for _ in range(times):
            self.fill(chunk)
            if not deck:
                deck = [self.kill_mover, self.kill_broker, self.pause_mover, self.replace_mover]
                self.chance.shuffle(deck)
            self.go_on(self.chance.randrange(chunk // 2))
            deck.pop()()

    # -- the end -----------------------------------------------------------------------------------

    def problems(self) -> list[Problem]:
        partitions = [(TARGET, index) for index in range(self.partitions)]
        for process in self.processes:
            process.kill()
        for slot in self.slots:
            self._close(f"mover-{slot}")
        problems = []
        if not wait_until_stable(self.broker.bootstrap, partitions, 30):
            problems.append(Problem("stable", "a transaction hangs in the target"))
        for place, contents in read_with_client(self.broker.bootstrap, partitions, committed=True).items():
            log = [(record.offset, (record.value or b"").decode()) for record in contents.records]
            problems += compare(self.source[place[1]], log, place)
        ends = {(SOURCE, index): len(values) for index, values in self.source.items()}
        if self.offsets() != ends:
            problems.append(Problem("offsets", f"{self.offsets()} is committed, right is {ends}"))
        return problems

    def _close(self, transactional_id: str) -> None:
        """A last owner of the id, so that nothing of it stays open."""
        with HandProducer(self.broker.bootstrap, transactional_id) as last:
            last.init()

    def finish(self) -> None:
        self.fill(self.records)
        self.go_on(2 * self.records)
        problems = self.problems()
        commits = self.history.count(lambda line: line.kind == OK and line.what == "moved")
        print(f"seed {self.seed}: {self.records} records in {commits} transactions, {dict(self.faults)}")
        assert not problems, report(problems, self.seed)
        assert self.broker.surprises() == []
