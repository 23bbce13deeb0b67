"""The endpoints of reassignments: a plan with a preview, start, progress and cancel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

from msgspec import Meta, Struct

from tidelog.clients.admin.cluster import PartitionReassignment
from tidelog.console.api import Call, Done, Endpoint
from tidelog.console.clusters import Cluster
from tidelog.console.errors import ApiError, not_found
from tidelog.console.formats import plural
from tidelog.console.reassignment_plan import Move, PlanRefused, plan
from tidelog.console.snapshot import ClusterSnapshot, PartitionSnapshot
from tidelog.partitions import PartitionKey

Topics = Annotated[list[str], Meta(max_length=10_000)]
Brokers = Annotated[list[Annotated[int, Meta(ge=0, le=2**31 - 1)]], Meta(max_length=1000)]
Factor = Annotated[int, Meta(ge=1, le=1000)]

MOST_COPIED: Final = 0.99
"""The share of a replica that has all bytes, but is not in sync yet."""


class PlanQuery(Struct):
    """Topics and brokers of a plan; without topics all, without brokers all."""

    topics: Topics = []
    brokers: Brokers = []
    replication_factor: Factor | None = None


class PlanBody(Struct):
    """The wish of a plan as a form sends it: names and ids with commas or spaces between; empty means all."""

    topics: Annotated[str, Meta(max_length=1_000_000)] = ""
    brokers: Annotated[str, Meta(max_length=10_000)] = ""
    replication_factor: Factor | None = None


class MoveItem(Struct):
    """A partition that moves, and the bytes that each added replica copies; None if the size is unknown."""

    topic: str
    partition: int
    before: list[int]
    after: list[int]
    adding: list[int]
    removing: list[int]
    bytes: int | None


class PlanAnswer(Struct):
    """What moves; `bytes` is what all added replicas copy, as far as sizes are known."""

    moves: list[MoveItem]
    partitions: int
    bytes: int


class ReassignmentItem(Struct):
    """A partition that moves now. `copied` is the share of its bytes that the added replicas have, 0 to 1.

    A replica counts as a whole only when it is in sync.
    """

    topic: str
    partition: int
    replicas: list[int]
    adding: list[int]
    removing: list[int]
    copied: float


class ReassignmentList(Struct):
    reassignments: list[ReassignmentItem]


class CancelBody(Struct):
    topic: Annotated[str, Meta(max_length=249)]
    partition: Annotated[int, Meta(ge=0, le=2**31 - 1)]


def make_plan(
    snapshot: ClusterSnapshot, topics: list[str], brokers: list[int], replication_factor: int | None
) -> PlanAnswer:
    """The plan with its bytes. Raises ApiError for unknown names and impossible wishes."""
    for name in topics:
        if name not in snapshot.topics:
            raise not_found(f"The topic {name}")
    alive = {broker.broker_id: broker.rack for broker in snapshot.brokers}
    for broker in brokers:
        if broker not in alive:
            raise not_found(f"The broker {broker}")
    chosen = topics or [topic.name for topic in snapshot.topics.values()]
    partitions = {
        (name, partition.index): partition.replicas
        for name in chosen
        for partition in snapshot.topics[name].partitions
    }
    try:
        moves = plan(partitions, brokers or list(alive), alive, replication_factor)
    except PlanRefused as error:
        raise ApiError(400, "PLAN_REFUSED", str(error)) from None
    items = [_move_item(snapshot, move) for move in moves]
    copied = sum((item.bytes or 0) * len(item.adding) for item in items)
    return PlanAnswer(items, len(partitions), copied)


def _move_item(snapshot: ClusterSnapshot, move: Move) -> MoveItem:
    size = snapshot.topics[move.topic].partitions[move.partition].size
    return MoveItem(
        move.topic,
        move.partition,
        list(move.before),
        list(move.after),
        list(move.adding),
        list(move.removing),
        size,
    )


async def plan_reassignment(call: Call[PlanQuery, None]) -> PlanAnswer:
    """What a reassignment would move; it changes nothing."""
    query = call.query
    return make_plan(await call.cluster.snapshot(), query.topics, query.brokers, query.replication_factor)


async def start_reassignment(call: Call[None, PlanBody]) -> Done:
    """Start the moves of a plan."""
    topics, brokers = parse_wish(call.body)
    snapshot = await call.cluster.snapshot(fresh=True)
    found = make_plan(snapshot, topics, brokers, call.body.replication_factor)
    if not found.moves:
        return Done("Nothing has to move.")
    wanted = {(move.topic, move.partition): move.after for move in found.moves}
    await call.cluster.admin.alter_partition_reassignments(wanted)
    return Done(f"{plural(len(wanted), 'partition')} {'moves' if len(wanted) == 1 else 'move'}.")


def listed_words(text: str) -> list[str]:
    """The words of a field, with commas or spaces between them."""
    return text.replace(",", " ").split()


def parse_wish(body: PlanBody) -> tuple[list[str], list[int]]:
    """Topics and brokers of a form. Raises ApiError for a broker that is no number."""
    topics, ids = listed_words(body.topics), listed_words(body.brokers)
    for text in ids:
        if not (text.isascii() and text.isdigit()) or int(text) > 2**31 - 1:
            raise ApiError(400, "BAD_REQUEST", f"{text!r} is no id of a broker.")
    return topics, [int(text) for text in ids]


async def list_reassignments(call: Call[None, None]) -> ReassignmentList:
    """The partitions that move now, with their progress."""
    return ReassignmentList(await running(call.cluster))


async def running(cluster: Cluster) -> list[ReassignmentItem]:
    """The running reassignments of a cluster, by topic and partition."""
    found = await cluster.admin.list_partition_reassignments()
    if not found:
        return []
    snapshot = await cluster.snapshot(fresh=True)
    found = {key: moving for key, moving in found.items() if key[0] in snapshot.topics}
    adding = {broker for moving in found.values() for broker in moving.adding_replicas}
    log_dirs = await cluster.admin.describe_log_dirs(sorted(adding), partial=True)
    sizes = {
        (broker, key): replica.size
        for broker, folders in log_dirs.items()
        for folder in folders.values()
        for key, replica in folder.replicas.items()
        if key in found and not replica.is_future
    }
    return [reassignment_item(snapshot, key, moving, sizes) for key, moving in sorted(found.items())]


def reassignment_item(
    snapshot: ClusterSnapshot,
    key: PartitionKey,
    moving: PartitionReassignment,
    sizes: Mapping[tuple[int, PartitionKey], int],
) -> ReassignmentItem:
    """A running reassignment with its progress; `sizes` has the bytes of each replica that is added."""
    topic = snapshot.topics.get(key[0])
    partitions = [] if topic is None else topic.partitions
    partition = partitions[key[1]] if key[1] < len(partitions) else None
    adding = moving.adding_replicas
    shares = [_copied(partition, broker, sizes.get((broker, key), 0)) for broker in adding]
    copied = sum(shares) / len(shares) if shares else 1.0
    return ReassignmentItem(
        key[0], key[1], moving.replicas, adding, moving.removing_replicas, round(copied, 3)
    )


def _copied(partition: PartitionSnapshot | None, broker: int, size: int) -> float:
    """The share of a partition's bytes that an added replica of `size` bytes has."""
    if partition is None:
        return 0.0
    if broker in partition.isr:
        return 1.0
    return min(size / partition.size, MOST_COPIED) if partition.size else 0.0


async def cancel_reassignment(call: Call[None, CancelBody]) -> Done:
    """Cancel the move of a partition: its old replicas stay."""
    await call.cluster.admin.alter_partition_reassignments({(call.body.topic, call.body.partition): None})
    return Done(f"The move of {call.body.topic}-{call.body.partition} is cancelled.")


ENDPOINTS = (
    Endpoint(
        "GET",
        "/reassignment-plan",
        plan_reassignment,
        query=PlanQuery,
        answer=PlanAnswer,
        action="cluster.view",
    ),
    Endpoint("GET", "/reassignments", list_reassignments, answer=ReassignmentList, action="cluster.view"),
    Endpoint(
        "POST", "/reassignments", start_reassignment, body=PlanBody, action="cluster.reassign", changes=True
    ),
    Endpoint(
        "DELETE",
        "/reassignments",
        cancel_reassignment,
        body=CancelBody,
        action="cluster.reassign",
        changes=True,
    ),
)
