"""`tidelog produce`: writes the records of standard input, in any form, and prints where each one went."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from io import BufferedReader, BytesIO
from typing import TYPE_CHECKING

import click

from tidelog.cli.consume import as_tuple
from tidelog.cli.flags import WrongUsage, bootstrap_server, error_words, valued
from tidelog.cli.name_completion import complete_topics
from tidelog.cli.output import Signals, failing, settings_from, tool_command
from tidelog.errors import KafkaError

if TYPE_CHECKING:
    from tidelog.cli.formats.envelope import Headers, NewRecord
    from tidelog.cli.formats.schemas import SchemaFile
    from tidelog.cli.formats.writer import RecordFormatter
    from tidelog.clients.producer.blocking import Producer
    from tidelog.records.loops import RecordMetadata

ACKNOWLEDGED = "Produced to partition %p at offset %o with timestamp %d.\\n"


@tool_command("produce")
@click.argument("topic", required=False, shell_complete=complete_topics)
@bootstrap_server
@valued("--command-config", "FILE", "A properties file with settings of the producer.")
@click.option("-X", "--command-property", metavar="NAME=VALUE", multiple=True, help="A producer's setting.")
@click.option(
    "-f",
    "--format",
    "layout",
    default="%v\\n",
    metavar="FORMAT",
    show_default=True,
    help="How records stand in the input: %t %p %d %k %v %h{...}, sizes %K %V %H, modifiers: docs/cli.md.",
)
@click.option("-J", "--envelope", is_flag=True, help="Lines are kcat's JSON envelopes, from consume -J.")
@click.option(
    "-o",
    "--output-format",
    default=ACKNOWLEDGED,
    metavar="FORMAT",
    help="What is printed for each written record: %t %p %o %k %v %d %i; '' for nothing.",
)
@click.option("-k", "--key", help="The key of every record.")
@click.option(
    "-p", "--partition", type=click.IntRange(min=0), metavar="N", help="The partition of every record."
)
@click.option("-H", "--header", metavar="NAME:VALUE", multiple=True, help="A header of every record.")
@click.option("-Z", "--tombstone", is_flag=True, help="Write empty values as tombstones (null).")
@click.option(
    "-z",
    "--compression",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    help="How batches are compressed (default none).",
)
@click.option(
    "--acks",
    type=click.Choice(["0", "1", "all", "-1"]),
    help="Which replicas confirm a record (default all).",
)
@valued("--key-schema", "FILE[#MESSAGE]", "Keys are JSON, written by an Avro or Protobuf schema.")
@valued("--value-schema", "FILE[#MESSAGE]", "Values are JSON, written by an Avro or Protobuf schema.")
@click.option(
    "--schema-framing",
    type=click.Choice(["none", "confluent"]),
    default="none",
    show_default=True,
    help="What stands before the data: nothing, or a schema registry's id.",
)
@click.option("--key-schema-id", type=click.IntRange(0, 2**31 - 1), help="The id of the keys' schema.")
@click.option("--value-schema-id", type=click.IntRange(0, 2**31 - 1), help="The id of the values' schema.")
@click.pass_context
def produce(ctx: click.Context, /, **flags: object) -> None:
    """Write the records of standard input to a topic: by default, each line is a value."""
    code = 0
    with failing():
        code = write(Writing.of(ctx, flags))
    ctx.exit(code)


@dataclass(slots=True, frozen=True)
class Writing:
    """The flags of one call, checked."""

    settings: dict[str, object]
    topic: str | None
    records: Callable[[Callable[[int], bytes]], Iterator[NewRecord]]
    shown: RecordFormatter | None
    key: bytes | None
    partition: int | None
    headers: Headers
    tombstones: bool
    key_schema: SchemaFile | None
    value_schema: SchemaFile | None

    @classmethod
    def of(cls, ctx: click.Context, flags: dict[str, object]) -> Writing:
        from tidelog.cli.formats.parser import RecordParser
        from tidelog.cli.formats.writer import RecordFormatter

        topic = str(flags["topic"]) if flags["topic"] else None
        records: Callable[[Callable[[int], bytes]], Iterator[NewRecord]]
        if flags["envelope"]:
            if flags["layout"] != "%v\\n":
                raise WrongUsage("-J does not go with --format", ctx)
            records = envelopes
        else:
            parser = RecordParser(str(flags["layout"]))
            if topic is None and not parser.has_topic:
                raise WrongUsage("give a topic, or a format with %t", ctx)
            if flags["key"] is not None and parser.has_key:
                raise WrongUsage("--key does not go with a format that has %k", ctx)
            records = parsed_by(parser)
        output = str(flags["output_format"])
        shown = RecordFormatter(output, escape=sys.stdout.isatty()) if output else None
        if shown is not None and (shown.needs_batch or shown.needs_marks):
            raise WrongUsage(f"--output-format {output!r}: %a, %x, %y, %[, %| and %] are of consume", ctx)
        partition = flags["partition"]
        return cls(
            settings_of(flags),
            topic,
            records,
            shown,
            None if flags["key"] is None else str(flags["key"]).encode("utf-8", "surrogateescape"),
            partition if isinstance(partition, int) else None,
            headers_of(as_tuple(flags["header"]), ctx),
            bool(flags["tombstone"]),
            schema_of(flags, "key_schema"),
            schema_of(flags, "value_schema"),
        )


def headers_of(texts: tuple[object, ...], ctx: click.Context) -> Headers:
    found: list[tuple[str, bytes | None]] = []
    for text in texts:
        name, colon, value = str(text).partition(":")
        if not colon:
            raise WrongUsage(f"--header {text!r}: expected NAME:VALUE", ctx)
        found.append((name, value.encode("utf-8", "surrogateescape")))
    return tuple(found)


def schema_of(flags: dict[str, object], name: str) -> SchemaFile | None:
    schema_id = flags[f"{name}_id"]
    if flags[name] is None:
        return None
    from tidelog.cli.formats.schemas import load_schema

    framing = str(flags["schema_framing"])
    if framing == "confluent" and not isinstance(schema_id, int):
        raise ValueError(f"--schema-framing confluent needs --{name.replace('_', '-')}-id")
    return load_schema(
        str(flags[name]), framing=framing, schema_id=schema_id if isinstance(schema_id, int) else None
    )


def settings_of(flags: dict[str, object]) -> dict[str, object]:
    file = flags["command_config"]
    settings = settings_from(
        None if file is None else str(file),
        tuple(str(text) for text in as_tuple(flags["command_property"])),
        bootstrap_servers=flags["bootstrap_server"],
        compression_type=flags["compression"],
        acks=flags["acks"],
    )
    settings.setdefault("client.id", "tidelog-produce")
    settings.setdefault("max.block.ms", 15_000)
    if settings.get("acks") in ("0", "1"):
        settings.setdefault("enable.idempotence", "false")
    return settings


def envelopes(read: Callable[[int], bytes]) -> Iterator[NewRecord]:
    from tidelog.cli.formats.envelope import from_envelope
    from tidelog.cli.formats.source import ByteSource

    source = ByteSource(read)
    while not source.at_end():
        line = source.until(b"\n", or_end=True)
        if line.strip():
            yield from_envelope(line)


def parsed_by(parser: object) -> Callable[[Callable[[int], bytes]], Iterator[NewRecord]]:
    from tidelog.cli.formats.parser import RecordParser
    from tidelog.cli.formats.source import ByteSource

    assert isinstance(parser, RecordParser)

    def records(read: Callable[[int], bytes]) -> Iterator[NewRecord]:
        source = ByteSource(read)
        while (record := parser.next(source)) is not None:
            yield record

    return records


class Stopped(Exception):
    """A signal asked to stop while standard input was read."""


def write(writing: Writing) -> int:
    """Write all records; returns the exit code: 1 if one of them was not written."""
    from tidelog.clients.producer.blocking import Producer

    def stop() -> None:
        raise Stopped

    acknowledged = Acknowledgements(writing.shown)
    with Producer(writing.settings) as producer, Signals(stop) as signals:
        try:
            check_partition(producer, writing)
            number = 0
            try:
                for record in writing.records(stdin_reader()):
                    acknowledged.send(producer, prepared(record, writing))
                    number += 1
            except ValueError as error:
                raise ValueError(f"record {number + 1} of the input: {error}") from None
            finally:
                producer.flush()
        except Stopped:
            pass
    acknowledged.finish()
    return signals.exit_code or (1 if acknowledged.failed else 0)


def check_partition(producer: Producer, writing: Writing) -> None:
    """Raise UnknownTopicOrPartition at once if the topic has no such partition: sending waits for it."""
    from tidelog.clients.errors import TimeoutException
    from tidelog.errors import UnknownTopicOrPartition

    if writing.partition is None or writing.topic is None:
        return
    try:
        count = len(producer.partitions_for(writing.topic))
    except TimeoutException:
        return  # sending tells why
    if writing.partition >= count:
        there = "partition 0" if count == 1 else f"partitions 0 to {count - 1}"
        raise UnknownTopicOrPartition(
            f"topic {writing.topic!r} has no partition {writing.partition}: it has {there}"
        )


def stdin_reader() -> Callable[[int], bytes]:
    """Reads what is there: a pipe of a slow program is not waited for until a buffer is full."""
    stream = sys.stdin.buffer
    return stream.read1 if isinstance(stream, BufferedReader | BytesIO) else stream.read


def prepared(record: NewRecord, writing: Writing) -> NewRecord:
    """A record with what the flags say about all records. Raises ValueError if it has no topic."""
    key = record.key if writing.key is None else writing.key
    value = record.value
    if writing.tombstones and value == b"":
        value = None
    if writing.key_schema is not None and key is not None:
        key = writing.key_schema.encode(key)
    if writing.value_schema is not None and value is not None:
        value = writing.value_schema.encode(value)
    topic = writing.topic or record.topic
    if not topic:
        raise ValueError("it names no topic")
    return replace(
        record,
        topic=topic,
        key=key,
        value=value,
        partition=record.partition if writing.partition is None else writing.partition,
        headers=record.headers + writing.headers,
    )


class Acknowledgements:
    """Prints a line for each acknowledged record, and counts the failed ones."""

    def __init__(self, shown: RecordFormatter | None) -> None:
        self._shown = shown
        self._out = sys.stdout.buffer
        self._written = 0
        self.failed = 0
        self._first = ""
        self._broken: OSError | None = None
        self._lock = threading.Lock()

    def send(self, producer: Producer, record: NewRecord) -> None:
        if self._broken is not None:
            raise self._broken

        def done(metadata: RecordMetadata, error: BaseException | None) -> None:
            with self._lock:
                self._done(record, metadata, error)

        assert record.topic is not None
        producer.send(
            record.topic,
            record.value,
            record.key,
            record.headers,
            record.partition,
            record.timestamp,
            callback=done,
        )

    def _done(self, record: NewRecord, metadata: RecordMetadata, error: BaseException | None) -> None:
        if error is not None:
            self.failed += 1
            self._first = self._first or (error_words(error) if isinstance(error, KafkaError) else str(error))
            return
        self._written += 1
        if self._shown is None or self._broken is not None:
            return
        from tidelog.cli.formats.writer import Shown
        from tidelog.records.loops import ConsumerRecord

        written = ConsumerRecord[bytes, bytes](
            metadata.topic,
            metadata.partition,
            metadata.offset,
            metadata.timestamp,
            record.key,
            record.value,
            record.headers,
        )
        try:
            self._out.write(self._shown.write(Shown(written, self._written)))
            self._out.flush()
        except OSError as broken:
            self._broken = broken

    def finish(self) -> None:
        """Tell about records that were not written. Raises BrokenPipeError if nobody read the lines."""
        if self.failed:
            what = "1 record was" if self.failed == 1 else f"{self.failed} records were"
            click.echo(f"tidelog: {what} not written: {self._first}", err=True)
        if self._broken is not None:
            raise self._broken
