"""How far the time of an event may be ahead of its record.

The time of an event is that of a phone, whose clock may be wrong by years. One event of the year 2099 would
move a watermark past the events of all others, and stay the newest one of its user for ever. So an event may
be ahead of its record by `ahead_minutes`. One that is further ahead is bad: `collect` quarantines it, and the
other pipelines leave it out. A record without a timestamp, or whose timestamp is itself in the future, counts
as one of the present.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tidelog.spark.pipelines.declare import Context, Setting, SettingValue

if TYPE_CHECKING:
    from pyspark.sql import Column

MINUTE_MS = 60_000
MOST_MINUTES = 5_256_000
"""Ten years."""


def _within(value: SettingValue) -> bool:
    return not isinstance(value, str) and 0 <= value <= MOST_MINUTES


AHEAD = Setting(
    "ahead_minutes",
    60,  # the default of Kafka's message.timestamp.after.max.ms, for records
    "How far an event may be ahead of the time of its record. One that is further ahead is bad.",
    _within,
    f"a whole number, 0 to {MOST_MINUTES}",
)


def ahead_ms(settings: Mapping[str, SettingValue]) -> int:
    return int(settings[AHEAD.name]) * MINUTE_MS


def record_time() -> Column:
    """The time of the record in milliseconds, at most that of the micro-batch: the same in a replay."""
    from pyspark.sql import functions as f

    now, record = f.unix_millis(f.current_timestamp()), f.unix_millis("timestamp")
    return f.when(record < 0, now).otherwise(f.least(record, now))


def in_time(context: Context) -> Column:
    """Whether an event is at most `ahead_minutes` ahead of its record. Takes `ts` and `timestamp`."""
    from pyspark.sql import functions as f

    return f.col("ts") <= record_time() + ahead_ms(context.settings)
