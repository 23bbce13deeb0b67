"""Columns: the same records as one by one, and back again through the producer."""

from __future__ import annotations

import asyncio
import datetime
import importlib.util
import sys
from collections.abc import Callable

import pytest

from tests.clients.consuming import fill, make_topic, poll_until, read
from tidelog.clients.consumer.consumer import AsyncConsumer
from tidelog.clients.consumer.face import Consumer
from tidelog.clients.producer.face import Producer

pa = pytest.importorskip("pyarrow")

NewName = Callable[[str], str]


def from_start(bootstrap: str, *topics: str, **settings: object) -> Consumer:
    return Consumer(*topics, bootstrap_servers=bootstrap, auto_offset_reset="earliest", **settings)


def read_table(consumer: Consumer, rows: int) -> pa.Table:
    found: list[pa.Table] = []

    def enough() -> bool:
        found.append(consumer.poll_arrow(0.2))
        return sum(table.num_rows for table in found) >= rows

    for _ in range(200):
        if enough():
            break
    table = pa.concat_tables(found)
    assert table.num_rows == rows
    table.validate(full=True)
    return table


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_columns_hold_what_records_hold(bootstrap: str, new_name: NewName, codec: str) -> None:
    topic = make_topic(bootstrap, new_name("columns"), 2)
    with Producer(bootstrap_servers=bootstrap, compression_type=codec, batch_size=2000) as producer:
        for number in range(1000):
            key = None if number % 3 else b"key %d" % number
            value = None if number % 7 == 0 else b"value %d" % number
            headers = [("name", b"%d" % number), ("\xfc", None)] if number % 5 == 0 else []
            producer.send(
                topic, value, key=key, headers=headers, partition=number % 2, timestamp_ms=10**12 + number
            )
    with from_start(bootstrap, topic) as consumer:
        records = read(consumer, 1000)
    with from_start(bootstrap, topic) as consumer:
        table = read_table(consumer, 1000)
        assert consumer.position((topic, 0)) == consumer.position((topic, 1)) == 500
        assert consumer.metrics()["records-consumed-total"] == 1000
    rows = {(row["partition"], row["offset"]): row for row in table.to_pylist()}
    for record in records:
        row = rows[record.partition, record.offset]
        assert (row["topic"], row["key"], row["value"]) == (topic, record.key, record.value)
        assert row["timestamp"] == datetime.datetime.fromtimestamp(record.timestamp / 1000, datetime.UTC)
        assert tuple((pair["key"], pair["value"]) for pair in row["headers"]) == record.headers


def test_rows_are_limited_and_go_on_where_they_ended(bootstrap: str, new_name: NewName) -> None:
    topic = make_topic(bootstrap, new_name("limited"))
    fill(bootstrap, topic, 100, batch_size=500)
    with from_start(bootstrap, topic) as consumer:
        poll_until(consumer, lambda: bool(consumer.assignment()), "it is assigned")
        consumer.seek_to_beginning()
        seen: list[int] = []
        while len(seen) < 60:
            table = consumer.poll_arrow(5, max_records=15)
            assert table.num_rows <= 15
            seen += table["offset"].to_pylist()
        assert seen == list(range(len(seen)))
        # And one may change between the two ways.
        rest = read(consumer, 100 - len(seen))
        assert [record.offset for record in rest] == list(range(len(seen), 100))


def test_nothing_is_an_empty_table(bootstrap: str, new_name: NewName) -> None:
    topic = make_topic(bootstrap, new_name("empty"))
    with from_start(bootstrap, topic) as consumer:
        table = consumer.poll_arrow(0.05)
    assert table.num_rows == 0
    assert table.column_names == ["topic", "partition", "offset", "timestamp", "key", "value", "headers"]


def test_a_table_can_be_sent_on(bootstrap: str, new_name: NewName) -> None:
    source, target = make_topic(bootstrap, new_name("source")), make_topic(bootstrap, new_name("target"))
    sent = fill(bootstrap, source, 500)
    with from_start(bootstrap, source) as consumer:
        table = read_table(consumer, 500)
    with Producer(bootstrap_servers=bootstrap) as producer:
        assert producer.send_arrow(table, target).result(10) == 500
    with from_start(bootstrap, target) as consumer:
        found = read(consumer, 500)
    assert [record.value for record in found] == sent
    assert [record.timestamp for record in found] == [1000 + number for number in range(500)]


def test_coroutines_get_columns(bootstrap: str, new_name: NewName) -> None:
    topic = make_topic(bootstrap, new_name("async"))
    fill(bootstrap, topic, 300)

    async def main() -> int:
        rows = 0
        async with AsyncConsumer(
            topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest"
        ) as consumer:
            for _ in range(100):
                rows += (await consumer.poll_arrow(0.5)).num_rows
                if rows == 300:
                    break
        return rows

    assert asyncio.run(main()) == 300


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_data_frames_are_one_call_away(bootstrap: str, new_name: NewName, library: str) -> None:
    topic = make_topic(bootstrap, new_name("frame"))
    fill(bootstrap, topic, 20)
    with from_start(bootstrap, topic) as consumer:
        poll = consumer.poll_pandas if library == "pandas" else consumer.poll_polars
        if importlib.util.find_spec(library) is None:
            with pytest.raises(ImportError, match=f"pip install {library}"):
                poll(10)
        else:
            assert list(poll(10)["offset"]) == list(range(20))


def test_without_pyarrow_the_error_says_what_to_install(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Consumer(bootstrap_servers=bootstrap) as consumer:
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        with pytest.raises(ImportError, match=r"pip install 'tidelog\[arrow\]'"):
            consumer.poll_arrow(0)
