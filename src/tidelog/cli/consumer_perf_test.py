"""`tidelog consumer-perf-test`: measures how fast records are read, as kafka-consumer-perf-test."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

import click

from tidelog.cli.flags import WrongUsage, bootstrap_server, not_both, switch, valued
from tidelog.cli.output import (
    failing,
    output_option,
    print_json,
    progress,
    settings_from,
    tool_command,
    topic_pattern,
)
from tidelog.cli.topic_checks import check_answered, check_topic

if TYPE_CHECKING:
    from tidelog.clients.consumer.blocking import Consumer

MEGABYTE = 1024 * 1024
COLUMNS = "data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec"
MORE_COLUMNS = "rebalance.time.ms, fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec"
POLL_SECONDS = 0.1
# A quoted text of Java's date formats, or a letter with its repetitions.
DATE_PART = re.compile(r"'((?:[^']|'')*)'|([A-Za-z])\2*")
# Python's format for each letter of Java's.
DATE_NUMBERS = {"M": "%m", "d": "%d", "H": "%H", "h": "%I", "m": "%M", "s": "%S", "D": "%j"}
DATE_WORDS = {"E": ("%a", "%A"), "M": ("%b", "%B"), "a": ("%p", "%p"), "z": ("%Z", "%Z"), "Z": ("%z", "%z")}


@tool_command("consumer-perf-test")
@bootstrap_server
@valued("--topic", "NAME", "The topic to read.")
@valued("--include", "PATTERN", "Read the topics whose names match a regular expression.")
@valued("--num-records", "N", "How many records to read; required.", int)
@valued("--messages", "N", "As --num-records.", int)
@valued("--group", "ID", "The group to read in; by default a new one.")
@valued("--fetch-size", "BYTES", "max.partition.fetch.bytes of the consumer (default 1048576).", int)
@valued("--socket-buffer-size", "BYTES", "receive.buffer.bytes of the consumer (default 2097152).", int)
@switch("--from-latest", "Begin at the end if there is no committed offset.")
@valued("--timeout", "MS", "End after this time without a record (default 10000).", int)
@valued("--reporting-interval", "MS", "The time between lines of --show-detailed-stats (default 5000).", int)
@switch("--show-detailed-stats", "Print a line for each interval instead of one at the end.")
@switch("--hide-header", "Leave out the names of the columns.")
@valued("--date-format", "FORMAT", "The format of times (default yyyy-MM-dd HH:mm:ss:SSS).")
@switch("--print-metrics", "Print the consumer's metrics at the end.")
@click.option("--command-property", metavar="NAME=VALUE", multiple=True, help="A setting of the consumer.")
@valued("--consumer.config", "FILE", "As --command-config.")
@valued("--command-config", "FILE", "A properties file with settings of the consumer.")
@output_option
@click.version_option(package_name="tidelog", message="%(version)s")
@click.pass_context
def consumer_perf_test(
    ctx: click.Context,
    bootstrap_server: str,
    topic: str | None,
    include: str | None,
    num_records: int | None,
    messages: int | None,
    group: str | None,
    fetch_size: int | None,
    socket_buffer_size: int | None,
    from_latest: bool,
    timeout: int | None,
    reporting_interval: int | None,
    show_detailed_stats: bool,
    hide_header: bool,
    date_format: str | None,
    print_metrics: bool,
    command_property: tuple[str, ...],
    consumer_config: str | None,
    command_config: str | None,
    output: str,
) -> None:
    """Read records as fast as possible, and print the throughput."""
    count = messages if num_records is None else num_records
    if (topic is None) == (include is None):
        raise WrongUsage("expected one of --topic and --include", ctx)
    if count is None:
        raise WrongUsage("--num-records must be specified", ctx)
    not_both(ctx, "--num-records", num_records, "--messages", messages)
    not_both(ctx, "--command-config", command_config, "--consumer.config", consumer_config)
    if reporting_interval is not None and reporting_interval <= 0:
        raise WrongUsage(f"--reporting-interval is {reporting_interval}; it must be greater than 0", ctx)
    with failing():
        settings: dict[str, object] = {
            "auto.offset.reset": "latest" if from_latest else "earliest",
            "allow.auto.create.topics": False,
            "check.crcs": False,
            "client.id": "perf-consumer-client",
            "group.id": group or f"perf-consumer-{random.randrange(100_000)}",
            "max.partition.fetch.bytes": fetch_size or MEGABYTE,
            "receive.buffer.bytes": socket_buffer_size or 2 * MEGABYTE,
        }
        settings |= settings_from(
            command_config or consumer_config, command_property, bootstrap_servers=bootstrap_server
        )
        shown = Shown(show_detailed_stats, date_format or "yyyy-MM-dd HH:mm:ss:SSS", output)
        shown.time(0.0)  # raises an error for a wrong format before the test begins
        test = Test(
            count, (10_000 if timeout is None else timeout) / 1000, (reporting_interval or 5000) / 1000, shown
        )
        if not hide_header:
            shown.header()
        metrics = test.run(settings, topic, include)
    shown.summary(test, metrics if print_metrics else {})


@dataclass(slots=True)
class Shown:
    """Prints the results."""

    detailed: bool
    date_format: str
    output: str

    def header(self) -> None:
        if self.output != "json":
            first = "time, threadId" if self.detailed else "start.time, end.time"
            click.echo(f"{first}, {COLUMNS}, {MORE_COLUMNS}")

    def time(self, seconds: float) -> str:
        when = datetime.fromtimestamp(seconds).astimezone()
        return DATE_PART.sub(lambda part: date_part(part, when), self.date_format)

    def interval(self, test: Test, before: Counts, since: float, now: float, joined_ms: int) -> str | None:
        """A line for the records since the last line."""
        if not self.detailed or self.output == "json":
            return None
        seconds = max(1e-9, now - since)
        size = (test.counts.bytes - before.bytes) / MEGABYTE
        records = test.counts.records - before.records
        fetch_ms = round(seconds * 1000) - joined_ms
        fetch = max(0.0, fetch_ms / 1000)
        return (
            f"{self.time(now)}, 0, {test.counts.bytes / MEGABYTE:.4f}, {size / seconds:.4f}, "
            f"{test.counts.records}, {records / seconds:.4f}, {joined_ms}, {fetch_ms}, "
            f"{size / fetch if fetch else 0.0:.4f}, {records / fetch if fetch else 0.0:.4f}"
        )

    def summary(self, test: Test, metrics: Mapping[str, float]) -> None:
        figures = test.figures()
        if self.output == "json":
            print_json({**figures, "metrics": dict(metrics)} if metrics else figures)
            return
        if not self.detailed:
            click.echo(
                f"{self.time(test.started)}, {self.time(test.ended)}, {figures['mb']:.4f}, "
                f"{figures['mb_per_sec']:.4f}, {figures['records']}, {figures['records_per_sec']:.4f}, "
                f"{figures['rebalance_ms']}, {figures['fetch_ms']}, {figures['fetch_mb_per_sec']:.4f}, "
                f"{figures['fetch_records_per_sec']:.4f}"
            )
        for name, value in sorted(metrics.items()):
            click.echo(f"{name} : {value:.3f}")


def date_part(part: re.Match[str], when: datetime) -> str:
    """The text of Java's SimpleDateFormat for a quoted text or a repeated letter."""
    letters, letter = part[0], part[2]
    if letter is None:
        return part[1].replace("''", "'") if part[1] else "'"
    if letter == "y":
        return when.strftime("%y") if len(letters) == 2 else str(when.year).zfill(len(letters))
    if letter == "S":
        return str(when.microsecond // 1000).zfill(len(letters))
    if letter in DATE_WORDS and (letter != "M" or len(letters) > 2):
        return when.strftime(DATE_WORDS[letter][len(letters) > 3])
    if letter in DATE_NUMBERS:
        return str(int(when.strftime(DATE_NUMBERS[letter]))).zfill(len(letters))
    raise ValueError(f"--date-format: {letters!r} is not a date pattern; put text in single quotes")


@dataclass(slots=True)
class Counts:
    records: int = 0
    bytes: int = 0


@dataclass(slots=True)
class Test:
    wanted: int
    timeout: float
    interval: float
    shown: Shown
    counts: Counts = field(default_factory=Counts)
    started: float = 0.0
    ended: float = 0.0
    joining_since: float = 0.0
    join_ms: int = 0
    join_ms_in_interval: int = 0

    def run(self, settings: Mapping[str, object], topic: str | None, include: str | None) -> dict[str, float]:
        """Read the records; returns the consumer's metrics."""
        from tidelog.clients.consumer.blocking import Consumer
        from tidelog.clients.consumer.listener import ConsumerRebalanceListener
        from tidelog.partitions import TopicPartition

        test = self

        class Joined(ConsumerRebalanceListener):
            def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
                test.joining_since = time.time()

            def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
                took = round((time.time() - test.joining_since) * 1000)
                test.join_ms += took
                test.join_ms_in_interval += took

        with Consumer(settings) as consumer:
            if topic is not None:
                check_topic(consumer, topic)
            self.started = self.joining_since = time.time()
            if include is not None:
                consumer.subscribe(pattern=topic_pattern(include), listener=Joined())
            else:
                consumer.subscribe([topic or ""], listener=Joined())
            self._read(consumer)
            self.ended = time.time()
            check_answered(consumer, settings["bootstrap.servers"])
            metrics = consumer.metrics()
        if self.counts.records < self.wanted:
            click.echo(
                "WARNING: Exiting before consuming the expected number of records: timeout "
                f"({round(self.timeout * 1000)} ms) exceeded. You can use the --timeout option to "
                "increase the timeout.",
                err=self.shown.output == "json",
            )
        return metrics

    def _read(self, consumer: Consumer) -> None:
        counts = self.counts
        last_report = last_record = time.time()
        before = Counts()
        with progress("records", self.wanted) as bar:
            while counts.records < self.wanted:
                records = consumer.poll(POLL_SECONDS)
                now = time.time()
                if records:
                    last_record = now
                    bar.advance(len(records))
                elif now - last_record > self.timeout:
                    return
                counts.records += len(records)
                for record in records:
                    counts.bytes += max(0, record.serialized_key_size) + max(0, record.serialized_value_size)
                if records and now - last_report >= self.interval:
                    text = self.shown.interval(self, before, last_report, now, self.join_ms_in_interval)
                    if text is not None:
                        bar.say(text)
                    self.join_ms_in_interval = 0
                    last_report, before = now, Counts(counts.records, counts.bytes)

    def figures(self) -> dict[str, float | int]:
        seconds = max(1e-9, self.ended - self.started)
        size = self.counts.bytes / MEGABYTE
        fetch_ms = round(seconds * 1000) - self.join_ms
        fetch = max(1e-3, fetch_ms / 1000)
        return {
            "records": self.counts.records,
            "mb": size,
            "mb_per_sec": size / seconds,
            "records_per_sec": self.counts.records / seconds,
            "rebalance_ms": self.join_ms,
            "fetch_ms": fetch_ms,
            "fetch_mb_per_sec": size / fetch,
            "fetch_records_per_sec": self.counts.records / fetch,
        }
