"""`tidelog console-consumer`: prints the records of topics, as kafka-console-consumer.

Without --group it reads all partitions, and no group is created.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from tidelog.cli.flags import WrongUsage, bootstrap_server, not_both, switch, valued
from tidelog.cli.output import (
    Signals,
    event_output_option,
    failing,
    merged,
    pairs,
    settings_from,
    tool_command,
    topic_pattern,
)
from tidelog.cli.topic_checks import check_answered, check_offset, check_topic
from tidelog.config.properties import read_properties

if TYPE_CHECKING:
    from tidelog.cli.record_format import Format
    from tidelog.clients.consumer.blocking import Consumer
    from tidelog.records.loops import ConsumerRecord

FORMATTER = "org.apache.kafka.tools.consumer.DefaultMessageFormatter"
POLL_SECONDS = 1.0
BATCH = 500


@tool_command("console-consumer")
@bootstrap_server
@valued("--topic", "NAME", "The topic to read.")
@valued("--include", "PATTERN", "Read the topics whose names match a regular expression.")
@valued("--partition", "N", "Read one partition, by default from its end.", int)
@valued("--offset", "OFFSET", "Where to begin in the partition: earliest, latest or an offset.")
@valued("--group", "ID", "Read as a member of a group.")
@switch("--from-beginning", "Begin with the first record if there is no committed offset.")
@valued("--max-messages", "N", "End after N records.", int)
@valued("--timeout-ms", "MS", "End after this time without a record.", int)
@valued("--isolation-level", "LEVEL", "read_committed or read_uncommitted (default).")
@switch("--skip-message-on-error", "Skip records that cannot be printed.")
@valued(
    "--formatter",
    "CLASS",
    "DefaultMessageFormatter, LoggingMessageFormatter or NoOpMessageFormatter; OffsetsMessageFormatter or "
    "GroupMetadataMessageFormatter for __consumer_offsets, TransactionLogMessageFormatter for "
    "__transaction_state.",
)
@click.option(
    "--formatter-property",
    metavar="NAME=VALUE",
    multiple=True,
    help="print.timestamp, print.key, print.offset, print.partition, print.epoch, print.headers, "
    "print.value, key.separator, line.separator, headers.separator, null.literal, "
    "{key,value,headers}.deserializer.",
)
@click.option(
    "--property", "old_property", metavar="NAME=VALUE", multiple=True, help="As --formatter-property."
)
@valued("--formatter-config", "FILE", "A properties file with settings of the formatter.")
@valued("--key-deserializer", "CLASS", "How keys are shown: Kafka's class names.")
@valued("--value-deserializer", "CLASS", "How values are shown.")
@click.option("--consumer-property", metavar="NAME=VALUE", multiple=True, help="As --command-property.")
@click.option("--command-property", metavar="NAME=VALUE", multiple=True, help="A setting of the consumer.")
@valued("--consumer.config", "FILE", "As --command-config.")
@valued("--command-config", "FILE", "A properties file with settings of the consumer.")
@switch("--enable-systest-events", "Print a line at the end.")
@event_output_option
@click.version_option(package_name="tidelog", message="%(version)s")
@click.pass_context
def console_consumer(ctx: click.Context, /, **flags: object) -> None:
    """Print the records of one or more topics, also new ones."""
    check(ctx, flags)
    with failing():
        options = Reading.of(flags)
        code = read(options)
    if flags["enable_systest_events"]:
        click.echo("shutdown_complete")
    ctx.exit(code)


def check(ctx: click.Context, flags: Mapping[str, object]) -> None:
    if (flags["topic"] is None) == (flags["include"] is None):
        raise WrongUsage("expected one of --topic and --include", ctx)
    not_both(ctx, "--formatter-property", flags["formatter_property"], "--property", flags["old_property"])
    not_both(
        ctx,
        "--command-property",
        flags["command_property"],
        "--consumer-property",
        flags["consumer_property"],
    )
    not_both(ctx, "--command-config", flags["command_config"], "--consumer.config", flags["consumer_config"])
    if flags["partition"] is not None:
        if flags["topic"] is None:
            raise WrongUsage("--partition needs --topic", ctx)
        if flags["group"] is not None:
            raise WrongUsage("--group does not go with --partition", ctx)
    if flags["offset"] is not None:
        if flags["partition"] is None:
            raise WrongUsage("--offset needs --partition", ctx)
        if flags["from_beginning"]:
            raise WrongUsage("--from-beginning does not go with --offset", ctx)
        text = str(flags["offset"]).lower()
        if text not in ("earliest", "latest") and not text.isdigit():
            raise WrongUsage(
                f"The provided offset value '{flags['offset']}' is incorrect. Valid values are 'earliest', "
                "'latest', or a non-negative long.",
                ctx,
            )


@dataclass(slots=True, frozen=True)
class Reading:
    """The topics to read, the format, and the limits."""

    settings: dict[str, object]
    format: Format
    topic: str | None
    include: str | None
    partition: int | None
    offset: str
    max_messages: int
    timeout: float | None
    skip_errors: bool

    @classmethod
    def of(cls, flags: Mapping[str, object]) -> Reading:
        timeout, most = flags["timeout_ms"], flags["max_messages"]
        beginning = bool(flags["from_beginning"])
        partition = flags["partition"]
        return cls(
            settings_of(flags),
            format_of(flags),
            None if flags["topic"] is None else str(flags["topic"]),
            None if flags["include"] is None else str(flags["include"]),
            partition if isinstance(partition, int) else None,
            str(flags["offset"] or ("earliest" if beginning else "latest")).lower(),
            most if isinstance(most, int) else -1,
            timeout / 1000 if isinstance(timeout, int) and timeout >= 0 else None,
            bool(flags["skip_message_on_error"]),
        )


def settings_of(flags: Mapping[str, object]) -> dict[str, object]:
    file = flags["command_config"] or flags["consumer_config"]
    given = settings_from(
        None if file is None else str(file),
        (*_texts(flags["consumer_property"]), *_texts(flags["command_property"])),
        flag="--consumer-property" if flags["consumer_property"] else "--command-property",
        bootstrap_servers=flags["bootstrap_server"],
    )
    given.setdefault("client.id", "console-consumer")
    given.setdefault("allow.auto.create.topics", "false")  # a misspelled name must not create a topic
    reset = given.get("auto.offset.reset")
    if flags["from_beginning"]:
        if reset not in (None, "earliest"):
            raise ValueError(
                f"Can't simultaneously specify --from-beginning and 'auto.offset.reset={reset}', "
                "please remove one option"
            )
        given["auto.offset.reset"] = "earliest"
    group, other = flags["group"], given.get("group.id")
    if group is not None and other not in (None, group):
        raise ValueError(
            f"--group is {group!r}, and group.id among the settings is {other!r}: give one of them"
        )
    return merged(given, group_id=group, isolation_level=flags["isolation_level"])


def format_of(flags: Mapping[str, object]) -> Format:
    from tidelog.cli.record_format import as_json, formatter

    if flags["output"] == "json":
        return as_json
    file = flags["formatter_config"]
    properties = read_properties(str(file)) if file is not None else {}
    for flag in ("key_deserializer", "value_deserializer"):
        if flags[flag] is not None:
            properties[flag.replace("_", ".")] = str(flags[flag])
    properties |= pairs(_texts(flags["old_property"]), "--property")
    properties |= pairs(_texts(flags["formatter_property"]), "--formatter-property")
    return formatter(str(flags["formatter"] or FORMATTER), properties)


def _texts(values: object) -> tuple[str, ...]:
    assert isinstance(values, tuple)
    return values


def read(reading: Reading) -> int:
    """Print records up to the limits; returns the exit code."""
    from tidelog.clients.consumer.blocking import Consumer
    from tidelog.clients.errors import WakeupException

    printer = Printer(reading)
    try:
        with Consumer(reading.settings) as consumer, Signals(consumer.wakeup) as signals:
            choose(consumer, reading)
            try:
                printer.pump(consumer)
                check_answered(consumer, reading.settings["bootstrap.servers"])
            except WakeupException:
                pass  # by a signal
    finally:
        click.echo(f"Processed a total of {printer.count} messages", err=True)
    return signals.exit_code


class Printer:
    def __init__(self, reading: Reading) -> None:
        if sys.stdout is None:
            raise ValueError("standard output is closed: there is nowhere to print records")
        self.count = 0
        self._reading = reading
        self._out = sys.stdout.buffer

    def pump(self, consumer: Consumer) -> None:
        limit, timeout = self._reading.max_messages, self._reading.timeout
        last = time.monotonic()
        while limit < 0 or self.count < limit:
            left = BATCH if limit < 0 else min(BATCH, limit - self.count)
            wait = (
                POLL_SECONDS
                if timeout is None
                else max(0.0, min(POLL_SECONDS, last + timeout - time.monotonic()))
            )
            records = consumer.poll(wait, max_records=left)
            if records:
                self._print_all(consumer, records)
                last = time.monotonic()
            elif timeout is not None and time.monotonic() - last >= timeout:
                return

    def _print_all(self, consumer: Consumer, records: list[ConsumerRecord]) -> None:
        """Print a batch. Records that were not printed are not committed: the next member gets them."""
        passed = 0
        try:
            for record in records:
                # As in Kafka's tool, a record that cannot be printed counts: the next run skips it.
                passed += 1
                self._print(record)
            self._out.flush()
        except OSError:
            rewind(consumer, records)
            raise
        except ValueError:
            rewind(consumer, records[passed:])
            raise

    def _print(self, record: ConsumerRecord) -> None:
        self.count += 1
        try:
            line = self._reading.format(record)
        except Exception as error:
            what = f"{record.topic}-{record.partition} at offset {record.offset} cannot be printed: {error}"
            if not self._reading.skip_errors:
                raise ValueError(f"the record of {what}") from error
            click.echo(f"tidelog: skipped: the record of {what}", err=True)
        else:
            self._out.write(line)


def rewind(consumer: Consumer, records: list[ConsumerRecord]) -> None:
    """Go back to the first of these records in each partition."""
    first: dict[tuple[str, int], int] = {}
    for record in records:
        first.setdefault((record.topic, record.partition), record.offset)
    for partition, offset in first.items():
        if partition in consumer.assignment():
            consumer.seek(partition, offset)


def choose(consumer: Consumer, reading: Reading) -> None:
    """Subscribe or assign. Raises an error that names a missing topic or partition."""
    if reading.topic is not None:
        check_topic(consumer, reading.topic, reading.partition)
    if reading.include is not None:
        consumer.subscribe(pattern=topic_pattern(reading.include))
    elif reading.partition is None:
        consumer.subscribe([reading.topic or ""])
    else:
        partition = (reading.topic or "", reading.partition)
        if reading.offset.isdigit() and "auto.offset.reset" not in reading.settings:
            check_offset(consumer, partition, int(reading.offset))
        consumer.assign([partition])
        if reading.offset == "earliest":
            consumer.seek_to_beginning(partition)
        elif reading.offset == "latest":
            consumer.seek_to_end(partition)
        else:
            consumer.seek(partition, int(reading.offset))
