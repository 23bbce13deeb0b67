"""The protocol of the exactly-once sink: which run may write a batch, which driver decides, and the cleanup.

To commit, the driver first writes the decision, which is the list of the batch's transactions, and then
commits them. Before the decision nothing is committed. From the decision on the batch counts as written:
another driver that takes the name commits the same transactions. So being fenced after the decision is not a
failure.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from tidelog.clients.producer.blocking import Producer
from tidelog.clients.producer.transaction_values import PreparedTxnState
from tidelog.errors import InvalidProducerEpoch, KafkaError, ProducerFenced
from tidelog.spark.decisions import Decision, Decisions, Holder
from tidelog.spark.options import SinkOptions
from tidelog.spark.task_producer import task_producer
from tidelog.spark.transactions import TaskIds, TransactionManager

log = logging.getLogger("tidelog.spark")

FENCED = (ProducerFenced, InvalidProducerEpoch)
ONE_WRITE = "write-"
NAMED = "name-"
# How long tasks wait for the first task to take over from an earlier run.
PATIENCE_SECONDS = 2.0
# How often a driver takes the name again after it was fenced before its decision.
TAKES = 5
# A driver carries out its decision within seconds. After this long it counts as dead, and others do it.
LEFT_BEHIND_SECONDS = 3600.0


class Superseded(RuntimeError):
    """Another run of the same query or name has begun: this run must not write any more."""


class NameTaken(RuntimeError):
    """Another query used these batch numbers under the same name: the rows would count as written."""


class PreparedRowsGone(RuntimeError):
    """Transactions were aborted before the decision: nothing of the batch is committed."""


class DecidedRowsLost(RuntimeError):
    """Decided transactions could not be committed, because the broker had aborted them."""


class CommitUncertain(RuntimeError):
    """The brokers did not answer in time: it is unknown whether the batch is committed."""


class DecisionUnsure(RuntimeError):
    """A decision was sent, and it is unknown whether it was written. Taking the name again shows it."""


@dataclass(frozen=True, slots=True)
class Job:
    """A write: a name that outlives restarts, a run of it, and the batch."""

    name: str
    run: str
    batch: int
    in_steps: bool
    """Whether the next batch has to wait for the record that this one is committed. Between the batches of a
    stream Spark itself ensures that."""
    query: str = ""
    """The streaming query that writes a named batch; empty outside of a query."""
    owner: str = ""
    """A mark that the driver and the tasks of a run have in common, and no other run has."""

    @property
    def is_one_write(self) -> bool:
        return self.name.startswith(ONE_WRITE)


class Ledger:
    """The steps of the protocol, for the tasks and the driver. Each Python worker has its own."""

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
        """The producer of a task. An unnamed write has a time-out, since no driver would resume it."""
        two_phase = not job.is_one_write
        return task_producer(self.options, self.transactions.limits, transactional_id, two_phase=two_phase)

    # Steps of tasks

    def join(self, job: Job, partition: int) -> Decision:
        """The current decision when a task begins, claimed for this run. Raises Superseded for an old run."""
        if job.is_one_write:
            return Decision(job.name, 1, job.run)
        run, generation = self._runs.get(job.name, ("", 0))
        if run == job.run and not job.in_steps:
            # Only the first batch of a run can be a replay, and this is a later one.
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
        """Whether the batch is already decided. Raises NameTaken if another query wrote it."""
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
        """Take over from an earlier run: carry out its decision, and fence it."""
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
                # Another task of this run, or another run, claimed it at the same time.
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

    # Steps of the driver

    def commit(self, job: Job, prepared: Sequence[PreparedTxnState]) -> None:
        """Decide on the batch and commit it. If it is already decided, finish that decision instead.

        Returns when every row of the batch is committed, by this driver or another one.
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
            f"{unsure}. Check whether its rows can be read before you write them again: if the decision is"
            f" written, the next write with the topic of decisions {self.decisions.topic!r} commits them."
        )

    def _commit_with(self, holder: Holder, job: Job, prepared: Sequence[PreparedTxnState]) -> None:
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

    def _decide(self, holder: Holder, job: Job, prepared: Sequence[PreparedTxnState]) -> None:
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
                f" any more ({gone[0]}). The batch is not committed and has to be written again. A broker"
                " without two-phase commit aborts transactions after transaction.timeout.ms."
            )
        # Only a decision leads to a commit. So if one transaction is committed, the answer to an earlier
        # attempt was lost, and another driver found its decision, carried it out and removed it.
        self._carry_out(decision, strict=True)

    def _recognise(self, holder: Holder, job: Job, prepared: Sequence[PreparedTxnState]) -> None:
        """Finish the batch that was already decided, and abort the transactions of its replay."""
        log.info("%s: batch %d was decided before and is not written again", job.name, job.batch)
        self._carry_out(holder.known, strict=holder.known.batch == job.batch)
        self._abort(set(prepared) - set(holder.known.transactions))

    def _carry_out(self, known: Decision, *, strict: bool) -> None:
        """Commit the decided transactions. Raises CommitUncertain if the brokers do not answer."""
        try:
            self._finish(known, strict=strict)
        except KafkaError as error:
            raise CommitUncertain(
                f"{known.name}, batch {known.batch}: the decision to commit is written, but transactions of"
                f" it could not be committed yet ({error}). The next write with the topic of decisions"
                f" {self.decisions.topic!r} commits them. Writing the rows again would duplicate them."
            ) from error

    def _tidy_up(self, holder: Holder, job: Job, *, wrote: bool) -> None:
        """The cleanup after the commit. The next driver does the steps that fail here."""
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
        """Do a step that the result of a write does not depend on. An error is logged with what is left."""
        try:
            step()
        except FENCED as error:
            log.info("%s to the driver that took over: %s", left, error)
        except KafkaError as error:
            log.warning("%s: %s", left, error)

    def abort(self, job: Job, prepared: Collection[PreparedTxnState]) -> None:
        """Abort the transactions of a batch unless it is decided, also those that tasks did not report."""
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
        """The job of the run with this mark; None if no task of it has begun."""
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
        """Commit the decided transactions. Without `strict` all were committed before, at least once."""
        ended = self.transactions.end(known.transactions, commit=True)
        failed = {entry: error for entry, error in ended.items() if error is not None}
        retriable = next((error for error in failed.values() if error.retriable), None)
        if retriable is not None:
            raise retriable
        if failed and strict and not self._committed_by_another(known, failed):
            first, error = next(iter(failed.items()))
            message = (
                f"{len(failed)} of {len(ended)} transactions of {known.name}, batch {known.batch}, were"
                " decided on and could not be committed: readers will not see their rows"
                f" ({first.transactional_id}: {error}). A broker without two-phase commit aborts transactions"
                " after transaction.timeout.ms."
            )
            if self.options.given.get("failondataloss", "true").strip().lower() != "false":
                raise DecidedRowsLost(f"{message} To continue without them, set failOnDataLoss to false.")
            log.error("%s", message)

    def _committed_by_another(self, known: Decision, failed: Collection[PreparedTxnState]) -> bool:
        """Whether another driver committed these transactions and then reused their ids for its own tasks.

        That driver replaces the decision in the topic only after all of it is committed.
        """
        if not self.transactions.not_committed(failed):
            return True
        if known.name.startswith(ONE_WRITE):
            return False
        now = self.decisions.read().get(known.name)
        return now is not None and now.batch >= known.batch and now.transactions != known.transactions

    def _abort(self, prepared: Collection[PreparedTxnState]) -> None:
        for entry, error in self.transactions.end(prepared, commit=False).items():
            if error is not None:
                log.info("%s was aborted before: %s", entry.transactional_id, error)

    def _finish_other_writes(self) -> None:
        """Finish unnamed writes whose driver died between the decision and its end.

        Committing the transactions of a driver that lives does no harm, but taking its name would fence it.
        So the name is taken, and the decision removed, only after the driver has had enough time.
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
