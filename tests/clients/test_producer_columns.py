"""Arrow tables as records: every row is there once, at the place where `send` would have put it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from tests.clients.reading import partitions_of, records
from tidelog import Admin, NewTopic
from tidelog.clients.errors import RecordTooLargeException
from tidelog.clients.producer.blocking import Producer
from tidelog.clients.producer.producer import AsyncProducer
from tidelog.records.batch import Record
from tidelog.records.partitioning import partition_for_key

pa = pytest.importorskip("pyarrow")

NewName = Callable[[str], str]


@pytest.fixture
def topic(bootstrap: str, new_name: NewName) -> str:
    name = new_name("columns")
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topics([NewTopic(name, num_partitions=3)])
    return name


def by_partition(bootstrap: str, topic: str) -> dict[int, list[Record]]:
    return {number: records(bootstrap, topic, number) for number in range(partitions_of(bootstrap, topic))}


def test_rows_go_where_their_keys_belong(bootstrap: str, topic: str) -> None:
    keys = [b"%d" % (number % 100) for number in range(5000)]
    table = pa.table({"key": keys, "value": [b"v%d" % number for number in range(5000)]})
    with Producer(bootstrap_servers=bootstrap, batch_size=4000) as producer:
        sent = producer.send_arrow(table, topic)
        assert sent.result(20) == 5000
        assert sent.done()
    found = by_partition(bootstrap, topic)
    assert sum(len(rows) for rows in found.values()) == 5000
    for partition, rows in found.items():
        numbers = [int((record.value or b"")[1:]) for record in rows]
        assert numbers == sorted(numbers)
        assert all(partition_for_key(record.key or b"", 3) == partition for record in rows)


def test_a_partitioner_is_asked_for_every_row(bootstrap: str, topic: str) -> None:
    def by_length(
        name: str,
        key: object,
        key_bytes: bytes | None,
        value: object,
        value_bytes: bytes | None,
        cluster: object,
    ) -> int:
        assert (name, key, value) == (topic, key_bytes, value_bytes)
        return len(value_bytes or b"") % 3

    rows = [(None if size % 4 == 0 else b"k", None if size % 7 == 0 else b"x" * size) for size in range(300)]
    table = pa.table({"key": [key for key, _ in rows], "value": [value for _, value in rows]})
    with Producer(bootstrap_servers=bootstrap, partitioner_class=by_length, batch_size=2000) as producer:
        assert producer.send_arrow(table, topic).result(20) == 300
    for partition, found in by_partition(bootstrap, topic).items():
        expected = [(key, value) for key, value in rows if len(value or b"") % 3 == partition]
        assert [(record.key, record.value) for record in found] == expected


def test_rows_go_to_the_partitions_in_turn(bootstrap: str, topic: str) -> None:
    table = pa.table({"key": [b"the same"] * 300, "value": [b"%d" % number for number in range(300)]})
    with Producer(bootstrap_servers=bootstrap, partitioner_class="RoundRobinPartitioner") as producer:
        assert producer.send_arrow(table, topic).result(20) == 300
    assert [len(found) for found in by_partition(bootstrap, topic).values()] == [100, 100, 100]


@pytest.mark.needs("EndTxn")
def test_a_transaction_that_rows_are_missing_in_has_to_be_aborted(
    bootstrap: str, topic: str, new_name: NewName
) -> None:
    fits, does_not = pa.table({"value": [b"small"]}), pa.table({"value": [b"x" * 3000]})
    with Producer(
        bootstrap_servers=bootstrap, transactional_id=new_name("id"), max_request_size=2000
    ) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send_arrow(fits, topic)
        with pytest.raises(RecordTooLargeException):
            producer.send_arrow(does_not, topic)
        with pytest.raises(RecordTooLargeException):
            producer.commit_transaction()
        producer.abort_transaction()
        with producer.transaction():
            assert producer.send_arrow(fits, topic).rows == 1


def test_rows_without_keys_fill_one_batch_after_the_other(bootstrap: str, topic: str) -> None:
    table = pa.table({"anything": [f"text {number}" for number in range(20000)]})
    with Producer(bootstrap_servers=bootstrap, batch_size=2000) as producer:
        producer.send_arrow(table, topic)
        producer.send(topic, b"text 20000")
    found = by_partition(bootstrap, topic)
    values = {record.value for rows in found.values() for record in rows}
    assert values == {b"text %d" % number for number in range(20001)}
    assert all(len(rows) > 2000 for rows in found.values())


def test_times_headers_and_nulls(bootstrap: str, topic: str) -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)
    table = pa.table(
        {
            "k": pa.array(["a", None, ""], pa.large_string()),
            "v": pa.array([b"1", b"", None], pa.binary()),
            "at": pa.array([moment] * 3, pa.timestamp("us", "UTC")),
        }
    )
    with Producer(bootstrap_servers=bootstrap) as producer:
        producer.send_arrow(
            table.slice(0, 3),
            topic,
            key_column="k",
            value_column="v",
            timestamp_column="at",
            partition=1,
            headers=[("source", b"arrow")],
        ).result(10)
    rows = records(bootstrap, topic, 1)
    assert [(row.key, row.value) for row in rows] == [(b"a", b"1"), (None, b""), (b"", None)]
    assert {row.timestamp for row in rows} == {1767323045678}
    assert {row.headers for row in rows} == {(("source", b"arrow"),)}


def test_slices_chunks_and_other_layouts(bootstrap: str, topic: str) -> None:
    chunked = pa.chunked_array([pa.array([b"0", b"1", b"2"]), pa.array([], pa.binary()), pa.array([b"3"])])
    with Producer(bootstrap_servers=bootstrap) as producer:
        producer.send_arrow(pa.table({"value": chunked}).slice(1), topic, partition=0).result(10)
        batch = pa.record_batch({"value": pa.array(["a", "b", "a"]).dictionary_encode()})
        producer.send_arrow(batch.slice(1), topic, partition=0).result(10)
        fixed = pa.record_batch({"value": pa.array([b"xx", b"yy"], pa.binary(2))})
        producer.send_arrow(fixed, topic, partition=0).result(10)
        assert producer.send_arrow(pa.table({"value": pa.array([], pa.binary())}), topic).result(10) == 0
    found = [record.value for record in records(bootstrap, topic, 0)]
    assert found == [b"1", b"2", b"3", b"b", b"a", b"xx", b"yy"]


def test_what_cannot_be_sent_is_named(bootstrap: str, topic: str) -> None:
    with Producer(bootstrap_servers=bootstrap) as producer:
        with pytest.raises(ValueError, match="column 'x' is not in the table, which has a, b"):
            producer.send_arrow(pa.table({"a": [b""], "b": [b""]}), topic, value_column="x")
        with pytest.raises(ValueError, match="which column has the values"):
            producer.send_arrow(pa.table({"a": [b""], "b": [b""]}), topic)
        with pytest.raises(TypeError, match="expected a Table or RecordBatch of pyarrow, not list"):
            producer.send_arrow([{"value": b"x"}], topic)
        with pytest.raises(TypeError, match="column 'value' is list"):
            producer.send_arrow(pa.table({"value": [[1]]}), topic)
        with pytest.raises(ValueError, match="column 'timestamp' has timestamp -5"):
            producer.send_arrow(pa.table({"value": [b"x", b"x"], "timestamp": [7, -5]}), topic)
        with pytest.raises(RecordTooLargeException):
            producer.send_arrow(pa.table({"value": [b"x" * 2_000_000]}), topic)


@pytest.mark.parametrize(
    ("columns", "arguments", "problem"),
    [
        ({"header": [[]]}, {}, "column 'header' would not be sent: did you mean 'headers'?"),
        ({"keys": [b"k"]}, {}, "column 'keys' would not be sent: did you mean 'key'?"),
        ({"colour": [1]}, {}, "column 'colour' would not be sent: columns are key, value, timestamp, topic"),
        ({"key": [b"k"], "id": [b"i"]}, {"key_column": "id"}, "column 'key' would not be sent"),
        ({"partition": [-1]}, {}, "column 'partition' has partition -1: expected at least 0"),
        ({"topic": pa.array([None], "string")}, {"topic": None}, "column 'topic' has rows without a topic"),
        ({}, {"topic": None}, "no topic is given, and the table has no column 'topic'"),
        ({"headers": [[{"key": None, "value": b""}]]}, {}, "column 'headers' has a header without a name"),
    ],
)
def test_a_column_that_would_not_be_sent_is_an_error(
    bootstrap: str, topic: str, columns: dict[str, object], arguments: dict[str, str | None], problem: str
) -> None:
    table = pa.table({"value": [b"v"], **columns})
    with (
        Producer(bootstrap_servers=bootstrap) as producer,
        pytest.raises(ValueError, match=re.escape(problem)),
    ):
        producer.send_arrow(table, **{"topic": topic, **arguments})  # type: ignore[arg-type]
    assert by_partition(bootstrap, topic) == {0: [], 1: [], 2: []}


@pytest.mark.parametrize(
    ("column", "problem"),
    [
        ({"partition": ["1"]}, "column 'partition' is string; expected int32"),
        ({"topic": [[1]]}, "column 'topic' is list"),
        ({"headers": ["a"]}, "column 'headers' is string; expected list"),
    ],
)
def test_a_column_of_another_kind_is_an_error(
    bootstrap: str, topic: str, column: dict[str, object], problem: str
) -> None:
    with (
        Producer(bootstrap_servers=bootstrap) as producer,
        pytest.raises(TypeError, match=re.escape(problem)),
    ):
        producer.send_arrow(pa.table({"value": [b"v"], **column}), None if "topic" in column else topic)


def test_arguments_hold_over_columns(bootstrap: str, topic: str) -> None:
    table = pa.table(
        {
            "value": [b"1", b"2"],
            "topic": ["elsewhere", "elsewhere"],
            "partition": [0, 1],
            "headers": [[{"key": "own", "value": b"1"}], []],
        }
    )
    with Producer(bootstrap_servers=bootstrap) as producer:
        producer.send_arrow(table, topic, partition=2, headers=[("all", b"2")]).result(10)
    found = by_partition(bootstrap, topic)
    assert [record.value for record in found[2]] == [b"1", b"2"]
    assert {record.headers for record in found[2]} == {(("all", b"2"),)}


def test_rows_without_a_partition_go_where_their_keys_belong(bootstrap: str, topic: str) -> None:
    keys = [b"%d" % number for number in range(300)]
    numbers = pa.array([number % 3 if number % 2 else None for number in range(300)], pa.int32())
    with Producer(bootstrap_servers=bootstrap) as producer:
        producer.send_arrow(pa.table({"key": keys, "value": keys, "partition": numbers}), topic).result(10)
    for partition, rows in by_partition(bootstrap, topic).items():
        for record in rows:
            number = int(record.value or b"")
            assert partition == (number % 3 if number % 2 else partition_for_key(record.key or b"", 3))


def test_a_table_larger_than_the_buffer_waits_for_room(bootstrap: str, topic: str) -> None:
    table = pa.table({"value": [b"x" * 1000] * 1000})

    async def main() -> int:
        async with AsyncProducer(bootstrap_servers=bootstrap, buffer_memory=200_000) as producer:
            return await (await producer.send_arrow(table, topic))

    with Producer(bootstrap_servers=bootstrap, buffer_memory=200_000) as producer:
        assert producer.send_arrow(table, topic).result(20) == 1000
    assert asyncio.run(main()) == 1000
    assert sum(len(rows) for rows in by_partition(bootstrap, topic).values()) == 2000


def test_compressed_columns(bootstrap: str, topic: str) -> None:
    table = pa.table({"value": [b"same" * 20] * 3000})
    with Producer(bootstrap_servers=bootstrap, compression_type="lz4") as producer:
        assert producer.send_arrow(table, topic, partition=2).result(10) == 3000
    assert len(records(bootstrap, topic, 2)) == 3000
