"""`tidelog config-docs`: every setting with its documentation, as Markdown."""

from __future__ import annotations

import click


@click.command("config-docs")
def config_docs() -> None:
    """Print every setting with its documentation, as Markdown."""
    from tidelog.server.config.docs import markdown

    click.echo(markdown(), nl=False)
