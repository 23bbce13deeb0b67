"""The measurements of the Spark figures, as its own process. Prints the rounds of each part as JSON.

    python bench/spark_load.py HOST:PORT FOLDER --rows N --rounds N --events N --batches N [--connector JARS]

Rates are rows per second of elapsed time, at local[2] and with the settings of our session. Before the rounds
that count, each part runs until the JVM has compiled it. With JARS, a folder, Spark's own Kafka connector
reads and writes the same.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from tidelog import Admin, NewTopic, Producer
from tidelog.spark.pipelines.events import LOGS
from tidelog.spark.pipelines.generator import Plan
from tidelog.spark.pipelines.generator_writer import write as write_events
from tidelog.spark.pipelines.runner import run as run_pipelines
from tidelog.spark.session import session

PARTITIONS = 4
VALUE_BYTES = 100
WARM = 2
READ_PARTS = 2  # reading is that much faster, so it reads that much more
NOON = 1_767_268_800_000


class Load:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.bootstrap: str = options.bootstrap
        self.folder = Path(options.folder)
        self.admin = Admin(bootstrap_servers=self.bootstrap)
        self.spark = self.session()

    def session(self) -> SparkSession:
        conf = {
            "spark.driver.memory": "1g",
            "spark.local.dir": str(self.folder / "local"),
            "spark.sql.warehouse.dir": str(self.folder / "warehouse"),
            "spark.ui.enabled": "false",
        }
        if self.options.connector:
            jars = sorted(str(path) for path in Path(self.options.connector).glob("*.jar"))
            conf["spark.jars"] = ",".join(jars)
        spark = session("bench", "local[2]", **conf)
        spark.sparkContext.setLogLevel("ERROR")
        return spark

    def topic(self, name: str) -> str:
        unique = f"{name}-{time.time_ns() // 1000:x}"
        self.admin.create_topics([NewTopic(unique, num_partitions=PARTITIONS)])
        return unique

    def rounds(self, rows: int, work: Callable[[], None]) -> list[float]:
        rates = []
        for number in range(WARM + self.options.rounds):
            begun = time.perf_counter()
            work()
            if number >= WARM:
                rates.append(rows / (time.perf_counter() - begun))
        return rates

    # Parts

    def values(self) -> DataFrame:
        """Rows of 100 bytes that are generated during the write."""
        rows = self.spark.range(0, self.options.rows, 1, 2)
        return rows.selectExpr(f"cast(lpad(cast(id as string), {VALUE_BYTES}, 'x') as binary) as value")

    def save(self, kind: str, topic: str, **options: str) -> None:
        writer = self.values().write.format(kind).mode("append").option("topic", topic)
        writer.option("kafka.bootstrap.servers", self.bootstrap).options(**options).save()

    def read(self, kind: str, topic: str) -> list[float]:
        def work() -> None:
            reader = self.spark.read.format(kind).option("kafka.bootstrap.servers", self.bootstrap)
            frame = reader.option("subscribe", topic).option("startingOffsets", "earliest").load()
            frame.write.format("noop").mode("overwrite").save()

        return self.rounds(READ_PARTS * self.options.rows, work)

    def write(self, kind: str, **options: str) -> list[float]:
        topic = self.topic("written")
        rates = self.rounds(self.options.rows, lambda: self.save(kind, topic, **options))
        self.admin.delete_topics([topic])
        return rates

    def floor(self) -> list[float]:
        """Milliseconds of micro-batches of one row, each begun when the previous one has ended."""
        topic = self.topic("floor")
        reader = self.spark.readStream.format("tidelog").option("kafka.bootstrap.servers", self.bootstrap)
        frame = reader.option("subscribe", topic).option("startingOffsets", "earliest").load()
        writer = frame.writeStream.format("noop").option("checkpointLocation", str(self.folder / topic))
        query = writer.start()
        taken: list[float] = []
        try:
            with Producer(bootstrap_servers=self.bootstrap, linger_ms=0) as producer:
                for number in range(15 + self.options.batches):
                    producer.send(topic, b"row", partition=0).result(30)
                    query.processAllAvailable()
                    last = query.lastProgress
                    if number >= 15 and last is not None:
                        taken.append(float(self.batch_ms(query.recentProgress)))
        finally:
            query.stop()
        return taken

    @staticmethod
    def batch_ms(progress: object) -> int:
        """The duration of the last micro-batch that had a row."""
        assert isinstance(progress, list)
        found = [each for each in progress if each["numInputRows"] > 0]
        return int(found[-1]["durationMs"]["triggerExecution"])

    def collect(self) -> list[float]:
        """Events per second through `collect`, from the logs to the tables, with the start of the queries."""
        rates = []
        for number in range(1 + min(2, self.options.rounds)):
            events = self.options.events if number else self.options.events // 4
            plan = Plan(events=events, start=NOON, seed=number, broken=0.001)
            write_events(plan, self.bootstrap, partitions=PARTITIONS)
            begun = time.perf_counter()
            # The checkpoint continues where the last round ended.
            outcome = run_pipelines(
                "collect",
                bootstrap=self.bootstrap,
                data=str(self.folder / "pipeline"),
                trigger="available-now",
                spark=self.spark,
            )
            taken = time.perf_counter() - begun
            if number:
                rates.append(outcome.rows / taken)
        self.admin.delete_topics([schema.topic for schema in LOGS])
        return rates


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("bootstrap")
    parser.add_argument("folder")
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--events", type=int, default=5_000_000)
    parser.add_argument("--batches", type=int, default=50)
    parser.add_argument("--connector", metavar="JARS")
    parser.add_argument("--only", action="append")
    options = parser.parse_args()
    load = Load(options)
    parts: dict[str, Callable[[], list[float]]] = {}
    source = load.topic("read")
    parts["floor"] = load.floor
    parts["write"] = lambda: load.write("tidelog")
    parts["exactly once"] = lambda: load.write("tidelog", exactlyOnce="true")
    parts["read"] = lambda: load.read("tidelog", source)
    parts["collect"] = load.collect
    if options.connector:
        parts["connector read"] = lambda: load.read("kafka", source)
        parts["connector write"] = lambda: load.write("kafka")
    for _ in range(READ_PARTS):
        load.save("tidelog", source)
    found: dict[str, list[float]] = {}
    for name, part in parts.items():
        if options.only and name not in options.only:
            continue
        found[name] = part()
        print(f"{name}: {statistics.median(found[name]):,.0f}", file=sys.stderr, flush=True)
    load.spark.stop()
    load.admin.close()
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
