"""Which members sit in a rack with a replica of which partition, and how to give them more of those.

Pure. Racks only count where they can make a difference: members say theirs (client.rack), partitions have
replicas there, and not every partition has them everywhere. Even shares come before near replicas.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tidelog.clients.metadata import ClusterView
from tidelog.partitions import TopicPartition

ReplicaRacks = Mapping[TopicPartition, frozenset[str]]
"""The racks that each partition has replicas in, as far as they are known."""


class Racks:
    """False where racks make no difference; then nobody is far from anything."""

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
        """Whether a member is outside the racks of a partition, and that makes a difference."""
        return self._useful and self.outside(member_id, partition)

    def outside(self, member_id: str, partition: TopicPartition) -> bool:
        """Whether a member has a rack, and the partition no replica in it."""
        rack = self._members.get(member_id)
        return rack is not None and rack not in self._replicas.get(partition, ())


def replica_racks(view: ClusterView, topics: Iterable[str]) -> dict[TopicPartition, frozenset[str]]:
    """Where the replicas of topics are; those that are offline or behind count, as they will be back."""
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
    """Moves and swaps partitions among members as long as one more is near, and shares stay as even.

    Each step makes one more partition near, so that it ends; what it leaves, it would leave again, so that a
    group does not go on rebalancing. Where members want different topics, only those swap who have equally
    many or swap within a topic: anything else could call for evening out again.
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
        """Members, and who found nothing of theirs for a topic since their partitions last changed."""

    def run(self) -> None:
        while sum(self._improved(owner, partition) for owner, partition in self._far_ones()):
            pass  # one that found nothing may find something after the steps of others

    def _far_ones(self) -> list[tuple[str, TopicPartition]]:
        return [
            (owner, partition)
            for owner, partitions in self._given.items()
            for partition in sorted(partitions)
            if self._racks.far(owner, partition)
        ]

    def _improved(self, owner: str, partition: TopicPartition) -> bool:
        """Give a partition to somebody near, who has fewer or something to give for it."""
        if partition not in self._given[owner]:
            return False  # it was given away for another one meanwhile
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
        """What a taker may get for a partition of a topic: near it, or as far from its owner as from it."""
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
