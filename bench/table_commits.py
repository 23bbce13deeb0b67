"""What a commit to a table costs after 100 and after 10,000 batches.

    python bench/table_commits.py

The table's log is written down as a stream with maintenance beside it leaves it: a checkpoint, and the
versions that the log keeps. Then batches are committed in the same way as by `Tables.write`, and the CPU time
of opening the snapshot and committing is taken. The table's files do not exist: a commit does not read them.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from pathlib import Path

from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction
from deltalake.schema import PrimitiveType
from deltalake.transaction import AddAction

from tidelog.spark.tables.delta_log import DeltaLog
from tidelog.spark.tables.identity import Batch, batch_app
from tidelog.spark.tables.maintenance import MaintenanceSettings

COUNTS = (100, 10_000)
LIVE_FILES = 40
"""About what compaction leaves of a day; a day has as many files after 100 batches as after 10,000."""
MEASURED = 50
WRITER = "bench/events"
STATS = json.dumps({"numRecords": 100, "minValues": {}, "maxValues": {}, "nullCount": {}})
MOST = 1.5
"""How many times the cost after 100 batches the cost after 10,000 may be."""


def prepared(folder: Path, batches: int) -> str:
    """A table after this many batches: a checkpoint at its newest version, and the versions that are kept."""
    uri = str(folder / f"after_{batches}")
    fields = [Field("id", PrimitiveType("string")), Field("day", PrimitiveType("string"))]
    DeltaTable.create(uri, Schema(fields), partition_by=["day"])
    table = DeltaTable(uri)
    adds = [added(number) for number in range(LIVE_FILES)]
    newest = CommitProperties(app_transactions=[Transaction(batch_app(WRITER), batches - 1)])
    table.create_write_transaction(adds, "append", table.schema(), ["day"], commit_properties=newest)
    DeltaTable(uri).create_checkpoint()
    log = Path(uri) / "_delta_log"
    (log / f"{1:020d}.checkpoint.parquet").rename(log / f"{batches:020d}.checkpoint.parquet")
    held = json.loads((log / "_last_checkpoint").read_text())
    (log / "_last_checkpoint").write_text(json.dumps({**held, "version": batches}))
    settings = MaintenanceSettings()
    kept = settings.log_versions + settings.checkpoint_commits
    text = (log / f"{1:020d}.json").read_text()
    for version in (0, 1):
        (log / f"{version:020d}.json").unlink()
    for version in range(max(0, batches - kept), batches + 1):
        (log / f"{version:020d}.json").write_text(text)
    return uri


def added(number: int) -> AddAction:
    return AddAction(f"day=d/part-{number:06d}.parquet", 1000, {"day": "d"}, 0, True, STATS)


def commit_times(folder: Path) -> dict[int, float]:
    """The median CPU seconds of a commit, up to the next checkpoint, by batches before; in turns."""
    logs = {batches: DeltaLog(prepared(folder, batches)) for batches in COUNTS}
    times: dict[int, list[float]] = {batches: [] for batches in COUNTS}
    for number in range(MEASURED):
        for batches, log in logs.items():
            begun = time.process_time()
            log.commit(log.snapshot(), Batch(WRITER, batches + number), [added(batches + number)])
            times[batches].append(time.process_time() - begun)
    return {batches: statistics.median(found) for batches, found in times.items()}


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        medians = {batches: 1000 * cpu for batches, cpu in commit_times(Path(folder)).items()}
    early, late = (medians[batches] for batches in COUNTS)
    print(f"a commit after {COUNTS[0]:,} batches: {early:.1f} ms of CPU, after {COUNTS[1]:,}: {late:.1f} ms,")
    print(f"{late / early:.2f} times as much (at most {MOST}); load {os.getloadavg()[0]:.0f}")
    return 0 if late <= MOST * early else 1


if __name__ == "__main__":
    raise SystemExit(main())
