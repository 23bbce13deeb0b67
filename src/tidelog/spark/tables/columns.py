"""The columns of a table: compared with the columns of rows, and extended by them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deltalake import Field, Schema
from deltalake.exceptions import CommitFailedError, DeltaError

from tidelog.spark.tables.delta_log import DeltaLog, Snapshot
from tidelog.spark.tables.errors import TableError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

KEYS = "tidelog.keys"
"""The property of a table that names the columns of its key, as a JSON list."""
TYPES = frozenset(
    {"string", "binary", "boolean", "byte", "short", "integer", "long", "float", "double", "decimal"}
    | {"date", "timestamp"}
)
PLAIN_FEATURES = frozenset({"v2Checkpoint", "vacuumProtocolCheck"})
"""Features of readers that change nothing about the rows of a file."""
PARTITION_TYPES = ("string", "date", "boolean", "tinyint", "smallint", "int", "bigint")


@dataclass(frozen=True, slots=True)
class Shape:
    """The columns of a table, the columns of its folders, and the columns of its key."""

    schema: StructType
    partition_by: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()


def shape_of(snapshot: Snapshot) -> Shape:
    """The shape of a table. Raises TableError if its files cannot be read as plain Parquet."""
    from pyspark.sql.types import StructType

    check_features(snapshot)
    schema = StructType.fromJson(json.loads(snapshot.table.schema().to_json()))
    return Shape(schema, snapshot.partition_by, keys_of(snapshot))


def check_features(snapshot: Snapshot) -> None:
    """Raise TableError if another program gave the table a feature that hides rows or renames columns."""
    protocol = snapshot.table.protocol()
    if protocol.min_reader_version < 2:
        return
    features = protocol.reader_features or ["columnMapping"]
    strange = sorted(set(features) - PLAIN_FEATURES)
    if strange:
        raise TableError(
            f"table {snapshot.name} uses {', '.join(strange)} of Delta, with which its files are not plain "
            "Parquet: switch it off and rewrite the table"
        )


def keys_of(snapshot: Snapshot) -> tuple[str, ...]:
    held = snapshot.table.metadata().configuration.get(KEYS)
    return tuple(json.loads(held)) if held else ()


def declared(log: DeltaLog, wanted: Shape, before_creation: Callable[[], None] = lambda: None) -> Snapshot:
    """A snapshot of the table with all these columns. Creates the table, or adds the columns that it lacks.

    `before_creation` is called before the table is created, and raises if it must not be. Raises TableError
    if the table has another key, other folders, or a column of another type.
    """
    wanted = Shape(nullable(wanted.schema), wanted.partition_by, wanted.keys)
    _check(log.name, wanted)
    snapshot = _opened(log)
    if snapshot is None:
        configuration = {KEYS: json.dumps(list(wanted.keys))} if wanted.keys else {}
        before_creation()
        snapshot = log.create(delta_schema(log.name, wanted.schema), wanted.partition_by, configuration)
    while True:
        current = shape_of(snapshot)
        _check_same_kind(log.name, current, wanted)
        fields = _missing(log.name, current, wanted)
        if not fields:
            return snapshot
        try:
            snapshot.table.alter.add_columns(fields)
        except CommitFailedError:
            pass  # another writer has changed the columns: look at them again
        snapshot = log.snapshot()


def _opened(log: DeltaLog) -> Snapshot | None:
    """A snapshot of the table; None if there is no table. A table that is there is opened at once: to ask
    first whether it exists lists its log a second time."""
    try:
        return log.snapshot()
    except (TableError, DeltaError):
        if not log.exists():
            return None
    return log.snapshot()  # another writer has created it meanwhile, or it fails again


def nullable(schema: StructType) -> StructType:
    """The same columns, none of them required at any depth: rows of other batches may lack them."""
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(field.name, _nullable(field.dataType), True) for field in schema.fields])


def _nullable(kind: DataType) -> DataType:
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, StructType):
        return nullable(kind)
    if isinstance(kind, ArrayType):
        return ArrayType(_nullable(kind.elementType), True)
    if isinstance(kind, MapType):
        return MapType(_nullable(kind.keyType), _nullable(kind.valueType), True)
    return kind


def delta_schema(table: str, schema: StructType) -> Schema:
    """The columns in Delta's form. Raises TableError for a type that tables do not have."""
    for field in schema.fields:
        if not _supported(field.dataType):
            raise TableError(
                f"column {field.name} of table {table} is {field.dataType.simpleString()}, which tables do "
                "not have: cast it"
            )
    return Schema.from_json(schema.json())


def _supported(kind: DataType) -> bool:
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, StructType):
        return all(_supported(field.dataType) for field in kind.fields)
    if isinstance(kind, ArrayType):
        return _supported(kind.elementType)
    if isinstance(kind, MapType):
        return _supported(kind.keyType) and _supported(kind.valueType)
    return kind.typeName() in TYPES


def _check(table: str, shape: Shape) -> None:
    names = set(shape.schema.names)
    for what, columns in (("partitioned by", shape.partition_by), ("keyed by", shape.keys)):
        absent = [column for column in columns if column not in names]
        if absent:
            raise TableError(
                f"table {table} is {what} {', '.join(absent)}, which the rows do not have: "
                f"their columns are {', '.join(shape.schema.names)}"
            )
    for column in shape.partition_by:
        kind = shape.schema[column].dataType.simpleString()
        if kind not in PARTITION_TYPES:
            raise TableError(
                f"table {table} is partitioned by {column}, which is {kind}: expected one of "
                f"{', '.join(PARTITION_TYPES)}"
            )


def _check_same_kind(table: str, current: Shape, wanted: Shape) -> None:
    """Raise TableError for a table with another key, or other folders.

    Merges keep the folders that a keyed table has: they are those of the version that created it.
    """
    kinds = [("keyed", current.keys, wanted.keys)]
    if not wanted.keys:
        kinds.insert(0, ("partitioned", current.partition_by, wanted.partition_by))
    for what, is_, asked in kinds:
        if is_ != asked:
            raise TableError(
                f"table {table} is {what} by {', '.join(is_) or 'nothing'} and cannot be written as one that "
                f"is {what} by {', '.join(asked) or 'nothing'}"
            )


def _missing(table: str, current: Shape, wanted: Shape) -> list[Field]:
    """The columns that the table lacks."""
    from pyspark.sql.types import StructType

    types = {field.name: _nullable(field.dataType) for field in current.schema.fields}
    new = []
    for field in wanted.schema.fields:
        known = types.get(field.name)
        if known is None:
            new.append(field)
        elif known != field.dataType:
            raise TableError(
                f"column {field.name} is {known.simpleString()} in table {table} and "
                f"{field.dataType.simpleString()} in the rows: cast it, or give it another name"
            )
    return list(delta_schema(table, StructType(new)).fields) if new else []
