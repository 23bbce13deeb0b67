"""What the commands of `tidelog pipeline` share: the option of the data folder, and errors of one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click

from tidelog.cli.output import failing

DATA = "./tidelog-pipeline"
SAID_IN_ONE_LINE = frozenset(
    ("SparkMissing", "SparkDied", "FlowFailed", "ClusterUnreachable", "LeaseLost", "CannotRepartition")
)
"""The names of errors whose message is all that a user needs. Their modules import Spark."""

data_option = click.option(
    "--data",
    metavar="DIR",
    default=DATA,
    show_default=True,
    help="The folder of tables, checkpoints and status: a local or shared one, s3:// or hdfs://.",
)
checkpoints_option = click.option(
    "--checkpoints",
    metavar="DIR",
    default="",
    help="The folder of checkpoints, on another file system than --data; by default in --data.",
)


@contextmanager
def pipeline_failing() -> Iterator[None]:
    """Turn errors, also missing packages, into one line on standard error."""
    ctx = click.get_current_context()
    with failing():
        try:
            yield
        except ModuleNotFoundError as error:
            missing = (error.name or "").partition(".")[0]
            if missing == "tidelog":
                raise
            click.echo(
                f"tidelog: the package {missing} is missing; install the pipelines' extra: "
                "pip install 'tidelog[spark]'",
                err=True,
            )
            ctx.exit(1)
        except RuntimeError as error:
            if type(error).__name__ not in SAID_IN_ONE_LINE:
                raise
            click.echo(f"tidelog: {error}", err=True)
            ctx.exit(1)
