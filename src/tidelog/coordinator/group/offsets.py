"""Offsets: the committed offsets of the groups of a shard, and the offsets in open transactions.

Values stay encoded as in the log until they are requested, so that a million of them takes little memory and
is loaded quickly. Only `replay` and `end_transaction` change the state.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Container, Iterator, Mapping
from itertools import chain
from types import MappingProxyType
from typing import NamedTuple, Protocol

from tidelog.coordinator.group.records import (
    CommittedOffset,
    is_plain_offset_value,
    offset_key,
    read_offset_key,
    read_offset_value,
)
from tidelog.coordinator.journal import CommittedValues, Journal
from tidelog.coordinator.runtime import NewRecord
from tidelog.partitions import PartitionKey

_NOTHING: Mapping[PartitionKey, bytes] = MappingProxyType({})


class PendingOffset(NamedTuple):
    """An offset in an open transaction: the log offset of its record, and its value.

    The value is None if the group has committed a newer offset. The end of the transaction then changes
    nothing, but the offset is unstable until that end.
    """

    record_offset: int
    value: bytes | None


class ReadableOffsets(Protocol):
    """The part of the offsets of a shard that OffsetFetch reads."""

    def of_group(self, group_id: str) -> Mapping[PartitionKey, bytes]:
        """The values of a group's committed offsets, for `read_offset_value`."""

    def is_pending(self, group_id: str, name: PartitionKey) -> bool:
        """Whether a partition has an offset in an open transaction."""


class _Before(NamedTuple):
    """The offset of a partition before a record that is not committed."""

    value: bytes | None
    is_pending: bool


class Offsets:
    """`groups` has the groups of the shard; `make_group` adds the group of a simple consumer.

    The methods show the written offsets; `committed_view` shows those below the high watermark.
    """

    __slots__ = (
        "_before",
        "_committed",
        "_groups",
        "_journal",
        "_make_group",
        "_names",
        "_open",
        "_pending",
        "count",
    )

    def __init__(
        self, groups: Container[str], make_group: Callable[[str], object], journal: Journal | None = None
    ) -> None:
        self._journal = Journal() if journal is None else journal
        self._before: CommittedValues[tuple[str, PartitionKey], _Before] = CommittedValues(self._journal)
        self._groups = groups
        self._make_group = make_group
        self._committed: dict[str, dict[PartitionKey, bytes]] = {}
        # One key object for a partition, shared by all groups.
        self._names: dict[PartitionKey, PartitionKey] = {}
        self._pending: dict[int, dict[str, dict[PartitionKey, PendingOffset]]] = {}
        # Producers with offsets of a group in an open transaction.
        self._open: dict[str, set[int]] = {}
        # The number of committed offsets, for the metrics.
        self.count = 0

    # -- changing ------------------------------------------------------------------------------------

    def replay(
        self,
        record_type: int,
        key: bytes,
        value: bytes | None,
        *,
        offset: int,
        timestamp: int,
        producer_id: int,
        producer_epoch: int,
    ) -> None:
        """Apply a record of type 0 or 1 at `offset`; with a producer id it is part of a transaction."""
        group_id, topic, partition = read_offset_key(key)
        name = (topic, partition)
        if self._journal.end:
            self._note(group_id, name)
        if value is None:
            self._delete(group_id, name)
            return
        if not is_plain_offset_value(value):
            read_offset_value(value)  # refuse a malformed value now, not when it is fetched
        if group_id not in self._groups:
            self._make_group(group_id)
        if producer_id < 0:
            self._put(group_id, name, offset, value)
        else:
            pending = self._pending.setdefault(producer_id, {}).setdefault(group_id, {})
            pending[name] = PendingOffset(offset, value)
            self._open.setdefault(group_id, set()).add(producer_id)

    def _put(self, group_id: str, name: PartitionKey, record_offset: int, value: bytes) -> None:
        committed = self._committed.get(group_id)
        if committed is None:
            committed = self._committed[group_id] = {}
        if name not in committed:
            self.count += 1
            name = self._names.get(name) or self._learn(name)
        committed[name] = value
        if group_id in self._open:
            self._supersede(group_id, name, record_offset)

    def _learn(self, name: PartitionKey) -> PartitionKey:
        known = (sys.intern(name[0]), name[1])
        return self._names.setdefault(known, known)

    def _supersede(self, group_id: str, name: PartitionKey, record_offset: int) -> None:
        """Drop an older pending offset: the newest record counts, in any order in which transactions end."""
        for producer_id in self._open[group_id]:
            pending = self._pending[producer_id][group_id]
            waiting = pending.get(name)
            if waiting is not None and waiting.record_offset < record_offset:
                pending[name] = PendingOffset(waiting.record_offset, None)

    def _delete(self, group_id: str, name: PartitionKey) -> None:
        committed = self._committed.get(group_id)
        if committed is not None and committed.pop(name, None) is not None:
            self.count -= 1
            if not committed:
                del self._committed[group_id]
        for producer_id in tuple(self._open.get(group_id, ())):
            pending = self._pending[producer_id][group_id]
            if pending.pop(name, None) is not None and not pending:
                del self._pending[producer_id][group_id]
                self._close(group_id, producer_id)

    def _close(self, group_id: str, producer_id: int) -> None:
        producers = self._open[group_id]
        producers.discard(producer_id)
        if not producers:
            del self._open[group_id]

    def end_transaction(self, producer_id: int, producer_epoch: int, *, commit: bool) -> None:
        """Commit or abort the offsets of the producer's transaction."""
        if self._journal.end:
            for group_id, pending in self._pending.get(producer_id, {}).items():
                for name in pending:
                    self._note(group_id, name)
        ended = self._pending.pop(producer_id, {})
        for group_id, pending in ended.items():
            self._close(group_id, producer_id)
            if commit:
                for name, (record_offset, value) in pending.items():
                    if value is not None:
                        self._put(group_id, name, record_offset, value)

    def _note(self, group_id: str, name: PartitionKey) -> None:
        """Note the offset before an uncommitted record changes it, for readers."""
        before = _Before(self.of_group(group_id).get(name), self.is_pending(group_id, name))
        self._before.note((group_id, name), before)

    def loaded(self) -> None:
        """Do nothing after the load."""

    def unload(self) -> None:
        """Free the memory. Another broker leads the partition now."""
        for values in (self._committed, self._names, self._pending, self._open):
            values.clear()
        self.count = 0

    # -- reading -------------------------------------------------------------------------------------

    def committed_view(self, group_id: str) -> ReadableOffsets:
        """The committed offsets of a group, as of the last `Journal.settle`."""
        if self._journal.is_empty:
            return self
        return _CommittedOffsets(self, group_id, self._before)

    @property
    def group_ids(self) -> Collection[str]:
        """The groups with committed offsets."""
        return self._committed.keys()

    def of_group(self, group_id: str) -> Mapping[PartitionKey, bytes]:
        """The values of a group's committed offsets, for `read_offset_value`."""
        return self._committed.get(group_id, _NOTHING)

    def committed(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        value = self.of_group(group_id).get((topic, partition))
        return None if value is None else read_offset_value(value)

    def has_open_transactions(self, group_id: str) -> bool:
        """Whether the group has offsets in an open transaction."""
        return group_id in self._open

    def is_pending(self, group_id: str, name: PartitionKey) -> bool:
        producers = self._open.get(group_id)
        return producers is not None and any(name in self._pending[each][group_id] for each in producers)

    def pending(self) -> Iterator[tuple[int, str, PartitionKey, PendingOffset]]:
        """All offsets in open transactions: producer id, group, partition and offset."""
        for producer_id, groups in self._pending.items():
            for group_id, waiting in groups.items():
                for name, offset in waiting.items():
                    yield producer_id, group_id, name, offset

    # -- deleting ------------------------------------------------------------------------------------

    def has_offset(self, group_id: str, name: PartitionKey) -> bool:
        """Whether a tombstone would delete an offset."""
        return name in self.of_group(group_id) or self.is_pending(group_id, name)

    def tombstones(self, group_id: str, most: int) -> list[NewRecord]:
        """Tombstones of at most `most` offsets of a group, including those in open transactions."""
        pending = (self._pending[producer_id][group_id] for producer_id in self._open.get(group_id, ()))
        names: dict[PartitionKey, None] = {}
        for name in chain(self.of_group(group_id), *pending):
            if len(names) == most:
                break
            names[name] = None
        return [tombstone(group_id, name) for name in names]

    def tombstones_of_topic(self, topic: str, topic_id: bytes) -> Iterator[list[NewRecord]]:
        """Tombstones of the offsets of a deleted topic, group by group.

        An offset with another topic id belongs to a newer topic of that name, and stays.
        """
        names = [name for name in self._names if name[0] == topic]
        for name in names:
            del self._names[name]
        for group_id in list(self._committed):
            committed = self.of_group(group_id)
            found = [
                name
                for name in names
                if name in committed and _is_of(read_offset_value(committed[name]), topic_id)
            ]
            yield [tombstone(group_id, name) for name in found]
        waiting = [
            (group_id, name)
            for _, group_id, name, offset in self.pending()
            if name[0] == topic
            and (offset.value is None or _is_of(read_offset_value(offset.value), topic_id))
        ]
        yield [tombstone(group_id, name) for group_id, name in dict.fromkeys(waiting)]


class _CommittedOffsets:
    """The offsets of one group as of the high watermark."""

    __slots__ = ("_before", "_of_group", "_offsets")

    def __init__(
        self, offsets: Offsets, group_id: str, before: CommittedValues[tuple[str, PartitionKey], _Before]
    ) -> None:
        self._offsets = offsets
        self._before = {name: old for (group, name), old in before.items() if group == group_id}
        self._of_group = dict(offsets.of_group(group_id))
        for name, (value, _) in self._before.items():
            self._of_group.pop(name, None)
            if value is not None:
                self._of_group[name] = value

    def of_group(self, group_id: str) -> Mapping[PartitionKey, bytes]:
        return self._of_group

    def is_pending(self, group_id: str, name: PartitionKey) -> bool:
        """Whether the offset of a partition is unstable: its record is written, its marker not committed."""
        before = self._before.get(name)
        return (before is not None and before.is_pending) or self._offsets.is_pending(group_id, name)


def tombstone(group_id: str, name: PartitionKey) -> NewRecord:
    return NewRecord(offset_key(group_id, *name), None)


def _is_of(committed: CommittedOffset, topic_id: bytes) -> bool:
    """Whether an offset belongs to the topic id; offsets of older brokers have no topic id."""
    return not any(committed.topic_id) or committed.topic_id == topic_id
