"""`tidelog console-producer`: writes each line of standard input as a record, as kafka-console-producer.

For a record that could not be written it prints a line on standard error, and ends with 1.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import click

from tidelog.cli.flags import WrongUsage, bootstrap_server, not_both, switch, value_or_not, valued
from tidelog.cli.output import failing, merged, pairs, settings_from, tool_command, unwound_by_sigterm
from tidelog.config.properties import read_properties

if TYPE_CHECKING:
    from tidelog.clients.producer.blocking import Producer
    from tidelog.clients.producer.core import DeliveryCallback
    from tidelog.records.loops import RecordMetadata

Header = tuple[str, bytes | None]


class Line(NamedTuple):
    """A line of input as a record."""

    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]


@dataclass(slots=True, frozen=True)
class LineReader:
    """Splits lines into headers, key and value, with the settings of Kafka's reader."""

    parse_key: bool = False
    key_separator: bytes = b"\t"
    parse_headers: bool = False
    headers_delimiter: bytes = b"\t"
    headers_separator: bytes = b","
    headers_key_separator: bytes = b":"
    ignore_error: bool = False
    null_marker: bytes | None = field(default=None)

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> LineReader:
        def text(name: str, default: bytes) -> bytes:
            return properties[name].encode() if name in properties else default

        def flag(name: str) -> bool:
            return properties.get(name, "").strip().lower() == "true"

        marker = properties.get("null.marker")
        reader = cls(
            flag("parse.key"),
            text("key.separator", b"\t"),
            flag("parse.headers"),
            text("headers.delimiter", b"\t"),
            text("headers.separator", b","),
            text("headers.key.separator", b":"),
            flag("ignore.error"),
            None if marker is None else marker.encode(),
        )
        reader._check()
        return reader

    def _check(self) -> None:
        parts = {
            "headers.delimiter": self.headers_delimiter,
            "headers.separator": self.headers_separator,
            "headers.key.separator": self.headers_key_separator,
        }
        if self.null_marker is not None:
            parts["null.marker"] = self.null_marker
        for name, part in {"key.separator": self.key_separator, **parts}.items():
            if not part and name != "null.marker":
                raise ValueError(f"{name} is empty: it must be at least one character")
        names = list(parts)
        for at, first in enumerate(names):
            for second in names[at + 1 :]:
                if parts[first] == parts[second]:
                    raise ValueError(f"{first} and {second} may not be equal")
        if self.key_separator == self.null_marker:
            raise ValueError("null.marker and key.separator may not be equal")

    def read(self, line: bytes, number: int) -> Line:
        headers: tuple[Header, ...] = ()
        key: bytes | None = None
        rest = line
        if self.parse_headers:
            found, rest = self._cut(rest, self.headers_delimiter, "headers delimiter", line, number)
            if found is not None and found != self.null_marker:
                headers = tuple(self._header(pair, number) for pair in self._pairs(found))
        if self.parse_key:
            key, rest = self._cut(rest, self.key_separator, "key separator", line, number)
        return Line(self._value(key), self._value(rest), headers)

    def _cut(
        self, rest: bytes, separator: bytes, name: str, line: bytes, number: int
    ) -> tuple[bytes | None, bytes]:
        before, found, after = rest.partition(separator)
        if found:
            return before, after
        if self.ignore_error:
            return None, rest
        raise ValueError(f"No {name} found on line number {number}: '{_shown(line)}'")

    def _pairs(self, text: bytes) -> list[bytes]:
        """The pairs of headers. As in Kafka's reader, only empty pairs at the end are ignored."""
        pairs = text.split(self.headers_separator)
        while len(pairs) > 1 and not pairs[-1]:
            pairs.pop()
        return pairs if pairs != [b""] or text == b"" else []

    def _header(self, pair: bytes, number: int) -> Header:
        key, found, value = pair.partition(self.headers_key_separator)
        if not found:
            if self.ignore_error:
                return pair.decode(errors="replace"), None
            raise ValueError(
                f"No header key separator found in pair '{_shown(pair)}' on line number {number}"
            )
        if key == self.null_marker:
            raise ValueError(
                f"Header keys should not be equal to the null marker '{_shown(key)}' as they can't be null"
            )
        return key.decode(errors="replace"), self._value(value)

    def _value(self, text: bytes | None) -> bytes | None:
        return None if text == self.null_marker else text


def _shown(text: bytes) -> str:
    return text.decode(errors="replace")


@tool_command("console-producer")
@bootstrap_server
@valued("--topic", "NAME", "The topic to write to; required.")
@switch("--sync", "Wait until each record is written before reading the next line.")
@value_or_not("--compression-codec", "[CODEC]", "none, gzip, snappy, lz4 or zstd; gzip without a value.")
@valued("--batch-size", "BYTES", "batch.size of the producer.", int)
@valued("--message-send-max-retries", "N", "retries of the producer.", int)
@valued("--retry-backoff-ms", "MS", "retry.backoff.ms of the producer.", int)
@valued("--timeout", "MS", "linger.ms of the producer (default 1000).", int)
@valued("--request-required-acks", "ACKS", "acks of the producer (default -1).")
@valued("--request-timeout-ms", "MS", "request.timeout.ms of the producer (default 1500).", int)
@valued("--metadata-expiry-ms", "MS", "metadata.max.age.ms of the producer.", int)
@valued("--max-block-ms", "MS", "max.block.ms of the producer.", int)
@valued("--max-memory-bytes", "BYTES", "buffer.memory of the producer.", int)
@valued("--max-partition-memory-bytes", "BYTES", "As --batch-size, with precedence over it.", int)
@valued("--socket-buffer-size", "BYTES", "send.buffer.bytes of the producer.", int)
@valued("--line-reader", "CLASS", "Only Kafka's own line reader is served.")
@click.option("--property", "old_property", metavar="NAME=VALUE", multiple=True, help="As --reader-property.")
@click.option(
    "--reader-property",
    metavar="NAME=VALUE",
    multiple=True,
    help="parse.key, key.separator, parse.headers, headers.delimiter, headers.separator, "
    "headers.key.separator, ignore.error, null.marker.",
)
@valued("--reader-config", "FILE", "A properties file with settings of the reader.")
@click.option("--producer-property", metavar="NAME=VALUE", multiple=True, help="As --command-property.")
@click.option("--command-property", metavar="NAME=VALUE", multiple=True, help="A setting of the producer.")
@valued("--producer.config", "FILE", "As --command-config.")
@valued("--command-config", "FILE", "A properties file with settings of the producer.")
@click.version_option(package_name="tidelog", message="%(version)s")
@click.pass_context
def console_producer(
    ctx: click.Context,
    bootstrap_server: str,
    topic: str | None,
    sync: bool,
    compression_codec: str | None,
    batch_size: int | None,
    message_send_max_retries: int | None,
    retry_backoff_ms: int | None,
    timeout: int | None,
    request_required_acks: str | None,
    request_timeout_ms: int | None,
    metadata_expiry_ms: int | None,
    max_block_ms: int | None,
    max_memory_bytes: int | None,
    max_partition_memory_bytes: int | None,
    socket_buffer_size: int | None,
    line_reader: str | None,
    old_property: tuple[str, ...],
    reader_property: tuple[str, ...],
    reader_config: str | None,
    producer_property: tuple[str, ...],
    command_property: tuple[str, ...],
    producer_config: str | None,
    command_config: str | None,
) -> None:
    """Write the lines of standard input to a topic, each as a record."""
    if topic is None:
        raise WrongUsage("--topic must be specified", ctx)
    not_both(ctx, "--reader-property", reader_property, "--property", old_property)
    not_both(ctx, "--command-property", command_property, "--producer-property", producer_property)
    not_both(ctx, "--command-config", command_config, "--producer.config", producer_config)
    if line_reader is not None and line_reader.rpartition(".")[2] != "LineMessageReader":
        raise WrongUsage(f"--line-reader {line_reader}: only org.apache.kafka.tools.LineMessageReader", ctx)
    with failing():
        if sys.stdin is None:
            raise ValueError("standard input is closed: there are no lines to write")
        properties = read_properties(reader_config) if reader_config else {}
        reader = LineReader.of(
            {
                **properties,
                **pairs(old_property, "--property"),
                **pairs(reader_property, "--reader-property"),
            }
        )
        given = settings_from(
            command_config or producer_config,
            (*producer_property, *command_property),
            flag="--producer-property" if producer_property else "--command-property",
            bootstrap_servers=bootstrap_server,
        )
        given.setdefault("client.id", "console-producer")
        given.setdefault("linger.ms", 1000)
        given.setdefault("request.timeout.ms", 1500)
        settings = merged(
            given,
            compression_type="gzip" if compression_codec == "" else compression_codec,
            batch_size=max_partition_memory_bytes or batch_size,
            retries=message_send_max_retries,
            retry_backoff_ms=retry_backoff_ms,
            linger_ms=timeout,
            acks=request_required_acks,
            request_timeout_ms=request_timeout_ms,
            metadata_max_age_ms=metadata_expiry_ms,
            max_block_ms=max_block_ms,
            buffer_memory=max_memory_bytes,
            send_buffer_bytes=socket_buffer_size,
        )
        failed = produce(settings, topic, reader, sync, sys.stdin.buffer)
    if failed:
        ctx.exit(1)


def produce(
    settings: Mapping[str, object], topic: str, reader: LineReader, sync: bool, lines: Iterable[bytes]
) -> int:
    """Send every line; returns the number of records that could not be written."""
    from tidelog.clients.producer.blocking import Producer

    failed = 0

    def delivered(metadata: RecordMetadata, error: BaseException | None) -> None:
        nonlocal failed
        if error is not None:
            failed += 1
            click.echo(f"tidelog: a record for {topic} was not written: {error}", err=True)

    with unwound_by_sigterm(), Producer(settings) as producer:
        prompt = sys.stdin.isatty()
        if prompt:
            click.echo(">", nl=False)
        for number, line in enumerate(ended(lines), 1):
            record = reader.read(line, number)
            _send(producer, topic, record, sync, delivered)
            if prompt:
                click.echo(">", nl=False)
    return failed


def ended(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Lines without their ends. As in Java, a line ends with a carriage return, a line feed, or both."""
    for line in lines:
        whole = line.removesuffix(b"\n").removesuffix(b"\r")
        if b"\r" in whole:
            yield from whole.split(b"\r")
        else:
            yield whole


def _send(producer: Producer, topic: str, record: Line, sync: bool, delivered: DeliveryCallback) -> None:
    if sync:
        producer.send(topic, record.value, key=record.key, headers=record.headers).result()
    else:
        producer.send(topic, record.value, key=record.key, headers=record.headers, callback=delivered)
