"""`tidelog end-to-end-latency`: measures the time from producer to consumer, as kafka-e2e-latency."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

import click

from tidelog.cli.flags import WrongUsage, bootstrap_server, valued
from tidelog.cli.output import (
    failing,
    open_admin,
    output_option,
    print_json,
    progress,
    settings_from,
    tool_command,
)

if TYPE_CHECKING:
    from tidelog.clients.consumer.blocking import Consumer
    from tidelog.clients.producer.blocking import Producer

POLL_SECONDS = 60.0
LETTERS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"
REPORT_EVERY = 1000

Headers = tuple[tuple[str, bytes | None], ...]


@tool_command("end-to-end-latency")
@click.argument("old_style", nargs=-1, metavar="[BROKERS TOPIC COUNT ACKS SIZE [FILE]]")
@bootstrap_server
@valued("--topic", "NAME", "The topic to write and read; created if it is missing. Required.")
@valued("--num-records", "N", "How many records; required.", int)
@valued("--producer-acks", "ACKS", "1 or all; required.")
@valued("--record-size", "BYTES", "The size of each value; required.", int)
@valued("--record-key-size", "BYTES", "The size of each key (default 0).", int)
@valued("--num-headers", "N", "How many headers each record has (default 0).", int)
@valued("--record-header-key-size", "BYTES", "The size of a header's name (default 0).", int)
@valued("--record-header-size", "BYTES", "The size of a header's value (default 0).", int)
@valued("--command-config", "FILE", "A properties file with settings of the clients.")
@output_option
@click.pass_context
def end_to_end_latency(ctx: click.Context, /, old_style: tuple[str, ...], **flags: object) -> None:
    """Write records one by one, wait until each is read, and print the latencies."""
    if old_style:
        if len(old_style) not in (5, 6):
            raise WrongUsage("expected BROKERS TOPIC COUNT ACKS SIZE [FILE], or flags", ctx)
        names = ("bootstrap_server", "topic", "num_records", "producer_acks", "record_size", "command_config")
        flags |= dict(zip(names, old_style, strict=False))
    for name in ("topic", "num_records", "producer_acks", "record_size"):
        if flags[name] is None:
            raise WrongUsage(f"--{name.replace('_', '-')} must be specified", ctx)
    if flags["producer_acks"] not in ("1", "all", "-1"):
        raise WrongUsage("Latency testing requires synchronous acknowledgement. Please use 1 or all", ctx)
    with failing():
        sizes = Sizes(*(number(flags, name) for name in Sizes.FLAGS))
        count = number(flags, "num_records")
        if count < 1:
            raise ValueError(f"--num-records is {count}; it must be greater than 0")
        file = None if flags["command_config"] is None else str(flags["command_config"])
        latencies = measure(
            str(flags["bootstrap_server"]),
            str(flags["topic"]),
            count,
            str(flags["producer_acks"]),
            sizes,
            file,
            str(flags["output"]),
        )
    report(latencies, str(flags["output"]))


def number(flags: dict[str, object], name: str) -> int:
    text = str(flags[name] or 0)
    if not text.isdigit():
        raise ValueError(f"--{name.replace('_', '-')} is {text!r}; expected a whole number from 0 on")
    return int(text)


class Sizes:
    """The sizes of the parts of a record."""

    FLAGS = ("record_size", "record_key_size", "num_headers", "record_header_key_size", "record_header_size")

    def __init__(self, value: int, key: int, headers: int, header_key: int, header_value: int) -> None:
        self.value = value
        self.key = key
        self.headers = headers
        self.header_key = header_key
        self.header_value = header_value

    def record(self, chance: random.Random) -> tuple[bytes, bytes | None, Headers]:
        def letters(size: int) -> bytes:
            return bytes(chance.choices(LETTERS, k=size))

        headers = tuple(
            (letters(self.header_key).decode(), letters(self.header_value)) for _ in range(self.headers)
        )
        return letters(self.value), letters(self.key) if self.key else None, headers


def measure(
    bootstrap: str, topic: str, count: int, acks: str, sizes: Sizes, file: str | None, output: str
) -> list[float]:
    """The latency of each record in milliseconds."""
    from tidelog.clients.admin import NewTopic
    from tidelog.clients.consumer.blocking import Consumer
    from tidelog.clients.producer.blocking import Producer

    with open_admin(bootstrap, file) as admin:
        if topic not in admin.list_topics(list_internal=True):
            if output != "json":
                click.echo(
                    f'Topic "{topic}" does not exist. Will create topic with 1 partition(s) and replication '
                    "factor = 1"
                )
            admin.create_topics([NewTopic(topic, 1, 1)])
    common = settings_from(file, bootstrap_servers=bootstrap)
    reading = {"enable.auto.commit": False, "auto.offset.reset": "latest", "fetch.max.wait.ms": 0, **common}
    writing = {"linger.ms": 0, "max.block.ms": 2**31, "acks": acks, **common}
    with Consumer(reading) as consumer, Producer(writing) as producer:
        partitions = [(topic, info.partition) for info in consumer.partitions_for(topic)]
        consumer.assign(partitions)
        consumer.seek_to_end(*partitions)
        for partition in partitions:
            consumer.position(partition)
        return rounds(consumer, producer, topic, count, sizes, output)


def rounds(
    consumer: Consumer, producer: Producer, topic: str, count: int, sizes: Sizes, output: str
) -> list[float]:
    chance = random.Random(0)
    latencies: list[float] = []
    with progress("records", count) as bar:
        for at in range(count):
            value, key, headers = sizes.record(chance)
            began = time.perf_counter()
            producer.send(topic, value, key=key, headers=headers).result()
            found = consumer.poll(POLL_SECONDS)
            took = (time.perf_counter() - began) * 1000
            if not found:
                raise ValueError(f"poll() timed out before finding a result (timeout:[{POLL_SECONDS:.0f} s])")
            if len(found) != 1 or found[0].value != value or found[0].key != key:
                raise ValueError(
                    f"record {at} was not the only one that was read: another producer writes to {topic}"
                )
            latencies.append(took)
            bar.advance()
            if at % REPORT_EVERY == 0 and output != "json":
                bar.say(f"{at}\t{took}")
    return latencies


def report(latencies: list[float], output: str) -> None:
    ordered = sorted(latencies)
    average = sum(latencies) / len(latencies)

    def percentile(part: float) -> float:
        return ordered[int(len(ordered) * part)]

    if output == "json":
        print_json(
            {
                "records": len(latencies),
                "avg_ms": average,
                "p50_ms": percentile(0.5),
                "p99_ms": percentile(0.99),
                "p999_ms": percentile(0.999),
            }
        )
        return
    click.echo(f"Avg latency: {average:.4f} ms")
    click.echo(
        f"Percentiles: 50th = {int(percentile(0.5))}, 99th = {int(percentile(0.99))}, "
        f"99.9th = {int(percentile(0.999))}"
    )
