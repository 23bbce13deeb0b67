"""The folder of Spark's checkpoints, which may be on another store than the tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.config import ConfigError
from tidelog.spark.files import Files, join

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidelog.spark.pipelines.query import Place


def checkpoint_folder(spark: SparkSession, place: Place) -> Files:
    """The file system of the checkpoints. Raises ConfigError if Hadoop has none for their address."""
    from py4j.protocol import Py4JJavaError

    try:
        return Files(spark, place.checkpoint_root)
    except Py4JJavaError as error:
        scheme = place.checkpoint_root.partition(":")[0]
        raise ConfigError(
            "checkpoints",
            place.checkpoint_root,
            f"Spark has no file system for {scheme} here ({error.java_exception.getMessage()}): give "
            "--checkpoints DIR on a folder that driver and executors share or on HDFS, or add Hadoop's jar "
            "for this store",
        ) from None


def refuse_moved(pipeline: str, before: str, now: Files) -> None:
    """Raise ConfigError if the last run had its checkpoints in another folder, and this one has none of it.

    With an empty checkpoint the pipeline would begin anew: its tables would refuse that, but not its topics.
    `before` is empty if the checkpoints were below the data, with which they may have been moved.
    """
    if before and before != now.root and not now.entries(join(now.root, pipeline)):
        raise ConfigError(
            "checkpoints",
            now.root,
            f"the last run of {pipeline} had its checkpoints in {before}: give --checkpoints {before}, or "
            "move them here first",
        )
