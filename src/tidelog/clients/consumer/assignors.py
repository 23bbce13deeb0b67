"""The assignors of classic groups, which the leader of a group runs.

Input: the members with their topics and owned partitions. Output: the partitions of each member. Members
exchange subscriptions and assignments in Kafka's format, so a group may have members of any client.
- `range` gives each member one range of every topic; `roundrobin` gives out all partitions in turn.
- The sticky assignors give all members the same number, plus or minus one, and move as few as possible.
  `cooperative-sticky` leaves out, for one rebalance, partitions that their owners have to revoke first.
- `range` and the sticky assignors prefer members in the rack of a replica, if the numbers stay equal.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tidelog.clients.consumer.racks import Exchange, Racks, ReplicaRacks
from tidelog.config import ConfigError
from tidelog.partitions import TopicPartition
from tidelog.protocol.message import decode
from tidelog.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)
from tidelog.protocol.wire import ProtocolError

NO_GENERATION = -1
NEWEST = 3  # the version of both messages; readers ignore newer fields


@dataclass(slots=True)
class Member:
    """A member as the leader knows it."""

    id: str
    topics: frozenset[str]
    instance_id: str | None = None
    owned: frozenset[TopicPartition] = frozenset()
    generation: int = NO_GENERATION
    user_data: bytes | None = None
    rack: str | None = None

    @property
    def order(self) -> tuple[bool, str]:
        """The sort key: static members first, by instance id, which survives a restart."""
        return (self.instance_id is None, self.instance_id or self.id)


Counts = Mapping[str, int]
"""The number of partitions of each topic."""
Assignment = dict[str, list[TopicPartition]]


class Assignor:
    """The base class of assignors.

    Members agree on an assignor by its `name`. With `cooperative`, members keep their partitions during a
    rebalance.
    """

    name = ""
    cooperative = False

    def assign(self, members: Sequence[Member], counts: Counts) -> Assignment:
        """The partitions of each member id."""
        raise NotImplementedError

    def assign_near(self, members: Sequence[Member], counts: Counts, replicas: ReplicaRacks) -> Assignment:
        """`assign` with the racks of replicas, which are ignored unless this is overridden."""
        return self.assign(members, counts)

    def user_data(self) -> bytes | None:
        """User data for the leader, in the subscription of this member."""
        return None

    def on_assignment(self, partitions: Iterable[TopicPartition], generation: int) -> None:
        """Called with the assignment of this member."""


class RangeAssignor(Assignor):
    """Gives each member one range of every topic.

    >>> members = [Member("a", frozenset({"t"})), Member("b", frozenset({"t"}))]
    >>> [len(given) for given in RangeAssignor().assign(members, {"t": 3}).values()]
    [2, 1]
    """

    name = "range"

    def assign(self, members: Sequence[Member], counts: Counts) -> Assignment:
        return self.assign_near(members, counts, {})

    def assign_near(self, members: Sequence[Member], counts: Counts, replicas: ReplicaRacks) -> Assignment:
        given: Assignment = {member.id: [] for member in members}
        places: defaultdict[str, dict[TopicPartition, frozenset[str]]] = defaultdict(dict)
        for place, racks in replicas.items():
            places[place.topic][place] = racks
        shares = [_Shares(topic, count, members, places[topic]) for topic, count in counts.items()]
        alike: defaultdict[tuple[tuple[str, ...], int], list[_Shares]] = defaultdict(list)
        for share in shares:
            if share.takers:
                alike[tuple(share.takers), share.count].append(share)
        if any(share.racks for share in shares):
            for together in alike.values():
                if len(together) > 1:
                    _deal_together(together, given)
                elif together[0].racks:
                    together[0].deal(given, near=True)
        for share in shares:
            share.deal(given, near=False)
        return {member_id: sorted(partitions) for member_id, partitions in given.items()}


class _Shares:
    """The number of partitions of a topic that each member may still get; the first get the remainder."""

    __slots__ = ("_each", "_extra", "_had", "count", "left", "racks", "takers", "topic")

    def __init__(self, topic: str, count: int, members: Sequence[Member], replicas: ReplicaRacks) -> None:
        wanting = sorted((m for m in members if topic in m.topics), key=lambda member: member.order)
        self.topic = topic
        self.count = count
        self.takers = [member.id for member in wanting]
        self.left = list(range(count))
        self._each, self._extra = divmod(count, len(wanting)) if wanting else (0, 0)
        self._had = dict.fromkeys(self.takers, 0)
        self.racks = Racks({member.id: member.rack for member in wanting}, replicas)

    def room(self, member_id: str) -> int:
        return max(0, self._each + (self._extra > 0) - self._had[member_id])

    def give(self, member_id: str, indexes: Sequence[int], given: Assignment) -> None:
        if not indexes:
            return
        given[member_id] += [TopicPartition(self.topic, index) for index in indexes]
        self._had[member_id] += len(indexes)
        if self._had[member_id] > self._each:
            self._extra -= 1
        taken = set(indexes)
        self.left = [index for index in self.left if index not in taken]

    def deal(self, given: Assignment, *, near: bool) -> None:
        """Give each member in turn as many partitions as it may get, only near ones or any."""
        for member_id in self.takers:
            fitting = [
                index
                for index in self.left
                if not near or not self.racks.far(member_id, TopicPartition(self.topic, index))
            ]
            self.give(member_id, fitting[: self.room(member_id)], given)


def _deal_together(together: Sequence[_Shares], given: Assignment) -> None:
    """Topics with the same members and size: give the same partition of each to a member near all of them."""
    first = together[0]
    for index in range(first.count):
        for member_id in first.takers:
            if all(
                share.room(member_id)
                and not share.racks.outside(member_id, TopicPartition(share.topic, index))
                for share in together
            ):
                for share in together:
                    share.give(member_id, [index], given)
                break


class RoundRobinAssignor(Assignor):
    """Gives out the partitions of all topics in turn."""

    name = "roundrobin"

    def assign(self, members: Sequence[Member], counts: Counts) -> Assignment:
        given: Assignment = {member.id: [] for member in members}
        ring = sorted(members, key=lambda member: member.order)
        at = 0
        for topic in sorted(counts):
            if not any(topic in member.topics for member in ring):
                continue
            for partition in range(counts[topic]):
                while topic not in ring[at % len(ring)].topics:
                    at += 1
                given[ring[at % len(ring)].id].append(TopicPartition(topic, partition))
                at += 1
        return given


class StickyAssignor(Assignor):
    """Gives members equal numbers of partitions, and lets them keep as many as possible.

    Its user data has the owned partitions and the generation.
    """

    name = "sticky"

    def __init__(self) -> None:
        self._had: list[TopicPartition] | None = None
        self._generation = NO_GENERATION

    def assign(self, members: Sequence[Member], counts: Counts) -> Assignment:
        return self.assign_near(members, counts, {})

    def assign_near(self, members: Sequence[Member], counts: Counts, replicas: ReplicaRacks) -> Assignment:
        had = {member.id: self.had(member) for member in members}
        racks = Racks({member.id: member.rack for member in members}, replicas)
        return _Balance(members, counts, had, racks).assign()

    def had(self, member: Member) -> tuple[int, frozenset[TopicPartition]]:
        """The generation and partitions of the last assignment of a member."""
        return read_sticky_user_data(member.user_data)

    def user_data(self) -> bytes | None:
        if self._had is None:
            return None
        return sticky_user_data(self._had, self._generation)

    def on_assignment(self, partitions: Iterable[TopicPartition], generation: int) -> None:
        self._had = sorted(partitions)
        self._generation = generation


class CooperativeStickyAssignor(StickyAssignor):
    """A StickyAssignor that leaves members their other partitions during a rebalance."""

    name = "cooperative-sticky"
    cooperative = True

    def had(self, member: Member) -> tuple[int, frozenset[TopicPartition]]:
        generation = member.generation
        if generation < 0 and member.user_data is not None and len(member.user_data) >= 4:
            (generation,) = struct.unpack_from(">i", member.user_data)
        return generation, member.owned

    def user_data(self) -> bytes | None:
        return struct.pack(">i", self._generation)

    def assign_near(self, members: Sequence[Member], counts: Counts, replicas: ReplicaRacks) -> Assignment:
        given = super().assign_near(members, counts, replicas)
        owners = {partition: member.id for member in members for partition in member.owned}
        for member_id, partitions in given.items():
            # The owner of a partition has to revoke it first: the next rebalance assigns it.
            given[member_id] = [
                partition for partition in partitions if owners.get(partition, member_id) == member_id
            ]
        return given


@dataclass(slots=True)
class _Balance:
    """Keeps owned partitions, assigns the others to the members with the fewest, and balances the numbers."""

    members: Sequence[Member]
    counts: Counts
    had: Mapping[str, tuple[int, frozenset[TopicPartition]]]
    racks: Racks
    given: dict[str, set[TopicPartition]] = field(default_factory=dict)

    def assign(self) -> Assignment:
        members = sorted(self.members, key=lambda member: member.order)
        self.given = {member.id: set() for member in members}
        takers = {topic: [member.id for member in members if topic in member.topics] for topic in self.counts}
        everything = [
            TopicPartition(topic, partition)
            for topic in sorted(self.counts)
            if takers[topic]
            for partition in range(self.counts[topic])
        ]
        self._keep(members, set(everything))
        owned = {partition for partitions in self.given.values() for partition in partitions}
        loads = {member_id: len(partitions) for member_id, partitions in self.given.items()}
        for partition in everything:
            if partition not in owned:
                least = min(
                    takers[partition.topic],
                    key=lambda member_id: (loads[member_id], self.racks.far(member_id, partition)),
                )
                self.given[least].add(partition)
                loads[least] += 1
        self._even_out(takers, loads)
        if self.racks:
            Exchange(self.given, takers, self.racks).run()
        return {member_id: sorted(partitions) for member_id, partitions in self.given.items()}

    def _keep(self, members: Sequence[Member], everything: set[TopicPartition]) -> None:
        """The owned partitions by the newest generation. A partition with two owners has none."""
        claims: defaultdict[TopicPartition, list[tuple[int, str]]] = defaultdict(list)
        for member in members:
            generation, partitions = self.had.get(member.id, (NO_GENERATION, frozenset()))
            for partition in partitions:
                if partition in everything and partition.topic in member.topics:
                    claims[partition].append((generation, member.id))
        for partition, claimed in claims.items():
            claimed.sort(reverse=True)
            if len(claimed) == 1 or claimed[0][0] > claimed[1][0]:
                self.given[claimed[0][1]].add(partition)

    def _even_out(self, takers: Mapping[str, list[str]], loads: dict[str, int]) -> None:
        """Move partitions to members that have at least two fewer than the owner."""
        while any(
            self._moved(giver, takers, loads)
            for giver in sorted(loads, key=lambda member_id: -loads[member_id])
        ):
            pass

    def _moved(self, giver: str, takers: Mapping[str, list[str]], loads: dict[str, int]) -> bool:
        for topic in sorted({partition.topic for partition in self.given[giver]}, reverse=True):
            least = min(takers[topic], key=lambda member_id: loads[member_id])
            if loads[giver] - loads[least] >= 2:
                partition = max(entry for entry in self.given[giver] if entry.topic == topic)
                self.given[giver].remove(partition)
                self.given[least].add(partition)
                loads[giver] -= 1
                loads[least] += 1
                return True
        return False


BUILT_IN: tuple[type[Assignor], ...] = (
    RangeAssignor,
    RoundRobinAssignor,
    StickyAssignor,
    CooperativeStickyAssignor,
)


def assignors_of(given: Sequence[object]) -> list[Assignor]:
    """The assignors of partition.assignment.strategy: by name, by Kafka's class, or objects.

    >>> [assignor.name for assignor in assignors_of(["range", "x.y.CooperativeStickyAssignor"])]
    ['range', 'cooperative-sticky']
    """
    names = {kind.name: kind for kind in BUILT_IN} | {kind.__name__: kind for kind in BUILT_IN}
    found: list[Assignor] = []
    for entry in given:
        if isinstance(entry, Assignor):
            found.append(entry)
        elif isinstance(entry, type) and issubclass(entry, Assignor):
            found.append(entry())
        elif isinstance(entry, str) and entry.rpartition(".")[2] in names:
            found.append(names[entry.rpartition(".")[2]]())
        else:
            shown = entry if isinstance(entry, str) else repr(entry)
            allowed = ", ".join(kind.name for kind in BUILT_IN)
            raise ConfigError(
                "partition.assignment.strategy",
                shown,
                f"expected {allowed}, or an Assignor of your own",
            )
    if len({assignor.name for assignor in found}) < len(found) or not found:
        shown = ",".join(assignor.name for assignor in found)
        raise ConfigError("partition.assignment.strategy", shown, "expected at least one, and each only once")
    return found


# Subscriptions and assignments


def subscription_bytes(
    topics: Iterable[str],
    owned: Iterable[TopicPartition],
    generation: int,
    user_data: bytes | None,
    rack: str,
) -> bytes:
    """The bytes of a subscription, with the version in front."""
    message = ConsumerProtocolSubscription(
        topics=sorted(topics),
        user_data=user_data,
        owned_partitions=[
            ConsumerProtocolSubscription.TopicPartition(topic=topic, partitions=partitions)
            for topic, partitions in _by_topic(owned).items()
        ],
        generation_id=generation,
        rack_id=rack or None,
    )
    return message.encode(NEWEST, struct.pack(">h", NEWEST))


def read_member(member_id: str, instance_id: str | None, data: bytes) -> Member:
    """A member from its subscription."""
    version = _version(data)
    message, _ = decode(ConsumerProtocolSubscription, version, data, 2)
    owned = frozenset(
        TopicPartition(entry.topic, partition)
        for entry in message.owned_partitions
        for partition in entry.partitions
    )
    user_data = None if message.user_data is None else bytes(message.user_data)
    return Member(
        member_id,
        frozenset(message.topics),
        instance_id,
        owned,
        message.generation_id,
        user_data,
        message.rack_id,
    )


def assignment_bytes(partitions: Iterable[TopicPartition]) -> bytes:
    message = ConsumerProtocolAssignment(
        assigned_partitions=[
            ConsumerProtocolAssignment.TopicPartition(topic=topic, partitions=found)
            for topic, found in _by_topic(partitions).items()
        ]
    )
    return message.encode(NEWEST, struct.pack(">h", NEWEST))


def read_assignment(data: bytes) -> list[TopicPartition]:
    """The assignment of a member; nothing for empty bytes."""
    if not data:
        return []
    message, _ = decode(ConsumerProtocolAssignment, _version(data), data, 2)
    return [
        TopicPartition(entry.topic, partition)
        for entry in message.assigned_partitions
        for partition in entry.partitions
    ]


def _version(data: bytes) -> int:
    if len(data) < 2:
        raise ProtocolError(f"{len(data)} bytes are no subscription or assignment of a member")
    return max(0, min(int(struct.unpack_from(">h", data)[0]), NEWEST))


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        found.setdefault(topic, []).append(partition)
    return found


def sticky_user_data(partitions: Iterable[TopicPartition], generation: int) -> bytes:
    topics = _by_topic(partitions)
    out = bytearray(struct.pack(">i", len(topics)))
    for topic, found in topics.items():
        name = topic.encode()
        out += struct.pack(">h", len(name)) + name + struct.pack(f">i{len(found)}i", len(found), *found)
    return bytes(out + struct.pack(">i", generation))


def read_sticky_user_data(data: bytes | None) -> tuple[int, frozenset[TopicPartition]]:
    """Generation and partitions; nothing if the bytes are invalid. Old clients send no generation."""
    if not data:
        return NO_GENERATION, frozenset()
    found: set[TopicPartition] = set()
    try:
        (topics,) = struct.unpack_from(">i", data)
        pos = 4
        for _ in range(topics):
            (length,) = struct.unpack_from(">h", data, pos)
            topic = data[pos + 2 : pos + 2 + length].decode()
            pos += 2 + length
            (count,) = struct.unpack_from(">i", data, pos)
            if not 0 <= count <= (len(data) - pos) // 4:
                raise ValueError(count)
            partitions = struct.unpack_from(f">{count}i", data, pos + 4)
            found.update(TopicPartition(topic, partition) for partition in partitions)
            pos += 4 + 4 * count
        generation = struct.unpack_from(">i", data, pos)[0] if len(data) - pos >= 4 else NO_GENERATION
    except (struct.error, ValueError):
        return NO_GENERATION, frozenset()
    return int(generation), frozenset(found)
