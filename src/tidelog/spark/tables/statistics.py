"""Statistics of a Parquet file in Delta's form: its number of rows, and the bounds of each column.

Readers skip files by them. So a bound may be wider than the values, and a column without one is only slower.
"""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow.parquet as pq

TEXT_LENGTH = 32
"""Longer texts are cut, as Delta's own writers do: they would fill the log."""
_LAST_CHARACTER = "\U0010ffff"

Bound = str | int


def statistics(footer: pq.FileMetaData) -> str:
    """The statistics of a file as the JSON of an add action.

    Columns inside of lists and maps have none; INT96 timestamps have only the number of nulls.
    """
    least: dict[str, object] = {}
    most: dict[str, object] = {}
    nulls: dict[str, object] = {}
    for index in range(footer.num_columns):
        column = footer.schema.column(index)
        if column.max_repetition_level:
            continue
        path = column.path.split(".")
        found = [footer.row_group(group).column(index).statistics for group in range(footer.num_row_groups)]
        if not all(one is not None and one.has_null_count for one in found):
            continue
        _put(nulls, path, sum(one.null_count for one in found))
        # A row group of nulls alone has no bounds and needs none.
        valued = [one for one in found if one.num_values]
        if valued and all(one.has_min_max for one in valued):
            low, high = _low(min(one.min for one in valued)), _high(max(one.max for one in valued))
            if low is not None and high is not None:
                _put(least, path, low)
                _put(most, path, high)
    held = {"numRecords": footer.num_rows, "minValues": least, "maxValues": most, "nullCount": nulls}
    return json.dumps(held, allow_nan=False)


def _put(tree: dict[str, object], path: list[str], value: Bound) -> None:
    for name in path[:-1]:
        inner = tree.setdefault(name, {})
        assert isinstance(inner, dict)
        tree = inner
    tree[path[-1]] = value


def _low(value: object) -> Bound | None:
    return value[:TEXT_LENGTH] if isinstance(value, str) else _plain(value)


def _high(value: object) -> Bound | None:
    if isinstance(value, str):
        return value if len(value) <= TEXT_LENGTH else value[:TEXT_LENGTH] + _LAST_CHARACTER
    return _plain(value)


def _plain(value: object) -> Bound | None:
    # Parquet leaves NaN out of the bounds of a file, but NaN is the largest number to Spark: so no floats.
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, datetime):
        if value.tzinfo is None:
            return None
        return value.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    return value.isoformat() if isinstance(value, date) else None
