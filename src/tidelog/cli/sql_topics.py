"""Topics as tables of DuckDB: fetches the offsets that a query needs, and adds the fields of JSON values."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.cli.formats.offsets import Span
from tidelog.cli.sql_plan import COLUMNS, QueryPlan, Wanted

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

    from tidelog.clients.consumer.blocking import Consumer
    from tidelog.partitions import TopicPartition

POLL_SECONDS = 0.2
# DuckDB finds the fields of values down to 128 levels, and ends with an internal error at a deeper one.
MAX_DEPTH = 100
STRING_OR_BRACE = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]]')
# The first characters of DuckDB's names for what it makes of a field without values.
UNTYPED = '"NULL"'


@dataclass(slots=True, frozen=True)
class TopicRead:
    """What is fetched of a topic: the offsets of each partition."""

    topic: str
    wanted: Wanted
    spans: dict[TopicPartition, Span]
    partitions: int

    @property
    def offsets(self) -> int:
        return sum((span.end or span.start) - span.start for span in self.spans.values())

    def as_json(self) -> dict[str, object]:
        return {
            "topic": self.topic,
            "pushed": self.wanted.words(),
            "partitions": len(self.spans),
            "of_partitions": self.partitions,
            "offsets": self.offsets,
            "ranges": [
                {"partition": name.partition, "start": span.start, "end": span.end}
                for name, span in sorted(self.spans.items())
            ],
        }


def topic_read(consumer: Consumer, topic: str, wanted: Wanted, ordered: bool) -> TopicRead:
    """The offsets to fetch now: within what the query needs, and within the log.

    Every record before the first one at or after a time is older: the start of a time range loses nothing. A
    record behind the end of a range may have a timestamp within it, unless timestamps are `ordered`.
    """
    from tidelog.partitions import TopicPartition

    there = [TopicPartition(topic, info.partition) for info in consumer.partitions_for(topic)]
    names = [name for name in there if wanted.partitions is None or name.partition in wanted.partitions]
    firsts, ends = consumer.beginning_offsets(names), consumer.end_offsets(names)

    def at_time(ms: int | None) -> dict[TopicPartition, int] | None:
        if ms is None:
            return None
        found = consumer.offsets_for_times(dict.fromkeys(names, max(0, ms)))
        return {name: ends[name] if place is None else place.offset for name, place in found.items()}

    begins = at_time(wanted.times.low)
    stops = at_time(wanted.times.high) if ordered else None
    spans: dict[TopicPartition, Span] = {}
    for name in names:
        start, end = firsts[name], ends[name]
        if wanted.offsets.low is not None:
            start = max(start, wanted.offsets.low)
        if wanted.offsets.high is not None:
            end = min(end, wanted.offsets.high)
        if begins is not None:
            start = max(start, begins[name])
        if stops is not None:
            end = min(end, stops[name])
        if start < end:
            spans[name] = Span(start, end)
    return TopicRead(topic, wanted, spans, len(there))


def fetch(consumer: Consumer, read: TopicRead) -> pa.Table:
    """The records of the ranges as columns."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from tidelog.clients.consumer.columns import schema

    left = dict(read.spans)
    consumer.assign(list(left))
    for name, span in left.items():
        consumer.seek(name, span.start)
    tables: list[pa.Table] = []
    while left:
        table = consumer.poll_arrow(POLL_SECONDS)
        if table.num_rows:
            tables.append(table)
        for name, span in list(left.items()):
            if span.end is None or consumer.position(name) >= span.end:
                del left[name]
                consumer.pause(name)
    found = pa.concat_tables(tables) if tables else schema().empty_table()
    keep = None
    for name, span in read.spans.items():
        mine = pc.and_(
            pc.equal(found["partition"], name.partition),
            pc.and_(pc.greater_equal(found["offset"], span.start), pc.less(found["offset"], span.end)),
        )
        keep = mine if keep is None else pc.or_(keep, mine)
    return found if keep is None else found.filter(keep)


def with_texts(table: pa.Table) -> pa.Table:
    """Keys, values and headers as text; the bytes of keys and values stand beside them.

    Bytes that are not UTF-8 have no text: it is null.
    """
    import pyarrow as pa

    names = {"key": texts(table["key"]), "value": texts(table["value"])}
    headers = pa.chunked_array(
        [header_texts(chunk) for chunk in table["headers"].chunks]
        or [header_texts(table["headers"].combine_chunks())]
    )
    columns = {
        "topic": table["topic"].cast(pa.string()),
        "partition": table["partition"],
        "offset": table["offset"],
        "timestamp": table["timestamp"],
        **names,
        "headers": headers,
        "key_bytes": table["key"],
        "value_bytes": table["value"],
    }
    return pa.table(columns)


def texts(column: pa.ChunkedArray) -> pa.ChunkedArray:
    import pyarrow as pa

    return pa.chunked_array([array_texts(chunk) for chunk in column.chunks], pa.string())


def array_texts(data: pa.Array) -> pa.Array:
    import pyarrow as pa

    try:
        return data.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([text_of(value) for value in data.to_pylist()], pa.string())


def text_of(data: bytes | None) -> str | None:
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError:
        return None


def header_texts(data: pa.Array) -> pa.Array:
    """A list of structs of key and value, with text in both."""
    import pyarrow as pa

    pairs = data.flatten()
    fields = [pairs.field("key"), array_texts(pairs.field("value"))]
    ends = pa.array(
        [0, *pa.compute.cumulative_sum(pa.compute.list_value_length(data)).to_pylist()], pa.int32()
    )
    return pa.ListArray.from_arrays(ends, pa.StructArray.from_arrays(fields, ["key", "value"]))


def add_topic(
    connection: duckdb.DuckDBPyConnection, topic: str, table: pa.Table, plan: QueryPlan
) -> dict[str, str]:
    """Make a table of a topic known to DuckDB. Returns the types of its JSON fields."""
    raw = f"tidelog raw {topic}"
    rows = with_texts(table)
    connection.register(raw, rows)
    structure: dict[str, object] = {}
    if plan.star or plan.fields():
        shallow = f"tidelog shallow {topic}"
        connection.register(shallow, rows.select(["value"]).filter(is_shallow(rows["value"])))
        structure = json_structure(connection, shallow)
        if not plan.star:
            structure = {name: kind for name, kind in structure.items() if is_named(name, plan.fields())}
    view = f"create view {quoted(topic)} as select *"
    if structure:
        shape = json.dumps(structure, ensure_ascii=False).replace("'", "''")
        view += f", unnest(json_transform(case when json_valid(value) then value end, '{shape}'))"
    connection.execute(f"{view} from {quoted(raw)}")
    return {name: json.dumps(kind) for name, kind in structure.items()}


def is_shallow(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Which values are nested less than MAX_DEPTH deep: one deeper value would end the database."""
    import pyarrow as pa
    import pyarrow.compute as pc

    openings = pc.add(pc.count_substring(values, "{"), pc.count_substring(values, "["))
    suspects = pc.fill_null(pc.greater_equal(openings, MAX_DEPTH), False)
    if not pc.any(suspects).as_py():
        return pc.invert(suspects)
    found = [
        not is_suspect or depth(value) < MAX_DEPTH
        for is_suspect, value in zip(suspects.to_pylist(), values.to_pylist(), strict=True)
    ]
    return pa.array(found, pa.bool_())


def depth(text: str) -> int:
    """How deep the braces and brackets of a JSON text are nested."""
    deepest = now = 0
    for found in STRING_OR_BRACE.finditer(text):
        if found[0] in "{[":
            now += 1
            deepest = max(deepest, now)
        elif found[0] in "}]":
            now -= 1
    return deepest


def is_named(name: str, columns: Iterable[str]) -> bool:
    return name.lower() in {column.lower() for column in columns}


def json_structure(connection: duckdb.DuckDBPyConnection, raw: str) -> dict[str, object]:
    """The fields of the JSON objects among the values, with DuckDB's types. A column's name is no field."""
    rows = connection.execute(
        f"select json_group_structure(value::json) from {quoted(raw)} "
        "where json_valid(value) and json_type(value) = 'OBJECT'"
    ).fetchall()
    found = json.loads(rows[0][0] or "{}")
    if not isinstance(found, dict):
        return {}
    seen: set[str] = set(COLUMNS)
    fields: dict[str, object] = {}
    for name, kind in found.items():
        if name.lower() not in seen:
            seen.add(name.lower())
            fields[name] = without_untyped(kind)
    return fields


def without_untyped(kind: object) -> object:
    """Fields that are null everywhere are text."""
    if isinstance(kind, dict):
        return {name: without_untyped(inner) for name, inner in kind.items()}
    if isinstance(kind, list):
        return [without_untyped(inner) for inner in kind]
    return "VARCHAR" if kind in ("NULL", UNTYPED) else kind


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
