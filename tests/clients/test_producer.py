"""The producer against a broker: what is sent is there, in order, once, and the future says where."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy
import pytest

from tests.clients.reading import batches, records, values
from tidelog import Admin, NewTopic
from tidelog.clients.consumer.blocking import Consumer
from tidelog.clients.errors import (
    ClientClosedException,
    ConfigError,
    IllegalStateException,
    RecordTooLargeException,
    SerializationException,
    TimeoutException,
)
from tidelog.clients.metadata import ClusterView
from tidelog.clients.producer.accumulator import RecordAccumulator
from tidelog.clients.producer.blocking import Producer
from tidelog.clients.producer.interceptors import ProducerInterceptor, ProducerRecord
from tidelog.clients.producer.producer import AsyncProducer
from tidelog.clients.settings import producer_settings
from tidelog.errors import InvalidTopic
from tidelog.records.batch import Codec
from tidelog.records.loops import RecordMetadata
from tidelog.records.partitioning import partition_for_key

NewName = Callable[[str], str]
HASHES = Path(__file__).parent.parent / "data" / "hashes.json"
LONG_LINGER_MS = 60_000
"""Batches are sent when they are full or flushed, however slowly the test fills them."""


@pytest.fixture
def topic(bootstrap: str, new_name: NewName) -> str:
    """A topic of three partitions."""
    name = new_name("produced")
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topics([NewTopic(name, num_partitions=3)])
    return name


@pytest.fixture
def single(bootstrap: str, new_name: NewName) -> str:
    """A topic of one partition."""
    name = new_name("single")
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topics([NewTopic(name, num_partitions=1)])
    return name


def test_a_record_is_there_as_it_was_sent(bootstrap: str, topic: str) -> None:
    with Producer(bootstrap_servers=bootstrap) as producer:
        future = producer.send(
            topic,
            b"value",
            key=b"key",
            headers=[("a", b"1"), ("a", None)],
            partition=2,
            timestamp_ms=1234567890123,
        )
        metadata = future.result(10)
    assert metadata == RecordMetadata(topic, 2, 0, 1234567890123, 3, 5)
    [record] = records(bootstrap, topic, 2)
    assert record.key == b"key"
    assert record.value == b"value"
    assert record.headers == (("a", b"1"), ("a", None))
    assert record.timestamp == 1234567890123


def test_a_value_of_none_and_an_empty_one_are_kept_apart(bootstrap: str, single: str) -> None:
    with Producer(bootstrap_servers=bootstrap) as producer:
        producer.send(single, None, key=b"k")
        producer.send(single, b"", key=b"")
        producer.send(single)
    assert [(record.key, record.value) for record in records(bootstrap, single)] == [
        (b"k", None),
        (b"", b""),
        (None, None),
    ]


def test_records_of_a_partition_keep_their_order(bootstrap: str, single: str) -> None:
    sent = [f"record {number}".encode() for number in range(5000)]
    with Producer(bootstrap_servers=bootstrap, batch_size=2000) as producer:
        futures = [producer.send(single, value) for value in sent]
    assert values(bootstrap, single) == sent
    assert [future.result(0).offset for future in futures] == list(range(5000))


def test_the_futures_of_a_batch_know_their_own_record(bootstrap: str, single: str) -> None:
    with Producer(bootstrap_servers=bootstrap, linger_ms=LONG_LINGER_MS) as producer:
        first = producer.send(single, b"one", timestamp_ms=1000)
        second = producer.send(single, b"two", key=b"12345", timestamp_ms=500)
        assert not first.done()
        producer.flush()
        assert second.result(10) == RecordMetadata(single, 0, 1, 500, 5, 3)
        assert first.done()
        assert first.result() == RecordMetadata(single, 0, 0, 1000, -1, 3)
        assert first.exception() is None
    assert len(list(batches(bootstrap, single))) == 1


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_batches_are_compressed(bootstrap: str, single: str, codec: str) -> None:
    with Producer(bootstrap_servers=bootstrap, compression_type=codec, linger_ms=100) as producer:
        for number in range(1000):
            producer.send(single, b"%06d" % number * 10)
        producer.flush()
        assert producer.metrics()["compression-rate-avg"] < 0.5
    found = list(batches(bootstrap, single))
    assert {header.codec for header, _ in found} == {Codec[codec.upper()]}
    assert values(bootstrap, single) == [b"%06d" % number * 10 for number in range(1000)]


@pytest.mark.parametrize(("codec", "name"), [("gzip", "gzip"), ("zstd", "zstd")])
def test_a_higher_level_packs_smaller(bootstrap: str, new_name: NewName, codec: str, name: str) -> None:
    text = Path(__file__).read_bytes()
    sizes = []
    for level in (1, 9):
        topic = new_name(f"level{level}")
        settings = {f"compression.{name}.level": level, "compression.type": codec, "batch.size": 1 << 20}
        with Producer({"bootstrap.servers": bootstrap, **settings}) as producer:
            producer.send(topic, text).result(10)
        sizes.append(sum(header.total_size for header, _ in batches(bootstrap, topic)))
    assert sizes[1] < sizes[0] < len(text)


def test_keys_find_the_partition_that_java_sends_them_to(bootstrap: str, new_name: NewName) -> None:
    import base64

    topic = new_name("hashed")
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topics([NewTopic(topic, num_partitions=12)])
    entries = json.loads(HASHES.read_text())
    with Producer(bootstrap_servers=bootstrap) as producer:
        futures = [producer.send(topic, b"", key=base64.b64decode(entry["key"])) for entry in entries]
    assert [future.result(0).partition for future in futures] == [
        entry["partition_of_12"] for entry in entries
    ]


def test_records_without_key_stay_with_a_partition_for_a_batch(bootstrap: str, topic: str) -> None:
    with Producer(bootstrap_servers=bootstrap, batch_size=1000, linger_ms=LONG_LINGER_MS) as producer:
        futures = [producer.send(topic, b"x" * 80) for _ in range(600)]
    chosen = [future.result(0).partition for future in futures]
    changes = sum(one != other for one, other in pairwise(chosen))
    assert set(chosen) == {0, 1, 2}
    assert 10 < changes <= 70  # a batch holds ten


def test_keys_may_be_ignored(bootstrap: str, topic: str) -> None:
    settings = {"partitioner.ignore.keys": True, "linger.ms": LONG_LINGER_MS}
    with Producer(settings, bootstrap_servers=bootstrap) as producer:
        futures = [producer.send(topic, b"v", key=str(number)) for number in range(50)]
    assert len({future.result(0).partition for future in futures}) == 1


def test_round_robin_takes_the_partitions_in_turn(bootstrap: str, topic: str) -> None:
    name = "org.apache.kafka.clients.producer.RoundRobinPartitioner"
    with Producer(bootstrap_servers=bootstrap, partitioner_class=name) as producer:
        futures = [producer.send(topic, b"v", key=b"same") for _ in range(9)]
    chosen = [future.result(0).partition for future in futures]
    assert chosen == [(chosen[0] + step) % 3 for step in range(9)]


def test_a_partitioner_of_ones_own(bootstrap: str, topic: str) -> None:
    def by_length(
        topic: str,
        key: object,
        key_bytes: bytes | None,
        value: object,
        value_bytes: bytes | None,
        view: ClusterView,
    ) -> int:
        return len(value_bytes or b"") % (view.partition_count(topic) or 1)

    with Producer(bootstrap_servers=bootstrap, partitioner_class=by_length) as producer:
        assert [producer.send(topic, b"x" * size).result(10).partition for size in range(4)] == [0, 1, 2, 0]
    refused = pytest.raises(ValueError, match="the partitioner chose -1")
    with Producer(bootstrap_servers=bootstrap, partitioner_class=lambda *_: -1) as producer, refused:
        producer.send(topic, b"")


def test_serializers_make_bytes_of_keys_and_values(bootstrap: str, single: str) -> None:
    with Producer(
        bootstrap_servers=bootstrap,
        key_serializer="org.apache.kafka.common.serialization.LongSerializer",
        value_serializer=lambda value: json.dumps(value).encode(),
    ) as producer:
        producer.send(single, {"a": 1}, key=7).result(10)
        with pytest.raises(SerializationException, match="the key of a record for topic"):
            producer.send(single, {}, key="seven")
        with pytest.raises(SerializationException, match="the value of a record"):
            producer.send(single, object(), key=1)
    [record] = records(bootstrap, single)
    assert (record.key, record.value) == (bytes(7) + b"\x07", b'{"a": 1}')


def test_texts_are_sent_as_utf8_and_other_things_want_a_serializer(bootstrap: str, single: str) -> None:
    with Producer(bootstrap_servers=bootstrap) as producer:
        producer.send(single, "grün", key=bytearray(b"k")).result(10)
        with pytest.raises(SerializationException, match="int is neither bytes nor str"):
            producer.send(single, 5)
    assert records(bootstrap, single)[0].value == "grün".encode()


class Marker(ProducerInterceptor):
    def __init__(self) -> None:
        self.acknowledged: list[tuple[RecordMetadata, BaseException | None]] = []
        self.closed = False

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        record.headers = [*record.headers, ("seen", b"1")]
        return record

    def on_acknowledgement(self, metadata: RecordMetadata, error: BaseException | None) -> None:
        self.acknowledged.append((metadata, error))

    def close(self) -> None:
        self.closed = True


class Faulty(ProducerInterceptor):
    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        raise RuntimeError("always")


def test_interceptors_change_records_and_see_how_they_fared(bootstrap: str, single: str) -> None:
    marker = Marker()
    with Producer(bootstrap_servers=bootstrap, interceptor_classes=[marker, Faulty]) as producer:
        producer.send(single, b"v").result(10)
        producer.send(single, b"x" * 2_000_000)
    assert [record.headers for record in records(bootstrap, single)] == [(("seen", b"1"),)]
    (good, nothing), (bad, error) = marker.acknowledged
    assert (good.offset, nothing) == (0, None)
    assert (bad.topic, bad.offset) == (single, -1)
    assert isinstance(error, RecordTooLargeException)
    assert marker.closed


def test_callbacks_are_called_in_order_before_a_flush_ends(bootstrap: str, single: str) -> None:
    seen: list[int] = []
    with Producer(bootstrap_servers=bootstrap) as producer:
        for _ in range(500):
            producer.send(single, b"v", callback=lambda metadata, error: seen.append(metadata.offset))
        producer.flush()
        assert seen == list(range(500))


@pytest.mark.parametrize("failure", [RuntimeError("in the callback"), SystemExit(1)])
def test_a_callback_that_fails_harms_nobody(bootstrap: str, single: str, failure: BaseException) -> None:
    def fail(metadata: RecordMetadata, error: BaseException | None) -> None:
        raise failure

    with Producer(bootstrap_servers=bootstrap) as producer:
        future = producer.send(single, b"v", callback=fail)
        assert future.result(10).offset == 0
        assert producer.send(single, b"v").result(10).offset == 1


def test_a_blocking_call_in_a_callback_is_refused_instead_of_waiting_for_ever(
    bootstrap: str, single: str
) -> None:
    caught: list[BaseException] = []

    with Producer(bootstrap_servers=bootstrap) as producer:

        def flush(metadata: RecordMetadata, error: BaseException | None) -> None:
            try:
                producer.flush()
            except IllegalStateException as refused:
                caught.append(refused)

        producer.send(single, b"v", callback=flush).result(10)
    assert "would wait for ever" in str(caught[0])


def test_futures_can_be_told_of(bootstrap: str, single: str) -> None:
    told: list[int] = []
    with Producer(bootstrap_servers=bootstrap) as producer:
        future = producer.send(single, b"v")
        future.add_done_callback(lambda done: told.append(done.result().offset))
        future.result(10)
        producer.flush()
        future.add_done_callback(lambda done: told.append(100 + done.result().offset))
    assert told == [0, 100]


def test_what_is_wrong_with_the_call_is_raised(bootstrap: str, topic: str) -> None:
    with Producer(bootstrap_servers=bootstrap) as producer:
        for arguments in ({"partition": -1}, {"timestamp_ms": -1}):
            with pytest.raises(ValueError):
                producer.send(topic, b"v", **arguments)  # type: ignore[arg-type]
        with pytest.raises(ValueError):
            producer.send("", b"v")
    with pytest.raises(ClientClosedException):
        producer.send(topic, b"v")


def test_a_call_of_wrong_types_is_refused_with_what_is_right(bootstrap: str, topic: str) -> None:
    with Producer(bootstrap_servers=bootstrap) as producer:
        for headers in ({"shop": b"7"}, [(b"shop", b"7")], [("shop", 7)], [("shop", b"7", b"8")]):
            with pytest.raises(SerializationException, match="expected pairs of a name and bytes"):
                producer.send(topic, b"value", headers=headers)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"partition '0' of topic .*: expected a number from 0 on"):
            producer.send(topic, b"value", partition="0")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"timestamp 1\.5: expected whole milliseconds"):
            producer.send(topic, b"value", timestamp_ms=1.5)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="timestamp 9223372036854775808: expected whole milliseconds"):
            producer.send(topic, b"value", timestamp_ms=1 << 63)
        assert producer.send(topic, b"value").result(10).offset == 0


def test_numbers_of_numpy_are_numbers(bootstrap: str, topic: str) -> None:
    with Producer(bootstrap_servers=bootstrap) as producer:
        future = producer.send(topic, b"value", partition=numpy.int64(2), timestamp_ms=numpy.int64(1_000))
        assert (future.result(10).partition, future.result().timestamp) == (2, 1_000)
    with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, numpy.int32(2))])
        assert [record.value for record in consumer.poll(10)] == [b"value"]


def test_a_record_that_cannot_be_appended_leaves_no_batch_behind() -> None:
    accumulator = RecordAccumulator(producer_settings({"bootstrap.servers": "127.0.0.1:1"}), Codec.NONE)
    queue = accumulator.queue("t", 0)
    free = accumulator.memory.available
    with pytest.raises(TypeError):
        accumulator.append(queue, None, None, b"value", (), 5, 0.0)  # type: ignore[arg-type]
    assert not queue.batches
    assert not accumulator.has_undrained()
    assert accumulator.memory.available == free


def test_what_befalls_the_record_is_in_the_future(bootstrap: str, topic: str) -> None:
    with Producer(bootstrap_servers=bootstrap, max_block_ms=1000) as producer:
        too_large = producer.send(topic, b"x" * 1_100_000)
        assert isinstance(too_large.exception(), RecordTooLargeException)
        assert "above max.request.size=1048576" in str(too_large.exception())
        nowhere = producer.send(topic, b"v", partition=7)
        with pytest.raises(
            TimeoutException, match=r"partition 7 of topic .* which has 3 partitions, is not in the metadata"
        ):
            nowhere.result()
        bad_name = producer.send("no/such topic", b"v")
        assert isinstance(bad_name.exception(), InvalidTopic)


def test_a_wrong_setting_is_refused_before_anything_is_started() -> None:
    before = set(threading.enumerate())
    with pytest.raises(ConfigError, match="host:port"):
        Producer(bootstrap_servers="localhost")
    with pytest.raises(ConfigError, match=r"partitioner\.class"):
        Producer(bootstrap_servers="localhost:1", partitioner_class="com.example.Mine")
    # Threads of an earlier test may end meanwhile.
    assert not set(threading.enumerate()) - before


def test_several_threads_may_send(bootstrap: str, topic: str) -> None:
    with Producer(bootstrap_servers=bootstrap, batch_size=3000) as producer:

        def send(name: int) -> None:
            for number in range(2000):
                producer.send(topic, b"%d:%d" % (name, number), key=b"%d" % name if number % 2 else None)

        threads = [threading.Thread(target=send, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = values(bootstrap, topic)
    assert len(found) == 8000
    assert set(found) == {b"%d:%d" % (name, number) for name in range(4) for number in range(2000)}


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_acks(bootstrap: str, single: str, acks: object) -> None:
    with Producer(bootstrap_servers=bootstrap, acks=acks) as producer:
        future = producer.send(single, b"v")
        offset = future.result(10).offset
        producer.flush()
    assert offset == (-1 if acks == 0 else 0)
    if acks == "all":
        [(header, _)] = batches(bootstrap, single)
        assert header.has_producer_id


def test_closing_writes_what_waits(bootstrap: str, single: str) -> None:
    producer = Producer(bootstrap_servers=bootstrap, linger_ms=60_000, delivery_timeout_ms=120_000)
    futures = [producer.send(single, b"v") for _ in range(10)]
    producer.close()
    producer.close()
    assert [future.result(0).offset for future in futures] == list(range(10))


def test_the_partitions_of_a_topic(bootstrap: str, topic: str) -> None:
    with Producer(bootstrap_servers=bootstrap) as producer:
        infos = producer.partitions_for(topic)
    assert [(info.topic, info.partition) for info in infos] == [(topic, number) for number in range(3)]
    for info in infos:
        assert info.replicas == info.in_sync_replicas == (info.leader,)
        assert info.offline_replicas == ()


def test_a_record_is_sent_and_waited_for_in_one_call(bootstrap: str, single: str) -> None:
    with Producer(bootstrap_servers=bootstrap) as producer:
        first = producer.send_and_wait(single, b"v", b"key", [("h", b"1")], 0, 17)
        assert (first.topic, first.partition, first.offset, first.timestamp) == (single, 0, 0, 17)
        with pytest.raises(RecordTooLargeException):
            producer.send_and_wait(single, b"x" * 2_000_000)

    async def main() -> int:
        async with AsyncProducer(bootstrap_servers=bootstrap) as other:
            with pytest.raises(RecordTooLargeException):
                await other.send_and_wait(single, b"x" * 2_000_000)
            return (await other.send_and_wait(single, b"v", b"key", [("h", b"1")], 0, 17)).offset

    assert asyncio.run(main()) == 1


def test_metrics_count_under_kafkas_names(bootstrap: str, single: str) -> None:
    with Producer(bootstrap_servers=bootstrap) as producer:
        for _ in range(100):
            producer.send(single, b"v")
        producer.flush()
        numbers = producer.metrics()
    assert numbers["record-send-total"] == 100
    assert numbers["record-error-total"] == 0
    assert numbers["buffer-available-bytes"] == numbers["buffer-total-bytes"] == 33554432
    assert numbers["request-latency-avg"] > 0
    assert numbers["request-total"] == numbers["response-total"]
    assert numbers["compression-rate-avg"] == 1.0


def test_coroutines_send_and_await(bootstrap: str, topic: str) -> None:
    async def main() -> list[int]:
        async with AsyncProducer(bootstrap_servers=bootstrap) as producer:
            futures = [await producer.send(topic, b"%d" % number, partition=1) for number in range(1000)]
            found = [(await future).offset for future in futures]
            too_large = await producer.send(topic, b"x" * 2_000_000)
            with pytest.raises(RecordTooLargeException):
                await too_large
            assert [info.partition for info in await producer.partitions_for(topic)] == [0, 1, 2]
            return found

    assert asyncio.run(main()) == list(range(1000))


def test_coroutines_wait_for_room_in_the_buffer(bootstrap: str, single: str) -> None:
    async def main() -> None:
        async with AsyncProducer(bootstrap_servers=bootstrap, buffer_memory=100_000) as producer:
            for _ in range(2000):
                await producer.send(single, b"x" * 1000)

    asyncio.run(main())
    assert len(values(bootstrap, single)) == 2000


def test_threads_wait_for_room_in_the_buffer(bootstrap: str, single: str) -> None:
    with Producer(bootstrap_servers=bootstrap, buffer_memory=100_000) as producer:
        for _ in range(2000):
            producer.send(single, b"x" * 1000)
    assert len(values(bootstrap, single)) == 2000


def test_a_topic_made_later_is_found(bootstrap: str, new_name: NewName) -> None:
    topic = new_name("later")
    with Producer(bootstrap_servers=bootstrap, max_block_ms=20_000) as producer:
        future = producer.send(topic, b"v")  # the broker makes topics that are asked for
        assert future.result(20).offset == 0


def test_the_hash_of_a_key_is_in_one_place() -> None:
    assert partition_for_key(b"", 12) == 9


def test_an_interceptor_that_forgets_to_give_a_record_changes_none(
    bootstrap: str, single: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Forgetful(ProducerInterceptor):
        def on_send(self, record: ProducerRecord) -> ProducerRecord:
            return None  # type: ignore[return-value]

    with Producer(bootstrap_servers=bootstrap, interceptor_classes=[Forgetful]) as producer:
        assert producer.send(single, b"value").result(10).serialized_value_size == 5
    assert "on_send returned None; expected a record" in caplog.text


def test_a_large_record_is_refused_also_where_a_batch_that_packs_well_has_room(
    bootstrap: str, single: str
) -> None:
    settings = {
        "compression_type": "gzip",
        "batch_size": 50_000,
        "max_request_size": 60_000,
        "linger_ms": 5000,
    }
    with Producer(bootstrap_servers=bootstrap, delivery_timeout_ms=60_000, **settings) as producer:
        for _ in range(100):  # until it knows how well these pack
            producer.send(single, b"x" * 40_000)
            producer.flush()
        producer.send(single, b"x" * 1000)
        assert isinstance(producer.send(single, b"x" * 70_000).exception(10), RecordTooLargeException)
