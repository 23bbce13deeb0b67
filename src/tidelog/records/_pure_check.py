"""The rules for produced batches, and the fields of a batch that a log needs, in plain Python.

`_speed_check.pxi` has the same compiled.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from tidelog.records._pure import (
    CRC_START,
    HEADER,
    HEADER_SIZE,
    INT64_MAX,
    INT64_MIN,
    LENGTH_OVERHEAD,
    Buffer,
    HeaderFields,
    crc,
    walk,
)
from tidelog.records.status import (
    APPEND_TIME,
    BAD_COUNT,
    BAD_CRC,
    BAD_LENGTH,
    BAD_OFFSET_RANGE,
    BAD_SEQUENCE,
    BASE_OFFSET,
    COMPRESSED,
    CONTROL_BATCH,
    COUNT_MISMATCH,
    NO_BATCH,
    OK,
    OLD_MAGIC,
    OLD_ZSTD,
    SECOND_BATCH,
    TOO_LARGE,
    UNKNOWN_CODEC,
    UNKNOWN_MAGIC,
)

# The status, the header fields if there are any, the greatest timestamp or the index of the bad record.
Look = tuple[int, HeaderFields | None, int]


class CheckedBatch(NamedTuple):
    """A batch that may be appended once its offset and leader epoch are patched in.

    `data` is writable and has exactly the batch, `size` bytes. The other fields come from its header.
    """

    data: memoryview
    size: int
    attributes: int
    last_offset_delta: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int

    @classmethod
    def of(cls, data: memoryview) -> CheckedBatch:
        """The batch of bytes that keep all rules."""
        fields: HeaderFields = HEADER.unpack_from(data)
        return cls(data, len(data), fields[5], fields[6], *fields[8:12])


class BatchRules:
    """The rules of a topic for batches, in a form that is fast to check."""

    __slots__ = (
        "_after_max_ms",
        "_allow_zstd",
        "_before_max_ms",
        "_from_client",
        "_keeps_codec",
        "_log_append_time",
        "_max_bytes",
        "_need_key",
    )

    def __init__(
        self,
        max_bytes: int,
        from_client: bool,
        allow_zstd: bool,
        need_key: bool,
        before_max_ms: int,
        after_max_ms: int,
        log_append_time: bool,
        keeps_codec: bool,
    ) -> None:
        self._max_bytes = max_bytes
        self._from_client = from_client
        self._allow_zstd = allow_zstd
        self._need_key = need_key
        self._before_max_ms = before_max_ms
        self._after_max_ms = after_max_ms
        self._log_append_time = log_append_time
        self._keeps_codec = keeps_codec  # whether uncompressed batches stay uncompressed

    def bounds(self, now_ms: int) -> tuple[int, int]:
        """The first and last timestamps that are allowed at `now_ms`."""
        if self._log_append_time:
            return INT64_MIN, INT64_MAX
        low = now_ms - self._before_max_ms
        high = now_ms + self._after_max_ms
        if high > INT64_MAX:
            high = INT64_MAX
            if self._before_max_ms == INT64_MAX:
                low = INT64_MIN  # without limits every timestamp is allowed
        return max(low, INT64_MIN), high

    def look(self, buf: Buffer, now_ms: int) -> CheckedBatch | Look:
        """Check the one batch in `buf` as far as possible without a codec.

        Returns a CheckedBatch if the batch goes into the log unchanged: it keeps all rules, it is not
        compressed, and the topic changes nothing in it.
        """
        status, fields = _framing(buf)
        if fields is None:
            return status, None, 0
        total = fields[1] + LENGTH_OVERHEAD
        status = self._header_status(buf, fields, total)
        if status != OK:
            return status, fields, 0
        low, high = self.bounds(now_ms)
        status, index, greatest, _ = walk(
            buf, HEADER_SIZE, total, fields[12], fields[7], self._need_key, low, high
        )
        if status != OK:
            return status, fields, index
        if (
            self._log_append_time
            or not self._keeps_codec
            or not isinstance(buf, memoryview)
            or buf.readonly
            or total != len(buf)
            or greatest != fields[8]
        ):
            return OK, fields, greatest
        return CheckedBatch.of(buf)

    def _header_status(self, buf: Buffer, fields: HeaderFields, total: int) -> int:
        """Check the rules before the records, in Kafka's order. After OK and COMPRESSED check the records."""
        if not self._allow_zstd and fields[5] & 7 == 4:
            return OLD_ZSTD
        status, _ = _next_length(buf, total, len(buf))
        if status != NO_BATCH:
            return SECOND_BATCH if status == OK else status
        status = _header_rules(fields, total, self._max_bytes, self._from_client)
        if status not in (BASE_OFFSET, TOO_LARGE) and crc(buf, CRC_START, total) != fields[4]:
            return BAD_CRC
        return status


def _framing(buf: Buffer) -> tuple[int, HeaderFields | None]:
    """Check that there is one complete batch of magic 2. A second batch is not looked for here."""
    status, length = _next_length(buf, 0, len(buf))
    if status != OK:
        return status, None
    if buf[16] != 2:
        return OLD_MAGIC, None
    if length < HEADER_SIZE - LENGTH_OVERHEAD:
        return BAD_LENGTH, None
    fields: HeaderFields = HEADER.unpack_from(buf)
    return OK, fields


def _next_length(buf: Buffer, start: int, end: int) -> tuple[int, int]:
    size = end - start
    if size < LENGTH_OVERHEAD:
        return NO_BATCH, 0
    length: int = struct.unpack_from(">i", buf, start + 8)[0]
    if length < 14:  # the smallest of any magic
        return BAD_LENGTH, 0
    if size < 17:
        return NO_BATCH, 0
    if buf[start + 16] > 2:
        return UNKNOWN_MAGIC, 0
    return (OK if length <= size - LENGTH_OVERHEAD else NO_BATCH), length


def _header_rules(fields: HeaderFields, total: int, max_bytes: int, from_client: bool) -> int:
    attributes, last_delta, count = fields[5], fields[6], fields[12]
    if from_client and fields[0] != 0:
        return BASE_OFFSET
    if total > max_bytes:
        return TOO_LARGE
    if attributes & 7 > 4:
        return UNKNOWN_CODEC
    if from_client:
        if last_delta < 0:
            return BAD_OFFSET_RANGE
        if count <= 0:
            return BAD_COUNT
        if count != last_delta + 1:
            return COUNT_MISMATCH
        if attributes & 0x20:
            return CONTROL_BATCH
        if fields[9] >= 0 and fields[11] < 0:
            return BAD_SEQUENCE
    if attributes & 0x08:
        return APPEND_TIME
    return COMPRESSED if attributes & 7 else OK
