"""The endpoints of reassignments: a plan with a preview, start, progress and cancel."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from tidelog.clients.admin.cluster import PartitionReassignment
from tidelog.console.api import Call, Done, Endpoint
from tidelog.console.clusters import Cluster
from tidelog.console.errors import ApiError, not_found
from tidelog.console.reassignment_plan import Move, PlanRefused, plan
from tidelog.console.snapshot import ClusterSnapshot
from tidelog.partitions import PartitionKey

Topics = Annotated[list[str], Meta(max_length=10_000)]
Brokers = Annotated[list[Annotated[int, Meta(ge=0, le=2**31 - 1)]], Meta(max_length=1000)]
Factor = Annotated[int, Meta(ge=1, le=1000)]


class PlanQuery(Struct):
    """Topics and brokers of a plan; without topics all, without brokers all."""

    topics: Topics = []
    brokers: Brokers = []
    replication_factor: Factor | None = None


class PlanBody(Struct):
    """The wish of a plan as a form sends it: names and ids separated by commas; empty means all."""

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
    """A partition that moves now. `copied` is the share of added replicas that are in sync, 0 to 1."""

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
    return Done(f"{len(wanted)} partitions move.")


def parse_wish(body: PlanBody) -> tuple[list[str], list[int]]:
    """Topics and brokers of a form. Raises ApiError for a broker that is no number."""
    topics = [name.strip() for name in body.topics.split(",") if name.strip()]
    ids = [text.strip() for text in body.brokers.split(",") if text.strip()]
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
    snapshot = await cluster.snapshot(fresh=bool(found))
    return [_reassignment(snapshot, key, moving) for key, moving in sorted(found.items())]


def _reassignment(
    snapshot: ClusterSnapshot, key: PartitionKey, moving: PartitionReassignment
) -> ReassignmentItem:
    topic = snapshot.topics.get(key[0])
    partitions = [] if topic is None else topic.partitions
    isr = partitions[key[1]].isr if key[1] < len(partitions) else ()
    adding = moving.adding_replicas
    copied = sum(broker in isr for broker in adding) / len(adding) if adding else 1.0
    return ReassignmentItem(
        key[0], key[1], moving.replicas, adding, moving.removing_replicas, round(copied, 3)
    )


async def cancel_reassignment(call: Call[None, CancelBody]) -> Done:
    """Cancel the move of a partition: its old replicas stay."""
    await call.cluster.admin.alter_partition_reassignments({(call.body.topic, call.body.partition): None})
    return Done("The move is cancelled.")


ENDPOINTS = (
    Endpoint("GET", "/reassignment-plan", plan_reassignment, query=PlanQuery, answer=PlanAnswer),
    Endpoint("GET", "/reassignments", list_reassignments, answer=ReassignmentList),
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
