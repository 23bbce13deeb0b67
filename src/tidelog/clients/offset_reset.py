"""Plans of new offsets for a consumer group, for the tool and the console.

A plan is a generator: it yields lookups, receives their offsets and returns a `ResetPlan`. So the blocking
and the asynchronous admin client share it, and tests need no broker.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from tidelog.errors import LeaderNotAvailable, UnknownTopicOrPartition
from tidelog.partitions import PartitionKey
from tidelog.protocol.offset_specs import EARLIEST, LATEST

if TYPE_CHECKING:
    from tidelog.clients.admin import Admin, TopicDescription
    from tidelog.clients.admin.client import AsyncAdmin

Offsets = dict[PartitionKey, int]

NO_OFFSET = -1  # the answer for a time after the last record
INACTIVE = ("Empty", "Dead")
"""The states in which offsets of a group can be reset."""


class NoCommittedOffset(ValueError):
    """A partition cannot be shifted: the group has no offset there."""


@dataclass(slots=True, frozen=True)
class Earliest:
    """To the first records of the logs."""


@dataclass(slots=True, frozen=True)
class Latest:
    """To the ends of the logs."""


@dataclass(slots=True, frozen=True)
class Current:
    """To the committed offsets, and to the end of the log where there is none."""


@dataclass(slots=True, frozen=True)
class ToTime:
    """To the first records of a time or later; to the end of the log where there is none."""

    timestamp_ms: int


@dataclass(slots=True, frozen=True)
class ToOffset:
    offset: int


@dataclass(slots=True, frozen=True)
class ShiftBy:
    """Forwards by a number of records, or backwards by a negative number."""

    by: int


@dataclass(slots=True, frozen=True)
class CopyGroup:
    """To the committed offsets of another group. Partitions without one stay out of the plan."""

    group_id: str


@dataclass(slots=True, frozen=True)
class ToOffsets:
    """To an offset for each partition."""

    offsets: Mapping[PartitionKey, int]


Target: TypeAlias = Earliest | Latest | Current | ToTime | ToOffset | ShiftBy | CopyGroup | ToOffsets


@dataclass(slots=True, frozen=True)
class CommittedOffsets:
    """Asks for all committed offsets of a group."""

    group_id: str


@dataclass(slots=True, frozen=True)
class LogOffsets:
    """Asks for the offsets of a time, of the first record or of the log end."""

    partitions: tuple[PartitionKey, ...]
    timestamp: int


Lookup: TypeAlias = CommittedOffsets | LogOffsets
Steps: TypeAlias = "Generator[Lookup, Offsets, ResetPlan]"
OffsetSteps: TypeAlias = Generator[Lookup, Offsets, Offsets]


@dataclass(slots=True)
class ResetPlan:
    """The new offsets of a group, and where they differ from the target."""

    offsets: Offsets = field(default_factory=dict)
    outside: Offsets = field(default_factory=dict)
    """Targets that are not in the log: the plan has the nearest offset in the log instead."""
    no_later_record: list[PartitionKey] = field(default_factory=list)
    """Partitions without a record of the time or later: the plan has the log end offset."""


def plan_reset(group_id: str, partitions: Collection[PartitionKey], target: Target) -> Steps:
    """Plan the reset of partitions. Raises NoCommittedOffset for a shift without a committed offset."""
    plan = ResetPlan()
    wanted = tuple(partitions)
    if isinstance(target, Earliest):
        plan.offsets = yield from _log_offsets(wanted, EARLIEST)
    elif isinstance(target, Latest):
        plan.offsets = yield from _log_offsets(wanted, LATEST)
    elif isinstance(target, Current):
        committed = yield CommittedOffsets(group_id)
        plan.offsets = {partition: committed[partition] for partition in wanted if partition in committed}
        rest = [partition for partition in wanted if partition not in committed]
        plan.offsets |= yield from _log_offsets(rest, LATEST)
    elif isinstance(target, ToTime):
        # In ListOffsets negative times have special meanings; time 0 finds the first record, too.
        plan.offsets = yield from _log_offsets(wanted, max(0, target.timestamp_ms))
        plan.no_later_record = [key for key, offset in plan.offsets.items() if offset == NO_OFFSET]
        plan.offsets |= yield from _log_offsets(plan.no_later_record, LATEST)
    elif isinstance(target, ToOffset):
        yield from _within_log(plan, dict.fromkeys(wanted, target.offset))
    elif isinstance(target, ShiftBy):
        committed = yield CommittedOffsets(group_id)
        for topic, index in wanted:
            if (topic, index) not in committed:
                raise NoCommittedOffset(
                    f"Cannot shift offset for partition {topic}-{index} since there is no current "
                    "committed offset"
                )
        yield from _within_log(plan, {partition: committed[partition] + target.by for partition in wanted})
    elif isinstance(target, CopyGroup):
        committed = yield CommittedOffsets(target.group_id)
        yield from _within_log(plan, {key: committed[key] for key in wanted if key in committed})
    else:
        yield from _within_log(plan, {key: target.offsets[key] for key in wanted if key in target.offsets})
    return plan


def _within_log(plan: ResetPlan, wanted: Offsets) -> Generator[Lookup, Offsets, None]:
    first = yield from _log_offsets(wanted, EARLIEST)
    end = yield from _log_offsets(wanted, LATEST)
    for partition, offset in wanted.items():
        plan.offsets[partition] = max(first[partition], min(end[partition], offset))
        if plan.offsets[partition] != offset:
            plan.outside[partition] = offset


def _log_offsets(partitions: Collection[PartitionKey], timestamp: int) -> OffsetSteps:
    if not partitions:
        return {}
    return (yield LogOffsets(tuple(partitions), timestamp))


def run_plan(admin: Admin, steps: Steps) -> ResetPlan:
    """The plan, with the lookups of a blocking admin client."""
    try:
        lookup = next(steps)
        while True:
            lookup = steps.send(_look_up(admin, lookup))
    except StopIteration as end:
        plan: ResetPlan = end.value
        return plan


def _look_up(admin: Admin, lookup: Lookup) -> Offsets:
    if isinstance(lookup, CommittedOffsets):
        committed = admin.list_consumer_group_offsets([lookup.group_id])[lookup.group_id]
        return {partition: found.offset for partition, found in committed.items()}
    found = admin.list_offsets(dict.fromkeys(lookup.partitions, lookup.timestamp))
    return {partition: info.offset for partition, info in found.items()}


async def run_plan_async(admin: AsyncAdmin, steps: Steps) -> ResetPlan:
    """The plan, with the lookups of an asynchronous admin client."""
    try:
        lookup = next(steps)
        while True:
            lookup = steps.send(await _look_up_async(admin, lookup))
    except StopIteration as end:
        plan: ResetPlan = end.value
        return plan


async def _look_up_async(admin: AsyncAdmin, lookup: Lookup) -> Offsets:
    if isinstance(lookup, CommittedOffsets):
        committed = (await admin.list_consumer_group_offsets([lookup.group_id]))[lookup.group_id]
        return {partition: found.offset for partition, found in committed.items()}
    found = await admin.list_offsets(dict.fromkeys(lookup.partitions, lookup.timestamp))
    return {partition: info.offset for partition, info in found.items()}


def check_partitions(described: Iterable[TopicDescription], wanted: Iterable[PartitionKey]) -> None:
    """Raise an error if a partition does not exist or has no leader."""
    there = {
        (topic.name, partition.partition): partition for topic in described for partition in topic.partitions
    }
    keys = list(wanted)
    missing = [f"{topic}-{index}" for topic, index in keys if (topic, index) not in there]
    if missing:
        raise UnknownTopicOrPartition(f'The partitions "{",".join(missing)}" do not exist')
    leaderless = [f"{topic}-{index}" for topic, index in keys if there[topic, index].leader is None]
    if leaderless:
        raise LeaderNotAvailable(f'The partitions "{",".join(leaderless)}" have no leader')


def split_topic(text: str) -> tuple[str, list[int] | None]:
    """A topic and its partitions from `orders:0,1`, or None for all from `orders`. Raises ValueError."""
    topic, colon, indexes = text.partition(":")
    if not colon:
        return text, None
    if not topic or not indexes or ":" in indexes:
        raise ValueError(f"Invalid topic arg '{text}', expected topic name and partitions")
    for index in indexes.split(","):
        if not re.fullmatch(r"\d{1,9}", index, re.ASCII):
            raise ValueError(f"Invalid partition '{index}' specified in topic arg '{text}'")
    return topic, [int(index) for index in indexes.split(",")]
