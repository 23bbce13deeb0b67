"""Frames of Spark over the files of one version of a table, without Delta's jar."""

from __future__ import annotations

import re
from functools import reduce
from typing import TYPE_CHECKING
from urllib.parse import unquote

from tidelog.spark.tables.columns import Shape
from tidelog.spark.tables.delta_log import Snapshot
from tidelog.spark.tables.live_files import live_paths

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.types import StructType

_NOT_ASCII = re.compile(r"%[89A-Fa-f][0-9A-Fa-f]")


def frame(spark: SparkSession, shape: Shape, place: str, snapshot: Snapshot) -> DataFrame:
    """The rows of a snapshot. `place` is the table's folder as Spark knows it.

    Spark prunes columns, filters by partition before it reads, and pushes other filters down. A column that
    a file lacks is null.
    """
    paths = live_paths(snapshot.table)
    plain = [path for path in paths if not _NOT_ASCII.search(path)]
    # The base path lets Spark take the partition columns from the folders below it.
    reader = plain_reader(spark, shape.schema).option("basePath", place)
    frames = [reader.parquet(*(f"{place}/{path}" for path in plain))] if plain else []
    for folder in sorted({path.rpartition("/")[0] for path in paths} - {p.rpartition("/")[0] for p in plain}):
        within = [f"{place}/{path}" for path in paths if path.rpartition("/")[0] == folder]
        frames.append(_with_values(plain_reader(spark, shape.schema).parquet(*within), shape, folder))
    if not frames:
        return spark.createDataFrame([], shape.schema)
    columns = [f"`{name}`" for name in shape.schema.names]
    return reduce(lambda one, other: one.unionByName(other), (one.select(*columns) for one in frames))


def plain_reader(spark: SparkSession, schema: StructType) -> DataFrameReader:
    """A reader of exactly these files, whatever the settings of the session are.

    Otherwise Spark takes a path with `[` or `*` for a pattern, and may leave out files that it cannot read.
    """
    exactly = {"__globPaths__": "false", "ignoreMissingFiles": "false", "ignoreCorruptFiles": "false"}
    return spark.read.schema(schema).options(**exactly)


def _with_values(rows: DataFrame, shape: Shape, folder: str) -> DataFrame:
    """The rows of a folder with its partition columns. Spark would misread codes of UTF-8 in its name."""
    from pyspark.sql import functions as F

    from tidelog.spark.tables.task_files import NULL_FOLDER

    for part in folder.split("/"):
        name, _, value = part.partition("=")
        text = F.lit(None if value == NULL_FOLDER else unquote(value))
        rows = rows.withColumn(unquote(name), text.cast(shape.schema[unquote(name)].dataType))
    return rows
