"""Writes events to Cassandra: by user, by device and by advertisement, each with the day.

Missing keyspaces, tables and columns are created. Rows are upserts whose key ends with the event's id: a
replayed micro-batch, or an event that was sent twice, changes nothing. So the driver may send a statement
again by itself. A field that an event lacks is left unset: a null would be a tombstone. Writes wait for a
Cassandra that is down. If it stays down, the micro-batch fails, and the next start replays it.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, cast

from tidelog.config import ConfigError
from tidelog.spark.pipelines.declare import Setting, SettingValue
from tidelog.spark.pipelines.events import EventSchema, Kind

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

TYPES = {Kind.STRING: "text", Kind.LONG: "bigint", Kind.INT: "int", Kind.BOOLEAN: "boolean"}
TABLES = {"events_by_user": "user_id", "events_by_device": "device_id", "events_by_ad": "ad_id"}
"""The tables, and the column that partitions each of them, beside the day."""
CHUNK = 2_000
FIRST_WAIT = 0.5
LONGEST_WAIT = 10.0
_NAME = re.compile(r"[a-z][a-z0-9_]{0,47}")

Value = str | int | bool | None
Bound = Value | object
"""A value of an insert: of the event, or the driver's mark of a column that the insert leaves as it is."""


class CassandraError(RuntimeError):
    """Cassandra could not be written. The message says why."""


class _Session(Protocol):
    """The methods of the driver's session that are used here."""

    def execute(self, query: str) -> Iterable[tuple[str, str]]: ...
    def prepare(self, query: str) -> _Statement: ...


class _Statement(Protocol):
    """The attribute of the driver's prepared statements that is set here."""

    is_idempotent: bool


@dataclass(frozen=True, slots=True)
class Target:
    """The Cassandra to write to, and the settings of writes."""

    contact_points: tuple[str, ...]
    port: int
    keyspace: str
    username: str
    password: str = field(repr=False)
    datacenter: str
    replication: int
    consistency: str
    concurrency: int
    wait_seconds: float

    @classmethod
    def of(cls, settings: Mapping[str, SettingValue]) -> Target:
        text = {name: str(value) for name, value in settings.items()}
        points = [point.strip() for point in text["cassandra.contact.points"].split(",")]
        return cls(
            tuple(point for point in points if point),
            int(settings["cassandra.port"]),
            text["cassandra.keyspace"],
            text["cassandra.username"],
            text["cassandra.password"],
            text["cassandra.datacenter"],
            int(settings["cassandra.replication"]),
            text["cassandra.consistency"].upper(),
            int(settings["cassandra.concurrency"]),
            float(settings["cassandra.wait.seconds"]),
        )

    @property
    def where(self) -> str:
        return f"{', '.join(self.contact_points)}, port {self.port}"


LEVELS = ("ONE", "LOCAL_ONE", "TWO", "THREE", "QUORUM", "LOCAL_QUORUM", "EACH_QUORUM", "ALL")
SETTINGS = (
    Setting("cassandra.contact.points", "", "Hosts of a Cassandra that gets the events, too; empty: none."),
    Setting(
        "cassandra.port",
        9042,
        "Cassandra's port.",
        lambda value: 0 < int(value) < 65536,
        "a port, 1 to 65535",
    ),
    Setting(
        "cassandra.keyspace",
        "tidelog",
        "The keyspace, created if it is missing.",
        lambda value: _NAME.fullmatch(str(value)) is not None,
        "lowercase letters, digits and underscores, at most 48",
    ),
    Setting("cassandra.username", "", "The user name; empty: no login."),
    Setting("cassandra.password", "", "The password. Better in a file of settings than in a command."),
    Setting(
        "cassandra.datacenter",
        "",
        "The data centre of the writes and of the keyspace; empty: any.",
        lambda value: re.fullmatch(r"[A-Za-z0-9_.-]*", str(value)) is not None,
        "letters, digits, dots, dashes and underscores",
    ),
    Setting(
        "cassandra.replication",
        1,
        "The replication factor of a keyspace that is created here.",
        lambda value: int(value) > 0,
        "a whole number above 0",
    ),
    Setting(
        "cassandra.consistency",
        "LOCAL_QUORUM",
        "The consistency level of writes.",
        lambda value: str(value).upper() in LEVELS,
        f"one of {', '.join(LEVELS)}",
    ),
    Setting(
        "cassandra.concurrency",
        64,
        "The most rows that a task has in flight.",
        lambda value: 0 < int(value) <= 4096,
        "a whole number, 1 to 4096",
    ),
    Setting(
        "cassandra.wait.seconds",
        60.0,
        "How long to wait for a Cassandra that is down before the micro-batch fails.",
        lambda value: float(value) >= 0,
        "a number of seconds, 0 or more",
    ),
)


class Keyspace:
    """The tables of a run. The first flow creates them before the first row, for all flows."""

    def __init__(self, target: Target, schemas: tuple[EventSchema, ...]) -> None:
        self._target = target
        self._schemas = schemas
        self._lock = threading.Lock()
        self._made = False

    def write(self, events: DataFrame, schema: EventSchema) -> int:
        """Write events of one kind, with the columns of the schema and `day`; returns the number of rows."""
        from pyspark.sql import functions as F

        self._make()
        rows = events.mapInArrow(partition_writer(schema, self._target), "rows long")
        written = rows.agg(F.sum("rows")).first()
        return int(written[0] or 0) if written is not None else 0

    def _make(self) -> None:
        with self._lock:
            if not self._made:
                with connected(self._target) as session:
                    make_tables(session, self._target, self._schemas)
                self._made = True


def partition_writer(
    schema: EventSchema, target: Target
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function of a task, which writes its events on one connection, a bounded number at a time."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        written = 0
        with connected(target) as session:
            statements = {table: prepared(session, table, schema, target) for table in tables_of(schema)}
            for batch in batches:
                for start in range(0, batch.num_rows, CHUNK):
                    part = batch.slice(start, CHUNK)
                    for table, statement in statements.items():
                        rows = rows_for(table, schema, part)
                        put(session, statement, rows, target)
                        written += len(rows)
        yield pa.RecordBatch.from_pydict({"rows": pa.array([written], pa.int64())})

    return write


def prepared(session: _Session, table: str, schema: EventSchema, target: Target) -> _Statement:
    """The insert of a table. It is idempotent: the driver may send it again after a time-out."""
    statement = session.prepare(insert_statement(table, schema, target))
    statement.is_idempotent = True
    return statement


def tables_of(schema: EventSchema) -> tuple[str, ...]:
    return tuple(table for table, subject in TABLES.items() if subject in schema.names)


def columns_of(schema: EventSchema) -> tuple[str, ...]:
    return ("kind", "day", *schema.names)


def rows_for(table: str, schema: EventSchema, batch: pa.RecordBatch) -> list[tuple[Bound, ...]]:
    """The values of an insert for each event that belongs in the table; unset where the event has none."""
    from cassandra.query import UNSET_VALUE

    columns: list[list[Bound]] = [[schema.table] * batch.num_rows]
    for name in columns_of(schema)[1:]:
        values = batch.column(name)
        found = cast(list[Bound], values.to_pylist())
        columns.append([UNSET_VALUE if one is None else one for one in found] if values.null_count else found)
    subject = columns_of(schema).index(TABLES[table])
    return [row for row in zip(*columns, strict=True) if row[subject] is not UNSET_VALUE]


def insert_statement(table: str, schema: EventSchema, target: Target) -> str:
    names = columns_of(schema)
    marks = ", ".join("?" for _ in names)
    return f"INSERT INTO {target.keyspace}.{table} ({', '.join(names)}) VALUES ({marks})"


def make_tables(session: _Session, target: Target, schemas: tuple[EventSchema, ...]) -> None:
    """Create missing keyspaces, tables and columns, and leave existing ones as they are."""
    strategy = (
        f"'NetworkTopologyStrategy', '{target.datacenter}'"
        if target.datacenter
        else "'SimpleStrategy', 'replication_factor'"
    )
    columns = {"kind": "text", "day": "date"}
    for schema in schemas:
        columns |= {field.name: TYPES[field.kind] for field in schema.fields}
    columns["ts"] = "timestamp"
    there = _columns_there(session, target)
    if not there:
        session.execute(
            f"CREATE KEYSPACE IF NOT EXISTS {target.keyspace} "
            f"WITH replication = {{'class': {strategy}: {target.replication}}}"
        )
    declared = ", ".join(f"{name} {kind}" for name, kind in columns.items())
    for table, subject in TABLES.items():
        if table not in there:
            session.execute(
                f"CREATE TABLE IF NOT EXISTS {target.keyspace}.{table} ({declared}, PRIMARY KEY "
                f"(({subject}, day), ts, event_id)) WITH CLUSTERING ORDER BY (ts DESC, event_id ASC)"
            )
            continue
        for name in columns.keys() - there[table]:
            session.execute(f"ALTER TABLE {target.keyspace}.{table} ADD IF NOT EXISTS {name} {columns[name]}")


def _columns_there(session: _Session, target: Target) -> dict[str, set[str]]:
    """The existing columns of the tables of the keyspace."""
    found: dict[str, set[str]] = {}
    for table, column in session.execute(
        f"SELECT table_name, column_name FROM system_schema.columns WHERE keyspace_name = '{target.keyspace}'"
    ):
        found.setdefault(table, set()).add(column)
    return found


def put(session: _Session, statement: _Statement, rows: list[tuple[Bound, ...]], target: Target) -> None:
    """Write rows. Rows that fail with a temporary error are retried until the time is up."""
    from cassandra.concurrent import execute_concurrent_with_args

    deadline = time.monotonic() + target.wait_seconds
    wait = FIRST_WAIT
    while rows:
        results = execute_concurrent_with_args(
            session, statement, rows, concurrency=target.concurrency, raise_on_first_error=False
        )
        failed = [(row, result) for row, (good, result) in zip(rows, results, strict=True) if not good]
        if not failed:
            return
        error = cast(Exception, failed[0][1])
        if not is_temporary(error):
            raise CassandraError(f"Cassandra ({target.where}) refuses a row: {_in_words(error)}")
        if time.monotonic() + wait > deadline:
            raise unreachable(target) from error
        time.sleep(wait)
        wait = min(2 * wait, LONGEST_WAIT)
        rows = [row for row, _ in failed]


@contextmanager
def connected(target: Target) -> Iterator[_Session]:
    """A session of the driver, once Cassandra answers. Closed at the end."""
    from cassandra.cluster import Cluster

    deadline = time.monotonic() + target.wait_seconds
    wait = FIRST_WAIT
    while True:
        cluster = _cluster(target)
        try:
            session = cluster.connect()
            break
        except Exception as error:
            cluster.shutdown()
            if not is_temporary(error):
                raise CassandraError(f"Cassandra ({target.where}): {_in_words(error)}") from error
            if time.monotonic() + wait > deadline:
                raise unreachable(target) from error
        time.sleep(wait)
        wait = min(2 * wait, LONGEST_WAIT)
    assert isinstance(cluster, Cluster)
    try:
        yield cast(_Session, session)
    finally:
        cluster.shutdown()


def _cluster(target: Target):  # type: ignore[no-untyped-def]  # the driver has no types
    from cassandra.auth import PlainTextAuthProvider
    from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
    from cassandra.policies import DCAwareRoundRobinPolicy, RoundRobinPolicy, TokenAwarePolicy

    from cassandra import ConsistencyLevel

    nearest = DCAwareRoundRobinPolicy(target.datacenter) if target.datacenter else RoundRobinPolicy()
    profile = ExecutionProfile(
        load_balancing_policy=TokenAwarePolicy(nearest),
        consistency_level=ConsistencyLevel.name_to_value[target.consistency],
    )
    signs_in = PlainTextAuthProvider(target.username, target.password) if target.username else None
    return Cluster(
        list(target.contact_points),
        port=target.port,
        auth_provider=signs_in,
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
        # The tables are known here: fetching the schema of the whole cluster takes longer than connecting.
        schema_metadata_enabled=False,
    )


def is_temporary(error: Exception) -> bool:
    """Whether a retry may help: Cassandra is down or busy, and did not refuse."""
    from cassandra.cluster import NoHostAvailable
    from cassandra.connection import ConnectionException

    from cassandra import AuthenticationFailed, OperationTimedOut, Timeout, Unavailable

    if isinstance(error, NoHostAvailable):
        causes = error.errors.values() if isinstance(error.errors, dict) else error.errors
        return not any(isinstance(cause, AuthenticationFailed) for cause in causes)
    return isinstance(error, OperationTimedOut | Timeout | Unavailable | ConnectionException | OSError)


def unreachable(target: Target) -> CassandraError:
    return CassandraError(
        f"Cassandra ({target.where}) has not answered for {target.wait_seconds:g} s; nothing is lost, the "
        "next start replays the micro-batch"
    )


def _in_words(error: Exception) -> str:
    """One line of the driver's message, or the name of the error if there is none."""
    text = " ".join(str(error).split())
    return text[:300] or type(error).__name__


def check_target(settings: Mapping[str, SettingValue]) -> None:
    """Raise ConfigError for a user name without a password, or a password without a user name."""
    if bool(settings["cassandra.username"]) != bool(settings["cassandra.password"]):
        raise ConfigError("cassandra.username", None, "expected a user name and a password, or neither")
