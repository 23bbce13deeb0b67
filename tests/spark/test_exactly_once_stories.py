"""Exactly once in stories of many deaths; and errors that are planted into the sink are found by them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from tests.spark.hands import Hands
from tests.spark.stories import MortalLedger, Story
from tests.support.scale import scale
from tidelog.clients.producer.transaction_values import PreparedTxnState
from tidelog.spark.decisions import Decision, Holder
from tidelog.spark.ledger import Job
from tidelog.testing import Broker


@pytest.fixture(scope="module", params=["two phases", "with a time-out"])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    two_phase = request.param == "two phases"
    with Broker({"transaction.two.phase.commit.enable": "true" if two_phase else "false"}) as broker:
        yield broker


@pytest.mark.parametrize("in_steps", [False, True], ids=["stream", "named batches"])
def test_every_row_is_there_once_whoever_dies_and_whenever(hands: Hands, in_steps: bool) -> None:
    for _ in range(scale(4, 150)):
        seed = random.randrange(1 << 32)
        story = Story(hands, hands.topic(partitions=2), seed, in_steps=in_steps)
        assert not story.tell(), f"seed {seed}: {story.lines}"


class WithoutDecision(MortalLedger):
    """Commits the transactions and writes nothing down."""

    def _decide(self, holder: Holder, job: Job, prepared: Sequence[PreparedTxnState]) -> None:
        self.transactions.end(prepared, commit=True)


class CommitsFirst(MortalLedger):
    """Commits the transactions, and then writes down that it will."""

    def _decide(self, holder: Holder, job: Job, prepared: Sequence[PreparedTxnState]) -> None:
        self.transactions.end(prepared, commit=True)
        holder.write(holder.known.decided(job.batch, tuple(prepared)))


class RecognisesNothing(MortalLedger):
    """Takes a replayed batch for a new one."""

    def is_done(self, known: Decision, job: Job) -> bool:
        return False


class FinishesNothing(MortalLedger):
    """Takes over without committing what the run before it decided."""

    def _claim_with(self, holder: Holder, job: Job) -> Decision:
        if holder.known.run != job.run:
            holder.known = holder.known.ended()
        return super()._claim_with(holder, job)


class UndoesDecisions(MortalLedger):
    """Aborts what was decided on, where the commit failed half-way."""

    def _commit_with(self, holder: Holder, job: Job, prepared: Sequence[PreparedTxnState]) -> None:
        if self.is_done(holder.known, job):
            self._abort(holder.known.transactions)
        super()._commit_with(holder, job, prepared)

    def _claim_with(self, holder: Holder, job: Job) -> Decision:
        if holder.known.run != job.run:
            self._abort(holder.known.transactions)
            holder.known = holder.known.ended()
        return super()._claim_with(holder, job)


class LeavesOpen(MortalLedger):
    """Cares only for the transactions that it was told of."""

    def __init__(self, *given: object) -> None:
        super().__init__(*given)  # type: ignore[arg-type]  # as they were given
        self.transactions.abort_open = lambda *_, **__: []  # type: ignore[method-assign]
        self.transactions.shut_out = lambda *_, **__: []  # type: ignore[method-assign]


class LetsEverybodyDecide(MortalLedger):
    """Takes the decision of a driver that was left behind."""

    def __init__(self, *given: object) -> None:
        super().__init__(*given)  # type: ignore[arg-type]  # as they were given
        self.transactions.not_open = lambda *_: []  # type: ignore[method-assign]

    def _commit_with(self, holder: Holder, job: Job, prepared: Sequence[PreparedTxnState]) -> None:
        holder.known = replace(holder.known, run=job.run)
        super()._commit_with(holder, job, prepared)


PLANTED = [
    WithoutDecision,
    CommitsFirst,
    RecognisesNothing,
    FinishesNothing,
    UndoesDecisions,
    LeavesOpen,
    LetsEverybodyDecide,
]


@pytest.mark.parametrize("kind", PLANTED, ids=lambda kind: kind.__name__)
def test_a_planted_error_is_found(kind: type[MortalLedger]) -> None:
    with (
        Broker({"transaction.two.phase.commit.enable": "true"}) as broker,
        Hands(broker.bootstrap_servers) as hands,
    ):
        for seed in range(40):
            story = Story(hands, hands.topic(partitions=2), seed, kind)
            if story.tell():
                return
    pytest.fail(f"{kind.__doc__} Nobody noticed in 40 stories.")
