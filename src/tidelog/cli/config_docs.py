"""`tidelog config-docs`: every setting with its documentation, as Markdown."""

from __future__ import annotations

import click


@click.command("config-docs")
@click.option("--clients", is_flag=True, help="The settings of the Python clients instead of the broker's.")
def config_docs(clients: bool) -> None:
    """Print every setting with its documentation, as Markdown."""
    if clients:
        from tidelog.clients.setting_docs import markdown
    else:
        from tidelog.server.config.docs import markdown

    click.echo(markdown(), nl=False)
