"""The events of the app, one kind per topic: their fields, versions, and the errors of bad ones.

An event is a JSON object; the key of its record is the user. Its `version` says which fields it has. A new
version only adds fields: readers of an older version ignore them, and readers of a newer version find null.
A change that would break readers begins a new hundred, which they refuse. This module imports no Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructType

GENERATION = 100  # readers of one generation read all its versions: 1-99, 100-199, ...
LAST_TS = 253_402_300_799_999  # the end of the year 9999, where Spark's and Python's calendars end


class Kind(Enum):
    """The type of a field, by its name in Spark's SQL."""

    STRING = "STRING"
    LONG = "BIGINT"
    INT = "INT"
    BOOLEAN = "BOOLEAN"

    def fits(self, value: object) -> bool:
        if self is Kind.STRING:
            return isinstance(value, str)
        if self is Kind.BOOLEAN:
            return isinstance(value, bool)
        bits = 63 if self is Kind.LONG else 31
        return isinstance(value, int) and not isinstance(value, bool) and -(1 << bits) <= value < 1 << bits


@dataclass(frozen=True, slots=True)
class Field:
    """A field of an event. Events of versions before `since` do not have it."""

    name: str
    kind: Kind
    doc: str
    nullable: bool = False
    since: int = 1


@dataclass(frozen=True, slots=True)
class EventSchema:
    """The fields and versions of the events of one topic."""

    topic: str
    table: str
    """The table that collects its events."""
    doc: str
    fields: tuple[Field, ...]
    version: int = 1

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(field.name for field in self.fields)

    @property
    def versions(self) -> range:
        """The versions that a reader of this schema can read, with future versions of its generation."""
        first = self.version // GENERATION * GENERATION
        return range(max(1, first), first + GENERATION)

    def check(self, event: object) -> str | None:
        """The error of an event that was parsed from JSON, or None."""
        if not isinstance(event, Mapping):
            return f"expected a JSON object, found {_kind_of(event)}"
        version = event.get("version")
        if Kind.INT.fits(version) and version not in self.versions:
            return self._unknown_version(str(version))
        for field in self.fields:
            value = event.get(field.name)
            if value is None:
                if not self.nullable(field):
                    return f"field {field.name} is missing"
            elif not field.kind.fits(value):
                wanted = field.kind.name.lower()
                return f"field {field.name}: expected {wanted}, found {_kind_of(value)}"
        if not 0 <= event["ts"] <= LAST_TS:
            return self._impossible_time(str(event["ts"]))
        return None

    def nullable(self, field: Field) -> bool:
        """Whether a field may be null for a reader: it is nullable, or older versions lack it."""
        return field.nullable or field.since > 1

    def ddl(self) -> str:
        """The schema in Spark's SQL, for the option `valueSchema` of the data source."""
        return ", ".join(
            f"{field.name} {field.kind.value}{'' if self.nullable(field) else ' NOT NULL'}"
            for field in self.fields
        )

    def spark_schema(self) -> StructType:
        from pyspark.sql import types

        kinds = {
            Kind.STRING: types.StringType(),
            Kind.LONG: types.LongType(),
            Kind.INT: types.IntegerType(),
            Kind.BOOLEAN: types.BooleanType(),
        }
        return types.StructType(
            [types.StructField(field.name, kinds[field.kind], self.nullable(field)) for field in self.fields]
        )

    def condition(self) -> str:
        """The rules of `check` beyond types and fields, for the data source's option `valueCheck`."""
        known = self.versions
        return f"version BETWEEN {known[0]} AND {known[-1]} AND ts BETWEEN 0 AND {LAST_TS}"

    def spark_error(self) -> Column:
        """The errors of `check` beyond types and missing fields, for rows with valid types; null if valid."""
        from pyspark.sql import functions as f

        version, ts = f.col("version"), f.col("ts")
        known = version.between(self.versions.start, self.versions.stop - 1)
        return f.when(~known, f.format_string(self._unknown_version("%d"), version)).when(
            ~ts.between(0, LAST_TS), f.format_string(self._impossible_time("%d"), ts)
        )

    def _unknown_version(self, version: str) -> str:
        known = self.versions
        return f"version {version} is unknown: {self.topic} is read in versions {known[0]} to {known[-1]}"

    def _impossible_time(self, ts: str) -> str:
        return f"field ts: {ts} is not a time; expected milliseconds since 1970, 0 to {LAST_TS}"


def event_time() -> Column:
    """The time of an event, as a timestamp of Spark."""
    from pyspark.sql import functions as f

    return f.timestamp_millis(f.col("ts"))


def reference() -> str:
    """Every kind of event and its fields, in Markdown."""
    parts: list[str] = []
    for schema in EVENTS.values():
        collected = f"collected in table `{schema.table}`" if schema in LOGS else "not collected"
        parts += [
            f"### `{schema.topic}`",
            "",
            f"{schema.doc} Version {schema.version}, {collected}.",
            "",
            "| field | type | since | meaning |",
            "|---|---|---|---|",
        ]
        for field in schema.fields:
            kind = field.kind.name.lower() + (" or null" if field.nullable else "")
            parts.append(f"| `{field.name}` | {kind} | {field.since} | {field.doc} |")
        parts.append("")
    return "\n".join(parts)


def _kind_of(value: object) -> str:
    """The type of a value in the words of JSON."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return f"the number {value}" if abs(value) < 1 << 70 else "a number out of range"
    names = {float: "a fraction", str: "string", list: "array", dict: "object"}
    return names.get(type(value), type(value).__name__)


ENVELOPE = (
    Field("event_id", Kind.STRING, "Unique for each event. An event that was sent twice keeps its id."),
    Field("version", Kind.INT, "The version of the event's schema."),
    Field("ts", Kind.LONG, "When it happened, in milliseconds since 1970."),
    Field("user_id", Kind.STRING, "Who it is about; the key of the record."),
    Field("device_id", Kind.STRING, "The phone that it happened on."),
    Field("ip", Kind.STRING, "The address that the phone had."),
)


def _event(topic: str, table: str, doc: str, *fields: Field) -> EventSchema:
    return EventSchema(topic, table, doc, ENVELOPE + fields)


_AD = Field("ad_id", Kind.STRING, "The advertisement.")
_SCREEN = Field("screen_ms", Kind.LONG, "How long the advertisement was on the screen, in milliseconds.")

CREDITS = _event(
    "ml_obtain_credit_log",
    "credits",
    "Credit that a user earned, or lost.",
    Field("amount", Kind.LONG, "Whole units of credit; negative if credit was taken back."),
    Field("reason", Kind.STRING, "left_slide, right_slide, task, invite or adjust."),
    Field("ad_id", Kind.STRING, "The advertisement that was swiped.", nullable=True),
)
LEFT_SWIPES = _event(
    "ml_ad_left_slide_log", "left_swipes", "The lock screen was swiped left: to the advertiser.", _AD, _SCREEN
)
RIGHT_SWIPES = _event(
    "ml_ad_right_slide_log", "right_swipes", "The lock screen was swiped right: to the phone.", _AD, _SCREEN
)
EXPOSURES = _event(
    "ml_ad_exposure_log",
    "exposures",
    "An advertisement was shown on the lock screen.",
    _AD,
    Field("slot", Kind.INT, "Its place in the row of advertisements of that hour."),
)
INSTALLS = _event(
    "ml_app_install_log",
    "installs",
    "An app was installed.",
    Field("app_id", Kind.STRING, "The app."),
    Field("ad_id", Kind.STRING, "The advertisement that led to it.", nullable=True),
    Field("channel", Kind.STRING, "Where the app came from."),
)
LOGINS = _event(
    "ml_user_login_log",
    "logins",
    "An account was signed in on a device.",
    Field("method", Kind.STRING, "password, code or token."),
)
VERIFICATIONS = _event(
    "ml_message_verify_log",
    "verifications",
    "A code that was sent to a phone number was entered.",
    Field("phone", Kind.STRING, "The number with + and country code, or as it is dialled in `country`."),
    Field("ok", Kind.BOOLEAN, "Whether the code was right."),
    Field("attempt", Kind.INT, "Counts the attempts with one number, from 1."),
    Field("country", Kind.STRING, "Two letters; for a number without its country code.", nullable=True),
)
INVITES = _event(
    "ml_invite_log",
    "invites",
    "A new user signed up with the code of `user_id`, the inviter.",
    Field("invitee_id", Kind.STRING, "The new user."),
    Field("code", Kind.STRING, "The inviter's code."),
    Field("invitee_device_id", Kind.STRING, "The phone that the new user signed up on."),
    Field("invitee_ip", Kind.STRING, "The address that this phone had."),
)
TASKS = _event(
    "ml_task_log",
    "tasks",
    "A step of a task was done.",
    Field("task_id", Kind.STRING, "The task."),
    Field("step", Kind.INT, "The step that was done, from 1."),
    Field("steps", Kind.INT, "How many steps the task has."),
)

LOGS = (CREDITS, LEFT_SWIPES, RIGHT_SWIPES, EXPOSURES, INSTALLS, LOGINS, VERIFICATIONS)
"""The events that `collect` writes into tables of their own."""

EVENTS: dict[str, EventSchema] = {schema.topic: schema for schema in (*LOGS, INVITES, TASKS)}
"""Every kind of event, by topic."""
