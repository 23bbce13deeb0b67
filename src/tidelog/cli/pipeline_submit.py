"""`tidelog pipeline submit`: `pipeline run` through spark-submit, for drivers inside a cluster.

`tidelog pipeline submit --master yarn --deploy-mode cluster -- earnings --data hdfs://names/pipelines` calls
spark-submit with the options before `--`. The driver then runs `tidelog pipeline run` with the rest.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from tidelog.cli.flags import KafkaStyleCommand

MAIN_FILE = Path(__file__).with_name("spark_main.py")
"""The file that spark-submit sends to the cluster. The package itself has to be there."""
RUN = "tidelog.pipeline.run"


class SubmitCommand(KafkaStyleCommand):
    """Keeps what follows `--` for `pipeline run`, unparsed."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        place = args.index("--") if "--" in args else len(args)
        ctx.meta[RUN] = args[place + 1 :]
        return super().parse_args(ctx, args[:place])


@click.command(
    "submit",
    cls=SubmitCommand,
    context_settings={"help_option_names": ["-h", "--help"], "ignore_unknown_options": True},
)
@click.option("--master", metavar="URL", help="The Spark master: yarn, k8s://..., spark://..., local[2].")
@click.option(
    "--deploy-mode",
    type=click.Choice(["client", "cluster"]),
    help="Where the driver runs: here, or in the cluster.",
)
@click.argument(
    "options",
    metavar="[OPTION OF spark-submit]... -- NAME... [FLAG OF run]...",
    nargs=-1,
    type=click.UNPROCESSED,
)
@click.pass_context
def submit(ctx: click.Context, master: str | None, deploy_mode: str | None, options: tuple[str, ...]) -> None:
    """Run pipelines with spark-submit.

    With it the driver can run inside a cluster.
    """
    run: list[str] = ctx.meta[RUN]
    why_not = (
        refusal(master, deploy_mode) if run else "write options of spark-submit, then --, then pipelines"
    )
    if why_not is not None:
        click.echo(f"tidelog: {why_not}", err=True)
        ctx.exit(1)
    program = spark_submit()
    where = [
        *(("--master", master) if master else ()),
        *(("--deploy-mode", deploy_mode) if deploy_mode else ()),
    ]
    sys.stdout.flush()
    os.execv(program, [program, *where, *options, str(MAIN_FILE), *run])


def refusal(master: str | None, deploy_mode: str | None) -> str | None:
    """Why spark-submit would refuse these options; None if it would not."""
    if deploy_mode == "cluster" and (master or "").startswith("spark://"):
        return (
            "Spark runs no Python driver inside a standalone cluster: leave --deploy-mode cluster out, and"
            " the driver runs here, or use YARN or Kubernetes"
        )
    return None


def spark_submit() -> str:
    """The program of the installed Spark: that of SPARK_HOME, or that of PySpark."""
    from tidelog.spark.session import why_spark_cannot_run

    missing = why_spark_cannot_run()
    if missing is not None:
        raise click.ClickException(missing)
    import pyspark

    home = os.environ.get("SPARK_HOME") or str(Path(pyspark.__file__).parent)
    program = Path(home) / "bin" / "spark-submit"
    if not program.exists():
        raise click.ClickException(f"there is no {program}; SPARK_HOME should be the folder of Spark")
    return str(program)
