"""`tidelog sql`: queries over topics, with DuckDB on the columns that the consumer fetches."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tidelog.cli.flags import WrongUsage, bootstrap_server, switch, valued
from tidelog.cli.output import FORM, failing, print_json, settings_from, tool_command

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

    from tidelog.cli.sql_topics import TopicRead
    from tidelog.clients.consumer.blocking import Consumer

MISSING = "tidelog sql needs DuckDB and pyarrow: pip install 'tidelog[sql]'"
MISSING_TABLE = re.compile(r"Table with name (\S+) does not exist")
OUTPUTS = ("table", "json", "csv", "yaml", "parquet")


@tool_command("sql")
@click.argument("query")
@bootstrap_server
@valued("--command-config", "FILE", "A properties file with settings of the consumer.")
@click.option(
    "--output", type=click.Choice(OUTPUTS), default="table", show_default=True, help="The form of the result."
)
@valued("--to", "FILE", "Write the result into a file; --output parquet needs it.")
@switch("--explain", "Print what would be fetched of each topic, and fetch nothing.")
@switch("--ordered", "Trust that timestamps never go back: reading ends at the first one behind a range.")
@switch("--read-committed", "Leave out records of open and aborted transactions.")
@click.pass_context
def sql(
    ctx: click.Context,
    query: str,
    bootstrap_server: str,
    command_config: str | None,
    output: str,
    to: str | None,
    explain: bool,
    ordered: bool,
    read_committed: bool,
) -> None:
    """Run a SELECT over topics: they are tables with partition, offset, timestamp, key, value and headers.

    Fields of JSON values are columns, too. Files such as 'users.parquet' are tables. Topics with names that
    are no words of SQL stand in double quotes.
    """
    if output == "parquet" and to is None:
        raise WrongUsage("--output parquet needs --to FILE", ctx)
    with failing():
        settings = settings_from(
            command_config,
            bootstrap_servers=bootstrap_server,
            isolation_level="read_committed" if read_committed else None,
        )
        settings.setdefault("client.id", "tidelog-sql")
        settings.setdefault("default.api.timeout.ms", 15_000)
        settings["allow.auto.create.topics"] = "false"
        ctx.meta[FORM] = "json" if output == "parquet" else output
        result = run(query, settings, explain=explain, ordered=ordered)
        if result is not None:
            write(result, output, to)


def connect() -> duckdb.DuckDBPyConnection:
    """A database in memory, which gets nothing from the internet."""
    try:
        import duckdb
        import pyarrow  # noqa: F401  # DuckDB takes its tables
    except ImportError:
        raise ValueError(MISSING) from None
    connection = duckdb.connect(config={"autoinstall_known_extensions": "false"})
    connection.execute("set TimeZone = 'UTC'")
    return connection


def run(query: str, settings: dict[str, object], *, explain: bool, ordered: bool) -> pa.Table | None:
    """The result of a query; None after `explain`. Raises ValueError with DuckDB's words."""
    connection = connect()
    import duckdb

    from tidelog.cli.sql_plan import Evaluator, plan_query
    from tidelog.cli.sql_topics import add_topic, fetch, topic_read
    from tidelog.clients.consumer.blocking import Consumer
    from tidelog.metadata.state import INTERNAL_TOPICS

    def execute(text: str, values: list[object]) -> object:
        rows = connection.execute(text, values).fetchall()  # a result that is left over blocks the connection
        return rows[0][0] if rows else None

    evaluator = Evaluator(execute)
    evaluator.tree(query)  # fails before a broker is asked
    with Consumer(settings) as consumer:
        # A consumer does not list internal topics.
        known = topic_names(consumer, settings) | {name for name in INTERNAL_TOPICS if name in query}
        plan = plan_query(query, dict.fromkeys(known), evaluator)
        check_names(plan.topics)
        reads = [topic_read(consumer, topic, wanted, ordered) for topic, wanted in plan.topics.items()]
        if explain:
            print_explained(reads)
            return None
        for read in reads:
            add_topic(connection, read.topic, fetch(consumer, read), plan)
    try:
        return connection.sql(query).to_arrow_table()
    except duckdb.Error as error:
        raise ValueError(missing_topic(str(error), known) or str(error)) from None


def check_names(topics: Iterable[str]) -> None:
    """Raise ValueError for topics that are one table: DuckDB's names have no case."""
    found: dict[str, str] = {}
    for topic in topics:
        other = found.setdefault(topic.lower(), topic)
        if other != topic:
            raise ValueError(f"topics {other!r} and {topic!r} are one name in SQL: a query reads one of them")


def missing_topic(words: str, known: Iterable[str]) -> str | None:
    """Our words for a table that is neither a topic nor a file: DuckDB's would propose its own tables."""
    found = MISSING_TABLE.search(words)
    if found is None:
        return None
    close = difflib.get_close_matches(found[1], list(known), 1)
    return f"there is no topic {found[1]!r}" + (f"; did you mean {close[0]!r}?" if close else "")


def topic_names(consumer: Consumer, settings: dict[str, object]) -> set[str]:
    from tidelog.cli.topic_checks import UNKNOWN_TOPIC_SECONDS, check_answered
    from tidelog.clients.errors import TimeoutException

    try:
        return consumer.topics(UNKNOWN_TOPIC_SECONDS)
    except TimeoutException:
        check_answered(consumer, settings["bootstrap.servers"])
        return consumer.topics()  # a slow one may need all of the time


def print_explained(reads: list[TopicRead]) -> None:
    print_json([read.as_json() for read in reads])


def write(result: pa.Table, output: str, to: str | None) -> None:
    if output == "parquet":
        import pyarrow.parquet as pq

        pq.write_table(result, to)
        return
    text = result_text(result, output)
    if to is not None:
        Path(to).write_text(text)
    else:
        sys.stdout.write(text)


def result_text(result: pa.Table, output: str) -> str:
    """The rows of a result in a form; columns of the same name are numbered."""
    import json

    from tidelog.cli.formats.avro_json import to_json
    from tidelog.cli.output_forms import csv_text, table_text, write_form

    names = unique(result.column_names)
    rows: list[dict[str, object]] = [
        {name: to_json(plain(value)) for name, value in zip(names, values, strict=True)}
        for values in zip(*(column.to_pylist() for column in result.columns), strict=True)
    ]
    if output == "json":
        return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    if output == "yaml":
        return write_form(rows, output)
    form = table_text if output == "table" else csv_text
    return form(rows) if rows else form([dict.fromkeys(names)]).partition("\n")[0] + "\n"


def plain(value: object) -> object:
    """Sums of whole numbers are decimals without places, which JSON has as whole numbers."""
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    return value


def unique(names: list[str]) -> list[str]:
    found: list[str] = []
    for name in names:
        number, chosen = 1, name
        while chosen in found:
            number += 1
            chosen = f"{name}_{number}"
        found.append(chosen)
    return found
