"""The checks of the broker on a produced batch before it is appended to a log.

The broker applies the rules of Kafka 4.3 in the same order, with the same errors. Two rules are stricter:
offset deltas have to be 0, 1, 2 ... and record sizes correct in every codec, since Kafka stores some batches
that its own consumers cannot read; and the uncompressed size of a batch is limited. Thread-safe. Large
batches are checked without holding the GIL.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tidelog.errors import (
    CorruptMessage,
    InvalidRecord,
    InvalidTimestamp,
    KafkaError,
    MessageTooLarge,
    UnknownServerError,
    UnsupportedCompressionType,
)
from tidelog.records import loops, status
from tidelog.records._pure import INT64_MAX, INT64_MIN, HeaderFields
from tidelog.records._pure_check import CheckedBatch
from tidelog.records.batch import (
    CODEC_MASK,
    CONTROL_FLAG,
    HEADER_SIZE,
    LOG_APPEND_TIME_FLAG,
    MAGIC,
    NO_TIMESTAMP,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    assemble,
    read_header,
    set_max_timestamp,
)
from tidelog.records.codecs import DEFAULT_MAX_UNPACKED, Buffer, Codec, compress, decompress

__all__ = ["CheckedBatch", "NotOneBatch", "ProduceRules", "check_produced"]

# A limit, so that a small bad batch does not cause a large answer.
MAX_RECORD_ERRORS = 1000


@dataclass(slots=True, frozen=True)
class ProduceRules:
    """The rules of a topic for batches. A `target_codec` of None keeps the codec of the producer."""

    max_message_bytes: int = 1_048_588
    log_append_time: bool = False
    timestamp_before_max_ms: int = INT64_MAX
    timestamp_after_max_ms: int = 3_600_000
    compacted: bool = False
    target_codec: Codec | None = None
    target_level: int | None = None
    from_client: bool = True
    allow_zstd: bool = True
    max_unpacked: int = DEFAULT_MAX_UNPACKED
    batch: loops.BatchRules = field(init=False, repr=False, compare=False)  # the rules without a codec

    def __post_init__(self) -> None:
        rules = loops.BatchRules(
            self.max_message_bytes,
            self.from_client,
            self.allow_zstd,
            self.compacted,
            self.timestamp_before_max_ms,
            self.timestamp_after_max_ms,
            self.log_append_time,
            self.target_codec is None or self.target_codec is Codec.NONE,
        )
        object.__setattr__(self, "batch", rules)


class NotOneBatch(InvalidRecord):
    """No complete batch, several batches, or an unknown format: known before the log is looked up."""


_CODECS = tuple(Codec)


def check_produced(batch: memoryview, rules: ProduceRules, now_ms: int) -> CheckedBatch:
    """Check the batch of one partition of a Produce request, and compress it again or stamp it with `now_ms`
    if the topic says so. Raises the Kafka error of the first broken rule."""
    found = rules.batch.look(batch, now_ms)
    return found if isinstance(found, CheckedBatch) else _finish(batch, rules, now_ms, *found)


def _finish(
    batch: memoryview,
    rules: ProduceRules,
    now_ms: int,
    found: int,
    fields: HeaderFields | None,
    greatest: int,
) -> CheckedBatch:
    """Finish a batch that cannot be stored as it is: refuse, unpack, stamp, compress, or copy it."""
    if fields is None or (found and found != status.COMPRESSED and found not in _ABOUT_RECORDS):
        raise _broken(found, batch, rules)
    header = BatchHeader._make(fields)
    data = batch[: header.total_size]
    codec = _CODECS[header.attributes & CODEC_MASK]
    payload: Buffer | None = None
    if found != status.OK:
        payload, greatest = _look_inside(data, header, codec, rules, now_ms)
    if data.readonly or rules.log_append_time:
        data = memoryview(bytearray(data))  # a stamped batch would be refused if its request is checked again
    if rules.log_append_time:
        greatest = now_ms
    if rules.target_codec is not None and rules.target_codec is not codec:
        data = _recompressed(data, header._replace(max_timestamp=greatest), payload, rules)
    elif greatest != header.max_timestamp or rules.log_append_time or header.is_log_append_time:
        set_max_timestamp(data, 0, greatest, log_append_time=rules.log_append_time)
    return CheckedBatch.of(data)


def _look_inside(
    data: memoryview, header: BatchHeader, codec: Codec, rules: ProduceRules, now_ms: int
) -> tuple[Buffer, int]:
    """Uncompress the records if necessary, and check them: (payload, greatest timestamp)."""
    payload: Buffer = data[HEADER_SIZE:]
    if codec is not Codec.NONE:
        try:
            payload = decompress(codec, payload, rules.max_unpacked)
        except CorruptMessage as error:
            raise UnknownServerError(error.message) from None
    # With LogAppendTime set by the producer, all records have the greatest timestamp of the header.
    stamped = header.is_log_append_time
    low, high = (INT64_MIN, INT64_MAX) if stamped else rules.batch.bounds(now_ms)
    found, index, greatest, _ = loops.walk(
        payload, 0, len(payload), header.record_count, header.base_timestamp, rules.compacted, low, high
    )
    if found not in (status.OK, status.RECORD_ERRORS):
        raise InvalidRecord(f"record {index} of {header.record_count}: {_RECORD_REASONS[found]}")
    if found == status.RECORD_ERRORS or stamped:
        _raise_record_errors(payload, header, rules, now_ms)
    return payload, header.max_timestamp if stamped else greatest


def _raise_record_errors(payload: Buffer, header: BatchHeader, rules: ProduceRules, now_ms: int) -> None:
    """Raise an error that lists every record that breaks a rule, up to MAX_RECORD_ERRORS."""
    columns = loops.walk_columns(payload, 0, len(payload), header.record_count)
    errors: list[tuple[int, str | None]] = []
    about_time = False
    for index, (timestamp_delta, key_length) in enumerate(zip(columns[0], columns[3], strict=True)):
        if rules.compacted and key_length < 0:
            errors.append((index, "a compacted topic accepts no record without a key"))
        else:
            timestamp = header.base_timestamp + timestamp_delta
            reason = _time_reason(timestamp, header, rules, now_ms)
            if reason is not None:
                about_time = True
                errors.append((index, reason))
        if len(errors) == MAX_RECORD_ERRORS:
            break
    if about_time:
        raise InvalidTimestamp("the timestamps of some records are not allowed here", errors)
    if errors:
        raise InvalidRecord("some records have no key, which a compacted topic needs", errors)


def _time_reason(timestamp: int, header: BatchHeader, rules: ProduceRules, now_ms: int) -> str | None:
    stamped = header.is_log_append_time
    if stamped:
        timestamp = header.max_timestamp
    elif not INT64_MIN <= timestamp <= INT64_MAX:
        timestamp = (timestamp - INT64_MIN) % (1 << 64) + INT64_MIN
    if not rules.log_append_time and timestamp != NO_TIMESTAMP:
        low, high = rules.batch.bounds(now_ms)
        return None if low <= timestamp <= high else f"timestamp {timestamp} is not within {low} to {high}"
    return "only the broker sets the timestamp type LogAppendTime" if stamped else None


def _recompressed(
    data: memoryview, header: BatchHeader, payload: Buffer | None, rules: ProduceRules
) -> memoryview:
    """The batch in the topic's codec. Its size is checked again."""
    codec = rules.target_codec
    assert codec is not None
    packed = compress(codec, data[HEADER_SIZE:] if payload is None else payload, rules.target_level)
    attributes = header.attributes & (TRANSACTIONAL_FLAG | CONTROL_FLAG) | codec
    if rules.log_append_time:
        attributes |= LOG_APPEND_TIME_FLAG
    batch = assemble(header._replace(attributes=attributes), packed)
    if len(batch) > rules.max_message_bytes:
        raise _too_large(len(batch), rules)
    return memoryview(batch)


def _too_large(size: int, rules: ProduceRules) -> MessageTooLarge:
    return MessageTooLarge(f"the batch has {size} bytes; max.message.bytes is {rules.max_message_bytes}")


_RECORD_REASONS = {
    status.MALFORMED: "a length, count or size does not fit the record",
    status.CUT_SHORT: "the batch ends before it",
    status.BYTES_LEFT: "bytes follow after the last record",
    status.OFFSET_DELTA: "offset deltas have to be 0, 1, 2 ... in order",
}
_ABOUT_RECORDS = frozenset((*_RECORD_REASONS, status.RECORD_ERRORS, status.APPEND_TIME))
_CORRUPT = {
    status.BAD_LENGTH: "a batch length is too small for a batch",
    status.UNKNOWN_MAGIC: f"a batch has an unknown magic; expected {MAGIC}",
    status.BAD_CRC: "the checksum of the batch is wrong",
}
_NOT_ONE_BATCH = {
    status.NO_BATCH: "there is no complete batch; expected one per partition",
    status.OLD_MAGIC: f"message sets of magic 0 and 1 are not accepted; expected magic {MAGIC}",
    status.SECOND_BATCH: "there is more than one batch; expected one per partition",
}
_INVALID = {
    status.BASE_OFFSET: "the base offset of a produced batch is 0",
    status.BAD_OFFSET_RANGE: "the last offset delta is below 0",
    status.BAD_COUNT: "the record count is not above 0",
    status.COUNT_MISMATCH: "the record count is not the last offset delta + 1",
    status.CONTROL_BATCH: "only the broker writes control batches",
    status.BAD_SEQUENCE: "a batch with a producer id has a base sequence of 0 or more",
}


def _broken(found: int, batch: memoryview, rules: ProduceRules) -> KafkaError:
    if found == status.TOO_LARGE:
        return _too_large(read_header(batch).total_size, rules)
    if found == status.UNKNOWN_CODEC:
        return UnknownServerError(f"codec {read_header(batch).attributes & CODEC_MASK} is unknown")
    if found == status.OLD_ZSTD:
        return UnsupportedCompressionType("zstd needs version 7 or later of Produce")
    if found in _CORRUPT:
        return CorruptMessage(_CORRUPT[found])
    if found in _NOT_ONE_BATCH:
        return NotOneBatch(_NOT_ONE_BATCH[found])
    return InvalidRecord(_INVALID[found])
