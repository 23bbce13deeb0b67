"""The source, the sink and a pipeline on Spark at local[2], with the broker on the same cores.

One process runs Spark, another the broker. Rates use elapsed time, since both share the two cores.
SPARK_KAFKA_JARS, a folder, adds the figures of Spark's own Kafka connector on the same broker.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from load import LoadFailed
from report import Figure
from suite import Bench, Skipped
from targets import figure

PROGRAM = Path(__file__).parent / "spark_load.py"
ROWS = 4_000_000
EVENTS = 5_000_000
BATCHES = 50
LIMIT = 1800.0
KEYS = {
    "read": "spark read",
    "write": "spark write",
    "exactly once": "spark exactly once",
    "floor": "spark floor",
    "collect": "spark collect",
    "connector read": "spark connector read",
    "connector write": "spark connector write",
}


def spark(bench: Bench) -> list[Figure]:
    """Rows read and written, the shortest micro-batch, and `collect` from the logs to Parquet."""
    try:
        from tidelog.spark.session import why_spark_cannot_run
    except ImportError as error:
        raise Skipped(f"Spark is not installed: {error}") from None
    missing = why_spark_cannot_run()
    if missing is not None:
        raise Skipped(missing)
    folder = Path(tempfile.mkdtemp(prefix="tidelog-spark-", dir=bench.source.folder))
    try:
        with bench.source.broker() as broker:
            found = _measured(bench, f"{broker.host}:{broker.port}", folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return [figure(KEYS[part], rounds) for part, rounds in found.items()]


def _measured(bench: Bench, bootstrap: str, folder: Path) -> dict[str, list[float]]:
    words = [sys.executable, str(PROGRAM), bootstrap, str(folder)]
    words += ["--rows", str(bench.scaled(ROWS)), "--rounds", str(min(3, bench.rounds))]
    words += ["--events", str(bench.scaled(EVENTS)), "--batches", str(bench.scaled(BATCHES))]
    jars = os.environ.get("SPARK_KAFKA_JARS")
    if jars:
        words += ["--connector", jars]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, timeout=LIMIT, check=False)
    if done.returncode:
        raise LoadFailed(f"Spark ended with status {done.returncode}")
    found: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return found
