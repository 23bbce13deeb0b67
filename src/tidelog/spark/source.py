"""The data source: `spark.read.format("tidelog")`, streams and writes alike.

It has the columns and options of Spark's Kafka connector; docs/spark.md lists them.
"""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType


class TidelogDataSource(DataSource):
    """Rows of topics, in batches and streams."""

    @classmethod
    def name(cls) -> str:
        return "tidelog"

    def schema(self) -> StructType:
        from tidelog.spark.options import source_options
        from tidelog.spark.values import parse

        source_options(self.options)  # report errors when the frame is made, not when it is used
        return parse(self.options).schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        from tidelog.spark.batch import TidelogBatchReader
        from tidelog.spark.options import batch_options
        from tidelog.spark.tasks import check_schema

        options = batch_options(self.options)
        check_schema(options, schema)
        return TidelogBatchReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from tidelog.spark.options import stream_options
        from tidelog.spark.stream import TidelogStreamReader
        from tidelog.spark.tasks import check_schema

        options = stream_options(self.options)
        check_schema(options, schema)
        return TidelogStreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from tidelog.spark.sink import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from tidelog.spark.sink import stream_writer

        return stream_writer(self.options, schema, overwrite)
