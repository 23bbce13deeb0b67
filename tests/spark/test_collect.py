"""collect on a real Spark and a real broker: every record of the logs in one table, through kills as well."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from tests.spark.collected import (
    START,
    PipelineProcess,
    assert_collected,
    expected,
    generate,
    spoilt,
    unusual,
)
from tests.spark.hands import Hands
from tests.support.scale import scale
from tidelog.spark.pipelines import collect
from tidelog.spark.pipelines.declare import Context
from tidelog.spark.pipelines.events import CREDITS, LOGS
from tidelog.spark.pipelines.runner import run
from tidelog.spark.pipelines.settings import resolve
from tidelog.spark.tables import Tables
from tidelog.spark.tables.live_files import live_paths
from tidelog.testing import Broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class ByHand:
    """The flows of collect, micro-batch by micro-batch, each from where the one before it ended."""

    def __init__(self, spark: SparkSession, hands: Hands, root: Path, **settings: object) -> None:
        self.tables = Tables(spark, str(root))
        self._hands = hands
        self._flows = collect.PIPELINE.flows(resolve([collect.PIPELINE], settings)["collect"])
        self._context = Context(spark, resolve([collect.PIPELINE], settings)["collect"], self.tables)
        self._borders: dict[str, list[list[int]]] = {}

    def write(self, batch: int) -> None:
        """The micro-batch of this number; one that was written before has the records it had then."""
        for flow in self._flows:
            topic, source = flow.source.topics[0], flow.source
            borders = self._borders.setdefault(topic, [[0, 0]])
            if batch + 1 == len(borders):
                borders.append(self._hands.ends(topic, 2))
            assert source.schema is not None
            rows = self._hands.read(
                self._context.spark,
                subscribe=topic,
                startingOffsets=_offsets(topic, borders[batch]),
                endingOffsets=_offsets(topic, borders[batch + 1]),
                valueFormat="json",
                valueSchema=source.schema.json(),
                columns=",".join(source.metadata),
                **source.options,
            ).load()
            for sink in flow.sinks:
                assert isinstance(sink, collect.Collected)
                context = replace(self._context, writer=f"collect/{flow.name}")
                sink.write(rows, context, context.writer, batch)


def _offsets(topic: str, ends: list[int]) -> str:
    return json.dumps({topic: {str(partition): end for partition, end in enumerate(ends)}})


def test_every_record_is_in_one_table_whatever_is_wrong_with_it(
    spark: SparkSession, broker: Broker, hands: Hands, tmp_path: Path
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    generate(broker.bootstrap_servers, scale(4_000, 100_000), seed)
    for schema in LOGS:
        for value in [*spoilt(schema), *unusual(schema)]:
            hands.send(schema.topic, value, partition=1, timestamp_ms=START)
    collecting = ByHand(spark, hands, tmp_path)
    collecting.write(0)
    wanted = expected(broker.bootstrap_servers)
    assert_collected(collecting.tables, wanted)
    assert len(wanted.bad) >= 7 * len(spoilt(CREDITS)), "no way of being bad went missing"
    reasons = {row.error for row in collecting.tables.read("quarantine").select("error").distinct().collect()}
    assert any("version 100 is unknown" in reason for reason in reasons)
    ahead = f"field ts: 4070908800000 is more than 60 minutes ahead of its record ({START})"
    assert ahead in reasons
    for file in (tmp_path / "credits").glob("day=*/*.parquet"):
        assert pq.read_schema(file).names == list(CREDITS.names), "an event's columns and no others"

    for batch in (1, 2, 3):
        generate(broker.bootstrap_servers, 500, seed + batch)
        collecting.write(batch)
    collecting.write(3)  # again
    assert_collected(collecting.tables, expected(broker.bootstrap_servers))


def test_a_pipeline_killed_at_random_points_loses_and_doubles_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    with Broker() as broker:
        bootstrap = broker.bootstrap_servers
        generate(bootstrap, scale(8_000, 40_000), seed)
        for kill in range(scale(1, 6)):
            generate(bootstrap, 1_000, seed + kill + 1)
            with PipelineProcess(bootstrap, tmp_path / "data", {}) as pipeline:
                pipeline.wait_for_a_batch()
                pipeline.wait_for_files(draw.randrange(100))  # anywhere in a batch
        generate(bootstrap, 1_000, seed + 1000)
        run(
            "collect",
            bootstrap=bootstrap,
            data=str(tmp_path / "data"),
            trigger="available-now",
            settings={"tables.compact.small.files": 1},
            spark=spark,
        )
        tables = Tables(spark, str(tmp_path / "data" / "tables"))
        assert_collected(tables, expected(bootstrap))
        for name in ("credits", "quarantine"):
            paths = live_paths(tables.delta(name))
            assert any("compacted-" in path for path in paths), f"{name} is maintained"
