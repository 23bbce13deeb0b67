"""Resets of offsets on the console: the target of a request, and the review of a plan."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Literal

from msgspec import Meta, Struct

from tidelog.clients.offset_reset import (
    INACTIVE,
    CopyGroup,
    Current,
    Earliest,
    Latest,
    NoCommittedOffset,
    ShiftBy,
    Target,
    ToOffset,
    ToOffsets,
    ToTime,
    plan_reset,
    run_plan_async,
    split_topic,
)
from tidelog.clients.reset_plan_csv import exported, parse_plans
from tidelog.console.clusters import Cluster
from tidelog.console.errors import ApiError
from tidelog.console.formats import they_are
from tidelog.console.group_lag import end_offset
from tidelog.console.snapshot import ClusterSnapshot
from tidelog.errors import GroupIdNotFound, InconsistentGroupProtocol
from tidelog.partitions import PartitionKey

LARGEST_OFFSET = 2**63 - 1
MOST_PARTITIONS = 100_000

TargetName = Literal["earliest", "latest", "current", "time", "offset", "shift", "group", "plan"]
Offset = Annotated[int, Meta(ge=0, le=LARGEST_OFFSET)]
Shift = Annotated[int, Meta(ge=-LARGEST_OFFSET, le=LARGEST_OFFSET)]


class ResetBody(Struct):
    """Where the offsets of a group go to.

    `topics` has names with spaces between them, `orders:0,2` for some partitions; all topics that the group
    has offsets in if it is empty. `time` is a time in UTC (2026-11-18T01:30) or milliseconds since 1970,
    `plan` has the lines topic,partition,offset of a dry run.
    """

    target: TargetName
    topics: Annotated[str, Meta(max_length=100_000)] = ""
    time: Annotated[str, Meta(max_length=40)] = ""
    offset: Offset | None = None
    by: Shift | None = None
    from_group: Annotated[str, Meta(max_length=1000)] = ""
    plan: Annotated[str, Meta(max_length=3_000_000)] = ""
    dry_run: bool = True


class ResetRow(Struct):
    """A partition before and after. `note` says where the plan differs from the target."""

    topic: str
    partition: int
    before: int | None
    after: int
    end: int | None
    lag_before: int | None
    lag_after: int | None
    note: str


class ResetAnswer(Struct):
    """The review of a reset. `active` groups cannot be reset until their members have left."""

    group: str
    state: str
    active: bool
    dry_run: bool
    rows: list[ResetRow]
    plan: str

    @property
    def message(self) -> str:
        return f"{they_are(len(self.rows), 'offset')} set."


def reset_target(body: ResetBody, group_id: str) -> tuple[Target, str]:
    """The target and the topics of a request. Raises ApiError 400 that names the missing field."""
    if body.target == "plan":
        try:
            offsets = parse_plans(body.plan.replace("\r\n", "\n"), group_id).get(group_id, {})
        except ValueError as error:
            raise _bad(f"The plan cannot be read: {error}") from None
        return ToOffsets(offsets), " ".join(sorted({f"{topic}:{index}" for topic, index in offsets}))
    if body.target == "time":
        return ToTime(parse_time(body.time)), body.topics
    if body.target == "offset":
        if body.offset is None:
            raise _bad("The target needs an offset.")
        return ToOffset(body.offset), body.topics
    if body.target == "shift":
        if body.by is None:
            raise _bad("The target needs a number of records to shift by.")
        return ShiftBy(body.by), body.topics
    if body.target == "group":
        if not body.from_group or body.from_group == group_id:
            raise _bad("The target needs another group.")
        return CopyGroup(body.from_group), body.topics
    simple: dict[str, Target] = {"earliest": Earliest(), "latest": Latest(), "current": Current()}
    return simple[body.target], body.topics


def parse_time(text: str) -> int:
    """Milliseconds since 1970 of a time in ISO 8601, in UTC unless it has a zone, or of a number."""
    text = text.strip()
    if text.isascii() and text.isdigit():
        return int(text[:18])
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise _bad(f"The time {text!r} is not like 2026-11-18T01:30:00.") from None
    zoned = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return round(zoned.timestamp() * 1000)


async def plan_rows(cluster: Cluster, group_id: str, target: Target, topics: str) -> ResetAnswer:
    """The offsets of a group before and after. Nothing is changed.

    Raises ApiError for topics that do not exist, and for a target that the group cannot have.
    """
    admin = cluster.admin
    try:
        state = (await admin.describe_consumer_groups([group_id]))[group_id].state
    except GroupIdNotFound:
        state = "Dead"  # a reset makes the group
    except InconsistentGroupProtocol as error:
        raise ApiError(409, "NOT_A_CONSUMER_GROUP", str(error)) from None
    snapshot = await cluster.snapshot(fresh=True)
    committed = await admin.list_consumer_group_offsets([group_id])
    before = {key: found.offset for key, found in committed[group_id].items()}
    wanted = wanted_partitions(snapshot, topics)
    if not topics.split():
        wanted = sorted(before)
        if isinstance(target, CopyGroup):
            other = await admin.list_consumer_group_offsets([target.group_id])
            wanted = sorted({*other[target.group_id]})
        wanted = [key for key in wanted if _exists(snapshot, key)]
    try:
        plan = await run_plan_async(admin, plan_reset(group_id, wanted, target))
    except NoCommittedOffset as error:
        raise _bad(f"{error}.") from None
    rows = []
    for key, after in sorted(plan.offsets.items()):
        end = end_offset(snapshot, key)
        note = ""
        if key in plan.outside:
            note = f"{plan.outside[key]} is not in the log; the nearest offset is taken"
        elif key in plan.no_later_record:
            note = "no record of this time or later: the end of the log"
        rows.append(
            ResetRow(
                key[0],
                key[1],
                before.get(key),
                after,
                end,
                _lag(end, before.get(key)),
                _lag(end, after),
                note,
            )
        )
    text = exported({group_id: plan.offsets}, with_group=False)
    return ResetAnswer(group_id, state, state not in INACTIVE, True, rows, text)


def wanted_partitions(snapshot: ClusterSnapshot, topics: str) -> list[PartitionKey]:
    """The partitions that a text names. Raises ApiError 400 or 404."""
    found: dict[PartitionKey, None] = {}
    for word in topics.replace(", ", " ").split():
        try:
            topic, indexes = split_topic(word)
        except ValueError as error:
            raise _bad(f"{error}.") from None
        known = snapshot.topics.get(topic)
        if known is None:
            raise ApiError(404, "NOT_FOUND", f"The topic {topic} does not exist.")
        chosen = range(len(known.partitions)) if indexes is None else indexes
        for index in chosen:
            if not _exists(snapshot, (topic, index)):
                raise ApiError(404, "NOT_FOUND", f"The partition {topic}-{index} does not exist.")
            found[topic, index] = None
    if len(found) > MOST_PARTITIONS:
        raise _bad(f"The request names more than {MOST_PARTITIONS:,} partitions.")
    return sorted(found)


def _exists(snapshot: ClusterSnapshot, key: PartitionKey) -> bool:
    topic = snapshot.topics.get(key[0])
    return topic is not None and key[1] < len(topic.partitions)


def _lag(end: int | None, offset: int | None) -> int | None:
    return None if end is None or offset is None else max(end - offset, 0)


def _bad(message: str) -> ApiError:
    return ApiError(400, "BAD_REQUEST", message)
