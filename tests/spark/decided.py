"""Tasks and drivers of the exactly-once sink without Spark, and what has to hold afterwards."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from tests.spark.hands import Hands
from tests.support.wait import eventually
from tidelog.clients.admin import OffsetSpec
from tidelog.clients.producer.transaction_values import PreparedTxnState
from tidelog.spark.exactly_once import Prepared, Task, write_once
from tidelog.spark.ledger import Job, Ledger
from tidelog.spark.options import sink_options
from tidelog.spark.sending import Target


class Driver:
    """One run of a query: a ledger for its tasks and one for itself, as in processes of their own."""

    def __init__(self, hands: Hands, topic: str, run: str, **options: str) -> None:
        given = {
            "kafka.bootstrap.servers": hands.bootstrap,
            "exactlyOnce": "true",
            "topic": topic,
            "transactionalIdPrefix": f"sink-of-{topic}",
            "decisionTopic": f"decisions-of-{topic}",
            **options,
        }
        self.options = sink_options(given)
        self.target = Target(topic, has_key=False, has_partition=False, has_headers=False)
        self.run = run
        self.executor = Ledger(self.options)
        self.ledger = Ledger(self.options)

    def close(self) -> None:
        self.executor.close()
        self.ledger.close()

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def job(self, batch: int, *, in_steps: bool = False, name: str = "query-q", query: str = "") -> Job:
        return Job(name, self.run, batch, in_steps, query)

    def write(self, job: Job, partition: int, values: Iterable[str], attempt: str = "0.0") -> Prepared:
        rows = pa.record_batch({"value": pa.array(values, pa.string())})
        return write_once(self.executor, job, Task(partition, attempt), self.target, iter([rows]))

    def write_all(self, job: Job, *parts: Iterable[str]) -> list[Prepared]:
        return [self.write(job, partition, values) for partition, values in enumerate(parts)]

    def commit(self, job: Job, prepared: list[Prepared]) -> None:
        self.ledger.commit(job, transactions(prepared))

    def abort(self, job: Job, prepared: list[Prepared]) -> None:
        self.ledger.abort(job, transactions(prepared))


def transactions(prepared: list[Prepared]) -> list[PreparedTxnState]:
    return [message.transaction for message in prepared if message.transaction is not None]


def values(hands: Hands, topic: str) -> list[str]:
    """What readers of committed rows see; a look at the end of a topic with nothing but markers is short."""
    return hands.values(topic, seconds=0.2)


def problems(hands: Hands, topic: str, rows: Iterable[str]) -> list[str]:
    """What is wrong with a topic that should have these rows once, with nothing left open behind them."""
    found: list[str] = []
    seen, wanted = values(hands, topic), sorted(rows)
    if missing := set(wanted) - set(seen):
        found.append(f"{len(missing)} rows missing, such as {sorted(missing)[:3]}")
    if len(seen) != len(set(seen)):
        found.append(f"{len(seen) - len(set(seen))} rows twice")
    if foreign := set(seen) - set(wanted):
        found.append(f"{len(foreign)} rows that nobody wrote, such as {sorted(foreign)[:3]}")
    found += open_transactions(hands, topic)
    return found


def open_transactions(hands: Hands, topic: str) -> list[str]:
    """Transactions that are open, and partitions that one of them holds up."""
    found = [
        f"transaction {listing.transactional_id} is {listing.state}"
        for listing in hands.admin.list_transactions()
        if listing.state in ("Ongoing", "PrepareCommit", "PrepareAbort")
    ]
    partitions = hands.admin.describe_topics([topic])[topic].partitions
    keys = dict.fromkeys(((topic, each.partition) for each in partitions), OffsetSpec.LATEST)
    ends = hands.admin.list_offsets(keys)
    stable = hands.admin.list_offsets(keys, isolation_level="read_committed")
    found += [
        f"{key[0]}-{key[1]} is stable up to {stable[key].offset} of {ends[key].offset}"
        for key in keys
        if stable[key].offset != ends[key].offset
    ]
    return found


def settled(hands: Hands, topic: str, timeout: float = 10.0) -> None:
    """Markers are written a moment after a transaction's end is answered."""
    eventually(lambda: not open_transactions(hands, topic), f"no transaction open in {topic}", timeout)
