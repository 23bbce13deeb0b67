"""Reads files of a table in Spark's tasks with PyArrow, through the table's store.

So tables on S3 can be read without Hadoop's jars for it, and any table without Delta's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from tidelog.spark.tables.live_files import LiveFile, rows_of
from tidelog.spark.tables.store import Store

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

TASK_BYTES = 64 * 1024 * 1024
TASK_FILES = 256
S3A = "org.apache.hadoop.fs.s3a.S3AFileSystem"


def in_tasks(files: Sequence[LiveFile]) -> Iterator[tuple[LiveFile, ...]]:
    """The files by the task that reads them."""
    task: list[LiveFile] = []
    size = 0
    for file in sorted(files, key=lambda file: file.path):
        if task and (size + file.size > TASK_BYTES or len(task) == TASK_FILES):
            yield tuple(task)
            task, size = [], 0
        task.append(file)
        size += file.size
    if task:
        yield tuple(task)


def read_files(store: Store, files: Sequence[LiveFile], columns: StructType) -> Iterator[pa.RecordBatch]:
    """The rows of the files with these columns, as Spark wants them."""
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = to_arrow_schema(columns, timezone="UTC")
    with store.remote_errors():
        for file in files:
            yield from rows_of(store, file, schema)


def spark_reads(spark: SparkSession, store: Store) -> bool:
    """Whether Spark can read the store's files by itself: S3 takes jars that Spark does not come with."""
    if not store.is_s3:
        return True
    from py4j.protocol import Py4JJavaError

    assert spark._jvm is not None, "the class path is that of the driver's JVM"
    try:
        spark._jvm.java.lang.Class.forName(S3A)
    except Py4JJavaError:
        return False
    return True


def frame_of_files(
    spark: SparkSession, store: Store, files: Sequence[LiveFile], columns: StructType
) -> DataFrame:
    """A frame over some files of the table in `store`. Each task reads about 64 MB of them.

    The store goes to the tasks with their code, so that no credential is in the frame's plan.
    """
    tasks = list(in_tasks(files))
    if not tasks:
        return spark.createDataFrame([], columns)
    numbers = spark.range(0, len(tasks), 1, len(tasks))
    return numbers.mapInArrow(partial(_read_tasks, store, tasks, columns), columns)


def _read_tasks(
    store: Store,
    tasks: Sequence[Sequence[LiveFile]],
    columns: StructType,
    numbers: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Runs in a task: the rows of the files of the tasks with these numbers."""
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            yield from read_files(store, tasks[number], columns)
