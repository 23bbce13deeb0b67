"""The tasks of a read: a range of offsets, and the settings to read it with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from tidelog.spark.options import OptionError, SourceOptions
from tidelog.spark.reader import OffsetRange, ReadSettings
from tidelog.spark.values import parse

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class RangePartition(InputPartition):
    """The task that reads one range of offsets."""

    def __init__(self, range: OffsetRange) -> None:
        super().__init__(None)
        self.range = range


def read_settings(options: SourceOptions) -> ReadSettings:
    return ReadSettings(
        client=options.client,
        format=parse(options.given),
        fail_on_data_loss=options.fail_on_data_loss,
        poll_timeout_ms=options.poll_timeout_ms,
    )


def check_schema(options: SourceOptions, given: StructType) -> None:
    """The options define the columns: `schema(...)` may repeat them but not change them."""
    fixed = parse(options.given).schema().simpleString()
    if given.simpleString() != fixed:
        raise OptionError(
            f"the source has a fixed schema and cannot be set with a custom one: it has {fixed}, and"
            f" {given.simpleString()} was given; for columns of JSON values set valueFormat and valueSchema"
        )
