"""The data source: `spark.read.format("tidelog")`."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource


class TidelogDataSource(DataSource):
    """Rows of topics, in batches and streams."""

    @classmethod
    def name(cls) -> str:
        return "tidelog"
