"""The server-side assignors of consumer groups (KIP-848): `uniform` and `range`.

Pure functions from the subscriptions and present assignments of the members to the new target assignment.
Every partition of a subscribed topic has exactly one owner. - `uniform` gives all members the same number of
partitions, plus or minus one, and moves as few as possible. If
  subscriptions differ, no partition can be moved to a member that has at least two fewer.
- `range` gives each member a contiguous range of every topic, the same range for topics of the same size, and
  moves partitions whenever members come and go.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import NamedTuple

from tidelog.coordinator.group.consumer_events import Target


class MemberSpec(NamedTuple):
    """The input of an assignor for a member: its subscribed topics, and its present target assignment."""

    instance_id: str | None
    topics: frozenset[bytes]
    target: Target


Members = Mapping[str, MemberSpec]
Topics = Mapping[bytes, int]
"""The number of partitions of each topic, by topic id."""

Assignor = Callable[[Members, Topics], dict[str, Target]]
MutableTarget = dict[bytes, set[int]]


def uniform(members: Members, topics: Topics) -> dict[str, Target]:
    if not members:
        return {}
    subscriptions = {member.topics for member in members.values()}
    if len(subscriptions) == 1:
        return _uniform_homogeneous(members, topics, next(iter(subscriptions)))
    return _HeterogeneousAssignment(members, topics).assign()


def _uniform_homogeneous(members: Members, topics: Topics, subscribed: frozenset[bytes]) -> dict[str, Target]:
    total = sum(topics[topic_id] for topic_id in subscribed)
    quota, extra = divmod(total, len(members))
    assignment: dict[str, MutableTarget] = {}
    below_quota: list[tuple[str, int]] = []
    owned: defaultdict[bytes, set[int]] = defaultdict(set)
    remaining_members = len(members)
    for member_id, member in members.items():
        allowed = quota + (extra > 0)
        retained, count = _keep(member, topics, subscribed, owned, allowed)
        # A member that has one partition more keeps it, as long as the quota of such members allows.
        has_extra = extra > 0 and (count == allowed or remaining_members <= extra)
        missing = allowed - count - (extra > 0 and not has_extra)
        extra -= has_extra
        remaining_members -= 1
        assignment[member_id] = retained
        if missing:
            below_quota.append((member_id, missing))
    # Partitions without an owner go first: their new members need not wait for a revocation.
    previously_assigned = _assigned_partitions(members)
    unassigned = sorted(
        (
            (topic_id, partition)
            for topic_id in sorted(subscribed)
            for partition in range(topics[topic_id])
            if partition not in owned[topic_id]
        ),
        key=lambda entry: entry[1] in previously_assigned[entry[0]],
    )
    position = 0
    for member_id, missing in below_quota:
        for topic_id, partition in unassigned[position : position + missing]:
            assignment[member_id].setdefault(topic_id, set()).add(partition)
        position += missing
    return {member_id: _frozen(retained) for member_id, retained in assignment.items()}


def _assigned_partitions(members: Members) -> defaultdict[bytes, set[int]]:
    assigned: defaultdict[bytes, set[int]] = defaultdict(set)
    for member in members.values():
        for topic_id, partitions in member.target.items():
            assigned[topic_id] |= partitions
    return assigned


def _keep(
    member: MemberSpec,
    topics: Topics,
    subscribed: frozenset[bytes],
    owned: defaultdict[bytes, set[int]],
    allowed: int,
) -> tuple[MutableTarget, int]:
    """The partitions that a member keeps: at most `allowed` that exist and have no other owner."""
    retained: MutableTarget = {}
    count = 0
    for topic_id, partitions in member.target.items():
        if topic_id not in subscribed or topic_id not in topics:
            continue
        owned_by_others = owned[topic_id]
        size = topics[topic_id]
        staying = {
            partition for partition in partitions if partition < size and partition not in owned_by_others
        }
        if len(staying) > allowed - count:
            staying = set(sorted(staying)[: allowed - count])
        if staying:
            retained[topic_id] = staying
            owned_by_others |= staying
            count += len(staying)
    return retained, count


class _HeterogeneousAssignment:
    """Subscriptions differ: keep present owners, assign the rest, then balance."""

    def __init__(self, members: Members, topics: Topics) -> None:
        self._topics = topics
        self._assigned: dict[str, MutableTarget] = {}
        self._load: dict[str, int] = {}
        self._subscribers: defaultdict[bytes, list[str]] = defaultdict(list)
        owned: defaultdict[bytes, set[int]] = defaultdict(set)
        all_partitions = sum(topics.values())
        for member_id, member in members.items():
            self._assigned[member_id], self._load[member_id] = _keep(
                member, topics, member.topics, owned, all_partitions
            )
            for topic_id in member.topics:
                self._subscribers[topic_id].append(member_id)
        self._owned = owned

    def assign(self) -> dict[str, Target]:
        # Topics with few subscribers first: there is less choice for them.
        order = sorted(self._subscribers, key=lambda topic_id: (len(self._subscribers[topic_id]), topic_id))
        for topic_id in order:
            self._fill(topic_id)
        is_moved = True
        while is_moved:
            is_moved = False
            for topic_id in order:
                is_moved |= self._even_out(topic_id)
        return {member_id: _frozen(partitions) for member_id, partitions in self._assigned.items()}

    def _fill(self, topic_id: bytes) -> None:
        load, subscribers = self._load, self._subscribers[topic_id]
        for partition in range(self._topics[topic_id]):
            if partition not in self._owned[topic_id]:
                least = min(subscribers, key=load.__getitem__)
                self._assigned[least].setdefault(topic_id, set()).add(partition)
                load[least] += 1

    def _even_out(self, topic_id: bytes) -> bool:
        """Move partitions of a topic while a subscriber has at least two fewer than an owner.

        This ends, because each move reduces the sum of the squared loads.
        """
        load, subscribers = self._load, self._subscribers[topic_id]
        is_moved = False
        holders = [member_id for member_id in subscribers if self._assigned[member_id].get(topic_id)]
        while holders:
            most = max(holders, key=load.__getitem__)
            least = min(subscribers, key=load.__getitem__)
            if load[most] - load[least] < 2:
                break
            mine = self._assigned[most][topic_id]
            partition = max(mine)
            mine.discard(partition)
            if not mine:
                del self._assigned[most][topic_id]
                holders.remove(most)
            if topic_id not in self._assigned[least]:
                self._assigned[least][topic_id] = set()
                holders.append(least)
            self._assigned[least][topic_id].add(partition)
            load[most] -= 1
            load[least] += 1
            is_moved = True
        return is_moved


def range_(members: Members, topics: Topics) -> dict[str, Target]:
    order = sorted(members, key=lambda member_id: _range_key(member_id, members[member_id]))
    subscribers: defaultdict[bytes, list[str]] = defaultdict(list)
    for member_id in order:
        for topic_id in members[member_id].topics:
            subscribers[topic_id].append(member_id)
    targets: dict[str, dict[bytes, frozenset[int]]] = {member_id: {} for member_id in members}
    for topic_id, wanting in subscribers.items():
        quota, extra = divmod(topics[topic_id], len(wanting))
        start = 0
        for at, member_id in enumerate(wanting):
            end = start + quota + (at < extra)
            if start < end:
                targets[member_id][topic_id] = frozenset(range(start, end))
            start = end
    return dict(targets)


def _range_key(member_id: str, member: MemberSpec) -> tuple[bool, str]:
    """Static members first, by instance id: with a new member id they keep their range."""
    return member.instance_id is None, member.instance_id or member_id


def _frozen(held: MutableTarget) -> Target:
    return {topic_id: frozenset(partitions) for topic_id, partitions in held.items() if partitions}


ASSIGNORS: Mapping[str, Assignor] = {"uniform": uniform, "range": range_}
