"""Delta tables of plain Arrow rows, without Spark: columns `n` and `note`, by `day`."""

from __future__ import annotations

import json
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema
from deltalake.transaction import AddAction, RemoveAction

from tidelog.spark.tables.delta_log import DeltaLog
from tidelog.spark.tables.identity import Batch
from tidelog.spark.tables.statistics import statistics

DAY = "2026-11-15"


def schema(*columns: tuple[str, str]) -> Schema:
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in columns]
    return Schema.from_json(json.dumps({"type": "struct", "fields": fields}))


EVENTS = schema(("n", "long"), ("day", "date"))


def new_log(folder: Path) -> DeltaLog:
    log = DeltaLog(str(folder / "events"))
    log.create(EVENTS, ("day",))
    return log


def add(log: DeltaLog, numbers: Sequence[int], day: str = DAY, *, data_change: bool = True) -> AddAction:
    """Write a file into the table's folder. It belongs to the table when its action is committed."""
    path = Path(log.uri) / f"day={day}" / f"{uuid.uuid4().hex}.parquet"
    path.parent.mkdir(exist_ok=True)
    pq.write_table(pa.table({"n": pa.array(numbers, pa.int64())}), path)
    return AddAction(
        f"day={day}/{path.name}",
        path.stat().st_size,
        {"day": day},
        int(time.time() * 1000),
        data_change,
        statistics(pq.read_metadata(path)),
    )


def remove(action: AddAction, *, data_change: bool = False) -> RemoveAction:
    return RemoveAction(
        action.path, data_change, int(time.time() * 1000), action.size, dict(action.partition_values)
    )


def write(log: DeltaLog, batch: Batch, numbers: Sequence[int]) -> bool:
    """The whole protocol; False if the table had the batch already."""
    snapshot = log.snapshot()
    if snapshot.has(batch):
        return False
    log.commit(snapshot, batch, [add(log, numbers)])
    return True


def rows(log: DeltaLog, version: int | None = None) -> Counter[int]:
    return Counter(DeltaTable(log.uri, version=version).to_pyarrow_table().column("n").to_pylist())
