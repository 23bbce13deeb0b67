"""Reads the batches of one topic from the leaders of its partitions, without a group and without a session.

Batches of a leader on this host are read from its files, if the console may do so: a search costs the broker
no fetches. Each record has the state of its transaction by the aborted transactions of the broker. Above the
last stable offset the state follows from the markers that were read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from tidelog.clients.admin.client import AsyncAdmin
from tidelog.clients.metadata import TopicView
from tidelog.console.records.log_files import LeaderLog, LocalLogs, LogMoved, TopicLogs
from tidelog.console.records.log_record import BatchFacts, Head, LogRecord, Sieve, TransactionState
from tidelog.errors import KafkaError, NotLeaderOrFollower, UnknownTopicOrPartition, error_class
from tidelog.protocol.messages.fetch import FetchRequest, FetchResponse
from tidelog.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from tidelog.protocol.offset_specs import EARLIEST, LATEST
from tidelog.records.batch import (
    MAGIC,
    NO_SEQUENCE,
    BatchHeader,
    Record,
    control_record_type,
    read_header,
    read_marker,
    read_records,
)
from tidelog.records.legacy import Entry, is_log_append_time, iter_entries, read_message_set

ANSWER_SECONDS = 10.0
ATTEMPTS = 4
PAUSE_SECONDS = 0.1
REQUEST_BYTES = 1 << 20
"""A larger answer would keep the broker's loop busy for more than a few hundred microseconds."""

LOOK_SECONDS = 0.25
"""How often a tail looks for new records of a leader on this host. All tails share a look."""

MOMENT_SECONDS = 0.05
"""Partitions and offsets of the same page come from one look, if it is not older."""

READ_UNCOMMITTED, READ_COMMITTED = 0, 1
MARKERS = {0: "abort", 1: "commit"}


@dataclass(slots=True, frozen=True)
class OffsetRange:
    """The offsets of a partition: the log start offset, and the high watermark, which is not part of it."""

    start: int
    end: int


@dataclass(slots=True)
class Chunk:
    """The batches of one answer for one partition."""

    topic: str
    partition: int
    fetched: int
    data: bytes | memoryview
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: list[tuple[int, int]] = field(default_factory=list)
    """Producer id and first offset of each aborted transaction."""
    is_committed_view: bool = True
    next_offset: int = 0

    def __post_init__(self) -> None:
        self.next_offset = self.fetched
        for entry in iter_entries(self.data):
            if entry.magic == MAGIC:
                self.next_offset = read_header(self.data, entry.position).next_offset
            else:
                self.next_offset = entry.offset + 1

    @property
    def size(self) -> int:
        return len(self.data)

    def records(self, end: int | None = None, *, control: bool = False) -> Iterator[LogRecord]:
        """The records from the fetched offset on, up to `end`. With `control` also markers."""
        for entry, header, state in self._batches(end):
            if header is None:
                yield from self._old_records(entry, end)
            elif header.is_control:
                if control:
                    yield from self._markers(entry, header, end)
            else:
                for record in self._within(entry, header, end):
                    yield self._record(record, header, state)

    def stored(self, end: int | None = None) -> Iterator[Record | LogRecord]:
        """The records as they are stored, up to `end`: without what their batches say, which takes longer."""
        for entry, header, _ in self._batches(end):
            if header is None:
                yield from self._old_records(entry, end)
            elif not header.is_control:
                yield from self._within(entry, header, end)

    def heads(
        self, end: int | None, sieve: Sieve | None, *, control: bool = False, stride: int = 1
    ) -> Iterator[Head]:
        """The same records as `records`, but without the records that `sieve` rejects.

        The first and the last record, and one of `stride` rejected ones are there in any case.
        """
        if sieve is None:
            yield from map(Head, self.records(end, control=control))
            return
        passed, is_first = 0, True
        last: tuple[Record, BatchHeader, TransactionState] | None = None
        for entry, header, state in self._batches(end):
            if header is None or header.is_control:
                if last is not None:
                    yield Head(self._record(*last), passed, False)
                    passed, last = 0, None
                if header is None:
                    yield from map(Head, self._old_records(entry, end))
                elif control:
                    yield from map(Head, self._markers(entry, header, end))
                continue
            batch = BatchFacts(self.topic, self.partition, header.producer_id, state)
            for record in self._within(entry, header, end):
                passed += 1
                may_match = not sieve.rejects(record, batch)
                if may_match or is_first or passed >= stride:
                    yield Head(self._record(record, header, state), passed, may_match)
                    passed, is_first, last = 0, False, None
                else:
                    last = record, header, state
        if last is not None:
            yield Head(self._record(*last), passed, False)

    def _batches(self, end: int | None) -> Iterator[tuple[Entry, BatchHeader | None, TransactionState]]:
        """The batches up to `end` with the states of their transactions; an old format has no header."""
        states = _States(self)
        for entry in iter_entries(self.data):
            if entry.magic != MAGIC:
                yield entry, None, TransactionState.NONE
                continue
            if end is not None and entry.offset >= end:
                return
            header = read_header(self.data, entry.position)
            state = states.of_batch(entry, header)
            if header.is_control or header.next_offset > self.fetched:
                yield entry, header, state

    def _within(self, entry: Entry, header: BatchHeader, end: int | None) -> Iterator[Record]:
        """The records of a batch that lie in the chunk's range."""
        found = read_records(self.data, entry.position, header=header)
        if header.base_offset >= self.fetched and (end is None or header.next_offset <= end):
            return iter(found)
        return (record for record in found if self._is_wanted(record.offset, end))

    def _is_wanted(self, offset: int, end: int | None) -> bool:
        """A batch may begin before the fetched offset and go on behind the end."""
        return offset >= self.fetched and (end is None or offset < end)

    def _record(self, record: Record, header: BatchHeader, state: TransactionState) -> LogRecord:
        sequence = NO_SEQUENCE
        if header.base_sequence >= 0:
            sequence = (header.base_sequence + record.offset - header.base_offset) & 0x7FFFFFFF
        return LogRecord(
            self.topic,
            self.partition,
            record.offset,
            record.timestamp,
            record.key,
            record.value,
            record.headers,
            header.is_log_append_time,
            header.partition_leader_epoch,
            header.producer_id,
            header.producer_epoch,
            sequence,
            header.codec.name.lower(),
            state,
        )

    def _markers(self, entry: Entry, header: BatchHeader, end: int | None) -> Iterator[LogRecord]:
        for record in read_records(self.data, entry.position, header=header):
            if self._is_wanted(record.offset, end):
                kind = control_record_type(record)
                yield LogRecord(
                    self.topic,
                    self.partition,
                    record.offset,
                    record.timestamp,
                    record.key,
                    record.value,
                    producer_id=header.producer_id,
                    producer_epoch=header.producer_epoch,
                    leader_epoch=header.partition_leader_epoch,
                    control=MARKERS.get(kind, f"type {kind}"),
                )

    def _old_records(self, entry: Entry, end: int | None) -> Iterator[LogRecord]:
        found = read_message_set(self.data, entry)
        for record in found.records:
            if self._is_wanted(record.offset, end):
                yield LogRecord(
                    self.topic,
                    self.partition,
                    record.offset,
                    record.timestamp,
                    record.key,
                    record.value,
                    log_append_time=is_log_append_time(self.data, entry),
                    codec=found.codec.name.lower(),
                )


class _States:
    """The states of the transactions of a chunk, batch by batch in order."""

    def __init__(self, chunk: Chunk) -> None:
        self._chunk = chunk
        self._pending = sorted(chunk.aborted, key=lambda entry: entry[1])
        self._aborted: set[int] = set()
        self._ends: dict[int, list[tuple[int, bool]]] | None = None

    def of_batch(self, entry: Entry, header: BatchHeader) -> TransactionState:
        if not header.is_transactional:
            return TransactionState.NONE
        while self._pending and self._pending[0][1] <= header.last_offset:
            self._aborted.add(self._pending.pop(0)[0])
        chunk = self._chunk
        if header.is_control:
            marker = read_marker(chunk.data, entry.position, header)
            if marker is not None and not marker.commit:
                self._aborted.discard(header.producer_id)
            return TransactionState.NONE
        if chunk.is_committed_view and header.base_offset < chunk.last_stable_offset:
            is_aborted = header.producer_id in self._aborted
            return TransactionState.ABORTED if is_aborted else TransactionState.COMMITTED
        return self._by_markers(header)

    def _by_markers(self, header: BatchHeader) -> TransactionState:
        if self._ends is None:
            self._ends = self._markers()
        for offset, commit in self._ends.get(header.producer_id, ()):
            if offset > header.base_offset:
                return TransactionState.COMMITTED if commit else TransactionState.ABORTED
        chunk = self._chunk
        if chunk.next_offset < chunk.high_watermark:
            return TransactionState.UNDECIDED
        return TransactionState.OPEN

    def _markers(self) -> dict[int, list[tuple[int, bool]]]:
        """The ends of transactions in the chunk, by producer id."""
        found: dict[int, list[tuple[int, bool]]] = {}
        data = self._chunk.data
        for entry in iter_entries(data):
            if entry.magic != MAGIC:
                continue
            header = read_header(data, entry.position)
            if header.is_control:
                marker = read_marker(data, entry.position, header)
                if marker is not None:
                    found.setdefault(header.producer_id, []).append((header.base_offset, marker.commit))
        return found


class TopicReader:
    """Fetches batches and offsets of one topic, with a few retries after elections.

    `logs` are the logs of a broker on this host. Their records are read from files, without a fetch.
    """

    def __init__(self, admin: AsyncAdmin, topic: str, logs: LocalLogs | None = None) -> None:
        self._admin = admin
        self._client = admin.driver.client
        self.topic = topic
        self._local = logs
        self._seen: TopicLogs | None = None

    @property
    def reads_files(self) -> bool:
        """Whether the logs of a broker on this host are read from its files."""
        return self._local is not None

    @property
    def seen(self) -> Hashable:
        """Equal as long as the logs have the same records. None if they are not read from files."""
        if self._seen is None:
            return None
        logs = (
            (index, log.generation, log.start, log.high_watermark, log.last_stable_offset)
            for index, log in sorted(self._seen.logs.items())
        )
        return self._seen.topic_id, self._seen.partitions, tuple(logs)

    async def partitions(self) -> list[int]:
        """The indexes of the partitions at present. Raises UnknownTopicOrPartition."""
        seen = await self._look()
        return sorted((await self._refreshed()).partitions if seen is None else seen.partitions)

    async def _look(self, max_age: float = 0.0) -> TopicLogs | None:
        """The logs of the topic on this host; None if they cannot be read, or there is no such topic."""
        self._seen = None if self._local is None else await self._local.logs(self.topic, max_age)
        return self._seen

    async def _view(self) -> TopicView:
        found = self._client.view.topics.get(self.topic)
        return await self._refreshed() if found is None else found

    async def _refreshed(self) -> TopicView:
        # A topic that does not exist is asked for once, and not again and again.
        deadline = self._admin.driver.deadline(ANSWER_SECONDS)
        answer = await self._admin.driver.metadata([self.topic], deadline)
        code = answer.topics[0].error_code if answer.topics else UnknownTopicOrPartition.code
        if code == UnknownTopicOrPartition.code:
            raise UnknownTopicOrPartition(f"The topic {self.topic} does not exist.")
        if code:
            raise error_class(code)(f"the topic {self.topic} cannot be read: {error_class(code)()}")
        return await self._client.topic(self.topic, timeout=ANSWER_SECONDS)

    async def _by_leader(self, partitions: Iterable[int]) -> tuple[TopicView, dict[int, list[int]]]:
        view = await self._view()
        leaders: dict[int, list[int]] = {}
        for index in partitions:
            if index not in view.partitions:
                raise UnknownTopicOrPartition(f"partition {self.topic}-{index} does not exist")
            leader = self._client.view.leader(self.topic, index)
            if leader is None:
                raise NotLeaderOrFollower(f"partition {self.topic}-{index} has no leader at present")
            leaders.setdefault(leader, []).append(index)
        return view, leaders

    async def _retried(self, error: KafkaError, attempt: int) -> None:
        """Wait before the next attempt; raises the error if there is none."""
        is_gone = isinstance(error, UnknownTopicOrPartition) and self.topic not in self._client.view.topics
        if is_gone or not error.retriable or attempt + 1 >= ATTEMPTS:
            raise error
        self._client.request_refresh((self.topic,))
        await asyncio.sleep(PAUSE_SECONDS * (attempt + 1))

    # Offsets

    async def ranges(self, partitions: Iterable[int] | None = None) -> dict[int, OffsetRange]:
        """The start and the high watermark of partitions, or of all."""
        wanted = await self.partitions() if partitions is None else sorted(set(partitions))
        seen = await self._look(MOMENT_SECONDS)
        if seen is not None and all(index in seen.logs for index in wanted):
            logs = seen.logs
            return {index: OffsetRange(logs[index].start, logs[index].high_watermark) for index in wanted}
        starts, ends = await asyncio.gather(
            self.list_offsets(wanted, EARLIEST), self.list_offsets(wanted, LATEST)
        )
        return {index: OffsetRange(starts[index][0], ends[index][0]) for index in wanted}

    async def list_offsets(self, partitions: Iterable[int], timestamp: int) -> dict[int, tuple[int, int]]:
        """For each partition the first offset with this timestamp or a later one, and its timestamp.

        -1 if there is none. EARLIEST, LATEST and MAX_TIMESTAMP are timestamps, too.
        """
        wanted = list(partitions)
        for attempt in range(ATTEMPTS):
            try:
                _, leaders = await self._by_leader(wanted)
                answers = await asyncio.gather(
                    *(self._list_offsets(node, indexes, timestamp) for node, indexes in leaders.items())
                )
            except KafkaError as error:
                await self._retried(error, attempt)
            else:
                return {index: found for answer in answers for index, found in answer.items()}
        raise AssertionError("unreachable")

    async def _list_offsets(
        self, node: int, indexes: list[int], timestamp: int
    ) -> dict[int, tuple[int, int]]:
        parts = [
            ListOffsetsRequest.ListOffsetsPartition(partition_index=index, timestamp=timestamp)
            for index in indexes
        ]
        request = ListOffsetsRequest(replica_id=-1, isolation_level=READ_UNCOMMITTED)
        request.topics = [ListOffsetsRequest.ListOffsetsTopic(name=self.topic, partitions=parts)]
        answer = await self._client.call(node, request, ListOffsetsResponse, timeout=ANSWER_SECONDS)
        found: dict[int, tuple[int, int]] = {}
        for part in answer.topics[0].partitions:
            if part.error_code:
                raise error_class(part.error_code)(
                    f"offset of {self.topic}-{part.partition_index}: {error_class(part.error_code)()}"
                )
            found[part.partition_index] = part.offset, part.timestamp
        return found

    # Batches

    async def fetch(
        self, offsets: Mapping[int, int], max_bytes: int, *, wait_ms: int = 0
    ) -> dict[int, Chunk]:
        """The batches of partitions from these offsets on, up to `max_bytes` of each.

        With `wait_ms` the brokers wait that long for a first record. An offset outside of the log raises
        OffsetOutOfRange.
        """
        local = await self._read_files(offsets, max_bytes, wait_ms)
        offsets = {index: offset for index, offset in offsets.items() if index not in local}
        return local | await self._fetch_all(offsets, max_bytes, wait_ms) if offsets else local

    async def _fetch_all(self, offsets: Mapping[int, int], max_bytes: int, wait_ms: int) -> dict[int, Chunk]:
        if wait_ms:
            await self._fetch(offsets, 1, READ_UNCOMMITTED, wait_ms)
        found = await self._fetch(offsets, max_bytes, READ_COMMITTED)
        unstable = {
            index: chunk.fetched
            for index, chunk in found.items()
            if chunk.last_stable_offset <= chunk.fetched < chunk.high_watermark
        }
        if unstable:
            found |= await self._fetch(unstable, max_bytes, READ_UNCOMMITTED)
        return found

    async def _read_files(self, offsets: Mapping[int, int], max_bytes: int, wait_ms: int) -> dict[int, Chunk]:
        """The batches of partitions whose files can be read; the others are left to fetches."""
        if self._local is None:
            return {}
        seen = await self._awaited(offsets, wait_ms) if wait_ms else self._seen
        if seen is None or any(
            index in seen.logs and offset >= seen.logs[index].high_watermark
            for index, offset in offsets.items()
        ):
            seen = seen if wait_ms else await self._look()
        if seen is None or (wait_ms and any(index not in seen.logs for index in offsets)):
            return {}
        found: dict[int, Chunk] = {}
        for index, offset in offsets.items():
            chunk = await self._read_log(seen, index, offset, max_bytes)
            if chunk is None and (again := await self._look()) is not None:
                seen = again
                chunk = await self._read_log(seen, index, offset, max_bytes)
            if chunk is not None:
                found[index] = chunk
        return found

    async def _awaited(self, offsets: Mapping[int, int], wait_ms: int) -> TopicLogs | None:
        """Wait until a log has a record from its offset on, at most so long."""
        loop = asyncio.get_running_loop()
        end = loop.time() + wait_ms / 1000
        while True:
            seen = await self._look(LOOK_SECONDS)
            if seen is None or any(
                index not in seen.logs or offset != seen.logs[index].high_watermark
                for index, offset in offsets.items()
            ):
                return seen
            left = end - loop.time()
            if left <= 0:
                return seen
            await asyncio.sleep(min(left, LOOK_SECONDS))

    async def _read_log(self, seen: TopicLogs, index: int, offset: int, max_bytes: int) -> Chunk | None:
        """The batches of one partition from its files; None if the broker has to be asked."""
        log = seen.logs.get(index)
        if log is None or not log.start <= offset <= log.high_watermark:
            return None
        is_committed_view = offset < log.last_stable_offset or offset == log.high_watermark
        data = b""
        if offset < log.high_watermark:
            limit = log.last_stable_offset if is_committed_view else log.high_watermark
            assert self._local is not None
            try:
                data = await self._local.read(log, offset, limit, max_bytes)
            except LogMoved:
                return None
        return Chunk(
            self.topic,
            index,
            offset,
            data,
            log.high_watermark,
            log.last_stable_offset,
            log.start,
            _aborted_from(log, offset) if is_committed_view else [],
            is_committed_view,
        )

    async def _fetch(
        self, offsets: Mapping[int, int], max_bytes: int, isolation: int, wait_ms: int = 0
    ) -> dict[int, Chunk]:
        for attempt in range(ATTEMPTS):
            try:
                view, leaders = await self._by_leader(offsets)
                answers = await asyncio.gather(
                    *(
                        self._fetch_from(
                            node, view, {i: offsets[i] for i in indexes}, max_bytes, isolation, wait_ms
                        )
                        for node, indexes in leaders.items()
                    )
                )
            except KafkaError as error:
                await self._retried(error, attempt)
            else:
                return {index: chunk for answer in answers for index, chunk in answer.items()}
        raise AssertionError("unreachable")

    async def _fetch_from(
        self,
        node: int,
        view: TopicView,
        offsets: Mapping[int, int],
        max_bytes: int,
        isolation: int,
        wait_ms: int,
    ) -> dict[int, Chunk]:
        request = FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=1 if wait_ms else 0,
            max_bytes=REQUEST_BYTES,
            isolation_level=isolation,
        )
        parts = [
            FetchRequest.FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=max_bytes)
            for index, offset in offsets.items()
        ]
        request.topics = [FetchRequest.FetchTopic(topic=self.topic, topic_id=view.topic_id, partitions=parts)]
        answer = await self._client.call(
            node, request, FetchResponse, timeout=ANSWER_SECONDS + wait_ms / 1000
        )
        if answer.error_code:
            raise error_class(answer.error_code)(f"fetch of {self.topic}: {error_class(answer.error_code)()}")
        found: dict[int, Chunk] = {}
        for part in (part for topic in answer.responses for part in topic.partitions):
            index = part.partition_index
            if part.error_code:
                error = error_class(part.error_code)
                raise error(f"fetch of {self.topic}-{index} at offset {offsets[index]}: {error()}")
            data = b"" if part.records is None else part.records
            assert isinstance(data, bytes | memoryview)
            found[index] = Chunk(
                self.topic,
                index,
                offsets[index],
                data,
                part.high_watermark,
                part.last_stable_offset if part.last_stable_offset >= 0 else part.high_watermark,
                part.log_start_offset,
                [(entry.producer_id, entry.first_offset) for entry in part.aborted_transactions or ()],
                isolation == READ_COMMITTED,
            )
        return found


def _aborted_from(log: LeaderLog, offset: int) -> list[tuple[int, int]]:
    """Producer id and first offset of the aborted transactions that end at or after an offset."""
    return [(producer, first) for producer, first, last in log.aborted if last >= offset]
