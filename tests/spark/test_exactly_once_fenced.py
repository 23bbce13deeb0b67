"""A write whose name another driver takes, at every step of its commit: it reports what readers see."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator

import pytest

from tests.spark.decided import Driver, problems, settled
from tests.spark.hands import Hands
from tests.spark.stories import Death, MortalLedger
from tidelog.errors import InvalidProducerEpoch
from tidelog.spark import ledger as protocol
from tidelog.spark.decisions import Decision, Holder
from tidelog.spark.ledger import Superseded
from tidelog.testing import Broker


@pytest.fixture(scope="module", params=["two phases", "with a time-out"])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    two_phase = request.param == "two phases"
    with Broker({"transaction.two.phase.commit.enable": "true" if two_phase else "false"}) as broker:
        yield broker


class Interruption(Death):
    """Nobody dies: `intruder` does its work right before one step of the commit."""

    def __init__(self, at: int, intruder: Callable[[], object]) -> None:
        super().__init__(random.Random(0))
        self.seen: list[str] = []
        self._at, self._intruder = at, intruder
        self.armed = False

    @property
    def happened(self) -> bool:
        return self.armed and len(self.seen) > self._at

    def step(self, action: Callable[[], object]) -> None:
        if self.armed:
            self.seen.append("step")
            if len(self.seen) == self._at + 1:
                self._intruder()
        action()


def interrupted(hands: Hands, topic: str, run: str, at: int, intruder: Callable[[], object]) -> Driver:
    """A driver whose commit the intruder interrupts before step `at`."""
    driver = Driver(hands, topic, run)
    driver.close()
    steps = Interruption(at, intruder)
    driver.executor, driver.ledger = MortalLedger(driver.options, steps), MortalLedger(driver.options, steps)
    return driver


def steps_of(driver: Driver) -> Interruption:
    assert isinstance(driver.ledger, MortalLedger)
    assert isinstance(driver.ledger.death, Interruption)
    return driver.ledger.death


@pytest.mark.parametrize("forgets", [False, True], ids=["young", "taken for left behind"])
def test_a_write_without_a_name_succeeds_whenever_another_one_commits(
    hands: Hands, monkeypatch: pytest.MonkeyPatch, forgets: bool
) -> None:
    if forgets:
        monkeypatch.setattr(protocol, "LEFT_BEHIND_SECONDS", -3600.0)
    for at in itertools.count():
        topic = hands.topic(partitions=2)

        def other_write(topic: str = topic) -> None:
            with Driver(hands, topic, "other") as other:
                job = other.job(0, in_steps=True, name="write-other")
                other.commit(job, other.write_all(job, ["c"]))

        with interrupted(hands, topic, "mine", at, other_write) as driver:
            job = driver.job(0, in_steps=True, name="write-mine")
            prepared = driver.write_all(job, ["a"], ["b"])
            steps_of(driver).armed = True
            driver.commit(job, prepared)
            if not steps_of(driver).happened:
                break
            settled(hands, topic)
            assert not problems(hands, topic, ["a", "b", "c"]), f"interrupted before step {at}"
            assert driver.ledger.decisions.read() == {}
    assert at >= 5, "the decision, two commits, the end and the tombstone are steps"


def test_a_named_batch_that_another_run_takes_over_fails_only_where_nothing_of_it_is_committed(
    hands: Hands,
) -> None:
    outcomes = []
    for at in itertools.count():
        topic = hands.topic(partitions=2)
        second = Driver(hands, topic, "run-2")
        again = second.job(0, in_steps=True, name="name-orders")
        rewritten = []

        def take_over(second: Driver = second, rewritten: list[object] = rewritten) -> None:
            rewritten.extend(second.write_all(second.job(0, in_steps=True, name="name-orders"), ["a", "b"]))

        with interrupted(hands, topic, "run-1", at, take_over) as driver, second:
            job = driver.job(0, in_steps=True, name="name-orders")
            prepared = driver.write_all(job, ["a"], ["b"])
            steps_of(driver).armed = True
            try:
                driver.commit(job, prepared)
                outcomes.append("committed")
                settled(hands, topic)
                assert not problems(hands, topic, ["a", "b"]), f"interrupted before step {at}"
            except Superseded:
                outcomes.append("superseded")
                driver.abort(job, prepared)
            if not steps_of(driver).happened:
                break
            second.commit(again, rewritten)  # type: ignore[arg-type]
            settled(hands, topic)
            assert not problems(hands, topic, ["a", "b"]), f"interrupted before step {at}"
    assert outcomes == ["superseded"] + ["committed"] * (len(outcomes) - 1)
    assert len(outcomes) >= 5


@pytest.mark.parametrize("name", ["write-mine", "name-orders", "query-q"])
def test_a_decision_whose_answer_is_lost_is_found_out(
    hands: Hands, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    topic = hands.topic(partitions=2)
    write = Holder.write
    lost: list[Decision] = []

    def write_and_lose(holder: Holder, decision: Decision) -> None:
        write(holder, decision)
        if decision.transactions and not lost:
            lost.append(decision)
            raise InvalidProducerEpoch("somebody came between the commit and its answer")

    monkeypatch.setattr(Holder, "write", write_and_lose)
    with Driver(hands, topic, "mine") as driver:
        job = driver.job(0, in_steps=name != "query-q", name=name)
        driver.commit(job, driver.write_all(job, ["a"], ["b"]))
        settled(hands, topic)
    assert lost
    assert not problems(hands, topic, ["a", "b"])
