"""`tidelog pipeline submit`: `pipeline run` through spark-submit, for drivers inside a cluster.

`tidelog pipeline submit --master yarn --deploy-mode cluster -- earnings --data hdfs://names/pipelines` calls
spark-submit with the options before `--`. The driver then runs `tidelog pipeline run` with the rest.
"""

from __future__ import annotations

import os
import sys
from itertools import pairwise
from pathlib import Path

import click

from tidelog.cli.flags import KafkaStyleCommand

MAIN_FILE = Path(__file__).with_name("spark_main.py")
"""The file that spark-submit sends to the cluster. The package itself has to be there."""
RUN = "tidelog.pipeline.run"


class SubmitCommand(KafkaStyleCommand):
    """Keeps what follows `--` for `pipeline run`, unparsed."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and set(args) <= {"-h", "--help"}:
            return super().parse_args(ctx, args)
        place = args.index("--") if "--" in args else len(args)
        ctx.meta[RUN] = args[place + 1 :]
        return super().parse_args(ctx, ["--", *args[:place]])


@click.command("submit", cls=SubmitCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("options", metavar="[OPTION OF spark-submit]... -- NAME... [FLAG OF run]...", nargs=-1)
@click.pass_context
def submit(ctx: click.Context, options: tuple[str, ...]) -> None:
    """Run pipelines with spark-submit, for example with the driver inside a cluster."""
    run: list[str] = ctx.meta[RUN]
    why_not = refusal(options) if run else "write the options of spark-submit, then --, then pipelines to run"
    if why_not is not None:
        click.echo(f"tidelog: {why_not}", err=True)
        ctx.exit(1)
    program = spark_submit()
    sys.stdout.flush()
    os.execv(program, [program, *options, str(MAIN_FILE), *run])


def refusal(options: tuple[str, ...]) -> str | None:
    """Why spark-submit would refuse these options; None if it would not."""
    given = {flag: value for flag, value in pairwise(options) if flag.startswith("--")}
    given |= dict(option.split("=", 1) for option in options if option.startswith("--") and "=" in option)
    if given.get("--deploy-mode") == "cluster" and given.get("--master", "").startswith("spark://"):
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
