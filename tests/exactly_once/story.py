"""Producers that write transactions, readers that follow, and what happens to all of them, drawn from a seed.

The same seed draws the same faults; processes and clocks are real, so a second run may end differently.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.exactly_once.brokers import Running
from tests.exactly_once.by_hand import wait_until_ended
from tests.exactly_once.history import Diary, History
from tests.exactly_once.outside import read_final, wait_until_stable
from tests.exactly_once.readers import ConfluentReader, KafkaPythonReader, OffsetReader, Reader
from tests.exactly_once.sessions import ANSWER_MS
from tests.exactly_once.writer import Writer, WriterProcess
from tests.support.wait import eventually, patience
from tidelog import Admin, NewTopic
from tidelog.simulation.checks.transaction_checker import Final, Problem, check, report
from tidelog.simulation.checks.transaction_history import (
    COMMITTED,
    INFO,
    INVOKE,
    NEMESIS,
    OK,
    UNCOMMITTED,
    Line,
    Partition,
)

PROJECT = Path(__file__).parent.parent.parent
FLAVOURS = ("confluent-kafka", "kafka-python", "by-hand", "two-phase")
TOPICS = {"orders": 2, "payments": 2, "stock": 1}
READERS = (
    ("confluent-kafka", COMMITTED),
    ("confluent-kafka", UNCOMMITTED),
    ("kafka-python", COMMITTED),
    ("kafka-python", UNCOMMITTED),
)
STOP_SECONDS = 90.0


def is_commit(line: Line) -> bool:
    return line.kind == OK and line.what == "commit"


class Process:
    """A writer that runs, is stopped for a while, or is gone."""

    def __init__(self, writer: Writer, folder: Path) -> None:
        self.writer = writer
        self.log_file = folder / f"{writer.name.replace('@', '-')}.log"
        with self.log_file.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.exactly_once.writer", writer.text()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=PROJECT,
                env=os.environ,
            )

    @property
    def name(self) -> str:
        return self.writer.name

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> None:
        self._process.terminate()

    def wait(self) -> None:
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGUSR1)
            eventually(lambda: "Thread" in self.log_file.read_text(), f"{self.name} tells where it is")
            raise AssertionError(f"{self.name} does not end: {self.log_file.read_text()[-3000:]}") from None

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)


@dataclass(slots=True, frozen=True)
class Cast:
    """Who takes part: a flavour for each transactional id, and how the logs and writers are made."""

    flavours: Sequence[str] = FLAVOURS
    topics: tuple[tuple[str, int], ...] = tuple(TOPICS.items())
    padding: int = 0
    abort_share: float = 0.3
    prepared_share: float = 0.3
    patience: float = 30.0  # for the last stable offsets and the last reads
    readers: Sequence[tuple[str, str]] = READERS
    times_out: bool = False  # one more fault, which takes its time
    suffix: str = ""  # of the names of topics, ids and groups, for one story of several on a broker
    last_readers: Sequence[str] = ("confluent-kafka", "kafka-python")  # and plain requests after a kill

    @property
    def partitions(self) -> list[Partition]:
        return [(topic + self.suffix, index) for topic, count in self.topics for index in range(count)]


class Story:
    """`with Story(...) as story`, then faults, and `finish()`."""

    def __init__(self, broker: Running, folder: Path, seed: object, cast: Cast | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.broker = broker
        self.folder = folder
        self.seed = seed
        self.cast = cast or Cast()
        self.chance = random.Random(str(seed))
        self.history = History(folder / "history")
        self.processes: list[Process] = []
        self.faults: Counter[str] = Counter()
        self.finals: list[Final] = []
        self.diary = Diary(folder / "history")
        flavours = [f for f in self.cast.flavours if broker.has_two_phase or f != "two-phase"]
        self.ids = {f"{flavour}-{at}": flavour for at, flavour in enumerate(flavours)}
        self.groups = [f"group-{transactional_id}" for transactional_id in self.ids]
        # Who ends what is left open of each id: those of writers, and those of tests.
        self._last_owners = {
            transactional_id: "two-phase" if flavour == "two-phase" else "by-hand"
            for transactional_id, flavour in self.ids.items()
        }
        self._instances: Counter[str] = Counter()
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            for topic, partitions in self.cast.topics:
                # Small segments: what is known of producers and transactions has to survive in their files.
                name = topic + self.cast.suffix
                admin.create_topics([NewTopic(name, partitions, configs={"segment.bytes": str(1 << 20)})])
        self.readers = self._make_readers()

    def _make_readers(self) -> list[Reader]:
        bootstrap, partitions = self.broker.bootstrap, self.cast.partitions
        kinds = {"confluent-kafka": ConfluentReader, "kafka-python": KafkaPythonReader}
        readers: list[Reader] = [
            kinds[client](f"{client}-{isolation}", bootstrap, partitions, isolation, self.diary)
            for client, isolation in self.cast.readers
        ]
        if self.groups:
            readers.append(OffsetReader("offsets", bootstrap, partitions, self.groups, self.diary))
        return readers

    def __enter__(self) -> Self:
        for reader in self.readers:
            reader.start()
        for transactional_id in self.ids:
            self.start_writer(transactional_id)
        for process in list(self.processes):
            self._wait_for_init(process)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self.processes:
            process.kill()
        for reader in self.readers:
            reader.close()
        if error is not None:
            logs = [p.log_file.read_text()[-2000:] for p in self.processes if p.log_file.stat().st_size]
            error.add_note(
                f"seed {self.seed}; the end of its history:\n{self.history.tail()}\n" + "\n".join(logs)
            )

    # -- writers -----------------------------------------------------------------------------------

    def new_instance(self, transactional_id: str, last_owner: str) -> str:
        """A name for one more producer of an id, which `last_owner` ends with."""
        self._instances[transactional_id] += 1
        self._last_owners[transactional_id] = last_owner
        return f"{transactional_id}@{self._instances[transactional_id]}"

    def _writer(self, transactional_id: str, flavour: str, limit: int = 1 << 30) -> Writer:
        name = self.new_instance(transactional_id, self._last_owners[transactional_id])
        number = self._instances[transactional_id]
        return Writer(
            name=name,
            number=number,
            transactional_id=transactional_id,
            flavour=flavour,
            bootstrap=self.broker.bootstrap,
            history=str(self.history.path),
            partitions=self.cast.partitions,
            seed=f"{self.seed}-{transactional_id}-{number}",
            padding=self.cast.padding,
            abort_share=self.cast.abort_share,
            prepared_share=self.cast.prepared_share,
            limit=limit,
        )

    def start_writer(self, transactional_id: str) -> Process:
        process = Process(self._writer(transactional_id, self.ids[transactional_id]), self.folder)
        self.processes.append(process)
        return process

    def _wait_for_init(self, process: Process) -> None:
        """Until it has its id, so that the instances of an id come one after the other."""

        def has_it() -> bool:
            def is_its(line: Line) -> bool:
                return line.who == process.name and line.what == "init" and line.kind in (OK, INFO)

            return self.history.count(is_its) > 0 or not process.running

        eventually(has_it, f"{process.name} has its id", 90, 0.02)

    def _of_id(self, transactional_id: str) -> list[Process]:
        return [p for p in self.processes if p.writer.transactional_id == transactional_id]

    def revive(self) -> None:
        """Every id has a producer that runs."""
        for transactional_id in self.ids:
            if not any(process.running for process in self._of_id(transactional_id)):
                self._wait_for_init(self.start_writer(transactional_id))

    def go_on(self, commits: int) -> None:
        """Until there are so many more commits, whoever has ended meanwhile."""
        first = len(self.history.read())

        def enough() -> bool:
            self.revive()
            return self.history.count(is_commit, first) >= commits

        eventually(enough, f"{commits} more commits", 120, 0.05)

    # -- faults ------------------------------------------------------------------------------------

    def _fault(self, kind: str, whom: str = "") -> None:
        self.faults[kind] += 1
        self.diary.write(Line(NEMESIS, INFO, "fault", detail=f"{kind} {whom}".strip()))

    def _some(self) -> Process:
        self.revive()
        return self.chance.choice([process for process in self.processes if process.running])

    def kill_writer(self) -> None:
        victim = self._some()
        victim.kill()
        self._fault("writer killed", victim.name)
        self.revive()

    def replace_writer(self) -> None:
        """The old one goes on: a zombie."""
        victim = self._some()
        self._fault("writer replaced", victim.name)
        self._wait_for_init(self.start_writer(victim.writer.transactional_id))

    def pause_writer(self) -> None:
        """Stopped in the middle of whatever it does, replaced, and awake again when its successor commits."""
        victim = self._some()
        victim.pause()
        self._fault("writer paused", victim.name)
        first = len(self.history.read())
        successor = self.start_writer(victim.writer.transactional_id)

        def has_gone_on(line: Line) -> bool:
            return (
                line.who == successor.name
                and line.what in ("commit", "abort", "ended")
                and line.kind != INVOKE
            )

        try:
            self.history.wait_for(has_gone_on, f"{successor.name} goes on", after=first, timeout=90)
        finally:
            victim.resume()

    def time_out_writer(self) -> None:
        """Stopped until its transaction has taken too long, and nobody takes its id; then awake again."""
        victim = self._some()
        if victim.writer.flavour == "two-phase":
            return  # nobody but its owner ends it
        victim.pause()
        self._fault("writer timed out", victim.name)
        try:
            wait_until_ended(self.broker.bootstrap, victim.writer.transactional_id, 60)
        finally:
            victim.resume()

    def kill_broker(self) -> None:
        self._fault("broker killed")
        self.broker.restart(kill=True)

    def stop_broker(self) -> None:
        self._fault("broker stopped")
        self.broker.restart(kill=False)

    def pause_broker(self) -> None:
        """Longer than clients wait for an answer: they ask again, and the broker then finds both requests."""
        self._fault("broker paused")
        self.broker.pause()
        awake = time.monotonic() + 1.2 * ANSWER_MS / 1000
        try:
            eventually(lambda: time.monotonic() > awake, "the clients lose their patience")
        finally:
            self.broker.resume()

    def act(self, times: int, commits: Sequence[int] = (0, 2, 10)) -> None:
        """So many faults in an order that the seed draws, none again before each had its turn; after each,
        wait until a drawn number of further transactions is committed."""
        deck: list[Callable[[], None]] = []
        for _ in range(times):
            if not deck:
                deck = [
                    self.kill_writer,
                    self.replace_writer,
                    self.pause_writer,
                    self.kill_broker,
                    self.pause_broker,
                    self.stop_broker,
                    *([self.time_out_writer] if self.cast.times_out else []),
                ]
                self.chance.shuffle(deck)
            deck.pop()()
            self.go_on(self.chance.choice(commits))

    # -- the end -----------------------------------------------------------------------------------

    def end(self) -> None:
        """All writers end, and a last owner of each id ends what they left open."""
        for process in self.processes:
            process.resume()
            process.stop()
        for process in self.processes:
            process.wait()
        for transactional_id, flavour in self._last_owners.items():
            WriterProcess(self._writer(transactional_id, flavour, limit=0)).run()
        wait_until_stable(self.broker.bootstrap, self.cast.partitions, self.cast.patience)

    def read(self, who: str, client: str) -> Final:
        final = read_final(
            self.broker.bootstrap,
            self.cast.partitions,
            self.groups,
            who=who,
            client=client,
            patience=self.cast.patience,
        )
        self.finals.append(final)
        return final

    def drain(self) -> None:
        first = self.finals[0]
        for reader in self.readers:
            if not isinstance(reader, OffsetReader):
                logs = first.committed if reader.isolation == COMMITTED else first.uncommitted
                last = {place: log[-1][0] for place, log in logs.items() if log}
                reader.drain(last, patience(self.cast.patience))
            reader.close()

    def problems(self) -> list[Problem]:
        """What the checker says once everybody is done, before and after a last kill of the broker."""
        self.end()
        for client in self.cast.last_readers:
            self.read(f"{client} in the end", client)
        self.drain()
        self.broker.restart(kill=True)
        self.read("a plain Fetch after the last restart", "fetch")
        return check(self.history.read(), self.finals)

    def finish(self) -> None:
        problems = self.problems()
        print(self.summary())
        assert not problems, report(problems, self.seed)
        assert self.broker.surprises() == []

    def summary(self) -> str:
        """How much was tried."""
        lines = self.history.read()
        ends = Counter(line.kind for line in lines if line.what == "commit" and line.kind != INVOKE)
        begun = sum(1 for line in lines if line.what == "begin")
        aborted = sum(1 for line in lines if line.what == "abort" and line.kind == OK)
        reads = sum(len(line.entries) for line in lines if line.what == "read")
        offsets = sum(len(line.entries) for line in lines if line.what == "offsets?")
        return (
            f"seed {self.seed}: {begun} transactions, commits {dict(ends)}, {aborted} aborts, "
            f"{reads} records and {offsets} offsets read, faults {dict(self.faults)}"
        )
