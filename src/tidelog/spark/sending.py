"""Sends rows of a data frame with a producer: `Target` names the columns, `RowSender` sends Arrow batches.

Rows are grouped by topic and partition and sent as columns, in their order within a group. Only rows with
headers, and rows whose partition a partitioner chooses, are sent one by one. Columns that Spark's Kafka
connector refuses are refused with the same message.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.errors import MessageTooLarge
from tidelog.spark.options import OptionError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

    from tidelog.clients.producer.blocking import Producer
    from tidelog.clients.producer.columns import SentColumns
    from tidelog.records.loops import RecordFuture

Headers = tuple[tuple[str, bytes | None], ...]

TOPIC, KEY, VALUE, PARTITION, HEADERS = "topic", "key", "value", "partition", "headers"
NO_PARTITION = -1
# How many unfinished sends are kept before the first ones are checked.
LOOK_BACK = 256


class SchemaError(ValueError):
    """A data frame whose columns cannot be written to a topic."""


class RowError(ValueError):
    """A row that cannot be written."""


@dataclass(frozen=True, slots=True)
class Target:
    """The destination of rows: one topic, or None if each row names its own, and the columns that exist."""

    topic: str | None
    has_key: bool
    has_partition: bool
    has_headers: bool


def target_of(schema: StructType, topic: str | None) -> Target:
    """Check the columns of a data frame. Names match exactly, and other columns are ignored."""
    from pyspark.sql.types import ArrayType, BinaryType, IntegerType, StringType, StructField, StructType

    header = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    columns = {field.name: field.dataType for field in schema.fields}
    if topic is None and TOPIC not in columns:
        raise SchemaError(
            f"topic option required when no '{TOPIC}' attribute is present. "
            f"Use the {TOPIC} option for setting a topic."
        )
    if VALUE not in columns:
        raise SchemaError(
            f"Required attribute '{VALUE}' not found; the columns are {', '.join(columns) or 'none'}"
        )
    if topic is None:
        _check_type(columns, TOPIC, StringType())
    _check_type(columns, KEY, StringType(), BinaryType())
    _check_type(columns, VALUE, StringType(), BinaryType())
    _check_type(columns, HEADERS, ArrayType(header))
    _check_type(columns, PARTITION, IntegerType())
    if topic is not None and not topic:
        raise OptionError("topic=: expected the name of a topic")
    return Target(topic, KEY in columns, PARTITION in columns, HEADERS in columns)


def _check_type(columns: dict[str, DataType], name: str, *wanted: DataType) -> None:
    found = columns.get(name)
    if found is not None and not any(_same(found, kind) for kind in wanted):
        kinds = " or ".join(kind.simpleString() for kind in wanted)
        raise SchemaError(
            f"{name} attribute unsupported type {found.simpleString()}. {name} must be a(n) {kinds}"
        )


def _same(found: DataType, wanted: DataType) -> bool:
    """Whether two types are equal, apart from nullability. Strings of any collation or length are equal."""
    from pyspark.sql.types import ArrayType, StringType, StructType

    if isinstance(wanted, ArrayType) and isinstance(found, ArrayType):
        return _same(found.elementType, wanted.elementType)
    if isinstance(wanted, StructType) and isinstance(found, StructType):
        return found.fieldNames() == wanted.fieldNames() and all(
            _same(mine.dataType, other.dataType)
            for mine, other in zip(found.fields, wanted.fields, strict=True)
        )
    if isinstance(wanted, StringType):
        return isinstance(found, StringType)
    return type(found) is type(wanted)


class RowSender:
    """Sends the batches of one task. `finish` waits for all rows and raises the first error."""

    def __init__(self, producer: Producer, target: Target, *, one_by_one: bool = False) -> None:
        self.rows = 0
        self._one_by_one = one_by_one or target.has_headers
        self._producer = producer
        self._target = target
        self._sent: list[SentColumns | RecordFuture] = []

    def send(self, batch: pa.RecordBatch) -> None:
        target = self._target
        for topic, partition, rows in groups(batch, target):
            if self._one_by_one:
                self._send_one_by_one(rows, topic, partition)
            else:
                self._sent.append(
                    self._producer.send_arrow(
                        rows.select([KEY, VALUE] if target.has_key else [VALUE]),
                        topic,
                        partition=partition,
                    )
                )
        self.rows += batch.num_rows
        if len(self._sent) > LOOK_BACK:
            self._look_back()

    def finish(self) -> int:
        self._producer.flush()
        for sent in self._sent:
            _written(sent)
        return self.rows

    def _look_back(self) -> None:
        """Drop the sends that are done. An error ends the task early."""
        waiting: list[SentColumns | RecordFuture] = []
        for sent in self._sent:
            if sent.done():
                _written(sent)
            else:
                waiting.append(sent)
        self._sent = waiting

    def _send_one_by_one(self, rows: pa.RecordBatch, topic: str, partition: int | None) -> None:
        nothing = [None] * rows.num_rows
        keys = _contents(rows.column(KEY)) if self._target.has_key else nothing
        values = _contents(rows.column(VALUE))
        headers = headers_of(rows.column(HEADERS)) if self._target.has_headers else nothing
        for key, value, pairs in zip(keys, values, headers, strict=True):
            self._sent.append(self._producer.send(topic, value, key, pairs or (), partition))


def _written(sent: SentColumns | RecordFuture) -> None:
    """Wait for a send, and raise its error."""
    try:
        sent.result(0)
    except MessageTooLarge as error:
        raise RowError(
            f"{error}: a row with its key and headers is larger than the topic allows; raise the topic's"
            " max.message.bytes or the broker's message.max.bytes, or set kafka.compression.type"
        ) from error


def _contents(column: pa.Array) -> list[bytes | None]:
    """The raw bytes of a column: a string of Spark may have bytes that are not UTF-8."""
    import pyarrow as pa

    found: list[bytes | None] = column.cast(pa.large_binary()).to_pylist()
    return found


def _text(content: bytes) -> str:
    """Bytes as text. Invalid UTF-8 becomes replacement characters, as in the connector."""
    return content.decode(errors="replace")


def headers_of(column: pa.Array) -> list[Headers]:
    """The headers of each row."""
    import pyarrow as pa

    kind = pa.list_(pa.struct([(KEY, pa.large_binary()), (VALUE, pa.large_binary())]))
    return [tuple(map(_header, row or ())) for row in column.cast(kind).to_pylist()]


def _header(given: dict[str, bytes | None] | None) -> tuple[str, bytes | None]:
    if given is None or (name := given[KEY]) is None:
        raise RowError("a header without a key cannot be written; leave it out of the headers column")
    return _text(name), given[VALUE]


def groups(batch: pa.RecordBatch, target: Target) -> Iterable[tuple[str, int | None, pa.RecordBatch]]:
    """The rows of each topic and partition, in their order. For None the producer chooses the partition."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from tidelog.clients.producer.columns import rows_by_code

    if batch.num_rows == 0:
        return []
    if target.topic is not None and not target.has_partition:
        return [(target.topic, None, batch)]
    codes = pa.repeat(pa.scalar(0, pa.int64()), batch.num_rows)
    names: list[str] = [target.topic or ""]
    if target.topic is None:
        topics = batch.column(TOPIC)
        if topics.null_count:
            raise RowError(
                "null topic present in the data. Use the topic option for setting a default topic."
            )
        encoded = topics.dictionary_encode()
        names = [_text(name or b"") for name in _contents(encoded.dictionary)]
        codes = pc.shift_left(encoded.indices.cast(pa.int64()), pa.scalar(32, pa.int64()))
    if target.has_partition:
        numbers = batch.column(PARTITION)
        least = pc.min(numbers).as_py()
        if least is not None and least < 0:
            raise RowError(f"partition {least} present in the data; expected 0 or more, or null for any")
        codes = pc.add(codes, pc.add(pc.fill_null(numbers, NO_PARTITION).cast(pa.int64()), 1))
    return [(names[place], partition, rows) for place, partition, rows in rows_by_code(batch, codes)]
