"""The exactly-once sink: each task writes in a transaction, the driver decides on all of them at once.

A task prepares its transaction and hands it to the driver. At the commit the driver first writes the
decision, the list of the batch's transactions, and then commits them. Whoever comes after a driver that died
commits what was decided and aborts what was not, and a batch that was decided is not written again.
"""

from __future__ import annotations

import functools
import logging
import random
import time
import uuid
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from tidelog.clients.producer.face import Producer
from tidelog.clients.producer.transaction_values import PreparedTransaction
from tidelog.errors import (
    InvalidProducerEpoch,
    InvalidTransactionTimeout,
    KafkaError,
    ProducerFenced,
    TransactionalIdAuthorizationFailed,
)
from tidelog.spark.decisions import Decision, Decisions, Holder
from tidelog.spark.options import OptionError, SinkOptions
from tidelog.spark.sending import RowSender, Target
from tidelog.spark.sink import producer_config
from tidelog.spark.transactions import TWO_PHASE, Limits, TaskIds, TransactionDesk

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("tidelog.spark")

FENCED = (ProducerFenced, InvalidProducerEpoch)
QUERY_ID, BATCH_ID, RUN_ID = "sql.streaming.queryId", "streaming.sql.batchId", "spark.jobGroup.id"
ONE_WRITE = "write-"
NAMED = "name-"
BATCH_OPTION = "exactlyoncebatch"
# How long tasks leave it to the first one to take over from an earlier run.
PATIENCE_SECONDS = 2.0
ATTEMPTS_APART = 4
MOST_LEDGERS = 16


class Superseded(RuntimeError):
    """Another run of the same query or name has begun: this one may write no more."""


class NameTaken(RuntimeError):
    """Another query wrote batches of these numbers under the name: the rows would be taken for written."""


class PreparedRowsGone(RuntimeError):
    """Transactions were aborted before the decision: nothing of the batch is committed."""


class DecidedRowsLost(RuntimeError):
    """Transactions that were decided on could not be committed: the broker had aborted them."""


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

    @property
    def is_one_write(self) -> bool:
        return self.name.startswith(ONE_WRITE)


@dataclass(frozen=True, slots=True)
class Task:
    """A part of a batch, and the attempt at it."""

    partition: int
    attempt: str = "0.0"

    @classmethod
    def here(cls) -> Task:
        context = TaskContext.get()
        if context is None:
            raise RuntimeError("not inside of a task of Spark")
        # A stage that is tried again counts its attempts from 0: the id of the attempt keeps them apart.
        attempt = f"{context.attemptNumber()}.{context.taskAttemptId() % ATTEMPTS_APART}"
        return cls(context.partitionId(), attempt)


@dataclass
class Prepared(WriterCommitMessage):
    """What a task tells the driver; without a transaction where it had nothing to write."""

    job: Job
    rows: int
    transaction: PreparedTransaction | None


class Ledger:
    """The steps of the protocol, for the tasks and the driver; one for each Python worker."""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options
        self.desk = TransactionDesk(options.client)
        self.decisions = Decisions(options.client, options.decision_topic, self.desk)
        self._runs: dict[str, tuple[str, int]] = {}
        self._held: dict[str, Holder] = {}

    def close(self) -> None:
        while self._held:
            self._held.popitem()[1].close()
        self.desk.close()

    def ids(self, job: Job) -> TaskIds:
        return TaskIds(self.options.transactional_id_prefix, job.name)

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
        holder.write(known.claimed_by(job.run))
        self.desk.shut_out(self.ids(job), holder.known.generation)
        self._finish_other_writes()
        return holder.known

    # What the driver does

    def commit(self, job: Job, prepared: Sequence[PreparedTransaction]) -> None:
        """Decide on the batch and commit it; where it was decided before, that is finished instead."""
        held = self._held.pop(job.name, None)
        if held is not None and held.known.run == job.run and not self.is_done(held.known, job):
            try:
                self._commit_with(held, job, prepared)
                return
            except (*FENCED, PreparedRowsGone) as error:
                log.info("%s: somebody else may have taken over: %s", job.name, error)
        elif held is not None:
            held.close()
        self._commit_with(self._take(job), job, prepared)

    def _commit_with(self, holder: Holder, job: Job, prepared: Sequence[PreparedTransaction]) -> None:
        try:
            if not job.is_one_write and holder.known.run != job.run:
                if prepared and job.run not in holder.known.past:
                    raise Superseded(
                        f"{job.name} was taken over by run {holder.known.run} while run {job.run} wrote"
                        f" batch {job.batch}, which is not committed"
                    )
                self._claim_with(holder, job)
            if self.is_done(holder.known, job):
                self._recognise(holder, job, prepared)
            elif prepared:
                self._decide(holder, job, prepared)
            decided = holder.known.transactions
            generation = max(1, holder.known.generation)
            self.desk.abort_open(self.ids(job), generation, {entry.transactional_id for entry in decided})
            if job.is_one_write and prepared:
                self._forget(holder)
                self._finish_other_writes()
        except BaseException:
            holder.close()
            raise
        if job.is_one_write or job.in_steps:
            holder.close()
        else:
            self._held[job.name] = holder

    def _forget(self, holder: Holder) -> None:
        try:
            holder.forget()
        except FENCED:
            pass  # somebody took it for left behind, finished it and has forgotten it

    def _decide(self, holder: Holder, job: Job, prepared: Sequence[PreparedTransaction]) -> None:
        gone = self.desk.not_open(prepared)
        if gone:
            raise PreparedRowsGone(
                f"{len(gone)} of {len(prepared)} transactions of {job.name}, batch {job.batch}, are not open"
                f" any more ({gone[0]}), so that the batch is not committed: it has to be written again. A"
                " broker without two-phase commit aborts transactions after transaction.timeout.ms."
            )
        holder.write(holder.known.decided(job.batch, tuple(prepared), job.query))
        self._finish(holder.known, strict=True)
        if job.in_steps:
            holder.write(holder.known.ended())

    def _recognise(self, holder: Holder, job: Job, prepared: Sequence[PreparedTransaction]) -> None:
        """The batch is decided: finish it, and drop what was written for it once more."""
        log.info("%s: batch %d was decided before and is not written again", job.name, job.batch)
        self._finish(holder.known, strict=holder.known.batch == job.batch)
        self._abort(set(prepared) - set(holder.known.transactions))

    def abort(self, job: Job, prepared: Collection[PreparedTransaction]) -> None:
        """Drop what tasks wrote, unless it was decided on; also what tasks left that told nothing."""
        held = self._held.pop(job.name, None)
        if held is not None:
            held.close()
        with self._take(job) as holder:
            known = holder.known
            self._abort(set(prepared) - set(known.transactions))
            if job.is_one_write or known.run == job.run:
                decided = {entry.transactional_id for entry in known.transactions}
                self.desk.abort_open(self.ids(job), max(1, known.generation), decided)

    def _take(self, job: Job) -> Holder:
        return self.decisions.take(job.name, self.ids(job).decision)

    def _finish(self, known: Decision, *, strict: bool) -> None:
        """Commit what was decided on. Not `strict`: all of it was committed before, at least once."""
        ended = self.desk.end(known.transactions, commit=True)
        failed = {entry.transactional_id: error for entry, error in ended.items() if error is not None}
        passing = next((error for error in failed.values() if error.retriable), None)
        if passing is not None:
            raise passing
        if failed and strict:
            first, error = next(iter(failed.items()))
            message = (
                f"{len(failed)} of {len(ended)} transactions of {known.name}, batch {known.batch}, were"
                f" decided on and could not be committed: their rows are lost to readers ({first}: {error})."
                " A broker without two-phase commit aborts transactions after transaction.timeout.ms."
            )
            if self.options.given.get("failondataloss", "true").strip().lower() != "false":
                raise DecidedRowsLost(f"{message} To go on without them set failOnDataLoss to false.")
            log.error("%s", message)

    def _abort(self, prepared: Collection[PreparedTransaction]) -> None:
        for entry, error in self.desk.end(prepared, commit=False).items():
            if error is not None:
                log.info("%s was aborted before: %s", entry.transactional_id, error)

    def _finish_other_writes(self) -> None:
        """Finish writes without a name whose driver died between its decision and the end of it."""
        for name, known in self.decisions.read().items():
            if not name.startswith(ONE_WRITE):
                continue
            job = Job(name, known.run, known.batch, in_steps=True)
            try:
                self._finish(known, strict=False)
                with self._take(job) as holder:
                    holder.forget()
            except KafkaError as error:
                log.info("%s: left to its own driver: %s", name, error)

    # The transaction of a task

    def producer(self, job: Job, transactional_id: str) -> Producer:
        """A producer whose transaction may be open for as long as the broker allows."""
        client = producer_config(self.options.client)
        wanted = client.pop(TWO_PHASE, "true").strip().lower() == "true"
        if "transaction.timeout.ms" in client:
            return self._started_as_asked(client, transactional_id)
        limits = self.desk.limits
        if wanted and limits.two_phase and not job.is_one_write:
            try:
                return _started({**client, TWO_PHASE: "true"}, transactional_id)
            except TransactionalIdAuthorizationFailed as error:
                log.warning("no two-phase commit for %s: %s", transactional_id, error)
        return self._started_with_timeout(client, transactional_id, limits)

    def _started_as_asked(self, client: dict[str, str], transactional_id: str) -> Producer:
        try:
            return _started(client, transactional_id)
        except InvalidTransactionTimeout as error:
            raise OptionError(
                f"kafka.transaction.timeout.ms={client['transaction.timeout.ms']}: the broker allows no more"
                f" than its transaction.max.timeout.ms, {self.desk.limits.timeout_ms} as far as it tells"
            ) from error

    def _started_with_timeout(
        self, client: dict[str, str], transactional_id: str, limits: Limits
    ) -> Producer:
        timeout = limits.timeout_ms
        while True:
            try:
                return _started({**client, "transaction.timeout.ms": str(timeout)}, transactional_id)
            except InvalidTransactionTimeout:
                # The broker did not tell its limit, and it is lower than usual.
                if timeout < 1000:
                    raise
                timeout //= 2


def _started(settings: dict[str, str], transactional_id: str) -> Producer:
    producer = Producer({**settings, "transactional.id": transactional_id})
    try:
        producer.init_transactions()
    except BaseException:
        producer.close(0)
        raise
    return producer


def write_once(
    ledger: Ledger, job: Job, task: Task, target: Target, batches: Iterator[pa.RecordBatch]
) -> Prepared:
    """Write the rows of a task in a transaction of its own, and prepare it."""
    for batch in batches:
        if batch.num_rows:
            break
    else:
        return Prepared(job, 0, None)
    known = ledger.join(job, task.partition)
    if ledger.is_done(known, job):
        for _ in batches:
            pass
        return Prepared(job, 0, None)
    producer = ledger.producer(job, ledger.ids(job).of_task(known.generation, task.partition, task.attempt))
    try:
        producer.begin_transaction()
        sender = RowSender(producer, target, one_by_one=ledger.options.has_partitioner)
        sender.send(batch)
        for batch in batches:
            sender.send(batch)
        prepared = producer.prepare()
        return Prepared(job, sender.finish(), prepared)
    finally:
        # Aborts the transaction unless it is prepared.
        producer.close(30.0)


@functools.cache
def _ledgers() -> dict[tuple[tuple[str, str], ...], Ledger]:
    """Those of a worker process, the last used last; workers are forked before they have any."""
    return {}


class ExactlyOnceStreamWriter(DataSourceStreamArrowWriter):
    """A stream is known by its checkpoint: the id of the query there is its name."""

    def __init__(self, options: SinkOptions, target: Target) -> None:
        if options.exactly_once_name is not None or options.exactly_once_batch is not None:
            raise OptionError(
                "exactlyOnceName and exactlyOnceBatch are for batches; a stream is known by its checkpoint"
            )
        self.options = options
        self.target = target

    def ledger(self) -> Ledger:
        return ledger_of(self.options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Prepared:
        query, batch, run = _local(QUERY_ID), _local(BATCH_ID), _local(RUN_ID)
        if query is None or batch is None:
            raise RuntimeError(f"no {QUERY_ID} and {BATCH_ID} in the task: is this a streaming query?")
        job = Job(f"query-{query}", run or query, int(batch), in_steps=run is None)
        return write_once(self.ledger(), job, Task.here(), self.target, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        if (job := _job(messages)) is not None:
            self.ledger().commit(job, _transactions(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        if (job := _job(messages)) is not None:
            self.ledger().abort(job, _transactions(messages))


class ExactlyOnceBatchWriter(DataSourceArrowWriter):
    """All rows or none. With a name and a batch number, a batch that was written is not written again."""

    def __init__(self, options: SinkOptions, target: Target) -> None:
        if (options.exactly_once_name is None) != (options.exactly_once_batch is None):
            raise OptionError(
                "exactlyOnceName and exactlyOnceBatch go together: which write it is, and which batch of it"
            )
        self.options = options
        self.target = target
        self.run = str(uuid.uuid4())

    def ledger(self) -> Ledger:
        return ledger_of(self.options)

    def job(self, run: str | None, query: str | None = None) -> Job:
        name, batch = self.options.exactly_once_name, self.options.exactly_once_batch
        if name is None or batch is None:
            return Job(f"{ONE_WRITE}{self.run}", self.run, 0, in_steps=True)
        return Job(f"{NAMED}{name}", run or self.run, batch, in_steps=True, query=query or "")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Prepared:
        # Inside of a streaming query its run is that of the write, so that transactional ids are few.
        query = _local(QUERY_ID)
        run = _local(RUN_ID) if query is not None else None
        return write_once(self.ledger(), self.job(run, query), Task.here(), self.target, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        if (job := _job(messages)) is not None:
            self.ledger().commit(job, _transactions(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        job = _job(messages) or self.job(None)
        self.ledger().abort(job, _transactions(messages))


def ledger_of(options: SinkOptions) -> Ledger:
    """The ledger of this worker for a set of options; the batches of a write share one.

    The one that was longest without use is closed where there are too many: a session may write under
    thousands of names, and each ledger has a thread and connections.
    """
    key = tuple(sorted(item for item in options.given.items() if item[0] != BATCH_OPTION))
    ledgers = _ledgers()
    found = ledgers.pop(key, None) or Ledger(options)
    ledgers[key] = found
    if len(ledgers) > MOST_LEDGERS:
        ledgers.pop(next(iter(ledgers))).close()
    return found


def _local(name: str) -> str | None:
    context = TaskContext.get()
    return None if context is None else context.getLocalProperty(name)


def _job(messages: list[WriterCommitMessage | None]) -> Job | None:
    return next((message.job for message in messages if isinstance(message, Prepared)), None)


def _transactions(messages: list[WriterCommitMessage | None]) -> list[PreparedTransaction]:
    return [
        message.transaction
        for message in messages
        if isinstance(message, Prepared) and message.transaction is not None
    ]
