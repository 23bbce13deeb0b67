"""Spark's own Kafka connector, from its published jars, in a process of its own: what ours is compared with.

The jars are fetched once, by name, with mvn into .cache/kafka/; TIDELOG_KAFKA_JARS names a folder that has
them in a folder `spark` already. Not every mirror has every version: the newest of a list that can be had is
taken, which a newer Spark runs as well.

Run as a module it reads jobs as JSON, one in a line, and answers each with a line of JSON.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import pytest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Json = dict[str, object]

CACHE = Path(__file__).parent.parent.parent / ".cache" / "kafka" / "spark-connector"
ARTIFACTS = (
    ("org.apache.spark:spark-sql-kafka-0-10_2.13", ("4.3.0", "4.2.1", "4.2.0")),
    (
        "org.apache.spark:spark-token-provider-kafka-0-10_2.13",
        ("4.3.0", "4.2.1", "4.2.0", "4.1.0-preview1"),
    ),
    ("org.apache.kafka:kafka-clients", ("3.9.2",)),
    ("org.apache.commons:commons-pool2", ("2.13.1", "2.12.1")),
)
COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"
# What the connector and ours give for a row, beside the columns that are bytes.
COLUMNS = ("topic", "partition", "offset", "timestampType")


def jars() -> list[str]:
    """The files of the connector; the test is skipped where there is no way to get them."""
    given = os.environ.get("TIDELOG_KAFKA_JARS")
    folder = Path(given) / "spark" if given and (Path(given) / "spark").exists() else CACHE
    if not (folder / ".complete").exists():
        if shutil.which("mvn") is None:
            pytest.skip("Spark's Kafka connector is not here and cannot be fetched: mvn is not on the path")
        for artifact, versions in ARTIFACTS:
            if not any(_fetched(artifact, version, folder) for version in versions):
                pytest.skip(f"{artifact} cannot be fetched in any of the versions {', '.join(versions)}")
        (folder / ".complete").touch()
    return [str(path) for path in sorted(folder.glob("*.jar"))]


def _fetched(artifact: str, version: str, folder: Path) -> bool:
    folder.mkdir(parents=True, exist_ok=True)
    command = ["mvn", "-q", "-B", COPY, f"-Dartifact={artifact}:{version}", f"-DoutputDirectory={folder}"]
    return subprocess.run(command, capture_output=True, timeout=300, check=False).returncode == 0


class Connector:
    """`with Connector(folder) as connector:` a Spark with the connector's jars."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._log = folder / "connector.log"
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        found = jars()
        self._folder.mkdir(parents=True, exist_ok=True)
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.kafka.spark_connector", str(self._folder), *found],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=Path(__file__).parent.parent.parent,
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(60)
        finally:
            process.kill()
            process.wait()

    def batch(self, options: Json) -> Json:
        """The rows of a batch read and its number of tasks, or the `error`."""
        return self._ask({"do": "batch", "options": options})

    def stream(self, options: Json, checkpoint: Path) -> Json:
        """The values of each micro-batch until no more is available."""
        return self._ask({"do": "stream", "options": options, "checkpoint": str(checkpoint)})

    def write(self, options: Json, values: list[str]) -> Json:
        """Write a batch of values; nothing, or the `error`."""
        return self._ask({"do": "write", "options": options, "values": values})

    def copy(self, source: Json, sink: Json, checkpoint: Path) -> Json:
        """Write what a stream reads until no more is available; nothing, or the `error`."""
        return self._ask({"do": "copy", "options": source, "sink": sink, "checkpoint": str(checkpoint)})

    def _ask(self, job: Json) -> Json:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(job) + "\n")
        process.stdin.flush()
        for line in process.stdout:
            if line.startswith("{"):
                answer: Json = json.loads(line)
                return answer
        raise AssertionError(f"it ended:\n{self._log.read_text()[-4000:]}")


def rows_of(frame: DataFrame) -> Json:
    """A batch read, as both sources are compared."""
    names = frame.columns
    found = [
        [
            *(row[name] for name in COLUMNS),
            *(None if row[name] is None else bytes(row[name]).hex() for name in ("key", "value")),
            str(row["timestamp"]),
            [[each.key, bytes(each.value).hex()] for each in row["headers"] or []]
            if "headers" in names
            else None,
        ]
        for row in frame.collect()
    ]
    return {
        "rows": sorted(found, key=lambda row: (row[0], row[1], row[2])),
        "schema": frame.schema.simpleString(),
        "tasks": frame.rdd.getNumPartitions(),
    }


def main() -> None:
    from pyspark.sql import SparkSession

    folder, files = Path(sys.argv[1]), sys.argv[2:]
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName("connector")
    for name, value in {
        "spark.jars": ",".join(files),
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    jobs = {"batch": _batch, "stream": _stream, "write": _write, "copy": _copy}
    for line in sys.stdin:
        job = json.loads(line)
        try:
            done = jobs[job["do"]](spark, job)
        except Exception as error:
            done = {"error": str(error)}
        print(json.dumps(done), flush=True)
    spark.stop()


def _batch(spark: SparkSession, job: dict[str, dict[str, str]]) -> Json:
    return rows_of(spark.read.format("kafka").options(**job["options"]).load())


def _stream(spark: SparkSession, job: dict[str, dict[str, str]]) -> Json:
    batches: dict[str, list[str]] = {}

    def take(frame: DataFrame, batch: int) -> None:
        batches[str(batch)] = sorted(bytes(row.value).decode() for row in frame.collect())

    frame = spark.readStream.format("kafka").options(**job["options"]).load()
    writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(job["checkpoint"]))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return {"batches": batches}


def _write(spark: SparkSession, job: dict[str, dict[str, str]]) -> Json:
    frame = spark.createDataFrame([(value,) for value in job["values"]], "value string")
    frame.write.format("kafka").options(**job["options"]).save()
    return {}


def _copy(spark: SparkSession, job: dict[str, dict[str, str]]) -> Json:
    frame = spark.readStream.format("kafka").options(**job["options"]).load().select("key", "value")
    writer = frame.writeStream.format("kafka").options(**job["sink"])
    query = writer.option("checkpointLocation", str(job["checkpoint"])).trigger(availableNow=True).start()
    query.awaitTermination()
    return {}


if __name__ == "__main__":
    main()
