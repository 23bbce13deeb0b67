"""The rows of an offset range in the form of Spark's connector, in plain Python; `_speed` has it compiled.

Times are in microseconds, a record without headers has null, and rows end before the offset `end`.
"""

from __future__ import annotations

from array import array

from tidelog.errors import KafkaError
from tidelog.records._pure import Buffer, _wrap64
from tidelog.records._pure_fetch import COLUMN_BYTES, ColumnSink, ConsumerRecord, RecordReader

_MOST_MILLISECONDS = (2**63 - 1) // 1000


class RowSink:
    """The selected columns in Arrow's layout, filled by readers. `buffers` returns them by name."""

    def __init__(self, end: int, *, keys: bool = True, values: bool = True, headers: bool = False) -> None:
        self.ended = False
        """Whether a record at or after `end` was seen."""
        self._end = end
        self._wanted = {"key": keys, "value": values, "headers": headers}
        self._columns = ColumnSink()
        self._times, self._kinds = array("q"), array("i")
        self._header_bits = bytearray()
        self.null_headers = 0
        self.beyond = -1
        """The first offset whose timestamp is too large for microseconds, -1 if all fit."""
        self.beyond_time = 0
        """That timestamp, in milliseconds."""

    @property
    def rows(self) -> int:
        return self._columns.rows

    @property
    def null_keys(self) -> int:
        return self._columns.null_keys if self._wanted["key"] else 0

    @property
    def null_values(self) -> int:
        return self._columns.null_values if self._wanted["value"] else 0

    @property
    def null_header_values(self) -> int:
        return self._columns.null_header_values

    @property
    def header_rows(self) -> int:
        return self._columns.header_rows

    def fill(self, reader: RecordReader, limit: int) -> int:
        """Take the next rows of a reader, at most `limit`; returns their number."""
        made = 0
        while made < limit and not self.ended and self._columns.has_room(COLUMN_BYTES // 8):
            try:
                record = reader._next()
            except KafkaError:
                if made:
                    break
                raise
            if record is None:
                break
            if record.offset >= self._end:
                self.ended = True
                break
            self._add(record)
            made += 1
        return made

    def _add(self, record: ConsumerRecord) -> None:
        row = self.rows
        if not self._wanted["headers"]:
            record.headers = ()
        if self.beyond < 0 and abs(record.timestamp) > _MOST_MILLISECONDS:
            self.beyond, self.beyond_time = record.offset, record.timestamp
        self._times.append(_wrap64(record.timestamp * 1000))
        self._kinds.append(record.timestamp_type)
        if row & 7 == 0:
            self._header_bits.append(0)
        if record.headers:
            self._header_bits[row >> 3] |= 1 << (row & 7)
        elif self._wanted["headers"]:
            self.null_headers += 1
        self._columns.add(record)

    def buffers(self) -> dict[str, Buffer]:
        """`name` for columns of fixed width; `name ends`, `name data` and `name bits` for the others."""
        raw = self._columns.buffers()
        found: dict[str, Buffer] = {
            "offset": raw["offset"],
            "timestamp": memoryview(self._times).cast("B"),
            "timestampType": memoryview(self._kinds).cast("B"),
        }
        names = [name for name in ("key", "value") if self._wanted[name]]
        if self._wanted["headers"]:
            found["headers ends"], found["headers bits"] = raw["headers ends"], self._header_bits
            found |= {f"header key {part}": raw[f"header key {part}"] for part in ("ends", "data")}
            names.append("header value")
        for name in names:
            found |= {f"{name} {part}": raw[f"{name} {part}"] for part in ("ends", "data", "bits")}
        return found
