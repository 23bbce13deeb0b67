"""A handler consumer handles every record in order, commits what was handled, and nothing else."""

from __future__ import annotations

import asyncio
import doctest
import logging
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from traceback import extract_tb

import pytest

from tests.support.fixtures import QUICK_REBALANCES, given_broker
from tests.support.own_broker import OwnBrokers
from tests.support.own_cluster import any_broker
from tests.support.wait import eventually
from tidelog import Admin, NewTopic
from tidelog.clients.consumer.blocking import Consumer
from tidelog.clients.errors import IllegalStateException, TimeoutException
from tidelog.clients.handlers import ErrorPolicy, HandlerConsumer, HandlerFailed, Reject, Stream
from tidelog.clients.handlers import consumer as consumer_module
from tidelog.clients.handlers.plan import TopicPlan
from tidelog.clients.handlers.tracebacks import traceback_text
from tidelog.clients.handlers.worker import PartitionWork, StreamWorker, WorkerContext
from tidelog.clients.producer.blocking import Producer
from tidelog.config import ConfigError
from tidelog.errors import UnknownTopicOrPartition
from tidelog.partitions import TopicPartition
from tidelog.records.loops import ConsumerRecord

NewName = Callable[[str], str]
NO_RETRY = ErrorPolicy(retries=0)


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker that lets the first member of a group begin at once, unless another broker was given."""
    given = given_broker()
    if given:
        yield given
        return
    with any_broker(tmp_path_factory.mktemp("handlers"), QUICK_REBALANCES) as broker:
        yield broker.bootstrap


def make_topic(bootstrap: str, name: str, partitions: int = 1) -> str:
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topics([NewTopic(name, partitions, 1)])
    return name


def write(bootstrap: str, topic: str, count: int, partitions: int = 1, first: int = 0) -> None:
    """Numbered records, the same numbers in each partition."""
    with Producer(bootstrap_servers=bootstrap) as producer:
        for number in range(first, first + count):
            for partition in range(partitions):
                producer.send(topic, b"%d" % number, key=b"key", partition=partition)


def committed(bootstrap: str, group: str, topic: str, partitions: int = 1) -> list[int]:
    """The committed offset of each partition, -1 for none."""
    with Consumer(bootstrap_servers=bootstrap, group_id=group) as consumer:
        found = consumer.committed([(topic, index) for index in range(partitions)])
    return [-1 if entry is None else entry.offset for _, entry in sorted(found.items())]


def read_all(bootstrap: str, topic: str, count: int) -> list[ConsumerRecord]:
    found: list[ConsumerRecord] = []
    with Consumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:

        def enough() -> bool:
            found.extend(consumer.poll(0.1))
            return len(found) >= count

        eventually(enough, f"{count} records in {topic}", 20)
    return found


class Notes:
    """A builder whose handlers write down what they are given."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int, int]] = []
        """Stream, partition, offset."""
        self.built: list[Stream] = []
        self.closed: list[Stream] = []
        self.threads: dict[int, set[int]] = {}
        self.before: Callable[[ConsumerRecord], object] = lambda record: None

    def __call__(self, stream: Stream) -> object:
        notes = self
        notes.built.append(stream)

        class Handler:
            def on_message(self, record: ConsumerRecord) -> None:
                notes.before(record)
                notes.threads.setdefault(stream.number, set()).add(threading.get_ident())
                notes.seen.append((stream.number, record.partition, record.offset))

            def close(self) -> None:
                notes.closed.append(stream)

        return Handler()

    def offsets(self, partition: int = 0) -> list[int]:
        return [offset for _, at, offset in self.seen if at == partition]


@contextmanager
def running(
    bootstrap: str, topic: str, builder: Callable[[Stream], object], streams: int = 1, **settings: object
) -> Iterator[HandlerConsumer]:
    given: dict[str, object] = {"group_id": f"group-{topic}", "auto_offset_reset": "earliest", **settings}
    consumer = HandlerConsumer(
        bootstrap_servers=bootstrap,
        topics={topic: streams},
        builder=builder,  # type: ignore[arg-type]
        **given,  # type: ignore[arg-type]
    )
    with consumer:
        yield consumer


def test_every_record_is_handled_in_order_by_the_stream_of_its_partition(
    bootstrap: str, new_name: NewName
) -> None:
    topic = make_topic(bootstrap, new_name("ordered"), 4)
    write(bootstrap, topic, 500, 4)
    notes = Notes()
    with running(bootstrap, topic, notes, streams=2) as consumer:
        eventually(lambda: len(notes.seen) == 2000, "all are handled", 20)
        assert consumer.progress().handled == 2000
    streams = {partition: {s for s, p, _ in notes.seen if p == partition} for partition in range(4)}
    assert all(len(found) == 1 for found in streams.values())
    assert sorted(number for (number,) in streams.values()) == [0, 0, 1, 1]
    assert all(notes.offsets(partition) == list(range(500)) for partition in range(4))
    assert all(len(threads) == 1 for threads in notes.threads.values())
    assert committed(bootstrap, f"group-{topic}", topic, 4) == [500] * 4


def test_a_handler_is_built_and_closed_for_each_stream(bootstrap: str, new_name: NewName) -> None:
    topic = make_topic(bootstrap, new_name("built"), 3)
    notes = Notes()
    with running(bootstrap, topic, notes, streams=3):
        assert sorted(str(stream) for stream in notes.built) == [f"{topic}/{n}" for n in range(3)]
        assert not notes.closed
    assert sorted(map(str, notes.closed)) == sorted(map(str, notes.built))


def test_the_decorator_takes_functions_and_classes(bootstrap: str, new_name: NewName) -> None:
    one, other = make_topic(bootstrap, new_name("one")), make_topic(bootstrap, new_name("other"))
    write(bootstrap, one, 3)
    write(bootstrap, other, 3)
    seen: list[tuple[str, int]] = []
    consumer = HandlerConsumer(
        bootstrap_servers=bootstrap, group_id=new_name("group"), auto_offset_reset="earliest"
    )

    @consumer.handler(one)
    def handle(record: ConsumerRecord) -> None:
        seen.append((record.topic, record.offset))

    @consumer.handler(other, streams=1)
    class Handler:
        def __init__(self, stream: Stream) -> None:
            self.stream = stream

        def on_message(self, record: ConsumerRecord) -> None:
            seen.append((self.stream.topic, record.offset))

    with consumer:
        eventually(lambda: len(seen) == 6, "both topics are handled", 20)
    assert sorted(seen) == sorted((topic, offset) for topic in (one, other) for offset in range(3))


def test_more_streams_than_partitions_warn(
    bootstrap: str, new_name: NewName, caplog: pytest.LogCaptureFixture
) -> None:
    topic = make_topic(bootstrap, new_name("narrow"), 2)
    write(bootstrap, topic, 5, 2)
    notes = Notes()
    with running(bootstrap, topic, notes, streams=4):
        eventually(lambda: len(notes.seen) == 10, "all are handled", 20)
    assert f"topic {topic}: 4 streams for 2 partitions; 2 of them will have nothing to do" in caplog.text


def test_only_what_was_handled_is_committed(bootstrap: str, new_name: NewName) -> None:
    topic = make_topic(bootstrap, new_name("handled"))
    write(bootstrap, topic, 10)
    notes, gate = Notes(), threading.Event()

    def hold(record: ConsumerRecord) -> None:
        if record.offset == 4:
            gate.wait(30)

    notes.before = hold
    with running(bootstrap, topic, notes, auto_commit_interval_ms=20):
        group = f"group-{topic}"
        eventually(lambda: committed(bootstrap, group, topic) == [4], "four are committed", 20)
        assert notes.offsets() == [0, 1, 2, 3]
        gate.set()
        eventually(lambda: committed(bootstrap, group, topic) == [10], "all are committed", 20)


def test_a_slow_handler_neither_loses_its_partitions_nor_stops_the_others(
    bootstrap: str, new_name: NewName, caplog: pytest.LogCaptureFixture
) -> None:
    topic = make_topic(bootstrap, new_name("slow"), 2)
    write(bootstrap, topic, 1, 2)
    notes, gate = Notes(), threading.Event()

    def hold(record: ConsumerRecord) -> None:
        if record.partition == 0 and record.offset == 0:
            gate.wait(60)

    notes.before = hold
    # Ten times as long as a consumer may be away from poll, and beyond its session.
    limits = {"max_poll_interval_ms": 700, "session_timeout_ms": 6000, "heartbeat_interval_ms": 500}
    with running(bootstrap, topic, notes, streams=2, slow_handler_ms=200, **limits) as consumer:
        eventually(lambda: notes.offsets(1) == [0], "the other partition is handled", 20)
        began = time.monotonic()
        more = 1

        def still_at_it() -> bool:
            nonlocal more
            write(bootstrap, topic, 1, 2, first=more)
            more += 1
            eventually(lambda: len(notes.offsets(1)) == more, "the other partition goes on", 20)
            return time.monotonic() - began > 7.0

        eventually(still_at_it, "the handler was slow for long enough", 30, interval=0.5)
        assert consumer.progress().partitions == 2
        gate.set()
        eventually(lambda: len(notes.offsets(0)) == more, "the slow one catches up", 20)
    assert notes.offsets(0) == notes.offsets(1) == list(range(more))
    assert f"stream {topic}/0: its handler is at {topic}-0 offset 0 for" in caplog.text


def test_a_full_queue_pauses_its_partitions_alone(
    bootstrap: str, new_name: NewName, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tidelog.clients")
    topic = make_topic(bootstrap, new_name("full"), 2)
    write(bootstrap, topic, 2000, 2)
    notes, gate = Notes(), threading.Event()

    def hold(record: ConsumerRecord) -> None:
        if record.partition == 0:
            gate.wait(60)

    notes.before = hold
    settings = {"queue_records": 100, "max_poll_records": 50}
    with running(bootstrap, topic, notes, streams=2, **settings) as consumer:
        eventually(lambda: len(notes.offsets(1)) == 2000, "the free stream handles all", 20)
        assert notes.offsets(0) == []
        assert consumer.progress().waiting < 200
        eventually(lambda: "its partitions are paused until there is room" in caplog.text, "it is told", 10)
        gate.set()
        eventually(lambda: len(notes.offsets(0)) == 2000, "the other follows", 20)
    assert notes.offsets(0) == list(range(2000))


def test_close_finishes_what_is_being_handled_and_begins_nothing(bootstrap: str, new_name: NewName) -> None:
    topic = make_topic(bootstrap, new_name("closing"))
    write(bootstrap, topic, 100)
    notes, gate, at_it = Notes(), threading.Event(), threading.Event()

    def hold(record: ConsumerRecord) -> None:
        if record.offset == 7:
            at_it.set()
            gate.wait(30)

    notes.before = hold
    with running(bootstrap, topic, notes) as consumer:
        assert at_it.wait(20)
        consumer.stop()
        assert not consumer.wait(0.2)
        gate.set()
        assert consumer.wait(20)
    assert notes.offsets() == list(range(8))
    assert len(notes.closed) == 1
    assert committed(bootstrap, f"group-{topic}", topic) == [8]


def test_close_does_not_wait_for_ever(
    bootstrap: str, new_name: NewName, caplog: pytest.LogCaptureFixture
) -> None:
    topic = make_topic(bootstrap, new_name("stuck"))
    write(bootstrap, topic, 5)
    notes, gate, at_it = Notes(), threading.Event(), threading.Event()

    def hold(record: ConsumerRecord) -> None:
        if record.offset == 2:
            at_it.set()
            gate.wait(60)

    notes.before = hold
    with running(bootstrap, topic, notes) as consumer:
        assert at_it.wait(20)
        began = time.monotonic()
        consumer.close(0.3)
        assert time.monotonic() - began < 5
        assert committed(bootstrap, f"group-{topic}", topic) == [2]
        gate.set()
    assert f"its handler is still at {topic}-0 offset 2 and is left behind" in caplog.text


def test_a_handler_may_stop_its_consumer(bootstrap: str, new_name: NewName) -> None:
    topic = make_topic(bootstrap, new_name("stopping"))
    write(bootstrap, topic, 20)
    consumer = HandlerConsumer(
        bootstrap_servers=bootstrap, group_id=f"group-{topic}", auto_offset_reset="earliest"
    )

    @consumer.handler(topic)
    def handle(record: ConsumerRecord) -> None:
        if record.offset == 4:
            with pytest.raises(IllegalStateException, match="from within one of them stop"):
                consumer.close()
            consumer.stop()

    consumer.run()
    assert committed(bootstrap, f"group-{topic}", topic)[0] >= 5


def test_where_reading_began_is_committed_before_anything_is_handled(
    bootstrap: str, new_name: NewName
) -> None:
    topic = make_topic(bootstrap, new_name("latest"))
    write(bootstrap, topic, 5)
    notes = Notes()
    with running(bootstrap, topic, notes, auto_offset_reset="latest"):
        eventually(
            lambda: committed(bootstrap, f"group-{topic}", topic) == [5], "the end is where it begins", 20
        )
        write(bootstrap, topic, 3, first=5)
        eventually(lambda: notes.offsets() == [5, 6, 7], "the new ones are handled", 20)


def test_a_broker_that_goes_away_and_comes_back_costs_nothing(
    own_broker: OwnBrokers, new_name: NewName
) -> None:
    with own_broker({"group.initial.rebalance.delay.ms": "0"}) as broker:
        topic = make_topic(broker.bootstrap, new_name("restarted"))
        write(broker.bootstrap, topic, 50)
        notes = Notes()
        with running(broker.bootstrap, topic, notes, auto_commit_interval_ms=20):
            eventually(lambda: len(notes.seen) == 50, "all are handled", 20)
            broker.restart(kill=True)
            write(broker.bootstrap, topic, 50, first=50)
            eventually(lambda: set(notes.offsets()) == set(range(100)), "the new ones are handled", 40)
        assert committed(broker.bootstrap, f"group-{topic}", topic) == [100]


# Errors


def test_a_failed_record_is_tried_again_before_the_next_one(bootstrap: str, new_name: NewName) -> None:
    topic = make_topic(bootstrap, new_name("again"))
    write(bootstrap, topic, 5)
    notes = Notes()
    tries: list[int] = []

    def stumble(record: ConsumerRecord) -> None:
        tries.append(record.offset)
        if record.offset == 2 and tries.count(2) < 3:
            raise RuntimeError("not yet")

    notes.before = stumble
    errors = ErrorPolicy(retries=2, backoff_ms=1)
    with running(bootstrap, topic, notes, errors=errors) as consumer:
        eventually(lambda: notes.offsets() == [0, 1, 2, 3, 4], "all are handled", 20)
        assert consumer.progress().retried == 2
    assert tries == [0, 1, 2, 2, 2, 3, 4]


def test_a_poison_record_ends_among_the_dead_letters_and_the_stream_goes_on(
    bootstrap: str, new_name: NewName
) -> None:
    topic, dead = make_topic(bootstrap, new_name("poisoned")), make_topic(bootstrap, new_name("dead"))
    with Producer(bootstrap_servers=bootstrap) as producer:
        for number in range(5):
            value = None if number == 1 else b"\xff%d" % number
            producer.send(
                topic, value, key=b"k%d" % number, headers=[("own", b"1")], timestamp_ms=1000 + number
            )
    notes = Notes()

    def fail(record: ConsumerRecord) -> None:
        if record.offset in (1, 3):
            raise KeyError(f"no customer {record.offset}")

    notes.before = fail
    errors = ErrorPolicy(retries=1, backoff_ms=1, dead_letter_topic=dead)
    with running(bootstrap, topic, notes, errors=errors) as consumer:
        eventually(lambda: notes.offsets() == [0, 2, 4], "the others are handled", 20)
        progress = consumer.progress()
        assert (progress.handled, progress.dead_letters, progress.retried) == (3, 2, 2)
    assert committed(bootstrap, f"group-{topic}", topic) == [5]
    first, second = read_all(bootstrap, dead, 2)
    assert (first.key, first.value) == (b"k1", None)
    assert (second.key, second.value) == (b"k3", b"\xff3")
    (trace,) = [text for name, text in second.headers if name == "dead-letter.error.traceback"]
    assert trace is not None
    assert re.fullmatch(
        rb"""Traceback \(most recent call last\):
  File ".*test_handlers.py", line \d+, in .*
.*
  File ".*test_handlers.py", line \d+, in fail
    raise KeyError\(f"no customer {record.offset}"\)
KeyError: 'no customer 3'""",
        trace,
        re.DOTALL,
    )
    assert list(second.headers) == [
        ("own", b"1"),
        ("dead-letter.topic", topic.encode()),
        ("dead-letter.partition", b"0"),
        ("dead-letter.offset", b"3"),
        ("dead-letter.timestamp", b"1003"),
        ("dead-letter.group", f"group-{topic}".encode()),
        ("dead-letter.error.class", b"KeyError"),
        ("dead-letter.error.message", b"'no customer 3'"),
        ("dead-letter.error.traceback", trace),
        ("dead-letter.tries", b"2"),
    ]


def test_a_rejected_record_is_not_tried_again(bootstrap: str, new_name: NewName) -> None:
    topic, dead = make_topic(bootstrap, new_name("rejected")), make_topic(bootstrap, new_name("dead"))
    write(bootstrap, topic, 2)
    notes = Notes()

    def reject(record: ConsumerRecord) -> None:
        if record.offset == 0:
            raise Reject("not ours")

    notes.before = reject
    errors = ErrorPolicy(retries=5, backoff_ms=60_000, backoff_max_ms=60_000, dead_letter_topic=dead)
    with running(bootstrap, topic, notes, errors=errors):
        eventually(lambda: notes.offsets() == [1], "the other is handled", 20)
    (letter,) = read_all(bootstrap, dead, 1)
    headers = dict(letter.headers)
    assert headers["dead-letter.error.class"] == b"tidelog.clients.handlers.plan.Reject"
    assert headers["dead-letter.tries"] == b"1"


def test_a_record_that_cannot_be_deserialized_is_a_dead_letter_with_its_bytes(
    bootstrap: str, new_name: NewName
) -> None:
    topic, dead = make_topic(bootstrap, new_name("bytes")), make_topic(bootstrap, new_name("dead"))
    with Producer(bootstrap_servers=bootstrap) as producer:
        for value in (b"1", b"one", b"3"):
            producer.send(topic, value)
    values: list[object] = []

    def builder(stream: Stream) -> Callable[[ConsumerRecord], None]:
        return lambda record: values.append(record.value)

    errors = ErrorPolicy(dead_letter_topic=dead)
    with running(bootstrap, topic, builder, errors=errors, value_deserializer=int):
        eventually(lambda: values == [1, 3], "those that are numbers are handled", 20)
    (letter,) = read_all(bootstrap, dead, 1)
    assert letter.value == b"one"
    assert b"its value cannot be deserialized" in (dict(letter.headers)["dead-letter.error.message"] or b"")


def test_without_a_dead_letter_topic_nothing_is_passed_over(bootstrap: str, new_name: NewName) -> None:
    topic = make_topic(bootstrap, new_name("nowhere"))
    write(bootstrap, topic, 10)
    notes = Notes()

    def fail(record: ConsumerRecord) -> None:
        if record.offset == 3:
            raise ValueError("no")

    notes.before = fail
    with running(bootstrap, topic, notes, errors=NO_RETRY) as consumer:
        with pytest.raises(
            HandlerFailed, match=r"offset 3: its handler failed: ValueError: no \(.*\); there is no dead"
        ):
            consumer.wait(20)
        assert isinstance(consumer.failure, HandlerFailed)
    assert notes.offsets() == [0, 1, 2]
    assert committed(bootstrap, f"group-{topic}", topic) == [3]


def test_nothing_that_waits_behind_a_record_that_stops_the_consumer_is_handled() -> None:
    failures: list[BaseException] = []
    seen: list[int] = []

    def handle(record: ConsumerRecord) -> None:
        seen.append(record.offset)
        if record.offset == 1:
            raise ValueError("no")

    plan = TopicPlan("t", lambda stream: handle, 1, NO_RETRY)
    # Whoever is told of the failure takes his time to stop the others.
    context = WorkerContext(None, None, None, 0, lambda: None, failures.append)
    worker = StreamWorker(plan, Stream("t", 0), context)
    work = PartitionWork(TopicPartition("t", 0), worker)
    worker.offer(work, [ConsumerRecord("t", 0, offset) for offset in (0, 1, 2)])
    worker.offer(work, [ConsumerRecord("t", 0, offset) for offset in (3, 4)])
    worker.start()
    assert worker.join(10)
    assert seen == [0, 1]
    assert work.handled is not None
    assert work.handled.offset == 0
    assert [type(failure) for failure in failures] == [HandlerFailed]


def test_a_close_ends_the_wait_before_the_next_try(bootstrap: str, new_name: NewName) -> None:
    topic = make_topic(bootstrap, new_name("waiting"))
    write(bootstrap, topic, 3)
    notes = Notes()

    def fail(record: ConsumerRecord) -> None:
        if record.offset == 1:
            raise ValueError("no")

    notes.before = fail
    errors = ErrorPolicy(retries=5, backoff_ms=60_000, backoff_max_ms=60_000)
    with running(bootstrap, topic, notes, errors=errors) as consumer:
        eventually(lambda: consumer.progress().retried == 1, "it waits", 20)
        began = time.monotonic()
    assert time.monotonic() - began < 10
    assert committed(bootstrap, f"group-{topic}", topic) == [1]


def test_a_dead_letter_that_is_not_taken_stops_the_consumer_before_its_record(
    bootstrap: str, new_name: NewName
) -> None:
    topic, dead = make_topic(bootstrap, new_name("large")), new_name("dead")
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topics([NewTopic(dead, 1, 1, configs={"max.message.bytes": "100"})])
    write(bootstrap, topic, 1)
    notes = Notes()

    def fail(record: ConsumerRecord) -> None:
        raise ValueError("no")

    notes.before = fail
    errors = ErrorPolicy(retries=0, dead_letter_topic=dead)
    with (
        running(bootstrap, topic, notes, errors=errors) as consumer,
        pytest.raises(HandlerFailed, match=f"dead-letter topic {dead} did not take it"),
    ):
        consumer.wait(20)
    assert committed(bootstrap, f"group-{topic}", topic) == [-1]


# What cannot work


def test_an_unknown_topic_is_told_and_not_created(bootstrap: str, new_name: NewName) -> None:
    topic = new_name("missing")
    with (
        pytest.raises(UnknownTopicOrPartition, match=f"topic '{topic}' does not exist at "),
        running(bootstrap, topic, Notes()),
    ):
        pass
    with Admin(bootstrap_servers=bootstrap) as admin:
        assert topic not in admin.list_topics()


def test_an_unreachable_broker_is_told(new_name: NewName) -> None:
    with (
        pytest.raises(TimeoutException, match=r"no broker can be reached at 127\.0\.0\.1:1"),
        running("127.0.0.1:1", "t", Notes(), default_api_timeout_ms=500),
    ):
        pass


def test_a_builder_that_fails_keeps_the_consumer_from_starting(bootstrap: str, new_name: NewName) -> None:
    topic = make_topic(bootstrap, new_name("unbuilt"), 2)

    def builder(stream: Stream) -> Callable[[ConsumerRecord], object]:
        if stream.number == 1:
            raise OSError("no database")
        return print

    with (
        pytest.raises(HandlerFailed, match=f"stream {topic}/1 cannot be built: OSError: no database"),
        running(bootstrap, topic, builder, streams=2),
    ):
        pass
    assert not [thread for thread in threading.enumerate() if topic in thread.name]


@pytest.mark.parametrize("kind", ["generator function", "a function that gives a generator", "no function"])
def test_a_handler_that_handles_nothing_is_refused(bootstrap: str, new_name: NewName, kind: str) -> None:
    topic = make_topic(bootstrap, new_name("generator"))
    write(bootstrap, topic, 1)

    def several(record: ConsumerRecord) -> Iterator[None]:
        yield

    built: dict[str, object] = {
        "generator function": several,
        "a function that gives a generator": lambda record: several(record),
        "no function": 7,
    }
    builder = lambda stream: built[kind]  # noqa: E731
    with (
        pytest.raises((HandlerFailed, IllegalStateException), match=r"expected a function"),
        running(bootstrap, topic, builder) as consumer,
    ):
        consumer.wait(20)
    assert committed(bootstrap, f"group-{topic}", topic) == [-1]
    with pytest.raises(ConfigError, match="handler of topic t: is a generator function; expected a function"):
        HandlerConsumer(bootstrap_servers=bootstrap, group_id="g").handler("t")(several)


class AsyncHandler:
    """Everything of it runs on one loop, also what it does between two waits."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.offsets: list[int] = []
        self.tries: Counter[int] = Counter()
        self.closed_on: object = None

    async def on_message(self, record: ConsumerRecord) -> None:
        await asyncio.sleep(0)
        assert asyncio.get_running_loop() is self.loop
        self.tries[record.offset] += 1
        if record.offset == 2 and self.tries[2] == 1:
            raise OSError("not at once")
        if record.offset == 3:
            await deep_failure()
        self.offsets.append(record.offset)

    async def close(self) -> None:
        self.closed_on = asyncio.get_running_loop()


async def deep_failure() -> None:
    await asyncio.sleep(0)
    raise LookupError("deep")


def test_coroutine_functions_run_on_the_loop_of_their_stream(bootstrap: str, new_name: NewName) -> None:
    topic, dead = make_topic(bootstrap, new_name("async")), make_topic(bootstrap, new_name("dead"))
    write(bootstrap, topic, 5)
    built: list[AsyncHandler] = []

    async def builder(stream: Stream) -> AsyncHandler:
        built.append(AsyncHandler())
        return built[0]

    errors = ErrorPolicy(retries=1, backoff_ms=1, dead_letter_topic=dead)
    with running(bootstrap, topic, builder, errors=errors):
        eventually(lambda: built and built[0].offsets == [0, 1, 2, 4], "the others are handled", 20)
    assert committed(bootstrap, f"group-{topic}", topic) == [5]
    (handler,) = built
    assert handler.closed_on is handler.loop
    assert handler.loop.is_closed()
    (letter,) = read_all(bootstrap, dead, 1)
    trace = dict(letter.headers)["dead-letter.error.traceback"] or b""
    assert b"in on_message" in trace.splitlines()[1]
    assert trace.endswith(b'raise LookupError("deep")\nLookupError: deep')


def test_a_plain_coroutine_function_handles_records(bootstrap: str, new_name: NewName) -> None:
    topic = make_topic(bootstrap, new_name("coroutine"))
    write(bootstrap, topic, 3)
    settings = {"bootstrap_servers": bootstrap, "group_id": topic, "auto_offset_reset": "earliest"}
    consumer = HandlerConsumer(settings)
    seen: list[int] = []

    @consumer.handler(topic)
    async def handle(record: ConsumerRecord) -> None:
        await asyncio.sleep(0)
        seen.append(record.offset)
        if len(seen) == 3:
            consumer.stop()

    consumer.run()
    assert seen == [0, 1, 2]
    assert committed(bootstrap, topic, topic) == [3]


def test_the_error_of_a_handler_is_the_cause_of_the_failure_and_in_the_log(
    bootstrap: str, new_name: NewName, caplog: pytest.LogCaptureFixture
) -> None:
    topic = make_topic(bootstrap, new_name("traced"))
    write(bootstrap, topic, 1)

    def handle(record: ConsumerRecord) -> None:
        raise LookupError("nothing there")

    with (
        pytest.raises(
            HandlerFailed, match=r"LookupError: nothing there \(test_handlers.py, line \d+\)"
        ) as found,
        running(
            bootstrap, topic, lambda stream: handle, errors=ErrorPolicy(retries=1, backoff_ms=1)
        ) as consumer,
    ):
        consumer.wait(20)
    assert isinstance(found.value.__cause__, LookupError)
    assert found.value.__cause__.__traceback__ is not None
    assert [frame.name for frame in extract_tb(found.value.__cause__.__traceback__)] == ["handle"]
    (again,) = [line for line in caplog.messages if "try 1 of 2" in line]
    assert re.search(r"LookupError: nothing there \(test_handlers.py, line \d+\); trying again", again)
    (failed,) = [record for record in caplog.records if "there is no dead-letter topic" in record.message]
    assert failed.exc_info is not None
    assert failed.exc_info[1] is found.value.__cause__


def test_a_long_traceback_keeps_its_ends() -> None:
    def down(depth: int) -> None:
        if depth == 0:
            raise ValueError("at the bottom")
        (up if depth % 2 else down)(depth - 1)  # Python shortens the same frame many times over

    def up(depth: int) -> None:
        down(depth)

    try:
        down(100)
    except ValueError as error:
        text = traceback_text(error, 1000)
    assert len(text) <= 1000
    assert text.startswith("Traceback (most recent call last):")
    assert "\n  ...\n" in text
    assert text.endswith("ValueError: at the bottom")


def test_a_letter_that_is_too_large_with_its_traceback_goes_without(
    bootstrap: str, new_name: NewName
) -> None:
    topic, dead = make_topic(bootstrap, new_name("large")), new_name("dead")
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topics([NewTopic(dead, 1, configs={"max.message.bytes": "4000"})])
    with Producer(bootstrap_servers=bootstrap) as producer:
        producer.send(topic, b"x" * 1000)

    def handle(record: ConsumerRecord) -> None:
        raise LookupError("nothing there") from ValueError("v" * 5000)

    errors = ErrorPolicy(retries=0, dead_letter_topic=dead)
    with running(bootstrap, topic, lambda stream: handle, errors=errors) as consumer:
        eventually(lambda: consumer.progress().dead_letters == 1, "it is a dead letter", 20)
    (letter,) = read_all(bootstrap, dead, 1)
    headers = dict(letter.headers)
    assert headers["dead-letter.error.message"] == b"nothing there"
    assert "dead-letter.error.traceback" not in headers


def test_settings_are_checked_before_anything_starts(bootstrap: str) -> None:
    with pytest.raises(ConfigError, match=r"group\.id: needed"):
        HandlerConsumer(bootstrap_servers=bootstrap)
    with pytest.raises(ConfigError, match=r"bootstrap\.servers: needed"):
        HandlerConsumer(group_id="g")
    with pytest.raises(ConfigError, match="streams of topic t=0"):
        HandlerConsumer(bootstrap_servers=bootstrap, group_id="g", topics={"t": 0}, builder=Notes())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="retries=-1"):
        ErrorPolicy(retries=-1)
    with pytest.raises(ConfigError, match="expected another topic"):
        HandlerConsumer(
            bootstrap_servers=bootstrap,
            group_id="g",
            topics={"t": 1},
            builder=Notes(),  # type: ignore[arg-type]
            errors=ErrorPolicy(dead_letter_topic="t"),
        )


def test_settings_of_kafka_0_8_start_it(bootstrap: str, new_name: NewName) -> None:
    topic, dead = make_topic(bootstrap, new_name("old")), make_topic(bootstrap, new_name("dead"))
    write(bootstrap, topic, 3)
    old_consumer = {
        "zookeeper.connect": "10.0.0.67:2181",
        "group.id": f"group-{topic}",
        "zookeeper.session.timeout.ms": "40000",
        "auto.commit.enable": "true",
        "auto.commit.interval.ms": "20",
        "auto.offset.reset": "smallest",
        "partition.assignment.strategy": "range",
    }
    old_producer = {
        "metadata.broker.list": "10.0.0.82:9092",
        "serializer.class": "kafka.serializer.StringEncoder",
        "request.required.acks": "1",
    }
    notes = Notes()

    def fail(record: ConsumerRecord) -> None:
        if record.offset == 1:
            raise Reject("no")

    notes.before = fail
    consumer = HandlerConsumer(
        old_consumer,
        bootstrap_servers=bootstrap,
        producer=old_producer,
        topics={topic: 1},
        builder=notes,  # type: ignore[arg-type]
        errors=ErrorPolicy(dead_letter_topic=dead),
    )
    assert len(consumer.notes) == 7
    with consumer:
        eventually(lambda: notes.offsets() == [0, 2], "it handles", 20)
    assert [letter.value for letter in read_all(bootstrap, dead, 1)] == [b"1"]


def test_the_example_runs(bootstrap: str) -> None:
    assert doctest.testmod(consumer_module, extraglobs={"bootstrap": bootstrap}).failed == 0
