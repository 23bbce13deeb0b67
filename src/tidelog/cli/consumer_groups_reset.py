"""`consumer-groups --reset-offsets`: plans, prints and commits new offsets of groups without members.

A plan can be exported as CSV and read back: `topic,partition,offset` for one group, with the group in front
for several.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tidelog.cli.flags import WrongUsage
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
    run_plan,
    split_topic,
)
from tidelog.clients.offset_reset import check_partitions as check_described
from tidelog.clients.reset_plan_csv import NegativeOffset, exported, parse_plans
from tidelog.errors import GroupIdNotFound
from tidelog.partitions import PartitionKey

if TYPE_CHECKING:
    from tidelog.clients.admin import Admin
    from tidelog.clients.offsets import OffsetAndMetadata

Plan = dict[PartitionKey, int]

_DURATION = re.compile(
    r"(?P<sign>[-+]?)P(?:(?P<days>[-+]?\d+)D)?"
    r"(?P<time>T(?:(?P<hours>[-+]?\d+)H)?(?:(?P<minutes>[-+]?\d+)M)?"
    r"(?:(?P<seconds>[-+]?\d+)(?:[.,](?P<fraction>\d{0,9}))?S)?)?",
    re.ASCII | re.IGNORECASE,
)
_DATETIME = re.compile(r"(\d+)-(\d+)-(\d+)T(\d+):(\d+):(\d+)\.(\d+)(?:Z|([-+])(\d\d):?(\d\d)?)?", re.ASCII)


@dataclass(slots=True, frozen=True)
class ResetSpec:
    """The partitions to reset and one scenario for their new offsets."""

    topics: tuple[str, ...]
    all_topics: bool
    execute: bool
    export: bool
    one_group: bool
    to_offset: int | None = None
    shift_by: int | None = None
    to_datetime: str | None = None
    by_duration: str | None = None
    to_earliest: bool = False
    to_latest: bool = False
    to_current: bool = False
    from_file: str | None = None
    from_group: str | None = None

    def check(self) -> None:
        """Raise an error if the values are invalid, before a request is sent."""
        for topic in self.topics:
            split_topic(topic)


def reset_offsets(admin: Admin, group_ids: list[str], spec: ResetSpec) -> None:
    plans: dict[str, Plan] = {}
    described = admin.describe_consumer_groups(group_ids, partial=True)
    for group_id in sorted({*described, *described.errors}):
        error = described.errors.get(group_id)
        if error is not None and not isinstance(error, GroupIdNotFound):
            raise error
        if error is None and described[group_id].state not in INACTIVE:
            click.echo(
                f"\nError: Assignments can only be reset if the group '{group_id}' is inactive, "
                f"but the current state is {described[group_id].state}."
            )
            plans[group_id] = {}
            continue
        plans[group_id] = Planner(admin, spec, group_id).plan()
        if spec.execute and plans[group_id]:
            admin.alter_consumer_group_offsets(group_id, plans[group_id])
    if spec.export:
        click.echo(exported(plans, with_group=not spec.one_group))
    else:
        print_plans(plans)


class Planner:
    """Computes the new offsets of one group, and prints a warning where they differ from the wanted ones."""

    def __init__(self, admin: Admin, spec: ResetSpec, group_id: str) -> None:
        self._admin = admin
        self._spec = spec
        self._group_id = group_id

    def plan(self) -> Plan:
        spec = self._spec
        if spec.from_file is not None:
            return self._from_file(spec.from_file)
        partitions = self._partitions()
        check_partitions(self._admin, partitions)
        if spec.from_group is not None and not self._committed(spec.from_group):
            raise ValueError(f"group {spec.from_group!r} has no committed offsets")
        return self._planned(partitions, target_of(spec))

    def _partitions(self) -> list[PartitionKey]:
        if self._spec.all_topics:
            return sorted(self._committed(self._spec.from_group or self._group_id))
        found = [
            partition for topic in self._spec.topics for partition in topic_partitions(self._admin, topic)
        ]
        return list(dict.fromkeys(found))

    def _committed(self, group_id: str) -> Mapping[PartitionKey, OffsetAndMetadata]:
        return self._admin.list_consumer_group_offsets([group_id])[group_id]

    def _from_file(self, name: str) -> Plan:
        group_id = self._group_id
        try:
            plans = parse_plans(Path(name).read_text(), group_id if self._spec.one_group else None)
        except NegativeOffset as error:
            raise WrongUsage(str(error)) from None
        if group_id not in plans:
            click.echo(f"\nError: No reset plan for group {group_id} found")
            return {}
        check_partitions(self._admin, plans[group_id])
        return self._planned(list(plans[group_id]), ToOffsets(plans[group_id]))

    def _planned(self, partitions: list[PartitionKey], target: Target) -> Plan:
        try:
            plan = run_plan(self._admin, plan_reset(self._group_id, partitions, target))
        except NoCommittedOffset as error:
            raise WrongUsage(str(error)) from None
        for topic, index in plan.no_later_record:
            click.echo(
                f"\nWarn: Partition {index} from topic {topic} is empty. Falling back to latest known offset."
            )
        for (topic, index), offset in plan.outside.items():
            nearest = plan.offsets[topic, index]
            which = "higher than latest" if offset > nearest else "lower than earliest"
            click.echo(
                f"WARN New offset ({offset}) is {which} offset for topic partition {topic}-{index}. "
                f"Value will be set to {nearest}",
                err=True,
            )
        return plan.offsets


def target_of(spec: ResetSpec) -> Target:
    """The target that the flags name; the current offsets if they name none."""
    if spec.from_group is not None:
        return CopyGroup(spec.from_group)
    if spec.to_offset is not None:
        return ToOffset(spec.to_offset)
    if spec.to_earliest:
        return Earliest()
    if spec.to_latest:
        return Latest()
    if spec.shift_by is not None:
        return ShiftBy(spec.shift_by)
    if spec.to_datetime is not None:
        return ToTime(parse_datetime(spec.to_datetime))
    if spec.by_duration is not None:
        return ToTime(int(time.time() * 1000) - parse_duration(spec.by_duration))
    return Current()


def topic_partitions(admin: Admin, text: str) -> list[PartitionKey]:
    """The named partitions, or all partitions of a topic. Raises an error if the topic does not exist."""
    topic, indexes = split_topic(text)
    if indexes is None:
        description = admin.describe_topics([topic])[topic]
        indexes = [partition.partition for partition in description.partitions]
    return [(topic, index) for index in indexes]


def check_partitions(admin: Admin, partitions: Iterable[PartitionKey]) -> None:
    wanted = list(partitions)
    check_described(admin.describe_topics({topic for topic, _ in wanted}).values(), wanted)


def print_plans(plans: Mapping[str, Plan]) -> None:
    groups = max([15, *map(len, plans)])
    topics = max([15, *(len(topic) for plan in plans.values() for topic, _ in plan)])
    if plans:
        click.echo(f"\n{'GROUP':<{groups}} {'TOPIC':<{topics}} {'PARTITION':<10} NEW-OFFSET", nl=False)
    for group_id, plan in plans.items():
        for (topic, index), offset in sorted(plan.items()):
            click.echo(f"\n{group_id:<{groups}} {topic:<{topics}} {index:<10} {offset}", nl=False)
    click.echo()


def parse_duration(text: str) -> int:
    """Milliseconds of an ISO 8601 duration of days and smaller units, `P1DT2H3M4.5S`, with any signs."""
    match = _DURATION.fullmatch(text)
    parts = match.groupdict() if match else {}
    given = [parts.get(name) for name in ("days", "hours", "minutes", "seconds")]
    if not match or not any(given) or (parts["time"] or "").upper() == "T":
        raise ValueError(f"--by-duration is {text!r}; expected PnDTnHnMnS, such as P1DT12H")
    days, hours, minutes, seconds = (int(part or 0) for part in given)
    fraction = int((parts["fraction"] or "").ljust(9, "0")) // 1_000_000
    if (parts["seconds"] or "").startswith("-"):
        fraction = -fraction
    total = (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000 + fraction
    return -total if parts["sign"] == "-" else total


def parse_datetime(text: str) -> int:
    """Milliseconds since 1970 of `2025-01-31T23:59:59.000`, in UTC unless it has a zone."""
    expected = f"--to-datetime is {text!r}; expected YYYY-MM-DDThh:mm:ss.sss, optionally with Z or +hh:mm"
    match = _DATETIME.fullmatch(text)
    if not match:
        raise ValueError(expected)
    *numbers, sign, zone_hours, zone_minutes = match.groups()
    year, month, day, hour, minute, second, milliseconds = map(int, numbers)
    zone = UTC
    if sign:
        away = timedelta(hours=int(zone_hours), minutes=int(zone_minutes or 0))
        zone = timezone(-away if sign == "-" else away)
    if milliseconds > 999:
        raise ValueError(expected)
    try:
        moment = datetime(year, month, day, hour, minute, second, milliseconds * 1000, zone)
    except ValueError as error:
        raise ValueError(f"{expected} ({error})") from None
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
