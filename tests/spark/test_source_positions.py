"""What a stream reads next: limits, triggers, new partitions and lost data, asked of the reader itself."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Set
from contextlib import closing, contextmanager
from itertools import pairwise

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from tests.spark.hands import Hands
from tests.support.wait import eventually
from tidelog import Consumer
from tidelog.clients.admin import NewPartitions
from tidelog.errors import UnknownTopicOrPartition
from tidelog.spark.cluster import OffsetAdmin
from tidelog.spark.options import OptionError, stream_options
from tidelog.spark.reader import DataLoss
from tidelog.spark.stream import TidelogStreamReader
from tidelog.spark.tasks import RangePartition

Position = dict[str, dict[str, int]]
Open = Callable[..., "Stream"]


class Stream:
    """A stream reader, asked as Spark asks it."""

    def __init__(self, hands: Hands, **options: object) -> None:
        given = {"kafka.bootstrap.servers": hands.bootstrap, "fetchOffset.retryIntervalMs": 1, **options}
        self.reader = TidelogStreamReader(stream_options({name: str(value) for name, value in given.items()}))

    def close(self) -> None:
        self.reader.stop()

    def next(self, start: Position, limit: ReadLimit | None = None) -> Position:
        return self.reader.latestOffset(start, limit or self.reader.getDefaultReadLimit())

    def ranges(self, start: Position, end: Position) -> list[tuple[str, int, int, int]]:
        found = []
        for task in self.reader.partitions(start, end):
            assert isinstance(task, RangePartition)
            each = task.range
            found.append((each.topic, each.partition, each.start, each.end))
        return found


@pytest.fixture
def stream(hands: Hands) -> Iterator[Open]:
    opened: list[Stream] = []

    def make(**options: object) -> Stream:
        opened.append(Stream(hands, **options))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


@contextmanager
def data_loss(text: str) -> Iterator[None]:
    with pytest.raises(DataLoss) as raised:
        yield
    assert "set the source option failOnDataLoss to false" in str(raised.value)
    assert text in str(raised.value)


def test_a_backlog_is_read_in_the_order_of_time_if_asked(stream: Open, hands: Hands) -> None:
    """The second partition begins when the first one is nearly done."""
    topic, day = hands.topic(2, {"retention.ms": "-1"}), 86_400_000
    for number in range(12):
        hands.produce(topic, [number], 0, timestamp_ms=(20_000 + number) * day)
    for number in range(10, 12):
        hands.produce(topic, [number], 1, timestamp_ms=(20_000 + number) * day)

    def ends(**options: object) -> list[tuple[int, int]]:
        query = stream(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=4, **options)
        position, found = query.reader.initialOffset(), list[tuple[int, int]]()
        while not found or found[-1] != (12, 2):
            position = query.next(position)
            found.append((position[topic]["0"], position[topic]["1"]))
        return found

    assert ends()[0] == (3, 1), "in proportion"
    in_order = ends(maxOffsetsBy="time")
    assert all(second <= max(0, first - 10) for first, second in in_order), in_order
    assert all(
        first + second <= 4 + before + other
        for (before, other), (first, second) in pairwise([(0, 0), *in_order])
    )


def test_a_stream_starts_at_the_end_unless_it_is_told_otherwise(stream: Open, hands: Hands) -> None:
    topic = hands.topic(2)
    hands.produce(topic, "abc")
    assert stream(subscribe=topic).reader.initialOffset() == {topic: {"0": 3, "1": 0}}
    assert stream(subscribe=topic, startingOffsets="earliest").reader.initialOffset() == {
        topic: {"0": 0, "1": 0}
    }
    given = stream(subscribe=topic, startingOffsets=f'{{"{topic}":{{"0":1,"1":-1}}}}')
    assert given.reader.initialOffset() == {topic: {"0": 1, "1": 0}}
    with pytest.raises(OptionError, match="Specify all TopicPartitions"):
        stream(subscribe=topic, startingOffsets=f'{{"{topic}":{{"0":1}}}}').reader.initialOffset()
    with pytest.raises(UnknownTopicOrPartition, match="the topic no-such does not exist"):
        stream(subscribe="no-such").reader.initialOffset()


def test_a_query_killed_in_its_first_batch_starts_at_the_same_place_again(stream: Open, hands: Hands) -> None:
    topic = hands.topic()
    hands.produce(topic, "abc")
    first = stream(subscribe=topic)
    start = first.reader.initialOffset()
    hands.produce(topic, "de")
    # What came between the two questions waits for the second batch: the first one writes down the start.
    written = first.next(start)
    assert written == start == {topic: {"0": 3}}
    assert first.ranges(start, written) == []

    hands.produce(topic, "f")
    again = stream(subscribe=topic)  # its start is not in the checkpoint, the end of its first batch is
    replayed = again.reader.initialOffset()
    assert replayed == {topic: {"0": 6}}
    assert again.ranges(replayed, written) == []
    assert again.ranges(written, again.next(written)) == [(topic, 0, 3, 6)]


def test_everything_there_is_comes_next_without_a_limit(stream: Open, hands: Hands) -> None:
    topic = hands.topic(2)
    hands.produce(topic, "abc", 0)
    hands.produce(topic, "de", 1)
    query = stream(subscribe=topic, startingOffsets="earliest")
    start = query.reader.initialOffset()
    end = query.next(start)
    assert end == {topic: {"0": 3, "1": 2}}
    assert query.ranges(start, end) == [(topic, 0, 0, 3), (topic, 1, 0, 2)]
    assert query.next(end) == end
    assert query.ranges(end, end) == []
    assert query.reader.reportLatestOffset() == end


def test_a_limit_is_shared_among_the_partitions(stream: Open, hands: Hands) -> None:
    topic = hands.topic(2)
    hands.produce(topic, range(30), 0)
    hands.produce(topic, range(10), 1)
    query = stream(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=8)
    start = query.reader.initialOffset()
    end = query.next(start)
    assert end == {topic: {"0": 6, "1": 2}}
    assert query.reader.reportLatestOffset() == {topic: {"0": 30, "1": 10}}
    # Trigger.Once wants everything in one batch.
    assert query.next(start, ReadAllAvailable()) == {topic: {"0": 30, "1": 10}}


def test_a_batch_waits_for_enough_records_but_not_for_ever(stream: Open, hands: Hands) -> None:
    topic = hands.topic()
    query = stream(subscribe=topic, startingOffsets="earliest", minOffsetsPerTrigger=5)
    start = query.reader.initialOffset()
    hands.produce(topic, "a")
    assert query.next(start) == {topic: {"0": 1}}, "the first one does not wait"
    hands.produce(topic, "bcd")
    assert query.next({topic: {"0": 1}}) == {topic: {"0": 1}}
    hands.produce(topic, "ef")
    assert query.next({topic: {"0": 1}}) == {topic: {"0": 6}}

    patient = stream(
        subscribe=topic, startingOffsets="earliest", minOffsetsPerTrigger=50, maxTriggerDelay="50ms"
    )
    patient.next({topic: {"0": 6}})
    hands.produce(topic, "g")
    eventually(lambda: patient.next({topic: {"0": 6}}) == {topic: {"0": 7}}, "the delay is over")

    both = stream(subscribe=topic, startingOffsets="earliest", minOffsetsPerTrigger=3, maxOffsetsPerTrigger=4)
    assert both.next({topic: {"0": 0}}) == {topic: {"0": 4}}
    assert both.next({topic: {"0": 4}}) == {topic: {"0": 7}}
    assert both.next({topic: {"0": 5}}) == {topic: {"0": 5}}


def test_available_now_ends_where_the_log_ended_when_it_began(stream: Open, hands: Hands) -> None:
    topic = hands.topic()
    hands.produce(topic, "abcde")
    query = stream(
        subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=3, minOffsetsPerTrigger=3
    )
    query.reader.prepareForTriggerAvailableNow()
    first = query.next(query.reader.initialOffset())
    assert first == {topic: {"0": 3}}
    hands.produce(topic, "fgh")
    # Two are left, fewer than the minimum: nothing waits for more here.
    assert query.next(first) == {topic: {"0": 5}}
    assert query.next({topic: {"0": 5}}) == {topic: {"0": 5}}


def test_available_now_tells_what_is_lost_before_tasks_wait_for_it(stream: Open, hands: Hands) -> None:
    topic = hands.topic(2)
    hands.produce(topic, range(4))
    strict = stream(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=2)
    lenient = stream(
        subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=2, failOnDataLoss=False
    )
    for query in strict, lenient:
        query.reader.prepareForTriggerAvailableNow()
        assert query.next(query.reader.initialOffset()) == {topic: {"0": 2, "1": 0}}
    hands.admin.delete_topics([topic])
    eventually(lambda: topic not in hands.admin.list_topics(), "the topic is gone")
    hands.topic(2, name=topic)
    hands.produce(topic, range(3))
    start = {topic: {"0": 2, "1": 0}}
    with data_loss(f"Partition {topic}-0 was to be read to offset 4, and ends at 3 now"):
        strict.ranges(start, strict.next(start))
    assert lenient.ranges(start, lenient.next(start)) == [(topic, 0, 2, 4)]


def test_new_partitions_and_topics_are_read_from_their_beginning(stream: Open, hands: Hands) -> None:
    topic = hands.topic(name="grow-1")
    hands.produce(topic, "a")
    query = stream(subscribePattern="^grow-.*", maxOffsetsPerTrigger=100)
    start = query.reader.initialOffset()
    assert query.next(start) == start == {topic: {"0": 1}}
    hands.admin.create_partitions({topic: NewPartitions(2)})
    other = hands.topic(name="grow-2")
    hands.produce(topic, "bc", 1)
    hands.produce(other, "d")
    end = query.next(start)
    assert end == {topic: {"0": 1, "1": 2}, other: {"0": 1}}
    assert query.ranges(start, end) == [(topic, 1, 0, 2), (other, 0, 0, 1)]
    # Planned again after a restart, from the two positions alone.
    assert stream(subscribePattern="^grow-.*").ranges(start, end) == [(topic, 1, 0, 2), (other, 0, 0, 1)]
    assert query.next(end) == end


def test_a_new_partition_that_lost_its_beginning_is_reported(stream: Open, hands: Hands) -> None:
    topic = hands.topic(2)
    hands.produce(topic, "abc", 1)
    hands.admin.delete_records({(topic, 1): 2})
    start, end = {topic: {"0": 0}}, {topic: {"0": 0, "1": 3}}
    with data_loss(f"Added partition {topic}-1 starts from 2 instead of 0"):
        stream(subscribe=topic).ranges(start, end)
    assert stream(subscribe=topic, failOnDataLoss=False).ranges(start, end) == [(topic, 1, 2, 3)]


def test_a_topic_that_was_made_anew_is_reported(stream: Open, hands: Hands) -> None:
    topic = hands.topic()
    hands.produce(topic, range(10))
    start = {topic: {"0": 10}}
    hands.admin.delete_topics([topic])
    eventually(lambda: topic not in hands.admin.list_topics(), "the topic is gone")
    hands.topic(name=topic)
    hands.produce(topic, range(4))
    strict = stream(subscribe=topic)
    end = strict.next(start)
    assert end == {topic: {"0": 4}}
    with data_loss(f"Partition {topic}-0 offset was changed from 10 to 4"):
        strict.ranges(start, end)
    lenient = stream(subscribe=topic, failOnDataLoss=False)
    assert lenient.ranges(start, lenient.next(start)) == []
    hands.produce(topic, "x")
    assert lenient.ranges(end, lenient.next(end)) == [(topic, 0, 4, 5)]


def test_a_topic_that_is_gone_is_reported(stream: Open, hands: Hands) -> None:
    kept, gone = hands.topic(), hands.topic()
    hands.produce(kept, "a")
    start = {kept: {"0": 0}, gone: {"0": 0}}
    hands.admin.delete_topics([gone])
    eventually(lambda: gone not in hands.admin.list_topics(), "the topic is gone")
    with pytest.raises(UnknownTopicOrPartition, match=f"the topic {gone} does not exist"):
        stream(subscribe=f"{kept},{gone}").next(start)
    by_pattern = stream(subscribePattern=f"^({kept}|{gone})$")
    with data_loss(f"Partitions {gone}-0 have been deleted"):
        by_pattern.ranges(start, by_pattern.next(start))
    lenient = stream(subscribe=f"{kept},{gone}", failOnDataLoss=False)
    end = lenient.next(start)
    assert end == {kept: {"0": 1}}
    assert lenient.ranges(start, end) == [(kept, 0, 0, 1)]
    assert lenient.next(end) == end, "it goes on without the topic"
    hands.topic(name=gone)
    assert lenient.next(end) == {kept: {"0": 1}, gone: {"0": 0}}, "and takes it up when it is there again"


def test_a_topic_that_is_missing_for_a_moment_keeps_its_position(
    stream: Open, hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = hands.topic()
    hands.produce(topic, "ab")
    query = stream(subscribe=topic, failOnDataLoss=False)
    real, asked = OffsetAdmin.partitions, 0

    async def forgetful(admin: OffsetAdmin, names: Set[str] | None) -> tuple[set[tuple[str, int]], set[str]]:
        nonlocal asked
        asked += 1
        return (set(), {topic}) if asked == 1 else await real(admin, names)

    monkeypatch.setattr(OffsetAdmin, "partitions", forgetful)
    assert query.next({topic: {"0": 1}}) == {topic: {"0": 2}}
    assert asked == 2


def test_a_pattern_that_matches_no_topic_keeps_the_position(stream: Open) -> None:
    """It may be what a broker without its metadata says; a dropped position had all of it read again."""
    done = {"not-there-1": {"0": 5}}
    for fail in True, False:
        query = stream(subscribePattern="^not-there-.*", failOnDataLoss=fail)
        assert query.next(done) == done
        assert query.reader.reportLatestOffset() is None


def test_tasks_are_cut_as_asked(stream: Open, hands: Hands) -> None:
    topic = hands.topic()
    start, end = {topic: {"0": 0}}, {topic: {"0": 10}}
    assert stream(subscribe=topic, minPartitions=2).ranges(start, end) == [
        (topic, 0, 0, 5),
        (topic, 0, 5, 10),
    ]
    assert len(stream(subscribe=topic, maxRecordsPerPartition=3).ranges(start, end)) == 4


def test_a_position_of_another_source_is_refused(stream: Open) -> None:
    with pytest.raises(OptionError, match="it was written by another source"):
        stream(subscribe="any").next({"index": 3})  # type: ignore[dict-item]


def test_the_position_of_the_query_is_that_of_a_group(stream: Open, hands: Hands) -> None:
    topic = hands.topic(2)
    hands.produce(topic, "abc")
    query = stream(subscribe=topic, startingOffsets="earliest", **{"kafka.group.id": "watched"})
    end = query.next(query.reader.initialOffset())
    hands.produce(topic, "d")
    query.next(end)

    def committed() -> dict[int, int]:
        found = hands.admin.list_consumer_group_offsets(["watched"])["watched"]
        return {index: info.offset for (_, index), info in found.items()}

    eventually(lambda: committed() == {0: 3, 1: 0}, "the group has the position", 20)


def test_a_group_with_members_stays_as_it_is(
    stream: Open, hands: Hands, caplog: pytest.LogCaptureFixture
) -> None:
    topic = hands.topic()
    hands.produce(topic, "abc")
    with closing(Consumer(topic, bootstrap_servers=hands.bootstrap, group_id="busy")) as consumer:
        eventually(lambda: (consumer.poll(timeout=0.1), consumer.assignment())[1], "the member joined", 30)
        query = stream(subscribe=topic, publishGroup="busy")
        query.next({topic: {"0": 2}})
        eventually(lambda: "not shown in the group busy" in caplog.text, "it is said", 20)
        assert query.next({topic: {"0": 3}}) == {topic: {"0": 3}}, "the query goes on"


def test_the_reader_travels_to_the_tasks_before_it_connects(hands: Hands) -> None:
    topic = hands.topic()
    hands.produce(topic, "abc")
    query = Stream(hands, subscribe=topic)
    task = query.reader.partitions({topic: {"0": 1}}, {topic: {"0": 3}})[0]
    there: TidelogStreamReader = pickle.loads(pickle.dumps(query.reader))
    rows = [
        value
        for batch in there.read(pickle.loads(pickle.dumps(task)))
        for value in batch["value"].to_pylist()
    ]
    assert rows == [b"b", b"c"]
