"""What rows are made of: the columns of the source that are asked for, and values read as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.spark.rows import COLUMNS, arrow_schema, source_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class FormatError(ValueError):
    """An option of the source that cannot be used: names it, its value and what would be right."""

    def __init__(self, option: str, value: str, expected: str) -> None:
        super().__init__(f"option {option}={value!r}: {expected}")


@dataclass(frozen=True, slots=True)
class Format:
    """The options that decide about columns, checked; `schema` and `prepared` do the rest."""

    columns: tuple[str, ...] | None = None
    """Columns of the source by name; None for those that Spark's connector has."""
    include_headers: bool = False

    def schema(self) -> StructType:
        """What Spark is told that rows are."""
        from pyspark.sql.types import StructType

        every = source_schema()
        names = self.columns
        if names is None:
            names = COLUMNS if self.include_headers else COLUMNS[:-1]
        return StructType([every[name] for name in names])

    def prepared(self) -> Rows:
        return Rows(self)


class Rows:
    """Makes batches of a format out of the source's columns."""

    def __init__(self, format: Format) -> None:
        self._schema = arrow_schema(format.schema())
        self.needed = frozenset(self._schema.names)
        """The columns of the source that `batch` wants."""

    def batch(self, columns: Mapping[str, pa.Array], rows: int) -> pa.RecordBatch | None:
        """The rows of the format, None where no row is left."""
        import pyarrow as pa

        return pa.RecordBatch.from_arrays([columns[name] for name in self._schema.names], schema=self._schema)


def parse(options: Mapping[str, str]) -> Format:
    """The format that options ask for, whose names are taken in any case."""
    given = {name.lower(): value for name, value in options.items()}
    headers = given.get("includeheaders", "false").strip().lower()
    if headers not in ("true", "false"):
        raise FormatError("includeHeaders", headers, "expected true or false")
    return Format(columns=_columns(given.get("columns")), include_headers=headers == "true")


def _columns(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    known = {name.lower(): name for name in COLUMNS}
    found: list[str] = []
    for part in text.split(","):
        name = known.get(part.strip().lower())
        if name is None:
            raise FormatError("columns", text, f"{part.strip()!r} is none of {', '.join(COLUMNS)}")
        if name in found:
            raise FormatError("columns", text, f"{name} is named twice")
        found.append(name)
    return tuple(found)
