"""`tidelog producer-perf-test`: measures how fast records are written, as kafka-producer-perf-test."""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click

from tidelog.cli.flags import WrongUsage, bootstrap_server, not_both, switch, valued
from tidelog.cli.output import (
    Pace,
    ProgressBar,
    failing,
    output_option,
    print_json,
    progress,
    settings_from,
    tool_command,
)

if TYPE_CHECKING:
    from tidelog.clients.producer.blocking import Producer
    from tidelog.clients.producer.core import DeliveryCallback
    from tidelog.records.loops import RecordMetadata

MEGABYTE = 1024 * 1024
SAMPLES = 500_000
DEFAULT_TRANSACTION_MS = 3000
LETTERS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(slots=True)
class Stats:
    """Counts and latencies of written records; the producer's thread updates them."""

    expected: int
    steady: bool = False
    started: float = field(default_factory=time.monotonic)
    count: int = 0
    errors: int = 0
    bytes: int = 0
    total_ms: float = 0.0
    max_ms: float = 0.0
    samples: list[int] = field(default_factory=list)
    every: int = 1

    def __post_init__(self) -> None:
        self.every = max(1, self.expected // max(1, min(self.expected, SAMPLES)))

    def record(self, latency_ms: float, size: int) -> None:
        self.count += 1
        self.bytes += size
        self.total_ms += latency_ms
        self.max_ms = max(self.max_ms, latency_ms)
        if self.count % self.every == 0:
            self.samples.append(int(latency_ms))

    def summary(self) -> dict[str, float | int]:
        seconds = max(1e-9, time.monotonic() - self.started)
        ordered = sorted(self.samples) or [0]

        def percentile(part: float) -> int:
            return ordered[min(len(ordered) - 1, int(part * len(ordered)))]

        return {
            "records": self.count,
            "failed": self.errors,
            "records_per_sec": self.count / seconds,
            "mb_per_sec": self.bytes / seconds / MEGABYTE,
            "avg_latency_ms": self.total_ms / self.count if self.count else 0.0,
            "max_latency_ms": self.max_ms,
            "p50_ms": percentile(0.5),
            "p95_ms": percentile(0.95),
            "p99_ms": percentile(0.99),
            "p999_ms": percentile(0.999),
        }

    def text(self) -> str:
        found = self.summary()
        kind = "steady state records" if self.steady else "records"
        return (
            f"{found['records']} {kind} sent, {found['records_per_sec']:f} records/sec "
            f"({found['mb_per_sec']:.2f} MB/sec), {found['avg_latency_ms']:.2f} ms avg latency, "
            f"{found['max_latency_ms']:.2f} ms max latency, {found['p50_ms']} ms 50th, {found['p95_ms']} ms "
            f"95th, {found['p99_ms']} ms 99th, {found['p999_ms']} ms 99.9th."
        )


class Window:
    """The statistics since the last report."""

    def __init__(self, interval_ms: int) -> None:
        self._interval = interval_ms / 1000
        self._stats = Stats(0)

    def record(self, latency_ms: float, size: int) -> str | None:
        """Add a record; returns a line at the end of each interval."""
        stats = self._stats
        stats.count += 1
        stats.bytes += size
        stats.total_ms += latency_ms
        stats.max_ms = max(stats.max_ms, latency_ms)
        seconds = time.monotonic() - stats.started
        if seconds < self._interval:
            return None
        self._stats = Stats(0)
        return (
            f"{stats.count} records sent, {stats.count / seconds:.1f} records/sec "
            f"({stats.bytes / seconds / MEGABYTE:.2f} MB/sec), {stats.total_ms / stats.count:.1f} ms avg "
            f"latency, {stats.max_ms:.1f} ms max latency."
        )


@tool_command("producer-perf-test", greedy=["--producer-props", "--command-property"])
@bootstrap_server
@valued("--topic", "NAME", "The topic to write to; required.")
@valued("--num-records", "N", "How many records; required.", int)
@valued("--record-size", "BYTES", "The size of each record's value.", int)
@valued("--payload-file", "FILE", "Choose values from this file at random.")
@valued("--payload-delimiter", "TEXT", r"The separator of values in the file; \n.")
@switch("--payload-monotonic", "Values are rising numbers.")
@click.option(
    "--throughput",
    metavar="N",
    type=float,
    default=None,
    help="At most about N a second; -1 for no limit. Required.",
)
@click.option("--producer-props", metavar="NAME=VALUE...", multiple=True, help="As --command-property.")
@click.option("--command-property", metavar="NAME=VALUE...", multiple=True, help="Settings of the producer.")
@valued("--producer.config", "FILE", "As --command-config.")
@valued("--command-config", "FILE", "A properties file with settings of the producer.")
@switch("--print-metrics", "Print the producer's metrics at the end.")
@valued("--transactional-id", "ID", "Write in transactions with this id.")
@valued("--transaction-duration-ms", "MS", "Commit after this time (default 3000 with an id).", int)
@valued("--warmup-records", "N", "Print a second summary without the first N records.", int)
@valued("--reporting-interval", "MS", "The time between two lines (default 5000).", int)
@output_option
@click.pass_context
def producer_perf_test(
    ctx: click.Context,
    bootstrap_server: str,
    topic: str | None,
    num_records: int | None,
    record_size: int | None,
    payload_file: str | None,
    payload_delimiter: str | None,
    payload_monotonic: bool,
    throughput: float | None,
    producer_props: tuple[str, ...],
    command_property: tuple[str, ...],
    producer_config: str | None,
    command_config: str | None,
    print_metrics: bool,
    transactional_id: str | None,
    transaction_duration_ms: int | None,
    warmup_records: int | None,
    reporting_interval: int | None,
    output: str,
) -> None:
    """Write records as fast as possible, and print throughput and latencies."""
    for name, value in (("--topic", topic), ("--num-records", num_records), ("--throughput", throughput)):
        if value is None:
            raise WrongUsage(f"{name} must be specified", ctx)
    if sum((record_size is not None, payload_file is not None, payload_monotonic)) != 1:
        raise WrongUsage("expected one of --record-size, --payload-file and --payload-monotonic", ctx)
    not_both(ctx, "--command-property", command_property, "--producer-props", producer_props)
    not_both(ctx, "--command-config", command_config, "--producer.config", producer_config)
    warmup = max(0, warmup_records or 0)
    count = num_records or 0
    if count < 1:
        raise WrongUsage(f"--num-records is {count}; it must be greater than 0", ctx)
    if warmup >= count:
        raise WrongUsage(f"--warmup-records is {warmup}; it must be below --num-records, {count}", ctx)
    if reporting_interval is not None and reporting_interval <= 0:
        raise WrongUsage(f"--reporting-interval is {reporting_interval}; it must be greater than 0", ctx)
    with failing():
        settings = settings_from(
            command_config or producer_config,
            (*producer_props, *command_property),
            flag="--producer-props" if producer_props else "--command-property",
            bootstrap_servers=bootstrap_server,
        )
        settings.setdefault("client.id", "perf-producer-client")
        duration = transactions(settings, transactional_id, transaction_duration_ms)
        values = payloads(record_size, payload_file, payload_delimiter)
        test = Test(topic or "", count, values, throughput or 0.0, warmup, duration)
        metrics = test.run(settings, reporting_interval or 5000, output)
    report(test, metrics if print_metrics else {}, output)
    if test.stats.errors:
        ctx.exit(1)


def report(test: Test, metrics: Mapping[str, float], output: str) -> None:
    if output == "json":
        found: dict[str, object] = dict(test.stats.summary())
        if test.steady is not None:
            found["steady_state"] = test.steady.summary()
        if metrics:
            found["metrics"] = dict(metrics)
        print_json(found)
        return
    click.echo(test.stats.text())
    if test.steady is not None:
        click.echo(test.steady.text())
    for name, value in sorted(metrics.items()):
        click.echo(f"{name} : {value:.3f}")


def transactions(settings: dict[str, object], given: str | None, duration_ms: int | None) -> int | None:
    """The duration of a transaction, None without transactions; makes an id if only a duration is given."""
    if duration_ms is not None and duration_ms <= 0:
        raise ValueError(f"--transaction-duration-ms is {duration_ms}; it must be greater than 0")
    if given is not None:
        settings["transactional.id"] = given
    elif duration_ms is not None:
        settings.setdefault("transactional.id", f"performance-producer-{uuid.uuid4()}")
    if "transactional.id" not in settings:
        return None
    return DEFAULT_TRANSACTION_MS if duration_ms is None else duration_ms


def payloads(size: int | None, file: str | None, delimiter: str | None) -> Callable[[int], bytes]:
    """The value of each record by its number."""
    chance = random.Random(0)
    if size is not None:
        if size < 1:
            raise ValueError(f"--record-size is {size}; it must be greater than 0")
        # A value is a copy from a longer text of letters, which is fast.
        text = bytes(chance.choices(LETTERS, k=size + 65_536))

        def letters(number: int) -> bytes:
            start = chance.getrandbits(16)
            return text[start : start + size]

        return letters
    if file is not None:
        with open(file, encoding="utf-8") as opened:
            parts = opened.read().split((delimiter or "\\n").replace("\\n", "\n"))
        while parts and not parts[-1]:  # the text after the last delimiter
            parts.pop()
        values = [part.encode() for part in parts]
        if not values:
            raise ValueError(f"--payload-file {file}: it is empty")
        return lambda number: chance.choice(values)
    return lambda number: str(number).encode()


class Test:
    __test__ = False  # otherwise pytest collects it because of its name

    def __init__(
        self,
        topic: str,
        count: int,
        value: Callable[[int], bytes],
        throughput: float,
        warmup: int,
        transaction_ms: int | None,
    ) -> None:
        self.topic = topic
        self.count = count
        self.stats = Stats(count)
        self.steady: Stats | None = None
        self._value = value
        self._throughput = throughput
        self._warmup = warmup
        self._transaction_ms = transaction_ms
        self._first_error: BaseException | None = None
        self._unread = False
        self._lock = threading.Lock()

    def run(self, settings: Mapping[str, object], interval_ms: int, output: str) -> dict[str, float]:
        """Write the records; returns the producer's metrics."""
        from tidelog.clients.producer.blocking import Producer

        window = Window(interval_ms)
        if self._warmup and output != "json":
            click.echo(
                f"Warmup first {self._warmup} records. Steady state results will print after the complete "
                "test summary."
            )
        with Producer(settings) as producer, progress("records", self.count) as bar:
            self.stats = Stats(self.count)

            def line(latency_ms: float, size: int) -> None:
                bar.advance()
                text = window.record(latency_ms, size)
                if text is not None and output != "json" and not self._unread:
                    self._say(bar, text)

            self._send_all(producer, line)
            producer.flush()
            metrics = producer.metrics()
        if self._unread:
            raise BrokenPipeError
        if self._first_error is not None:
            click.echo(
                f"tidelog: {self.stats.errors} records were not written. First error: {self._first_error}",
                err=True,
            )
        return metrics

    def _say(self, bar: ProgressBar, text: str) -> None:
        try:
            bar.say(text)
        except BrokenPipeError:  # raised on the producer's thread, which must not end
            self._unread = True

    def _send_all(self, producer: Producer, line: Callable[[float, int], None]) -> None:
        pace = Pace(self._throughput)
        with_transactions = self._transaction_ms is not None
        if with_transactions:
            producer.init_transactions()
        began: float | None = None
        for number in range(self.count):
            if self._unread:
                break
            if number == self._warmup and self._warmup:
                self.steady = Stats(self.count - self._warmup, steady=True)
            if with_transactions and began is None:
                producer.begin_transaction()
                began = time.monotonic()
            value = self._value(number)
            producer.send(self.topic, value, callback=self._delivered(number, len(value), line))
            if began is not None and (time.monotonic() - began) * 1000 >= (self._transaction_ms or 0):
                producer.commit_transaction()
                began = None
            pace.wait()
        if began is not None:
            producer.commit_transaction()

    def _delivered(self, number: int, size: int, line: Callable[[float, int], None]) -> DeliveryCallback:
        start = time.monotonic()

        def delivered(metadata: RecordMetadata, error: BaseException | None) -> None:
            if error is not None:
                self.stats.errors += 1
                self._first_error = self._first_error or error
                return
            latency = (time.monotonic() - start) * 1000
            self.stats.record(latency, size)
            if self.steady is not None and number >= self._warmup:
                self.steady.record(latency, size)
            line(latency, size)

        return delivered
