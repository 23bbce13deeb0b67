"""`tidelog generate`: writes events of the app for the pipelines, with known cheaters."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tidelog.cli.flags import Decorator, WrongUsage, bootstrap_server, valued
from tidelog.cli.output import (
    Signals,
    failing,
    output_option,
    print_json,
    progress,
    settings_from,
    tool_command,
)

if TYPE_CHECKING:
    from tidelog.spark.pipelines.generator import Chunk, Plan, Truth
    from tidelog.spark.pipelines.generator_writer import Writer

Decorated = Callable[..., None]
UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
LIVE = "live"
REPORT_SECONDS = 5.0  # between two lines in a pipe
PACED_CHUNKS = 5  # a second, at a rate


def duration(ctx: click.Context, option: click.Parameter, text: str | None) -> int | None:
    """Milliseconds."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", text)
    if found is None:
        raise click.BadParameter(
            f"{text!r} is not a duration; expected a number with ms, s, m, h or d, such as 10m", ctx, option
        )
    return round(float(found[1]) * UNITS[found[2]])


def moment(ctx: click.Context, option: click.Parameter, text: str | None) -> int | str | None:
    """Milliseconds since 1970 of a time in ISO 8601, in UTC unless it has a zone; or `live`."""
    if text is None or text == LIVE:
        return text
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is not a time; expected one such as 2026-11-15T08:00, or {LIVE}", ctx, option
        ) from None
    return round((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)


def counted(name: str, text: str, default: int | None = None) -> Decorator:
    shown = default is not None
    return click.option(
        name, metavar="N", type=click.IntRange(min=0), default=default, show_default=shown, help=text
    )


def fraction(name: str, text: str) -> Decorator:
    return click.option(
        name, metavar="FRACTION", type=click.FloatRange(0, 1), default=0.0, show_default=True, help=text
    )


def planted(function: Decorated) -> Decorated:
    """The flags that plant cheaters."""
    for name, text in reversed(
        (
            ("--device-switchers", "Devices that switch accounts again and again."),
            ("--invite-farms", "Devices that many invitees sign up on."),
            ("--address-farms", "Addresses that many invitees sign up from."),
            ("--minute-bursts", "Inviters with many invitees in a minute."),
            ("--rings", "Rings of users who invite each other."),
            ("--idle-farms", "Inviters whose invitees never act."),
        )
    ):
        function = counted(name, text)(function)
    return function


@tool_command("generate", greedy=["--command-property"])
@bootstrap_server
@counted("--events", "How many records, broken and duplicate ones included.", 100_000)
@click.option("--rate", metavar="N", type=click.FloatRange(min=0), help="Events per second; 0 for no limit.")
@valued("--seed", "N", "The same seed and --start give the same bytes; by default random, and printed.", int)
@counted("--users", "How many users; 0 for one per 50 events.", 0)
@counted("--devices", "How many devices; 0 for four per five users.", 0)
@click.option(
    "--start",
    callback=moment,
    metavar="TIME",
    help=f"The time of the first event, such as 2026-11-15T08:00, or {LIVE}: now. The default is {LIVE} with "
    "--rate; without it the last event happens now.",
)
@click.option(
    "--span",
    callback=duration,
    metavar="DURATION",
    help="The time from the first event to the last (default 24h, unless live).",
)
@fraction("--late", "The part of the events that arrives late.")
@click.option(
    "--late-by",
    callback=duration,
    metavar="DURATION",
    default="10m",
    show_default=True,
    help="The longest delay of late events.",
)
@fraction("--out-of-order", "The part that arrives up to 20 s out of order.")
@fraction("--broken", "The part that is broken: not JSON, truncated, of a wrong type and so on.")
@fraction("--duplicates", "The part that is sent a second time.")
@planted
@counted("--cheaters", "The number of each kind of cheater without a flag for its kind.", 0)
@counted("--partitions", "The number of partitions of new topics.", 4)
@valued("--truth", "FILE", "Write the cheaters, and a description of the events, as JSON.")
@click.option("--command-property", metavar="NAME=VALUE...", multiple=True, help="Settings of the clients.")
@valued("--command-config", "FILE", "A properties file with settings of the clients.")
@output_option
@click.pass_context
def generate(
    ctx: click.Context,
    bootstrap_server: str,
    events: int,
    rate: float | None,
    seed: int | None,
    users: int,
    devices: int,
    start: int | str | None,
    span: int | None,
    late: float,
    late_by: int,
    out_of_order: float,
    broken: float,
    duplicates: float,
    device_switchers: int | None,
    invite_farms: int | None,
    address_farms: int | None,
    minute_bursts: int | None,
    rings: int | None,
    idle_farms: int | None,
    cheaters: int,
    partitions: int,
    truth: str | None,
    command_property: tuple[str, ...],
    command_config: str | None,
    output: str,
) -> None:
    """Write events of the app to its nine topics, for the pipelines.

    The cheaters are known: --truth writes their names, by the rule that should find them.
    """
    if partitions < 1:
        raise WrongUsage(f"--partitions is {partitions}; it must be at least 1", ctx)
    if truth and not Path(truth).parent.is_dir():
        raise WrongUsage(f"--truth is {truth}, but the folder {Path(truth).parent} does not exist", ctx)
    begin, length = times(ctx, events, rate, start, span)
    with failing():
        libraries()
        from tidelog.spark.pipelines.generator import CHUNK, Plan
        from tidelog.spark.pipelines.generator_scenes import Cheaters
        from tidelog.spark.pipelines.generator_writer import Writer

        wanted = (device_switchers, invite_farms, address_farms, minute_bursts, rings, idle_farms)
        plan = Plan(
            events=events,
            start=begin,
            seed=random.SystemRandom().randrange(1 << 32) if seed is None else seed,
            span=length,
            users=users,
            devices=devices,
            late=late,
            late_by=late_by,
            out_of_order=out_of_order,
            broken=broken,
            duplicates=duplicates,
            cheaters=Cheaters(*(cheaters if number is None else number for number in wanted)),
            chunk=max(1, min(CHUNK, int(rate / PACED_CHUNKS))) if rate else CHUNK,
            steady=bool(rate),
        )
        settings = settings_from(command_config, command_property, bootstrap_servers=bootstrap_server)
        settings.setdefault("client.id", "tidelog-generate")
        writer = Writer(plan, settings, rate or 0.0)
        created = writer.create_topics(partitions)
        with Signals(writer.stop) as signals:
            found = run(writer, plan, output)
        if truth:
            Path(truth).write_text(found.to_json() + "\n")
        report(writer, found, created, output)
    ctx.exit(signals.exit_code)


def times(
    ctx: click.Context, events: int, rate: float | None, start: int | str | None, span: int | None
) -> tuple[int, int]:
    """The time of the first event, and the time from the first to the last, in milliseconds."""
    now = round(time.time() * 1000)
    if start == LIVE or (start is None and rate):
        if not rate:
            raise WrongUsage(f"--start {LIVE} needs --rate, the number of events per second", ctx)
        if span is not None:
            raise WrongUsage(
                "--span goes with a --start in the past; --events and --rate set the span of live events", ctx
            )
        return now, max(1, round(events / rate * 1000))
    length = UNITS["d"] if span is None else span
    if length < 1:
        raise WrongUsage(f"--span is {length} ms; it must be greater than 0", ctx)
    return (start if isinstance(start, int) else now - length), length


def libraries() -> None:
    """Raise ValueError with the name of the extra if a library is missing."""
    try:
        import numpy  # noqa: F401
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise ValueError(f"{error.name} is not installed: pip install 'tidelog[spark]'") from None


def run(writer: Writer, plan: Plan, output: str) -> Truth:
    """Write the events, with a bar on a terminal, or a line in each interval in a pipe."""
    reported = time.monotonic()
    with progress("events", plan.events) as bar:

        def on_chunk(chunk: Chunk) -> None:
            nonlocal reported
            bar.advance(chunk.rows)
            if time.monotonic() - reported >= REPORT_SECONDS and output == "text" and not bar.seen:
                reported = time.monotonic()
                click.echo(f"{writer.written} of {plan.events} events written")

        return writer.run(on_chunk)


def report(writer: Writer, truth: Truth, created: list[str], output: str) -> None:
    cheaters = {rule: len(names) for rule, names in truth.cheaters.items() if names}
    rate = writer.written / max(writer.seconds, 1e-9)
    if output == "json":
        print_json(
            {
                "seed": truth.seed,
                "start": truth.start,
                "end": truth.end,
                "written": writer.written,
                "seconds": round(writer.seconds, 3),
                "events_per_sec": round(rate, 1),
                "topics_created": created,
                "events": truth.events,
                "broken": truth.broken,
                "duplicates": truth.duplicates,
                "late": truth.late,
                "cheaters": cheaters,
            }
        )
        return
    click.echo(
        f"{writer.written} events written in {writer.seconds:.1f} s ({rate:.0f} a second), seed {truth.seed}"
    )
    for topic, count in truth.events.items():
        click.echo(f"  {topic}: {count}")
    broken = sum(truth.broken.values())
    click.echo(f"broken: {broken}, duplicates: {truth.duplicates}, late: {truth.late}")
    if cheaters:
        click.echo("cheaters: " + ", ".join(f"{rule} {count}" for rule, count in cheaters.items()))
