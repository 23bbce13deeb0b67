"""Records from Arrow tables: batches are filled from Arrow's buffers, without an object per record.

Columns have the names of a consumer's `poll_arrow`. Keys and values are binary or string. A row without a
partition goes to the partition of its key, as in `send`, and without a key to the sticky partition. A
user-defined partitioner is called for each row. Interceptors and serializers do not run.
"""

from __future__ import annotations

import difflib
import time
from array import array
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.clients.producer.accumulator import RECORD_OVERHEAD
from tidelog.clients.producer.core import Headers, ProducerCore, RecordFailed, TurnEnd, Wait, encoded_headers
from tidelog.clients.producer.partitioners import Choose
from tidelog.errors import KafkaError
from tidelog.records.loops import ArrowColumn, ArrowColumns, EncodedHeaders, RecordFuture, encode_headers

if TYPE_CHECKING:
    import pyarrow as pa

KEY, VALUE, TIMESTAMP = "key", "value", "timestamp"
TOPIC, PARTITION, HEADERS, OFFSET = "topic", "partition", "headers", "offset"
# The broker assigns offsets: the offset column of `poll_arrow` is not sent.
NOT_BY_OTHER_NAMES = (TOPIC, PARTITION, HEADERS, OFFSET)
COLUMNS = (KEY, VALUE, TIMESTAMP, *NOT_BY_OTHER_NAMES)
NO_PARTITION = -1
TURN_END = TurnEnd()


class SentColumns:
    """The future of a table: `result()` in a thread, `await` in a coroutine, wait for all rows."""

    __slots__ = ("futures", "rows")

    def __init__(self) -> None:
        self.rows = 0
        self.futures: list[RecordFuture] = []
        """The futures of the last row in each batch."""

    def done(self) -> bool:
        return all(future.done() for future in self.futures)

    def result(self, timeout: float | None = None) -> int:
        """The number of rows, once all are written; raises the first error."""
        deadline = None if timeout is None else time.monotonic() + timeout
        for future in self.futures:
            future.result(None if deadline is None else max(0.0, deadline - time.monotonic()))
        return self.rows

    def __await__(self) -> Generator[object, None, int]:
        for future in self.futures:
            yield from future.__await__()
        return self.rows


@dataclass(slots=True, frozen=True)
class RowSources:
    """The sources of the parts of records: columns, or values for all rows."""

    topic: str | None
    partition: int | None
    headers: Headers | None
    key_column: str | None
    value_column: str | None
    timestamp_column: str | None

    def columns_of(self, schema: pa.Schema) -> RowColumns:
        """The columns to send. Raises ValueError for a missing or unknown column."""
        names: list[str] = schema.names
        if len(set(names)) < len(names):
            raise ValueError(f"a column stands twice in {', '.join(names)}")
        found = RowColumns(
            key=_name(names, self.key_column, KEY),
            value=_name(names, self.value_column, VALUE, needed=True) or VALUE,
            timestamp=_name(names, self.timestamp_column, TIMESTAMP),
            topic=TOPIC if self.topic is None else None,
            partition=PARTITION if self.partition is None and PARTITION in names else None,
            headers=HEADERS if self.headers is None and HEADERS in names else None,
        )
        if found.topic is not None and TOPIC not in names:
            raise ValueError("no topic is given, and the table has no column 'topic'")
        if names != [found.value]:
            self._refuse_others(names, found)
        return found

    def _refuse_others(self, names: list[str], columns: RowColumns) -> None:
        used = {columns.key, columns.value, columns.timestamp, *NOT_BY_OTHER_NAMES}
        for name in names:
            if name not in used:
                usual = [known for known in COLUMNS if known not in names]
                near = difflib.get_close_matches(name, usual, n=1, cutoff=0.6)
                hint = f"did you mean {near[0]!r}?" if near else f"columns are {', '.join(COLUMNS)}"
                raise ValueError(f"column {name!r} would not be sent: {hint}; select() leaves columns out")


@dataclass(slots=True, frozen=True)
class RowColumns:
    """The names of the columns for the parts of a record."""

    key: str | None
    value: str
    timestamp: str | None
    topic: str | None
    partition: str | None
    headers: str | None


class ColumnSender:
    """Appends the rows of a table to batches, in steps."""

    def __init__(self, core: ProducerCore, sources: RowSources) -> None:
        if sources.partition is not None and sources.partition < 0:
            raise ValueError(f"partition {sources.partition} of topic {sources.topic!r}: expected at least 0")
        self._core = core
        self._sources = sources
        self._headers = encoded_headers(sources.headers or ())
        self._sent = SentColumns()

    def steps(self, data: pa.Table | pa.RecordBatch) -> Generator[Wait, None, SentColumns]:
        """The steps of a table. An error is raised; the rows before it are in batches already."""
        try:
            return (yield from self._steps(data))
        except KafkaError as error:
            if self._core.transactions is not None and not self._core.is_raised(error):
                yield RecordFailed(error)  # some rows are not part of the transaction
            raise

    def _steps(self, data: pa.Table | pa.RecordBatch) -> Generator[Wait, None, SentColumns]:
        import pyarrow as pa

        self._core.check_open()
        if not isinstance(data, pa.RecordBatch | pa.Table):
            raise TypeError(f"expected a Table or RecordBatch of pyarrow, not {type(data).__name__}")
        names = self._sources.columns_of(data.schema)
        for batch in [data] if isinstance(data, pa.RecordBatch) else data.to_batches():
            for topic, partition, rows in rows_by_place(batch, self._sources, names):
                yield from self._place(topic, partition, rows, names)
        return self._sent

    def _place(
        self, topic: str, partition: int | None, rows: pa.RecordBatch, names: RowColumns
    ) -> Generator[Wait, None, None]:
        """Append rows of one topic, to one partition or each to the partition of its key."""
        core = self._core
        deadline = time.monotonic() + core.settings.max_block_ms / 1000
        yield from core.known(topic, partition, deadline)
        columns = arrow_columns(rows, names, self._headers)
        largest = columns.largest() + RECORD_OVERHEAD
        core.check_size(largest)
        yield from self._send(_Rows(topic, columns, largest), partition)
        self._sent.rows += columns.rows

    def _send(self, rows: _Rows, partition: int | None) -> Generator[Wait, None, None]:
        core, columns = self._core, rows.columns
        if partition is None and core.choose is not None:
            for chosen, numbers in self._chosen(rows, core.choose).items():
                yield from self._send_rows(rows, numbers, chosen)
            return
        if partition is not None or not columns.has_keys or core.settings.partitioner_ignore_keys:
            yield from self._send_rows(rows, None, partition)
            return
        groups = columns.rows_by_partition(core.client.view.partition_count(rows.topic) or 1)
        for number, found in enumerate(groups):
            if len(found):
                yield from self._send_rows(rows, found, number if number < len(groups) - 1 else None)

    def _chosen(self, rows: _Rows, choose: Choose) -> dict[int, array[int]]:
        """The rows of each partition, by a user-defined partitioner."""
        found: dict[int, array[int]] = {}
        for number in range(rows.columns.rows):
            key, value = rows.columns.row(number)
            partition = self._core.chosen(choose, rows.topic, key, key, value, value)
            found.setdefault(partition, array("i")).append(number)
        return found

    def _send_rows(
        self, rows: _Rows, numbers: array[int] | None, partition: int | None
    ) -> Generator[Wait, None, None]:
        """Append rows to one batch after another."""
        core, stop = self._core, rows.columns.rows if numbers is None else len(numbers)
        at = 0
        while at < stop:
            deadline = time.monotonic() + core.settings.max_block_ms / 1000
            with core.sending:
                core.check_open()
                done = self._fill(rows, numbers, at, stop, partition)
            if done is None:
                yield from core.memory(rows.largest, deadline)
            else:
                at = done
                yield TURN_END

    def _fill(
        self, rows: _Rows, numbers: array[int] | None, at: int, stop: int, partition: int | None
    ) -> int | None:
        """Append rows to the open batch, or a new one. Returns the next row, None if there is no memory."""
        core, now = self._core, time.monotonic()
        accumulator, topic = core.accumulator, rows.topic
        queue = core.sticky_queue(topic) if partition is None else accumulator.queue(topic, partition)
        timestamp = time.time_ns() // 1_000_000
        batch = accumulator.begin(queue, rows.largest, now)
        done = at
        if batch is not None:
            done = batch.append_rows(rows.columns, numbers, at, stop, timestamp)
            if done == at:
                # It became full, or was taken to be sent, a moment ago.
                batch = accumulator.start_next(queue, rows.largest, now)
                if batch is not None:
                    done = batch.append_rows(rows.columns, numbers, at, stop, timestamp)
        if batch is None:
            return None
        if partition is None:
            core.remember_sticky(topic, batch)
        if done < stop and not batch.sealed:
            # The next row does not fit: the batch is full.
            if partition is None:
                core.sticky_queue(topic, filled=True)
            batch.seal()
        self._sent.futures.append(batch.last_future())
        core.announce(queue, now)
        return done


@dataclass(slots=True, frozen=True)
class _Rows:
    """Rows of one topic in the form of the compiled code; `largest` is the size of the largest row."""

    topic: str
    columns: ArrowColumns
    largest: int


def rows_by_place(
    batch: pa.RecordBatch, sources: RowSources, names: RowColumns
) -> Iterator[tuple[str, int | None, pa.RecordBatch]]:
    """The rows of each topic and partition, in their order; None stands for the partition of the key."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not batch.num_rows:
        return
    topics = [sources.topic or ""]
    if names.topic is None and names.partition is None:
        yield topics[0], sources.partition, batch
        return
    codes = pa.repeat(pa.scalar(0, pa.int64()), batch.num_rows)
    if names.topic is not None:
        topics, codes = _topic_codes(batch.column(names.topic), names.topic)
    if names.partition is not None:
        numbers = batch.column(names.partition)
        if not pa.types.is_integer(numbers.type):
            raise TypeError(f"column {names.partition!r} is {numbers.type}; expected int32")
        least = pc.min(numbers).as_py()
        if least is not None and least < 0:
            raise ValueError(f"column {names.partition!r} has partition {least}: expected at least 0")
        codes = pc.add(codes, pc.add(pc.fill_null(numbers.cast(pa.int64()), NO_PARTITION), 1))
    for number, partition, rows in rows_by_code(batch, codes):
        yield topics[number], sources.partition if names.partition is None else partition, rows


def _topic_codes(column: pa.Array, name: str) -> tuple[list[str], pa.Int64Array]:
    """The topics of a column, and for each row the index of its topic, shifted by 32 bits."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if column.null_count:
        raise ValueError(f"column {name!r} has rows without a topic")
    try:
        encoded = column.cast(pa.string()).dictionary_encode()
    except pa.ArrowException:
        raise TypeError(f"column {name!r} is {column.type}; expected string") from None
    shifted = pc.shift_left(encoded.indices.cast(pa.int64()), pa.scalar(32, pa.int64()))
    return encoded.dictionary.to_pylist(), shifted


def rows_by_code(
    batch: pa.RecordBatch, codes: pa.Int64Array
) -> Iterator[tuple[int, int | None, pa.RecordBatch]]:
    """Group rows by codes of topic << 32 | partition + 1; 0 stands for no partition."""
    import pyarrow.compute as pc

    kinds = pc.unique(codes).to_pylist()
    for code in kinds:
        rows = batch if len(kinds) == 1 else batch.filter(pc.equal(codes, code))
        partition = (code & 0xFFFFFFFF) - 1
        yield code >> 32, None if partition == NO_PARTITION else partition, rows


def arrow_columns(batch: pa.RecordBatch, names: RowColumns, headers: EncodedHeaders) -> ArrowColumns:
    """The columns of a record batch in the form of the compiled code."""
    rows = batch.num_rows
    keys = ArrowColumn(None, None, None, 0, rows, False)
    if names.key is not None:
        keys = _binary(batch.column(names.key), names.key)
    times, first = None, 0
    if names.timestamp is not None:
        stamps = _milliseconds(batch.column(names.timestamp), names.timestamp)
        times, first = stamps.buffers()[1], stamps.offset
    values = _binary(batch.column(names.value), names.value)
    own = None if names.headers is None else _row_headers(batch.column(names.headers), names.headers)
    return ArrowColumns(keys, values, times, first, headers, own)


def _row_headers(column: pa.Array, name: str) -> ArrowColumn | None:
    """The encoded headers of each row; None if no row has any."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    try:
        column = column.cast(kind)
    except pa.ArrowException:
        raise TypeError(f"column {name!r} is {column.type}; expected {kind}") from None
    if not pc.sum(pc.list_value_length(column)).as_py():
        return None
    cells: list[bytes | None] = []
    for pairs in column.to_pylist():
        for pair in pairs or ():
            if pair is None or pair["key"] is None:
                raise ValueError(f"column {name!r} has a header without a name")
        fields = tuple((pair["key"].encode(), pair["value"]) for pair in pairs or ())
        cells.append(encode_headers(fields) if fields else None)
    return _binary(pa.array(cells, pa.binary()), name)


def _name(names: list[str], given: str | None, usual: str, *, needed: bool = False) -> str | None:
    if given is not None:
        if given not in names:
            raise ValueError(f"column {given!r} is not in the table, which has {', '.join(names)}")
        return given
    if usual in names:
        return usual
    if not needed:
        return None
    if len(names) == 1:
        return names[0]
    raise ValueError(f"which column has the values? value_column= names one of {', '.join(names)}")


def _binary(column: pa.Array, name: str) -> ArrowColumn:
    import pyarrow as pa

    types = pa.types
    kind = column.type
    if types.is_null(kind):
        return ArrowColumn(None, None, None, 0, len(column), False)
    if types.is_dictionary(kind):
        column = column.dictionary_decode()
        kind = column.type
    if not (_is_narrow(kind) or _is_wide(kind)):
        try:
            column = column.cast(pa.large_binary())
        except pa.ArrowException:
            raise TypeError(f"column {name!r} is {kind}; expected binary or string") from None
        kind = column.type
    validity, offsets, content = column.buffers()
    return ArrowColumn(offsets, content, validity, column.offset, len(column), _is_wide(kind))


def _is_narrow(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_binary(kind) or pa.types.is_string(kind))


def _is_wide(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_large_binary(kind) or pa.types.is_large_string(kind))


def _milliseconds(column: pa.Array, name: str) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(pa.int64())
    if not pa.types.is_integer(column.type):
        raise TypeError(f"column {name!r} is {column.type}; expected a timestamp, or milliseconds as int64")
    column = column.cast(pa.int64())
    if column.null_count:
        column = pc.fill_null(column, time.time_ns() // 1_000_000)
    earliest = pc.min(column).as_py()
    if earliest < 0:
        raise ValueError(f"column {name!r} has timestamp {earliest}: expected milliseconds since 1970")
    return column
