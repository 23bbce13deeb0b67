"""The producer when things go wrong: refusals, silence, lost connections, time limits, a killed broker."""

from __future__ import annotations

import asyncio
import gc
import math
import os
import random
import re
import signal
import ssl
import subprocess
import sys
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.clients.fake_broker import HANG_UP, SILENCE, Answer, FakeBroker, Produced
from tests.clients.reading import values
from tests.kafka.certificates import make_certificates
from tests.support.own_broker import OwnBrokers
from tests.support.scale import scale
from tests.support.wait import eventually
from tidelog.clients.async_connection import AsyncConnection
from tidelog.clients.connection import Connection, split_address
from tidelog.clients.errors import (
    BufferExhaustedException,
    ClientClosedException,
    ClientError,
    TimeoutException,
)
from tidelog.clients.metadata import BrokerNode
from tidelog.clients.producer import deliveries
from tidelog.clients.producer.accumulator import PartitionQueue
from tidelog.clients.producer.batch import ProducerBatch
from tidelog.clients.producer.blocking import Producer
from tidelog.clients.producer.producer import AsyncProducer
from tidelog.clients.security import Security
from tidelog.clients.settings import producer_settings
from tidelog.errors import (
    CorruptMessage,
    ErrorCode,
    InvalidRecord,
    KafkaError,
    KafkaStorageError,
    MessageTooLarge,
    NetworkException,
    NotLeaderOrFollower,
    TopicAuthorizationFailed,
)
from tidelog.records.loops import RecordFuture, RecordMetadata

QUICK = {"retry_backoff_ms": 5, "retry_backoff_max_ms": 20, "reconnect_backoff_ms": 5, "max_block_ms": 5000}


def once(*answers: Answer | None) -> Callable[[Produced], Answer | None]:
    """Give each of the answers to one batch, then accept everything."""
    left = list(answers)
    return lambda batch: left.pop(0) if left else None


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.REQUEST_TIMED_OUT,
    ],
)
def test_a_passing_error_is_tried_again(error: int) -> None:
    with FakeBroker(once(Answer(error), Answer(error))) as broker:
        with Producer(bootstrap_servers=broker.bootstrap, **QUICK) as producer:
            assert producer.send("t", b"v").result(5).offset == 0
            assert producer.metrics()["record-retry-total"] == 2
        assert [batch.header.base_sequence for batch in broker.produced] == [0, 0, 0]


def test_an_error_that_stays_is_in_the_future() -> None:
    script = once(Answer(ErrorCode.TOPIC_AUTHORIZATION_FAILED, message="not for you"))
    with FakeBroker(script) as broker, Producer(bootstrap_servers=broker.bootstrap, **QUICK) as producer:
        future = producer.send("t", b"v")
        with pytest.raises(TopicAuthorizationFailed, match="not for you"):
            future.result(5)
        assert producer.send("t", b"v").result(5).offset == 0


def test_after_a_refused_batch_the_epoch_is_raised_before_more_is_sent() -> None:
    with (
        FakeBroker(once(None, Answer(ErrorCode.INVALID_RECORD))) as broker,
        Producer(bootstrap_servers=broker.bootstrap, **QUICK) as producer,
    ):
        producer.send("t", b"0").result(5)
        assert isinstance(producer.send("t", b"1").exception(5), InvalidRecord)
        producer.send("t", b"2").result(5)
        seen = [(batch.header.producer_epoch, batch.header.base_sequence) for batch in broker.produced]
        assert seen == [(0, 0), (0, 1), (1, 0)]


def test_errors_of_single_records_are_told_apart() -> None:
    script = once(Answer(ErrorCode.INVALID_RECORD, record_errors=[(1, "no key"), (2, "too old")]))
    with (
        FakeBroker(script) as broker,
        Producer(bootstrap_servers=broker.bootstrap, linger_ms=50, **QUICK) as producer,
    ):
        futures = [producer.send("t", b"%d" % number) for number in range(3)]
        errors = [future.exception(5) for future in futures]
    assert isinstance(errors[0], ClientError)
    assert "other records of the same batch are wrong" in str(errors[0])
    assert [str(error) for error in errors[1:]] == ["no key", "too old"]
    assert all(isinstance(error, InvalidRecord) for error in errors[1:])


def test_without_idempotence_the_number_of_tries_is_limited() -> None:
    def refuse(batch: Produced) -> Answer:
        return Answer(ErrorCode.CORRUPT_MESSAGE)

    with FakeBroker(refuse) as broker:
        with Producer(
            bootstrap_servers=broker.bootstrap, enable_idempotence=False, retries=3, **QUICK
        ) as producer:
            assert isinstance(producer.send("t", b"v").exception(5), CorruptMessage)
        assert len(broker.produced) == 4


def test_a_lost_connection_costs_nothing_and_doubles_nothing() -> None:
    """The broker takes the batch and hangs up before it answers; it knows the batch again by its sequence."""
    taken: dict[int, int] = {}

    def script(batch: Produced) -> Answer | None:
        sequence = batch.header.base_sequence
        if sequence in taken:
            return Answer(0, base_offset=taken[sequence])
        taken[sequence] = len(broker.logs.get(("t", 0), []))
        broker.logs.setdefault(("t", 0), []).extend(batch.records)
        return HANG_UP if random.Random(sequence).random() < 0.3 else Answer(0, base_offset=taken[sequence])

    with FakeBroker(script) as broker:
        with Producer(bootstrap_servers=broker.bootstrap, batch_size=300, linger_ms=0, **QUICK) as producer:
            futures = [producer.send("t", b"%d" % number) for number in range(300)]
            offsets = [future.result(20).offset for future in futures]
        assert [record.value for record in broker.logs["t", 0]] == [b"%d" % number for number in range(300)]
        assert offsets == list(range(300))
        assert broker.connections > 1


def test_order_is_kept_where_a_batch_in_the_middle_is_refused() -> None:
    """As a real broker does: what follows a gap in the sequence is refused as out of order."""
    expected = [0]
    refused: set[int] = set()

    def script(batch: Produced) -> Answer | None:
        sequence = batch.header.base_sequence
        if sequence == expected[0] and sequence % 3 == 1 and sequence not in refused:
            refused.add(sequence)
            return Answer(ErrorCode.NOT_ENOUGH_REPLICAS)
        if sequence != expected[0]:
            return Answer(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
        expected[0] += len(batch.records)
        return None

    with FakeBroker(script) as broker:
        with Producer(bootstrap_servers=broker.bootstrap, batch_size=0, linger_ms=0, **QUICK) as producer:
            futures = [producer.send("t", b"%d" % number) for number in range(60)]
            assert [future.result(20).offset for future in futures] == list(range(60))
        assert [record.value for record in broker.logs["t", 0]] == [b"%d" % number for number in range(60)]


def test_one_request_at_a_time_keeps_the_order_without_idempotence() -> None:
    fails = random.Random(5)

    def script(batch: Produced) -> Answer | None:
        return Answer(ErrorCode.NOT_ENOUGH_REPLICAS) if fails.random() < 0.3 else None

    with FakeBroker(script) as broker:
        settings = {"enable_idempotence": False, "max_in_flight_requests_per_connection": 1, **QUICK}
        with Producer(bootstrap_servers=broker.bootstrap, batch_size=0, linger_ms=0, **settings) as producer:
            for number in range(60):
                producer.send("t", b"%d" % number)
        assert [record.value for record in broker.logs["t", 0]] == [b"%d" % number for number in range(60)]


def test_a_batch_that_is_too_large_is_split() -> None:
    def script(batch: Produced) -> Answer | None:
        return Answer(ErrorCode.MESSAGE_TOO_LARGE) if batch.size > 500 else None

    with FakeBroker(script) as broker:
        told: list[bytes] = []
        with Producer(bootstrap_servers=broker.bootstrap, linger_ms=50, **QUICK) as producer:
            futures = []
            for number in range(100):
                value = b"%03d" % number

                def note(metadata: RecordMetadata, error: BaseException | None, value: bytes = value) -> None:
                    told.append(value)
                    assert metadata.offset == int(value)

                futures.append(producer.send("t", value * 10, key=value, callback=note))
            assert [future.result(10).offset for future in futures] == list(range(100))
            assert producer.metrics()["batch-split-total"] > 0
            assert producer.metrics()["buffer-available-bytes"] == 33554432
        assert [record.key for record in broker.logs["t", 0]] == [b"%03d" % number for number in range(100)]
        assert told == [b"%03d" % number for number in range(100)]
        accepted = [batch for batch in broker.produced if batch.size <= 500]
        assert sorted(batch.header.base_sequence for batch in accepted)[:2] == [0, len(accepted[0].records)]


def test_a_single_record_that_is_too_large_fails() -> None:
    script = once(Answer(ErrorCode.MESSAGE_TOO_LARGE))
    with FakeBroker(script) as broker, Producer(bootstrap_servers=broker.bootstrap, **QUICK) as producer:
        assert isinstance(producer.send("t", b"v").exception(5), MessageTooLarge)


def test_a_record_older_than_the_delivery_time_limit_fails_with_the_reason() -> None:
    limits = {"request_timeout_ms": 100, "delivery_timeout_ms": 1000, "linger_ms": 0}
    with FakeBroker(lambda batch: SILENCE) as broker:
        with Producer(bootstrap_servers=broker.bootstrap, **QUICK, **limits) as producer:
            begun = time.monotonic()
            error = producer.send("t", b"v").exception(10)
            assert isinstance(error, TimeoutException)
            assert "t-0: 1 records were not written within" in str(error)
            assert time.monotonic() - begun > 0.95
        assert len(broker.produced) >= 2


def test_a_record_that_was_sent_again_expires_in_time() -> None:
    """Others were sent before its last attempt, and expire after it."""
    silent = threading.Event()

    def script(batch: Produced) -> Answer:
        again = batch.partition == 0 and not silent.is_set()
        return Answer(ErrorCode.NOT_LEADER_OR_FOLLOWER) if again else SILENCE

    settings = {**QUICK, "delivery_timeout_ms": 3000, "request_timeout_ms": 2900, "linger_ms": 0}
    with FakeBroker(script, partitions=2, nodes=2) as broker:
        producer = Producer(bootstrap_servers=broker.bootstrap, **settings)
        producer.partitions_for("t")
        begun = time.monotonic()
        first = producer.send("t", b"sent again", partition=0)
        eventually(lambda: time.monotonic() - begun > 2, "the other record is younger")
        producer.send("t", b"younger", partition=1)
        eventually(lambda: any(batch.partition for batch in broker.produced), "the other record is sent")
        silent.set()
        assert isinstance(first.exception(20), TimeoutException)
        assert 3.0 <= time.monotonic() - begun < 4.6  # the other's request ends at 4.9
        producer.close(0)


def test_a_partition_that_is_first_sent_to_during_a_turn_does_not_disturb_it() -> None:
    with Producer(bootstrap_servers="127.0.0.1:1") as producer:
        accumulator = producer._core.accumulator

        class Disturbed(deque[ProducerBatch]):
            def __bool__(self) -> bool:
                accumulator.active[PartitionQueue("t", len(accumulator.active))] = None
                return False

        for partition in range(2):
            queue = PartitionQueue("t", partition)
            queue.batches = Disturbed()
            accumulator.active[queue] = None
        assert producer._core.sender.deliveries.next_expiry() == math.inf
        accumulator.active.clear()


def test_a_batch_that_begins_during_a_turn_does_not_put_off_what_is_due_before() -> None:
    async def main() -> float:
        settings = {"linger_ms": 10_000, "delivery_timeout_ms": 60_000}
        async with AsyncProducer(bootstrap_servers="127.0.0.1:1", **settings) as producer:
            sender, now = producer._core.sender, asyncio.get_running_loop().time()

            def due_in_a_second() -> float:
                sender.wake_for_new(now)
                return now + 1

            sender._timer = asyncio.get_running_loop().call_at(now + 5, sender.wake)
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(sender.deliveries, "next_expiry", due_in_a_second)
                sender.run()
            assert sender._timer is not None
            return sender._timer.when() - now

    assert asyncio.run(main()) == pytest.approx(1)


def test_an_expired_batch_that_may_have_been_written_raises_the_epoch() -> None:
    script = once(None, SILENCE, SILENCE, SILENCE, SILENCE)
    limits = {"request_timeout_ms": 800, "delivery_timeout_ms": 1000, "linger_ms": 0}
    with (
        FakeBroker(script) as broker,
        Producer(bootstrap_servers=broker.bootstrap, **QUICK, **limits) as producer,
    ):
        producer.send("t", b"0").result(5)
        assert isinstance(producer.send("t", b"lost").exception(5), TimeoutException)
        eventually(lambda: producer.send("t", b"2").exception(5) is None, "records are written again")
        later = [batch.header for batch in broker.produced if batch.values == [b"2"]]
        assert all(header.producer_epoch > 0 and header.base_sequence == 0 for header in later)


def test_a_flush_ends_at_its_time_limit() -> None:
    late = r"flush: not every record was written within 0\.05 s"
    with (
        FakeBroker(once(None, SILENCE)) as broker,
        Producer(bootstrap_servers=broker.bootstrap, **QUICK) as producer,
    ):
        producer.send("t", b"0").result(5)
        producer.send("t", b"1")
        with pytest.raises(TimeoutException, match=late):
            producer.flush(0.05)
        producer.close(0)

    async def main(bootstrap: str) -> None:
        producer = AsyncProducer(bootstrap_servers=bootstrap, **QUICK)
        await producer.send("t", b"0")
        with pytest.raises(TimeoutException, match=late):
            await producer.flush(0.05)
        await producer.close(0)

    with FakeBroker(once(SILENCE)) as broker:
        asyncio.run(main(broker.bootstrap))


def test_records_that_expire_unsent_leave_the_sequence_alone() -> None:
    with FakeBroker() as broker:
        limits = {"request_timeout_ms": 500, "delivery_timeout_ms": 1000, "linger_ms": 0}
        with Producer(
            bootstrap_servers=broker.bootstrap, metadata_max_age_ms=50, **QUICK, **limits
        ) as producer:
            producer.send("t", b"0").result(5)
            broker.leaderless = {0}
            eventually(lambda: producer._core.client.view.leader("t", 0) is None, "the leader is gone")
            assert isinstance(producer.send("t", b"1").exception(5), TimeoutException)
            broker.leaderless = set()
            assert producer.send("t", b"2").exception(5) is None
        assert [(b.header.producer_epoch, b.header.base_sequence) for b in broker.produced] == [
            (0, 0),
            (0, 1),
        ]


def test_a_gap_that_the_broker_reports_is_bridged_by_a_higher_epoch() -> None:
    script = once(None, Answer(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER))
    with FakeBroker(script) as broker:
        with Producer(bootstrap_servers=broker.bootstrap, **QUICK) as producer:
            producer.send("t", b"0").result(5)
            assert producer.send("t", b"1").result(5).offset == 1
        seen = [(batch.header.producer_epoch, batch.header.base_sequence) for batch in broker.produced]
        assert seen == [(0, 0), (0, 1), (1, 0)]


def test_a_broker_that_forgot_the_producer_is_told_anew() -> None:
    script = once(None, Answer(ErrorCode.UNKNOWN_PRODUCER_ID, log_start_offset=5))
    with FakeBroker(script) as broker:
        with Producer(bootstrap_servers=broker.bootstrap, **QUICK) as producer:
            producer.send("t", b"0").result(5)
            producer.send("t", b"1").result(5)
        assert [(b.header.producer_epoch, b.header.base_sequence) for b in broker.produced][-1] == (1, 0)


def test_a_duplicate_counts_as_written_at_a_place_unknown() -> None:
    script = once(Answer(ErrorCode.DUPLICATE_SEQUENCE_NUMBER))
    with FakeBroker(script) as broker, Producer(bootstrap_servers=broker.bootstrap, **QUICK) as producer:
        assert producer.send("t", b"v").result(5).offset == -1


def test_an_answer_is_understood_where_the_metadata_lost_the_topic_meanwhile() -> None:
    with FakeBroker() as broker:
        broker.topic_ids = {"t": bytes(range(16))}
        settings = {**QUICK, "acks": 1, "delivery_timeout_ms": 3000, "request_timeout_ms": 2000}
        with Producer(bootstrap_servers=broker.bootstrap, linger_ms=0, **settings) as producer:
            producer.send("t", b"first", partition=0).result(5)

            def lose_topic(batch: Produced) -> None:
                producer._core.client.view.forget_topics(["t"])

            broker.script = lose_topic
            assert producer.send("t", b"second", partition=0).result(5).offset == 1
        assert [batch.values for batch in broker.produced] == [[b"first"], [b"second"]]


def test_the_time_of_the_append_is_reported_where_the_topic_says_so() -> None:
    script = once(Answer(log_append_time=777))
    with FakeBroker(script) as broker, Producer(bootstrap_servers=broker.bootstrap, **QUICK) as producer:
        assert producer.send("t", b"v", timestamp_ms=5).result(5).timestamp == 777


def test_no_more_requests_are_in_flight_than_allowed_and_none_is_larger() -> None:
    answers = threading.Event()
    with FakeBroker() as broker:
        with Producer(
            bootstrap_servers=broker.bootstrap, batch_size=1000, max_request_size=4000, linger_ms=0, **QUICK
        ) as producer:
            broker.partitions = 8
            for number in range(400):
                producer.send("many", b"x" * 100, partition=number % 8)
        answers.set()
    assert all(sum(batch.size for batch in request) <= 4000 for request in broker.requests)
    assert max(len(request) for request in broker.requests) > 1
    assert len(broker.logs) == 8


def test_the_largest_record_that_is_taken_fits_into_max_request_size() -> None:
    with FakeBroker() as broker:
        with Producer(bootstrap_servers=broker.bootstrap, max_request_size=10_000, **QUICK) as producer:
            taken = [
                size for size in range(9_900, 10_000) if not producer.send("t", b"x" * size).exception(5)
            ]
        assert 9_900 in taken
        assert 9_000 < max(batch.size for batch in broker.produced) <= 10_000


def test_no_partition_is_starved() -> None:
    """Each request has room for two batches of the eight that are always full."""
    with FakeBroker(partitions=8) as broker:
        with Producer(
            bootstrap_servers=broker.bootstrap, batch_size=900, max_request_size=2000, linger_ms=1000, **QUICK
        ) as producer:
            for number in range(800):
                producer.send("many", b"x" * 90, partition=number % 8)
        first: dict[int, int] = {}
        for index, request in enumerate(broker.requests):
            for batch in request:
                first.setdefault(batch.partition, index)
        assert len(first) == 8
        assert max(first.values()) <= 8


def test_a_throttled_producer_waits() -> None:
    with FakeBroker(throttle_ms=200) as broker:
        with Producer(bootstrap_servers=broker.bootstrap, linger_ms=0, **QUICK) as producer:
            for _ in range(3):
                producer.send("t", b"v").result(5)
            assert producer.metrics()["produce-throttle-time-max"] == pytest.approx(200)
        times = [batch.at for batch in broker.produced]
        assert times[1] - times[0] > 0.15
        assert times[2] - times[1] > 0.15


def test_a_full_buffer_says_so() -> None:
    with FakeBroker(lambda batch: SILENCE) as broker:
        producer = Producer(
            {"bootstrap.servers": broker.bootstrap, "buffer.memory": 50_000, **QUICK, "max_block_ms": 200}
        )

        def has_metadata() -> bool:
            with suppress(TimeoutException):
                return bool(producer.partitions_for("t"))
            return False

        eventually(has_metadata, "no send waits for metadata")
        futures = [producer.send("t", b"x" * 1000) for _ in range(60)]
        failed = [future for future in futures if future.done()]
        assert failed
        assert isinstance(failed[0].exception(), BufferExhaustedException)
        assert "records come faster than the brokers take them" in str(failed[0].exception())
        assert producer.metrics()["buffer-exhausted-total"] == len(failed)
        producer.close(0)


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
def test_what_is_not_answered_is_in_the_buffer_until_the_system_has_it(tmp_path: Path, protocol: str) -> None:
    gate = threading.Event()
    security: dict[str, object] = {"security_protocol": protocol}
    tls: ssl.SSLContext | None = None
    if protocol == "SSL":
        certificates = make_certificates(tmp_path, "secret")
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(certificates.server)
        security |= {"ssl_truststore_location": str(certificates.authority), "ssl_truststore_type": "PEM"}

    def held(batch: Produced) -> None:
        gate.wait(30)

    with FakeBroker(held, tls=tls) as broker:
        settings = {**security, **QUICK, "acks": 0, "buffer_memory": 2_000_000, "max_block_ms": 500}
        with Producer(bootstrap_servers=broker.bootstrap, **settings) as producer:
            sent, refused = 0, False
            while not refused:
                future = producer.send("t", b"x" * 100_000, partition=0)
                refused = future.done() and future.exception() is not None
                sent += not refused
                assert sent < 1000, "the buffer took 100 MB"
            assert isinstance(future.exception(), BufferExhaustedException)
            gate.set()
        eventually(
            lambda: sum(len(batch.records) for batch in broker.produced) == sent, "closing wrote the rest"
        )


def test_an_unreachable_broker_says_so_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    with Producer(bootstrap_servers="127.0.0.1:1", max_block_ms=1000) as producer:
        error = producer.send("t", b"v").exception()
    reason = "no broker can be reached at 127.0.0.1:1: cannot connect to 127.0.0.1:1: Connection refused"
    assert str(error) == f"topic 't' is not in the metadata after 1000 ms: {reason}"
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == [
        f"{reason}; trying again"
    ]


def test_closing_within_a_time_limit_fails_what_is_left() -> None:
    with FakeBroker(lambda batch: SILENCE) as broker:
        producer = Producer(bootstrap_servers=broker.bootstrap, linger_ms=0, **QUICK)
        futures = [producer.send("t", b"v") for _ in range(10)]
        begun = time.monotonic()
        producer.close(timeout=0.3)
        assert time.monotonic() - begun < 3
        for future in futures:
            with pytest.raises(ClientClosedException, match=r"not written within 0\.3 s"):
                future.result(0)


def test_closing_without_delay_fails_what_waits() -> None:
    with FakeBroker() as broker:
        producer = Producer(bootstrap_servers=broker.bootstrap, linger_ms=60_000, delivery_timeout_ms=120_000)
        future = producer.send("t", b"v")
        producer.close(timeout=0)
        assert isinstance(future.exception(0), ClientClosedException)
        assert broker.produced == []


def test_a_second_close_waits_for_the_first() -> None:
    gate = threading.Event()

    def held(batch: Produced) -> None:
        gate.wait(10)

    with FakeBroker(held) as broker:
        producer = Producer(bootstrap_servers=broker.bootstrap, **QUICK)
        future = producer.send("t", b"v")
        closers = [threading.Thread(target=producer.close) for _ in range(2)]
        closers[0].start()
        eventually(lambda: producer._core.closed, "the first close has begun")
        closers[1].start()
        closers[1].join(0.3)
        assert closers[1].is_alive()
        gate.set()
        for closer in closers:
            closer.join(10)
        assert future.result(0).offset == 0


def test_a_second_close_may_have_less_patience() -> None:
    with FakeBroker(lambda batch: SILENCE) as broker:
        producer = Producer(bootstrap_servers=broker.bootstrap, **QUICK)
        future = producer.send("t", b"v")
        patient = threading.Thread(target=producer.close)
        patient.start()
        eventually(lambda: producer._core.closed, "the first close has begun")
        producer.close(0.1)
        patient.join(10)
        assert not patient.is_alive()
        assert isinstance(future.exception(0), ClientClosedException)


def test_a_record_that_closing_overtakes_is_refused() -> None:
    """Where it went into a batch after the last was given up, nobody would ever end it."""
    with FakeBroker() as broker:

        def close_first(value: object) -> bytes:
            producer.close()
            return b"v"

        producer = Producer(bootstrap_servers=broker.bootstrap, value_serializer=close_first, **QUICK)
        producer.partitions_for("t")
        with pytest.raises(ClientClosedException):
            producer.send("t", "v")


def test_closing_frees_a_thread_that_waits_for_memory() -> None:
    with FakeBroker(lambda batch: SILENCE) as broker:
        producer = Producer(bootstrap_servers=broker.bootstrap, buffer_memory=20_000, max_block_ms=60_000)
        caught: list[BaseException] = []

        def send() -> None:
            try:
                for _ in range(100):
                    producer.send("t", b"x" * 1000)
            except ClientClosedException as error:
                caught.append(error)

        thread = threading.Thread(target=send)
        thread.start()
        eventually(lambda: producer.metrics()["waiting-threads"] == 1, "the thread waits")
        producer.close(0.1)
        thread.join(5)
        assert not thread.is_alive()
        assert caught


def test_a_cancelled_coroutine_leaves_the_producer_usable() -> None:
    async def main() -> int:
        async with AsyncProducer(bootstrap_servers=broker.bootstrap, **QUICK) as producer:
            task = asyncio.create_task(producer.send("t", b"v"))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return (await (await producer.send("t", b"w"))).offset

    with FakeBroker() as broker:
        assert asyncio.run(main()) == 0


PROGRAM = """
import sys
from tidelog.clients.producer.blocking import Producer
with Producer(bootstrap_servers=sys.argv[1], delivery_timeout_ms=120000) as producer:
    print("ready", flush=True)
    while True:
        producer.send("t", b"v" * 1000)
"""


@pytest.mark.parametrize("answers", [True, False])
def test_ctrl_c_ends_a_program_that_sends(answers: bool) -> None:
    with FakeBroker(None if answers else lambda batch: SILENCE) as broker:
        program = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, broker.bootstrap],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        eventually(lambda: bool(broker.produced), "records come in")
        program.send_signal(signal.SIGINT)
        _, err = program.communicate(timeout=20)
        assert "KeyboardInterrupt" in err
        assert program.returncode in (1, -signal.SIGINT)


def test_a_cancelled_coroutine_does_not_wait_for_a_silent_broker() -> None:
    async def send_and_wait(bootstrap: str) -> None:
        async with AsyncProducer(bootstrap_servers=bootstrap, **QUICK) as producer:
            await (await producer.send("t", b"v"))

    async def main(broker: FakeBroker) -> None:
        task = asyncio.create_task(send_and_wait(broker.bootstrap))
        while not broker.produced:
            await asyncio.wait((task,), timeout=0.01)
        task.cancel()
        done, _ = await asyncio.wait((task,), timeout=30)  # the record itself may take two minutes
        assert done

    with FakeBroker(lambda batch: SILENCE) as broker:
        asyncio.run(main(broker))


@pytest.mark.needs("EndTxn")
def test_ctrl_c_in_a_transaction_does_not_wait_for_a_broker_that_is_gone(own_broker: OwnBrokers) -> None:
    with own_broker() as broker:
        begun = 0.0
        with (
            pytest.raises(KeyboardInterrupt),
            Producer(bootstrap_servers=broker.bootstrap, transactional_id="interrupted") as producer,
            producer.transaction(),
        ):
            producer.send("t", b"v").result(20)
            broker.kill()
            begun = time.monotonic()
            raise KeyboardInterrupt
        assert time.monotonic() - begun < 30  # max.block.ms is a minute
        broker.restart(kill=False)


def test_a_producer_made_before_a_fork_says_so() -> None:
    program = """
import os, sys
from tidelog.clients.producer.blocking import Producer
producer = Producer(bootstrap_servers="127.0.0.1:1", max_block_ms=100)
if os.fork() == 0:
    try:
        producer.send("t", b"v")
    except Exception as error:
        print(error, flush=True)
    os._exit(0)
os.wait()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False
    )
    assert "was made before a fork; make a new one in the child process" in done.stdout


def test_a_child_does_not_fill_batches_that_nobody_sends(tmp_path: Path) -> None:
    program = """
import os, sys
import pyarrow as pa
from tidelog import Producer
producer = Producer(bootstrap_servers=sys.argv[1], linger_ms=60000, delivery_timeout_ms=120000)
producer.send("t", b"v")
producer.send("t", b"v", key=b"k")
if os.fork() == 0:
    for key in (None, b"k"):
        try:
            producer.send("t", b"v", key=key)
        except Exception as error:
            print(type(error).__name__, flush=True)
    try:
        producer.send_arrow(pa.table({"value": [b"v"]}), "t")
    except Exception as error:
        print(type(error).__name__, flush=True)
    os._exit(0)
os.wait()
producer.close()
"""
    with FakeBroker() as broker:
        command = [sys.executable, "-c", program, broker.bootstrap]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        assert done.stdout == "IllegalStateException\n" * 3, done.stderr
        assert len(broker.logs["t", 0]) == 2


@pytest.mark.parametrize("message", [None, "the disk of log folder /data is full"])
def test_a_record_that_ran_out_of_time_says_what_its_last_try_failed_with(message: str | None) -> None:
    refusal = Answer(ErrorCode.KAFKA_STORAGE_ERROR, message=message)
    # Its time is over while it waits for the second try.
    waits = {"retry_backoff_ms": 60_000, "retry_backoff_max_ms": 60_000}
    settings = {**QUICK, **waits, "delivery_timeout_ms": 1500, "request_timeout_ms": 1000, "linger_ms": 0}
    with (
        FakeBroker(lambda batch: refusal) as broker,
        Producer(bootstrap_servers=broker.bootstrap, **settings) as producer,
    ):
        error = producer.send("t", b"v").exception(10)
    assert isinstance(error, TimeoutException)
    words = r"t-0: 1 records were not written within \d+ ms: the last try failed with "
    assert re.match(words + "KAFKA_STORAGE_ERROR: " + (message or "t-0: KAFKA_STORAGE_ERROR"), str(error))
    assert isinstance(error.__cause__, KafkaStorageError)


def test_a_refusal_that_comes_when_the_time_is_over_is_a_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the time ends before the refusal or with it is chance: the error is the same."""

    def late(batch: Produced) -> Answer:
        monkeypatch.setattr(deliveries, "_now", lambda: time.monotonic() + 3600)
        return Answer(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    with FakeBroker(late) as broker, Producer(bootstrap_servers=broker.bootstrap, **QUICK) as producer:
        error = producer.send("t", b"v").exception(10)
    assert isinstance(error, TimeoutException)
    assert "the last try failed with NOT_LEADER_OR_FOLLOWER" in str(error)
    assert isinstance(error.__cause__, NotLeaderOrFollower)


@pytest.mark.parametrize("message", [None, "message.max.bytes=100 is less"])
def test_a_record_that_the_broker_finds_too_large_says_how_large_and_which_limit(message: str | None) -> None:
    refusal = Answer(ErrorCode.MESSAGE_TOO_LARGE, message=message)
    with (
        FakeBroker(lambda batch: refusal) as broker,
        Producer(bootstrap_servers=broker.bootstrap, **QUICK) as producer,
    ):
        error = producer.send("t", b"v" * 1000).exception(10)
    assert isinstance(error, MessageTooLarge)
    size = broker.produced[0].size
    limit = message or "max.message.bytes of the topic, or message.max.bytes of the broker, is below that"
    assert str(error) == f"t-0: the broker refused a batch of {size} bytes: {limit}"


def test_tls_with_a_port_that_has_none_is_said_to_be_that(bootstrap: str) -> None:
    reason = r"the broker ended the TLS handshake; the port may be one without TLS \(security.protocol\)"
    settings = producer_settings(bootstrap_servers=bootstrap, security_protocol="SSL")
    host, port = split_address(bootstrap)
    with pytest.raises(NetworkException, match=reason):
        asyncio.run(AsyncConnection.open(BrokerNode(1, host, port), settings, Security(settings)))
    with pytest.raises(NetworkException, match=reason):
        Connection(host, port, security=Security(settings))


def test_producers_leave_nothing_registered_for_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    registered: list[object] = []
    monkeypatch.setattr(os, "register_at_fork", lambda **functions: registered.append(functions))
    with FakeBroker() as broker:
        with Producer(bootstrap_servers=broker.bootstrap):
            before = len(registered)
            assert before <= 1
        for _ in range(3):
            with Producer(bootstrap_servers=broker.bootstrap) as producer:
                core = weakref.ref(producer._core)
        del producer
        gc.collect()
    assert len(registered) == before
    assert core() is None


def test_a_child_that_leaves_the_block_of_a_producer_leaves_it_to_its_parent() -> None:
    program = """
import os, sys, warnings
from tidelog import Producer
warnings.filterwarnings("ignore", "This process .* is multi-threaded")  # Python 3.12 and newer
with Producer(bootstrap_servers=sys.argv[1], linger_ms=60000, delivery_timeout_ms=120000) as producer:
    producer.send("t", b"v")
    if os.fork() == 0:
        sys.exit(7)
    print(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    with FakeBroker() as broker:
        command = [sys.executable, "-c", program, broker.bootstrap]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        assert (done.stdout, done.stderr) == ("7\n", "")
        assert len(broker.logs["t", 0]) == 1


@pytest.mark.filterwarnings("error::RuntimeWarning", "error::pytest.PytestUnraisableExceptionWarning")
def test_threads_that_close_at_the_same_time_are_all_content() -> None:
    problems: list[BaseException] = []

    def close(producer: Producer, together: threading.Barrier) -> None:
        try:
            together.wait()
            producer.close()
        except BaseException as error:
            problems.append(error)

    with FakeBroker() as broker:
        for _ in range(200):
            arguments = (Producer(bootstrap_servers=broker.bootstrap), threading.Barrier(3))
            threads = [threading.Thread(target=close, args=arguments, daemon=True) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(10)
                assert not thread.is_alive()
            assert not problems


def test_a_callback_may_send_and_may_close() -> None:
    with FakeBroker() as broker:
        producer = Producer(bootstrap_servers=broker.bootstrap, **QUICK)
        sent: list[RecordFuture] = []

        def again(metadata: RecordMetadata, error: BaseException | None) -> None:
            sent.append(producer.send("t", b"from the callback"))

        producer.send("t", b"v", callback=again).result(5)
        assert eventually(lambda: sent, "the callback ran")[0].result(5).offset == 1
        producer.send("t", b"v", callback=lambda metadata, error: producer.close()).result(5)
        eventually(lambda: producer._thread.closed, "the producer is closed")
        with pytest.raises(ClientClosedException):
            producer.send("t", b"v")


def test_a_killed_broker_costs_no_acknowledged_record_and_doubles_none(own_broker: OwnBrokers) -> None:
    """kill -9 under load, several times; every record that is sent in the end is there once, in order."""
    kills = scale(3, 15)
    with own_broker() as broker:
        producer = Producer(bootstrap_servers=broker.bootstrap, retry_backoff_ms=20, batch_size=2000)
        producer.send("t", b"first").result(20)
        sent: list[bytes] = []
        stop = threading.Event()

        def send() -> None:
            while not stop.is_set():
                value = b"%d" % len(sent)
                sent.append(value)
                producer.send("t", value, partition=0)
                if len(sent) % 50 == 0:
                    stop.wait(0.001)

        thread = threading.Thread(target=send)
        thread.start()
        for _ in range(kills):
            goal = len(sent) + 1000
            eventually(lambda goal=goal: len(sent) >= goal, "records are sent", 30)  # type: ignore[misc]
            broker.restart(kill=True)
        stop.set()
        thread.join()
        producer.close()
        assert producer.metrics()["record-error-total"] == 0
        assert values(broker.bootstrap, "t") == [b"first", *sent]


def test_transactions_outlive_a_killed_broker(own_broker: OwnBrokers) -> None:
    """What was committed is there once and whole, what was not is not, whenever the broker was killed."""
    kills = scale(2, 10)
    with own_broker() as broker:
        sender = Producer(bootstrap_servers=broker.bootstrap, transactional_id="id", retry_backoff_ms=20)
        committed: list[int] = []
        unknown: list[int] = []
        stop = threading.Event()

        def work() -> None:
            number = 0
            while not stop.is_set():
                number += 1
                try:
                    with sender.transaction():
                        for index in range(10):
                            sender.send("t", b"%d" % number, partition=0, headers=[("i", b"%d" % index)])
                except KafkaError:
                    unknown.append(number)
                else:
                    committed.append(number)

        thread = threading.Thread(target=work)
        thread.start()
        for _ in range(kills):
            goal = len(committed) + 20
            eventually(lambda goal=goal: len(committed) >= goal, "transactions are committed", 60)  # type: ignore[misc]
            broker.restart(kill=True)
        goal = len(committed) + 5
        eventually(lambda: len(committed) >= goal, "transactions are committed again", 60)
        stop.set()
        thread.join()
        sender.close()

        def seen() -> dict[int, int]:
            return Counter(int(value or b"0") for value in values(broker.bootstrap, "t", committed=True))

        eventually(lambda: set(committed) <= set(seen()), "readers see what was committed")
        assert set(seen().values()) == {10}
        assert set(seen()) <= {*committed, *unknown}
