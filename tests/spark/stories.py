"""Stories of the exactly-once sink: drivers and tasks that are killed at any step, by the numbers of a seed.

A story plays what Spark does around the sink: batches in order, each planned once and replayed until its
commit came back; tasks in any number, some of them tried twice; a new run after each death. The dead leave
everything as it stands, and some of them were not dead and go on later.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial

from tests.spark.decided import Driver, problems, settled
from tests.spark.hands import Hands
from tidelog.clients.producer.blocking import Producer
from tidelog.clients.producer.transaction_values import PreparedTxnState
from tidelog.errors import KafkaError
from tidelog.spark.decisions import Decision, Decisions, Holder
from tidelog.spark.exactly_once import Prepared
from tidelog.spark.ledger import DecidedRowsLost, Job, Ledger, PreparedRowsGone, Superseded
from tidelog.spark.options import SinkOptions
from tidelog.spark.transactions import TaskIds, TransactionManager

# How many steps a run may take before its death, at most: a batch takes about ten.
LIFE = 24


class Killed(BaseException):
    """The process is gone: nothing after this runs in it."""


class Death:
    """Counts the steps of a run; at the last one it dies, just before or just after doing it."""

    def __init__(self, chance: random.Random) -> None:
        self.dead = False
        self._left = chance.randrange(LIFE)
        self._after = chance.random() < 0.5

    def step(self, action: Callable[[], object]) -> None:
        if self.dead:
            raise Killed
        self._left -= 1
        if self._left >= 0:
            action()
            return
        if self._after:
            action()
        self.dead = True
        raise Killed


class MortalTransactionManager(TransactionManager):
    death: Death

    def end(
        self, transactions: Collection[PreparedTxnState], *, commit: bool
    ) -> dict[PreparedTxnState, KafkaError | None]:
        """One by one, so that a death may come in between."""
        found: dict[PreparedTxnState, KafkaError | None] = {}
        for entry in transactions:
            self.death.step(partial(self._end_one, entry, commit, found))
        return found

    def _end_one(
        self,
        entry: PreparedTxnState,
        commit: bool,
        found: dict[PreparedTxnState, KafkaError | None],
    ) -> None:
        found.update(TransactionManager.end(self, [entry], commit=commit))

    def abort_open(self, ids: TaskIds, generation: int, keep: Collection[str] = ()) -> list[str]:
        found: list[str] = []
        self.death.step(lambda: found.extend(TransactionManager.abort_open(self, ids, generation, keep)))
        return found

    def shut_out(self, ids: TaskIds, generation: int) -> list[str]:
        found: list[str] = []
        self.death.step(lambda: found.extend(TransactionManager.shut_out(self, ids, generation)))
        return found


class MortalHolder(Holder):
    death: Death

    def write(self, decision: Decision) -> None:
        self.death.step(lambda: Holder.write(self, decision))

    def forget(self) -> None:
        self.death.step(lambda: Holder.forget(self))


class MortalDecisions(Decisions):
    death: Death

    def take(self, name: str, transactional_id: str) -> Holder:
        holder = super().take(name, transactional_id)
        holder.__class__ = MortalHolder
        assert isinstance(holder, MortalHolder)
        holder.death = self.death
        return holder


class MortalLedger(Ledger):
    """A ledger whose process may die. Planted errors are subclasses of it."""

    def __init__(self, options: SinkOptions, death: Death) -> None:
        super().__init__(options)
        self.death = death
        self.producers: list[Callable[..., None]] = []
        transactions, decisions = self.transactions, self.decisions
        transactions.__class__, decisions.__class__ = MortalTransactionManager, MortalDecisions
        assert isinstance(transactions, MortalTransactionManager)
        assert isinstance(decisions, MortalDecisions)
        transactions.death = decisions.death = death

    def producer(self, job: Job, transactional_id: str) -> Producer:
        producer = super().producer(job, transactional_id)
        close = producer.close
        self.producers.append(close)

        def close_if_alive(timeout: float | None = None) -> None:
            if not self.death.dead:
                close(timeout)

        producer.close = close_if_alive  # type: ignore[method-assign]
        prepare = producer.prepare_transaction

        def prepare_unless_killed() -> PreparedTxnState:
            found: list[PreparedTxnState] = []
            self.death.step(lambda: found.append(prepare()))
            return found[0]

        producer.prepare_transaction = prepare_unless_killed  # type: ignore[method-assign]
        return producer

    def close(self) -> None:
        for close in self.producers:
            close(0)  # without a word to the broker
        super().close()


@dataclass
class Story:
    """`tell()` plays it to its end, and gives what is wrong with the topic then."""

    hands: Hands
    topic: str
    seed: int
    kind: type[MortalLedger] = MortalLedger
    in_steps: bool = False
    batches: int = 3
    deaths: int = 5
    committed: int = 0
    """Batches whose commit came back: what Spark's own checkpoint knows."""
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self._zombies: list[tuple[Driver, Job, list[Prepared]]] = []
        self._all: list[Driver] = []

    def tell(self) -> list[str]:
        try:
            run = 0
            while self.committed < self.batches:
                self._run(run, mortal=run < self.deaths)
                run += 1
            for zombie in self._zombies:
                self._come_back(*zombie)
            try:
                settled(self.hands, self.topic, timeout=1.0)
            except AssertionError as error:
                self.lines.append(str(error))
            return problems(
                self.hands, self.topic, [row for rows in map(_rows, range(self.batches)) for row in rows]
            )
        except DecidedRowsLost as error:
            return [str(error)]
        finally:
            for driver in self._all:
                driver.close()

    def _driver(self, run: int, *, mortal: bool) -> tuple[Driver, Death]:
        death = Death(self.chance)
        if not mortal:
            death._left = 1 << 30
        driver = Driver(self.hands, self.topic, f"run-{run}")
        driver.close()
        driver.executor, driver.ledger = (self.kind(driver.options, death) for _ in range(2))
        self._all.append(driver)
        return driver, death

    def _run(self, run: int, *, mortal: bool) -> None:
        """One run of the query, from the first batch that is not committed to its death or the end."""
        driver, death = self._driver(run, mortal=mortal)
        prepared: list[Prepared] = []
        job = driver.job(self.committed, in_steps=self.in_steps)
        try:
            while self.committed < self.batches:
                job = driver.job(self.committed, in_steps=self.in_steps)
                prepared = self._tasks(driver, job)
                if self._zombies and self.chance.random() < 0.5:
                    self._come_back(*self._zombies.pop())
                driver.commit(job, prepared)
                prepared = []
                death.step(lambda: None)
                self.committed += 1
                self.lines.append(f"run {run}: batch {job.batch} committed")
        except Killed:
            self.lines.append(f"run {run}: killed in batch {job.batch} with {len(prepared)} prepared")
            if prepared and self.chance.random() < 0.5:
                self._zombies.append((driver, job, prepared))
        except (PreparedRowsGone, Superseded) as error:
            self.lines.append(f"run {run}: {error}")

    def _tasks(self, driver: Driver, job: Job) -> list[Prepared]:
        rows = _rows(job.batch)
        tasks = self.chance.randint(1, 3)
        prepared: list[Prepared] = []
        for partition in range(tasks):
            part = rows[partition::tasks]
            if self.chance.random() < 0.2:
                driver.write(job, partition, part, attempt="0.1")  # an attempt that came second
            prepared.append(driver.write(job, partition, part, attempt="1.2"))
        return prepared

    def _come_back(self, driver: Driver, job: Job, prepared: list[Prepared]) -> None:
        """A driver that was taken for dead goes on with its commit, and then with abort."""
        for ledger in (driver.executor, driver.ledger):
            assert isinstance(ledger, MortalLedger)
            ledger.death.dead = False
            ledger.death._left = 1 << 30
        try:
            driver.commit(job, prepared)
            self.lines.append(f"{driver.run} came back and committed batch {job.batch}")
        except (Superseded, PreparedRowsGone, DecidedRowsLost, KafkaError) as error:
            self.lines.append(f"{driver.run} came back: {type(error).__name__}")
            driver.abort(job, prepared)


def _rows(batch: int) -> list[str]:
    return [f"{batch}-{row}" for row in range(6)]
