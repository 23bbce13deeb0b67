"""Random lives of producers under faults, replayed by their seed, and the proof that readers saw no lie.

Producers of both protocols share a few transactional ids: they die, pause beyond their time and come back,
are replaced, and their requests arrive twice or late. Coordinators are replaced at any moment; markers are
delayed and refused. When all is quiet, every transaction must be there as a whole or not at all, as its
producer was told.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tests.cluster.world import World
from tests.coordinator.transaction.stage import DATA, Answer, TransactionStage
from tests.coordinator.two_brokers import TwoBrokers
from tidelog.coordinator.transaction.coordinator import Initialized
from tidelog.coordinator.transaction.markers import Marker, MarkerChannel, MarkerDone
from tidelog.coordinator.transaction.shard import TransactionShard
from tidelog.coordinator.transaction.state import CLASSIC, EPOCH_BUMP, Metadata, ProducerIdAndEpoch, State
from tidelog.errors import (
    ConcurrentTransactions,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    NotCoordinator,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    RequestTimedOut,
)
from tidelog.partitions import PartitionKey

RETRIABLE = (
    ConcurrentTransactions,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    NotCoordinator,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    RequestTimedOut,
)
PARTITIONS = 3
TIMEOUT_MS = 5_000


@dataclass(slots=True)
class Intent:
    """A transaction as its producer knows it: what it wrote, and what it was told of the end.

    `outcome` is None while nothing is sure: once a commit was asked for, both ends are right.
    """

    name: str
    values: dict[int, list[bytes]] = field(default_factory=dict)
    asked_to_commit: bool = False
    outcome: bool | None = None


class UnreliableMarkers:
    """Delays markers, and refuses some of them at first."""

    def __init__(self, world: Schedule, inner: MarkerChannel) -> None:
        self._world = world
        self._inner = inner

    def write(self, marker: Marker, partitions: Iterable[PartitionKey], done: MarkerDone) -> None:
        for partition in partitions:
            chance = self._world.random.random()
            if chance < 0.1:
                self._world.later(0.01, lambda key=partition: done(key, NotLeaderOrFollower("no leader")))
            elif chance < 0.4:
                delay = self._world.random.choice([0.01, 0.3, 2.0])
                self._world.later(delay, lambda key=partition: self._inner.write(marker, [key], done))
            else:
                self._inner.write(marker, [partition], done)

    def cancel(self, done: MarkerDone) -> None:
        self._inner.cancel(done)


class Producer:
    """A client that goes on step by step until it dies; `is_new` speaks the newer protocol.

    One that is `two_phase` prepares its transactions: what it decides is known from then on, and whoever
    comes after it keeps to that.
    """

    def __init__(
        self, world: Schedule, name: str, transactional_id: str, is_new: bool, two_phase: bool
    ) -> None:
        self.world, self.name, self.transactional_id, self.is_new = world, name, transactional_id, is_new
        self.two_phase = two_phase
        self.random = world.random
        self.producer = ProducerIdAndEpoch(-1, -1)
        self.sequences: dict[int, int] = {}
        self.is_dead = False
        self.count = 0
        self._initialize()

    # -- requests that may be repeated -----------------------------------------------------------------

    def _ask(
        self, send: Callable[[], Answer], then: Callable[[object], None], *, repeats: bool = False
    ) -> None:
        """Send until an answer comes that is not to be retried. Answers get lost, requests arrive twice."""
        if self.is_dead:
            return
        answer = send()
        if repeats and self.random.random() < 0.15:
            self.world.later(self.random.choice([0.05, 1.0, 8.0]), lambda: send() and None)
        self.world.later(0.01, lambda: self._answered(answer, send, then, repeats))

    def _answered(
        self, answer: Answer, send: Callable[[], Answer], then: Callable[[object], None], repeats: bool
    ) -> None:
        if self.is_dead:
            return
        if not answer.is_there:
            self.world.later(0.05, lambda: self._answered(answer, send, then, repeats))
        elif isinstance(answer.error, RETRIABLE) or (repeats and self.random.random() < 0.05):
            self.world.later(0.05, lambda: self._ask(send, then, repeats=repeats))
        elif answer.error is not None:
            self._die()
        elif self.random.random() < 0.03:
            # Stopped like a process by SIGSTOP, longer than its transaction may take.
            self.world.later(TIMEOUT_MS / 1000 * 1.5, lambda: then(answer.value))
        else:
            then(answer.value)

    def _die(self) -> None:
        self.is_dead = True
        self.world.producer_died(self)

    # -- the life --------------------------------------------------------------------------------------

    def _initialize(self, expected: ProducerIdAndEpoch | None = None) -> None:
        self._ask(
            lambda: self.world.stage.init(
                self.transactional_id,
                timeout_ms=TIMEOUT_MS,
                expected=expected,
                two_phase=self.two_phase,
                keep=self.two_phase,
            ),
            self._initialized,
        )

    def _initialized(self, value: object) -> None:
        assert isinstance(value, Initialized)
        self.producer = value.producer
        self.sequences.clear()
        if value.ongoing is None:
            self._begin()
        else:
            prepared = self.world.prepared.get(value.ongoing)
            if prepared is None:
                self.world.too_late.add(value.ongoing)
            self._decide(prepared or Intent(f"{self.name}/unprepared"), commit=prepared is not None)

    def _begin(self) -> None:
        if self.world.is_over or self.random.random() < 0.08:
            self._die()
            return
        self.count += 1
        intent = Intent(f"{self.name}/{self.count}")
        self.world.intents.append(intent)
        indexes = self.random.sample(range(PARTITIONS), self.random.randint(1, PARTITIONS))
        writes = [index for index in indexes for _ in range(self.random.randint(1, 2))]
        if self.is_new:
            self._write(intent, writes)
            return
        producer = self.producer
        self._ask(
            lambda: self.world.stage.add(producer, indexes, transactional_id=self.transactional_id),
            lambda _: self._write(intent, writes),
        )

    def _write(self, intent: Intent, left: list[int]) -> None:
        if self.random.random() < 0.05:
            self._die()  # with a transaction open
            return
        if not left:
            self._end(intent)
            return
        index, producer = left[0], self.producer
        sequence = self.sequences.get(index, 0)
        value = f"{intent.name}/{len(left)}".encode()
        intent.values.setdefault(index, []).append(value)

        def send() -> Answer:
            return self.world.stage.produce(
                producer,
                value,
                index=index,
                sequence=sequence,
                transactional_id=self.transactional_id,
                version=12 if self.is_new else 11,
            )

        def written(_: object) -> None:
            self.sequences[index] = sequence + 1
            self._write(intent, left[1:])

        if self.random.random() < 0.04:
            # The request is lost in the network for a while, and the client gives up on it.
            self.world.later(self.random.choice([0.05, 1.0, 8.0]), send)
            self._end(intent, give_up=True)
        else:
            self._ask(send, written, repeats=True)

    def _end(self, intent: Intent, *, give_up: bool = False) -> None:
        commit = not give_up and self.random.random() < 0.7
        if self.two_phase and commit and self.producer not in self.world.too_late:
            self.world.prepared[self.producer] = intent
        self._decide(intent, commit=commit, give_up=give_up)

    def _decide(self, intent: Intent, *, commit: bool, give_up: bool = False) -> None:
        intent.asked_to_commit = commit
        producer = self.producer

        def send() -> Answer:
            return self.world.stage.end(
                producer,
                commit=commit,
                transactional_id=self.transactional_id,
                version=EPOCH_BUMP if self.is_new else CLASSIC,
            )

        def ended(value: object) -> None:
            intent.outcome = commit
            if self.is_new:
                assert isinstance(value, ProducerIdAndEpoch)
                assert value > producer or value.producer_id != producer.producer_id
                self.producer = value
                self.sequences.clear()
                self._begin()
            elif give_up:
                self._initialize(expected=producer)  # what it sent last has no sequence that it could know
            else:
                self._begin()

        # With the older protocol a late copy would end the next transaction: only the newer one can tell.
        self._ask(send, ended, repeats=self.is_new)


class Stage(Protocol):
    """What a schedule needs of the stage it plays on: one broker or several."""

    @property
    def world(self) -> World | TwoBrokers: ...

    @property
    def shard(self) -> TransactionShard: ...

    def init(
        self,
        transactional_id: str = "id",
        *,
        timeout_ms: int = 60_000,
        expected: tuple[int, int] | None = None,
        two_phase: bool = False,
        keep: bool = False,
    ) -> Answer: ...

    def add(
        self,
        producer: tuple[int, int],
        indexes: Iterable[int] = (0,),
        *,
        transactional_id: str = "id",
        version: int = 0,
    ) -> Answer: ...

    def end(
        self,
        producer: tuple[int, int],
        *,
        commit: bool = True,
        transactional_id: str = "id",
        version: int = 0,
    ) -> Answer: ...

    def produce(
        self,
        producer: tuple[int, int],
        value: bytes = b"v",
        *,
        index: int = 0,
        sequence: int = 0,
        transactional_id: str = "id",
        version: int = 11,
    ) -> Answer: ...

    def restart(self) -> None: ...

    def loaded_anew(self) -> dict[str, Metadata]: ...

    def committed(self, index: int = 0) -> list[bytes]: ...

    def is_stable(self, index: int) -> bool: ...

    def close(self) -> None: ...


class Schedule:
    def __init__(self, folder: Path, seed: int, *, ids: int = 4, seconds: float = 40.0) -> None:
        self.random = random.Random(seed)
        self.stage = self.make_stage(folder, seed)
        self.intents: list[Intent] = []
        self._ids = ids
        # What producers of two-phase commits have decided to commit, by the epoch they wrote with.
        self.prepared: dict[ProducerIdAndEpoch, Intent] = {}
        # Those that somebody found open and not prepared, and decided to abort.
        self.too_late: set[ProducerIdAndEpoch] = set()
        self.is_over = False
        self._made = 0
        self._seconds = seconds
        self.stage.world.advance()
        for number in range(ids):
            self._new_producer(f"id-{number}")

    def make_stage(self, folder: Path, seed: int) -> Stage:
        return TransactionStage(
            folder, partitions=PARTITIONS, channel=lambda inner: UnreliableMarkers(self, inner)
        )

    def later(self, seconds: float, callback: Callable[[], object]) -> None:
        self.stage.world.scheduler.schedule(
            seconds * self.random.uniform(0.5, 1.5), lambda: callback() and None
        )

    def _new_producer(self, transactional_id: str) -> None:
        if not self.is_over:
            self._made += 1
            # Each id keeps to one protocol, as its application does.
            number = int(transactional_id[-1])
            Producer(self, f"p{self._made}", transactional_id, number != 1, number == 3)

    def producer_died(self, producer: Producer) -> None:
        self.later(self.random.choice([0.05, 1.0]), lambda: self._new_producer(producer.transactional_id))

    def run(self) -> None:
        passed = 0.0
        while passed < self._seconds:
            step = self.random.uniform(0.1, 3.0)
            self.stage.world.advance(step)
            passed += step
            self.observe()
            chance = self.random.random()
            if chance < 0.25:
                self.check_replay()
                self.stage.restart()
            elif chance < 0.35:
                self._new_producer(f"id-{self.random.randrange(self._ids)}")  # beside the one that is there
        self.is_over = True
        self.become_quiet()
        self._decide_what_is_left()

    def observe(self) -> None:
        """Called after each step."""

    def become_quiet(self) -> None:
        self.stage.world.advance(60.0)

    def _decide_what_is_left(self) -> None:
        """Nobody but its owner ends a prepared transaction: the last owner comes, with no fault any more."""
        for name, known in list(self.stage.shard.transactions.items()):
            if known.metadata.state is State.ONGOING:
                answer = self.stage.init(name, two_phase=True, keep=True)
                assert isinstance(answer.value, Initialized), answer.error
                assert answer.value.ongoing is not None
                intent = self.prepared.get(answer.value.ongoing)
                commit = intent is not None
                assert (
                    self.stage.end(
                        answer.value.producer, commit=commit, transactional_id=name, version=EPOCH_BUMP
                    ).kind
                    is None
                )
                if intent is not None:
                    intent.asked_to_commit = intent.outcome = True
        self.stage.world.advance(30.0)

    def check_replay(self) -> None:
        """What the coordinator knows is what its log says."""
        live = {
            name: known.metadata
            for name, known in self.stage.shard.transactions.items()
            if known.metadata.producer_epoch >= 0
        }
        assert live == self.stage.loaded_anew()

    # -- the proof -------------------------------------------------------------------------------------

    def check(self) -> None:
        committed = [self.stage.committed(index) for index in range(PARTITIONS)]
        for index, values in enumerate(committed):
            assert self.stage.is_stable(index), f"a transaction hangs in {DATA}-{index}"
            assert len(values) == len(set(values)), f"{DATA}-{index} has values twice"
        for intent in self.prepared.values():
            intent.outcome = True  # once it is prepared, whoever comes commits it
        for intent in self.intents:
            self._check(intent, committed)
        for name, known in self.stage.shard.transactions.items():
            assert known.metadata.state.title in ("Empty", "CompleteCommit", "CompleteAbort"), name

    def _check(self, intent: Intent, committed: list[list[bytes]]) -> None:
        found = {
            index: [value for value in committed[index] if value in values]
            for index, values in intent.values.items()
        }
        is_whole = found == intent.values
        is_gone = not any(found.values())
        name = intent.name
        if intent.outcome is True:
            assert is_whole, f"{name} was committed, and readers have {found} of {intent.values}"
        elif intent.outcome is False or not intent.asked_to_commit:
            assert is_gone, f"{name} was not committed, and readers have {found}"
        else:
            assert is_whole or is_gone, f"{name} is torn: readers have {found} of {intent.values}"
