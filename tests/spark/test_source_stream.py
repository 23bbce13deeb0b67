"""Streaming reads in a real Spark: triggers, restarts, and a checkpoint of the Kafka connector carried on."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from tests.spark.hands import Hands
from tests.support.wait import eventually
from tidelog.clients.admin import NewPartitions
from tidelog.spark.lag import publish
from tidelog.spark.offsets import to_json

CONNECTOR_CHECKPOINT = Path(__file__).parent.parent / "data" / "spark" / "kafka-connector-checkpoint"


class Rows:
    """Collects the values of each micro-batch; a batch that comes again replaces itself."""

    def __init__(self) -> None:
        self.batches: dict[int, list[str]] = {}

    def __call__(self, frame: DataFrame, batch: int) -> None:
        self.batches[batch] = sorted(bytes(row.value).decode() for row in frame.select("value").collect())

    @property
    def all(self) -> list[str]:
        return sorted(value for batch in self.batches.values() for value in batch)


def available_now(frame: DataFrame, rows: Rows, checkpoint: Path) -> StreamingQuery:
    writer = frame.writeStream.foreachBatch(rows).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(120), "it ended"
    return query


@pytest.fixture
def stopping(spark: SparkSession) -> Iterator[None]:
    """Ends what a test leaves running."""
    yield
    for query in spark.streams.active:
        query.stop()


def committed(hands: Hands, group: str) -> dict[str, dict[str, int]]:
    found = hands.admin.list_consumer_group_offsets([group])[group]
    return to_json({key: info.offset for key, info in found.items()})


def last_position(checkpoint: Path) -> dict[str, dict[str, int]]:
    newest = max((path for path in (checkpoint / "offsets").iterdir() if path.name.isdigit()), key=_number)
    found: dict[str, dict[str, int]] = json.loads(newest.read_text().splitlines()[-1])
    return found


def _number(path: Path) -> int:
    return int(path.name)


def test_available_now_reads_what_is_there_in_batches_and_goes_on_later(
    spark: SparkSession, hands: Hands, tmp_path: Path
) -> None:
    topic = hands.topic(2)
    hands.produce(topic, range(8), 0)
    hands.produce(topic, range(100, 104), 1)
    stream = hands.read_stream(
        spark, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=6, publishGroup="progress"
    ).load()
    rows = Rows()
    query = available_now(stream, rows, tmp_path)
    assert [len(batch) for batch in rows.batches.values()] == [6, 6]
    assert rows.all == sorted(map(str, [*range(8), *range(100, 104)]))
    assert last_position(tmp_path) == {topic: {"0": 8, "1": 4}}
    progress = query.lastProgress
    assert progress is not None
    source = progress["sources"][0]
    assert json.loads(source["latestOffset"]) == {topic: {"0": 8, "1": 4}}

    hands.produce(topic, ["late"], 1)
    again = Rows()
    available_now(stream, again, tmp_path)
    assert again.all == ["late"]
    hands.produce(topic, ["behind", "behind"], 0)
    described = subprocess.run(
        [
            *(sys.executable, "-m", "tidelog", "consumer-groups", "--describe", "--group", "progress"),
            *("--bootstrap-server", hands.bootstrap),
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    lines = {tuple(line.split()[:6]) for line in described.splitlines()}
    assert ("progress", topic, "0", "8", "10", "2") in lines, described
    assert ("progress", topic, "1", "5", "5", "0") in lines, described


def test_once_takes_everything_in_one_batch(spark: SparkSession, hands: Hands, tmp_path: Path) -> None:
    topic = hands.topic()
    hands.produce(topic, "abcde")
    stream = hands.read_stream(spark, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=2)
    rows = Rows()
    query = stream.load().writeStream.foreachBatch(rows).option("checkpointLocation", str(tmp_path))
    assert query.trigger(once=True).start().awaitTermination(120)
    assert rows.batches == {0: ["a", "b", "c", "d", "e"]}


@pytest.mark.usefixtures("stopping")
def test_a_running_query_takes_up_new_topics_and_partitions(
    spark: SparkSession, hands: Hands, tmp_path: Path
) -> None:
    topic = hands.topic(name="stream-1")
    hands.produce(topic, ["before"])
    rows = Rows()
    stream = hands.read_stream(spark, subscribePattern="^stream-.*", includeHeaders=True).load()
    query = stream.writeStream.foreachBatch(rows).option("checkpointLocation", str(tmp_path))
    listener = publish(spark, {"bootstrap.servers": hands.bootstrap}, lambda name: f"{name}-group")
    running = query.queryName("watched").trigger(processingTime="50 milliseconds").start()
    eventually(lambda: (tmp_path / "commits" / "0").exists(), "it started", 60)
    hands.produce(topic, ["after"])
    eventually(lambda: "after" in rows.all, "a new record comes", 60)
    other = hands.topic(name="stream-2")
    hands.produce(other, ["another topic"])
    hands.admin.create_partitions({topic: NewPartitions(2)})
    hands.produce(topic, ["another partition"], 1)
    expected = ["after", "another partition", "another topic"]
    eventually(lambda: rows.all == expected, "what is new comes", 60)
    position = {topic: {"0": 2, "1": 1}, other: {"0": 1}}
    # Before the stop: it may cut off the last micro-batch, which then counts for nobody.
    eventually(lambda: committed(hands, "watched-group") == position, "the group has the position", 30)
    running.stop()
    assert last_position(tmp_path) == position
    spark.streams.removeListener(listener)
    listener.close()


def test_lost_records_end_a_query_unless_they_may_be_lost(
    spark: SparkSession, hands: Hands, tmp_path: Path
) -> None:
    topic = hands.topic()
    hands.produce(topic, "abc")

    def run(**options: object) -> list[str]:
        rows = Rows()
        read = hands.read_stream(spark, subscribe=topic, startingOffsets="earliest", **options)
        available_now(read.load(), rows, tmp_path)
        return rows.all

    assert run() == ["a", "b", "c"]
    hands.produce(topic, "defg")
    hands.admin.delete_records({(topic, 0): 5})
    with pytest.raises(StreamingQueryException) as raised:
        run()
    assert "failOnDataLoss" in str(raised.value)
    assert "the log starts at offset 5 now" in str(raised.value)
    assert run(failOnDataLoss=False) == ["f", "g"]


def test_a_checkpoint_of_the_kafka_connector_is_carried_on(
    spark: SparkSession, hands: Hands, tmp_path: Path
) -> None:
    """The folder was written by Spark's connector with maxOffsetsPerTrigger=6 on a topic like this one."""
    topic = hands.topic(2)
    hands.produce(topic, range(10), 0)
    hands.produce(topic, range(100, 105), 1)
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(CONNECTOR_CHECKPOINT, checkpoint)
    for path in checkpoint.rglob("0/0"), checkpoint.rglob("offsets/*"):
        for file in path:
            file.write_bytes(file.read_bytes().replace(b"carried", topic.encode()))
    assert last_position(checkpoint) == {topic: {"0": 10, "1": 5}}
    (checkpoint / "commits" / "2").unlink()  # as if the connector had been killed in its last batch
    hands.produce(topic, ["new"], 1)
    rows = Rows()
    stream = hands.read_stream(spark, subscribe=topic, startingOffsets="earliest").load()
    available_now(stream, rows, checkpoint)
    assert rows.batches == {2: ["104", "8", "9"], 3: ["new"]}
    assert last_position(checkpoint) == {topic: {"0": 10, "1": 6}}
