"""`python -m tests.spark.killed PLAN pipeline run ...`: the tool, killed with all its processes as planned.

PLAN is JSON: `write` counts the calls that write a sink (the one named `sink`, those of the pipeline named
`pipeline`, or any), `when` is before, after or during it (`seconds` after its beginning); `plain` plants a
fault: topics are written without transactions. Null kills nobody.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING

from tidelog.spark.pipelines import query
from tidelog.spark.pipelines.declare import Context, Sink, Topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Killer:
    """Stands in front of `write_sink`. All of the group is killed: no part gets an instruction more."""

    def __init__(self, plan: dict[str, object]) -> None:
        self._plan = plan
        self._write = query.write_sink
        self._left = plan["write"]
        self._lock = threading.Lock()

    def __call__(
        self, sink: Sink, rows: DataFrame, context: Context, name: str, batch: int, place: query.Place
    ) -> None:
        with self._lock:
            assert isinstance(self._left, int)
            meant = self._plan.get("sink") in (None, sink.name)
            meant = meant and self._plan.get("pipeline") in (None, context.pipeline)
            self._left -= meant
            hit = self._left == 0 and meant
        when = self._plan["when"] if hit else None
        if when == "before":
            kill()
        if when == "during":
            threading.Timer(float(str(self._plan["seconds"])), kill).start()
        if self._plan.get("plain") and isinstance(sink, Topic):
            plainly(sink, rows, context, place)
        else:
            self._write(sink, rows, context, name, batch, place)
        if when == "after":
            kill()


def plainly(sink: Topic, rows: DataFrame, context: Context, place: query.Place) -> None:
    if sink.select is not None:
        rows = sink.select(rows, context)
    records = query.as_records(rows, sink.key).write.format(query.FORMAT)
    records.options(**place.options()).option("topic", sink.name).mode("append").save()


def kill() -> None:
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    from tidelog.cli.main import main as tool

    plan = json.loads(sys.argv[1])
    if plan is not None:
        query.write_sink = Killer(plan)
    tool(sys.argv[2:])


if __name__ == "__main__":
    main()
