"""Records from Arrow columns: batches are filled from Arrow's own buffers, without an object per record.

Keys and values are binary or string columns; a key decides the partition as it does in `send`, rows without
one stay with the batch at hand. A partitioner of the user's is asked row by row. Interceptors and serializers
are for single records and are passed over.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

from tidelog.clients.producer.accumulator import RECORD_OVERHEAD
from tidelog.clients.producer.core import Headers, ProducerCore, TopicWait, TurnEnd, Wait, encoded_headers
from tidelog.clients.producer.partitioners import Choose
from tidelog.errors import KafkaError
from tidelog.records._pure_client import EncodedHeaders
from tidelog.records.loops import ArrowColumn, ArrowColumns, RecordFuture

if TYPE_CHECKING:
    import pyarrow as pa

KEY, VALUE, TIMESTAMP = "key", "value", "timestamp"
TURN_END = TurnEnd()


class SentColumns:
    """How the rows of a table fare: waited for together, in a thread (`result`) or a coroutine (`await`)."""

    __slots__ = ("futures", "rows")

    def __init__(self) -> None:
        self.rows = 0
        self.futures: list[RecordFuture] = []
        """The future of the last row in each batch that took some."""

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


class ColumnSender:
    """The steps of a table on its way into batches."""

    def __init__(self, core: ProducerCore, topic: str, partition: int | None, headers: Headers) -> None:
        if partition is not None and partition < 0:
            raise ValueError(f"partition {partition} of topic {topic!r}: at least 0 is right")
        self._core = core
        self._topic = topic
        self._partition = partition
        self._headers = encoded_headers(headers)
        self._sent = SentColumns()

    def steps(
        self, data: pa.Table | pa.RecordBatch, key: str | None, value: str | None, timestamp: str | None
    ) -> Generator[Wait, None, SentColumns]:
        """Errors are raised, not kept in a future: rows before them are in batches already."""
        try:
            return (yield from self._steps(data, key, value, timestamp))
        except KafkaError as error:
            transactions = self._core.transactions
            if transactions is not None and not self._core.is_raised(error):
                transactions.batch_failed(error)  # some rows are not part of it
            raise

    def _steps(
        self, data: pa.Table | pa.RecordBatch, key: str | None, value: str | None, timestamp: str | None
    ) -> Generator[Wait, None, SentColumns]:
        core = self._core
        core.check_open()
        deadline = time.monotonic() + core.settings.max_block_ms / 1000
        count = core.client.view.partition_count(self._topic)
        if count is None or (self._partition is not None and self._partition >= count):
            yield TopicWait(self._topic, self._partition, max(0.0, deadline - time.monotonic()))
        for columns in arrow_columns(data, key, value, timestamp, self._headers):
            largest = columns.largest() + RECORD_OVERHEAD
            core.check_size(largest)
            yield from self._send(columns, largest)
            self._sent.rows += columns.rows
        return self._sent

    def _send(self, columns: ArrowColumns, largest: int) -> Generator[Wait, None, None]:
        core = self._core
        if self._partition is None and core.choose is not None:
            for partition, rows in self._chosen(columns, core.choose).items():
                yield from self._send_rows(columns, rows, partition, largest)
            return
        if self._partition is not None or not columns.has_keys or core.settings.partitioner_ignore_keys:
            yield from self._send_rows(columns, None, self._partition, largest)
            return
        groups = columns.rows_by_partition(core.client.view.partition_count(self._topic) or 1)
        for partition, rows in enumerate(groups):
            if len(rows):
                chosen = partition if partition < len(groups) - 1 else None
                yield from self._send_rows(columns, rows, chosen, largest)

    def _chosen(self, columns: ArrowColumns, choose: Choose) -> dict[int, array[int]]:
        """The rows of each partition, as a partitioner of the user's has it."""
        found: dict[int, array[int]] = {}
        for number in range(columns.rows):
            key, value = columns.row(number)
            partition = self._core.chosen(choose, self._topic, key, key, value, value)
            found.setdefault(partition, array("i")).append(number)
        return found

    def _send_rows(
        self, columns: ArrowColumns, rows: array[int] | None, partition: int | None, largest: int
    ) -> Generator[Wait, None, None]:
        """Fill one batch after the other; each begins where the one before was full."""
        core, stop = self._core, columns.rows if rows is None else len(rows)
        at = 0
        while at < stop:
            deadline = time.monotonic() + core.settings.max_block_ms / 1000
            with core.sending:
                core.check_open()
                done = self._fill(columns, rows, at, stop, partition, largest)
            if done is None:
                yield from core.memory(largest, deadline)
            else:
                at = done
                yield TURN_END

    def _fill(
        self,
        columns: ArrowColumns,
        rows: array[int] | None,
        at: int,
        stop: int,
        partition: int | None,
        largest: int,
    ) -> int | None:
        """Rows into the batch at hand, or into a new one: the next row; None where memory is missing."""
        core, now = self._core, time.monotonic()
        accumulator = core.accumulator
        if partition is None:
            queue = core.sticky_queue(self._topic)
        else:
            queue = accumulator.queue(self._topic, partition)
        timestamp = time.time_ns() // 1_000_000
        batch = accumulator.begin(queue, largest, now)
        done = at
        if batch is not None:
            done = batch.append_rows(columns, rows, at, stop, timestamp)
            if done == at:
                # It filled up, or was taken away to be sent, a moment ago.
                batch = accumulator.start_next(queue, largest, now)
                if batch is not None:
                    done = batch.append_rows(columns, rows, at, stop, timestamp)
        if batch is None:
            return None
        if partition is None:
            core.remember_sticky(self._topic, batch)
        if done < stop and not batch.sealed:
            # No room for the next row, so that the batch counts as full.
            if partition is None:
                core.sticky_queue(self._topic, filled=True)
            batch.seal()
        self._sent.futures.append(batch.last_future())
        core.announce(queue, now)
        return done


def arrow_columns(
    data: pa.Table | pa.RecordBatch,
    key: str | None,
    value: str | None,
    timestamp: str | None,
    headers: EncodedHeaders,
) -> Iterator[ArrowColumns]:
    """The columns of each record batch in a table, as the compiled code takes them."""
    import pyarrow as pa

    if not isinstance(data, pa.RecordBatch | pa.Table):
        raise TypeError(f"expected a Table or RecordBatch of pyarrow, not {type(data).__name__}")
    batches = [data] if isinstance(data, pa.RecordBatch) else data.to_batches()
    names = data.schema.names
    value_name = _name(names, value, VALUE, needed=True)
    key_name = _name(names, key, KEY)
    time_name = _name(names, timestamp, TIMESTAMP)
    for batch in batches:
        rows = batch.num_rows
        if not rows:
            continue
        assert value_name is not None
        keys = ArrowColumn(None, None, None, 0, rows, False)
        if key_name is not None:
            keys = _binary(batch.column(key_name), key_name)
        times, first = None, 0
        if time_name is not None:
            stamps = _milliseconds(batch.column(time_name), time_name)
            times, first = stamps.buffers()[1], stamps.offset
        values = _binary(batch.column(value_name), value_name)
        yield ArrowColumns(keys, values, times, first, headers)


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
            raise TypeError(f"column {name!r} is {kind}; binary or string is right") from None
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
        raise TypeError(f"column {name!r} is {column.type}; a timestamp, or milliseconds as int64, is right")
    column = column.cast(pa.int64())
    if column.null_count:
        column = pc.fill_null(column, time.time_ns() // 1_000_000)
    earliest = pc.min(column).as_py()
    if earliest < 0:
        raise ValueError(f"column {name!r} has timestamp {earliest}: milliseconds since 1970 are right")
    return column
