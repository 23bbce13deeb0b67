"""`tidelog start`: one broker in the foreground until it is told to stop."""

from __future__ import annotations

import sys
from pathlib import Path

import click


def parse_override(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name.strip():
        raise click.BadParameter(f"{text!r} is not of the form name=value", param_hint="--override")
    return name.strip(), value.strip()


@click.command()
@click.argument("properties", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--override",
    "overrides",
    multiple=True,
    metavar="NAME=VALUE",
    help="Set one setting, over the file's value; may be given several times.",
)
@click.option(
    "--ready-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write HOST:PORT of the first listener to this file once the broker answers.",
)
@click.option(
    "--log-level",
    type=click.Choice(["TRACE", "DEBUG", "INFO", "WARN", "ERROR"], case_sensitive=False),
    help="The level of the log on standard error; over tidelog.log.level, which is INFO by default.",
)
def start(
    properties: Path | None, overrides: tuple[str, ...], ready_file: Path | None, log_level: str | None
) -> None:
    """Start a broker, with the settings of PROPERTIES (a server.properties of Kafka 3.9 or 4.3 will do)."""
    from tidelog.server.run import run_broker

    sys.exit(run_broker(properties, dict(map(parse_override, overrides)), ready_file, log_level))
