"""Data folders of the format before Delta, as its writers left them, and a process that migrates."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

STRING = {"type": "string", "nullable": True, "metadata": {}}
LONG = {"type": "long", "nullable": True, "metadata": {}}


class OldFolder:
    """One old table, written step by step."""

    def __init__(self, path: Path, columns: dict[str, dict[str, object]], keys: tuple[str, ...] = ()) -> None:
        self.path = path
        self.keys = keys
        self.version = 0
        self.declare(columns)

    def declare(self, columns: dict[str, dict[str, object]]) -> None:
        held = {**columns, **({"_version": LONG} if self.keys else {})}
        fields = [{"name": name, **kind} for name, kind in held.items()]
        text = {"columns": {"type": "struct", "fields": fields}, "keys": self.keys, "partition_by": ["day"]}
        folder = self.path / "_tidelog" / "schema"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{len(list(folder.iterdir())):04d}-0badcafe.json").write_text(json.dumps(text))

    def batch(
        self,
        writer: str,
        number: int,
        rows: dict[str, list[object]],
        day: str = "2026-11-15",
        *,
        done: bool = True,
    ) -> str:
        """Write a batch of one file; the writer's earlier marker goes. Returns the path of the file."""
        self.version += 1
        table = pa.table(rows)
        if self.keys:
            table = table.append_column("_version", pa.array([self.version] * table.num_rows, pa.int64()))
        stem = f"{writer}.{number:010d}.5f0c2a91"
        path = f"day={day}/{stem}.0000.parquet"
        self.put(path, table)
        markers = self.path / "_tidelog" / "batches"
        markers.mkdir(exist_ok=True)
        if done:
            for old in markers.glob(f"{writer}.*.done"):
                old.unlink()
        held = {"version": self.version, "files": [path]}
        (markers / f"{stem}.{'done' if done else 'moving'}").write_text(json.dumps(held))
        return path

    def put(self, path: str, table: pa.Table) -> None:
        (self.path / path).parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(table, self.path / path)

    def compaction(self, number: str, gone: list[str], come: dict[str, pa.Table], *, decided: bool) -> None:
        """A compaction that died: after it claimed all old files, or overtaken after it claimed the first."""
        hidden = self.path / "_tidelog"
        folder = gone[0].rpartition("/")[0]
        names = [path.rpartition("/")[2] for path in gone]
        aside = hidden / "replaced" / number / folder
        aside.mkdir(parents=True)
        for name in names if decided else names[:1]:
            (self.path / folder / name).rename(aside / name)
        if not decided:
            (self.path / folder / names[-1]).unlink()  # another compaction has merged it
        for name, table in come.items():
            self.put(f"_tidelog/staging/merged.{number}/{folder}/{name}", table)
        (hidden / "compactions").mkdir(exist_ok=True)
        text = json.dumps({"folder": folder, "gone": names, "come": list(come)})
        (hidden / "compactions" / f"{number}.json").write_text(text)


def credits(path: Path) -> list[str]:
    """A plain table with everything that may be unfinished; returns the ids of its rows."""
    old = OldFolder(path, {"id": STRING, "day": STRING})
    paths = [old.batch("collect-credits", n, {"id": [f"a{n}", f"b{n}"]}) for n in range(6)]
    old.declare({"id": STRING, "late": LONG, "day": STRING})
    old.batch("collect-credits", 6, {"id": ["late"], "late": [7]}, "2026-11-16")
    old.batch("my-pipe-flow-d2f5f1f8", 3, {"id": ["other"]}, "__HIVE_DEFAULT_PARTITION__")
    old.batch("collect-credits", 7, {"id": ["never"]}, "2026-11-16", done=False)
    merged = pa.table({"id": ["a0", "b0", "a1", "b1"]})
    old.compaction("decided", paths[:2], {"merged.decided.0000.parquet": merged}, decided=True)
    # Another compaction has claimed a file of this one, and finished.
    old.put("day=2026-11-15/merged.winner.0000.parquet", pa.table({"id": ["a3", "b3"]}))
    wrong = {"merged.late.0000.parquet": pa.table({"id": ["a2", "b2", "a3", "b3"]})}
    old.compaction("late", paths[2:4], wrong, decided=False)
    return [f"{letter}{n}" for n in range(6) for letter in "ab"] + ["late", "other"]


def balances(path: Path) -> dict[object, int]:
    """A keyed table with many versions of its keys; returns the newest value of each key."""
    old = OldFolder(path, {"user": STRING, "balance": LONG, "day": STRING}, keys=("user",))
    newest: dict[object, int] = {}
    for number in range(5):
        users = [None, *(f"u{n}" for n in range(number * 2, number * 2 + 6))]
        rows = {"user": pa.array(users, pa.string()), "balance": [number * 10] * len(users)}
        old.batch("earnings-credits", number, rows, f"2026-11-{10 + number % 2}")
        newest |= dict.fromkeys(users, number * 10)
    return newest


def main(data: str, kill_at: int) -> None:
    """Migrate, and die at a step: before or after a file, a commit or the last marker."""
    from deltalake import DeltaTable

    from tidelog.spark.pipelines.migrate import migrate
    from tidelog.spark.tables import keyed_merge, migration
    from tidelog.spark.tables.delta_log import DeltaLog

    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1
        if steps == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(call: Callable[..., object]) -> Callable[..., object]:
        def stepping(*given: object, **named: object) -> object:
            step()
            found = call(*given, **named)
            step()
            return found

        return stepping

    DeltaLog.create = around(DeltaLog.create)  # type: ignore[assignment,method-assign]
    DeltaTable.create_write_transaction = around(DeltaTable.create_write_transaction)  # type: ignore[assignment,method-assign]
    migration.Migration._copied = around(migration.Migration._copied)  # type: ignore[assignment,method-assign]
    migration.Migration._check = around(migration.Migration._check)  # type: ignore[assignment,method-assign]
    keyed_merge.merge = around(keyed_merge.merge)  # type: ignore[assignment]
    DeltaLog.commit = around(DeltaLog.commit)  # type: ignore[assignment,method-assign]
    migrate(data)
    print(f"steps {steps}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
