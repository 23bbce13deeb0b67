"""The exactly-once sink: each task writes in a transaction, and the driver decides on all of them at once.

A task prepares its transaction and passes it to the driver. To commit, the driver first writes the decision,
which is the list of the batch's transactions, and then commits them. After a driver died, the next one
commits the decided transactions and aborts the others. A decided batch is not written again.
"""

from __future__ import annotations

import functools
import hashlib
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from tidelog.clients.producer.transaction_values import PreparedTxnState
from tidelog.spark.contact import first_contact
from tidelog.spark.ledger import NAMED, ONE_WRITE, Job, Ledger
from tidelog.spark.options import OptionError, SinkOptions
from tidelog.spark.sending import RowSender, Target

if TYPE_CHECKING:
    import pyarrow as pa

QUERY_ID, BATCH_ID, RUN_ID = "sql.streaming.queryId", "streaming.sql.batchId", "spark.jobGroup.id"
BATCH_OPTION = "exactlyoncebatch"
ATTEMPTS_APART = 4
MOST_LEDGERS = 16


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
        # A retried stage counts its attempts from 0 again: the id of the attempt tells them apart.
        attempt = f"{context.attemptNumber()}.{context.taskAttemptId() % ATTEMPTS_APART}"
        return cls(context.partitionId(), attempt)


@dataclass
class Prepared(WriterCommitMessage):
    """The message of a task to the driver. It has no transaction if the task had no rows."""

    job: Job
    rows: int
    transaction: PreparedTxnState | None


def write_once(
    ledger: Ledger, job: Job, task: Task, target: Target, batches: Iterator[pa.RecordBatch]
) -> Prepared:
    """Write the rows of a task in its own transaction, and prepare the transaction."""
    for batch in batches:
        if batch.num_rows:
            break
    else:
        return Prepared(job, 0, None)
    first_contact(ledger.options.client, ledger.options.bootstrap_timeout_ms)
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
        prepared = producer.prepare_transaction()
        return Prepared(job, sender.finish(), prepared)
    finally:
        # Aborts the transaction unless it is prepared.
        producer.close(30.0)


@functools.cache
def _ledgers() -> dict[tuple[tuple[str, str], ...], Ledger]:
    """The ledgers of this worker process, the last used last. A forked worker starts without any."""
    return {}


class ExactlyOnceStreamWriter(DataSourceStreamArrowWriter):
    """The writer of a stream. The id of the query in the checkpoint identifies the stream."""

    def __init__(self, options: SinkOptions, target: Target) -> None:
        if options.exactly_once_name is not None or options.exactly_once_batch is not None:
            raise OptionError(
                "exactlyOnceName and exactlyOnceBatch are for batches; the checkpoint identifies a stream"
            )
        self.options = options
        self.target = target
        # The options include the query's checkpoint and name, which are unique within a driver.
        self.owner = driver_mark(*(f"{name}={value}" for name, value in sorted(options.given.items())))

    def ledger(self) -> Ledger:
        return ledger_of(self.options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Prepared:
        query, batch, run = _local(QUERY_ID), _local(BATCH_ID), _local(RUN_ID)
        if query is None or batch is None:
            raise RuntimeError(f"no {QUERY_ID} and {BATCH_ID} in the task: is this a streaming query?")
        job = Job(f"query-{query}", run or query, int(batch), in_steps=run is None, owner=self.owner)
        return write_once(self.ledger(), job, Task.here(), self.target, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        if (job := _job(messages)) is not None:
            self.ledger().commit(job, _transactions(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Abort the batch. If no task reported its job, the topic of decisions has it from the first task."""
        job = _job(messages) or self.ledger().owned(self.owner, batchId)
        if job is not None:
            self.ledger().abort(job, _transactions(messages))


class ExactlyOnceBatchWriter(DataSourceArrowWriter):
    """Writes all rows or none. With a name and a batch number, it does not write the same batch twice."""

    def __init__(self, options: SinkOptions, target: Target) -> None:
        if (options.exactly_once_name is None) != (options.exactly_once_batch is None):
            raise OptionError(
                "exactlyOnceName and exactlyOnceBatch go together: the name of a write and its batch number"
            )
        self.options = options
        self.target = target
        self.run = str(uuid.uuid4())
        self.owner = driver_mark()

    def ledger(self) -> Ledger:
        return ledger_of(self.options)

    def job(self, run: str | None, query: str | None = None) -> Job:
        name, batch = self.options.exactly_once_name, self.options.exactly_once_batch
        if name is None or batch is None:
            return Job(f"{ONE_WRITE}{self.run}", self.run, 0, in_steps=True)
        return Job(
            f"{NAMED}{name}", run or self.run, batch, in_steps=True, query=query or "", owner=self.owner
        )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Prepared:
        # Inside a streaming query the write uses the run of the query: that keeps transactional ids few.
        query = _local(QUERY_ID)
        run = _local(RUN_ID) if query is not None else None
        return write_once(self.ledger(), self.job(run, query), Task.here(), self.target, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        if (job := _job(messages)) is not None:
            self.ledger().commit(job, _transactions(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        job = _job(messages) or self.job(None)
        self.ledger().abort(job, _transactions(messages))


def driver_mark(*facts: str) -> str:
    """A mark shared by the writers of one driver with the same facts; empty if the driver is unknown.

    It is made from the folders of the block manager, which Spark passes to its Python processes. No two
    applications share them.
    """
    folders = os.environ.get("SPARK_LOCAL_DIRS", "")
    return hashlib.sha256("\n".join((folders, *facts)).encode()).hexdigest()[:16] if folders else ""


def ledger_of(options: SinkOptions) -> Ledger:
    """The ledger of this worker for a set of options. The batches of a write share it.

    A session may write under thousands of names, and each ledger has a thread and connections. So if there
    are too many ledgers, the least recently used one is closed.
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


def _transactions(messages: list[WriterCommitMessage | None]) -> list[PreparedTxnState]:
    return [
        message.transaction
        for message in messages
        if isinstance(message, Prepared) and message.transaction is not None
    ]
