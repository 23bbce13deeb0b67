"""What Spark looks for when asked for `format("tidelog-table")`: a module with a `DefaultSource`."""

from tidelog.spark.table_source import TableDataSource as DefaultSource

__all__ = ["DefaultSource"]
