"""Reads files of a table in Spark's tasks with PyArrow, through the table's store.

So tables on S3 can be read without Hadoop's jars for it, and any table without Delta's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import unquote

from tidelog.spark.tables.store import Store

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

TASK_BYTES = 64 * 1024 * 1024
TASK_FILES = 256
BATCH_ROWS = 65_536
S3A = "org.apache.hadoop.fs.s3a.S3AFileSystem"


@dataclass(frozen=True, slots=True)
class TableFile:
    """One file of a table: its path below the table, and the values of the partition columns."""

    path: str
    size: int
    values: tuple[tuple[str, object], ...]


def table_files(table: DeltaTable) -> list[TableFile]:
    """The live files of a snapshot with their partition values."""
    import pyarrow as pa

    partition_by = table.metadata().partition_columns
    actions = pa.table(table.get_add_actions(flatten=True))
    values = [actions[f"partition.{name}"].to_pylist() for name in partition_by]
    return [
        TableFile(unquote(path), size, tuple(zip(partition_by, of_file, strict=True)))
        for path, size, *of_file in zip(
            actions["path"].to_pylist(), actions["size_bytes"].to_pylist(), *values, strict=True
        )
    ]


def in_tasks(files: Sequence[TableFile]) -> Iterator[tuple[TableFile, ...]]:
    """The files by the task that reads them."""
    task: list[TableFile] = []
    size = 0
    for file in sorted(files, key=lambda file: file.path):
        if task and (size + file.size > TASK_BYTES or len(task) == TASK_FILES):
            yield tuple(task)
            task, size = [], 0
        task.append(file)
        size += file.size
    if task:
        yield tuple(task)


def read_files(store: Store, files: Sequence[TableFile], columns: StructType) -> Iterator[pa.RecordBatch]:
    """The rows of the files with these columns, as Spark wants them."""
    import pyarrow as pa
    from pyarrow import parquet
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = to_arrow_schema(columns, timezone="UTC")
    system = store.files()
    for file in files:
        values = dict(file.values)
        with system.open_input_file(file.path) as stream:
            reader = parquet.ParquetFile(stream, coerce_int96_timestamp_unit="us")
            stored = [name for name in schema.names if name in reader.schema_arrow.names]
            for batch in reader.iter_batches(BATCH_ROWS, columns=stored):
                rows = batch.num_rows
                arrays = [
                    _constant(values[field.name], field.type, rows)
                    if field.name in values
                    else batch.column(field.name).cast(field.type)
                    if field.name in stored
                    else pa.nulls(rows, field.type)
                    for field in schema
                ]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _constant(value: object, type: pa.DataType, rows: int) -> pa.Array:
    import pyarrow as pa

    return pa.repeat(pa.scalar(value, type), rows)


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
    spark: SparkSession, store: Store, files: Sequence[TableFile], columns: StructType
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
    tasks: Sequence[Sequence[TableFile]],
    columns: StructType,
    numbers: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Runs in a task: the rows of the files of the tasks with these numbers."""
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            yield from read_files(store, tasks[number], columns)
