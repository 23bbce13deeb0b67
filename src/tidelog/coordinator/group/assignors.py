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
Held = dict[bytes, set[int]]


def uniform(members: Members, topics: Topics) -> dict[str, Target]:
    if not members:
        return {}
    subscriptions = {member.topics for member in members.values()}
    if len(subscriptions) == 1:
        return _uniform_homogeneous(members, topics, next(iter(subscriptions)))
    return _Heterogeneous(members, topics).assign()


def _uniform_homogeneous(members: Members, topics: Topics, subscribed: frozenset[bytes]) -> dict[str, Target]:
    total = sum(topics[topic_id] for topic_id in subscribed)
    quota, extra = divmod(total, len(members))
    kept: dict[str, Held] = {}
    room: list[tuple[str, int]] = []
    taken: defaultdict[bytes, set[int]] = defaultdict(set)
    left = len(members)
    for member_id, member in members.items():
        allowed = quota + (extra > 0)
        mine, count = _keep(member, topics, subscribed, taken, allowed)
        # A member that has one partition more keeps it, as long as the quota of such members allows.
        has_extra = extra > 0 and (count == allowed or left <= extra)
        free = allowed - count - (extra > 0 and not has_extra)
        extra -= has_extra
        left -= 1
        kept[member_id] = mine
        if free:
            room.append((member_id, free))
    # Partitions without an owner go first: their new members need not wait for a revocation.
    held = _held(members)
    unassigned = sorted(
        (
            (topic_id, partition)
            for topic_id in sorted(subscribed)
            for partition in range(topics[topic_id])
            if partition not in taken[topic_id]
        ),
        key=lambda entry: entry[1] in held[entry[0]],
    )
    at = 0
    for member_id, free in room:
        for topic_id, partition in unassigned[at : at + free]:
            kept[member_id].setdefault(topic_id, set()).add(partition)
        at += free
    return {member_id: _frozen(mine) for member_id, mine in kept.items()}


def _held(members: Members) -> defaultdict[bytes, set[int]]:
    held: defaultdict[bytes, set[int]] = defaultdict(set)
    for member in members.values():
        for topic_id, partitions in member.target.items():
            held[topic_id] |= partitions
    return held


def _keep(
    member: MemberSpec,
    topics: Topics,
    subscribed: frozenset[bytes],
    taken: defaultdict[bytes, set[int]],
    allowed: int,
) -> tuple[Held, int]:
    """The partitions that a member keeps: at most `allowed` that exist and have no other owner."""
    mine: Held = {}
    count = 0
    for topic_id, partitions in member.target.items():
        if topic_id not in subscribed or topic_id not in topics:
            continue
        others = taken[topic_id]
        size = topics[topic_id]
        stays = {partition for partition in partitions if partition < size and partition not in others}
        if len(stays) > allowed - count:
            stays = set(sorted(stays)[: allowed - count])
        if stays:
            mine[topic_id] = stays
            others |= stays
            count += len(stays)
    return mine, count


class _Heterogeneous:
    """Subscriptions differ: keep present owners, assign the rest, then balance."""

    def __init__(self, members: Members, topics: Topics) -> None:
        self._topics = topics
        self._held: dict[str, Held] = {}
        self._load: dict[str, int] = {}
        self._subscribers: defaultdict[bytes, list[str]] = defaultdict(list)
        taken: defaultdict[bytes, set[int]] = defaultdict(set)
        everything = sum(topics.values())
        for member_id, member in members.items():
            self._held[member_id], self._load[member_id] = _keep(
                member, topics, member.topics, taken, everything
            )
            for topic_id in member.topics:
                self._subscribers[topic_id].append(member_id)
        self._taken = taken

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
        return {member_id: _frozen(mine) for member_id, mine in self._held.items()}

    def _fill(self, topic_id: bytes) -> None:
        load, subscribers = self._load, self._subscribers[topic_id]
        for partition in range(self._topics[topic_id]):
            if partition not in self._taken[topic_id]:
                least = min(subscribers, key=load.__getitem__)
                self._held[least].setdefault(topic_id, set()).add(partition)
                load[least] += 1

    def _even_out(self, topic_id: bytes) -> bool:
        """Move partitions of a topic while a subscriber has at least two fewer than an owner.

        This ends, because each move reduces the sum of the squared loads.
        """
        load, subscribers = self._load, self._subscribers[topic_id]
        is_moved = False
        holders = [member_id for member_id in subscribers if self._held[member_id].get(topic_id)]
        while holders:
            most = max(holders, key=load.__getitem__)
            least = min(subscribers, key=load.__getitem__)
            if load[most] - load[least] < 2:
                break
            mine = self._held[most][topic_id]
            partition = max(mine)
            mine.discard(partition)
            if not mine:
                del self._held[most][topic_id]
                holders.remove(most)
            if topic_id not in self._held[least]:
                self._held[least][topic_id] = set()
                holders.append(least)
            self._held[least][topic_id].add(partition)
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


def _frozen(held: Held) -> Target:
    return {topic_id: frozenset(partitions) for topic_id, partitions in held.items() if partitions}


ASSIGNORS: Mapping[str, Assignor] = {"uniform": uniform, "range": range_}
