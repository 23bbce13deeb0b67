"""What the driver gives a task to read: the range, and how."""

from __future__ import annotations

from pyspark.sql.datasource import InputPartition

from tidelog.spark.options import SourceOptions
from tidelog.spark.reader import OffsetRange, ReadSettings
from tidelog.spark.values import parse


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
