"""`tidelog zookeeper`: runs a real ZooKeeper for brokers on this machine.

Exit codes: 0 after Ctrl-C or SIGTERM, 1 if ZooKeeper cannot start or ends by itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tidelog.cli.stop_signals import StopAsked, ignore_stop_signals, stop_signals

if TYPE_CHECKING:
    from tidelog.server.zookeeper_process import ZooKeeperProcess


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
    from tidelog.server.zookeeper_process import ZooKeeperFailed, ZooKeeperPortRefused, ZooKeeperProcess

    process = ZooKeeperProcess(data, port, host)
    try:
        with stop_signals():
            code = _run(process)
        raise ZooKeeperFailed(f"ZooKeeper ended with code {code}: see {process.log_file}")
    except StopAsked:
        _stop(process)
    except ZooKeeperPortRefused as error:
        raise click.ClickException(f"{error}; choose another port with --port") from None
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
    ignore_stop_signals()
    process.stop()
