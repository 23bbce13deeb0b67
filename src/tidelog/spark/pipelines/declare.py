"""What a pipeline is made of: settings, and flows from a source through steps to sinks.

A pipeline is a module with a `PIPELINE`. Its flows are declared, not run, here: `runner` turns each into one
streaming query with a checkpoint of its own, and writes every sink of a micro-batch so that a replayed
micro-batch changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from tidelog.spark.tables import Tables

SettingValue = str | int | float | bool
"""The type of a setting is the type of its default."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A threshold, a window, a rate: what a user may change without touching the module."""

    name: str
    default: SettingValue
    doc: str
    check: Callable[[SettingValue], bool] = field(default=lambda value: True, repr=False)
    allowed: str = ""
    """What `check` wants, in words, for the error."""


@dataclass(frozen=True, slots=True)
class Context:
    """What the functions of a pipeline are given beside the rows."""

    spark: SparkSession
    settings: Mapping[str, SettingValue]
    tables: Tables
    pipeline: str = ""
    bootstrap: str = ""
    client: Mapping[str, str] = field(default_factory=dict)
    """Settings of the clients, security among them, under Kafka's names."""
    writer: str = ""
    """Names the pipeline, the flow and its checkpoint: with the batch's number, what was written when."""

    def number(self, name: str) -> int:
        return int(self.settings[name])

    def text(self, name: str) -> str:
        return str(self.settings[name])

    def fraction(self, name: str) -> float:
        return float(self.settings[name])

    def switch(self, name: str) -> bool:
        return bool(self.settings[name])


Step = Callable[["DataFrame", Context], "DataFrame"]
"""Rows in, rows out, on the stream: native operators of Spark where they will do."""


class BatchStep(Protocol):
    """Rows in, rows out, on one micro-batch: may join tables; the same batch gives the same rows."""

    def __call__(self, rows: DataFrame, context: Context, batch: int, /) -> DataFrame: ...


@dataclass(frozen=True, slots=True)
class Source:
    """The topics to read. With `schema`, values are JSON and rows are its columns, bad ones left out
    unless `keep_bad`; without, rows are those of the data source (key, value, topic, ...)."""

    topics: tuple[str, ...]
    schema: StructType | None = None
    keep_bad: bool = False
    """Bad events come, too: `_error` says what is wrong with one, `_raw` has its bytes."""
    metadata: tuple[str, ...] = ()
    """Columns of the data source to keep beside the event's: topic, partition, offset, timestamp."""
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Table:
    """A table below the tables' root: rows are added, or, with `keys`, the newest row of a key stands."""

    name: str
    keys: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()
    select: Step | None = None
    """The rows and columns of the flow that go here; all of them where it is None."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic, written in transactions: JSON of the columns as value, `key` as key."""

    name: str
    key: str
    select: Step | None = None
    compacted: bool = False
    """Only the newest value of a key is of interest: the topic is made with cleanup.policy=compact."""


class CustomSink(Protocol):
    """Any other place. `write` is called for each micro-batch and may be called again with the same one."""

    name: str

    def write(self, rows: DataFrame, context: Context, flow: str, batch: int) -> None: ...


Sink = Table | Topic | CustomSink


@dataclass(frozen=True, slots=True)
class Flow:
    """One streaming query. Its name is that of its checkpoint: a renamed flow begins anew."""

    name: str
    source: Source
    sinks: tuple[Sink, ...]
    steps: tuple[Step, ...] = ()
    batch_steps: tuple[BatchStep, ...] = ()
    output_mode: str = "append"


@dataclass(frozen=True, slots=True)
class Pipeline:
    name: str
    title: str
    """One line for `tidelog pipeline list`."""
    doc: str
    """What it does and how, for `tidelog pipeline describe`."""
    flows: Callable[[Mapping[str, SettingValue]], tuple[Flow, ...]]
    settings: tuple[Setting, ...] = ()
