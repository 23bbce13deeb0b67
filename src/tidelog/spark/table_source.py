"""The data source `spark.read.format("tidelog-table")`: a Delta table at one version, without a jar.

A frame has the rows of the version at the time when the frame was made, or of the options `version` and
`timestamp`. The driver's Python lists the files from the table's log, and tasks read them with PyArrow.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import StructType

from tidelog.spark.filter_push import FilterPush
from tidelog.spark.tables.errors import TableError
from tidelog.spark.tables.live_files import LiveFile, live_files
from tidelog.spark.tables.store import S3_SCHEMES, Store, s3_options
from tidelog.spark.tables.task_reads import in_tasks, read_files

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

OPTIONS = ("path", "columns", "version", "timestamp", "pushfilters")
READER_FEATURES = frozenset({"timestampNtz", "vacuumProtocolCheck", "v2Checkpoint"})
_OPERATORS: dict[type[Filter], str] = {
    EqualTo: "=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
}


class FilesPartition(InputPartition):
    """The task that reads some files."""

    def __init__(self, files: tuple[LiveFile, ...]) -> None:
        super().__init__(None)
        self.files = files


class TableDataSource(DataSource):
    """The rows of a Delta table at one version."""

    @classmethod
    def name(cls) -> str:
        return "tidelog-table"

    def schema(self) -> StructType:
        """The table's columns, or those of the option `columns`."""
        whole = spark_schema(self._table())
        wanted = [name.strip() for name in self.options.get("columns", "").split(",") if name.strip()]
        absent = [name for name in wanted if name not in whole.names]
        if absent:
            raise TableError(f"the table has no column {absent[0]}; its columns are {', '.join(whole.names)}")
        return StructType([whole[name] for name in wanted]) if wanted else whole

    def reader(self, schema: StructType) -> DataSourceReader:
        table = self._table()
        whole = spark_schema(table)
        for field in schema.fields:
            if field.name not in whole.names or whole[field.name].dataType != field.dataType:
                raise TableError(
                    f"the table has no column {field.name} {field.dataType.simpleString()}: its columns are"
                    f" {whole.simpleString()}"
                )
        push = self.options.get("pushFilters", "false").strip().lower() == "true"
        return TableReader(self._store(), table.version(), schema, push)

    def _store(self) -> Store:
        for name in self.options:
            if name.lower() not in OPTIONS and not name.lower().startswith(("fs.", "aws_")):
                raise TableError(f"tidelog-table has no option {name}; it has {', '.join(OPTIONS)}")
        path = self.options.get("path", "")
        if not path:
            raise TableError('the path of the table is missing: load("s3://bucket/tables/credits")')
        return store_of(path, self.options)

    def _table(self) -> DeltaTable:
        store = self._store()
        version, moment = self.options.get("version"), self.options.get("timestamp")
        if version is not None and moment is not None:
            raise TableError("give the version or the timestamp of the table, not both")
        if version is not None and not version.strip().isdigit():
            raise TableError(f"version={version}: expected a number, such as 12")
        return opened(store, None if version is None else int(version), moment)


class TableReader(DataSourceReader):
    """Reads the files of one version of a table."""

    def __init__(self, store: Store, version: int, schema: StructType, push: bool) -> None:
        self.store = store
        self.version = version
        self.columns = schema
        self._filters: list[tuple[str, str, object]] = []
        if push:
            self.pushFilters = FilterPush(self.take_filters)  # type: ignore[method-assign]

    def take_filters(self, filters: Sequence[Filter]) -> None:
        """Keep the filters that the values of partition columns and the statistics of files can answer."""
        self._filters = [found for each in filters if (found := _pruning(each)) is not None]

    def partitions(self) -> Sequence[InputPartition]:
        table = opened(self.store, self.version, None)
        files = live_files(table)
        if self._filters:
            chosen = table.file_uris(file_pruning_predicate=list(self._filters))
            names = {uri.rpartition("/")[2] for uri in chosen}
            files = [file for file in files if file.path.rpartition("/")[2] in names]
        # Without a partition Spark would make one of its own type.
        return [FilesPartition(files) for files in in_tasks(files)] or [FilesPartition(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, FilesPartition)
        return read_files(self.store, partition.files, self.columns)


def store_of(path: str, options: Mapping[str, str]) -> Store:
    """The store of a path. Its S3 settings are the options `fs.s3a.*` and the environment.

    A source in Python does not see Spark's Hadoop settings.
    """
    scheme = path.partition("://")[0].lower()
    if scheme in S3_SCHEMES and "@" not in path:
        place = path.partition("://")[2].rstrip("/")
        environment = {**os.environ, **{name.upper(): value for name, value in options.items()}}
        return Store(f"s3://{place}", s3_options(place.partition("/")[0], options.get, environment))
    return Store.of(None, path)


def opened(store: Store, version: int | None, moment: str | None) -> DeltaTable:
    """The table at a version, at a moment, or as it is now. TableError if it is not there or not readable."""
    table = store.delta(version=version) if version is not None else store.delta()
    if moment is not None:
        try:
            table.load_as_version(moment)
        except Exception as error:
            raise TableError(
                f"timestamp={moment}: expected a time such as 2026-11-15T12:00:00Z that the table's log goes"
                f" back to ({store.without_secrets(str(error))})"
            ) from None
    others = set(table.protocol().reader_features or ()) - READER_FEATURES
    if others:
        raise TableError(
            f"the table in {store.uri} uses {', '.join(sorted(others))}, which this reader does not have:"
            " read it with an engine that does"
        )
    return table


def spark_schema(table: DeltaTable) -> StructType:
    return StructType.fromJson(json.loads(table.schema().to_json()))


def _pruning(filter: Filter) -> tuple[str, str, object] | None:
    """A filter in the form of delta-rs; None for a filter that cannot exclude files."""
    operator = "in" if isinstance(filter, In) else _OPERATORS.get(type(filter))
    attribute: tuple[str, ...] = getattr(filter, "attribute", ())
    value: object = getattr(filter, "value", None)
    if operator is None or len(attribute) != 1:
        return None
    members = value if isinstance(value, tuple | list) else (value,)
    plain = all(isinstance(one, str | int | date) and one != "" for one in members)
    # delta-rs takes an empty text for null, and no decimals; a datetime of another zone would not be compared
    # as a moment.
    if not plain or any(isinstance(one, datetime) for one in members):
        return None
    return attribute[0], operator, list(members) if operator == "in" else value
