"""Tables for micro-batches: every batch is in its tables exactly once."""

from tidelog.spark.tables.errors import Fenced, TableError
from tidelog.spark.tables.parquet_tables import COMPACT_EVERY, Tables

__all__ = ["COMPACT_EVERY", "Fenced", "TableError", "Tables"]
