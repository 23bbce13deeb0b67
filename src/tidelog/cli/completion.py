"""`tidelog completion`: prints a script with which a shell completes tools, flags, topics and groups."""

from __future__ import annotations

import click

from tidelog.cli.output import tool_command

SHELLS = ("bash", "zsh", "fish")


@tool_command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a script that completes tools, flags, topics and groups: eval "$(tidelog completion bash)".

    For zsh, put it into ~/.zshrc. For fish: tidelog completion fish > ~/.config/fish/completions/tidelog.fish
    """
    from click.shell_completion import get_completion_class

    from tidelog.cli.main import main

    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(main, {}, "tidelog", "_TIDELOG_COMPLETE")
    # Without click's check of the shell's version, which would start a shell.
    click.echo(script.source_template % script.source_vars())
