"""The declarations of a pipeline: settings, and flows from a source through steps to sinks.

A pipeline is a module with a `PIPELINE`. This module declares flows and does not run them: `runner` turns
each flow into one streaming query with its own checkpoint, and writes every sink so that a replayed
micro-batch changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypedDict, runtime_checkable

from tidelog.spark.pipelines.batch_counts import BatchCounts
from tidelog.spark.pipelines.expectations import Expectation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from tidelog.spark.tables import Tables

SettingValue = str | int | float | bool
"""The type of a setting is the type of its default."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A value that a user may change without editing the module: a threshold, a window, a rate."""

    name: str
    default: SettingValue
    doc: str
    check: Callable[[SettingValue], bool] = field(default=lambda value: True, repr=False)
    allowed: str = ""
    """The values that `check` accepts, in words, for the error message."""


class Written(TypedDict):
    """The identity of a micro-batch for the tables."""

    writer: str
    batch: int
    checkpoint: str
    offsets: str


@dataclass(frozen=True, slots=True)
class Context:
    """The arguments that the functions of a pipeline get beside the rows."""

    spark: SparkSession
    settings: Mapping[str, SettingValue]
    tables: Tables
    pipeline: str = ""
    bootstrap: str = ""
    client: Mapping[str, str] = field(default_factory=dict)
    """Settings of the clients with Kafka's names, including security."""
    writer: str = ""
    """The names of the pipeline and the flow. With the batch's number they identify a write."""
    checkpoint: str = ""
    """The id of the streaming query, which lives in its checkpoint. Empty outside of a micro-batch."""
    offsets: str = ""
    """The range of offsets of the micro-batch, as JSON. Empty outside of one."""
    may_be_replay: bool = True
    """Whether an earlier run may have begun the micro-batch: it is the first one of this run."""
    topics: tuple[str, ...] = ()
    """The topics that the flow reads."""
    counts: BatchCounts = field(default_factory=BatchCounts)
    """The counts of the micro-batch, for sinks that count their rows."""

    def written(self, batch: int) -> Written:
        """The arguments of `tables.write` that say which micro-batch is written."""
        return {
            "writer": self.writer,
            "batch": batch,
            "checkpoint": self.checkpoint,
            "offsets": self.offsets,
        }

    unread: Callable[[int], Collection[tuple[str, int]]] = field(default=lambda batch: (), repr=False)
    """For a batch step: the partitions (topic, number) that have records after a micro-batch."""

    def number(self, name: str) -> int:
        return int(self.settings[name])

    def text(self, name: str) -> str:
        return str(self.settings[name])

    def fraction(self, name: str) -> float:
        return float(self.settings[name])

    def switch(self, name: str) -> bool:
        return bool(self.settings[name])


Step = Callable[["DataFrame", Context], "DataFrame"]
"""A function from rows to rows on the stream. It should use native operators of Spark if possible."""


class BatchStep(Protocol):
    """A function from rows to rows on one micro-batch. It may join tables, and has to be deterministic."""

    def __call__(self, rows: DataFrame, context: Context, batch: int, /) -> DataFrame: ...


@dataclass(frozen=True, slots=True)
class Source:
    """The topics to read. With `schema`, values are JSON and rows have its columns; bad events are left out
    unless `keep_bad`. Without it, rows have the columns of the data source (key, value, topic, ...)."""

    topics: tuple[str, ...]
    schema: StructType | None = None
    keep_bad: bool = False
    """Include bad events: `_error` has the error of the event, `_raw` its bytes."""
    metadata: tuple[str, ...] = ()
    """Columns of the data source to keep beside the event's: topic, partition, offset, timestamp."""
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Table:
    """A table below the tables' root. It appends rows or, with `keys`, keeps the newest row of each key."""

    name: str
    keys: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()
    select: Step | None = None
    """Selects the rows and columns of the flow for this table; None takes all."""
    expect: tuple[Expectation, ...] = ()
    """The expectations of the rows of this table, checked before they are written."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic, written in transactions: the value is the JSON of the columns, the key the column `key`."""

    name: str
    key: str
    select: Step | None = None
    compacted: bool = False
    """Only the newest value of a key matters: the topic is created with cleanup.policy=compact."""


class CustomSink(Protocol):
    """Any other destination. `write` is called for each micro-batch, and again when it is replayed."""

    name: str

    def write(self, rows: DataFrame, context: Context, flow: str, batch: int) -> None: ...


class BackfillRefused(ValueError):
    """Days cannot be computed again without losing or doubling rows. The message says why."""


@runtime_checkable
class Backfilled(Protocol):
    """A sink of its own kind whose table can be backfilled."""

    @property
    def table(self) -> str: ...

    def backfill(self, rows: DataFrame, context: Context) -> DataFrame:
        """The rows of the table, with `day`, for rows of the flow. Raises BackfillRefused."""


Sink = Table | Topic | CustomSink


@dataclass(frozen=True, slots=True)
class Flow:
    """One streaming query. Its checkpoint has the same name: a renamed flow starts from scratch."""

    name: str
    source: Source
    sinks: tuple[Sink, ...]
    steps: tuple[Step, ...] = ()
    batch_steps: tuple[BatchStep, ...] = ()
    output_mode: str = "append"
    expect: tuple[Expectation, ...] = ()
    """The expectations of the rows of a micro-batch after all steps, checked once for all sinks."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    name: str
    title: str
    """One line for `tidelog pipeline list`."""
    doc: str
    """What it does and how, for `tidelog pipeline describe`."""
    flows: Callable[[Mapping[str, SettingValue]], tuple[Flow, ...]]
    settings: tuple[Setting, ...] = ()
