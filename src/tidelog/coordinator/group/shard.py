"""GroupShard: the groups and offsets of one partition of `__consumer_offsets`.

The first two bytes of a key are the type of the record, which decides on the service that replays it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from tidelog.coordinator.group.group import Group
from tidelog.coordinator.group.offsets import Offsets
from tidelog.coordinator.journal import CommittedValues, Journal

CLASSIC_TYPES = (2,)
CONSUMER_TYPES = (3, 4, 5, 6, 7, 8, 16)


class ShardGroups(Protocol):
    """The service of one kind of groups in all shards, which replays the records of its kind."""

    def replay(self, shard: GroupShard, record_type: int, key: bytes, value: bytes | None) -> None: ...

    def loaded(self, shard: GroupShard) -> None:
        """Start the timers of the groups of this kind, after all records are replayed."""

    def unload(self, shard: GroupShard) -> None:
        """Stop timers and answer waiting members with NOT_COORDINATOR: another broker leads the partition."""


class ShardClassicGroups(ShardGroups, Protocol):
    def make(self, shard: GroupShard, group_id: str) -> Group:
        """A new empty group."""


class GroupShard:
    """Implements coordinator.shard.Shard."""

    __slots__ = (
        "_by_type",
        "_classic",
        "_committed_groups",
        "_parts",
        "groups",
        "is_loaded",
        "journal",
        "leader_epoch",
        "offsets",
        "partition",
    )

    def __init__(
        self,
        partition: int,
        leader_epoch: int,
        classic: ShardClassicGroups,
        consumer: ShardGroups,
    ) -> None:
        self.partition = partition
        self.leader_epoch = leader_epoch
        self.is_loaded = False
        self.groups: dict[str, Group] = {}
        self.journal = Journal()
        self._committed_groups: CommittedValues[str, Group | None] = CommittedValues(self.journal)
        self.offsets = Offsets(self.groups, self.group_of_offsets, self.journal)
        self._classic = classic
        self._parts: tuple[ShardGroups, ...] = (classic, consumer)
        self._by_type: dict[int, ShardGroups] = {
            **dict.fromkeys(CLASSIC_TYPES, classic),
            **dict.fromkeys(CONSUMER_TYPES, consumer),
        }

    def group_of_offsets(self, group_id: str) -> Group:
        """The group of committed offsets. For a simple consumer without a group, make an empty one."""
        group = self.groups.get(group_id)
        if group is not None:
            return group
        self.note_group(group_id, lambda: None)
        return self._classic.make(self, group_id)

    # -- committed state ---------------------------------------------------------------------------

    def note_group(self, group_id: str, before: Callable[[], Group | None]) -> None:
        """Note the group before an uncommitted record changes it, for readers."""
        if self.journal.end and not self._committed_groups.has_noted(group_id):
            self._committed_groups.note(group_id, before())

    def committed_group(self, group_id: str) -> Group | None:
        """The committed state of a group. A classic group has its present members."""
        return self._committed_groups.get(group_id, self.groups.get(group_id))

    def all_committed_groups(self) -> Iterator[Group]:
        """The groups that are there now. Groups may come and go while the caller rests between two."""
        deleted = (group_id for group_id, _ in self._committed_groups.items() if group_id not in self.groups)
        for group_id in (*self.groups, *deleted):
            group = self.committed_group(group_id)
            if group is not None:
                yield group

    def replay(
        self,
        key: bytes,
        value: bytes | None,
        *,
        offset: int,
        timestamp: int,
        producer_id: int,
        producer_epoch: int,
    ) -> None:
        record_type = key[0] << 8 | key[1]
        if record_type <= 1:
            self.offsets.replay(
                record_type,
                key,
                value,
                offset=offset,
                timestamp=timestamp,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
            )
            return
        part = self._by_type.get(record_type)
        if part is not None:  # other types, of share and streams groups, stay in the log
            part.replay(self, record_type, key, value)

    def end_transaction(self, producer_id: int, producer_epoch: int, *, commit: bool) -> None:
        self.offsets.end_transaction(producer_id, producer_epoch, commit=commit)

    def loaded(self) -> None:
        self.is_loaded = True
        for part in self._parts:
            part.loaded(self)
        self.offsets.loaded()

    def unload(self) -> None:
        self.is_loaded = False
        for part in self._parts:
            part.unload(self)
        self.offsets.unload()
