"""Rack-aware assignment: gives members partitions with a replica in their rack.

Racks count only if members have a client.rack, partitions have replicas there, and some partition lacks a
replica in some rack. Equal numbers of partitions come before near replicas.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tidelog.clients.metadata import ClusterView
from tidelog.partitions import TopicPartition

ReplicaRacks = Mapping[TopicPartition, frozenset[str]]
"""The racks of the replicas of each partition, as far as they are known."""


class Racks:
    """Whether racks make a difference; otherwise no member is far from a partition."""

    __slots__ = ("_members", "_replicas", "_useful")

    def __init__(self, members: Mapping[str, str | None], replicas: ReplicaRacks) -> None:
        self._members = {member_id: rack for member_id, rack in members.items() if rack}
        self._replicas = replicas
        everywhere: frozenset[str] = frozenset().union(*replicas.values())
        self._useful = not everywhere.isdisjoint(self._members.values()) and any(
            racks != everywhere for racks in replicas.values()
        )

    def __bool__(self) -> bool:
        return self._useful

    def far(self, member_id: str, partition: TopicPartition) -> bool:
        """Whether a partition has no replica in the rack of a member, if racks make a difference."""
        return self._useful and self.outside(member_id, partition)

    def outside(self, member_id: str, partition: TopicPartition) -> bool:
        """Whether a member has a rack without a replica of the partition."""
        rack = self._members.get(member_id)
        return rack is not None and rack not in self._replicas.get(partition, ())


def replica_racks(view: ClusterView, topics: Iterable[str]) -> dict[TopicPartition, frozenset[str]]:
    """The racks of the replicas of topics. Offline and lagging replicas count: they will be back."""
    found: dict[TopicPartition, frozenset[str]] = {}
    for topic in topics:
        known = view.topics.get(topic)
        for index, partition in known.partitions.items() if known is not None else ():
            brokers = (view.nodes.get(replica) for replica in partition.replicas)
            found[TopicPartition(topic, index)] = frozenset(
                broker.rack for broker in brokers if broker is not None and broker.rack
            )
    return found


class Exchange:
    """Moves and swaps partitions among members while that brings one more near its member.

    The numbers of partitions stay as equal as before. Each step brings one more partition near, so the steps
    end. A second run changes nothing, so the group does not rebalance again. Members with different
    subscriptions swap within a topic, or with a member of the same number of partitions: other swaps could
    make the numbers unequal.
    """

    __slots__ = ("_all_alike", "_given", "_in_vain", "_racks", "_takers")

    def __init__(
        self, given: dict[str, set[TopicPartition]], takers: Mapping[str, list[str]], racks: Racks
    ) -> None:
        self._given = given
        self._takers = takers
        self._racks = racks
        self._all_alike = len({tuple(members) for members in takers.values()}) == 1
        self._in_vain: dict[str, set[tuple[str, str]]] = {}
        """The members that found no swap for a topic since their partitions last changed."""

    def run(self) -> None:
        while sum(self._improved(owner, partition) for owner, partition in self._far_ones()):
            pass  # a member may find a swap after the steps of others

    def _far_ones(self) -> list[tuple[str, TopicPartition]]:
        return [
            (owner, partition)
            for owner, partitions in self._given.items()
            for partition in sorted(partitions)
            if self._racks.far(owner, partition)
        ]

    def _improved(self, owner: str, partition: TopicPartition) -> bool:
        """Give a partition to a near member that has fewer partitions, or one to swap."""
        if partition not in self._given[owner]:
            return False  # it was swapped meanwhile
        near = [
            member_id
            for member_id in self._takers[partition.topic]
            if member_id != owner and not self._racks.far(member_id, partition)
        ]
        for member_id in near:
            if self._all_alike and len(self._given[member_id]) < len(self._given[owner]):
                self._move(partition, owner, member_id)
                return True
        for member_id in near:
            back = self._wanted(owner, member_id, partition.topic)
            if back is not None:
                self._move(partition, owner, member_id)
                self._move(back, member_id, owner)
                return True
        return False

    def _wanted(self, taker: str, owner: str, topic: str) -> TopicPartition | None:
        """The partitions that a member may swap for one of a topic: none of them gets farther away."""
        if (taker, topic) in self._in_vain.get(owner, ()):
            return None
        far = self._racks.far
        any_topic = self._all_alike or len(self._given[taker]) == len(self._given[owner])
        for partition in sorted(self._given[owner]):
            if not any_topic and partition.topic != topic:
                continue
            if taker in self._takers[partition.topic] and (
                not far(taker, partition) or far(owner, partition)
            ):
                return partition
        self._in_vain.setdefault(owner, set()).add((taker, topic))
        return None

    def _move(self, partition: TopicPartition, giver: str, taker: str) -> None:
        self._given[giver].remove(partition)
        self._given[taker].add(partition)
        self._in_vain.pop(giver, None)
        self._in_vain.pop(taker, None)
