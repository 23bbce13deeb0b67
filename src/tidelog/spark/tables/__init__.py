"""Delta tables for micro-batches: every batch is in its tables exactly once."""

from tidelog.spark.tables.errors import Fenced, ForeignCheckpoint, TableError
from tidelog.spark.tables.tables import Tables

__all__ = ["Fenced", "ForeignCheckpoint", "TableError", "Tables"]
