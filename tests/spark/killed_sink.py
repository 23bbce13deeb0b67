"""A sink whose tasks are killed with -9 while their transactions are open, and tell nobody."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter

from tests.support.wait import eventually
from tidelog.clients.admin.blocking import Admin
from tidelog.spark.exactly_once import ExactlyOnceBatchWriter, ExactlyOnceStreamWriter, Prepared
from tidelog.spark.sink import batch_writer, stream_writer
from tidelog.spark.source import TidelogDataSource

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class KilledSink(TidelogDataSource):
    @classmethod
    def name(cls) -> str:
        return "killed-tidelog"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        writer = batch_writer(self.options, schema, overwrite)
        assert isinstance(writer, ExactlyOnceBatchWriter)
        writer.__class__ = KilledBatchWriter
        return writer

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        writer = stream_writer(self.options, schema, overwrite)
        assert isinstance(writer, ExactlyOnceStreamWriter)
        writer.__class__ = KilledStreamWriter
        return writer


class KilledBatchWriter(ExactlyOnceBatchWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Prepared:
        options = self.options
        return super().write(killed(iterator, options.bootstrap_servers, options.transactional_id_prefix))


class KilledStreamWriter(ExactlyOnceStreamWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Prepared:
        options = self.options
        return super().write(killed(iterator, options.bootstrap_servers, options.transactional_id_prefix))


def killed(batches: Iterator[pa.RecordBatch], bootstrap: str, prefix: str) -> Iterator[pa.RecordBatch]:
    """The rows; and then the process is gone, as soon as its transaction is open."""
    yield from batches
    with Admin(bootstrap_servers=bootstrap) as admin:
        eventually(lambda: open_ids(admin, prefix), "a transaction is open", 60.0)
    os.kill(os.getpid(), signal.SIGKILL)


def open_ids(admin: Admin, prefix: str) -> list[str]:
    listed = admin.list_transactions(states=("Ongoing",))
    return [found.transactional_id for found in listed if found.transactional_id.startswith(f"{prefix}-")]
