"""What the pipeline collect has to make of a log: every record in one table, and nothing else in any."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tests.spark.readers import Expected as Rows
from tests.spark.readers import readers, table_faults
from tests.support.wait import eventually
from tidelog import Consumer
from tidelog.spark.pipelines.collect import QUARANTINE
from tidelog.spark.pipelines.events import EVENTS, LOGS, EventSchema
from tidelog.spark.pipelines.generator import Plan
from tidelog.spark.pipelines.generator_writer import Writer

if TYPE_CHECKING:
    from tidelog.spark.tables import Tables

START_SECONDS = 300.0
START = 1_794_600_000_000
AHEAD_MS = 60 * 60_000
Good = tuple[object, ...]
Bad = tuple[str, int, int, bytes | None]


@dataclass(slots=True)
class Expected:
    """The rows that belong into the tables: good ones with their day, bad ones with place and bytes."""

    good: dict[str, Counter[Good]] = field(default_factory=dict)
    bad: Counter[Bad] = field(default_factory=Counter)

    def ids(self) -> set[str]:
        return {str(row[0]) for rows in self.good.values() for row in rows}


def generate(bootstrap: str, events: int, seed: int, *, start: int = START) -> None:
    """Events of two days, late, out of order, broken and sent twice in parts."""
    odd = {"late": 0.05, "out_of_order": 0.1, "broken": 0.02, "duplicates": 0.02}
    plan = Plan(events, start, seed, 86_400_000, chunk=5_000, **odd)
    writer = Writer(plan, {"bootstrap.servers": bootstrap})
    writer.create_topics(2)
    writer.run()


def example(schema: EventSchema) -> dict[str, object]:
    """One good event."""
    values = {"STRING": "x", "LONG": 5, "INT": 1, "BOOLEAN": True}
    return {**{field.name: values[field.kind.name] for field in schema.fields}, "version": 1, "ts": START}


def spoilt(schema: EventSchema) -> list[bytes | None]:
    """An event that is bad in every way that there is."""
    good = example(schema)

    def but(**fields: object) -> bytes:
        return json.dumps({**good, **fields}).encode()

    text = json.dumps(good).encode()
    return [
        None,
        b"",
        b"null",
        b"[1, 2]",
        b"7",
        b"not json at all",
        text[: len(text) // 2],
        text + b"}",
        b"\x00\xff\xfe",
        text.replace(b'"x"', b'"\xff\xfe"', 1),
        text.replace(b'"version"', b'"ts"', 1),
        but(version=100),
        but(version=0),
        but(version="1"),
        but(ts=-1),
        but(ts=1 << 62),
        but(ts=1.5),
        but(ts=1 << 70),
        but(ts=None),
        but(ts=START + 61 * 60_000),
        but(ts=4_070_908_800_000),
        but(user_id=None),
        but(user_id=17),
        but(event_id={}),
        json.dumps({name: value for name, value in good.items() if name != "device_id"}).encode(),
    ]


def unusual(schema: EventSchema) -> list[bytes]:
    """Good events, however odd."""
    good = example(schema)
    return [
        json.dumps({**good, "event_id": "later", "version": 2, "more": {"a": [1, None]}}).encode(),
        json.dumps({**good, "event_id": "ünïcode \u0000 😀", "ip": ""}, ensure_ascii=False).encode(),
        json.dumps({**good, "event_id": "old", "ts": 0}, indent=2).encode(),
        json.dumps({**good, "event_id": "end of day", "ts": START // 86_400_000 * 86_400_000 - 1}).encode(),
    ]


def expected(bootstrap: str) -> Expected:
    """Read off the log itself, by the rules of the events' schemas."""
    found = Expected({schema.table: Counter() for schema in LOGS})
    with Consumer(bootstrap_servers=bootstrap, isolation_level="read_committed") as consumer:
        keys = [(schema.topic, partition) for schema in LOGS for partition in (0, 1)]
        consumer.assign(keys)
        consumer.seek_to_end(*keys)
        ends = {key: consumer.position(key) for key in keys}
        consumer.seek_to_beginning(*keys)
        while any(consumer.position(key) < ends[key] for key in keys):
            for record in consumer.poll(timeout=10):
                schema = EVENTS[record.topic]
                row = good_row(schema, record.value, record.timestamp)
                if row is None:
                    found.bad[record.topic, record.partition, record.offset, record.value] += 1
                else:
                    found.good[schema.table][row] += 1
    return found


def good_row(schema: EventSchema, value: bytes | None, at: int) -> Good | None:
    """The row of a good event, None for a bad one. `at` is the time of its record."""
    event = load(value)
    if event is None or schema.check(event) is not None or event["ts"] > at + AHEAD_MS:
        return None
    day = datetime.fromtimestamp(event["ts"] / 1000, UTC).date()
    return (*(event.get(name) for name in schema.names), day)


def load(value: bytes | None) -> dict[str, Any] | None:
    """The JSON object in a value; None if there is none, or one with a field twice."""
    try:
        event = json.loads((value or b"").decode(), object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) else None


def _without_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    if len({name for name, _ in pairs}) < len(pairs):
        raise ValueError("a field is there twice")
    return dict(pairs)


def assert_collected(tables: Tables, wanted: Expected) -> None:
    """Every table has exactly the rows that it should have, whoever reads it."""
    expected = {
        schema.table: Rows.of((*schema.names, "day"), wanted.good[schema.table].elements()) for schema in LOGS
    }
    expected[QUARANTINE] = Rows.of(("topic", "partition", "offset", "raw"), wanted.bad.elements())
    assert table_faults(readers(tables.store.uri, tables.spark), expected) == []
    rows = tables.read(QUARANTINE).toArrow().to_pylist() if tables.exists(QUARANTINE) else []
    for row in rows:
        assert row["error"], row
        assert row["day"] == row["timestamp"].astimezone(UTC).date(), row
        assert isinstance(row["day"], date)


class PipelineProcess:
    """`tidelog pipeline run collect` as a process, killed at the end of the `with` block."""

    def __init__(self, bootstrap: str, data: Path, settings: Mapping[str, object]) -> None:
        self._data = data
        self._log = data.with_suffix(".log")
        self._before = self._batches()
        self._command = [
            *(sys.executable, "-m", "tidelog", "pipeline", "run", "collect", "--bootstrap-server", bootstrap),
            *("--data", str(data), "--trigger", "1 second", "--max-offsets-per-trigger", "300"),
            *("--master", "local[2]", "--spark-conf", "spark.driver.memory=1g"),
            *(text for name, value in settings.items() for text in ("--set", f"{name}={value}")),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        return self

    def wait_for_a_batch(self) -> None:
        eventually(self._has_written, "a batch is written", START_SECONDS)

    def wait_for_files(self, more: int) -> None:
        """Wait until so many files more are written: of tables, of their batches, of Spark's checkpoints."""
        before, seen = self._files(), set[Path]()

        def written() -> bool:
            self._check_running()
            seen.update(self._files())  # some do not stay
            return len(seen - before) >= more

        eventually(written, f"{more} files are written", START_SECONDS)

    def _files(self) -> set[Path]:
        return {Path(folder, name) for folder, _, names in os.walk(self._data) for name in names}

    def _has_written(self) -> bool:
        self._check_running()
        return bool(self._batches() - self._before)

    def _check_running(self) -> None:
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text()[-3000:]

    def _batches(self) -> set[str]:
        commits = self._data.glob("tables/*/_delta_log/*.json")
        return {
            f"{path.parts[-3]}/{path.name}" for path in commits if path.stem.strip("0")
        }  # 0 creates a table

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)  # the driver, and Java with it
        self._process.wait()
