"""A seeded story of one group: members join, leave, are killed and paused, the broker falls and comes back,
partitions are added, and a producer goes on writing. Then the group drains, and its history is checked.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.groups.brokers import Running
from tests.groups.history import Diary, History
from tests.groups.member import Member
from tests.groups.outside import Group, log_ends
from tests.support.wait import eventually, known, patience
from tidelog import Admin, NewTopic
from tidelog.clients.admin import NewPartitions
from tidelog.simulation.checks.group_checker import check
from tidelog.simulation.checks.group_history import BROKER, Line

PROJECT = Path(__file__).parent.parent.parent
LEAVE_SECONDS = 40.0


@dataclass(slots=True, frozen=True)
class Flavour:
    """A client library and how it shares out partitions; `consumer:` uses an assignor of the broker."""

    client: str
    strategy: str
    pattern: bool = False

    def __str__(self) -> str:
        return f"{self.client}-{self.strategy}{'-regex' if self.pattern else ''}"

    @property
    def consumer_protocol(self) -> bool:
        return self.strategy.startswith("consumer:")


class MemberProcess:
    def __init__(self, member: Member, folder: Path) -> None:
        self.name = member.name
        self.client = member.client
        self.paused = False
        self.log_file = folder / f"{member.name}.log"
        with self.log_file.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.groups.member", member.text()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=PROJECT,
                env=os.environ,
            )

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def leave(self) -> None:
        """Ask it to leave; `wait` for it to be gone."""
        self._process.terminate()

    def wait(self) -> int:
        try:
            return self._process.wait(LEAVE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGUSR1)  # its log says where it is
            self._process.wait(2)
            raise

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)
        self.paused = True

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)
        self.paused = False


class SteadyWriter:
    """An idempotent producer in a thread: a few numbered records to random partitions, again and again."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, seed: int | str) -> None:
        import confluent_kafka

        self.topic = topic
        self.partitions = partitions
        self.written: defaultdict[tuple[str, int], set[str]] = defaultdict(set)
        self.errors: list[str] = []
        self._number = 0
        self._chance = random.Random(seed)
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

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """No more records; all that were begun are written."""
        self._ends.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), "the producer does not end"
        assert self.errors == [], f"the producer failed: {self.errors}"

    def write(self, partition: int, values: Sequence[str]) -> None:
        for value in values:
            self._write(value, partition)
        assert self._producer.flush(50) == 0
        assert self.errors == [], f"the producer failed: {self.errors}"

    def _run(self) -> None:
        from confluent_kafka import KafkaException

        while not self._ends.wait(0.02):
            for _ in range(self._chance.randrange(1, 6)):
                try:
                    self._write(f"n{self._number}", self._chance.randrange(self.partitions))
                except KafkaException:
                    continue  # a partition that this client has not heard of yet
                self._number += 1
            self._producer.poll(0)
        if self._producer.flush(50):
            self.errors.append("records are left that the broker did not take")

    def _write(self, value: str, partition: int) -> None:
        def delivered(error: object, _message: object) -> None:
            if error is None:
                self.written[self.topic, partition].add(value)
            else:
                self.errors.append(str(error))

        self._producer.produce(self.topic, value=value.encode(), partition=partition, on_delivery=delivered)


class Watcher:
    """Asks the broker again and again who owns the partitions of a consumer group; nobody shares one."""

    def __init__(self, group: Group) -> None:
        self.problems: list[str] = []
        self.looks = 0
        self._group = group
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ends.set()
        self._thread.join(20)

    def _run(self) -> None:
        while not self._ends.wait(0.05):
            seen = self._group.seen()
            if seen is not None:
                self.looks += 1
                self.problems += [
                    f"{topic}-{partition} belongs to {owners} at once"
                    for (topic, partition), owners in seen.owners.items()
                    if len(owners) > 1
                ]


def is_commit(line: Line) -> bool:
    return line.what == "committed"


class Story:
    """`with Story(...) as story`, then `act()`, and `finish()`."""

    def __init__(
        self,
        broker: Running,
        folder: Path,
        flavours: Sequence[Flavour],
        seed: int | str,
        *,
        partitions: int = 4,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.broker = broker
        self.folder = folder
        self.flavours = flavours
        self.chance = random.Random(seed)
        self.topic = f"story-{seed}".replace(":", "-")
        self.group = Group(
            broker.bootstrap, f"group-{seed}", consumer_protocol=any(f.consumer_protocol for f in flavours)
        )
        self.history = History(folder / "history")
        self.members: list[MemberProcess] = []
        self.told: list[str] = []  # what was done, for whoever reads a failure
        self._diary = Diary(folder / "history")
        self._started = 0
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            admin.create_topics([NewTopic(self.topic, partitions)])
        self.writer = SteadyWriter(broker.bootstrap, self.topic, partitions, seed)
        self.watcher = Watcher(self.group) if self.group.consumer_protocol else None

    def __enter__(self) -> Self:
        self.writer.start()
        if self.watcher is not None:
            self.watcher.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for member in self.members:
            member.kill()
        if self.watcher is not None:
            self.watcher.stop()
        if error is not None:
            where = re.search(rf"{re.escape(self.topic)}-(\d+), line (\d+)", str(error))
            seen = self.history.before(self.topic, *map(int, where.groups())) if where else ""
            error.add_note(f"the story: {'; '.join(self.told)}\n{seen}its end:\n{self.history.tail()}")

    # -- what may happen

    def join(self, *, instance: str | None = None, session_ms: int = 2000) -> MemberProcess:
        flavour = self.flavours[self._started % len(self.flavours)]
        self._started += 1
        member = Member(
            name=f"m{self._started}",
            client=flavour.client,
            strategy=flavour.strategy,
            bootstrap=self.broker.bootstrap,
            group=self.group.name,
            topic=self.topic,
            history=str(self.history.path),
            instance=instance,
            session_ms=session_ms,
            pattern=flavour.pattern,
        )
        self._tell(f"{member.name} joins ({flavour})")
        process = MemberProcess(member, self.folder)
        self.members.append(process)
        return process

    def leave(self, member: MemberProcess) -> None:
        self._tell(f"{member.name} leaves")
        self._ask_to_leave(member)
        assert member.wait() == 0, member.log_file.read_text()
        self.members.remove(member)

    def _ask_to_leave(self, member: MemberProcess) -> None:
        # Before its first line it does not know what the signal means.
        self.history.wait_for(lambda line: line.who == member.name, f"{member.name} starts")
        member.leave()

    def kill(self, member: MemberProcess) -> None:
        self._tell(f"{member.name} is killed")
        member.kill()
        self.members.remove(member)

    def pause(self, member: MemberProcess) -> None:
        """Stop it until the group has given it up, and let it go on.

        kafka-python has read of each of its partitions before: it may forget its assignment and be silent for
        ever where the time of a poll is over just as it has joined.
        """
        self._tell(f"{member.name} is paused")
        if member.client == "kafka-python":
            what = f"{member.name} reads of each of its partitions"
            eventually(lambda: self._reads_all(member), what, 40, 0.02)
        else:
            self.group.wait_until_there(member.name)
        member.pause()
        self._diary.write([Line(member.name, "paused")])
        self.group.wait_until_gone(member.name)
        member.resume()

    def _reads_all(self, member: MemberProcess) -> bool:
        waiting: dict[tuple[str, int], bool] = {}
        for line in self.history.read():
            if line.who == member.name and line.partition >= 0:
                if line.what in ("revoked", "lost"):
                    waiting.pop((line.topic, line.partition), None)
                else:
                    waiting[line.topic, line.partition] = line.what == "assigned"
        return bool(waiting) and not any(waiting.values())

    def restart_broker(self, *, kill: bool) -> None:
        self._tell(f"the broker is {'killed' if kill else 'stopped'} and comes back")
        self.broker_failed("killed" if kill else "stopped")
        self.broker.restart(kill=kill)

    def broker_failed(self, how: str) -> None:
        """Something was done to a broker: clients may send again what is under way."""
        self._diary.write([Line(BROKER, how)])

    def add_partitions(self) -> None:
        count = self.writer.partitions + self.chance.randrange(1, 3)
        self._tell(f"there are {count} partitions")
        with Admin(bootstrap_servers=self.broker.bootstrap) as admin:
            admin.create_partitions({self.topic: NewPartitions(count)})
        self.writer.partitions = count

    def act(self, times: int) -> None:
        """So many of these, in an order that the seed draws, none again before each had its turn. After each,
        wait until a drawn number of further commits is done: none, and the next falls into a rebalance."""
        deck: list[Callable[[], object]] = []
        for _ in range(times):
            if not deck:
                deck = [
                    self.join,
                    lambda: self.leave(self._some_member()),
                    lambda: self.kill(self._some_member()),
                    lambda: self.pause(self._some_member()),
                    lambda: self.restart_broker(kill=True),
                    lambda: self.restart_broker(kill=False),
                    self.add_partitions,
                ]
                self.chance.shuffle(deck)
            deck.pop()()
            self.go_on(self.chance.choice([0, 1, 10]))

    def _some_member(self) -> MemberProcess:
        """Any of them; another stays."""
        while len(self.members) < 2:
            self.join()
        return self.chance.choice(self.members)

    def go_on(self, commits: int) -> None:
        """Whatever happened, the members go on committing."""
        if not self.members:
            self.join()
        self.history.wait_for_more(is_commit, f"{commits} more commits", commits)

    def wait_until(self, probe: Callable[[], bool], what: str) -> None:
        eventually(probe, what, 40, 0.02)

    def _tell(self, text: str) -> None:
        self.told.append(text)

    # -- the end

    def drain(self) -> None:
        """Until everything that was written is committed as read."""
        if not self.members:
            self.join()
        self.writer.stop()
        self.wait_until_drained()

    def write(self, partition: int, values: Sequence[str]) -> None:
        """Some more records, after the writer has stopped."""
        self.writer.write(partition, values)

    def wait_until_drained(self) -> None:
        def drained() -> bool:
            ends, committed = self.ends(), self.group.committed()
            return ends is not None and {k: v for k, v in ends.items() if v} == committed

        eventually(drained, "the group has read and committed everything", patience(60), 0.05)

    def ends(self) -> dict[tuple[str, int], int] | None:
        return log_ends(self.broker.bootstrap, self.topic, self.writer.partitions)

    def problems(self) -> list[str]:
        """What the checker says, once all members have left."""
        # A coordinator that has just moved, or a busy machine, may not answer the first question.
        ends = known(self.ends, "the ends of the logs", patience(30))
        committed = known(self.group.committed, "the committed offsets", patience(30))
        return check(self.history.read(), ends, committed, self.writer.written)

    def finish(self) -> None:
        self.drain()
        for member in self.members:
            self._ask_to_leave(member)
        for member in self.members:
            assert member.wait() == 0, member.log_file.read_text()
        self._tell("all leave")
        if self.watcher is not None:
            assert not self.watcher.problems, "\n".join(self.watcher.problems)
            assert self.watcher.looks
        problems, surprises = self.problems(), self.broker.surprises()
        assert not problems, "\n".join(problems)
        assert not surprises, "\n".join(surprises)
