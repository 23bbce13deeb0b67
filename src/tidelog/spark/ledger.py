"""The protocol of the exactly-once sink: who may write a batch, who decides on it, and what is left behind.

At the commit the driver first writes the decision, the list of the batch's transactions, and then commits
them. From the decision on the batch counts as written: another driver that takes the name commits the same
transactions, so that being fenced after the decision is no failure. Before the decision nothing is committed.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from tidelog.clients.producer.blocking import Producer
from tidelog.clients.producer.transaction_values import PreparedTransaction
from tidelog.errors import InvalidProducerEpoch, KafkaError, ProducerFenced
from tidelog.spark.decisions import Decision, Decisions, Holder
from tidelog.spark.options import SinkOptions
from tidelog.spark.task_producer import task_producer
from tidelog.spark.transactions import TaskIds, TransactionManager

log = logging.getLogger("tidelog.spark")

FENCED = (ProducerFenced, InvalidProducerEpoch)
ONE_WRITE = "write-"
NAMED = "name-"
# How long tasks leave it to the first one to take over from an earlier run.
PATIENCE_SECONDS = 2.0
# How often a driver that was fenced before its decision takes the name again.
TAKES = 5
# A driver ends its own decision within seconds: after this long it is taken for dead, and others end it.
LEFT_BEHIND_SECONDS = 3600.0


class Superseded(RuntimeError):
    """Another run of the same query or name has begun: this one may write no more."""


class NameTaken(RuntimeError):
    """Another query wrote batches of these numbers under the name: the rows would be taken for written."""


class PreparedRowsGone(RuntimeError):
    """Transactions were aborted before the decision: nothing of the batch is committed."""


class DecidedRowsLost(RuntimeError):
    """Transactions that were decided on could not be committed: the broker had aborted them."""


class CommitUncertain(RuntimeError):
    """The brokers did not answer in time, so that it is not known yet whether the batch is committed."""


class DecisionUnsure(RuntimeError):
    """A decision was sent and may stand in the topic or not: who takes the name again knows."""


@dataclass(frozen=True, slots=True)
class Job:
    """Who writes: a name that outlives restarts, one run of it, and the batch."""

    name: str
    run: str
    batch: int
    in_steps: bool
    """Whether the next batch may begin only when it is written down that this one is committed: Spark itself
    sees to that between the batches of a stream."""
    query: str = ""
    """The streaming query inside of which a batch with a name is written, where it is one."""
    owner: str = ""
    """What driver and tasks of a run share, and no other run has."""

    @property
    def is_one_write(self) -> bool:
        return self.name.startswith(ONE_WRITE)


class Ledger:
    """The steps of the protocol, for the tasks and the driver; one for each Python worker."""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options
        self.transactions = TransactionManager(options.client)
        self.decisions = Decisions(options.client, options.decision_topic, self.transactions)
        self._runs: dict[str, tuple[str, int]] = {}
        self._held: dict[str, Holder] = {}

    def close(self) -> None:
        while self._held:
            self._held.popitem()[1].close()
        self.transactions.close()

    def ids(self, job: Job) -> TaskIds:
        return TaskIds(self.options.transactional_id_prefix, job.name)

    def producer(self, job: Job, transactional_id: str) -> Producer:
        """The producer of a task. A write without a name has a time-out: nobody would come back for it."""
        two_phase = not job.is_one_write
        return task_producer(self.options, self.transactions.limits, transactional_id, two_phase=two_phase)

    # What tasks do

    def join(self, job: Job, partition: int) -> Decision:
        """The decision that stands as a task begins, under this run; raises Superseded for an old run."""
        if job.is_one_write:
            return Decision(job.name, 1, job.run)
        run, generation = self._runs.get(job.name, ("", 0))
        if run == job.run and not job.in_steps:
            # A batch is replayed as the first of a run, and this is not the first.
            return Decision(job.name, generation, run)
        known = self.decisions.read().get(job.name, Decision(job.name))
        if known.run != job.run:
            known = self._claim(job, patient=partition > 0)
        elif job.in_steps and known.transactions:
            with self._take(job) as holder:
                if holder.known.run == job.run:
                    self._finish(holder.known, strict=True)
                    holder.write(holder.known.ended())
        self._runs[job.name] = known.run, known.generation
        return known

    def is_done(self, known: Decision, job: Job) -> bool:
        """Whether the batch was decided before; raises NameTaken where it was a batch of another query."""
        if known.batch < job.batch:
            return False
        if job.query and known.query and job.query != known.query:
            raise NameTaken(
                f"exactlyOnceName={job.name.removeprefix(NAMED)} was used up to batch {known.batch} by query"
                f" {known.query}, and query {job.query} comes with batch {job.batch}, which would count as"
                " written: a query with a new checkpoint counts from 0 again. Let the name contain the id of"
                " the query."
            )
        return True

    def _claim(self, job: Job, *, patient: bool) -> Decision:
        """Take over from an earlier run: finish what it decided, and let it decide nothing more."""
        until = time.monotonic() + PATIENCE_SECONDS
        while patient and time.monotonic() < until:
            known = self.decisions.read().get(job.name, Decision(job.name))
            if known.run == job.run:
                return known
            time.sleep(0.05)
        while True:
            try:
                with self._take(job) as holder:
                    return self._claim_with(holder, job)
            except FENCED:
                # Another task of this run, or another run, was at it in the same moment.
                time.sleep(random.uniform(0.05, 0.2))

    def _claim_with(self, holder: Holder, job: Job) -> Decision:
        known = holder.known
        if known.run == job.run:
            return known
        if job.run in known.past:
            raise Superseded(
                f"run {job.run} of {job.name} was followed by run {known.run}, and may write no more"
            )
        done = self.is_done(known, job)
        self._finish(known, strict=job.in_steps or done)
        holder.write(known.claimed_by(job.run, job.owner))
        self.transactions.shut_out(self.ids(job), holder.known.generation)
        self._afterwards("decisions of drivers that died are left", self._finish_other_writes)
        return holder.known

    # What the driver does

    def commit(self, job: Job, prepared: Sequence[PreparedTransaction]) -> None:
        """Decide on the batch and commit it; where it was decided before, that is finished instead.

        Returns where every row of the batch is committed, by this driver or by another one.
        """
        held = self._held.pop(job.name, None)
        if held is not None and (held.known.run != job.run or self.is_done(held.known, job)):
            held.close()
            held = None
        unsure: DecisionUnsure | None = None
        for attempt in range(1, TAKES + 1):
            try:
                self._commit_with(held or self._take(job), job, prepared)
                return
            except DecisionUnsure as error:
                unsure = error
                log.info("%s: taking the name again: %s", job.name, error)
            except PreparedRowsGone:
                if held is None:
                    raise
            except KafkaError as error:
                if attempt == TAKES or not isinstance(error, FENCED):
                    raise self._uncertain(unsure) if unsure is not None else error from error
                log.info("%s: taking the name again: %s", job.name, error)
            held = None
        if unsure is not None:
            raise self._uncertain(unsure)

    def _uncertain(self, unsure: DecisionUnsure) -> CommitUncertain:
        return CommitUncertain(
            f"{unsure}. Look whether rows of it can be read before you write them again: the next write with"
            f" the topic of decisions {self.decisions.topic!r} commits them if it is."
        )

    def _commit_with(self, holder: Holder, job: Job, prepared: Sequence[PreparedTransaction]) -> None:
        try:
            known = holder.known
            mine = job.is_one_write or known.run == job.run
            if not mine and prepared and job.run not in known.past and not self.is_done(known, job):
                raise Superseded(
                    f"{job.name} was taken over by run {known.run} while run {job.run} wrote batch"
                    f" {job.batch}, which is not committed"
                )
            if not mine and not (prepared and self.is_done(known, job)):
                self._claim_with(holder, job)
                mine = True
            if self.is_done(holder.known, job):
                self._recognise(holder, job, prepared)
            elif prepared:
                self._decide(holder, job, prepared)
            if mine:
                self._tidy_up(holder, job, wrote=bool(prepared))
        except BaseException:
            holder.close()
            raise
        if job.is_one_write or job.in_steps:
            holder.close()
        else:
            self._held[job.name] = holder

    def _decide(self, holder: Holder, job: Job, prepared: Sequence[PreparedTransaction]) -> None:
        gone = self.transactions.not_open(prepared)
        decision = holder.known.decided(job.batch, tuple(prepared), job.query)
        if not gone:
            try:
                holder.write(decision)
            except KafkaError as error:
                raise DecisionUnsure(
                    f"{job.name}, batch {job.batch}: it is not known whether the decision to commit is"
                    f" written: {error}"
                ) from error
        elif not (job.is_one_write and self.transactions.any_committed(prepared)):
            raise PreparedRowsGone(
                f"{len(gone)} of {len(prepared)} transactions of {job.name}, batch {job.batch}, are not open"
                f" any more ({gone[0]}), so that the batch is not committed: it has to be written again. A"
                " broker without two-phase commit aborts transactions after transaction.timeout.ms."
            )
        # Only a decision commits a transaction: where one is committed, another driver found the decision of
        # an attempt whose answer was lost, carried it out and removed it.
        self._carry_out(decision, strict=True)

    def _recognise(self, holder: Holder, job: Job, prepared: Sequence[PreparedTransaction]) -> None:
        """The batch is decided: finish it, and drop what was written for it once more."""
        log.info("%s: batch %d was decided before and is not written again", job.name, job.batch)
        self._carry_out(holder.known, strict=holder.known.batch == job.batch)
        self._abort(set(prepared) - set(holder.known.transactions))

    def _carry_out(self, known: Decision, *, strict: bool) -> None:
        """Commit what was decided on; raises CommitUncertain where the brokers do not answer."""
        try:
            self._finish(known, strict=strict)
        except KafkaError as error:
            raise CommitUncertain(
                f"{known.name}, batch {known.batch}: the decision to commit is written, and transactions of"
                f" it could not be committed yet ({error}). The next write with the topic of decisions"
                f" {self.decisions.topic!r} commits them. Rows that are written again would be there twice."
            ) from error

    def _tidy_up(self, holder: Holder, job: Job, *, wrote: bool) -> None:
        """What is left to do after the commit. Whoever comes next does what fails here."""
        known = holder.known
        decided = {entry.transactional_id for entry in known.transactions}
        generation = max(1, known.generation)
        self._afterwards(
            f"{job.name}: transactions of other attempts are left open",
            lambda: self.transactions.abort_open(self.ids(job), generation, decided),
        )
        if job.is_one_write and wrote:
            self._afterwards(f"{job.name}: its decision is left", holder.forget)
            self._afterwards("decisions of drivers that died are left", self._finish_other_writes)
        elif job.in_steps and known.transactions:
            self._afterwards(
                f"{job.name}: the end of batch {job.batch} is not written down",
                lambda: holder.write(known.ended()),
            )

    def _afterwards(self, left: str, step: Callable[[], object]) -> None:
        """Do a step that the outcome of a write does not hang on; an error says what is left to others."""
        try:
            step()
        except FENCED as error:
            log.info("%s to the driver that took over: %s", left, error)
        except KafkaError as error:
            log.warning("%s: %s", left, error)

    def abort(self, job: Job, prepared: Collection[PreparedTransaction]) -> None:
        """Drop what tasks wrote, unless it was decided on; also what tasks left that told nothing."""
        held = self._held.pop(job.name, None)
        if held is not None:
            held.close()
        with self._take(job) as holder:
            known = holder.known
            self._abort(set(prepared) - set(known.transactions))
            if job.is_one_write or known.run == job.run or (job.owner and known.owner == job.owner):
                decided = {entry.transactional_id for entry in known.transactions}
                self.transactions.abort_open(self.ids(job), max(1, known.generation), decided)

    def owned(self, owner: str, batch: int) -> Job | None:
        """The job of a run by what its driver and tasks share; None where no task of it has begun."""
        found = [known for known in self.decisions.read().values() if owner and known.owner == owner]
        if len(found) > 1:
            log.warning(
                "batch %d failed, and its transactions stay open until the query is started again: %d queries"
                " of this driver have the same options. Give each a checkpointLocation or a name of its own",
                batch,
                len(found),
            )
            return None
        return Job(found[0].name, found[0].run, batch, in_steps=False, owner=owner) if found else None

    def _take(self, job: Job) -> Holder:
        return self.decisions.take(job.name, self.ids(job).decision)

    def _finish(self, known: Decision, *, strict: bool) -> None:
        """Commit what was decided on. Not `strict`: all of it was committed before, at least once."""
        ended = self.transactions.end(known.transactions, commit=True)
        failed = {entry: error for entry, error in ended.items() if error is not None}
        passing = next((error for error in failed.values() if error.retriable), None)
        if passing is not None:
            raise passing
        if failed and strict and not self._committed_by_another(known, failed):
            first, error = next(iter(failed.items()))
            message = (
                f"{len(failed)} of {len(ended)} transactions of {known.name}, batch {known.batch}, were"
                " decided on and could not be committed: their rows are lost to readers"
                f" ({first.transactional_id}: {error}). A broker without two-phase commit aborts transactions"
                " after transaction.timeout.ms."
            )
            if self.options.given.get("failondataloss", "true").strip().lower() != "false":
                raise DecidedRowsLost(f"{message} To go on without them set failOnDataLoss to false.")
            log.error("%s", message)

    def _committed_by_another(self, known: Decision, failed: Collection[PreparedTransaction]) -> bool:
        """Whether another driver committed transactions whose ids it then took for tasks of its own.

        It replaces the decision in the topic after all of it is committed, and never before.
        """
        if not self.transactions.not_committed(failed):
            return True
        if known.name.startswith(ONE_WRITE):
            return False
        now = self.decisions.read().get(known.name)
        return now is not None and now.batch >= known.batch and now.transactions != known.transactions

    def _abort(self, prepared: Collection[PreparedTransaction]) -> None:
        for entry, error in self.transactions.end(prepared, commit=False).items():
            if error is not None:
                log.info("%s was aborted before: %s", entry.transactional_id, error)

    def _finish_other_writes(self) -> None:
        """Finish writes without a name whose driver died between its decision and the end of it.

        To commit the same transactions beside a driver that lives does no harm; to take its name would fence
        it. So the name is taken, and the decision removed, when the driver has had its time.
        """
        for name, known in self.decisions.read().items():
            if not name.startswith(ONE_WRITE):
                continue
            job = Job(name, known.run, known.batch, in_steps=True)
            try:
                self._finish(known, strict=False)
                if time.time() - known.written_at >= LEFT_BEHIND_SECONDS:
                    with self._take(job) as holder:
                        holder.forget()
            except KafkaError as error:
                log.info("%s: left to its own driver: %s", name, error)
