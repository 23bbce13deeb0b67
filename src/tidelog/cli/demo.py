"""`tidelog demo`: runs a broker, writes events of an app with cheaters, and runs all pipelines on them.

The broker (`tidelog start`) and the pipelines (`tidelog pipeline run all`) are separate processes, so that
Spark's memory is free when the pipelines are done. The broker runs until Ctrl-C. Without Java, or without the
packages for Spark, only the broker runs, and a line says what is missing. With the packages of the extra
`console` the broker serves its console, and prints the address. Exit codes: 0 after Ctrl-C or when done,
1 if the broker cannot start or ends, or if the pipelines fail with --exit-when-done.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import click

from tidelog.cli.output import failing
from tidelog.console.extra import missing_packages
from tidelog.server.child_process import end_with_parent, tool_command

READY_SECONDS = 60.0
STOP_SECONDS = 15.0
PIPELINES_STOP_SECONDS = 5.0
TURN_SECONDS = 0.05
PARTITIONS = 4
CONSOLE_PORT = 8080
SHORT_RUN = {
    "spark.ui.enabled": "false",
    # The optimising compiler takes a quarter of the CPU of a short run and hardly has code to optimise.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    # They only remove old state: the five pipelines report nothing in a micro-batch without records.
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
}
"""Spark's settings for pipelines that read some thousand events and end."""
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """The flags of the demo."""

    data: Path
    pipeline_data: Path
    port: int
    overrides: tuple[str, ...]
    events: int
    seed: int

    @property
    def report(self) -> Path:
        return self.pipeline_data / "report.html"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("tidelog-data"),
    show_default=True,
    help="The broker's folder.",
)
@click.option(
    "--pipeline-data",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("tidelog-pipeline"),
    show_default=True,
    help="The pipelines' folder: tables, checkpoints and the report.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=9092,
    show_default=True,
    help="The port of the broker on 127.0.0.1; 0 for any free port.",
)
@click.option(
    "--override",
    "overrides",
    multiple=True,
    metavar="NAME=VALUE",
    help="A setting of the broker; may be repeated.",
)
@click.option(
    "--events",
    type=click.IntRange(min=1000),
    default=100_000,
    show_default=True,
    help="How many events to write if the topics are empty.",
)
@click.option("--seed", type=int, default=8, show_default=True, help="The same seed makes the same events.")
@click.option("--no-spark", is_flag=True, help="Run the broker alone.")
@click.option("--exit-when-done", is_flag=True, help="End after the report.")
@click.pass_context
def demo(
    ctx: click.Context,
    data: Path,
    pipeline_data: Path,
    port: int,
    overrides: tuple[str, ...],
    events: int,
    seed: int,
    no_spark: bool,
    exit_when_done: bool,
) -> None:
    """Run a broker, write events of an app, and show the results of the pipelines; Ctrl-C stops it."""
    options = DemoOptions(data, pipeline_data, port, overrides, events, seed)
    code = 0
    try:
        with failing(), signals_interrupt(), BrokerProcess(options) as broker:
            done = no_spark or show_pipelines(options, broker)
            if exit_when_done:
                code = 0 if done else 1
            else:
                click.echo(f"\nThe broker keeps running on {broker.address}. Ctrl-C stops it.")
                code = broker.wait()
    except click.exceptions.Exit as ended:
        # Ctrl-C is the normal end.
        code = 0 if ended.exit_code == 130 else ended.exit_code
    ctx.exit(code)


def show_pipelines(options: DemoOptions, broker: BrokerProcess) -> bool:
    """Write the events, run the pipelines and show the tables; False after a failure, which is printed."""
    from tidelog.spark.session import why_spark_cannot_run

    missing = why_spark_cannot_run()
    if missing is not None:
        click.echo(f"The broker runs alone, without the pipelines. {missing}")
        return False
    from tidelog.cli import demo_events, demo_tables

    if not demo_events.prepare(
        broker.address, options.pipeline_data, options.events, options.seed, PARTITIONS
    ):
        return False
    started = time.monotonic()
    click.echo("\nAll five pipelines read them, in one Spark session:\n")
    arguments = ["pipeline", "run", "all", "--trigger", "available-now"]
    arguments += ["--bootstrap-server", broker.address, "--data", str(options.pipeline_data)]
    click.echo(f"  $ tidelog {' '.join(arguments)}\n")
    arguments += ["--stop-timeout", "2"]
    for name, value in SHORT_RUN.items():
        arguments += ["--spark-conf", f"{name}={value}"]
    with Process(arguments, PIPELINES_STOP_SECONDS) as pipelines:
        code = broker.wait_with(pipelines)
    if code:
        click.echo(f"The pipelines failed with exit code {code}; the lines above say why.", err=True)
        return False
    click.echo(f"\nTheir tables, after {time.monotonic() - started:.0f} seconds:")
    demo_tables.show(
        options.pipeline_data,
        options.report,
        demo_events.truth(options.pipeline_data),
        demo_events.records(broker.address),
    )
    return True


class Process:
    """Runs a tool in a session of its own: Ctrl-C reaches only this process, which then stops the tool."""

    def __init__(self, arguments: Sequence[str], stop_seconds: float) -> None:
        self._stop_seconds = stop_seconds
        self._popen = subprocess.Popen(
            [*tool_command(), *arguments],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=end_with_parent(),
        )

    def __enter__(self) -> Process:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def poll(self) -> int | None:
        return self._popen.poll()

    def close(self) -> None:
        """Stop the process; after a while kill it and the processes that it started."""
        if self._popen.poll() is None:
            self._popen.terminate()
            try:
                self._popen.wait(self._stop_seconds)
            except subprocess.TimeoutExpired:
                os.killpg(self._popen.pid, signal.SIGKILL)
                self._popen.wait()


class BrokerProcess(Process):
    """A context manager that runs `tidelog start` and waits until the broker answers."""

    def __init__(self, options: DemoOptions) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="tidelog-demo-")
        self._ready = Path(self._folder.name) / "ready"
        settings = {
            "listeners": f"PLAINTEXT://127.0.0.1:{options.port}",
            "log.dirs": str(options.data),
            # The exactly-once sink uses two-phase commits, whose transactions have no time-out.
            "transaction.two.phase.commit.enable": "true",
        }
        if not missing_packages():
            settings["console.listener"] = f"127.0.0.1:{console_port() if options.port else 0}"
        arguments = ["start", "--ready-file", str(self._ready), "--log-level", "WARN"]
        for name, value in settings.items():
            arguments += ["--override", f"{name}={value}"]
        for override in options.overrides:
            arguments += ["--override", override]
        super().__init__(arguments, STOP_SECONDS)
        self.address = ""

    def __enter__(self) -> BrokerProcess:
        try:
            self.address = self._await_ready()
        except BaseException:
            self.close()
            raise
        return self

    def _await_ready(self) -> str:
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            if self._ready.exists() and (text := self._ready.read_text().strip()):
                return text
            if self.poll() is not None:
                raise OSError("the broker could not start; the line above says why")
            time.sleep(TURN_SECONDS)
        raise OSError(f"the broker did not answer within {READY_SECONDS:.0f} seconds")

    def wait(self) -> int:
        """Wait until the broker ends, which is an error; returns its exit code."""
        code = self._popen.wait()
        click.echo(f"tidelog: the broker ended with {code}", err=True)
        return code or 1

    def wait_with(self, other: Process) -> int:
        """The exit code of the other process; an error if the broker ends before it."""
        while (code := other.poll()) is None:
            if (own := self.poll()) is not None:
                raise OSError(f"the broker ended with {own} while the pipelines ran")
            time.sleep(TURN_SECONDS)
        return code

    def close(self) -> None:
        super().close()
        self._folder.cleanup()


def console_port() -> int:
    """The port of the console: the usual one, or any if it is in use."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", CONSOLE_PORT))
        except OSError:
            return 0
        return CONSOLE_PORT


@contextmanager
def signals_interrupt() -> Iterator[None]:
    """Let Ctrl-C, SIGTERM and a closed terminal end the program cleanly."""

    def interrupt(_number: int, _frame: object) -> None:
        for number in STOPS:  # ignore further signals: the end takes seconds
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():  # only the main thread gets signals
        yield
        return
    before = {number: signal.signal(number, interrupt) for number in STOPS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
