"""Computes days of a table again from the log, and replaces them in one commit, beside a running stream.

The table's last batch of the flow says up to which offsets the table has the log. A backfill reads the log up
to there and replaces the files of the chosen days that the table had at that version. Batches that the stream
commits meanwhile come after these offsets and stay as they are. A backfill that is killed has changed nothing
or all of it, and can be run again.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING

from deltalake.transaction import AddAction, RemoveAction

from tidelog.spark.offsets import to_json
from tidelog.spark.options import Offsets
from tidelog.spark.pipelines.declare import (
    Backfilled,
    BackfillRefused,
    Context,
    Flow,
    Pipeline,
    Sink,
    Source,
    Table,
)
from tidelog.spark.pipelines.expectations import WARN
from tidelog.spark.pipelines.query import FORMAT, ISOLATION_LEVEL, Place, source_options
from tidelog.spark.pipelines.registry import UnknownPipeline, check_flows
from tidelog.spark.pipelines.replay import Replays
from tidelog.spark.pipelines.running_batch import checkpointed
from tidelog.spark.tables import Tables
from tidelog.spark.tables.columns import delta_schema
from tidelog.spark.tables.delta_log import DeltaLog, Snapshot, check_types
from tidelog.spark.tables.errors import TableError
from tidelog.spark.tables.identity import Batch
from tidelog.spark.tables.live_files import live_paths
from tidelog.spark.tables.log_writers import writers_of
from tidelog.spark.tables.store import Store
from tidelog.spark.tables.task_files import Target, check_visible, write_files

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from tidelog.spark.pipelines.declare import SettingValue

DAY = timedelta(days=1)
REPAIRS = ("replay/", "backfill/")
"""The writers whose rows come from the same log."""


@dataclass(frozen=True, slots=True)
class Days:
    """Whole days of events in UTC, from `first` up to but not including `end`."""

    first: date
    end: date

    def __post_init__(self) -> None:
        if self.first >= self.end:
            raise BackfillRefused(f"there is no day from {self.first} up to {self.end}")

    @property
    def first_moment(self) -> datetime:
        return datetime(self.first.year, self.first.month, self.first.day, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A table whose days were computed again: the number of their rows before and now."""

    table: str
    before: int
    now: int


class Backfill:
    """Backfills the tables of one flow that get rows by day."""

    def __init__(
        self,
        pipeline: Pipeline,
        flow: str,
        settings: Mapping[str, SettingValue],
        place: Place,
        spark: SparkSession,
    ) -> None:
        flows = pipeline.flows(settings)
        check_flows(pipeline, flows)
        found = {one.name: one for one in flows}
        if flow not in found:
            raise UnknownPipeline(f"{pipeline.name} has no flow {flow}; there are {', '.join(found)}")
        self.flow = found[flow]
        self.writer = f"{pipeline.name}/{flow}"
        self._place, self._spark = place, spark
        self._data = Store.of(spark, place.data)
        self._tables = Store.of(spark, place.tables)
        self._context = Context(
            spark,
            settings,
            Tables(spark, place.tables),
            pipeline.name,
            place.bootstrap,
            place.client,
            writer=self.writer,
            topics=self.flow.source.topics,
        )
        self._checkpoint = place.checkpoint(pipeline.name, flow)

    def run(self, days: Days) -> list[Outcome]:
        """Replace these days in every table of the flow. Raises BackfillRefused or TableError."""
        refuse_state(self.flow, self._has_state())
        sinks = backfilled_sinks(self.flow)
        return [self._replace(sink, days) for sink in sinks]

    def _has_state(self) -> bool:
        from tidelog.spark.files import Files

        return bool(Files(self._spark, self._checkpoint).entries(f"{self._checkpoint}/state"))

    def _replace(self, sink: Sink, days: Days) -> Outcome:
        from pyspark.sql import functions as F

        name = sink.table if isinstance(sink, Backfilled) else sink.name
        log = DeltaLog(self._tables.below(name).uri, self._tables.options)
        if not log.exists():
            raise BackfillRefused(f"there is no table {name} yet: run {self.writer} first")
        snapshot = log.snapshot()
        refuse_others(name, writers_of(self._tables.below(name), snapshot), self.writer)
        end = self._end(snapshot, name)
        rows = self._rows(end, days)
        context = self._context
        if isinstance(sink, Backfilled):
            rows = sink.backfill(rows, context)
            # After the look at the quarantine: a replay that takes events out of it later was refused there.
            refuse_unfinished_replay(Replays(self._place.data, self._data), name)
        elif isinstance(sink, Table) and sink.select is not None:
            rows = sink.select(rows, context)
        wanted = rows.where((F.col("day") >= F.lit(days.first)) & (F.col("day") < F.lit(days.end)))
        refuse_other_columns(snapshot, wanted.schema, self.writer)
        place = self._tables.below(name)
        files = write_files(wanted, Target(place, ("day",)))
        check_visible(name, place, files)
        now = int(time.time() * 1000)
        adds = [one.added() for one in files]
        old = files_of_days(snapshot, days)
        removes = [RemoveAction(one.path, True, now, one.size, {"day": one.day}) for one in old]
        if adds or removes:
            self._commit(log, snapshot, adds, removes)
        return Outcome(name, sum(one.rows for one in old), sum(one.rows for one in files))

    def _commit(
        self,
        log: DeltaLog,
        snapshot: Snapshot,
        adds: Sequence[AddAction],
        removes: Sequence[RemoveAction],
    ) -> None:
        began = snapshot.version
        batch = Batch(f"backfill/{self.writer}/{uuid.uuid4().hex}", 0)

        def act(table: DeltaTable, properties: CommitProperties) -> None:
            refuse_strangers(Snapshot(log.name, table), began, self.writer)
            if not {action.path for action in removes} <= set(live_paths(table)):
                raise TableError(
                    f"files of table {log.name} were compacted during the backfill; nothing was replaced: "
                    "run the backfill again"
                )
            table.create_write_transaction(
                [*adds, *removes], "append", table.schema(), ["day"], commit_properties=properties
            )

        log.attempt(snapshot, batch, act, rewrites=True)

    def _end(self, snapshot: Snapshot, name: str) -> Offsets:
        """The offsets up to which the table has the log."""
        newest = snapshot.last_batch(self.writer)
        if newest < 0:
            raise BackfillRefused(f"table {name} has no batch of {self.writer}: nothing can be replaced")
        end = checkpointed(self._spark, self._checkpoint)(newest)
        if end is None:
            raise BackfillRefused(
                f"the checkpoint of {self.writer} has no offsets of batch {newest}, the newest one in table "
                f"{name}: it is not the checkpoint that wrote the table"
            )
        return end

    def _rows(self, end: Offsets, days: Days) -> DataFrame:
        """The rows of the flow, from the beginning of the log up to these offsets."""
        source = self.flow.source
        if any(name.lower().startswith("starting") for name in source.options):
            raise BackfillRefused(f"{self.writer} does not read its topics from the beginning")
        begin = self._beginning(end, days)
        rows = self._read(source, begin, end)
        context = self._context
        for step in self.flow.steps:
            rows = step(rows, context)
        return rows

    def _read(self, source: Source, begin: Offsets, end: Offsets) -> DataFrame:
        limits = {"startingOffsets": _text(begin), "endingOffsets": _text(end)}
        options = {**source_options(source, self._place), **source.options, **limits}
        return self._spark.read.format(FORMAT).options(**options).load()

    def _beginning(self, end: Offsets, days: Days) -> Offsets:
        """The first offsets of the log. Refuses a log that has lost records of these days."""
        from pyspark.sql import functions as F

        first = first_offsets(self._place, frozenset(self.flow.source.topics))
        begin = {key: first.get(key, 0) for key in end}
        cut = {key: offset for key, offset in begin.items() if 0 < offset < end[key]}
        gone = {key for key, offset in begin.items() if offset >= end[key] > 0}
        oldest: dict[tuple[str, int], datetime] = {}
        if cut:
            some = {key: min(offset + 100, end[key]) for key, offset in cut.items()}
            plain = Source(self.flow.source.topics, metadata=("topic", "partition", "timestamp"))
            rows = self._read(plain, cut, some).groupBy("topic", "partition")
            found = rows.agg(F.unix_millis(F.min("timestamp")).alias("ms")).collect()
            oldest = {
                (row["topic"], row["partition"]): datetime.fromtimestamp(row["ms"] / 1000, UTC)
                for row in found
            }
        late = [key for key in cut if key not in oldest or oldest[key] > days.first_moment - DAY]
        for topic, partition in sorted({*late, *gone}):
            raise BackfillRefused(
                f"the log of {topic}-{partition} no longer reaches back to a day before {days.first}: rows "
                "whose records are deleted would be lost"
            )
        return begin


@dataclass(frozen=True, slots=True)
class DayFile:
    """A file of a table, and its day."""

    path: str
    size: int
    rows: int
    day: str


def files_of_days(snapshot: Snapshot, days: Days) -> list[DayFile]:
    """The files of the table that have rows of these days."""
    from urllib.parse import unquote

    import pyarrow as pa

    actions = pa.table(snapshot.table.get_add_actions(flatten=True)).to_pylist()
    return [
        DayFile(
            unquote(str(one["path"])), one["size_bytes"], one["num_records"] or 0, str(one["partition.day"])
        )
        for one in actions
        if one["partition.day"] is not None and days.first <= _date(one["partition.day"]) < days.end
    ]


def _date(value: object) -> date:
    return value if isinstance(value, date) else date.fromisoformat(str(value))


def refuse_state(flow: Flow, has_state: bool) -> None:
    if has_state or flow.output_mode != "append":
        raise BackfillRefused(
            f"flow {flow.name} keeps state (windows, totals, seen ids) over records: its days cannot be "
            "computed by themselves. Remove its checkpoint and its tables to compute all of it"
        )
    if flow.batch_steps:
        raise BackfillRefused(
            f"flow {flow.name} has batch steps, whose results depend on the micro-batches before: its days "
            "cannot be computed by themselves"
        )
    if any(one.action != WARN for one in flow.expect):
        raise BackfillRefused(f"flow {flow.name} has expectations that quarantine or stop: {_UNCHECKED}")


_UNCHECKED = "a backfill does not check them, so rows would be in the table and in the quarantine"


def backfilled_sinks(flow: Flow) -> list[Sink]:
    """The sinks of a flow that get rows by day. Raises BackfillRefused if there are none, or one cannot."""
    found: list[Sink] = []
    for sink in flow.sinks:
        if isinstance(sink, Backfilled):
            found.append(sink)
        elif isinstance(sink, Table):
            if sink.keys:
                raise BackfillRefused(
                    f"table {sink.name} has keys: a row of a key comes from records of any day, so "
                    "days cannot be computed by themselves. Remove the flow's checkpoint and its tables "
                    "to compute all of it"
                )
            if sink.partition_by != ("day",):
                raise BackfillRefused(f"table {sink.name} is not partitioned by day alone")
            if any(one.action != WARN for one in sink.expect):
                raise BackfillRefused(
                    f"table {sink.name} has expectations that quarantine or stop: {_UNCHECKED}"
                )
            found.append(sink)
    if not found:
        raise BackfillRefused(f"flow {flow.name} writes no table by day")
    return found


def refuse_other_columns(snapshot: Snapshot, schema: StructType, writer: str) -> None:
    """Refuse rows with a column that the table lacks, or has with another type: Delta compares neither."""
    columns = [field.name for field in snapshot.table.schema().fields]
    extra = [column for column in schema.names if column not in columns]
    if extra:
        raise BackfillRefused(
            f"table {snapshot.name} has no column {', '.join(extra)}: run {writer} with the new version "
            "first, which adds it"
        )
    check_types(snapshot, delta_schema(snapshot.name, schema))


def refuse_unfinished_replay(replays: Replays, table: str) -> None:
    """Refuse a table that a replay adds events to later: a backfill adds them as well, from the log."""
    for plan in replays.unfinished():
        if table in plan.counts:
            raise BackfillRefused(
                f"replay {plan.id} has not ended and adds {plan.counts[table]:,} events to table {table}, "
                "which the backfill would add, too. If it was interrupted, the next `tidelog pipeline replay "
                "quarantine` finishes it; then run the backfill again"
            )


def refuse_others(table: str, writers: Collection[str], writer: str) -> None:
    """Refuse a table with rows of other flows: a backfill of this flow would remove them."""
    others = sorted(one for one in writers if one != writer and not one.startswith(REPAIRS))
    if others:
        raise BackfillRefused(
            f"table {table} has rows of {others[0]}, too: a backfill of {writer} would remove them"
        )


def refuse_strangers(snapshot: Snapshot, began: int, writer: str) -> None:
    """Refuse if a replay or a backfill has changed the table since: the rows may be the same ones."""
    for commit in snapshot.commits():
        if commit.version <= began:
            return
        if commit.batch.writer != writer:
            raise TableError(
                f"{commit.batch.writer} has changed table {snapshot.name} during the backfill; nothing was "
                "replaced: run the backfill again"
            )


def first_offsets(place: Place, topics: frozenset[str]) -> Offsets:
    """The first offsets that the log has."""
    from tidelog.protocol.offset_specs import EARLIEST
    from tidelog.spark.cluster import AdminLink, OffsetAdmin

    async def ask(admin: OffsetAdmin) -> Offsets:
        there, _ = await admin.partitions(topics)
        level = place.client.get("isolation.level", ISOLATION_LEVEL)
        found = await admin.list_offsets(dict.fromkeys(there, EARLIEST), isolation_level=level)
        return {key: one.offset for key, one in found.items()}

    link = AdminLink({**place.client, "bootstrap.servers": place.bootstrap})
    try:
        return link.run(ask)
    finally:
        link.close()


def _text(offsets: Offsets) -> str:
    return json.dumps(to_json(offsets))
