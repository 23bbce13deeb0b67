"""The rows of the source: selected columns, values parsed as JSON, and filtered rows.

Options, with case-insensitive names: `columns`, `includeHeaders`, `filter`, `valueFormat` (json),
`valueSchema`, `valueMode` (PERMISSIVE, DROPMALFORMED, FAILFAST), `valueCheck`, `valueTime` with
`valueTimeAheadMs`. With JSON a row has the columns of the schema, then `_error` and `_raw` if bad rows are
kept, then the named columns of the source. A value that fails `valueCheck`, or whose time is too far ahead of
its record, is bad and keeps its columns.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tidelog.spark.ddl import parse_schema
from tidelog.spark.filters import Condition, FilterError, columns_of, mask_of, parse_filter
from tidelog.spark.rows import COLUMNS, arrow_schema, source_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from tidelog.records.json_columns import RowError

PERMISSIVE, DROPMALFORMED, FAILFAST = "PERMISSIVE", "DROPMALFORMED", "FAILFAST"
MODES = (PERMISSIVE, DROPMALFORMED, FAILFAST)
ERROR, RAW = "_error", "_raw"
# `filter` does not compare bytes: a text literal would silently be compared with bytes.
NOT_FILTERED = frozenset(("key", "value", "headers"))
OPTIONS = (
    "columns",
    "includeHeaders",
    "filter",
    "valueFormat",
    "valueSchema",
    "valueMode",
    "valueCheck",
    "valueTime",
    "valueTimeAheadMs",
)
OF_VALUES = ("valueSchema", "valueMode", "valueCheck", "valueTime", "valueTimeAheadMs")
# The error codes of values that can be parsed: those that fail valueCheck, and those whose time is ahead of
# their record. The reader's codes are positive.
UNFIT, AHEAD = -1, -2
AHEAD_MS = 3_600_000
MINUTE_MS = 60_000


class FormatError(ValueError):
    """An option that cannot be used. The message has its name, its value and what would be right."""

    def __init__(self, option: str, value: str, expected: str) -> None:
        super().__init__(f"option {option}={value!r}: {expected}")


class BadValue(ValueError):
    """A value that does not match `valueSchema`, with valueMode=FAILFAST."""


@dataclass(frozen=True, slots=True)
class Format:
    """The checked options of rows. `schema` gives their columns, `prepared` makes them."""

    columns: tuple[str, ...] | None = None
    """Columns of the source by name. None: the columns of Spark's connector, or none if values are JSON."""
    include_headers: bool = False
    value_schema: StructType | None = None
    """The fields of JSON values; None if values stay bytes."""
    value_mode: str = PERMISSIVE
    condition: Condition | None = None
    value_check: Condition | None = None
    """The condition on every value; `value_check_text` is its text."""
    value_check_text: str = ""
    value_time: str = ""
    """The field with the time of a value, in milliseconds; empty if times are not checked."""
    value_time_ahead_ms: int = AHEAD_MS

    @property
    def source_columns(self) -> tuple[str, ...]:
        if self.columns is not None:
            names = self.columns
        elif self.value_schema is not None:
            names = ()
        else:
            names = COLUMNS[:-1]
        return (*names, "headers") if self.include_headers and "headers" not in names else names

    def schema(self) -> StructType:
        """The schema of rows for Spark."""
        from pyspark.sql.types import BinaryType, StringType, StructField, StructType

        every = source_schema()
        fields = [every[name] for name in self.source_columns]
        if self.value_schema is None:
            return StructType(fields)
        # Bad rows have nulls, and Spark would rely on NOT NULL.
        typed = [StructField(f.name, f.dataType, True, f.metadata) for f in self.value_schema.fields]
        if self.value_mode == PERMISSIVE:
            typed += [StructField(ERROR, StringType()), StructField(RAW, BinaryType())]
        return StructType(typed + fields)

    def prepared(self) -> Rows:
        """An object that makes the rows of one task."""
        return Rows(self) if self.value_schema is None else JsonRows(self, self.value_schema)


class Rows:
    """Makes batches of a format from the source's columns."""

    def __init__(self, format: Format) -> None:
        self._schema = arrow_schema(format.schema())
        self._condition = format.condition
        looked_at = columns_of(format.condition) if format.condition is not None else frozenset()
        # A field of a value hides the column of the source with the same name.
        of_source = (looked_at & frozenset(COLUMNS)) - frozenset(_value_names(format))
        self.needed = frozenset(format.source_columns) | of_source
        """The columns of the source that `batch` needs."""
        self._early = looked_at == of_source

    def batch(self, columns: Mapping[str, pa.Array], rows: int) -> pa.RecordBatch | None:
        """The rows of the format, or None if no row is left."""
        import pyarrow as pa

        if self._condition is not None and self._early:
            mask = mask_of(self._condition, columns.__getitem__)
            if mask.true_count < rows:
                columns = {name: column.filter(mask) for name, column in columns.items()}
                rows = mask.true_count
        if not rows:
            return None
        arrays, columns = self._arrays(columns, rows)
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        if self._condition is not None and not self._early:
            return self._late(batch, columns)
        return batch if batch.num_rows else None

    def _arrays(
        self, columns: Mapping[str, pa.Array], rows: int
    ) -> tuple[list[pa.Array], Mapping[str, pa.Array]]:
        """The columns of the format, and the columns of the source for the same rows."""
        return [columns[name] for name in self._schema.names], columns

    def _late(self, batch: pa.RecordBatch, columns: Mapping[str, pa.Array]) -> pa.RecordBatch | None:
        assert self._condition is not None
        names = set(batch.schema.names)
        mask = mask_of(self._condition, lambda name: batch.column(name) if name in names else columns[name])
        if mask.true_count == batch.num_rows:
            return batch
        return batch.filter(mask) if mask.true_count else None


class JsonRows(Rows):
    """Makes rows with values parsed as JSON."""

    def __init__(self, format: Format, value_schema: StructType) -> None:
        from tidelog.spark.json_values import JsonColumns

        super().__init__(format)
        self._mode = format.value_mode
        self._check, self._check_text = format.value_check, format.value_check_text
        self._places = {name: place for place, name in enumerate(value_schema.names)}
        self._time, self._ahead_ms = format.value_time, format.value_time_ahead_ms
        self._source = format.source_columns
        types = self._schema.types[: len(value_schema.fields)]
        self._json = JsonColumns(value_schema, types)
        self.needed |= {"value"}
        if self._time:
            self.needed |= {"timestamp"}
        if self._mode == FAILFAST:
            self.needed |= {"topic", "partition", "offset"}

    def _arrays(
        self, columns: Mapping[str, pa.Array], rows: int
    ) -> tuple[list[pa.Array], Mapping[str, pa.Array]]:
        import pyarrow as pa

        values = columns["value"]
        typed, errors = self._json.read(values)
        if self._check is not None:
            errors = self._with_unfit(self._check, typed, errors)
        if self._time:
            errors = self._with_ahead(typed[self._places[self._time]], columns["timestamp"], errors)
        if self._mode == FAILFAST and errors:
            raise self._failure(errors[0], columns)
        if self._mode == PERMISSIVE:
            if errors:
                typed += self._error_columns(errors, values)
            else:
                typed += [pa.nulls(rows, pa.string()), pa.nulls(rows, pa.binary())]
        elif errors:
            fine = pa.array(_flags(rows, errors, found=False))
            typed = [column.filter(fine) for column in typed]
            columns = {name: column.filter(fine) for name, column in columns.items()}
        return typed + [columns[name] for name in self._source], columns

    def _error_columns(self, errors: list[RowError], values: pa.Array) -> list[pa.Array]:
        """The columns `_error` and `_raw`."""
        import pyarrow as pa
        import pyarrow.compute as pc

        mask = pa.array(_flags(len(values), errors, found=True))
        raw = values.filter(mask)
        reasons = [self._reason(error, value.as_py()) for error, value in zip(errors, raw, strict=True)]
        texts = pc.replace_with_mask(pa.nulls(len(values), pa.string()), mask, pa.array(reasons, pa.string()))
        return [texts, pc.replace_with_mask(pa.nulls(len(values), pa.binary()), mask, raw)]

    def _with_unfit(self, check: Condition, typed: list[pa.Array], errors: list[RowError]) -> list[RowError]:
        """The errors, and an error for each row that can be parsed but fails the check."""
        import pyarrow.compute as pc

        mask = mask_of(check, lambda name: typed[self._places[name]])
        fit = pc.fill_null(mask, False).to_numpy(zero_copy_only=False)
        fit[[error[0] for error in errors]] = True  # values that could not be parsed are bad already
        if fit.all():
            return errors
        unfit = (~fit).nonzero()[0].tolist()
        return sorted([*errors, *((row, UNFIT, 0, -1) for row in unfit)])

    def _with_ahead(self, times: pa.Array, records: pa.Array, errors: list[RowError]) -> list[RowError]:
        """The errors, and an error for each row whose time is too far ahead of its record.

        Its third number is the time, the last one that of the record. A record counts as one of the present
        if it has no timestamp, or one in the future.
        """
        import numpy
        import pyarrow.compute as pc

        now = int(time.time() * 1000)
        micros = pc.fill_null(records.view("int64"), -1)
        newest, at = pc.max(times).as_py(), pc.min_max(micros).as_py()
        if newest is None or (at["min"] >= 0 and newest <= min(at["min"] // 1000, now) + self._ahead_ms):
            return errors  # as nearly always: no time is ahead of the oldest record
        record = micros.to_numpy(zero_copy_only=False) // 1000
        record = numpy.where(record < 0, now, numpy.minimum(record, now))
        found = pc.fill_null(times, 0).to_numpy(zero_copy_only=False)
        ahead = found > record + self._ahead_ms
        ahead[[error[0] for error in errors]] = False  # a value has one error
        if not ahead.any():
            return errors
        rows = ahead.nonzero()[0].tolist()
        return sorted([*errors, *((row, AHEAD, int(found[row]), int(record[row])) for row in rows)])

    def _reason(self, error: RowError, value: bytes | None) -> str:
        if error[1] == UNFIT:
            return f"the value does not satisfy {self._check_text}"
        if error[1] == AHEAD:
            minutes, rest = divmod(self._ahead_ms, MINUTE_MS)
            ahead = f"{self._ahead_ms} ms" if rest else f"{minutes} minutes"
            return f"field {self._time}: {error[2]} is more than {ahead} ahead of its record ({error[3]})"
        return self._json.reason(error, value)

    def _failure(self, error: RowError, columns: Mapping[str, pa.Array]) -> BadValue:
        row = error[0]
        where = f"{columns['topic'][row]}-{columns['partition'][row]} at offset {columns['offset'][row]}"
        reason = self._reason(error, columns["value"][row].as_py())
        return BadValue(f"{where}: {reason}; valueMode=PERMISSIVE marks such rows and continues")


def _value_names(format: Format) -> list[str]:
    """The columns that come from values."""
    if format.value_schema is None:
        return []
    return [*format.value_schema.names, ERROR, RAW]


def _flags(rows: int, errors: list[RowError], *, found: bool) -> object:
    import numpy

    flags = numpy.full(rows, not found)
    flags[[error[0] for error in errors]] = found
    return flags


def parse(options: Mapping[str, str]) -> Format:
    """The format of these options."""
    given = {name.lower(): value for name, value in options.items()}
    headers = given.get("includeheaders", "false").strip().lower()
    if headers not in ("true", "false"):
        raise FormatError("includeHeaders", headers, "expected true or false")
    value_schema = _value_schema(given)
    mode = given.get("valuemode", PERMISSIVE).strip().upper()
    if mode not in MODES:
        raise FormatError("valueMode", mode, f"expected one of {', '.join(MODES)}")
    found = Format(
        columns=_columns(given.get("columns")),
        include_headers=headers == "true",
        value_schema=value_schema,
        value_mode=mode,
    )
    _check_names(found)
    check = given.get("valuecheck", "").strip()
    if check:
        found = replace(found, value_check=_value_check(check, found), value_check_text=check)
    found = _with_time(given, found)
    text = given.get("filter", "").strip()
    return replace(found, condition=_condition(text, found)) if text else found


def _columns(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    known = {name.lower(): name for name in COLUMNS}
    found: list[str] = []
    for part in text.split(","):
        name = known.get(part.strip().lower())
        if name is None:
            raise FormatError("columns", text, f"{part.strip()!r} is not one of {', '.join(COLUMNS)}")
        if name in found:
            raise FormatError("columns", text, f"{name} is named twice")
        found.append(name)
    return tuple(found)


def _value_schema(given: Mapping[str, str]) -> StructType | None:
    kind = given.get("valueformat", "").strip().lower()
    text = given.get("valueschema", "").strip()
    if kind in ("", "binary"):
        for option in OF_VALUES:
            if given.get(option.lower()):
                raise FormatError(option, given[option.lower()], "needs valueFormat=json beside it")
        return None
    if kind != "json":
        raise FormatError("valueFormat", given["valueformat"], "expected json, or none for bytes")
    if not text:
        raise FormatError("valueFormat", "json", "needs valueSchema beside it, such as id STRING, n BIGINT")
    from tidelog.spark.json_values import check

    try:
        found = parse_schema(text)
        check(found)
    except ValueError as error:
        raise FormatError("valueSchema", text, str(error)) from None
    return found


def _check_names(found: Format) -> None:
    names = [name.lower() for name in found.schema().names]
    for name in names:
        if names.count(name) > 1:
            raise FormatError(
                "columns",
                ",".join(found.source_columns),
                f"column {name} occurs twice: valueSchema has a field of that name, too",
            )


def _value_check(text: str, found: Format) -> Condition:
    """A condition on the fields of a value."""
    assert found.value_schema is not None  # `_value_schema` has checked it
    every = arrow_schema(found.schema())
    try:
        return parse_filter(text, {name: every.field(name).type for name in found.value_schema.names})
    except FilterError as error:
        raise FormatError("valueCheck", text, str(error)) from None


def _with_time(given: Mapping[str, str], found: Format) -> Format:
    name, ahead = given.get("valuetime", "").strip(), given.get("valuetimeaheadms", "").strip()
    if ahead and not name:
        raise FormatError("valueTimeAheadMs", ahead, "needs valueTime beside it")
    if not name:
        return found
    assert found.value_schema is not None  # `_value_schema` has checked it
    fields = {field.name: field.dataType.simpleString() for field in found.value_schema.fields}
    if fields.get(name) != "bigint":
        raise FormatError("valueTime", name, "expected a BIGINT of valueSchema, in milliseconds since 1970")
    if ahead and not (ahead.isdecimal() and int(ahead) < 1 << 62):
        raise FormatError("valueTimeAheadMs", ahead, "expected a number of milliseconds, 0 or more")
    return replace(found, value_time=name, value_time_ahead_ms=int(ahead or AHEAD_MS))


def _condition(text: str, found: Format) -> Condition:
    source = {field.name: field.type for field in arrow_schema(source_schema())}
    usable = {name: kind for name, kind in source.items() if name not in NOT_FILTERED}
    every = arrow_schema(found.schema())
    usable |= {name: every.field(name).type for name in _value_names(found) if name in every.names}
    usable.pop(RAW, None)
    try:
        return parse_filter(text, usable)
    except FilterError as error:
        raise FormatError("filter", text, str(error)) from None
