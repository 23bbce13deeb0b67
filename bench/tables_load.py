"""One part of the figures of tables and pipelines, as its own process. Prints its measurement as JSON.

    PYTHONPATH=TREE/src python bench/tables_load.py PART HOST:PORT FOLDER --size N

The same program measures the tables of today and those of the commit before Delta: it makes only calls that
both have. CPU time is that of Python, the JVM and its Python processes. Parts that run twice count the second
run, for which the JVM has compiled its code.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import machine

from tidelog.cli import demo
from tidelog.spark.pipelines import runner
from tidelog.spark.session import session
from tidelog.spark.tables import Tables

CHANGED = 50
"""One of so many rows of the keyed table changes in a batch."""
MERGES = 3
SMALL_BATCH = 1_000
RING_BATCHES = 20
CONF = {
    "spark.driver.memory": "2g",
    "spark.ui.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.maxResultSize": "0",
}


def cpu() -> float:
    """The CPU time of this process and all its descendants, ended ones included."""
    tick = os.sysconf("SC_CLK_TCK")
    total = 0.0
    for pid in machine.process_tree(os.getpid()):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += sum(int(field) for field in fields[11:15]) / tick
    return total


def driver_peak() -> float:
    """The most memory of this Python process since `forget_peak`, in megabytes."""
    line = next(text for text in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in text)
    return int(line.split()[1]) * 1024 / machine.MEGABYTE


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


class Measured:
    """CPU and elapsed seconds of a `with` block, and the peak of the driver's memory in it."""

    def __enter__(self) -> Measured:
        forget_peak()
        self._begun = time.perf_counter(), cpu()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._begun[0]
        self.cpu = cpu() - self._begun[1]
        self.peak = driver_peak()

    def figures(self, **others: float) -> dict[str, float]:
        return {"seconds": self.seconds, "cpu": self.cpu, "peak": self.peak, **others}


class Load:
    def __init__(self, bootstrap: str, folder: Path, size: int) -> None:
        self.bootstrap = bootstrap
        self.folder = folder
        self.size = size

    def pipelines(
        self,
        names: Sequence[str],
        data: str,
        most: int = 1_000_000,
        conf: Mapping[str, str] | None = None,
    ) -> Measured:
        """A run to the end of the log in a session of its own, on an empty data folder."""
        options = runner.Options(
            self.bootstrap,
            str(self.folder / data),
            "local[2]",
            "available-now",
            spark_conf={**CONF, "spark.local.dir": str(self.folder / "local"), **(conf or {})},
            max_offsets_per_trigger=most,
        )
        with Measured() as measured, runner.start(names, options) as running:
            rows = running.wait().rows
        print(f"{', '.join(names)}: {rows:,} rows in {measured.seconds:.1f} s", file=sys.stderr, flush=True)
        return measured

    # Parts

    def collect(self) -> dict[str, float]:
        self.pipelines(["collect"], "warm")
        return self.pipelines(["collect"], "data").figures()

    def small(self) -> dict[str, float]:
        """Micro-batches of 1,000 rows, of one flow of `collect`."""
        self.pipelines(["collect"], "warm", SMALL_BATCH)
        return self.pipelines(["collect"], "data", SMALL_BATCH).figures()

    def rings(self) -> dict[str, float]:
        return self.pipelines(["invite-watch"], "data", -(-self.size // RING_BATCHES)).figures()

    def five(self) -> dict[str, float]:
        """All pipelines with the settings that `make run` gives Spark, and with the start of Spark."""
        # The demo of the commit before Delta had none of its own.
        return self.pipelines(["all"], "data", conf=getattr(demo, "SHORT_RUN", {})).figures()

    def merge(self) -> dict[str, float]:
        """A batch that changes one in 50 rows of a keyed table, and two looks at the whole table."""
        spark = session("bench", "local[2]", **CONF, **{"spark.local.dir": str(self.folder / "local")})
        spark.sparkContext.setLogLevel("ERROR")
        tables = Tables(spark, str(self.folder / "tables"))

        def rows(count: int, step: int, value: int) -> object:
            user = f"concat('user-', lpad(cast(id * {step} as string), 9, '0')) as user_id"
            time_of = "timestamp_millis(1767268800000 + id) as last_event_at"
            return spark.range(0, count, 1, 2).selectExpr(user, f"id + {value} as balance", time_of)

        def write(batch: int, found: object) -> None:
            tables.write(found, "balances", writer="bench", batch=batch, keys=("user_id",))  # type: ignore[arg-type]

        write(0, rows(self.size, 1, 0))
        merges: list[Measured] = []
        for batch in range(1, MERGES + 1):
            with Measured() as measured:
                write(batch, rows(self.size // CHANGED, CHANGED, batch))
            merges.append(measured)
        looks: list[Measured] = []
        for _ in range(2):
            with Measured() as read:
                found = tables.read("balances").selectExpr("count(*)", "sum(balance)").collect()
            looks.append(read)
        assert found[0][0] == self.size, f"{found[0][0]} rows of {self.size}"
        spark.stop()
        return {
            "seconds": statistics.median(each.seconds for each in merges),
            "cpu": statistics.median(each.cpu for each in merges),
            "peak": max(each.peak for each in merges),
            "first read": looks[0].cpu,
            "read": looks[1].cpu,
        }


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=["collect", "small", "rings", "five", "merge"])
    parser.add_argument("bootstrap")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", type=int, required=True)
    options = parser.parse_args()
    load = Load(options.bootstrap, options.folder, options.size)
    parts: dict[str, Callable[[], dict[str, float]]] = {
        "collect": load.collect,
        "small": load.small,
        "rings": load.rings,
        "five": load.five,
        "merge": load.merge,
    }
    print(json.dumps(parts[options.part]()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
