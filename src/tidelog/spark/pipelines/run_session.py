"""The Spark session of a run: its settings, its start, and the death of its JVM."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from tidelog.spark.pipelines import state
from tidelog.spark.pipelines.run_options import Options, wanted_partitions
from tidelog.spark.pipelines.spark_log import spark_writes_to
from tidelog.spark.pipelines.state import PipelineStatus
from tidelog.spark.pipelines.state_partitions import DEFAULT as DEFAULT_PARTITIONS
from tidelog.spark.pipelines.state_partitions import SHUFFLE_PARTITIONS
from tidelog.spark.session import submitted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OLD_JVM_SECONDS = 30.0
LOOK_SECONDS = 0.1
TASK_ATTEMPTS = 4  # Spark's default on a cluster

SESSION: dict[str, str] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    # State on disk with incremental checkpoints: it may outgrow memory.
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # Every query starts its own Python process. On a busy machine that takes longer than 15 seconds.
    "spark.python.authenticate.socketTimeout": "120s",
    # A stop waits for work that cannot be interrupted, but not for ever.
    "spark.sql.streaming.stopTimeout": "20000",
    # The options of source and sink contain the clients' credentials.
    "spark.sql.redaction.options.regex": "(?i)url|secret|password|token|jaas|key",
    # The history since the last look at it is needed, and it is looked at before each micro-batch.
    "spark.sql.streaming.numRecentProgressUpdates": "5",
}


class SparkDied(RuntimeError):
    """The JVM of Spark has ended."""


@contextmanager
def spark_alive(data: str) -> Iterator[None]:
    from py4j.protocol import Py4JNetworkError

    try:
        yield
    except (Py4JNetworkError, ConnectionError) as error:
        log = state.status_folder(data) / "spark.log"
        raise SparkDied(
            f"Spark's Java process has ended: killed, or out of memory; see the end of {log}."
            " Start the pipeline again: it continues where it stopped"
        ) from error


def check_spark() -> None:
    """Raise SparkMissing if Spark cannot run here, before anything is touched."""
    from tidelog.spark.session import SparkMissing, why_spark_cannot_run

    missing = why_spark_cannot_run()
    if os.environ.get("SPARK_REMOTE"):
        missing = (
            "pipelines use the JVM of their driver, and SPARK_REMOTE asks for Spark Connect, which has none "
            "here: unset it, and name the cluster with --master"
        )
    if missing is not None:
        raise SparkMissing(missing)


def patient(master: str) -> str:
    """A local master that retries failed tasks, as clusters do.

    A local master would end the query with the first failed task. On a busy machine a task fails when a
    Python process does not start within Spark's constant ten seconds.
    """
    cores = re.fullmatch(r"local(?:\[(\*|\d+)\])?", master)
    return f"local[{cores[1] or 1},{TASK_ATTEMPTS}]" if cores else master


def new_session(options: Options) -> SparkSession:
    from tidelog.spark.session import session, settings

    partitions = wanted_partitions(options) or DEFAULT_PARTITIONS
    conf = {**SESSION, **submitted(), **options.spark_conf, SHUFFLE_PARTITIONS: str(partitions)}
    master = patient(settings(options.master, conf)["spark.master"])
    log = state.status_folder(options.data) / "spark.log"
    with spark_writes_to(log) if options.spark_log else nullcontext():
        spark = session("tidelog pipeline", master, **conf)
    if "spark.log.level" not in options.spark_conf:
        spark.sparkContext.setLogLevel("WARN" if options.spark_log else "OFF")
    return spark


def wait_for_old_jvm(before: PipelineStatus | None) -> None:
    """Wait for the JVM of a killed driver: it lives on for a moment and may still write a micro-batch."""
    here = state.this_process("")
    if before is None or before.state in state.ENDED:
        return
    if (before.host, before.machine) != (here.host, here.machine):
        return
    deadline = time.monotonic() + OLD_JVM_SECONDS
    while state.process_is_java(before.jvm_pid):
        if time.monotonic() >= deadline:
            raise state.AlreadyRunning(
                f"the Java process {before.jvm_pid} of the last run of {before.pipeline} still runs; "
                "end it before you start the pipeline again"
            )
        time.sleep(LOOK_SECONDS)
