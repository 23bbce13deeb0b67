"""What Spark looks for when asked for `format("tidelog")`: a module of this name with a `DefaultSource`."""

from tidelog.spark.source import TidelogDataSource as DefaultSource

__all__ = ["DefaultSource"]
