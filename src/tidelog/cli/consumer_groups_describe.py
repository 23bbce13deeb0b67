"""Prints groups with their members, states and offsets for `consumer-groups`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from tidelog.partitions import PartitionKey
from tidelog.protocol.offset_specs import LATEST

if TYPE_CHECKING:
    from tidelog.clients.admin import (
        Admin,
        ConsumerGroupDescription,
        GroupListing,
        MemberDescription,
        OffsetAndMetadata,
    )

MISSING = "-"
UNKNOWN = "Unknown"
REBALANCING = ("PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling")


@dataclass(slots=True, frozen=True)
class Row:
    """The offset of a group in a partition, and the member that reads the partition."""

    partition: PartitionKey
    committed: OffsetAndMetadata | None
    end: int | None
    member: MemberDescription | None

    @property
    def lag(self) -> int | None:
        return None if self.committed is None or self.end is None else self.end - self.committed.offset

    def as_json(self) -> dict[str, object]:
        return {
            "topic": self.partition[0],
            "partition": self.partition[1],
            "offset": None if self.committed is None else self.committed.offset,
            "leader_epoch": None if self.committed is None else self.committed.leader_epoch,
            "end": self.end,
            "lag": self.lag,
            "member": None if self.member is None else self.member.member_id,
        }


def print_groups(groups: list[GroupListing], *, with_kind: bool, with_state: bool) -> None:
    width = max([15, *(len(group.group_id) for group in groups)]) + 10
    table = [("GROUP", "TYPE", "STATE")]
    for group in groups:
        table.append((group.group_id, group.type.capitalize() or UNKNOWN, group.state or UNKNOWN))
    for group_id, kind, state in table:
        columns = [f"{group_id:<{width}}"]
        if with_kind:
            columns.append(f"{kind:<20}")
        if with_state:
            columns.append(f"{state:<20}")
        click.echo(" ".join(columns))


def print_offsets(admin: Admin, described: list[ConsumerGroupDescription], verbose: bool) -> None:
    committed = admin.list_consumer_group_offsets([group.group_id for group in described], partial=True)
    for group in described:
        rows = rows_of(admin, group, committed[group.group_id])
        if worth_printing(group, len(rows)):
            print_rows(group.group_id, rows, verbose)


def groups_as_json(admin: Admin, described: list[ConsumerGroupDescription]) -> list[dict[str, object]]:
    """The groups with members, states and offsets, as objects for JSON."""
    committed = admin.list_consumer_group_offsets([group.group_id for group in described], partial=True)
    found: list[dict[str, object]] = []
    for group in described:
        offsets = committed[group.group_id]
        found.append(
            {
                "group": group.group_id,
                "state": group.state,
                "coordinator": group.coordinator.id,
                "assignor": group.partition_assignor,
                "epoch": group.group_epoch,
                "target_epoch": group.target_assignment_epoch,
                "members": [member_as_json(member) for member in group.members],
                "offsets": [row.as_json() for row in rows_of(admin, group, offsets)],
            }
        )
    return found


def member_as_json(member: MemberDescription) -> dict[str, object]:
    return {
        "id": member.member_id,
        "instance_id": member.group_instance_id,
        "client_id": member.client_id,
        "host": member.host,
        "epoch": member.member_epoch,
        "assignment": [[topic, index] for topic, index in sorted(member.assignment)],
        "target_assignment": None
        if member.target_assignment is None
        else [[topic, index] for topic, index in sorted(member.target_assignment)],
    }


def rows_of(
    admin: Admin, group: ConsumerGroupDescription, offsets: Mapping[PartitionKey, OffsetAndMetadata]
) -> list[Row]:
    """The partitions of each member, members with the most first, then partitions without a member."""
    readers = sorted(
        (member for member in group.members if member.assignment),
        key=lambda member: len(member.assignment),
        reverse=True,
    )
    assigned = {partition for member in readers for partition in member.assignment}
    ends = end_offsets(admin, assigned | offsets.keys())
    pairs: list[tuple[PartitionKey, MemberDescription | None]] = [
        (partition, member) for member in readers for partition in sorted(member.assignment)
    ]
    pairs += [(partition, None) for partition in sorted(offsets.keys() - assigned)]
    return [Row(partition, offsets.get(partition), ends[partition], member) for partition, member in pairs]


def end_offsets(admin: Admin, partitions: Collection[PartitionKey]) -> dict[PartitionKey, int | None]:
    """The end offset of each partition, None without a leader. Raises an error for an unknown topic."""
    leaderless = {
        (topic.name, partition.partition)
        for topic in admin.describe_topics({name for name, _ in partitions}).values()
        for partition in topic.partitions
        if partition.leader is None
    }
    ends: dict[PartitionKey, int | None] = dict.fromkeys(partitions)
    asked = [partition for partition in partitions if partition not in leaderless]
    for partition, end in admin.list_offsets(dict.fromkeys(asked, LATEST)).items():
        ends[partition] = end.offset
    return ends


def print_rows(group_id: str, rows: list[Row], verbose: bool) -> None:
    header = ["GROUP", "TOPIC", "PARTITION", "LEADER-EPOCH", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG"]
    table = [[*header, "CONSUMER-ID", "HOST", "CLIENT-ID"]]
    for row in rows:
        topic, index = row.partition
        committed, member = row.committed, row.member
        table.append(
            [
                group_id,
                topic,
                str(index),
                shown(committed.leader_epoch if committed else None),
                shown(committed.offset if committed else None),
                shown(row.end),
                shown(row.lag),
                *((MISSING,) * 3 if member is None else (member.member_id, member.host, member.client_id)),
            ]
        )
    widths = [widest(table, 0), widest(table, 1), 10, 15, 15, 15, 15, widest(table, 7), widest(table, 8), 0]
    if not verbose:
        del widths[3]
        for line in table:
            del line[3]
    print_table(table, widths)


def print_members(described: list[ConsumerGroupDescription], verbose: bool) -> None:
    for group in described:
        worth_printing(group, len(group.members))
        members = group.members
        with_instance = any(member.group_instance_id for member in members)
        migrating = {member.upgraded for member in members} >= {True, False}
        header = ["GROUP", "CONSUMER-ID", "GROUP-INSTANCE-ID", "HOST", "CLIENT-ID", "#PARTITIONS"]
        epochs = ["CURRENT-EPOCH", "CURRENT-ASSIGNMENT", "TARGET-EPOCH", "TARGET-ASSIGNMENT", "UPGRADED"]
        table = [header + epochs]
        for member in members:
            table.append(member_line(group, member))
        widths = [
            widest(table, 0),
            widest(table, 1),
            widest(table, 2, 17),
            widest(table, 3),
            widest(table, 4),
        ]
        widths += [15, 15, widest(table, 7, 20), 15, widest(table, 9, 20), 0]
        dropped = ([] if verbose and migrating else [10]) + ([] if verbose else [9, 8, 7, 6])
        for at in dropped + ([] if with_instance else [2]):
            del widths[at]
            for line in table:
                del line[at]
        # As in Kafka's tool, lines without --verbose end with a space.
        print_table(table, widths, end="" if verbose else " ")


def member_line(group: ConsumerGroupDescription, member: MemberDescription) -> list[str]:
    return [
        group.group_id,
        member.member_id,
        member.group_instance_id or "",
        member.host,
        member.client_id,
        str(len(member.assignment)),
        shown(member.member_epoch),
        assignment_text(member.assignment),
        shown(group.target_assignment_epoch),
        assignment_text(member.target_assignment or []),
        MISSING if member.upgraded is None else str(member.upgraded).lower(),
    ]


def assignment_text(partitions: Iterable[PartitionKey]) -> str:
    """`orders:0,1;payments:2`."""
    topics: dict[str, list[int]] = {}
    for topic, index in sorted(partitions):
        topics.setdefault(topic, []).append(index)
    parts = (f"{topic}:{','.join(map(str, indexes))}" for topic, indexes in topics.items())
    return ";".join(sorted(parts)) or MISSING


def print_states(described: list[ConsumerGroupDescription], verbose: bool) -> None:
    for group in described:
        if not worth_printing(group, 1):
            continue
        node = group.coordinator
        table = [
            ["GROUP", "COORDINATOR (ID)", "ASSIGNMENT-STRATEGY", "STATE"],
            [
                group.group_id,
                f"{node.host}:{node.port}  ({node.id})",
                group.partition_assignor or MISSING,
                group.state,
            ],
        ]
        widths = [widest(table, 0), widest(table, 1, 25), 20, 20]
        if verbose:
            table[0] += ["GROUP-EPOCH", "TARGET-ASSIGNMENT-EPOCH"]
            table[1] += [shown(group.group_epoch), shown(group.target_assignment_epoch)]
            widths += [15, 25]
        table[0].append("#MEMBERS")
        table[1].append(str(len(group.members)))
        print_table(table, [*widths, 0])


def worth_printing(group: ConsumerGroupDescription, rows: int) -> bool:
    """Print the note about the group's state; returns whether there is a table to print."""
    if group.state == "Empty":
        click.echo(f"\nConsumer group '{group.group_id}' has no active members.", err=True)
    elif group.state in REBALANCING:
        click.echo(f"\nWarning: Consumer group '{group.group_id}' is rebalancing.", err=True)
    elif group.state != "Stable":
        raise ValueError(f"Expected a valid consumer group state, but found '{group.state}'.")
    return rows > 0


def shown(value: int | None) -> str:
    return MISSING if value is None else str(value)


def widest(table: list[list[str]], column: int, least: int = 15) -> int:
    """The width of a column, at least `least`, which its header fits into."""
    return max([least, *(len(line[column]) for line in table[1:])])


def print_table(table: list[list[str]], widths: list[int], end: str = "") -> None:
    """Print an empty line, then the table; the last column may have the width 0, without padding."""
    click.echo()
    for line in table:
        click.echo(" ".join(f"{text:<{width}}" for text, width in zip(line, widths, strict=True)) + end)
