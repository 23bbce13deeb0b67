"""A pipeline whose tasks make trouble: `tidelog pipeline run tests/spark/troubled.py`.

Each file in the folder of the setting `trouble` is named by a micro-batch and is done once, by the first task
behind the shuffle that finds it: `executor` kills the task's executor, `worker` its worker as well, `slow`
waits until the task is killed.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tidelog.spark.pipelines.declare import (
    Context,
    Flow,
    Pipeline,
    Setting,
    SettingValue,
    Source,
    Table,
    Topic,
)

if TYPE_CHECKING:
    import pandas
    from pyspark.sql import DataFrame

SLOW_SECONDS = 120.0


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def executor() -> int:
    """The executor of this Python process, which its daemon may be between."""
    pid = os.getppid()
    while b"CoarseGrainedExecutorBackend" not in Path(f"/proc/{pid}/cmdline").read_bytes():
        pid = parent(pid)
    return pid


def make(trouble: str) -> None:
    if trouble == "slow":
        time.sleep(SLOW_SECONDS)
        return
    pids = [executor()]
    if trouble == "worker":
        pids.insert(0, parent(pids[0]))
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def find(folder: str, batch: int) -> str | None:
    """The trouble of a micro-batch, for one of all its tasks."""
    for name in os.listdir(folder):
        if not name.startswith(f"{batch}-"):
            continue
        try:
            os.rename(f"{folder}/{name}", f"{folder}-done/{name}")
        except FileNotFoundError:
            continue
        return name.partition("-")[2]
    return None


def once(rows: DataFrame, context: Context) -> DataFrame:
    return rows.selectExpr("cast(value as string) as word").dropDuplicates(["word"])


def troubled(rows: DataFrame, context: Context, batch: int) -> DataFrame:
    folder = context.text("trouble")

    def each(frames: Iterator[pandas.DataFrame]) -> Iterator[pandas.DataFrame]:
        for frame in frames:
            trouble = find(folder, batch)
            if trouble is not None:
                make(trouble)
            yield frame

    return rows.mapInPandas(each, rows.schema)


def flows(settings: Mapping[str, SettingValue]) -> tuple[Flow, ...]:
    sinks = (Table("words"), Topic("words-once", key="word"))
    return (Flow("seen", Source(("words",)), sinks, steps=(once,), batch_steps=(troubled,)),)


PIPELINE = Pipeline(
    "troubled", "Words, once each.", "Words, once each.", flows, (Setting("trouble", "", "A folder."),)
)
