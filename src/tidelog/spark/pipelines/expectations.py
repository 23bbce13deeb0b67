"""Expectations of the rows of a flow or a table, and the action for rows that fail them.

An expectation is an expression of Spark. `warn` counts the rows that fail it, `quarantine` also moves them to
the table `quarantine`, and `stop` fails the micro-batch before it writes anything. This module imports no
Spark.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from pyspark.sql import Column

Action = Literal["warn", "quarantine", "stop"]
WARN: Final = "warn"
QUARANTINE: Final = "quarantine"
STOP: Final = "stop"
ACTIONS = (WARN, QUARANTINE, STOP)
Scope = Literal["batch", "day", "table"]
BATCH: Final = "batch"
DAY: Final = "day"
TABLE: Final = "table"
SCOPES = (BATCH, DAY, TABLE)


class ExpectationFailed(ValueError):
    """Rows of a micro-batch fail an expectation whose action is `stop`. Nothing of the batch is written."""


@dataclass(frozen=True, slots=True)
class NotNull:
    """The column has a value."""

    column: str
    action: Action = WARN

    @property
    def name(self) -> str:
        return f"not_null({self.column})"

    def holds(self) -> Column:
        from pyspark.sql import functions as F

        return F.col(self.column).isNotNull()


@dataclass(frozen=True, slots=True)
class Range:
    """The value is from `low` to `high`, both included. None leaves an end open. A null passes."""

    column: str
    low: float | None = None
    high: float | None = None
    action: Action = WARN

    @property
    def name(self) -> str:
        ends = ", ".join("" if end is None else f"{end:g}" for end in (self.low, self.high))
        return f"range({self.column}, {ends})"

    def holds(self) -> Column:
        from pyspark.sql import functions as F

        value, good = F.col(self.column), F.lit(True)
        if self.low is not None:
            good = good & (value >= self.low)
        if self.high is not None:
            good = good & (value <= self.high)
        return good


@dataclass(frozen=True, slots=True)
class OneOf:
    """The value is one of these. A null passes."""

    column: str
    values: tuple[str | int, ...]
    action: Action = WARN

    @property
    def name(self) -> str:
        return f"one_of({self.column})"

    def holds(self) -> Column:
        from pyspark.sql import functions as F

        return F.col(self.column).isin(*self.values)


@dataclass(frozen=True, slots=True)
class Matches:
    """The whole text matches a regular expression of Java. A null passes."""

    column: str
    pattern: str
    action: Action = WARN

    @property
    def name(self) -> str:
        return f"matches({self.column})"

    def holds(self) -> Column:
        from pyspark.sql import functions as F

        return F.col(self.column).rlike(f"^(?:{self.pattern})\\z")


@dataclass(frozen=True, slots=True)
class Check:
    """A condition in Spark's SQL holds: `Check("paid", "amount = 0 OR paid_at IS NOT NULL")`.

    A condition that is null passes.
    """

    name: str
    condition: str
    action: Action = WARN

    def holds(self) -> Column:
        from pyspark.sql import functions as F

        return F.expr(self.condition)


@dataclass(frozen=True, slots=True)
class Unique:
    """No two rows have the same values in these columns; rows with a null among them pass.

    `within="batch"` compares the rows of a micro-batch, `"table"` also the rows that the table had before it,
    `"day"` the same among rows of one `day`. Of equal rows in a micro-batch one passes.
    """

    columns: str | tuple[str, ...]
    within: Scope = BATCH
    action: Action = WARN

    @property
    def key(self) -> tuple[str, ...]:
        return (self.columns,) if isinstance(self.columns, str) else tuple(self.columns)

    @property
    def name(self) -> str:
        return f"unique({', '.join(self.key)}, {self.within})"


RowExpectation = NotNull | Range | OneOf | Matches | Check
Expectation = RowExpectation | Unique


def mistake(expect: Iterable[Expectation], partition_by: tuple[str, ...] | None) -> str | None:
    """The mistake in a declaration, or None. `partition_by` is that of the table, None for a flow."""
    names: set[str] = set()
    for one in expect:
        if one.name in names:
            return f"two expectations are named {one.name}"
        names.add(one.name)
        if one.action not in ACTIONS:
            return f"{one.name}: the action {one.action!r} is none of {', '.join(ACTIONS)}"
        if not isinstance(one, Unique):
            continue
        if one.within not in SCOPES:
            return f"{one.name}: expected within to be one of {', '.join(SCOPES)}"
        if one.within != BATCH and partition_by is None:
            return f"{one.name} compares rows with a table: declare it on the table, not on the flow"
        if one.within == DAY and "day" not in (partition_by or ()):
            return f'{one.name} needs a table that is partitioned by "day"'
    return None
