"""Runs a pipeline over events of a test, and reads its tables and topics back.

    run = tidelog_pipeline.run(PIPELINE, {"orders": [{"id": "o-1", "amount": 5}]})
    assert run.table("totals") == [{"user": "alice", "amount": 5}]

The pipeline runs as with `tidelog pipeline run --trigger available-now`: with checkpoints, expectations and
exactly-once writes, on a broker of the test and on a local Spark session that all tests share.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tidelog.testing.broker import Broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidelog.spark.pipelines.declare import Pipeline

Event = Mapping[str, object] | str | bytes | None
"""A dict is written as JSON; text and bytes are written as they are."""
Row = dict[str, object]


class PipelineTest:
    """A broker and a data folder of one test. A second `run` continues where the first one ended."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.data = str(folder)
        self.broker = Broker()

    def run(
        self,
        pipeline: Pipeline | str,
        events: Mapping[str, Iterable[Event]] | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> PipelineRun:
        """Write the events to their topics, and run the pipeline to the end of the log.

        `pipeline` is a declaration, a name, a file or a module. Topics that it reads are created. Raises
        `FlowFailed` if the pipeline fails.
        """
        from tidelog.spark.pipelines.registry import find
        from tidelog.spark.pipelines.runner import run

        found = find(pipeline) if isinstance(pipeline, str) else pipeline
        if not self.broker.running:
            self.broker.start()
        for topic, values in (events or {}).items():
            self.broker.produce(topic, *[_value(value) for value in values])
        outcome = run(
            [found],
            bootstrap=self.broker.bootstrap_servers,
            data=self.data,
            trigger="available-now",
            settings=settings,
            spark=self.spark,
            create_topics=True,
        )
        return PipelineRun(self, outcome.rows)

    def table(self, name: str) -> list[Row]:
        """All rows of a table; of a table with keys, the newest row of each. Empty if there is no table."""
        from tidelog.spark.tables import Tables

        tables = Tables(self.spark, f"{self.data}/tables")
        return tables.read(name).toArrow().to_pylist() if tables.exists(name) else []

    def topic(self, name: str) -> list[Row]:
        """The JSON values of the committed records of a topic, in their order."""
        records = self.broker.records(name, isolation_level="read_committed")
        return [json.loads(record.value) for record in records if record.value is not None]

    def close(self) -> None:
        self.broker.close()


class PipelineRun:
    """The result of a run: the tables and topics as they are now."""

    def __init__(self, test: PipelineTest, rows_in: int) -> None:
        self._test = test
        self.rows_in = rows_in
        """The records that this run has read."""

    def table(self, name: str) -> list[Row]:
        """The rows of a table, in no particular order."""
        return self._test.table(name)

    def topic(self, name: str) -> list[Row]:
        """The values of a topic, in their order in each partition."""
        return self._test.topic(name)

    @property
    def quarantine(self) -> list[Row]:
        """The rows of the table `quarantine`."""
        return self._test.table("quarantine")


def _value(event: Event) -> str | bytes | None:
    return json.dumps(event) if isinstance(event, Mapping) else event


@contextmanager
def local_session(folder: Path) -> Iterator[SparkSession]:
    """A small quiet session on two cores, stopped at the end. A session of this process is used instead."""
    from pyspark.sql import SparkSession

    from tidelog.spark.session import session

    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    settings = {
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={folder / 'derby'}",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
    }
    spark = session("tests", "local[2]", **settings)
    spark.sparkContext.setLogLevel("OFF")
    try:
        yield spark
    finally:
        spark.stop()
