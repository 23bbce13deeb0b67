"""`tidelog start`: runs one broker in the foreground until a signal stops it."""

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
    help="A setting, which takes precedence over the file; may be repeated.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="Listen on this port of this machine; short for --override listeners=PLAINTEXT://127.0.0.1:PORT.",
)
@click.option(
    "--ready-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write HOST:PORT of the first listener to this file when the broker answers.",
)
@click.option(
    "--log-level",
    type=click.Choice(["TRACE", "DEBUG", "INFO", "WARN", "ERROR"], case_sensitive=False),
    help="The level of the log on standard error; takes precedence over tidelog.log.level (default INFO).",
)
def start(
    properties: Path | None,
    overrides: tuple[str, ...],
    port: int | None,
    ready_file: Path | None,
    log_level: str | None,
) -> None:
    """Start a broker with the settings of PROPERTIES, for example a server.properties of Kafka 3.9 or 4.3."""
    from tidelog.server.run import run_broker

    settings = dict(map(parse_override, overrides))
    if port is not None:
        if "listeners" in settings:
            raise click.UsageError("--port and --override listeners=... cannot be specified together")
        settings["listeners"] = f"PLAINTEXT://127.0.0.1:{port}"
    sys.exit(run_broker(properties, settings, ready_file, log_level))
