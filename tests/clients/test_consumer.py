"""The consumer without a group's help: what is there is read, from where it was told to, once."""

from __future__ import annotations

import asyncio
import logging
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from tests.clients.consuming import fill, make_topic, poll_until, read
from tests.support.wait import eventually
from tidelog.clients.consumer.blocking import Consumer
from tidelog.clients.consumer.consumer import AsyncConsumer
from tidelog.clients.consumer.errors import NoOffsetForPartitionException
from tidelog.clients.consumer.interceptors import ConsumerInterceptor
from tidelog.clients.errors import (
    ClientClosedException,
    ConfigError,
    IllegalStateException,
    SerializationException,
    TimeoutException,
    WakeupException,
)
from tidelog.clients.offsets import OffsetAndMetadata
from tidelog.clients.producer.blocking import Producer
from tidelog.errors import OffsetOutOfRange
from tidelog.partitions import TopicPartition
from tidelog.records.loops import ConsumerRecord

NewName = Callable[[str], str]


@pytest.fixture
def single(bootstrap: str, new_name: NewName) -> str:
    """A topic of one partition."""
    return make_topic(bootstrap, new_name("single"))


@pytest.fixture
def topic(bootstrap: str, new_name: NewName) -> str:
    """A topic of three partitions."""
    return make_topic(bootstrap, new_name("topic"), 3)


def from_start(bootstrap: str, *topics: str, **settings: object) -> Consumer:
    return Consumer(*topics, bootstrap_servers=bootstrap, auto_offset_reset="earliest", **settings)


def test_a_record_is_read_as_it_was_sent(bootstrap: str, topic: str) -> None:
    with Producer(bootstrap_servers=bootstrap) as producer:
        headers = [("a", b"1"), ("a", None)]
        producer.send(topic, b"value", key=b"key", headers=headers, partition=2, timestamp_ms=1234567890123)
    with from_start(bootstrap, topic) as consumer:
        [record] = read(consumer, 1)
    assert (record.topic, record.partition, record.offset) == (topic, 2, 0)
    assert (record.key, record.value, record.headers) == (b"key", b"value", (("a", b"1"), ("a", None)))
    assert (record.timestamp, record.timestamp_type, record.leader_epoch) == (1234567890123, 0, 0)
    assert pickle.loads(pickle.dumps(record)).value == b"value"


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_record_comes_once_and_in_order(bootstrap: str, topic: str, codec: str) -> None:
    sent = {
        partition: fill(bootstrap, topic, 2000, partition, compression_type=codec, batch_size=5000)
        for partition in range(3)
    }
    with from_start(bootstrap, topic, max_partition_fetch_bytes=20_000) as consumer:
        found = read(consumer, 6000)
        assert consumer.poll(0.2) == []
    for partition, values in sent.items():
        of_it = [record for record in found if record.partition == partition]
        assert [record.value for record in of_it] == values
        assert [record.offset for record in of_it] == list(range(2000))


def test_a_poll_gives_at_most_max_poll_records(bootstrap: str, single: str) -> None:
    fill(bootstrap, single, 100)
    with from_start(bootstrap, single, max_poll_records=7) as consumer:
        sizes = [len(poll_until(consumer, lambda: True, "") or consumer.poll(5)) for _ in range(3)]
        assert sizes == [7, 7, 7]
        assert len(consumer.poll(5, max_records=3)) == 3
        assert consumer.position((single, 0)) == 24


def test_records_are_iterated(bootstrap: str, single: str) -> None:
    sent = fill(bootstrap, single, 1200)
    found = []
    with from_start(bootstrap, single) as consumer:
        for record in consumer:
            found.append(record.value)
            if len(found) == len(sent):
                break
    assert found == sent


def test_a_loop_that_is_left_has_taken_what_it_saw(bootstrap: str, single: str) -> None:
    fill(bootstrap, single, 20)
    seen: list[int] = []
    with from_start(bootstrap, single, group_id=f"{single}-readers", enable_auto_commit=False) as consumer:
        for record in consumer:
            seen.append(record.offset)
            consumer.commit()
            if len(seen) == 3:
                break
        committed = consumer.committed([(single, 0)])[TopicPartition(single, 0)]
        assert committed is not None
        assert committed.offset == 3
        seen += [record.offset for record in read(consumer, 17)]
    assert seen == list(range(20))


def test_closing_after_a_loop_was_left_commits_what_it_saw(bootstrap: str, single: str) -> None:
    fill(bootstrap, single, 20)
    group = f"{single}-readers"

    async def first() -> int:
        settings = {"bootstrap.servers": bootstrap, "auto.offset.reset": "earliest", "group.id": group}
        async with AsyncConsumer(single, settings) as consumer:
            async for record in consumer:
                return record.offset
        return -1

    assert asyncio.run(first()) == 0
    with from_start(bootstrap, single, group_id=group) as consumer:
        assert [record.offset for record in read(consumer, 19)] == list(range(1, 20))


def test_a_loop_of_coroutines_ends_when_its_consumer_is_closed(bootstrap: str, single: str) -> None:
    fill(bootstrap, single, 5)

    async def main() -> list[int]:
        seen: list[int] = []
        consumer = AsyncConsumer(single, bootstrap_servers=bootstrap, auto_offset_reset="earliest")

        async def loop() -> None:
            async for record in consumer:
                seen.append(record.offset)
                if len(seen) == 5:
                    five.set()

        five = asyncio.Event()
        looping = asyncio.create_task(loop())
        await five.wait()
        await consumer.close()
        await asyncio.wait_for(looping, 10)
        return seen

    assert asyncio.run(main()) == [0, 1, 2, 3, 4]


def test_coroutines_consume(bootstrap: str, topic: str) -> None:
    sent = {value for partition in range(3) for value in fill(bootstrap, topic, 500, partition)}

    async def main() -> set[bytes]:
        found: set[bytes] = set()
        settings = {"bootstrap.servers": bootstrap, "auto.offset.reset": "earliest"}
        async with AsyncConsumer(topic, settings) as consumer:
            async for record in consumer:
                found.add(record.value)
                if len(found) == 1500:
                    return found
        return found

    assert asyncio.run(main()) == sent


def test_what_is_written_while_it_waits_comes_soon(bootstrap: str, single: str) -> None:
    with from_start(bootstrap, single) as consumer, Producer(bootstrap_servers=bootstrap) as producer:
        assert consumer.poll(0.1) == []
        for number in range(5):
            producer.send(single, b"%d" % number).result(10)
            assert [record.value for record in consumer.poll(10)] == [b"%d" % number]


def test_a_reader_of_the_latest_sees_what_comes_after_it(bootstrap: str, single: str) -> None:
    fill(bootstrap, single, 10)
    with Consumer(single, bootstrap_servers=bootstrap) as consumer:
        poll_until(consumer, lambda: bool(consumer.assignment()), "it is assigned")
        assert consumer.position((single, 0)) == 10
        with Producer(bootstrap_servers=bootstrap) as producer:
            producer.send(single, b"new")
        assert [record.value for record in read(consumer, 1)] == [b"new"]


def test_partitions_are_assigned_by_hand_and_sought(bootstrap: str, topic: str) -> None:
    for partition in range(3):
        fill(bootstrap, topic, 100, partition)
    with from_start(bootstrap) as consumer:
        consumer.assign([(topic, 0), (topic, 2)])
        assert consumer.assignment() == {TopicPartition(topic, 0), TopicPartition(topic, 2)}
        assert {record.partition for record in read(consumer, 200)} == {0, 2}
        consumer.assign([(topic, 1)])
        assert {record.partition for record in read(consumer, 100)} == {1}
        consumer.seek((topic, 1), 90)
        assert [record.offset for record in read(consumer, 10)] == list(range(90, 100))
        consumer.seek_to_beginning()
        assert read(consumer, 100)[0].offset == 0
        consumer.seek_to_end((topic, 1))
        assert consumer.position((topic, 1)) == 100
        consumer.seek_to_time(1050, (topic, 1))
        assert consumer.position((topic, 1)) == 50
        assert read(consumer, 50)[0].offset == 50
        consumer.seek_to_time(99_999_999_999_999, (topic, 1))
        assert consumer.position((topic, 1)) == 100


def test_a_seek_forgets_what_was_read_ahead(bootstrap: str, single: str) -> None:
    fill(bootstrap, single, 1000)
    with from_start(bootstrap, single, max_poll_records=10) as consumer:
        for target in (500, 3, 950, 0, 700):
            read(consumer, 10)
            consumer.seek((single, 0), target)
            assert read(consumer, 1)[0].offset == target


def test_offsets_are_looked_up(bootstrap: str, topic: str) -> None:
    fill(bootstrap, topic, 100, 1)
    with Consumer(bootstrap_servers=bootstrap) as consumer:
        names = [(topic, 0), (topic, 1)]
        assert consumer.beginning_offsets(names) == {(topic, 0): 0, (topic, 1): 0}
        assert consumer.end_offsets(names) == {(topic, 0): 0, (topic, 1): 100}
        found = consumer.offsets_for_times({(topic, 0): 1010, (topic, 1): 1010})
        assert found[TopicPartition(topic, 0)] is None
        entry = found[TopicPartition(topic, 1)]
        assert entry is not None
        assert (entry.offset, entry.timestamp) == (10, 1010)
        assert [info.partition for info in consumer.partitions_for(topic)] == [0, 1, 2]
        assert topic in consumer.topics()


def test_paused_partitions_rest_until_they_are_resumed(bootstrap: str, topic: str) -> None:
    for partition in range(2):
        fill(bootstrap, topic, 300, partition)
    with from_start(bootstrap, max_poll_records=20) as consumer:
        consumer.assign([(topic, 0), (topic, 1)])
        read(consumer, 20)
        consumer.pause((topic, 0))
        assert consumer.paused() == {(topic, 0)}
        before = consumer.position((topic, 0))
        seen = poll_until(consumer, lambda: consumer.position((topic, 1)) == 300, "the other is read")
        assert {record.partition for record in seen} <= {1}
        assert consumer.poll(0.1) == []
        consumer.resume((topic, 0))
        rest = read(consumer, 300 - before)
        assert [record.offset for record in rest] == list(range(before, 300))


def test_what_came_while_a_partition_rested_follows_what_had_come_before(bootstrap: str, single: str) -> None:
    fill(bootstrap, single, 10)
    with from_start(bootstrap, max_poll_records=3, fetch_max_wait_ms=20_000) as consumer:
        consumer.assign([(single, 0)])
        found = read(consumer, 3)
        consumer.pause((single, 0))
        assert consumer.poll(0.1) == []  # what has come is set aside, while a fetch is waiting at the broker
        fill(bootstrap, single, 1)
        eventually(lambda: consumer.current_lag((single, 0)) == 8, "the waiting fetch is answered")
        consumer.resume((single, 0))
        found += read(consumer, 8)
        assert [record.offset for record in found] == list(range(11))
        assert consumer.position((single, 0)) == 11


def test_lag_is_what_is_left_to_read(bootstrap: str, single: str) -> None:
    fill(bootstrap, single, 100)
    with from_start(bootstrap, single, max_poll_records=40) as consumer:
        poll_until(consumer, lambda: bool(consumer.assignment()), "it is assigned")
        assert consumer.current_lag((single, 0)) in (None, 100, 60)
        consumer.seek((single, 0), 0)
        read(consumer, 40)
        assert consumer.current_lag((single, 0)) == 60
        assert consumer.metrics()["records-lag-max"] == 60
        assert consumer.highwater((single, 0)) == 100
        read(consumer, 60)
        assert consumer.current_lag((single, 0)) == 0


def test_keys_and_values_are_deserialized(bootstrap: str, single: str) -> None:
    with Producer(bootstrap_servers=bootstrap) as producer:
        producer.send(single, b'{"a": 1}', key=b"\x00\x00\x00\x05")
        producer.send(single, None, key=b"\x00\x00\x00\x06")
    import json

    with from_start(
        bootstrap,
        single,
        key_deserializer="org.apache.kafka.common.serialization.IntegerDeserializer",
        value_deserializer=json.loads,
    ) as consumer:
        found = read(consumer, 2)
    assert [(record.key, record.value) for record in found] == [(5, {"a": 1}), (6, None)]
    assert [(record.serialized_key_size, record.serialized_value_size) for record in found] == [
        (4, 8),
        (4, -1),
    ]


def test_a_record_that_cannot_be_deserialized_is_named_until_it_is_passed(
    bootstrap: str, single: str
) -> None:
    with Producer(bootstrap_servers=bootstrap) as producer:
        for value in (b"1", b"2", b"three", b"4"):
            producer.send(single, value)
    with from_start(bootstrap, single, value_deserializer=int) as consumer:
        assert [record.value for record in read(consumer, 2)] == [1, 2]
        for _ in range(2):
            with pytest.raises(
                SerializationException, match=f"{single}-0: the value of the record at offset 2"
            ):
                read(consumer, 1)
        assert consumer.position((single, 0)) == 2
        consumer.seek((single, 0), 3)
        assert [record.value for record in read(consumer, 1)] == [4]


def test_interceptors_see_and_change_records(bootstrap: str, single: str) -> None:
    class OddOnes(ConsumerInterceptor):
        closed = False

        def on_consume(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
            return [record for record in records if record.offset % 2]

        def close(self) -> None:
            self.closed = True

    class Broken(ConsumerInterceptor):
        def on_consume(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
            raise RuntimeError("broken")

    fill(bootstrap, single, 10)
    odd = OddOnes()
    with from_start(bootstrap, single, interceptor_classes=[Broken, odd]) as consumer:
        assert [record.offset for record in read(consumer, 5)] == [1, 3, 5, 7, 9]
    assert odd.closed


@pytest.mark.needs("EndTxn")
def test_committed_readers_see_whole_transactions(bootstrap: str, single: str, new_name: NewName) -> None:
    with Producer(bootstrap_servers=bootstrap, transactional_id=new_name("id"), linger_ms=0) as producer:
        producer.init_transactions()
        for number in range(6):
            producer.begin_transaction()
            producer.send(single, b"%d" % number)
            producer.flush()
            if number % 2:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
        with from_start(bootstrap, single) as everybody:
            assert [record.value for record in read(everybody, 6)] == [b"%d" % n for n in range(6)]
        producer.begin_transaction()
        producer.send(single, b"open").result(10)
        with from_start(bootstrap, single, isolation_level="read_committed") as consumer:
            assert [record.value for record in read(consumer, 3)] == [b"0", b"2", b"4"]
            assert consumer.poll(0.3) == []
            assert consumer.current_lag((single, 0)) == 0
            assert consumer.end_offsets([(single, 0)]) == {(single, 0): 12}
            producer.commit_transaction()
            assert [record.value for record in read(consumer, 1)] == [b"open"]
            columns = consumer.poll_arrow(0.1)
            assert columns.num_rows == 0


def test_without_a_policy_a_missing_offset_is_told(bootstrap: str, single: str, new_name: NewName) -> None:
    fill(bootstrap, single, 10)
    with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="none", group_id=new_name("g")) as consumer:
        consumer.assign([(single, 0)])
        with pytest.raises(NoOffsetForPartitionException, match=f"{single}-0: no offset is committed"):
            read(consumer, 1)
        consumer.seek((single, 0), 5)
        assert read(consumer, 5)[0].offset == 5
        consumer.seek((single, 0), 1000)
        with pytest.raises(OffsetOutOfRange, match=f"{single}-0: offset 1000"):
            read(consumer, 1)
        consumer.seek((single, 0), 9)
        assert read(consumer, 1)[0].offset == 9


@pytest.mark.parametrize(("policy", "expected"), [("earliest", 0), ("latest", 10), ("by_duration:PT1H", 4)])
def test_an_offset_that_is_not_there_is_reset_by_the_policy(
    bootstrap: str, single: str, policy: str, expected: int
) -> None:
    now = time.time_ns() // 1_000_000
    with Producer(bootstrap_servers=bootstrap) as producer:
        for number in range(10):
            producer.send(single, b"%d" % number, timestamp_ms=now - (10_000_000 if number < 4 else 1000))
    with Consumer(bootstrap_servers=bootstrap, auto_offset_reset=policy) as consumer:
        consumer.assign([(single, 0)])
        assert consumer.position((single, 0)) == expected
        consumer.seek((single, 0), 5000)
        poll_until(consumer, lambda: consumer.position((single, 0)) in (expected, 10), "it is reset")


def test_offsets_are_committed_without_membership(bootstrap: str, single: str, new_name: NewName) -> None:
    fill(bootstrap, single, 10)
    group = new_name("group")
    settings = {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
    with Consumer(settings, enable_auto_commit=False, max_poll_records=4) as consumer:
        consumer.assign([(single, 0)])
        assert consumer.committed([(single, 0)]) == {(single, 0): None}
        read(consumer, 4)
        consumer.commit()
        assert consumer.committed([(single, 0)])[TopicPartition(single, 0)] == OffsetAndMetadata(4, "", 0)
        record = read(consumer, 4)[1]
        consumer.commit(record)
        assert consumer.committed([(single, 0)])[TopicPartition(single, 0)] == OffsetAndMetadata(6, "", 0)
        consumer.commit({(single, 0): OffsetAndMetadata(2, "a note", 0)})
        assert consumer.committed([(single, 0)])[TopicPartition(single, 0)] == OffsetAndMetadata(
            2, "a note", 0
        )
        told: list[object] = []
        done = threading.Event()
        consumer.commit_async({(single, 0): 3}, lambda offsets, error: (told.append(error), done.set()))
        assert done.wait(10)
        assert told == [None]
    with Consumer(settings) as later:
        later.assign([(single, 0)])
        assert read(later, 1)[0].offset == 3


def test_positions_are_committed_automatically(bootstrap: str, single: str, new_name: NewName) -> None:
    fill(bootstrap, single, 10)
    settings = {"bootstrap.servers": bootstrap, "group.id": new_name("g"), "auto.offset.reset": "earliest"}
    with Consumer(settings, auto_commit_interval_ms=50, max_poll_records=5) as consumer:
        consumer.assign([(single, 0)])
        read(consumer, 5)
        # A poll that found nothing yet may have committed where reading begins, but none of these.
        before = consumer.committed([(single, 0)])[TopicPartition(single, 0)]
        assert before is None or before.offset == 0
        read(consumer, 5)

        def committed() -> bool:
            entry = consumer.committed([(single, 0)])[TopicPartition(single, 0)]
            return entry is not None and entry.offset == 10

        poll_until(consumer, committed, "everything is committed")
    with Consumer(settings) as closing:
        closing.assign([(single, 0)])
        closing.seek((single, 0), 3)
        closing.position((single, 0))
    with Consumer(settings) as later:
        assert later.committed([(single, 0)])[TopicPartition(single, 0)].offset == 3  # type: ignore[union-attr]


def test_calls_that_do_not_fit_say_why(bootstrap: str, single: str) -> None:
    with Consumer(bootstrap_servers=bootstrap) as consumer:
        with pytest.raises(IllegalStateException, match="subscribe to topics or assign partitions first"):
            consumer.poll(0)
        with pytest.raises(IllegalStateException, match=r"group\.id"):
            consumer.commit()
        with pytest.raises(IllegalStateException, match="is not assigned to this consumer; nothing is"):
            consumer.seek((single, 0), 1)
        consumer.assign([(single, 0)])
        with pytest.raises(IllegalStateException, match="unsubscribe before subscribing"):
            consumer.subscribe(single)
        with pytest.raises(ValueError, match="expected 0 or more"):
            consumer.seek((single, 0), -5)
        consumer.unsubscribe()
        consumer.subscribe([single])
        with pytest.raises(IllegalStateException, match="unsubscribe before assigning"):
            consumer.assign([(single, 0)])
    with pytest.raises(ClientClosedException):
        consumer.poll(0)
    consumer.close()


def test_another_thread_is_refused_and_may_wake_the_first(bootstrap: str, single: str) -> None:
    raised: list[BaseException] = []
    with from_start(bootstrap, single) as consumer:

        def wait() -> None:
            try:
                consumer.poll(None)
            except WakeupException as error:
                raised.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        eventually(lambda: bool(consumer._inboxes), "the other thread polls")
        with pytest.raises(IllegalStateException, match="one thread at a time"):
            consumer.assignment()
        consumer.wakeup()
        thread.join(10)
        assert len(raised) == 1
        assert consumer.poll(0) == []


@pytest.mark.parametrize(
    ("setting", "value", "allowed"),
    [
        ("auto_offset_reset", "sometimes", "expected earliest, latest, none or by_duration"),
        ("auto_offset_reset", "by_duration:1h", "expected earliest, latest, none or by_duration"),
        ("isolation_level", "dirty", "expected one of read_committed, read_uncommitted"),
        ("partition_assignment_strategy", "fair", "expected range, roundrobin, sticky, cooperative-sticky"),
        ("heartbeat_interval_ms", 60_000, "expected below session.timeout.ms=45000"),
        ("interceptor_classes", [object], "expected subclasses of ConsumerInterceptor"),
        ("value_deserializer", 5, "expected a function"),
    ],
)
def test_a_wrong_value_is_refused_with_what_is_allowed(setting: str, value: object, allowed: str) -> None:
    with pytest.raises(ConfigError, match=allowed.replace(".", r"\.")):
        Consumer(bootstrap_servers="localhost:1", group_id="g", **{setting: value})


def test_a_wrong_name_warns_with_the_nearest(caplog: pytest.LogCaptureFixture) -> None:
    with Consumer(bootstrap_servers="localhost:1", auto_ofset_reset="earliest"):
        pass
    assert "auto.ofset.reset is not known and changes nothing; did you mean auto.offset.reset?" in caplog.text


def test_an_unreachable_cluster_says_so_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    began = time.monotonic()
    with Consumer("t", bootstrap_servers="127.0.0.1:1", group_id="g") as consumer:
        assert consumer.poll(0.3) == []
        with pytest.raises(TimeoutException, match=r"no broker can be reached at 127\.0\.0\.1:1"):
            consumer.committed([("t", 0)], timeout=0.2)
        lines = [entry.getMessage() for entry in caplog.records if "127.0.0.1:1" in entry.getMessage()]
        assert len(lines) <= 2  # one for what is read, one for the group
        assert lines[0].startswith("no broker can be reached at 127.0.0.1:1")
        began_close = time.monotonic()
    assert time.monotonic() - began_close < 5
    assert time.monotonic() - began < 10


INTERRUPTED = """
import os, signal, sys, threading, time
from tidelog import Consumer
consumer = Consumer(sys.argv[2], bootstrap_servers=sys.argv[1], group_id="interrupted")
signal.signal(signal.SIGINT, signal.default_int_handler)  # also where whoever started us ignores it


def interrupt():
    global began
    began = time.monotonic()
    os.kill(os.getpid(), signal.SIGINT)


threading.Timer(0.5, interrupt).start()
try:
    with consumer:
        consumer.poll(None)
finally:
    print(time.monotonic() - began)
"""


@pytest.mark.parametrize("where", ["reachable", "unreachable"])
def test_ctrl_c_ends_a_poll_at_once(bootstrap: str, single: str, where: str) -> None:
    address = bootstrap if where == "reachable" else "127.0.0.1:1"
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, address, single], capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in ended.stderr
    assert float(ended.stdout) < 10


def test_pausing_no_partition_pauses_none(bootstrap: str, topic: str) -> None:
    with from_start(bootstrap) as consumer:
        consumer.assign([(topic, 0), (topic, 1)])
        consumer.pause(*())
        assert consumer.paused() == set()
        consumer.pause((topic, 0))
        consumer.resume(*())
        assert consumer.paused() == {(topic, 0)}


def test_what_is_no_partition_is_shown(bootstrap: str, topic: str) -> None:
    with from_start(bootstrap, group_id="readers") as consumer:
        consumer.assign([(topic, 0)])
        with pytest.raises(TypeError, match=r"expected a partition as \(topic, number\), not \[\("):
            consumer.pause([(topic, 0)])  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="not 't'"):
            consumer.assign("topic")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=f"offset -5 of {topic}-0: expected 0 or more"):
            consumer.commit({(topic, 0): -5})


def test_only_the_thread_that_polls_closes(bootstrap: str, single: str) -> None:
    fill(bootstrap, single, 1)
    found: list[ConsumerRecord] = []
    with from_start(bootstrap) as consumer:
        consumer.assign([(single, 0)])
        consumer.seek((single, 0), 1)
        polling = threading.Thread(target=lambda: found.extend(consumer.poll(30)))
        polling.start()

        def is_polling() -> bool:
            try:
                consumer.paused()
            except IllegalStateException:
                return True
            return False

        eventually(is_polling, "the other thread polls")
        with pytest.raises(IllegalStateException, match="one thread at a time"):
            consumer.close()
        fill(bootstrap, single, 1)
        polling.join(30)
        assert [record.offset for record in found] == [1]


def test_waking_up_what_is_closed_does_nothing(bootstrap: str) -> None:
    consumer = from_start(bootstrap)
    consumer.close()
    consumer.wakeup()


def test_any_thread_may_ask_for_metrics(bootstrap: str, topic: str) -> None:
    errors: list[BaseException] = []
    asked = threading.Event()
    over = threading.Event()
    with from_start(bootstrap) as consumer:

        def ask() -> None:
            try:
                while not over.is_set():
                    consumer.metrics()
                    asked.set()
            except Exception as error:
                errors.append(error)

        asking = threading.Thread(target=ask)
        asking.start()
        assert asked.wait(10)
        for number in range(300):
            consumer.assign([(topic, index) for index in range(number % 3)])
        over.set()
        asking.join(10)
    assert errors == []


def test_what_interceptors_drop_does_not_hold_up_what_follows(bootstrap: str, single: str) -> None:
    class Odd(ConsumerInterceptor):
        def on_consume(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
            return [record for record in records if record.offset % 2]

    fill(bootstrap, single, 6)
    with from_start(bootstrap, single, max_poll_records=1, interceptor_classes=[Odd]) as consumer:
        assert [record.offset for _ in range(3) for record in consumer.poll(10)] == [1, 3, 5]
        assert consumer.poll(0.1) == []


def test_a_poll_for_no_records_is_refused(bootstrap: str, single: str) -> None:
    with from_start(bootstrap, single) as consumer:
        with pytest.raises(ValueError, match="max_records is 0; expected at least 1"):
            consumer.poll(1, max_records=0)
        with pytest.raises(ValueError, match="max_records is -1"):
            consumer.poll_arrow(1, max_records=-1)


def test_an_interceptor_that_forgets_to_give_records_drops_none(
    bootstrap: str, single: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Forgetful(ConsumerInterceptor):
        def on_consume(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
            return None  # type: ignore[return-value]

    fill(bootstrap, single, 3)
    with from_start(bootstrap, single, interceptor_classes=[Forgetful]) as consumer:
        assert len(read(consumer, 3, 10)) == 3
    assert "on_consume returned None; expected a list of records" in caplog.text


def test_a_consumer_made_before_a_fork_hands_out_nothing_in_the_child(bootstrap: str, single: str) -> None:
    fill(bootstrap, single, 10)
    program = """
import os, sys
from tidelog import Consumer
from tidelog.clients.errors import IllegalStateException
consumer = Consumer(bootstrap_servers=sys.argv[1], auto_offset_reset="earliest")
consumer.assign([(sys.argv[2], 0)])
while not consumer.poll(1, max_records=1):
    pass
child = os.fork()
if child == 0:
    try:
        print(len(consumer.poll(1)), "records", flush=True)
    except IllegalStateException as error:
        print(error, flush=True)
    consumer.close()  # the parent's to close
    sys.exit(7)
print("ended with", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(len(consumer.poll(10)), "left")
consumer.close()
"""
    done = subprocess.run(
        [sys.executable, "-c", program, bootstrap, single], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.splitlines() == [
        "consumer was made before a fork; make a new one in the child process",
        "ended with 7",
        "9 left",
    ], done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="tests a setting of the C library of Linux")
def test_memory_of_values_is_kept_for_those_of_the_next_poll() -> None:
    program = """
import asyncio, resource
from tidelog import AsyncConsumer

async def faults():
    AsyncConsumer(bootstrap_servers="127.0.0.1:1")
    counted = []
    for _ in range(20):
        [b"%01000d" % number for number in range(2000)]
        counted.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
    print(counted[-1] - counted[4])

asyncio.run(faults())
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert int(done.stdout) < 500, "pages were given back and asked for again"
