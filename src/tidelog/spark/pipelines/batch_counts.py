"""The counts of one micro-batch: rows of each sink, quarantined rows by reason, failed expectations.

Tables know how many rows their files have, and Spark counts the rows of other sinks while it writes them: no
pass over the rows is only for counting. If a table has the batch already and nothing is written, the rows are
counted by themselves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation

REASONS = 50
"""The most reasons of one micro-batch that are counted by name. The others are one reason."""
TRACKED = 1_000
OTHER_REASON = "other reasons"
LONGEST_REASON = 160


@dataclass(slots=True)
class _Observed:
    """Rows whose counts are known once they are written."""

    observation: Observation
    rows: DataFrame
    counts: tuple[Column, ...]
    take: Callable[[Mapping[str, object]], None]

    def settle(self) -> None:
        handle = self.observation._jo
        if handle is not None and handle.future().isCompleted():
            self.take(self.observation.get)
            return
        found = self.rows.agg(*self.counts).first()
        self.take(found.asDict() if found is not None else {})


class BatchCounts:
    """The counts of one micro-batch. Sinks fill it, and `settle` completes it after the last write."""

    def __init__(self) -> None:
        self.sinks: Counter[str] = Counter()
        self.quarantined = 0
        self.reasons: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        """Rows that fail an expectation, by the name of the expectation, whatever its action."""
        self._observed: list[_Observed] = []

    def wrote(self, sink: str, number: int | None, rows: Callable[[], DataFrame]) -> None:
        """Count rows that a table took. A batch that it had already (None) is counted from its rows."""
        self.sinks[sink] += rows().count() if number is None else number

    def written(self, rows: DataFrame, sink: str) -> DataFrame:
        """The same rows, to be written to a sink; their number counts for it."""
        from pyspark.sql import functions as F

        def take(found: Mapping[str, object]) -> None:
            self.sinks[sink] += _number(found, "rows")

        return self._observe(rows, (F.count(F.lit(1)).alias("rows"),), take)

    def set_aside(self, rows: DataFrame, error: str = "error") -> DataFrame:
        """The same rows, to be written to the quarantine; `error` is the column with the error."""
        from pyspark.sql import functions as F

        reason = F.left(reason_of(F.col(error)), F.lit(LONGEST_REASON))
        marked = rows.withColumn("_reason", reason)
        counts = (
            F.count(F.lit(1)).alias("rows"),
            F.expr(f"approx_top_k(_reason, {REASONS}, {TRACKED})").alias("reasons"),
        )
        return self._observe(marked, counts, self._take_reasons).drop("_reason")

    def expectations(self, rows: DataFrame, failures: Mapping[str, Column]) -> DataFrame:
        """The same rows, to be written; rows that fail an expectation count for its name."""
        from pyspark.sql import functions as F

        names = list(failures)
        counts = tuple(F.count_if(failures[name]).alias(f"_{at}") for at, name in enumerate(names))

        def take(found: Mapping[str, object]) -> None:
            self.failed.update({name: _number(found, f"_{at}") for at, name in enumerate(names)})

        return self._observe(rows, counts, take)

    def settle(self) -> None:
        """Take all counts. Rows that no write has computed are counted now."""
        for observed in self._observed:
            observed.settle()
        self._observed.clear()

    def _observe(
        self, rows: DataFrame, counts: tuple[Column, ...], take: Callable[[Mapping[str, object]], None]
    ) -> DataFrame:
        from pyspark.sql import Observation

        observation = Observation()
        self._observed.append(_Observed(observation, rows, counts, take))
        return rows.observe(observation, *counts)

    def _take_reasons(self, found: Mapping[str, object]) -> None:
        total = _number(found, "rows")
        self.quarantined += total
        listed = found.get("reasons")
        for item, count in listed if isinstance(listed, list) else ():
            self.reasons[str(item)] += count
            total -= count
        if total > 0:
            self.reasons[OTHER_REASON] += total


def reason_of(error: Column) -> Column:
    """The error without the numbers that differ from event to event."""
    from pyspark.sql import functions as F

    plain = F.regexp_replace(error, r", from byte \d+ on$", "")
    return F.regexp_replace(plain, r"-?\b\d+\b", "#")


def _number(found: Mapping[str, object], name: str) -> int:
    value = found.get(name)
    return value if isinstance(value, int) else 0
