"""A streaming query from one topic to another, as a program of its own that may be killed at any moment.

    python -m tests.spark.killed_query MASTER BOOTSTRAP SOURCE TARGET CHECKPOINT MIN_PARTITIONS ROWS_PER_BATCH

It ends when everything in the source is written, and prints a line for each batch that Spark calls done.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from tests.spark.conftest import spark_settings
from tidelog.spark.session import session


def main(
    master: str, bootstrap: str, source: str, target: str, checkpoint: str, partitions: str, rows: str
) -> int:
    folder = Path(checkpoint).parent / "spark"
    settings = {**spark_settings(folder), "spark.python.worker.faulthandler.enabled": "false"}
    spark = session("killed", master, **settings)
    spark.sparkContext.setLogLevel("ERROR")
    print("session", flush=True)
    reader = spark.readStream.format("tidelog").option("kafka.bootstrap.servers", bootstrap)
    frame = (
        reader.option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", rows)
        .option("minPartitions", partitions)
        .load()
        .selectExpr("value")
    )
    writer = frame.writeStream.format("tidelog").option("kafka.bootstrap.servers", bootstrap)
    query = (
        writer.option("topic", target)
        .option("exactlyOnce", "true")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    last = -1
    while query.isActive:
        time.sleep(0.02)
        progress = query.lastProgress
        if progress is not None and progress["batchId"] != last:
            last = progress["batchId"]
            print(f"batch {last}", flush=True)
    query.awaitTermination()  # raises what ended it
    print("done", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
