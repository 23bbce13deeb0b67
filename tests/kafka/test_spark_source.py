"""The source on Apache Kafka 4.3: the statements about it hold there as well, and Spark's own connector says
the same about the same topics. Their checkpoints change hands, there and back.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.kafka.servers import Kafka4
from tests.kafka.spark_connector import Connector, rows_of
from tests.spark.conftest import spark
from tests.spark.hands import Hands
from tests.spark.test_source import *  # noqa: F403
from tests.spark.test_source import NOON
from tests.spark.test_source_positions import *  # noqa: F403
from tests.spark.test_source_positions import stream
from tests.spark.test_source_stream import *  # noqa: F403
from tests.spark.test_source_stream import Rows, available_now, last_position, stopping

__all__ = ["spark", "stopping", "stream"]


@pytest.fixture(scope="module")
def hands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hands]:
    """Works on Kafka 4.3 in place of our broker."""
    folder = tmp_path_factory.mktemp("kafka4")
    kafka = Kafka4(folder / "kafka", folder / "data")
    kafka.format()
    with kafka, Hands(kafka.bootstrap) as hands:
        yield hands


@pytest.fixture(scope="module")
def connector(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connector]:
    with Connector(tmp_path_factory.mktemp("connector")) as connector:
        yield connector


@pytest.fixture(scope="module")
def topic(hands: Hands) -> str:
    """Three partitions: one with much, one with little, one with nothing."""
    name = hands.topic(3, name="compared")
    for step in range(50):
        hands.send(name, f"{step}".encode(), key=b"k", partition=0, timestamp_ms=NOON + step * 1000)
    hands.send(name, None, partition=1, timestamp_ms=NOON + 2000, headers=[("a", b"1"), ("b", b"")])
    hands.send(name, b"", key=b"", partition=1, timestamp_ms=NOON + 40_000)
    return name


T = "compared"
EVERYWHERE = '{"compared":{"0":%s,"1":%s,"2":%s}}'

COMPARED: dict[str, dict[str, str]] = {
    "plain": {},
    "with headers": {"includeHeaders": "true"},
    "offsets": {"startingOffsets": EVERYWHERE % (10, -2, 0), "endingOffsets": EVERYWHERE % (12, -1, 0)},
    "more tasks": {"minPartitions": "4"},
    "many more tasks": {"minPartitions": "20"},
    "small tasks": {"maxRecordsPerPartition": "7"},
    "small tasks, and more": {"maxRecordsPerPartition": "20", "minPartitions": "9"},
    "from a time, or the end": {
        "startingTimestamp": str(NOON + 30_000),
        "startingOffsetsByTimestampStrategy": "latest",
    },
    "to a time": {"endingTimestamp": str(NOON + 10_000)},
    "times": {
        "startingOffsetsByTimestamp": EVERYWHERE % (NOON + 20_000, NOON, 0),
        "endingOffsetsByTimestamp": EVERYWHERE % (NOON + 22_500, NOON + 3000, 1),
        "startingOffsetsByTimestampStrategy": "latest",
    },
    "a pattern": {"subscribe": "", "subscribePattern": "compare.$"},
    "partitions": {"subscribe": "", "assign": '{"compared":[0,1]}'},
}

REFUSED: dict[str, tuple[dict[str, str], str]] = {
    "no offset at a time": ({"startingTimestamp": str(NOON + 10**9)}, "No offset matched from request"),
    "not all partitions": ({"startingOffsets": '{"compared":{"0":0}}'}, "don't match what are assigned"),
    "latest": ({"startingOffsets": "latest"}, "starting offset can't be latest"),
    "ends at the start": ({"endingOffsets": "earliest"}, "ending offset can't be earliest"),
    "backwards": (
        {"startingOffsets": EVERYWHERE % (9, 0, 0), "endingOffsets": EVERYWHERE % (3, 0, 0)},
        "The specified start offset 9 is greater than the end offset 3 for topic compared partition 0",
    ),
    "other partitions": (
        {"startingOffsets": EVERYWHERE % (0, 0, 0), "endingOffsets": '{"compared":{"0":3}}'},
        "The specified start offset and end offset should have the same topic-partitions",
    ),
    "reset": ({"kafka.auto.offset.reset": "latest"}, "Kafka option 'auto.offset.reset' is not supported"),
    "commit": ({"kafka.enable.auto.commit": "true"}, "Kafka option 'enable.auto.commit' is not supported"),
    "interceptors": (
        {"kafka.interceptor.classes": "x"},
        "Kafka option 'interceptor.classes' is not supported",
    ),
    "keys": ({"kafka.key.deserializer": "x"}, "Kafka option 'key.deserializer' is not supported as keys"),
    "values": (
        {"kafka.value.deserializer": "x"},
        "Kafka option 'value.deserializer' is not supported as values",
    ),
    "two ways": ({"assign": '{"compared":[0]}'}, "Only one of the following options can be specified"),
    "no way": ({"subscribe": ""}, "No topics to subscribe to"),
    "no tasks": ({"minPartitions": "0"}, "minPartitions must be positive"),
    "no records": ({"maxRecordsPerPartition": "0"}, "must be positive"),
    "limits": (
        {"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "3"},
        "is higher than the maxOffsetsPerTrigger(3)",
    ),
    "offsets that are none": ({"startingOffsets": '{"compared":3}'}, "xpected e.g."),
}


def options_for(hands: Hands, given: dict[str, str]) -> dict[str, str]:
    options = {"kafka.bootstrap.servers": hands.bootstrap, "subscribe": T, **given}
    if "assign" in given or "subscribePattern" in given:
        options = {name: value for name, value in options.items() if value}
    return options


@pytest.mark.parametrize("case", COMPARED)
def test_the_rows_are_those_of_the_connector(
    spark: SparkSession, hands: Hands, connector: Connector, topic: str, case: str
) -> None:
    options = options_for(hands, COMPARED[case])
    theirs = connector.batch(dict(options))
    assert "error" not in theirs, theirs
    ours = rows_of(spark.read.format("tidelog").options(**options).load())
    assert json.loads(json.dumps(ours["rows"])) == theirs["rows"]
    assert ours["schema"] == theirs["schema"]
    if "minPartitions" in options:
        # Ours keeps a task for the partition without records: it may have some when the frame is used again.
        assert ours["tasks"] == int(str(theirs["tasks"])) + 1
    elif "maxRecordsPerPartition" not in options:
        # Theirs does not count the records of partitions that are read from the beginning to the end.
        # It makes a task for offsets 0 to 0, ours none.
        assert ours["tasks"] == int(str(theirs["tasks"])) - (case == "offsets")


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_connector_refuses_is_refused(
    spark: SparkSession, hands: Hands, connector: Connector, topic: str, case: str
) -> None:
    given, reason = REFUSED[case]
    options = options_for(hands, given)
    assert reason in str(connector.batch(dict(options)).get("error"))
    with pytest.raises(Exception) as raised:
        spark.read.format("tidelog").options(**options).load().collect()
    assert reason in str(raised.value)


def test_a_checkpoint_changes_hands_and_comes_back(
    spark: SparkSession, hands: Hands, connector: Connector, tmp_path: Path
) -> None:
    topic = hands.topic(2)
    options = {
        "kafka.bootstrap.servers": hands.bootstrap,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "4",
    }
    hands.produce(topic, ["a", "b", "c", "d"], 0)
    hands.produce(topic, ["m", "n"], 1)
    first = connector.stream(dict(options), tmp_path)
    assert first == {"batches": {"0": ["a", "b", "m"], "1": ["c", "d", "n"]}}

    hands.produce(topic, ["e", "f"], 0)
    rows = Rows()
    available_now(spark.readStream.format("tidelog").options(**options).load(), rows, tmp_path)
    assert rows.batches == {2: ["e", "f"]}
    assert last_position(tmp_path) == {topic: {"0": 6, "1": 2}}

    hands.produce(topic, ["o"], 1)
    assert connector.stream(dict(options), tmp_path) == {"batches": {"3": ["o"]}}
    hands.produce(topic, ["p"], 1)
    again = Rows()
    available_now(spark.readStream.format("tidelog").options(**options).load(), again, tmp_path)
    assert again.batches == {4: ["p"]}
