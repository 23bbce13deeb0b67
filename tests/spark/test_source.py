"""Batch reads in a real Spark: rows, where they start and end, and how they are cut into tasks."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.types import StructType

from tests.spark.hands import Hands
from tidelog import Producer
from tidelog.spark.pipelines.days import DAY_MS

# A whole number of seconds, some days back: nothing that retention would take.
NOON = (int(time.time()) - 3 * 86_400) * 1000

KAFKA_SCHEMA = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP,"
    " timestampType INT"
)


def values(frame: DataFrame) -> list[str]:
    return sorted(bytes(row.value).decode() for row in frame.select("value").collect())


def message(raised: pytest.ExceptionInfo[Exception]) -> str:
    return str(raised.value)


def test_rows_are_those_of_the_kafka_connector(spark: SparkSession, hands: Hands) -> None:
    topic = hands.topic(2)
    hands.send(topic, b"v", key=b"k", partition=1, headers=[("a", b"1"), ("a", b"")], timestamp_ms=NOON)
    hands.send(topic, None, partition=1, timestamp_ms=NOON + 1)
    plain = hands.read(spark, subscribe=topic).load()
    assert plain.schema == StructType.fromDDL(KAFKA_SCHEMA)
    rows = hands.read(spark, subscribe=topic, includeHeaders=True).load()
    assert rows.schema == StructType.fromDDL(
        KAFKA_SCHEMA + ", headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
    )
    first, second = sorted(rows.collect(), key=lambda row: int(row.offset))
    noon = datetime.fromtimestamp(NOON / 1000, UTC).replace(tzinfo=None)
    with_headers = [Row(key="a", value=bytearray(b"1")), Row(key="a", value=bytearray())]
    assert first.asDict() == {
        "key": bytearray(b"k"),
        "value": bytearray(b"v"),
        "topic": topic,
        "partition": 1,
        "offset": 0,
        "timestamp": noon,
        "timestampType": 0,
        "headers": with_headers,
    }
    assert (second.key, second.value, second.offset, second.headers) == (None, None, 1, None)


def test_topics_are_found_by_name_by_pattern_and_by_partition(spark: SparkSession, hands: Hands) -> None:
    first, second = hands.topic(2, name="pattern-one"), hands.topic(name="pattern-two")
    hands.topic(name="another-pattern")  # a pattern may match anywhere, as in the connector
    hands.produce(first, ["a"], 0)
    hands.produce(first, ["b"], 1)
    hands.produce(second, ["c"])
    assert values(hands.read(spark, subscribe=f"{first}, {second}").load()) == ["a", "b", "c"]
    assert values(hands.read(spark, subscribePattern="tern-t|n-o").load()) == ["a", "b", "c"]
    assert values(hands.read(spark, assign=f'{{"{first}":[1],"{second}":[0]}}').load()) == ["b", "c"]
    assert values(hands.read(spark, subscribePattern="no-such-.*").load()) == []


def test_a_batch_starts_and_ends_where_it_is_told(spark: SparkSession, hands: Hands) -> None:
    topic = hands.topic(2)
    hands.produce(topic, "abcde", 0)
    hands.produce(topic, "vwxyz", 1)

    def between(start: str, end: str) -> str:
        read = hands.read(spark, subscribe=topic, startingOffsets=start, endingOffsets=end)
        return "".join(values(read.load()))

    assert between("earliest", "latest") == "abcdevwxyz"
    assert between(f'{{"{topic}":{{"0":3,"1":-2}}}}', "latest") == "devwxyz"
    assert between(f'{{"{topic}":{{"0":1,"1":4}}}}', f'{{"{topic}":{{"0":2,"1":-1}}}}') == "bz"


def test_times_are_found_in_each_partition(spark: SparkSession, hands: Hands) -> None:
    topic = hands.topic(2)
    for step, value in enumerate("abcd"):
        hands.send(topic, value.encode(), partition=0, timestamp_ms=NOON + step * 1000)
        hands.send(topic, value.upper().encode(), partition=1, timestamp_ms=NOON + step * 1000)

    def read(**options: object) -> str:
        return "".join(values(hands.read(spark, subscribe=topic, **options).load()))

    assert read(startingTimestamp=NOON + 2000) == "CDcd"
    assert read(startingTimestamp=NOON + 1500, endingTimestamp=NOON + 3000) == "Cc"
    assert read(endingTimestamp=NOON + DAY_MS) == "ABCDabcd"
    times = f'{{"{topic}":{{"0":{NOON + 3000},"1":{NOON + 1000}}}}}'
    assert read(startingOffsetsByTimestamp=times) == "BCDd"
    # As Kafka has it, -1 is the end and -2 the beginning in place of times as well.
    assert read(startingOffsetsByTimestamp=f'{{"{topic}":{{"0":-1,"1":-2}}}}') == "ABCD"
    # A time for all wins over times, these over offsets.
    assert read(startingTimestamp=NOON + 3000, startingOffsetsByTimestamp=times) == "Dd"
    assert read(endingOffsetsByTimestamp=times, endingOffsets="latest") == "Aabc"
    # Nothing is as late: an error by default, the end where that is asked for.
    with pytest.raises(AnalysisException) as raised:
        read(startingTimestamp=NOON + DAY_MS)
    assert f"No offset matched from request of topic-partition {topic}-" in message(raised)
    assert "startingOffsetsByTimestampStrategy" in message(raised)
    assert read(startingTimestamp=NOON + DAY_MS, startingOffsetsByTimestampStrategy="latest") == ""


def test_errors_say_what_is_wrong_and_what_to_set(spark: SparkSession, hands: Hands) -> None:
    topic = hands.topic(2)
    hands.produce(topic, "abc")

    def failure(**options: object) -> str:
        with pytest.raises(AnalysisException) as raised:
            hands.read(spark, **{"fetchOffset.retryIntervalMs": 1, **options}).load().collect()
        return message(raised)

    assert "the topic no-such does not exist" in failure(subscribe="no-such")
    missing = failure(subscribe=topic, startingOffsets=f'{{"{topic}":{{"0":1}}}}')
    assert "Specify all TopicPartitions; use -1 for latest, -2 for earliest" in missing
    assert f"Assigned: {topic}-0, {topic}-1" in missing
    beyond = failure(subscribe=topic, startingOffsets=f'{{"{topic}":{{"0":9,"1":0}}}}')
    assert "The resolved start offset 9 is greater than the resolved end offset 3" in beyond
    assert "The resolved start offset 9" in failure(
        subscribe=topic, startingOffsets=f'{{"{topic}":{{"0":9,"1":0}}}}', failOnDataLoss=False
    ), "an empty frame would hide the mistake"
    assert "'auto.offset.reset' is not supported" in failure(
        subscribe=topic, **{"kafka.auto.offset.reset": "latest"}
    )
    assert "starting offset can't be latest" in failure(subscribe=topic, startingOffsets="latest")
    assert "One of the following options must be specified" in failure()
    with pytest.raises(AnalysisException) as raised:
        hands.read(spark, subscribe=topic).schema("id INT").load().collect()
    assert "the source has a fixed schema" in message(raised)


def test_a_partition_is_cut_into_as_many_tasks_as_are_asked_for(spark: SparkSession, hands: Hands) -> None:
    topic = hands.topic(2)
    hands.produce(topic, range(900), 0)
    hands.produce(topic, range(900, 1000), 1)
    expected = sorted(map(str, range(1000)))
    for options, tasks in (
        ({}, 2),
        ({"minPartitions": 5}, 5),
        ({"maxRecordsPerPartition": 300}, 4),
        ({"maxRecordsPerPartition": 300, "minPartitions": 8}, 7),
    ):
        rows = hands.read(spark, subscribe=topic, **options).load()
        assert rows.rdd.getNumPartitions() == tasks, options
        assert values(rows) == expected


def test_filters_spare_reading(spark: SparkSession, hands: Hands) -> None:
    topic = hands.topic(3)
    for index in range(3):
        for step in range(4):
            value = f"{index}{step}".encode()
            hands.send(topic, value, partition=index, timestamp_ms=NOON + step * 1000)

    def found(condition: str) -> tuple[int, list[str]]:
        read = hands.read(spark, subscribe=topic, maxRecordsPerPartition=1, pushFilters=True)
        kept = read.load().where(condition)
        return kept.rdd.getNumPartitions(), values(kept)

    # A task for each record makes visible how many are read.
    assert found("partition = 1") == (4, ["10", "11", "12", "13"])
    assert found("partition IN (0, 2) AND offset >= 3") == (2, ["03", "23"])
    assert found("offset > 1 AND offset <= 2") == (3, ["02", "12", "22"])
    assert found(f"topic = '{topic}' AND offset < 1") == (3, ["00", "10", "20"])
    assert found("topic = 'another'")[1] == []
    late = datetime.fromtimestamp(NOON / 1000 + 2, UTC).strftime("%Y-%m-%d %H:%M:%S")
    assert found(f"timestamp > '{late}'") == (6, ["03", "13", "23"])
    assert found("partition = 0 OR offset = 0")[1] == ["00", "01", "02", "03", "10", "20"]


def test_a_frame_can_be_used_again(spark: SparkSession, hands: Hands) -> None:
    topic = hands.topic(3)
    hands.produce(topic, "ab", 1)
    frame = hands.read(spark, subscribe=topic).load()
    assert values(frame.where("partition = 1 AND offset = 1")) == ["b"]
    assert values(frame.where("partition = 0 OR offset = 0")) == ["a"]
    assert values(frame) == ["a", "b"]
    # Spark plans it once, and yet what has come meanwhile is there, in a partition that was empty, too.
    hands.produce(topic, "c", 1)
    hands.produce(topic, "d", 2)
    assert values(frame) == ["a", "b", "c", "d"]
    assert frame.rdd.getNumPartitions() == 3


def test_filters_may_be_pushed_where_spark_does_not(spark: SparkSession, hands: Hands) -> None:
    topic = hands.topic(2)
    hands.produce(topic, "ab", 1)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    try:
        frame = hands.read(spark, subscribe=topic, pushFilters=True).load()
        assert values(frame.where("partition = 1 AND offset = 1")) == ["b"]
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


def test_aborted_records_are_left_out_where_that_is_asked_for(spark: SparkSession, hands: Hands) -> None:
    topic = hands.topic()
    with Producer(bootstrap_servers=hands.bootstrap, transactional_id=f"{topic}-writer") as producer:
        producer.init_transactions()
        for value, commit in ((b"kept", True), (b"aborted", False), (b"also", True)):
            producer.begin_transaction()
            producer.send(topic, value).result(10)
            if commit:
                producer.commit_transaction()
            else:
                producer.abort_transaction()
        assert values(hands.read(spark, subscribe=topic).load()) == ["aborted", "also", "kept"]
        committed = hands.read(spark, subscribe=topic, **{"kafka.isolation.level": "read_committed"})
        assert values(committed.load()) == ["also", "kept"]
        # What is open is beyond the end of a read_committed batch, which does not wait for it.
        producer.begin_transaction()
        producer.send(topic, b"open").result(10)
        assert values(committed.load()) == ["also", "kept"]
        producer.abort_transaction()


def test_records_that_aged_out_fail_a_batch_unless_they_may_be_lost(
    spark: SparkSession, hands: Hands
) -> None:
    topic = hands.topic()
    hands.produce(topic, "abcde")
    hands.admin.delete_records({(topic, 0): 3})
    from_start = {"subscribe": topic, "startingOffsets": f'{{"{topic}":{{"0":0}}}}'}
    with pytest.raises(Exception, match="failOnDataLoss") as raised:
        hands.read(spark, **from_start).load().collect()
    assert "the log starts at offset 3 now" in message(raised)
    assert values(hands.read(spark, failOnDataLoss=False, **from_start).load()) == ["d", "e"]
    assert values(hands.read(spark, subscribe=topic).load()) == ["d", "e"]
