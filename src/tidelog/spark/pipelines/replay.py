"""Replays quarantined events after a fix: each event that is good now goes into its table, once.

A replay first writes a plan: the parsed events and their positions, in `<data>/replays/<id>`. Then one commit
removes these rows from the quarantine, and one commit for each table adds the events. Each commit has the
plan's id as its writer, so a commit that is there already is skipped. A replay that was killed is finished by
the next one. No Spark runs for it.
"""

from __future__ import annotations

import json
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.transaction import RemoveAction

from tidelog.spark.pipelines import quarantine
from tidelog.spark.pipelines.collect import source_checks
from tidelog.spark.pipelines.days import DAY_MS
from tidelog.spark.pipelines.event_times import AHEAD, ahead_ms
from tidelog.spark.pipelines.events import LOGS, EventSchema
from tidelog.spark.tables.delta_log import DeltaLog, Snapshot, check_types
from tidelog.spark.tables.errors import TableError
from tidelog.spark.tables.identity import Batch
from tidelog.spark.tables.live_files import live_files, rows_of
from tidelog.spark.tables.store import Store
from tidelog.spark.tables.task_files import Target, TaskFiles, WrittenFile
from tidelog.spark.values import ERROR, Rows, parse

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable
    from deltalake.transaction import AddAction

FOLDER = "replays"
PLAN = "plan.json"
POSITION = ("topic", "partition", "offset", "day")
FLOW_OF_COLLECT = "collect/"
FLOWS = tuple(f"{FLOW_OF_COLLECT}{schema.table}" for schema in LOGS)
AHEAD_MS = ahead_ms({AHEAD.name: AHEAD.default})
SWEEP_SECONDS = 86_400
"""The age at which a folder without a plan is not one of a replay that is about to record it."""


class ReplayConflict(TableError):
    """Rows of a plan are no longer in the quarantine: another replay has taken them."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The quarantined events to replay: by the time of their records, their topic and their error."""

    since_ms: int
    until_ms: int | None = None
    topic: str | None = None
    reason: str | None = None
    """A part of the error."""


@dataclass(slots=True)
class Outcome:
    """The number of events by table, and of events that are still bad by error."""

    good: dict[str, int] = field(default_factory=dict)
    bad: Counter[str] = field(default_factory=Counter)

    @property
    def replayed(self) -> int:
        return sum(self.good.values())


@dataclass(frozen=True, slots=True)
class Plan:
    """A recorded replay: the events of each table wait in a file of the plan's folder."""

    id: str
    created: float
    counts: dict[str, int]

    @property
    def batch(self) -> Batch:
        return Batch(f"replay/{self.id}", 0)


class Replays:
    """The replays on one data folder."""

    def __init__(self, data: str, store: Store | None = None, ahead: int = AHEAD_MS) -> None:
        """`store` is that of the data; by default the environment has its credentials.

        An event may be `ahead` milliseconds ahead of its record.
        """
        self._data = store or Store.of(None, data)
        self._tables = self._data.below("tables")
        self._folder = self._data.below(FOLDER)
        self._ahead = ahead

    def unfinished(self) -> list[Plan]:
        """Recorded plans that have not ended, the oldest first."""
        with self._data.remote_errors():
            return self._unfinished()

    def _unfinished(self) -> list[Plan]:
        found = []
        for name in self._folder.names():
            try:
                with self._folder.below(name).files().open_input_stream(PLAN) as file:
                    found.append(Plan(**json.loads(file.read())))
            except (FileNotFoundError, ValueError):
                continue  # killed before the plan was complete: nothing was changed
        return sorted(found, key=lambda plan: plan.created)

    def run(self, selection: Selection, *, dry_run: bool = False) -> Outcome:
        """Replay the selected events that are good by now; with `dry_run` only count them.

        Finish unfinished replays first. Raises `ReplayConflict` if another replay takes the same events, and
        TableError if a table has other types than its events: nothing is replayed then.
        """
        with self._data.remote_errors():
            return self._run(selection, dry_run)

    def _run(self, selection: Selection, dry_run: bool) -> Outcome:
        if not dry_run:
            for plan in self.unfinished():
                self.finish(plan)
            self._sweep()
        if not self._log(quarantine.TABLE).exists():
            return Outcome()
        plan_id = f"{int(time.time() * 1000):x}-{uuid.uuid4().hex[:8]}"
        try:
            outcome = self._stage(selection, None if dry_run else plan_id)
        except TableError:
            self._forget(plan_id)
            raise
        if not dry_run and outcome.replayed:
            plan = Plan(plan_id, time.time(), outcome.good)
            self._record(plan)
            self.finish(plan)
        return outcome

    # -- the plan

    def _stage(self, selection: Selection, plan_id: str | None) -> Outcome:
        """Parse the selected events, and write the good ones to the plan's folder."""
        from deltalake import Schema

        outcome = Outcome()
        writers: dict[str, pq.ParquetWriter] = {}
        streams: list[pa.NativeFile] = []
        place = self._folder.below(plan_id or "none")
        try:
            for schema in LOGS:
                if selection.topic not in (None, schema.topic):
                    continue
                parser = _Parser(schema, self._ahead)
                log = self._log(schema.table)
                there = log.snapshot() if log.exists() else None
                for rows in self._quarantined(schema, selection):
                    good, errors = parser.sort_out(rows)
                    outcome.bad.update(errors)
                    if not good.num_rows:
                        continue
                    if there is not None:
                        good = _fitted(good, there)
                        check_types(there, Schema.from_arrow(good.schema))
                    outcome.good[schema.table] = outcome.good.get(schema.table, 0) + good.num_rows
                    if plan_id is not None:
                        if schema.table not in writers:
                            if place.is_local:
                                self._data.files().create_dir(f"{FOLDER}/{plan_id}")
                            target = place.files().open_output_stream(f"{schema.table}.parquet")
                            streams.append(target)
                            writers[schema.table] = pq.ParquetWriter(target, good.schema)
                        writers[schema.table].write_table(good)
        finally:
            for writer in writers.values():
                writer.close()
            for stream in streams:
                stream.close()
        return outcome

    def _quarantined(self, schema: EventSchema, selection: Selection) -> Iterator[pa.Table]:
        """The selected rows of one topic, in parts."""
        import pyarrow.dataset as ds

        dataset = self._log(quarantine.TABLE).snapshot().table.to_pyarrow_dataset()
        since = pa.scalar(selection.since_ms * 1000, pa.timestamp("us", "UTC"))
        wanted = ds.field("timestamp") >= since
        if selection.until_ms is not None:
            until = pa.scalar(selection.until_ms * 1000, pa.timestamp("us", "UTC"))
            wanted = wanted & (ds.field("timestamp") < until)
        columns = [*POSITION, "timestamp", "error", "raw"]
        columns += [name for name in ("flow",) if name in dataset.schema.names]
        for batch in dataset.to_batches(columns=columns, filter=wanted):
            rows = pa.Table.from_batches([batch])
            # Files that delta-rs has written have text of a kind that a scan of PyArrow does not compare.
            rows = rows.filter(pc.equal(rows["topic"], schema.topic))
            rows = rows.filter(_of_collect(rows, (f"{FLOW_OF_COLLECT}{schema.table}",)))
            if selection.reason is not None:
                rows = rows.filter(pc.match_substring(rows["error"], selection.reason))
            if rows.num_rows:
                yield rows

    def _record(self, plan: Plan) -> None:
        """Write the plan. From here on the replay takes place, whatever is killed."""
        self._folder.below(plan.id).put(PLAN, json.dumps(asdict(plan)).encode())

    # -- its execution

    def finish(self, plan: Plan) -> None:
        """Carry out a recorded plan, from where it was left. Raises ReplayConflict, and forgets the plan."""
        staged = self._folder.below(plan.id)
        try:
            self._take_out(plan, staged)
        except ReplayConflict:
            self._forget(plan.id)
            raise
        for table in plan.counts:
            self._add(plan, table, staged)
        self._forget(plan.id)

    def _forget(self, name: str) -> None:
        """Delete the files of a plan, the plan itself first."""
        files = self._folder.below(name).files()
        for path in (PLAN, *(f"{schema.table}.parquet" for schema in LOGS)):
            with suppress(FileNotFoundError):
                files.delete_file(path)
        if self._folder.is_local:
            with suppress(FileNotFoundError):
                self._data.files().delete_dir(f"{FOLDER}/{name}")

    def _sweep(self) -> None:
        """Delete the files of replays that were killed before their plan was recorded, or after its end."""
        recorded = {plan.id for plan in self.unfinished()}
        for name in self._folder.names():
            began = name.partition("-")[0]
            if name not in recorded and int(began, 16) < (time.time() - SWEEP_SECONDS) * 1000:
                self._forget(name)

    def _take_out(self, plan: Plan, staged: Store) -> None:
        """Remove the plan's rows from the quarantine, in one commit. It also claims them for this plan."""
        log = self._log(quarantine.TABLE)
        snapshot = log.snapshot()
        if snapshot.has(plan.batch):
            return
        positions = pa.concat_tables(
            _read(staged, table, [f"_{name}" for name in POSITION]) for table in plan.counts
        ).rename_columns(list(POSITION))

        def act(table: DeltaTable, properties: CommitProperties) -> None:
            taking = _Taking(self._tables.below(quarantine.TABLE), table, positions)
            actions = taking.run()
            if taking.taken != positions.num_rows:
                raise ReplayConflict(
                    f"{positions.num_rows - taking.taken:,} of {positions.num_rows:,} rows of replay "
                    f"{plan.id} are no longer in the quarantine: another replay has taken them. Nothing was "
                    "replayed: run the replay again"
                )
            table.create_write_transaction(
                actions, "append", table.schema(), ["day"], commit_properties=properties
            )

        log.attempt(snapshot, plan.batch, act, rewrites=True)

    def _add(self, plan: Plan, table: str, staged: Store) -> None:
        from deltalake import Schema

        log = self._log(table)
        events = _read(staged, table, None)
        events = events.drop_columns([f"_{name}" for name in POSITION])
        if log.exists():  # it may have got its columns since the plan
            events = _fitted(events, log.snapshot())
        snapshot = log.with_columns(Schema.from_arrow(events.schema), ("day",))
        if snapshot.has(plan.batch):
            return
        # delta-rs' own writer panics in a folder with a square bracket in its name.
        files = TaskFiles(Target(self._tables.below(table), snapshot.partition_by))
        for batch in events.to_batches():
            files.take(batch)
        adds = [WrittenFile.of(found).added() for found in files.close()]

        def act(target: DeltaTable, properties: CommitProperties) -> None:
            columns = list(snapshot.partition_by)
            target.create_write_transaction(
                [*adds], "append", target.schema(), columns, commit_properties=properties
            )

        # It removes nothing, but a backfill of these days from the same snapshot would have the events too.
        log.attempt(snapshot, plan.batch, act, rewrites=True)

    def _log(self, table: str) -> DeltaLog:
        place = self._tables.below(table)
        return DeltaLog(place.uri, place.options)


class _Parser:
    """Parses the bytes of one topic as the source does, by the present schema."""

    def __init__(self, schema: EventSchema, ahead: int) -> None:
        self._schema = schema
        options = {
            "valueFormat": "json",
            "valueSchema": schema.spark_schema().json(),
            "columns": "partition",
            **source_checks(schema, ahead),
        }
        self._rows: Rows = parse(options).prepared()

    def sort_out(self, rows: pa.Table) -> tuple[pa.Table, list[str]]:
        """The good events with their day and position, and the errors of the others."""
        rows = rows.combine_chunks()
        columns = {
            "value": _whole(rows["raw"]),
            "partition": _whole(rows["partition"]),
            "timestamp": _whole(rows["timestamp"].cast(pa.timestamp("us", "UTC"))),
        }
        parsed = self._rows.batch(columns, rows.num_rows)
        assert parsed is not None, "without a filter every row is kept"
        fine = pc.is_null(parsed.column(ERROR))
        errors = parsed.column(ERROR).filter(pc.invert(fine)).to_pylist()
        found = pa.Table.from_batches([parsed]).filter(fine).select(list(self._schema.names))
        days = pc.cast(pc.floor(pc.divide(pc.cast(found["ts"], pa.float64()), DAY_MS)), pa.int32())
        found = found.append_column("day", pc.cast(days, pa.date32()))
        for name in POSITION:
            found = found.append_column(f"_{name}", rows[name].filter(fine))
        return found, errors


def _whole(column: pa.ChunkedArray) -> pa.Array:
    found = column.combine_chunks()
    return found.chunk(0) if isinstance(found, pa.ChunkedArray) else found


def _read(staged: Store, table: str, columns: Sequence[str] | None) -> pa.Table:
    return pq.read_table(f"{table}.parquet", columns=columns, filesystem=staged.files())


def _fitted(rows: pa.Table, snapshot: Snapshot) -> pa.Table:
    """The rows with the integers of the table's size, in columns whose values all fit."""
    types = pa.schema(snapshot.table.schema().to_arrow())
    for at, (name, column) in enumerate(zip(rows.column_names, rows.columns, strict=True)):
        wanted = types.field(name).type if name in types.names else column.type
        if wanted != column.type and pa.types.is_integer(wanted) and pa.types.is_integer(column.type):
            with suppress(pa.ArrowInvalid):
                rows = rows.set_column(at, name, column.cast(wanted))
    return rows


def _of_collect(rows: pa.Table, flows: Sequence[str] = FLOWS) -> pa.ChunkedArray:
    """Which quarantined rows are the bytes of events: those of these flows.

    Tables of earlier versions have no column `flow`, and rows of no other flow.
    """
    if "flow" not in rows.column_names:
        return pa.chunked_array([pa.repeat(pa.scalar(True), rows.num_rows)])
    return pc.or_(pc.is_null(rows["flow"]), pc.is_in(rows["flow"], pa.array(flows, pa.string())))


class _Taking:
    """Takes the rows of a plan out of the quarantine: files that have some are written again without them.

    delta-rs would write text of a kind that PyArrow's scans do not compare: no reader could filter by topic.
    """

    def __init__(self, store: Store, table: DeltaTable, positions: pa.Table) -> None:
        self.taken = 0
        self._store, self._table, self._positions = store, table, positions
        self._schema = pa.schema(table.schema().to_arrow())

    def run(self) -> list[AddAction | RemoveAction]:
        """The actions of the commit. `taken` has the number of rows."""
        target = TaskFiles(Target(self._store, ("day",)))
        days, now = set(self._positions["day"].to_pylist()), int(time.time() * 1000)
        removes: list[RemoveAction] = []
        for file in live_files(self._table):
            if dict(file.values)["day"] not in days:
                continue
            rows = pa.Table.from_batches(rows_of(self._store, file, self._schema), self._schema)
            wanted = self._is_planned(rows)
            found = pc.sum(wanted).as_py() or 0
            if found:
                self.taken += found
                removes.append(RemoveAction(file.path, True, now, file.size, file.partition))
                for batch in rows.filter(pc.invert(wanted)).to_batches():
                    target.take(batch)
        return [*(WrittenFile.of(one).added() for one in target.close()), *removes]

    def _is_planned(self, rows: pa.Table) -> pa.Array:
        """For each row whether it is one of the plan, at its position in the log."""
        import numpy as np

        key = list(POSITION)
        there = rows.select(key).cast(self._positions.schema)
        there = there.append_column("_at", pa.array(np.arange(rows.num_rows)))
        planned = self._positions.group_by(key).aggregate([])
        at = there.join(planned, key, join_type="inner")["_at"].to_numpy()
        found = np.zeros(rows.num_rows, bool)
        found[at] = True
        return pc.and_(pa.array(found), _of_collect(rows).combine_chunks())
