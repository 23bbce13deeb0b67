"""Days and hours of event times, which are milliseconds since 1970 in UTC."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


def day_number(milliseconds: Column) -> Column:
    """The number of days since 1970-01-01, whatever the time zone of the session."""
    from pyspark.sql import functions as F

    return F.floor(milliseconds / DAY_MS).cast("int")


def day_of(milliseconds: Column) -> Column:
    """The date in UTC, whatever the time zone of the session."""
    from pyspark.sql import functions as F

    return F.date_from_unix_date(day_number(milliseconds))
