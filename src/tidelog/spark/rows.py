"""The columns of the source: the same as in Spark's Kafka connector."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidelog.errors import InvalidTimestamp
from tidelog.records.loops import RecordReader, RowSink

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
"""In the order of the connector. `includeHeaders` or `columns` adds the headers."""


def source_schema() -> StructType:
    """Every column of the source and its type."""
    from pyspark.sql.types import (
        ArrayType,
        BinaryType,
        IntegerType,
        LongType,
        StringType,
        StructField,
        StructType,
        TimestampType,
    )

    header = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    return StructType(
        [
            StructField("key", BinaryType()),
            StructField("value", BinaryType()),
            StructField("topic", StringType()),
            StructField("partition", IntegerType()),
            StructField("offset", LongType()),
            StructField("timestamp", TimestampType()),
            StructField("timestampType", IntegerType()),
            StructField("headers", ArrayType(header)),
        ]
    )


def arrow_schema(schema: StructType) -> pa.Schema:
    """The exact Arrow schema that Spark expects of a batch with these columns."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


@dataclass(slots=True)
class Constants:
    """Columns with the same value in every row, made once and sliced for each batch."""

    topic: str
    partition: int
    _made: dict[str, pa.Array] = field(default_factory=dict)

    def column(self, name: str, rows: int) -> pa.Array:
        found = self._made.get(name)
        if found is None or len(found) < rows:
            import pyarrow as pa

            scalar = (
                pa.scalar(self.topic, pa.string())
                if name == "topic"
                else pa.scalar(self.partition, pa.int32())
            )
            found = self._made[name] = pa.repeat(scalar, max(rows, 1024))
        return found if len(found) == rows else found.slice(0, rows)


class RowBatches:
    """Turns the records of readers into the wanted columns, and no others."""

    def __init__(self, topic: str, partition: int, end: int, wanted: frozenset[str]) -> None:
        self._constants = Constants(topic, partition)
        self._end = end
        self._wanted = wanted
        self._types = {field.name: field.type for field in arrow_schema(source_schema())}

    def sink(self) -> RowSink:
        return RowSink(
            self._end,
            keys="key" in self._wanted,
            values="value" in self._wanted,
            headers="headers" in self._wanted,
        )

    def columns(self, sink: RowSink) -> dict[str, pa.Array]:
        """The wanted columns of the rows in a sink. The sink must not be used afterwards."""
        import pyarrow as pa

        if sink.beyond >= 0 and "timestamp" in self._wanted:
            raise self._beyond_timestamps(sink)
        rows = sink.rows
        raw = sink.buffers()

        def fixed(name: str) -> pa.Array:
            return pa.Array.from_buffers(self._types[name], rows, [None, pa.py_buffer(raw[name])], 0)

        def binary(kind: pa.DataType, name: str, count: int, nulls: int) -> pa.Array:
            bits = pa.py_buffer(raw[f"{name} bits"]) if nulls else None
            parts = [bits, pa.py_buffer(raw[f"{name} ends"]), pa.py_buffer(raw[f"{name} data"])]
            return pa.Array.from_buffers(kind, count, parts, nulls)

        def headers() -> pa.Array:
            kind = self._types["headers"]
            names = binary(pa.string(), "header key", sink.header_rows, 0)
            contents = binary(pa.binary(), "header value", sink.header_rows, sink.null_header_values)
            pairs = pa.StructArray.from_arrays([names, contents], fields=list(kind.value_type))
            bits = pa.py_buffer(raw["headers bits"]) if sink.null_headers else None
            parts = [bits, pa.py_buffer(raw["headers ends"])]
            return pa.Array.from_buffers(kind, rows, parts, sink.null_headers, children=[pairs])

        found: dict[str, pa.Array] = {}
        for name in self._wanted:
            if name in ("topic", "partition"):
                found[name] = self._constants.column(name, rows)
            elif name == "key":
                found[name] = binary(pa.binary(), name, rows, sink.null_keys)
            elif name == "value":
                found[name] = binary(pa.binary(), name, rows, sink.null_values)
            elif name == "headers":
                found[name] = headers()
            else:
                found[name] = fixed(name)
        return found

    def _beyond_timestamps(self, sink: RowSink) -> InvalidTimestamp:
        where = f"{self._constants.topic}-{self._constants.partition}, offset {sink.beyond}"
        return InvalidTimestamp(
            f"{where}: the time of the record is {sink.beyond_time} ms, which Spark's timestamps cannot hold"
            " (its producer may have counted microseconds or nanoseconds); to read it all the same, leave"
            " timestamp out of the option columns, or start behind it"
        )


def filled(batches: RowBatches, reader: RecordReader, limit: int) -> RowSink:
    """A sink with the next rows of a reader, at most `limit`."""
    sink = batches.sink()
    sink.fill(reader, limit)
    return sink
