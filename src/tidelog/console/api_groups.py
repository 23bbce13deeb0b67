"""The endpoints of groups: the list with lags, one group, its history, reset and deletion."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from tidelog.clients.admin.groups import ConsumerGroupDescription
from tidelog.console.api import Call, ConfirmBody, Done, Endpoint
from tidelog.console.clusters import Cluster
from tidelog.console.errors import ApiError, check_confirmed, not_found
from tidelog.console.group_lag import GroupLags, LagSample, end_offset, lag_of
from tidelog.console.group_reset import ResetAnswer, ResetBody, plan_rows, reset_target
from tidelog.console.snapshot import ClusterSnapshot, GroupSnapshot
from tidelog.errors import GroupIdNotFound, InconsistentGroupProtocol, KafkaError
from tidelog.partitions import PartitionKey

PageNumber = Annotated[int, Meta(ge=1, le=1_000_000)]
PageSize = Annotated[int, Meta(ge=1, le=1000)]
SortKey = Literal["name", "state", "members", "topics", "lag", "time", "trend"]


class GroupsQuery(Struct):
    """Which groups, in which order: `search` is a part of the id or of a topic's name."""

    search: Annotated[str, Meta(max_length=500)] = ""
    state: Annotated[str, Meta(max_length=100)] = ""
    sort: SortKey = "name"
    descending: bool = False
    page: PageNumber = 1
    size: PageSize = 100


class GroupItem(Struct):
    """A group with its lag. `seconds` is at least the lag in time if `at_least`."""

    group: str
    protocol: str
    state: str
    members: int | None
    coordinator: int | None
    topics: list[str]
    lag: int | None
    seconds: float | None
    at_least: bool
    trend: str | None
    per_second: float | None
    catch_up_seconds: float | None


class StateCount(Struct):
    state: str
    groups: int


class GroupList(Struct):
    """One page of the groups; `total` counts the groups of all pages, `states` the groups of each state."""

    total: int
    page: int
    pages: int
    states: list[StateCount]
    groups: list[GroupItem]


async def list_groups(call: Call[GroupsQuery, None]) -> GroupList:
    """The groups with their lag in records and in time, filtered and sorted."""
    return await group_list(call.cluster, call.query)


async def group_list(cluster: Cluster, query: GroupsQuery) -> GroupList:
    """One page of the groups that a query selects."""
    snapshot = await cluster.snapshot()
    lags = cluster.group_lags
    groups = list(snapshot.groups.values())
    states: dict[str, int] = {}
    for group in groups:
        states[group.state] = states.get(group.state, 0) + 1
    words = query.search.lower().split()
    found = [
        group
        for group in groups
        if (not query.state or group.state == query.state)
        and (not words or all(_has(group, word) for word in words))
    ]
    found.sort(key=lambda group: group.group_id)
    if query.sort != "name":
        found.sort(key=lambda group: _sort_value(lags, group, query.sort), reverse=query.descending)
    elif query.descending:
        found.reverse()
    pages = max(-(-len(found) // query.size), 1)
    page = min(query.page, pages)
    shown = found[(page - 1) * query.size : page * query.size]
    counted = [StateCount(state, count) for state, count in sorted(states.items())]
    return GroupList(len(found), page, pages, counted, [group_item(lags, group) for group in shown])


def _has(group: GroupSnapshot, word: str) -> bool:
    return word in group.group_id.lower() or any(word in topic.lower() for topic in group.lags)


def _sort_value(lags: GroupLags, group: GroupSnapshot, key: SortKey) -> tuple[float, str]:
    value: float | None = None
    text = ""
    if key == "state":
        text = group.state
    elif key == "members":
        value = group.members
    elif key == "topics":
        value = len(group.lags)
    elif key == "lag":
        value = lag_of(group)
    elif key == "time":
        value = lags.seconds(group)[0]
    else:
        return lags.reading(group).per_second or 0.0, ""
    return (-1.0 if value is None else value), text


def group_item(lags: GroupLags, group: GroupSnapshot) -> GroupItem:
    """A group of the snapshot as the API shows it."""
    reading = lags.reading(group)
    return GroupItem(
        group=group.group_id,
        protocol=group.protocol,
        state=group.state,
        members=group.members,
        coordinator=group.coordinator,
        topics=sorted(group.lags),
        lag=reading.lag,
        seconds=reading.seconds,
        at_least=reading.at_least,
        trend=reading.trend,
        per_second=reading.per_second,
        catch_up_seconds=reading.catch_up_seconds,
    )


class MemberItem(Struct):
    """A member of a group. It reads `partitions`, each a topic and a number."""

    member: str
    instance: str | None
    client: str
    host: str
    epoch: int | None
    partitions: list[tuple[str, int]]


class GroupPartition(Struct):
    """A partition that the group has an offset in or reads. Without an offset `committed` is None."""

    topic: str
    partition: int
    committed: int | None
    end: int | None
    lag: int | None
    seconds: float | None
    at_least: bool
    member: str | None


class GroupAnswer(Struct):
    """A group, its members and its partitions. `note` says what could not be read."""

    group: GroupItem
    assignor: str
    epoch: int | None
    members: list[MemberItem]
    partitions: list[GroupPartition]
    note: str


async def get_group(call: Call[None, None]) -> GroupAnswer:
    """A group with its members, its assignment and the lag of each partition."""
    return await group_answer(call.cluster, call.path["group"])


async def group_answer(cluster: Cluster, group_id: str) -> GroupAnswer:
    """A group by its id. Raises ApiError 404 if a fresh snapshot does not have it either."""
    snapshot, group = await find_group(cluster, group_id)
    described, note = await _described(cluster, group_id)
    lags = cluster.group_lags
    item = group_item(lags, group)
    members = [] if described is None else described.members
    if described is not None:
        item.state, item.members, item.coordinator = described.state, len(members), described.coordinator.id
    reader = {key: member.member_id for member in members for key in member.assignment}
    keys = sorted({*group.offsets, *reader})
    return GroupAnswer(
        group=item,
        assignor="" if described is None else described.partition_assignor,
        epoch=None if described is None else described.group_epoch,
        members=[
            MemberItem(
                member.member_id,
                member.group_instance_id,
                member.client_id,
                member.host,
                member.member_epoch,
                sorted(member.assignment),
            )
            for member in members
        ],
        partitions=[_partition(snapshot, lags, group, key, reader.get(key)) for key in keys],
        note=note,
    )


async def find_group(cluster: Cluster, group_id: str) -> tuple[ClusterSnapshot, GroupSnapshot]:
    """The group, from a fresh snapshot if need be. Raises ApiError 404."""
    for fresh in (False, True):
        snapshot = await cluster.snapshot(fresh=fresh)
        group = snapshot.groups.get(group_id)
        if group is not None:
            return snapshot, group
    raise not_found(f"The group {group_id}")


async def _described(cluster: Cluster, group_id: str) -> tuple[ConsumerGroupDescription | None, str]:
    """The group with its members, or the reason why there is no description."""
    try:
        found = await cluster.admin.describe_consumer_groups([group_id])
    except InconsistentGroupProtocol:
        return None, "This is no group of consumers: its members and assignment are not shown."
    except GroupIdNotFound:
        return None, ""
    except KafkaError as error:
        return None, f"The members could not be read: {error}"
    return found[group_id], ""


def _partition(
    snapshot: ClusterSnapshot, lags: GroupLags, group: GroupSnapshot, key: PartitionKey, member: str | None
) -> GroupPartition:
    committed, end = group.offsets.get(key), end_offset(snapshot, key)
    seconds, at_least = (None, False) if committed is None else lags.partition_seconds(key, committed)
    lag = None if committed is None or end is None else max(end - committed, 0)
    return GroupPartition(key[0], key[1], committed, end, lag, seconds, at_least, member)


class HistorySample(Struct):
    """The lag at a time, in seconds since 1970."""

    time: float
    lag: int | None
    seconds: float | None


class GroupHistory(Struct):
    """The lag over about the last hour, oldest sample first."""

    samples: list[HistorySample]


async def get_group_history(call: Call[None, None]) -> GroupHistory:
    """The lag of a group over about the last hour."""
    await find_group(call.cluster, call.path["group"])
    history = call.cluster.group_lags.history(call.path["group"])
    return GroupHistory([history_sample(sample) for sample in history])


def history_sample(sample: LagSample) -> HistorySample:
    return HistorySample(sample.time, sample.lag, sample.seconds)


async def reset_group(call: Call[None, ResetBody]) -> ResetAnswer:
    """Plan new offsets of a group, and commit them unless `dry_run`.

    Offsets of a group with members cannot be reset. A plan of a dry run can be sent back as `plan`.
    """
    group_id, body = call.path["group"], call.body
    target, topics = reset_target(body, group_id)
    source = f"group:{body.from_group}"
    if body.target == "group" and not call.access.may(
        call.principal, "group.view", source, call.cluster.name
    ):
        raise ApiError(403, "FORBIDDEN", f"You may not see group {body.from_group}.")
    answer = await plan_rows(call.cluster, group_id, target, topics)
    answer.dry_run = body.dry_run
    if body.dry_run:
        return answer
    if answer.active:
        raise ApiError(
            409,
            "GROUP_ACTIVE",
            f"The group is {answer.state}: stop its consumers first, then reset its offsets.",
        )
    offsets = {(row.topic, row.partition): row.after for row in answer.rows}
    if not offsets:
        raise ApiError(400, "NOTHING_TO_RESET", "The plan has no partition: choose topics of the group.")
    await call.cluster.admin.alter_consumer_group_offsets(group_id, offsets)
    return answer


async def delete_group(call: Call[None, ConfirmBody]) -> Done:
    """Delete a group without members, with its offsets. `confirm` has to be the id of the group."""
    group_id = call.path["group"]
    check_confirmed(call.body.confirm, group_id, "id of the group")
    await call.cluster.admin.delete_consumer_groups([group_id])
    return Done(f"The group {group_id} is deleted.")


class OffsetsBody(Struct):
    """A topic whose offsets are to be deleted from a group."""

    topic: Annotated[str, Meta(min_length=1, max_length=300)]


async def delete_group_offsets(call: Call[None, OffsetsBody]) -> Done:
    """Delete the offsets of a group in a topic that its members do not read."""
    _, group = await find_group(call.cluster, call.path["group"])
    keys = [key for key in group.offsets if key[0] == call.body.topic]
    if not keys:
        raise not_found(f"An offset of the group in the topic {call.body.topic}")
    await call.cluster.admin.delete_consumer_group_offsets(group.group_id, keys)
    return Done(f"The offsets of {group.group_id} in {call.body.topic} are deleted.")


# A group id may have slashes: the paths with more segments come first.
ENDPOINTS = (
    Endpoint("GET", "/groups", list_groups, query=GroupsQuery, answer=GroupList, action="group.view"),
    Endpoint(
        "GET", "/groups/{group:path}/history", get_group_history, answer=GroupHistory, action="group.view"
    ),
    Endpoint(
        "POST",
        "/groups/{group:path}/reset",
        reset_group,
        body=ResetBody,
        answer=ResetAnswer,
        action="group.reset",
        changes=True,
    ),
    Endpoint(
        "DELETE",
        "/groups/{group:path}/offsets",
        delete_group_offsets,
        body=OffsetsBody,
        action="group.reset",
        changes=True,
    ),
    Endpoint("GET", "/groups/{group:path}", get_group, answer=GroupAnswer, action="group.view"),
    Endpoint(
        "DELETE", "/groups/{group:path}", delete_group, body=ConfirmBody, action="group.delete", changes=True
    ),
)
