"""Records as columns: fetched records are copied into Arrow's buffers without an object per record.

| column | type |
|---|---|
| topic | dictionary of strings |
| partition | int32 |
| offset | int64 |
| timestamp | timestamp in milliseconds, UTC; null where a record has none |
| key, value | binary |
| headers | list of structs of a key (string) and a value (binary) |
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from functools import cache, lru_cache
from importlib import import_module
from typing import TYPE_CHECKING

from tidelog.records.loops import ColumnSink

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa


@cache
def schema() -> pa.Schema:
    """The columns of `poll_arrow`."""
    import pyarrow as pa

    header = pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())])
    return pa.schema(
        [
            pa.field("topic", pa.dictionary(pa.int32(), pa.string()), nullable=False),
            pa.field("partition", pa.int32(), nullable=False),
            pa.field("offset", pa.int64(), nullable=False),
            pa.field("timestamp", pa.timestamp("ms", "UTC")),
            pa.field("key", pa.binary()),
            pa.field("value", pa.binary()),
            pa.field("headers", pa.list_(pa.field("item", header, nullable=False)), nullable=False),
        ]
    )


def load_arrow() -> None:
    """Import pyarrow before the time of a poll starts. ImportError names the extra to install."""
    _load("pyarrow", "columns need pyarrow: pip install 'tidelog[arrow]'")


def load_frames(library: str) -> None:
    """Import a library of data frames before any record is taken."""
    load_arrow()
    _load(library, f"data frames of {library} need it: pip install {library}")


async def load_off_the_loop(load: Callable[[], None], *libraries: str) -> None:
    """Call `load` in a thread if a library is not imported yet, which may take seconds."""
    if all(sys.modules.get(library) is not None for library in libraries):
        return
    await asyncio.get_running_loop().run_in_executor(None, load)


def _load(library: str, missing: str) -> None:
    try:
        import_module(library)
    except ImportError as error:
        raise ImportError(missing) from error


@cache
def no_headers() -> pa.Array:
    """The empty child array of headers, for records without headers."""
    import pyarrow as pa

    return pa.array([], schema().field("headers").type.value_type)


@lru_cache(maxsize=64)
def names_of(topics: tuple[str, ...]) -> pa.Array:
    """The dictionary of topic names, cached."""
    import pyarrow as pa

    return pa.array(topics, pa.string())


def table_of(sink: ColumnSink) -> pa.Table:
    """The table of a filled sink, which cannot be used again."""
    import pyarrow as pa

    kinds = schema()
    rows = sink.rows
    raw = sink.buffers()

    def array(kind: pa.DataType, count: int, nulls: int, name: str, *parts: str) -> pa.Array:
        bits = pa.py_buffer(raw[f"{name} bits"]) if nulls else None
        buffers = [bits, *(pa.py_buffer(raw[part]) for part in parts)]
        return pa.Array.from_buffers(kind, count, buffers, null_count=nulls)

    def binary(kind: pa.DataType, count: int, nulls: int, name: str) -> pa.Array:
        return array(kind, count, nulls, name, f"{name} ends", f"{name} data")

    headers_kind = kinds.field("headers").type
    if sink.header_rows:
        names = binary(pa.string(), sink.header_rows, 0, "header key")
        contents = binary(pa.binary(), sink.header_rows, sink.null_header_values, "header value")
        pairs = pa.StructArray.from_arrays([names, contents], fields=list(headers_kind.value_type))
    else:
        pairs = no_headers()
    ends = pa.py_buffer(raw["headers ends"])
    columns = [
        pa.DictionaryArray.from_arrays(
            array(pa.int32(), rows, 0, "topic", "topic"), names_of(tuple(sink.topics))
        ),
        array(pa.int32(), rows, 0, "partition", "partition"),
        array(pa.int64(), rows, 0, "offset", "offset"),
        array(kinds.field("timestamp").type, rows, sink.null_timestamps, "timestamp", "timestamp"),
        binary(pa.binary(), rows, sink.null_keys, "key"),
        binary(pa.binary(), rows, sink.null_values, "value"),
        pa.Array.from_buffers(headers_kind, rows, [None, ends], children=[pairs]),
    ]
    return pa.Table.from_arrays(columns, schema=kinds)


def no_rows() -> pa.Table:
    """The empty table of a poll without records."""
    return table_of(ColumnSink())


def to_pandas(table: pa.Table) -> pd.DataFrame:
    """A data frame of pandas; topics are categories."""
    return table.to_pandas()


def to_polars(table: pa.Table) -> pl.DataFrame:
    """A data frame of polars, which shares the memory of the columns where it can."""
    import polars

    frame = polars.from_arrow(table)
    assert isinstance(frame, polars.DataFrame)
    return frame
