"""The lines that `dump-log` prints for each type of file of a log folder, and the problems it finds."""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tidelog.cli.dump_decoders import RecordDecoder
from tidelog.errors import KafkaError
from tidelog.protocol.messages.producer_snapshot import ProducerSnapshot
from tidelog.protocol.wire import ProtocolError
from tidelog.records.batch import (
    BatchHeader,
    Record,
    crc_is_valid,
    iter_batches,
    read_control_record,
    read_records,
)

_OFFSET_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")
_ABORTED_TRANSACTION = struct.Struct(">hqqqq")
SNAPSHOT_VERSION = 1


@dataclass(slots=True, frozen=True)
class Choices:
    """The parts of a file to print."""

    deep: bool = False
    decoder: RecordDecoder | None = None  # None: records without keys and values
    skip_record_metadata: bool = False
    index_sanity_check: bool = False
    verify_index_only: bool = False
    max_bytes: int | None = None


@dataclass(slots=True)
class Problems:
    """The problems of files, which are printed after the files."""

    lines: list[str] = field(default_factory=list)
    _headed: set[str] = field(default_factory=set)

    def add(self, heading: str, line: str) -> None:
        if heading not in self._headed:
            self._headed.add(heading)
            self.lines.append(heading)
        self.lines.append(f"  {line}")


def dump_file(path: str, choices: Choices, problems: Problems) -> Iterator[str]:
    """The lines for one file, by the suffix of its name."""
    yield f"Dumping {path}"
    kind = Path(path).suffix
    if kind == ".log":
        yield from dump_log(path, choices, problems)
    elif kind == ".index":
        yield from dump_offset_index(path, choices, problems)
    elif kind == ".timeindex":
        yield from dump_time_index(path, choices, problems)
    elif kind == ".txnindex":
        yield from dump_transaction_index(path)
    elif kind == ".snapshot":
        yield from dump_producer_snapshot(path)
    else:
        problems.lines.append(f"Ignoring unknown file {path}")


def base_offset_of(path: str) -> int:
    name = Path(path).stem
    if not name.isdigit():
        raise ValueError(f"{path}: expected the first offset as file name, such as {0:020d}.log")
    return int(name)


def map_file(path: str) -> memoryview:
    """The bytes of a file, mapped into memory."""
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            return memoryview(b"")
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def dump_log(path: str, choices: Choices, problems: Problems) -> Iterator[str]:
    yield f"Log starting offset: {base_offset_of(path)}"
    data = map_file(path)
    end = len(data) if choices.max_bytes is None else min(choices.max_bytes, len(data))
    read_to = 0
    last_offset = -1
    try:
        for position, header in iter_batches(data, 0, end):
            read_to = position + header.total_size
            yield batch_line(data, position, header)
            if choices.deep:
                for record in records_of(data, position, header, path, problems):
                    if record.offset != last_offset + 1:
                        heading = f"Non-consecutive offsets in {os.path.abspath(path)}"
                        problems.add(heading, f"{last_offset} is followed by {record.offset}")
                    last_offset = record.offset
                    yield record_line(record, header, choices)
    except KafkaError as error:
        problems.add(f"Cannot read on in {os.path.abspath(path)}", str(error))
    if read_to < end and choices.max_bytes is None:
        yield f"Found {end - read_to} invalid bytes at the end of {Path(path).name}"


def records_of(
    data: memoryview, position: int, header: BatchHeader, path: str, problems: Problems
) -> list[Record]:
    try:
        return read_records(data, position, header=header)
    except KafkaError as error:
        problems.add(f"Cannot read records in {os.path.abspath(path)}", f"position {position}: {error}")
        return []


def batch_line(data: memoryview, position: int, header: BatchHeader) -> str:
    time_kind = "LogAppendTime" if header.is_log_append_time else "CreateTime"
    horizon = f"OptionalLong[{header.base_timestamp}]" if header.has_delete_horizon else "OptionalLong.empty"
    return (
        f"baseOffset: {header.base_offset} lastOffset: {header.last_offset} count: {header.record_count} "
        f"baseSequence: {header.base_sequence} lastSequence: {header.last_sequence} "
        f"producerId: {header.producer_id} producerEpoch: {header.producer_epoch} "
        f"partitionLeaderEpoch: {header.partition_leader_epoch} "
        f"isTransactional: {yes_no(header.is_transactional)} isControl: {yes_no(header.is_control)} "
        f"deleteHorizonMs: {horizon} position: {position} {time_kind}: {header.max_timestamp} "
        f"size: {header.total_size} magic: {header.magic} compresscodec: {codec_name(header)} "
        f"crc: {header.crc} isvalid: {yes_no(crc_is_valid(data, position, header))}"
    )


def record_line(record: Record, header: BatchHeader, choices: Choices) -> str:
    parts = []
    if not choices.skip_record_metadata:
        parts.append(record_metadata(record, header))
    elif header.is_control:
        return ""
    if not header.is_control and choices.decoder is not None:
        key, value = choices.decoder(record)
        if key is not None:
            parts.append(f"key: {key}")
        if value is not None:
            parts.append(f"payload: {value}")
    return "| " + " ".join(parts)


def record_metadata(record: Record, header: BatchHeader) -> str:
    sequence = -1
    if header.base_sequence >= 0:
        sequence = (header.base_sequence + record.offset - header.base_offset) & 0x7FFFFFFF
    text = (
        f"offset: {record.offset} {'LogAppendTime' if header.is_log_append_time else 'CreateTime'}: "
        f"{record.timestamp} keySize: {size_of(record.key)} valueSize: {size_of(record.value)} "
        f"sequence: {sequence} headerKeys: [{','.join(name for name, _value in record.headers)}]"
    )
    if header.is_control:
        text += control_text(record)
    return text


def control_text(record: Record) -> str:
    marker = read_control_record(record)
    if marker is None:
        return ""
    outcome = "COMMIT" if marker.commit else "ABORT"
    return f" endTxnMarker: {outcome} coordinatorEpoch: {marker.coordinator_epoch}"


def dump_offset_index(path: str, choices: Choices, problems: Problems) -> Iterator[str]:
    data, base = map_file(path), base_offset_of(path)
    entries = list(index_entries(data, _OFFSET_ENTRY, base))
    if not entries:
        yield f"{path} is empty."
        return
    if choices.index_sanity_check:
        if len(data) % _OFFSET_ENTRY.size:
            raise ValueError(
                f"{path}: {len(data)} bytes are not a multiple of {_OFFSET_ENTRY.size}, the size of an entry"
            )
        yield f"{path} passed sanity check."
        return
    batches = dict(batches_beside(path))
    for position, offset in entries:
        found = batches.get(position)
        if found is None or found.last_offset != offset:
            seen = "none" if found is None else found.last_offset
            heading = f"Mismatches in :{os.path.abspath(path)}"
            problems.add(heading, f"Index offset: {offset}, log offset: {seen}")
        if not choices.verify_index_only:
            yield f"offset: {offset} position: {position}"


def dump_time_index(path: str, choices: Choices, problems: Problems) -> Iterator[str]:
    data, base = map_file(path), base_offset_of(path)
    if choices.index_sanity_check:
        check_time_index(path, data)
        yield f"{path} passed sanity check."
        return
    where = os.path.abspath(path)
    batches = {header.last_offset: header for _position, header in batches_beside(path)}
    previous = -1
    for timestamp, offset in index_entries(data, _TIME_ENTRY, base):
        found = batches.get(offset)
        if found is None:
            problems.add(
                f"Indexed offsets that no batch of the log ends with, in :{where}",
                f"Indexed offset: {offset}",
            )
        elif found.max_timestamp != timestamp:
            text = f"Index timestamp: {timestamp}, log timestamp: {found.max_timestamp}"
            problems.add(f"Found timestamp mismatch in :{where}", text)
        if previous >= timestamp:
            text = f"Index timestamp: {timestamp}, Previously indexed timestamp: {previous}"
            problems.add(f"Found out of order timestamp in :{where}", text)
        previous = timestamp
        if not choices.verify_index_only:
            yield f"timestamp: {timestamp} offset: {offset}"


def index_entries(data: memoryview, entry: struct.Struct, base: int) -> Iterator[tuple[int, int]]:
    """The position or timestamp and the offset of each entry, without the zeros of a preallocated file."""
    whole = len(data) - len(data) % entry.size
    for number, (first, second) in enumerate(entry.iter_unpack(data[:whole])):
        relative, other = (second, first) if entry is _TIME_ENTRY else (first, second)
        if relative == 0 and (number > 0 or other == 0):
            return
        yield other, base + relative


def check_time_index(path: str, data: memoryview) -> None:
    if len(data) % _TIME_ENTRY.size:
        raise ValueError(
            f"{path}: {len(data)} bytes are not a multiple of {_TIME_ENTRY.size}, the size of an entry"
        )
    if len(data):
        first, last = data[:8], data[-_TIME_ENTRY.size : -4]
        first_time, last_time = struct.unpack(">q", first)[0], struct.unpack(">q", last)[0]
        if last_time < first_time:
            raise ValueError(f"{path}: the last timestamp, {last_time}, is below the first, {first_time}")


def batches_beside(path: str) -> Iterator[tuple[int, BatchHeader]]:
    """The positions and headers of the batches in the log of an index."""
    yield from iter_batches(map_file(str(Path(path).with_suffix(".log"))))


def dump_transaction_index(path: str) -> Iterator[str]:
    data = map_file(path)
    if len(data) % _ABORTED_TRANSACTION.size:
        raise ValueError(
            f"{path}: {len(data)} bytes are not a multiple of {_ABORTED_TRANSACTION.size}, "
            "the size of an entry"
        )
    for version, producer_id, first, last, stable in _ABORTED_TRANSACTION.iter_unpack(data):
        yield (
            f"version: {version} producerId: {producer_id} firstOffset: {first} "
            f"lastOffset: {last} lastStableOffset: {stable}"
        )


def dump_producer_snapshot(path: str) -> Iterator[str]:
    data = Path(path).read_bytes()
    if len(data) < 2 or int.from_bytes(data[:2]) != SNAPSHOT_VERSION:
        raise ValueError(f"{path}: a snapshot of producers starts with version {SNAPSHOT_VERSION}")
    try:
        snapshot = ProducerSnapshot.decode(data[2:], SNAPSHOT_VERSION)
    except ProtocolError as error:
        raise ValueError(f"{path}: {error}") from None
    for entry in snapshot.producer_entries:
        first_offset = entry.current_txn_first_offset
        text = (
            f"producerId: {entry.producer_id} producerEpoch: {entry.epoch} "
            f"coordinatorEpoch: {entry.coordinator_epoch} currentTxnFirstOffset: "
            f"{'OptionalLong.empty' if first_offset < 0 else f'OptionalLong[{first_offset}]'} "
            f"lastTimestamp: {entry.timestamp}"
        )
        if entry.last_offset >= 0:
            first_sequence = (entry.last_sequence - entry.offset_delta) & 0x7FFFFFFF
            text += (
                f" firstSequence: {first_sequence} lastSequence: {entry.last_sequence} "
                f"lastOffset: {entry.last_offset} offsetDelta: {entry.offset_delta} "
                f"timestamp: {entry.timestamp}"
            )
        yield text


def yes_no(value: bool) -> str:
    return "true" if value else "false"


def codec_name(header: BatchHeader) -> str:
    try:
        return header.codec.name.lower()
    except KafkaError:
        return f"unknown({header.attributes & 7})"


def size_of(value: bytes | None) -> int:
    return -1 if value is None else len(value)
