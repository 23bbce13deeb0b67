"""A pipeline without state and without trouble: `tidelog pipeline run tests/spark/plain_words.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.spark.pipelines.declare import Context, Flow, Pipeline, Setting, Source, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def texts(rows: DataFrame, context: Context) -> DataFrame:
    return rows.selectExpr("cast(value as string) as word")


FLOW = Flow("all", Source(("words",)), (Table("words"),), steps=(texts,))
PIPELINE = Pipeline(
    "plain", "Words.", "Words.", lambda settings: (FLOW,), (Setting("trouble", "", "A folder."),)
)
