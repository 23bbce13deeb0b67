"""`tidelog consume`: prints records of topics in any form, from any offset or time to another."""

from __future__ import annotations

import json
import re
import select
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from tidelog.cli.flags import WrongUsage, bootstrap_server, switch, valued
from tidelog.cli.name_completion import complete_groups, complete_topics
from tidelog.cli.output import Signals, failing, settings_from, tool_command
from tidelog.cli.terminal import visible_json
from tidelog.cli.topic_checks import check_answered, check_topic

if TYPE_CHECKING:
    from tidelog.cli.formats.offsets import OffsetRange, Span
    from tidelog.cli.formats.schemas import SchemaFile
    from tidelog.cli.formats.writer import Shown
    from tidelog.clients.consumer.blocking import Consumer
    from tidelog.partitions import TopicPartition
    from tidelog.records.loops import ConsumerRecord

POLL_SECONDS = 1.0
# With an end, polls are short: the last offsets of a partition may hold no record to print.
BOUNDED_POLL_SECONDS = 0.1
BATCH = 500

Line = Callable[["Shown"], bytes]


@tool_command("consume")
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...", shell_complete=complete_topics)
@bootstrap_server
@valued("--command-config", "FILE", "A properties file with settings of the consumer.")
@click.option("-X", "--command-property", metavar="NAME=VALUE", multiple=True, help="A consumer's setting.")
@click.option(
    "-o",
    "--offset",
    default="start",
    metavar="RANGE",
    show_default=True,
    help="start, end, N, +N, -N, FROM:TO, :end, @TIME, @TIME:TIME; a TIME is 2026-01-31, an RFC 3339 moment, "
    "milliseconds, seconds or a duration such as -1h.",
)
@click.option(
    "-f",
    "--format",
    "layout",
    default="json",
    metavar="FORMAT",
    show_default=True,
    help="json, or text with %t %p %o %k %v %h{...} %d %e %a %i and their modifiers: docs/cli.md.",
)
@click.option("-J", "--envelope", is_flag=True, help="Print kcat's JSON envelope, which produce -J reads.")
@click.option("-n", "--num", type=click.IntRange(min=0), default=0, help="End after N records (default all).")
@click.option("-p", "--partitions", metavar="N[,...]", help="Read only these partitions.")
@click.option("-r", "--regex", is_flag=True, help="Topics are regular expressions of whole names.")
@click.option(
    "-g",
    "--group",
    metavar="ID",
    shell_complete=complete_groups,
    help="Read as a member of a group, and commit.",
)
@switch("--meta-only", "Print everything but values; for -f json.")
@click.option(
    "--pretty-print",
    is_flag=False,
    flag_value="true",
    type=click.Choice(["auto", "true", "false"]),
    default="auto",
    help="Print -f json over several lines; the default on a terminal.",
)
@switch("--read-committed", "Leave out records of open and aborted transactions.")
@switch("--print-control-records", "Print the records that end transactions, too.")
@valued("--rack", "ID", "The rack of this consumer: it reads from replicas there.")
@valued("--key-schema", "FILE[#MESSAGE]", "Keys by an Avro or Protobuf schema, shown as JSON.")
@valued("--value-schema", "FILE[#MESSAGE]", "Values by an Avro or Protobuf schema, shown as JSON.")
@click.option(
    "--schema-framing",
    type=click.Choice(["none", "confluent"]),
    default="none",
    show_default=True,
    help="What stands before the data: nothing, or a schema registry's id.",
)
@click.pass_context
def consume(ctx: click.Context, /, **flags: object) -> None:
    """Print the records of topics, as JSON or in a format of your own."""
    reading = None
    code = 0
    with failing():
        reading = Reading.of(ctx, flags)
        code = read(reading)
    ctx.exit(code)


@dataclass(slots=True, frozen=True)
class Reading:
    """The flags of one call, checked."""

    settings: dict[str, object]
    topics: tuple[str, ...]
    regex: bool
    partitions: tuple[int, ...]
    group: str | None
    wanted: OffsetRange
    line: Line
    limit: int
    details: bool
    marks: bool
    control_records: bool
    broker: bool
    key: SchemaFile | None
    value: SchemaFile | None

    @classmethod
    def of(cls, ctx: click.Context, flags: dict[str, object]) -> Reading:
        from tidelog.cli.formats.offsets import parse_offsets
        from tidelog.cli.formats.writer import RecordFormatter

        group = str(flags["group"]) if flags["group"] else None
        partitions = partition_numbers(flags["partitions"], ctx)
        wanted = parse_offsets(str(flags["offset"]), round(time.time() * 1000))
        if group and partitions:
            raise WrongUsage("--group does not go with --partitions: the group assigns them", ctx)
        if group and not is_plain(wanted):
            raise WrongUsage("--group goes with --offset start and --offset end", ctx)
        layout = str(flags["layout"])
        if flags["envelope"] and layout != "json":
            raise WrongUsage("-J does not go with --format", ctx)
        if flags["meta_only"] and (flags["envelope"] or layout != "json"):
            raise WrongUsage("--meta-only goes with -f json alone", ctx)
        terminal = sys.stdout.isatty()
        line: Line
        details = marks = False
        if flags["envelope"]:
            line = envelope_lines(terminal)
        elif layout == "json":
            pretty = flags["pretty_print"] == "true" or (flags["pretty_print"] == "auto" and terminal)
            line = object_lines(pretty, bool(flags["meta_only"]), terminal)
        else:
            formatter = RecordFormatter(layout, escape=terminal)
            line, details, marks = formatter.write, formatter.needs_batch, formatter.needs_marks
        control = bool(flags["print_control_records"])
        return cls(
            settings_of(flags, group, wanted),
            tuple(str(topic) for topic in as_tuple(flags["topics"])),
            bool(flags["regex"]),
            partitions,
            group,
            wanted,
            line,
            int(str(flags["num"])),
            details or control,
            marks,
            control,
            bool(flags["envelope"]),
            schema_of(flags, "key_schema"),
            schema_of(flags, "value_schema"),
        )


def as_tuple(values: object) -> tuple[object, ...]:
    assert isinstance(values, tuple)
    return values


def partition_numbers(text: object, ctx: click.Context) -> tuple[int, ...]:
    if text is None:
        return ()
    parts = str(text).split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise WrongUsage(f"--partitions is {text!r}; expected numbers such as 0,3", ctx)
    return tuple(int(part) for part in parts)


def is_plain(wanted: OffsetRange) -> bool:
    """Whether reading begins at the start or the end, and goes on."""
    from tidelog.cli.formats.offsets import END, START

    return wanted.end is None and wanted.start in (START, END)


def settings_of(flags: dict[str, object], group: str | None, wanted: OffsetRange) -> dict[str, object]:
    from tidelog.cli.formats.offsets import END

    file = flags["command_config"]
    settings = settings_from(
        None if file is None else str(file),
        tuple(str(text) for text in as_tuple(flags["command_property"])),
        bootstrap_servers=flags["bootstrap_server"],
        group_id=group,
        client_rack=flags["rack"],
        isolation_level="read_committed" if flags["read_committed"] else None,
    )
    settings["auto.offset.reset"] = "latest" if wanted.start == END else "earliest"
    settings.setdefault("client.id", "tidelog-consume")
    settings.setdefault("default.api.timeout.ms", 15_000)
    settings.setdefault("allow.auto.create.topics", "false")  # a misspelled name must not create a topic
    return settings


def schema_of(flags: dict[str, object], name: str) -> SchemaFile | None:
    if flags[name] is None:
        return None
    from tidelog.cli.formats.schemas import load_schema

    return load_schema(str(flags[name]), framing=str(flags["schema_framing"]))


def envelope_lines(terminal: bool) -> Line:
    from tidelog.cli.formats.envelope import envelope

    return lambda shown: json_line(envelope(shown.record, shown.broker), None, terminal)


def object_lines(pretty: bool, meta_only: bool, terminal: bool) -> Line:
    from tidelog.cli.formats.envelope import rpk_object

    indent = 2 if pretty else None
    return lambda shown: json_line(rpk_object(shown.record, meta_only=meta_only), indent, terminal)


def json_line(value: object, indent: int | None, terminal: bool) -> bytes:
    separators = None if indent else (",", ":")
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators)
    return (visible_json(text) if terminal else text).encode() + b"\n"


def read(reading: Reading) -> int:
    """Print records up to the limits; returns the exit code."""
    from tidelog.clients.consumer.blocking import Consumer
    from tidelog.clients.errors import WakeupException

    try:
        with Consumer(reading.settings) as consumer:
            if reading.details:  # before the first fetch, which begins with the choice of partitions
                from tidelog.clients.consumer.details import read_details

                read_details(consumer, control_records=reading.control_records)
            spans = choose(consumer, reading)  # Ctrl-C ends it as it is: only polls notice a wakeup
            with Signals(consumer.wakeup) as signals:
                RecordPrinter(reading, consumer).run(spans)
    except WakeupException:
        return signals.exit_code
    return 0


class RecordPrinter:
    """Polls and prints, until the limits are reached."""

    def __init__(self, reading: Reading, consumer: Consumer) -> None:
        self._reading = reading
        self._consumer = consumer
        self._out = sys.stdout.buffer
        self._count = 0
        self._ends: dict[TopicPartition, int] = {}
        self._brokers: dict[tuple[str, int], int] = {}
        self._first = first_offset(reading.wanted)

    def run(self, spans: dict[TopicPartition, Span] | None) -> None:
        """Print the records of `spans`; of all subscribed partitions without spans."""
        if spans is not None:
            self._ends = {name: span.end for name, span in spans.items() if span.end is not None}
            if not spans:
                return
        bounded = bool(self._ends)
        limit = self._reading.limit
        while not limit or self._count < limit:
            most = min(BATCH, limit - self._count) if limit else BATCH
            records = self._consumer.poll(BOUNDED_POLL_SECONDS if bounded else POLL_SECONDS, most)
            for record in records:
                self._print(record)
            if records:
                self._out.flush()
            elif reader_is_gone():
                return
            if bounded and self._at_the_ends():
                return

    def _at_the_ends(self) -> bool:
        """Whether every partition was read up to its end. Pauses each partition that has come to its end."""
        for name, end in list(self._ends.items()):
            if self._consumer.position(name) >= end:
                del self._ends[name]
                self._consumer.pause(name)
        return not self._ends

    def _print(self, record: ConsumerRecord[bytes, bytes]) -> None:
        from tidelog.cli.formats.writer import Shown
        from tidelog.partitions import TopicPartition

        name = TopicPartition(record.topic, record.partition)
        end = self._ends.get(name)
        if record.offset < self._first or (end is not None and record.offset >= end):
            return
        self._count += 1
        reading = self._reading
        marks = None
        if reading.marks:
            from tidelog.clients.consumer.details import watermarks

            marks = watermarks(self._consumer, name)
        self._decode(record)
        broker = self._broker(name) if reading.broker else -1
        self._out.write(reading.line(Shown(record, self._count, marks, broker)))

    def _decode(self, record: ConsumerRecord[bytes, bytes]) -> None:
        key, value = record.key, record.value
        try:
            if self._reading.key is not None and key is not None:
                key = self._reading.key.decode(key)
            if self._reading.value is not None and value is not None:
                value = self._reading.value.decode(value)
        except ValueError as error:
            self._out.flush()
            raise ValueError(
                f"{record.topic}-{record.partition} at offset {record.offset}: {error}"
            ) from None
        if self._reading.key is not None or self._reading.value is not None:
            record.replace(key, value)

    def _broker(self, name: TopicPartition) -> int:
        if name not in self._brokers:
            for info in self._consumer.partitions_for(name.topic):
                self._brokers[name.topic, info.partition] = -1 if info.leader is None else info.leader
        return self._brokers.get(name, -1)


def choose(consumer: Consumer, reading: Reading) -> dict[TopicPartition, Span] | None:
    """Subscribe, or assign the partitions with records to read. Returns what is read where it is assigned."""
    from tidelog.cli.formats.offsets import resolve

    if reading.group is not None or (is_plain(reading.wanted) and not reading.partitions):
        subscribe(consumer, reading)
        return None
    spans = resolve(consumer, chosen_partitions(consumer, reading), reading.wanted)
    consumer.assign(list(spans))
    for name, span in spans.items():
        consumer.seek(name, span.start)
    first = first_offset(reading.wanted)
    if spans and all(span.start < first for span in spans.values()):
        last = max(span.start for span in spans.values())
        click.echo(f"waiting for offset {first}: the log ends at {last}", err=True)
    return spans


def first_offset(wanted: OffsetRange) -> int:
    """The offset below which no record is printed."""
    from tidelog.cli.formats.offsets import Anchor

    return wanted.start.value if wanted.start.anchor is Anchor.OFFSET else 0


def reader_is_gone() -> bool:
    """Whether the program that read our pipe has ended: `consume | head -1` ends so."""
    try:
        watched = select.poll()
        watched.register(sys.stdout.fileno(), select.POLLERR)
    except (OSError, ValueError):  # no file descriptor: a test's buffer
        return False
    return any(events & select.POLLERR for _, events in watched.poll(0))


def subscribe(consumer: Consumer, reading: Reading) -> None:
    if reading.regex:
        if not matching_topics(consumer, reading):  # fails if no broker answers
            click.echo(f"no topic matches {' or '.join(reading.topics)}; waiting for one", err=True)
        consumer.subscribe(pattern=one_pattern(reading.topics))
        return
    for topic in reading.topics:
        check_topic(consumer, topic)
        check_answered(consumer, reading.settings["bootstrap.servers"])
    consumer.subscribe(reading.topics)


def matching_topics(consumer: Consumer, reading: Reading) -> list[str]:
    from tidelog.clients.errors import TimeoutException

    pattern = one_pattern(reading.topics)
    try:
        return sorted(name for name in consumer.topics() if pattern.fullmatch(name))
    except TimeoutException:
        check_answered(consumer, reading.settings["bootstrap.servers"])
        raise


def one_pattern(patterns: Iterable[str]) -> re.Pattern[str]:
    """A pattern for names that any of these matches. Raises ValueError for what is no expression."""
    compiled = []
    for text in patterns:
        try:
            compiled.append(re.compile(text))
        except re.error as error:
            raise ValueError(f"{text} is not a regular expression: {error}") from None
    if len(compiled) == 1:
        return compiled[0]
    try:
        return re.compile("|".join(f"(?:{each.pattern})" for each in compiled))
    except re.error as error:
        # Each is right alone: flags such as (?i) stand at the start of an expression only.
        raise ValueError(f"the expressions do not go together: {error}; write (?i:...)") from None


def chosen_partitions(consumer: Consumer, reading: Reading) -> list[TopicPartition]:
    from tidelog.errors import UnknownTopicOrPartition
    from tidelog.partitions import TopicPartition

    found: list[TopicPartition] = []
    topics = matching_topics(consumer, reading) if reading.regex else list(reading.topics)
    if not topics:
        raise UnknownTopicOrPartition(f"no topic matches {' or '.join(reading.topics)}")
    for topic in topics:
        if not reading.regex:
            check_topic(consumer, topic)
            check_answered(consumer, reading.settings["bootstrap.servers"])
        there = [info.partition for info in consumer.partitions_for(topic)]
        wanted = reading.partitions or there
        missing = set(wanted) - set(there)
        if missing and not reading.regex:
            raise UnknownTopicOrPartition(f"topic {topic!r} has no partition {min(missing)}")
        found += [TopicPartition(topic, index) for index in sorted(set(wanted) & set(there))]
    return found
