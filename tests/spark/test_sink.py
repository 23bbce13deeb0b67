"""Data frames written to topics: which columns count, what is refused, in batches and in streams."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from tests.spark.decided import problems, settled
from tests.spark.hands import Hands
from tidelog import Consumer, ConsumerRecord
from tidelog.spark.ddl import parse_schema
from tidelog.spark.options import OptionError, sink_options
from tidelog.spark.sending import RowError, SchemaError, Target, groups, headers_of, target_of
from tidelog.spark.sink import batch_writer, stream_writer, write_plain
from tidelog.testing import Broker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker({"transaction.two.phase.commit.enable": "true"}) as broker:
        yield broker


def written(frame: DataFrame, hands: Hands, **options: object) -> DataFrameWriter:
    given = {"kafka.bootstrap.servers": hands.bootstrap, **{name: str(it) for name, it in options.items()}}
    return frame.write.format("tidelog").mode("append").options(**given)


def records(hands: Hands, topic: str, count: int) -> list[tuple[int, bytes | None, bytes | None, object]]:
    with Consumer(topic, bootstrap_servers=hands.bootstrap, auto_offset_reset="earliest") as consumer:
        found: list[ConsumerRecord] = []
        while len(found) < count:
            found += consumer.poll(timeout=10)
    return sorted((each.partition, each.key, each.value, each.headers) for each in found)


# What is written


def test_keys_values_headers_and_partitions_are_those_of_the_columns(
    spark: SparkSession, hands: Hands
) -> None:
    topic = hands.topic(partitions=3)
    frame = spark.sql(
        """select key, if(id = 1, null, cast(concat('v', id) as binary)) value,
           cast(id % 3 as int) partition, 'ignored' other,
           if(id = 2, null, array(named_struct('key', 'h', 'value', cast(key as binary)))) headers
           from (select id, cast(id as string) key from range(4))"""
    )
    written(frame, hands, topic=topic).save()
    found = records(hands, topic, 4)
    assert [each[:3] for each in found] == [
        (0, b"0", b"v0"),
        (0, b"3", b"v3"),
        (1, b"1", None),
        (2, b"2", b"v2"),
    ]
    assert found[3][3] == ()
    assert found[0][3] == (("h", b"0"),)


@pytest.mark.parametrize("headers", ["", ", array(named_struct('key', 'h', 'value', X'FE')) headers"])
def test_strings_that_are_no_utf8_are_written_as_they_are(
    spark: SparkSession, hands: Hands, headers: str
) -> None:
    topic = hands.topic()
    frame = spark.sql(f"select cast(X'FE' as string) key, cast(X'FF41' as string) value{headers}")
    written(frame, hands, topic=topic).save()
    found = (("h", b"\xfe"),) if headers else ()
    assert records(hands, topic, 1) == [(0, b"\xfe", b"\xffA", found)]


def test_rows_name_their_topics_and_the_option_wins(spark: SparkSession, hands: Hands) -> None:
    first, second, third = hands.topic(), hands.topic(), hands.topic()
    frame = spark.range(10).selectExpr(
        f"if(id % 2 = 0, '{first}', '{second}') topic", "cast(id as string) value"
    )
    written(frame, hands).save()
    assert hands.values(first) == ["0", "2", "4", "6", "8"]
    assert hands.values(second) == ["1", "3", "5", "7", "9"]
    written(frame, hands, topic=third).save()
    assert len(hands.values(third)) == 10


def test_a_row_without_a_topic_fails_the_write(spark: SparkSession, hands: Hands) -> None:
    frame = spark.sql("select cast(null as string) topic, 'a' value")
    with pytest.raises(Exception, match="null topic present in the data"):
        written(frame, hands).save()


def test_overwrite_is_refused_in_a_batch(spark: SparkSession, hands: Hands) -> None:
    frame = spark.sql("select 'a' value")
    with pytest.raises(Exception, match="Allowed save modes are Append and ErrorIfExists"):
        written(frame, hands, topic="t").mode("overwrite").save()


def test_a_stream_is_written_plainly_and_exactly_once(
    spark: SparkSession, hands: Hands, tmp_path: Path
) -> None:
    source = hands.topic(partitions=2)
    hands.produce(source, range(50))
    for exactly_once in ("false", "true"):
        topic = hands.topic(partitions=2)
        rows = [str(number) for number in range(50)]

        def run(topic: str = topic, exactly_once: str = exactly_once) -> None:
            query = (
                hands.read_stream(
                    spark, subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger=40
                )
                .load()
                .writeStream.format("tidelog")
                .option("kafka.bootstrap.servers", hands.bootstrap)
                .option("checkpointLocation", str(tmp_path / exactly_once))
                .option("exactlyOnce", exactly_once)
                .option("topic", topic)
                .trigger(availableNow=True)
                .start()
            )
            assert query.awaitTermination(120)

        run()
        settled(hands, topic)
        assert not problems(hands, topic, rows)
        if exactly_once == "true":
            # Spark forgets that it committed the last batch, and replays it.
            commits = tmp_path / exactly_once / "commits"
            last = max(int(file.name) for file in commits.iterdir() if file.name.isdigit())
            for file in commits.glob(f"*{last}*"):
                file.unlink()
            run()
            settled(hands, topic)
            assert not problems(hands, topic, rows)


def test_a_batch_is_written_as_one_unit(spark: SparkSession, hands: Hands) -> None:
    topic = hands.topic(partitions=2)
    bad = spark.range(100, numPartitions=2).selectExpr(
        f"if(id = 99, null, '{topic}') topic", "cast(id as string) value"
    )
    with pytest.raises(Exception, match="null topic present"):
        written(bad, hands, exactlyOnce="true").save()
    settled(hands, topic)
    assert not problems(hands, topic, [])
    good = spark.range(100, numPartitions=2).selectExpr("cast(id as string) value")
    for _ in range(2):
        written(good, hands, topic=topic, exactlyOnce="true", exactlyOnceName="u", exactlyOnceBatch=7).save()
    settled(hands, topic)
    assert not problems(hands, topic, [str(number) for number in range(100)])


# What is refused before anything is written


@pytest.mark.parametrize(
    ("columns", "topic", "reason"),
    [
        ("key string", "t", "Required attribute 'value' not found; the columns are key"),
        ("value string", None, "topic option required when no 'topic' attribute is present"),
        ("value int", "t", "value attribute unsupported type int. value must be a\\(n\\) string or binary"),
        ("value string, key long", "t", "key attribute unsupported type bigint. key must be"),
        (
            "value string, topic int",
            None,
            "topic attribute unsupported type int. topic must be a\\(n\\) string",
        ),
        ("value string, partition long", "t", "partition must be a\\(n\\) int"),
        (
            "value string, headers array<string>",
            "t",
            "headers must be a\\(n\\) array<struct<key:string,value:",
        ),
    ],
)
def test_columns_that_cannot_be_written_are_refused(columns: str, topic: str | None, reason: str) -> None:
    with pytest.raises(SchemaError, match=reason):
        target_of(parse_schema(columns), topic)


def test_a_column_of_topics_may_be_anything_where_the_option_is_given() -> None:
    assert target_of(parse_schema("value string, topic int"), "t") == Target("t", False, False, False)


@pytest.mark.parametrize("make", [batch_writer, stream_writer])
def test_settings_that_are_the_sinks_own_are_refused(make: Callable[..., object]) -> None:
    given = {"kafka.bootstrap.servers": "127.0.0.1:9", "topic": "t"}
    with pytest.raises(OptionError, match=r"'key\.serializer' is not supported as keys are"):
        make({**given, "kafka.key.serializer": "x"}, parse_schema("value string"), False)
    for exactly_once in ("true", "false"):
        with pytest.raises(OptionError, match=r"'transactional\.id' is not supported: set exactlyOnce"):
            own = {**given, "kafka.transactional.id": "x", "exactlyOnce": exactly_once}
            make(own, parse_schema("value string"), False)
    with pytest.raises(OptionError, match=r"'interceptor\.classes' is not supported"):
        make({**given, "kafka.interceptor.classes": "org.example.X"}, parse_schema("value string"), False)
    with pytest.raises(OptionError, match=r"kafka\.partitioner\.class=org\.example\.X: expected"):
        make({**given, "kafka.partitioner.class": "org.example.X"}, parse_schema("value string"), False)
    for name, value in (("acks", "1"), ("enable.idempotence", "false"), ("retries", "0")):
        with pytest.raises(OptionError, match=f"needs a producer with idempotence.* kafka.{name}={value}:"):
            make(
                {**given, f"kafka.{name}": value, "exactlyOnce": "true"}, parse_schema("value string"), False
            )
        make({**given, f"kafka.{name}": value}, parse_schema("value string"), False)
    assert pickle.loads(pickle.dumps(make(given, parse_schema("value string"), False))).target.topic == "t"


# How rows are grouped and sent


def test_a_partitioner_is_asked_about_each_row_with_a_key_or_without(hands: Hands) -> None:
    round_robin = {"kafka.partitioner.class": "org.apache.kafka.clients.producer.RoundRobinPartitioner"}
    for partition, wanted in ((None, [0, 1, 2]), (1, [1, 1, 1])):
        topic = hands.topic(partitions=3)
        options = sink_options({"kafka.bootstrap.servers": hands.bootstrap, "topic": topic, **round_robin})
        columns = {
            "key": ["k"] * 3,
            "value": ["a", "b", "c"],
            "partition": pa.array([partition] * 3, pa.int32()),
        }
        target = Target(topic, has_key=True, has_partition=True, has_headers=False)
        assert write_plain(options, target, iter([pa.record_batch(columns)])).rows == 3
        assert [each[0] for each in records(hands, topic, 3)] == wanted


def test_a_row_that_the_topic_does_not_take_says_what_to_set(hands: Hands) -> None:
    topic = hands.topic(configs={"max.message.bytes": "1000"})
    options = sink_options({"kafka.bootstrap.servers": hands.bootstrap, "topic": topic})
    rows = pa.record_batch({"value": ["x" * 2000]})
    with pytest.raises(RowError, match=rf"{topic}-0: .*; raise the topic's max\.message\.bytes"):
        write_plain(options, Target(topic, False, False, False), iter([rows]))


def test_rows_are_grouped_by_topic_and_partition_in_their_order() -> None:
    batch = pa.record_batch(
        {
            "topic": ["a", "b", "a", "a", "b"],
            "partition": pa.array([0, None, 1, 0, None], pa.int32()),
            "value": ["1", "2", "3", "4", "5"],
        }
    )
    found = {
        (topic, partition): rows.column("value").to_pylist()
        for topic, partition, rows in groups(batch, Target(None, False, True, False))
    }
    assert found == {("a", 0): ["1", "4"], ("b", None): ["2", "5"], ("a", 1): ["3"]}


def test_names_that_are_no_utf8_get_replacement_characters() -> None:
    def strings(*contents: bytes) -> pa.Array:
        return pa.array(contents, pa.binary()).view(pa.string())

    batch = pa.record_batch({"topic": strings(b"a\xff"), "value": ["1"]})
    assert [group[0] for group in groups(batch, Target(None, False, False, False))] == ["a\ufffd"]
    pairs = pa.StructArray.from_arrays([strings(b"h\xff"), pa.array([None], pa.binary())], ["key", "value"])
    assert headers_of(pa.ListArray.from_arrays([0, 1], pairs)) == [(("h\ufffd", None),)]


def test_a_partition_below_zero_is_refused() -> None:
    batch = pa.record_batch({"partition": pa.array([0, -3], pa.int32()), "value": ["1", "2"]})
    with pytest.raises(RowError, match="partition -3 present in the data"):
        list(groups(batch, Target("t", False, True, False)))
