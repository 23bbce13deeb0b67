"""Columns that the loop fills for a thread that waits, and what becomes of them if it never takes them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import pytest

from tests.clients.consuming import make_topic, poll_until, read
from tests.clients.fake_cluster import FakeCluster
from tests.support.wait import eventually
from tidelog.clients.consumer import fetcher as fetcher_module
from tidelog.clients.consumer.blocking import Consumer
from tidelog.clients.consumer.columns import table_of
from tidelog.clients.producer.blocking import Producer
from tidelog.errors import CorruptMessage
from tidelog.partitions import TopicPartition
from tidelog.protocol.messages.fetch import FetchRequest, FetchResponse
from tidelog.records.batch import Record, build_batch
from tidelog.records.loops import ColumnSink, RecordReader

pytest.importorskip("pyarrow")

if TYPE_CHECKING:
    import pyarrow as pa

NewName = Callable[[str], str]
LIMIT = 10.0


class Interrupted:
    """Ctrl-C while a poll waits: `before` brings records, the loop prepares them and knocks, it comes.

    A knock without columns is not the one: the broker may answer without records first.
    """

    def __init__(self, consumer: Consumer, before: Callable[[], None]) -> None:
        self._signals: SimpleQueue[None] = SimpleQueue()
        self._consumer = consumer
        self._before = before

    def put(self, knock: None) -> None:
        self._signals.put(knock)

    def empty(self) -> bool:
        return self._signals.empty()

    def get(self, timeout: float | None = None) -> None:
        self._before()
        self._signals.get(timeout=LIMIT)
        while self._consumer._core.fetcher._prepared is None:
            self._consumer._waits_for_signal = True
            self._signals.get(timeout=LIMIT)
        raise KeyboardInterrupt


def send(bootstrap: str, topic: str, first: int, count: int, partitions: int = 1) -> None:
    with Producer(bootstrap_servers=bootstrap) as producer:
        for number in range(first, first + count):
            producer.send(topic, b"%d" % number, partition=number % partitions)


def waiting(bootstrap: str, topic: str, **settings: object) -> Consumer:
    """A consumer that has read all there is: its question for more waits at the broker."""
    consumer = Consumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest", **settings)
    fetcher = consumer._core.fetcher
    poll_until(consumer, lambda: bool(consumer.assignment()) and fetcher.is_asking, "it waits for records")
    return consumer


def interrupt(consumer: Consumer, before: Callable[[], None]) -> None:
    """A poll that is interrupted when its columns were filled, and before it took them."""
    knocks = consumer._signals
    consumer._signals = Interrupted(consumer, before)  # type: ignore[assignment]
    try:
        for _ in range(50):  # a poll that has something else to do does not wait there
            assert not consumer.poll_arrow(0.2).num_rows
        pytest.fail("no poll waited")
    except KeyboardInterrupt:
        pass
    finally:
        consumer._signals = knocks
    assert consumer._core.fetcher._prepared is not None, "the columns were not filled on the loop"


def offsets(consumer: Consumer, rows: int) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []

    def enough() -> bool:
        table = consumer.poll_arrow(0.2)
        found.extend(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))
        return len(found) >= rows

    for _ in range(100):
        if enough():
            break
    assert len(found) == rows
    return found


def test_the_next_poll_gets_what_an_interrupted_one_did_not(bootstrap: str, new_name: NewName) -> None:
    topic = make_topic(bootstrap, new_name("interrupted"))
    with waiting(bootstrap, topic) as consumer:
        interrupt(consumer, lambda: send(bootstrap, topic, 0, 1))
        assert consumer.position((topic, 0)) == 0
        send(bootstrap, topic, 1, 99)
        assert offsets(consumer, 100) == [(0, offset) for offset in range(100)]
        assert consumer.position((topic, 0)) == 100
        assert consumer.metrics()["records-consumed-total"] == 100


def test_records_one_by_one_are_read_after_an_interrupted_poll(bootstrap: str, new_name: NewName) -> None:
    topic = make_topic(bootstrap, new_name("one-by-one"))
    with waiting(bootstrap, topic) as consumer:
        interrupt(consumer, lambda: send(bootstrap, topic, 0, 50))
        assert [record.offset for record in read(consumer, 50)] == list(range(50))


def test_what_comes_while_columns_are_given_up_stays_behind_what_they_held(
    bootstrap: str, new_name: NewName, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop takes an answer while the thread that polls does something else than to take its columns."""
    topic = make_topic(bootstrap, new_name("given-up"))
    with waiting(bootstrap, topic) as consumer:
        interrupt(consumer, lambda: send(bootstrap, topic, 0, 50))
        answered = threading.Event()

        def reader(*of: Any) -> RecordReader:
            answered.set()
            eventually(lambda: consumer._core.fetcher._prepared is None, "the columns are given up")
            return RecordReader(*of)

        monkeypatch.setattr(fetcher_module, "RecordReader", reader)
        send(bootstrap, topic, 50, 50)
        assert answered.wait(LIMIT)
        assert [record.offset for record in read(consumer, 100)] == list(range(100))


def test_a_few_rows_are_read_after_an_interrupted_poll(bootstrap: str, new_name: NewName) -> None:
    topic = make_topic(bootstrap, new_name("few"))
    with waiting(bootstrap, topic) as consumer:
        interrupt(consumer, lambda: send(bootstrap, topic, 0, 50))
        seen: list[int] = []
        while len(seen) < 50:
            table = consumer.poll_arrow(LIMIT, max_records=7)
            assert 0 < table.num_rows <= 7
            seen += table["offset"].to_pylist()
        assert seen == list(range(50))


def test_a_partition_paused_after_an_interrupted_poll_hands_out_nothing(
    bootstrap: str, new_name: NewName
) -> None:
    topic = make_topic(bootstrap, new_name("paused"), 2)
    with waiting(bootstrap, topic) as consumer:
        interrupt(consumer, lambda: send(bootstrap, topic, 0, 40, 2))
        consumer.pause((topic, 0))
        assert offsets(consumer, 20) == [(1, offset) for offset in range(20)]
        consumer.resume((topic, 0))
        assert offsets(consumer, 20) == [(0, offset) for offset in range(20)]


def test_a_seek_after_an_interrupted_poll_counts(bootstrap: str, new_name: NewName) -> None:
    topic = make_topic(bootstrap, new_name("sought"))
    with waiting(bootstrap, topic) as consumer:
        interrupt(consumer, lambda: send(bootstrap, topic, 0, 30))
        consumer.seek((topic, 0), 25)
        assert offsets(consumer, 5) == [(0, offset) for offset in range(25, 30)]


def test_close_does_not_commit_what_nobody_got(bootstrap: str, new_name: NewName) -> None:
    topic, group = make_topic(bootstrap, new_name("committed")), new_name("group")
    send(bootstrap, topic, 0, 10)
    with Consumer(
        topic, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest"
    ) as consumer:
        assert offsets(consumer, 10) == [(0, offset) for offset in range(10)]
        poll_until(consumer, lambda: consumer._core.fetcher.is_asking, "it waits for records")
        interrupt(consumer, lambda: send(bootstrap, topic, 10, 10))
    with Consumer(bootstrap_servers=bootstrap, group_id=group) as consumer:
        committed = consumer.committed([(topic, 0)])[TopicPartition(topic, 0)]
    assert committed is not None
    assert committed.offset == 10


def test_where_the_loop_cannot_make_the_columns_the_thread_that_polls_does(
    bootstrap: str, new_name: NewName, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The error must not reach the connection, which is handing over an answer."""
    tried = 0

    def table(sink: ColumnSink) -> pa.Table:
        nonlocal tried
        if threading.current_thread() is not threading.main_thread():
            tried += 1
            raise MemoryError
        return table_of(sink)

    monkeypatch.setattr(fetcher_module, "table_of", table)
    topic = make_topic(bootstrap, new_name("memory"))
    with waiting(bootstrap, topic) as consumer:
        for number in range(20):
            timer = threading.Timer(0.01, send, (bootstrap, topic, number, 1))
            timer.start()
            assert offsets(consumer, 1) == [(0, number)]
            timer.join()
    assert tried
    assert not [entry for entry in caplog.records if entry.name == "asyncio"]


def test_a_damaged_batch_is_told_after_the_rows_before_it() -> None:
    good = build_batch([Record(0, 1, None, b"good")], base_offset=0)
    damaged = bytearray(build_batch([Record(1, 1, None, b"damaged")], base_offset=1))
    damaged[-2] ^= 1

    def answer(node: int, request: FetchRequest) -> FetchResponse | None:
        data = FetchResponse.PartitionData(partition_index=0, high_watermark=2, records=good + bytes(damaged))
        return FetchResponse(responses=[FetchResponse.FetchableTopicResponse(topic="t", partitions=[data])])

    with (
        FakeCluster() as cluster,
        Consumer(bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest") as consumer,
    ):
        consumer.assign([("t", 0)])
        poll_until(consumer, lambda: consumer._core.fetcher.is_asking, "it waits for records")
        interrupt(consumer, lambda: setattr(cluster, "script", answer))
        assert offsets(consumer, 1) == [(0, 0)]
        for _ in range(2):
            with pytest.raises(CorruptMessage, match="the batch at offset 1 does not match its CRC"):
                offsets(consumer, 1)
        assert consumer.position(("t", 0)) == 1
