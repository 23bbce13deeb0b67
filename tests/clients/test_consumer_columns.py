"""Columns: the same records as one by one, and back again through the producer."""

from __future__ import annotations

import asyncio
import datetime
import sys
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import pytest

from tests.clients.consuming import LIMIT, fill, make_topic, poll_until, read
from tests.support.wait import eventually
from tidelog.clients.consumer import columns
from tidelog.clients.consumer.blocking import Consumer
from tidelog.clients.consumer.consumer import AsyncConsumer
from tidelog.clients.producer.blocking import Producer

pa = pytest.importorskip("pyarrow")

NewName = Callable[[str], str]
Frame = TypeVar("Frame")


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


def test_a_table_goes_back_to_where_it_came_from(bootstrap: str, new_name: NewName) -> None:
    topics = [make_topic(bootstrap, new_name("round"), 2) for _ in range(2)]
    with Producer(bootstrap_servers=bootstrap) as producer:
        for number in range(400):
            producer.send(
                topics[number % 2],
                None if number % 7 == 0 else b"value %d" % number,
                key=None if number % 3 else b"key %d" % number,
                headers=[("name", b"%d" % number), ("\xfc", None)] if number % 5 == 0 else [],
                partition=number // 2 % 2,
                timestamp_ms=10**12 + number,
            )
    with from_start(bootstrap, *topics) as consumer:
        table = read_table(consumer, 400)
    with Producer(bootstrap_servers=bootstrap) as producer:
        assert producer.send_arrow(table).result(10) == 400
    with from_start(bootstrap, *topics) as consumer:
        found = read(consumer, 800)
    for topic in topics:
        for partition in range(2):
            rows = [record for record in found if (record.topic, record.partition) == (topic, partition)]
            parts = [(row.timestamp, row.key, row.value, row.headers) for row in rows]
            assert len(parts) == 200
            assert parts[:100] == parts[100:]


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


@pytest.fixture
def varied(bootstrap: str, new_name: NewName) -> str:
    """A topic with nulls, headers and bytes that are no text."""
    topic = make_topic(bootstrap, new_name("frame"))
    with Producer(bootstrap_servers=bootstrap) as producer:
        producer.send(topic, b"one", key=b"k", timestamp_ms=1_700_000_000_123, headers=[("h", b"\xff")])
        producer.send(topic, None, key=b"\x00\xff", timestamp_ms=1_700_000_000_124)
        producer.send(topic, b"", timestamp_ms=1_700_000_000_125, headers=[("n", None), ("n", b"")])
    return topic


def all_rows(poll: Callable[[float], Frame], join: Callable[[list[Frame]], Frame]) -> Frame:
    """The three rows of the topic, however many polls they took."""
    frames: list[Frame] = []
    until = time.monotonic() + LIMIT
    while sum(map(len, frames)) < 3:
        assert time.monotonic() < until
        if len(frame := poll(1.0)):
            frames.append(frame)
    return join(frames)


def test_a_data_frame_of_pandas_is_one_call_away(bootstrap: str, varied: str) -> None:
    pd = pytest.importorskip("pandas")
    with from_start(bootstrap, varied) as consumer:
        frame = all_rows(consumer.poll_pandas, lambda frames: pd.concat(frames, ignore_index=True))
        empty = consumer.poll_pandas(0)
    assert list(frame["topic"]) == [varied] * 3
    assert frame["topic"].dtype == "category"
    assert frame["partition"].dtype == "int32"
    assert list(frame["offset"]) == [0, 1, 2]
    assert list(frame["value"]) == [b"one", None, b""]
    assert list(frame["key"]) == [b"k", b"\x00\xff", None]
    assert frame["timestamp"][0] == pd.Timestamp(1_700_000_000_123, unit="ms", tz="UTC")
    assert [[*map(dict, row)] for row in frame["headers"]] == [
        [{"key": "h", "value": b"\xff"}],
        [],
        [{"key": "n", "value": None}, {"key": "n", "value": b""}],
    ]
    assert list(empty.columns) == list(frame.columns)
    assert len(empty) == 0


def test_a_data_frame_of_polars_is_one_call_away(bootstrap: str, varied: str) -> None:
    pl = pytest.importorskip("polars")
    with from_start(bootstrap, varied) as consumer:
        frame = all_rows(consumer.poll_polars, pl.concat)
        empty = consumer.poll_polars(0)
    assert frame["topic"].to_list() == [varied] * 3
    assert frame["offset"].to_list() == [0, 1, 2]
    assert frame["value"].to_list() == [b"one", None, b""]
    assert frame["key"].to_list() == [b"k", b"\x00\xff", None]
    assert frame.schema["timestamp"] == pl.Datetime("ms", "UTC")
    assert frame["timestamp"].dt.epoch("ms").to_list() == [1_700_000_000_123 + number for number in range(3)]
    assert frame["headers"].to_list()[2] == [{"key": "n", "value": None}, {"key": "n", "value": b""}]
    assert empty.schema == frame.schema
    assert len(empty) == 0


def test_coroutines_get_data_frames(bootstrap: str, varied: str) -> None:
    settings = {"bootstrap.servers": bootstrap, "auto.offset.reset": "earliest"}

    async def main() -> list[int]:
        async with AsyncConsumer(varied, settings) as consumer:
            first = await consumer.poll_pandas(30.0, max_records=1)
            second = await consumer.poll_polars(30.0, max_records=1)
        return [*first["offset"], *second["offset"]]

    assert asyncio.run(main()) == [0, 1]


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_without_the_library_of_a_frame_the_error_says_what_to_install(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    with Consumer(bootstrap_servers=bootstrap) as consumer:
        monkeypatch.setitem(sys.modules, library, None)
        with pytest.raises(ImportError, match=f"pip install {library}"):
            getattr(consumer, f"poll_{library}")(0)


def test_without_pyarrow_the_error_says_what_to_install(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Consumer(bootstrap_servers=bootstrap) as consumer:
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        with pytest.raises(ImportError, match=r"pip install 'tidelog\[arrow\]'"):
            consumer.poll_arrow(0)


def test_a_poll_for_columns_waits_on_when_a_transaction_is_aborted(bootstrap: str, new_name: NewName) -> None:
    topic = make_topic(bootstrap, new_name("aborted"))
    settings: dict[str, object] = {"isolation_level": "read_committed", "fetch_max_wait_ms": 50}
    with (
        Producer(bootstrap_servers=bootstrap, transactional_id=topic) as producer,
        from_start(bootstrap, topic, **settings) as consumer,
    ):
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"aborted")
        producer.flush()
        poll_until(consumer, lambda: bool(consumer.assignment()), "it is assigned")
        poll_until(consumer, lambda: consumer.current_lag((topic, 0)) == 0, "it waits for the transaction")
        (state,) = consumer._core.subscriptions.states.values()

        def go_on() -> None:
            eventually(lambda: consumer._inboxes, "the poll has left its waiting to the loop")
            producer.abort_transaction()
            eventually(lambda: state.position == 2, "the poll has passed what was aborted")
            with producer.transaction():
                producer.send(topic, b"committed")

        others = threading.Thread(target=go_on)
        others.start()
        table = consumer.poll_arrow(None)
        others.join()
        assert table["value"].to_pylist() == [b"committed"]


def test_the_first_poll_imports_outside_its_time_and_beside_the_loop(
    bootstrap: str, new_name: NewName, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic(bootstrap, new_name("imports"))
    fill(bootstrap, topic, 3)
    goes_on = threading.Event()
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    def load() -> None:
        assert goes_on.wait(LIMIT), "the loop stood still"
        monkeypatch.setitem(sys.modules, "pyarrow", pa)

    monkeypatch.setattr(columns, "load_arrow", load)

    async def main() -> int:
        settings = {"bootstrap_servers": bootstrap, "auto_offset_reset": "earliest"}
        async with AsyncConsumer(topic, **settings) as consumer:
            poll = asyncio.ensure_future(consumer.poll_arrow(LIMIT))
            await asyncio.sleep(0)
            goes_on.set()
            return (await poll).num_rows

    assert asyncio.run(main()) == 3


def test_a_loop_of_polls_for_columns_lets_others_run(bootstrap: str, new_name: NewName) -> None:
    topic = make_topic(bootstrap, new_name("turns"))
    fill(bootstrap, topic, 50)

    async def main() -> int:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        settings = {"bootstrap_servers": bootstrap, "auto_offset_reset": "earliest"}
        async with AsyncConsumer(topic, **settings) as consumer:
            rows = (await consumer.poll_arrow(LIMIT, 1)).num_rows
            counting = asyncio.ensure_future(count())
            while rows < 50:
                consumer._core.turns._began = 0.0  # each poll took long
                rows += (await consumer.poll_arrow(LIMIT, 1)).num_rows
            counting.cancel()
        return turns

    assert asyncio.run(main()) >= 45
