"""Shared code of the tools: settings from flags and files, output as lines or JSON, progress, failures.

Exit codes: 0 after success, 1 for wrong flags or a failure, 130 after Ctrl-C. A progress bar appears on a
terminal only; a pipe gets plain lines.
"""

from __future__ import annotations

import json
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import click

from tidelog.cli.flags import (
    PROFILE_SETTINGS,
    FlagDefault,
    KafkaStyleCommand,
    end_at_closed_pipe,
    error_words,
    file_words,
)
from tidelog.config import ConfigError
from tidelog.config.properties import read_properties
from tidelog.errors import KafkaError

if TYPE_CHECKING:
    from tidelog.clients.admin import Admin

FORMS = ("json", "yaml", "table", "csv")
FORM = "tidelog.cli.output.form"
INTERRUPTED = 130  # a shell's exit code for a program that Ctrl-C ended

Command = Callable[[Callable[..., None]], click.Command]
Decorator = Callable[[Callable[..., None]], Callable[..., None]]


def tool_command(name: str | None = None, *, greedy: Iterable[str] = ()) -> Command:
    """A tool with Kafka's exit codes; `greedy` flags take all values up to the next flag."""

    class Greedy(KafkaStyleCommand):
        def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
            return super().parse_args(ctx, spread(args, frozenset(greedy)))

    return click.command(name, cls=Greedy, context_settings={"help_option_names": ["-h", "--help"]})


def spread(args: list[str], greedy: frozenset[str]) -> list[str]:
    """Turn `--flag a b` into `--flag a --flag b` for the parser."""
    found: list[str] = []
    flag: str | None = None
    first = False
    for arg in args:
        if arg.startswith("--"):
            flag, first = (arg if arg in greedy else None), True
            found.append(arg)
        elif flag is not None:
            found += [arg] if first else [flag, arg]
            first = False
        else:
            found.append(arg)
    return found


def output_option(function: Callable[..., None]) -> Callable[..., None]:
    """`--output`: the tool gets "json" for every form but text, and hands its value to `print_json`."""

    def chosen(ctx: click.Context, _option: click.Parameter, form: str) -> str:
        ctx.meta[FORM] = form
        return form if form == "text" else "json"

    return click.option(
        "--output",
        type=click.Choice(["text", *FORMS], case_sensitive=False),
        default="text",
        show_default=True,
        callback=chosen,
        help="Lines for people, or a form for programs.",
    )(function)


def event_output_option(function: Callable[..., None]) -> Callable[..., None]:
    """`--output` of a tool that prints event after event: lines of text, or of JSON."""
    return click.option(
        "--output",
        type=click.Choice(["text", "json"], case_sensitive=False),
        default="text",
        show_default=True,
        help="Lines for people, or lines of JSON for programs.",
    )(function)


def print_json(value: object) -> None:
    """Print a value in the form that `--output` names; as JSON where the tool has no such flag."""
    ctx = click.get_current_context(silent=True)
    form = "json" if ctx is None else ctx.meta.get(FORM, "json")
    if form in ("text", "json"):
        click.echo(json.dumps(value, ensure_ascii=False, separators=(",", ":")))
        return
    from tidelog.cli.output_forms import write_form

    click.echo(write_form(value, form), nl=False)


def settings_from(
    file: str | None, properties: Iterable[str] = (), *, flag: str = "--command-property", **fixed: object
) -> dict[str, object]:
    """The settings of a client. The tool's settings take precedence over flags, and flags over the file.

    Without a file they begin with the settings of the profile.
    """
    settings: dict[str, object] = dict(read_properties(file)) if file else profile_settings()
    settings.update(pairs(properties, flag))
    return merged(settings, **fixed)


def profile_settings() -> dict[str, object]:
    """The settings of the profile in use, with the passwords that it refers to."""
    ctx = click.get_current_context(silent=True)
    found = None if ctx is None else ctx.meta.get(PROFILE_SETTINGS)
    if not found:
        return {}
    from tidelog.cli.profiles import expanded

    return dict(expanded(found))


def pairs(texts: Iterable[str], flag: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise ValueError(f"{flag} {text!r}: expected name=value")
        found[name.strip()] = value
    return found


def topic_pattern(text: str) -> re.Pattern[str]:
    """The regular expression of --include."""
    try:
        return re.compile(text)
    except re.error as error:
        raise ValueError(f"--include {text} is not a regular expression: {error}") from None


@contextmanager
def unwound_by_sigterm() -> Iterator[None]:
    """Let SIGTERM leave the block as Ctrl-C does, so that clients are closed; the exit code is a shell's."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread gets signals
        yield
        return

    def leave(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def failing(prefix: str = "tidelog: ") -> Iterator[None]:
    """Turn errors into one line on standard error and the exit code."""
    ctx = click.get_current_context()
    try:
        yield
    except KafkaError as error:
        click.echo(f"{prefix}{error_words(error)}", err=True)
        ctx.exit(1)
    except (ConfigError, ValueError) as error:
        click.echo(f"{prefix}{error}", err=True)
        ctx.exit(1)
    except BrokenPipeError:
        end_at_closed_pipe(ctx)
    except OSError as error:
        click.echo(f"{prefix}{file_words(error)}", err=True)
        ctx.exit(1)
    except KeyboardInterrupt:
        ctx.exit(INTERRUPTED)


def open_admin(
    bootstrap: str,
    command_config: str | None,
    client_id: str | None = None,
    *,
    timeout_ms: int | None = None,
) -> Admin:
    """The admin client of a tool, with shorter time-outs than in a program.

    `timeout_ms` limits each call, and takes precedence over the file of settings.
    """
    from tidelog.clients.admin.blocking import Admin

    settings = settings_from(command_config, bootstrap_servers=bootstrap, default_api_timeout_ms=timeout_ms)
    if client_id is not None:
        settings.setdefault("client.id", client_id)
    settings.setdefault("default.api.timeout.ms", 30_000)
    return Admin(settings)


@contextmanager
def connected_admin(
    bootstrap: str, command_config: str | None, *, timeout_ms: int | None = None
) -> Iterator[Admin]:
    """`open_admin` for a tool that fails at once if no broker answers."""
    with open_admin(bootstrap, command_config, "tidelog-admin", timeout_ms=timeout_ms) as admin:
        admin.connect()
        yield admin


class Signals:
    """A context manager in which SIGINT and SIGTERM call `stop` instead of ending the program."""

    def __init__(self, stop: Callable[[], object]) -> None:
        self._stop = stop
        self._before: dict[signal.Signals, signal._HANDLER] = {}
        self.exit_code = 0
        """A shell's exit code for a program that a signal ended; 0 without a signal."""

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():  # only the main thread gets signals
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._arrived)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _arrived(self, number: int, _frame: object) -> None:
        self.exit_code = 128 + number
        self._stop()


class ProgressBar(Protocol):
    seen: bool
    """Whether standard output is on the terminal with the bar."""

    def advance(self, count: int = 1) -> None: ...

    def say(self, text: str) -> None:
        """Print a line to standard output, above the bar if both are on a terminal."""


class _Silent:
    seen = False

    def advance(self, count: int = 1) -> None:
        pass

    def say(self, text: str) -> None:
        click.echo(text)


@contextmanager
def progress(label: str, total: int | None) -> Iterator[ProgressBar]:
    """A bar on standard error if that is a terminal, else nothing."""
    if not sys.stderr.isatty():
        yield _Silent()
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.progress import (
        Progress as Bars,
    )

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    # The bar does not redirect standard output, which may be a pipe.
    with Bars(*columns, console=console, transient=True, redirect_stdout=False) as bars:
        task = bars.add_task(label, total=total)

        class Shown:
            seen = sys.stdout.isatty()

            def __init__(self) -> None:
                self._waiting = 0
                self._next = 0.0

            def advance(self, count: int = 1) -> None:
                self._waiting += count
                now = time.monotonic()
                if now >= self._next:  # redrawing the bar for every record would take too long
                    bars.advance(task, self._waiting)
                    self._waiting, self._next = 0, now + 0.1

            def say(self, text: str) -> None:
                if self.seen:
                    console.print(text, markup=False, highlight=False, soft_wrap=True)
                else:
                    click.echo(text)

        shown = Shown()
        yield shown
        bars.advance(task, shown._waiting)


class Pace:
    """Limits a loop to about `rate` rounds a second; no limit below 0, and no rounds at 0.

    Does not wait once `stop` is set.
    """

    def __init__(self, rate: float, stop: threading.Event | None = None) -> None:
        self._rate = rate
        self._stop = stop or threading.Event()
        self._start = time.monotonic()
        self._count = 0

    def wait(self) -> None:
        """Sleep until the next round; called after each round."""
        if self._rate < 0:
            return
        self._count += 1
        if self._rate == 0:
            self._stop.wait()
            return
        ahead = self._start + self._count / self._rate - time.monotonic()
        if ahead > 0.001:
            self._stop.wait(ahead)


def merged(properties: Mapping[str, object], **overrides: object) -> dict[str, object]:
    """Settings with the given flags, which take precedence."""
    given = {name.replace("_", "."): value for name, value in overrides.items() if value is not None}
    for name, value in given.items():
        if isinstance(value, FlagDefault) and name in properties:
            given[name] = properties[name]
    return {**properties, **given}
