"""`tidelog zookeeper`: runs a real ZooKeeper for brokers on this machine.

Exit codes: 0 after Ctrl-C or SIGTERM, 1 if ZooKeeper cannot start or ends by itself.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from tidelog.server.zookeeper_process import ZooKeeperProcess

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _StopAsked(Exception):
    """A signal asked to stop."""


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def zookeeper() -> None:
    """Run a ZooKeeper server."""


@zookeeper.command()
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("tidelog-zookeeper"),
    show_default=True,
    help="The folder of its data, its configuration and its log.",
)
@click.option(
    "--port", type=click.IntRange(1, 65535), default=2181, show_default=True, help="The port for brokers."
)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
def start(data: Path, port: int, host: str) -> None:
    """Start a ZooKeeper server, and run it until Ctrl-C.

    It is Apache ZooKeeper from the jars in PySpark: Java and `tidelog[spark]` have to be installed. It has no
    copy on other machines and no access control, so let it listen on this machine only.
    """
    from tidelog.server.zookeeper_process import ZooKeeperFailed, ZooKeeperProcess

    process = ZooKeeperProcess(data, port, host)
    try:
        with _signals():
            code = _run(process)
        raise ZooKeeperFailed(f"ZooKeeper ended with code {code}: see {process.log_file}")
    except _StopAsked:
        _stop(process)
    except ZooKeeperFailed as error:
        _stop(process)
        raise click.ClickException(str(error)) from None


def _run(process: ZooKeeperProcess) -> int | None:
    process.start()
    process.wait_ready()
    click.echo(f"ZooKeeper answers at {process.address}, its data is in {process.data_dir}. Ctrl-C stops it.")
    return process.wait()


def _stop(process: ZooKeeperProcess) -> None:
    """Stop it; another signal changes nothing."""
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)
    process.stop()


@contextmanager
def _signals() -> Iterator[None]:
    """Raise _StopAsked at a signal."""

    def ask(number: int, _frame: object) -> None:
        raise _StopAsked(signal.Signals(number).name)

    before = {number: signal.signal(number, ask) for number in STOPS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
