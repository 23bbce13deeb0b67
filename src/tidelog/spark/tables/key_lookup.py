"""The rows of a batch by their keys: which row of a batch replaces which row of a file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date
from itertools import pairwise
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.spark.tables.live_files import LiveFile, files_of

if TYPE_CHECKING:
    from deltalake import DeltaTable


class KeyLookup:
    """Finds rows by their keys. Null is a key like others. Several columns are one key."""

    def __init__(self, rows: pa.Table, keys: Sequence[str]) -> None:
        """`rows` have each key once. Without `keys` there is one row, and every row of a file has its key."""
        self._keys = tuple(keys)
        self._values = [pc.unique(rows[key]) for key in keys]
        self._pairs: list[pa.Array] = []
        codes = self._code(rows, 0) if keys else None
        for at, _ in pairwise(range(len(keys))):
            joined = self._joined(codes, rows, at + 1)
            self._pairs.append(pc.unique(joined))
            codes = pc.index_in(joined, value_set=self._pairs[at])

    def positions(self, rows: pa.Table) -> pa.Array:
        """For each row the number of the batch's row with the same key; null if the batch has none.

        `rows` need the columns of the key only.
        """
        if not self._keys:
            return pa.repeat(pa.scalar(0, pa.int32()), rows.num_rows)
        # Each key is there once, so the code of a key is the number of its row.
        codes = self._code(rows, 0)
        for at, pairs in enumerate(self._pairs):
            codes = pc.index_in(self._joined(codes, rows, at + 1), value_set=pairs)
        return one_array(codes)

    def _code(self, rows: pa.Table, at: int) -> pa.ChunkedArray:
        return pc.index_in(rows[self._keys[at]], value_set=self._values[at])

    def _joined(self, codes: pa.ChunkedArray, rows: pa.Table, at: int) -> pa.ChunkedArray:
        """One number for the codes of the columns so far and that of the next one."""
        several = pc.multiply(codes.cast(pa.int64()), len(self._values[at]))
        return pc.add(several, self._code(rows, at).cast(pa.int64()))


def one_array(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def files_with_keys(table: DeltaTable, rows: pa.Table, keys: Iterable[str]) -> list[LiveFile]:
    """The files of a snapshot that may have the keys of these rows, by the bounds in its log."""
    actions = pa.table(table.get_add_actions(flatten=True))
    files = files_of(table, actions)
    chosen = [True] * len(files)
    for key in keys:
        lows, highs = f"min.{key}", f"max.{key}"
        if not {lows, highs} <= set(actions.column_names) or rows[key].null_count or not rows.num_rows:
            continue
        ends = pc.min_max(rows[key]).as_py()
        bounds = zip(actions[lows].to_pylist(), actions[highs].to_pylist(), strict=True)
        for at, (low, high) in enumerate(bounds):
            chosen[at] &= _may_overlap(low, high, ends["min"], ends["max"])
    return [file for file, wanted in zip(files, chosen, strict=True) if wanted]


def _may_overlap(low: object, high: object, least: object, most: object) -> bool:
    """Whether two ranges have a value in common. True for types whose bounds in a log are not exact."""
    for kind in (str, int, date):
        if all(type(bound) is kind for bound in (low, high, least, most)):
            return bool(low <= most and least <= high)  # type: ignore[operator]
    return True
