"""`tidelog consume-with FILE`: runs the handlers of a file until Ctrl-C or SIGTERM.

The first signal lets handlers finish, commits and leaves the group; a second signal ends the tool at once.
On a terminal one line shows the progress; a pipe gets a line in each interval. Exit codes: 0 after a stop, 1
after a failure, 130 after an interruption.
"""

from __future__ import annotations

import logging
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from tidelog.cli.flags import valued
from tidelog.cli.output import event_output_option, failing, print_json, tool_command
from tidelog.errors import KafkaError

if TYPE_CHECKING:
    from tidelog.clients.handlers import HandlerConsumer, Progress

# The interval in which the line on a terminal changes, and the tool checks whether it has to end.
TURN_SECONDS = 0.25


@tool_command("consume-with")
@click.argument("file", type=click.Path(dir_okay=False))
@click.option("--check", is_flag=True, help="Check the file, import its handlers, and end.")
@valued("--bootstrap-server", "HOST:PORT[,...]", "The first brokers to connect to; by default from the file.")
@click.option(
    "--interval",
    metavar="SECONDS",
    type=click.FloatRange(min=0.01),
    default=10.0,
    show_default=True,
    help="The time between two lines in a pipe.",
)
@event_output_option
def consume_with(file: str, check: bool, bootstrap_server: str | None, interval: float, output: str) -> None:
    """Handle the records of topics with the handlers in FILE (TOML), until Ctrl-C."""
    from tidelog.clients.handlers.consumer_file import load

    overrides = {} if bootstrap_server is None else {"bootstrap_servers": bootstrap_server}
    line = TerminalLine()
    with failing(), logged(line):
        consumer = load(file, **overrides)
        if check:
            print_plan(consumer, file, output)
            return
        run(consumer, line, interval, output)


def run(consumer: HandlerConsumer, line: TerminalLine, interval: float, output: str) -> None:
    with stopped_by_signals() as stopping:
        consumer.start()
        stopping.started(consumer)
        report = Report(consumer, output)
        next_line = time.monotonic() + interval
        try:
            while not ended(consumer):
                line.show(report.short())
                if time.monotonic() >= next_line:
                    next_line += interval
                    if not sys.stdout.isatty():
                        report.print()
        finally:
            stopping.started(None)
            consumer.close()
            line.clear()
        report.print(final=True)
        if consumer.failure is not None:
            click.get_current_context().exit(1)  # the log has the reason


def ended(consumer: HandlerConsumer) -> bool:
    try:
        return consumer.wait(TURN_SECONDS)
    except KafkaError:
        return True


class stopped_by_signals:
    """A context manager in which SIGINT and SIGTERM stop the consumer; a second signal ends the program."""

    def __init__(self) -> None:
        self._consumer: HandlerConsumer | None = None
        self._before: dict[int, object] = {}

    def __enter__(self) -> stopped_by_signals:
        if threading.current_thread() is threading.main_thread():  # only the main thread gets signals
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._on_signal)
        return self

    def started(self, consumer: HandlerConsumer | None) -> None:
        """Let signals stop this consumer; with None they end the program."""
        self._consumer = consumer

    def _on_signal(self, number: int, frame: object) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is None:
            raise KeyboardInterrupt
        consumer.stop()

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # the result of signal.signal


class Report:
    """The progress of a consumer as text or JSON, with the rate since the last report."""

    def __init__(self, consumer: HandlerConsumer, output: str) -> None:
        self._consumer = consumer
        self._json = output == "json"
        self._began = time.monotonic()
        self._last = (self._began, 0)
        self._rate = 0.0

    def _look(self) -> Progress:
        progress = self._consumer.progress()
        now = time.monotonic()
        then, handled = self._last
        if now - then >= 1.0:
            self._rate = (progress.handled - handled) / (now - then)
            self._last = (now, progress.handled)
        return progress

    def short(self) -> str:
        progress = self._look()
        parts = [f"{progress.handled:,} handled ({self._rate:,.0f}/s)", f"{progress.waiting:,} waiting"]
        if progress.lag is not None:
            parts.append(f"{progress.lag:,} not read yet")
        if progress.retried:
            parts.append(f"{progress.retried:,} retried")
        if progress.dead_letters:
            parts.append(f"{progress.dead_letters:,} dead letters")
        return ", ".join(parts) + f"; {progress.partitions} partitions"

    def print(self, final: bool = False) -> None:
        if self._json:
            seconds = round(time.monotonic() - self._began, 3)
            print_json({**asdict(self._look()), "seconds": seconds, "final": final})
        elif final:
            progress = self._look()
            click.echo(
                f"{progress.handled:,} handled, {progress.retried:,} retried, "
                f"{progress.dead_letters:,} dead letters"
            )
        else:
            click.echo(self.short())


def print_plan(consumer: HandlerConsumer, file: str, output: str) -> None:
    """Print the topics and handlers of a valid file."""
    topics = {
        plan.topic: {"streams": plan.streams, "dead_letter_topic": plan.errors.dead_letter_topic}
        for plan in consumer.plans.values()
    }
    if output == "json":
        print_json({"file": file, "topics": topics, "notes": consumer.notes})
        return
    for plan in consumer.plans.values():
        letters = plan.errors.dead_letter_topic
        after = f"then to {letters}" if letters else "then the consumer stops"
        click.echo(
            f"{plan.topic}: {plan.streams} {'stream' if plan.streams == 1 else 'streams'}; "
            f"retries of a failed record: {plan.errors.retries}, {after}"
        )
    click.echo(f"{file} is valid")


class TerminalLine:
    """One line at the bottom of the terminal on standard error; nothing without a terminal."""

    def __init__(self) -> None:
        self._shown = False
        self._lock = threading.Lock()

    def show(self, text: str) -> None:
        if sys.stderr.isatty():
            with self._lock:
                self._shown = True
                columns = shutil.get_terminal_size().columns
                sys.stderr.write(f"\r\x1b[K{text[: columns - 1]}")
                sys.stderr.flush()

    def clear(self) -> None:
        with self._lock:
            self._clear()

    def _clear(self) -> None:
        if self._shown:
            self._shown = False
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def above(self, text: str) -> None:
        """Print a permanent line above this one."""
        with self._lock:
            self._clear()
            click.echo(text, err=True)


class _Above(logging.Handler):
    def __init__(self, line: TerminalLine) -> None:
        super().__init__(logging.INFO)
        self._line = line

    def emit(self, record: logging.LogRecord) -> None:
        # An error of tidelog ends the program: print it as the other tools do.
        ours = record.levelno >= logging.ERROR and record.name.startswith("tidelog.")
        try:
            self._line.above(f"{'tidelog:' if ours else record.levelname} {self.format(record)}")
        except Exception:
            self.handleError(record)


@contextmanager
def logged(line: TerminalLine) -> Iterator[None]:
    """Write log lines of tidelog and of handlers to standard error."""
    root = logging.getLogger()
    handler = _Above(line)
    level = root.level
    root.addHandler(handler)
    root.setLevel(min(level, logging.INFO) if level else logging.INFO)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
