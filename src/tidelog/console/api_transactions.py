"""The endpoints of transactions: the open ones with the oldest first, hanging ones, and how to end them."""

from __future__ import annotations

import time
from typing import Annotated

from msgspec import Meta, Struct

from tidelog.clients.admin.transactions import AbortTransactionSpec
from tidelog.console.api import Call, Done, Endpoint
from tidelog.console.clusters import Cluster
from tidelog.console.errors import ApiError, check_confirmed, not_found

OPEN_STATES = ("Ongoing", "PrepareCommit", "PrepareAbort")
MOST_SEARCHED = 50_000

Name = Annotated[str, Meta(min_length=1, max_length=1000)]
Number = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class TransactionsQuery(Struct):
    """`all` also lists transactional ids without an open transaction; `search` is a part of the id."""

    all: bool = False
    search: Annotated[str, Meta(max_length=500)] = ""


class TransactionItem(Struct):
    """A transactional id. Start and duration are None without an open transaction."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int | None
    coordinator: int
    timeout_ms: int | None
    start_ms: int | None
    duration_ms: int | None
    partitions: list[tuple[str, int]]


class TransactionList(Struct):
    """The transactions, the oldest open one first."""

    total: int
    open: int
    transactions: list[TransactionItem]


async def list_transactions(call: Call[TransactionsQuery, None]) -> TransactionList:
    """The open transactions, the oldest first, or all transactional ids."""
    return await transaction_list(call.cluster, call.query)


async def transaction_list(cluster: Cluster, query: TransactionsQuery) -> TransactionList:
    listed = await cluster.admin.list_transactions()
    words = query.search.lower().split()
    wanted = {
        each.transactional_id: each
        for each in listed
        if (query.all or each.state in OPEN_STATES)
        and all(word in each.transactional_id.lower() for word in words)
    }
    described = await cluster.admin.describe_transactions(list(wanted), partial=True) if wanted else {}
    now = round(time.time() * 1000)
    items = []
    for transactional_id, listing in wanted.items():
        found = described.get(transactional_id) if transactional_id in described else None
        start = None if found is None else found.transaction_start_time_ms
        items.append(
            TransactionItem(
                transactional_id=transactional_id,
                state=listing.state if found is None else found.state,
                producer_id=listing.producer_id,
                producer_epoch=None if found is None else found.producer_epoch,
                coordinator=listing.coordinator,
                timeout_ms=None if found is None else found.transaction_timeout_ms,
                start_ms=start,
                duration_ms=None if start is None else max(now - start, 0),
                partitions=[] if found is None else sorted(found.partitions),
            )
        )
    items.sort(key=lambda item: (-(item.duration_ms or -1), item.transactional_id))
    is_open = sum(each.state in OPEN_STATES for each in listed)
    return TransactionList(len(listed), is_open, items)


class HangingQuery(Struct):
    """`topic` limits the search; transactions younger than `minutes` are left out."""

    topic: Annotated[str, Meta(max_length=300)] = ""
    minutes: Annotated[int, Meta(ge=0, le=1_000_000)] = 15


class HangingItem(Struct):
    """A transaction that is open in a partition, but unknown to its coordinator."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    start_offset: int
    last_timestamp: int


class HangingList(Struct):
    searched: int
    hanging: list[HangingItem]


async def list_hanging(call: Call[HangingQuery, None]) -> HangingList:
    """Search the partitions for transactions that their coordinators do not know."""
    return await hanging_list(call.cluster, call.query)


async def hanging_list(cluster: Cluster, query: HangingQuery) -> HangingList:
    """Hanging transactions: consumers with read_committed wait for their end for ever."""
    snapshot = await cluster.snapshot()
    if query.topic and query.topic not in snapshot.topics:
        raise not_found(f"The topic {query.topic}")
    topics = [snapshot.topics[query.topic]] if query.topic else snapshot.topics.values()
    keys = [(topic.name, each.index) for topic in topics for each in topic.partitions if each.leader >= 0]
    if len(keys) > MOST_SEARCHED:
        raise ApiError(400, "TOO_MANY", f"The cluster has {len(keys):,} partitions: name a topic.")
    before = round(time.time() * 1000) - query.minutes * 60_000
    found = await cluster.admin.find_hanging_transactions(
        keys, before_ms=before if query.minutes else None, partial=True
    )
    return HangingList(
        len(keys),
        [
            HangingItem(
                *each.partition,
                each.producer.producer_id,
                each.producer.producer_epoch,
                each.producer.current_transaction_start_offset or 0,
                each.producer.last_timestamp,
            )
            for each in found
        ],
    )


class AbortBody(Struct):
    """An open transaction in one partition, by its first offset."""

    topic: Name
    partition: Number
    start_offset: Annotated[int, Meta(ge=0, le=2**63 - 1)]


async def abort_hanging(call: Call[None, AbortBody]) -> Done:
    """Abort a transaction in one partition, without its coordinator."""
    body = call.body
    key = (body.topic, body.partition)
    found = await call.cluster.admin.describe_producers([key])
    for producer in found[key]:
        if producer.current_transaction_start_offset == body.start_offset:
            spec = AbortTransactionSpec(
                key, producer.producer_id, producer.producer_epoch, max(0, producer.coordinator_epoch)
            )
            await call.cluster.admin.abort_transaction(spec)
            return Done(f"The transaction at offset {body.start_offset} of {key[0]}-{key[1]} is aborted.")
    raise not_found(f"An open transaction at offset {body.start_offset} of {key[0]}-{key[1]}")


class TerminateBody(Struct):
    """The transactional id, and the same once more, as it was typed."""

    transactional_id: Name
    confirm: Annotated[str, Meta(max_length=1000)]


async def terminate_transaction(call: Call[None, TerminateBody]) -> Done:
    """Abort the open transaction of a transactional id, and fence its producer."""
    body = call.body
    check_confirmed(body.confirm, body.transactional_id, "transactional id")
    await call.cluster.admin.force_terminate_transaction(body.transactional_id)
    return Done(f"The transaction of {body.transactional_id} is aborted, and its producer is fenced.")


ENDPOINTS = (
    Endpoint(
        "GET",
        "/transactions",
        list_transactions,
        query=TransactionsQuery,
        answer=TransactionList,
        action="transaction.view",
    ),
    Endpoint(
        "GET",
        "/transactions/hanging",
        list_hanging,
        query=HangingQuery,
        answer=HangingList,
        action="transaction.view",
    ),
    Endpoint(
        "POST",
        "/transactions/abort",
        abort_hanging,
        body=AbortBody,
        action="transaction.abort",
        changes=True,
    ),
    Endpoint(
        "POST",
        "/transactions/terminate",
        terminate_transaction,
        body=TerminateBody,
        action="transaction.abort",
        changes=True,
    ),
)
