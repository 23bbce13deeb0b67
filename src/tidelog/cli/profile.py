"""`tidelog profile`: named clusters, the default of --bootstrap-server and of connection settings."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import click

from tidelog.cli.flags import KafkaStyleCommand, KafkaStyleGroup
from tidelog.cli.output import output_option, pairs, print_json
from tidelog.cli.profiles import (
    COLOURS,
    NAME,
    Profile,
    ProfileError,
    ProfileFile,
    active_profile,
    is_plain_secret,
)
from tidelog.cli.terminal import visible

F = TypeVar("F", bound=Callable[..., None])

# What `set` changes beside settings of clients.
FIELDS = ("bootstrap_servers", "colour", "description")
SHELL_MARKS = {"bash": ("\001", "\002"), "zsh": ("%{", "%}"), "plain": ("", "")}


@click.group(cls=KafkaStyleGroup, context_settings={"help_option_names": ["-h", "--help"]})
def profile() -> None:
    """Keep named clusters: create one, use it, and see its name in the prompt of your shell."""


def command(name: str) -> Callable[[Callable[..., None]], click.Command]:
    return profile.command(name, cls=KafkaStyleCommand)


@contextmanager
def complaining() -> Iterator[None]:
    try:
        yield
    except (ValueError, OSError) as error:
        click.echo(f"tidelog: {visible(str(error))}", err=True)
        click.get_current_context().exit(1)


def changed(found: Profile, texts: tuple[str, ...]) -> None:
    """Apply NAME=VALUE pairs; an empty value removes a setting. Raises ProfileError for a plain password."""
    for name, value in pairs(texts, "NAME=VALUE").items():
        if name in FIELDS:
            setattr(found, name, value)
        elif is_plain_secret(name, value):
            raise ProfileError(f"{name} is a password: write {name}=${{env:NAME}} or {name}=${{file:PATH}}")
        elif value:
            found.settings[name] = value
        else:
            found.settings.pop(name, None)
    wrong = found.problems(references=False)  # a tool that connects may have another environment
    if wrong:
        raise ProfileError(f"profile {found.name}: {wrong[0]}")


@command("create")
@click.argument("name")
@click.option("--bootstrap-servers", metavar="HOST:PORT[,...]", required=True, help="Brokers of the cluster.")
@click.option(
    "--colour", "--color", metavar="COLOUR", default="", help=f"{', '.join(COLOURS)}; hi-red is bright."
)
@click.option("--description", default="", help="A line for the list.")
@click.option("-s", "--set", "settings", metavar="NAME=VALUE", multiple=True, help="A setting of clients.")
def create(
    name: str, bootstrap_servers: str, colour: str, description: str, settings: tuple[str, ...]
) -> None:
    """Create a profile, and use it."""
    with complaining():
        file = ProfileFile.load()
        if not NAME.fullmatch(name):
            raise ProfileError(f"{name!r} is no name: expected letters, digits, dots, dashes, underscores")
        if name in file.profiles:
            raise ProfileError(f"there is a profile {name!r} already")
        made = Profile(name, bootstrap_servers, colour, description)
        changed(made, settings)
        file.profiles[name] = made
        file.current = name
        file.save()
        click.echo(f"Created and using profile {name}.")


@command("use")
@click.argument("name")
def use(name: str) -> None:
    """Use a profile from now on."""
    with complaining():
        file = ProfileFile.load()
        file.current = file.get(name).name
        file.save()
        click.echo(f"Using profile {name}.")


@command("list")
@output_option
def list_profiles(output: str) -> None:
    """Print the profiles; a star marks the one that tools use here."""
    with complaining():
        file = ProfileFile.load()
        active = active_profile(None)
        chosen = "" if active is None else active.profile.name
        if output != "text":
            print_json([{**each.as_json(), "active": each.name == chosen} for each in file.profiles.values()])
            return
        if not file.profiles:
            click.echo("no profile yet: tidelog profile create NAME --bootstrap-servers HOST:PORT", err=True)
        width = max(map(len, file.profiles), default=0)
        for each in file.profiles.values():
            mark = "*" if each.name == chosen else " "
            line = f"{mark} {each.name:<{width}}  {each.bootstrap_servers}  {each.description}"
            click.echo(visible(line.rstrip()))
        if active is not None and active.chosen_by == "project":
            click.echo(visible(f"The project's file chooses {chosen}: {active.profile.bootstrap_servers}"))


@command("set")
@click.argument("name")
@click.argument("settings", nargs=-1, required=True, metavar="NAME=VALUE...")
def set_(name: str, settings: tuple[str, ...]) -> None:
    """Change brokers, colour, description or settings of a profile.

    NAME is bootstrap_servers, colour, description, or a setting of Kafka's clients. An empty VALUE removes a
    setting.
    """
    with complaining():
        file = ProfileFile.load()
        changed(file.get(name), settings)
        file.save()


@command("delete")
@click.argument("name")
def delete(name: str) -> None:
    """Delete a profile."""
    with complaining():
        file = ProfileFile.load()
        del file.profiles[file.get(name).name]
        if file.current == name:
            file.current = ""
        file.save()
        click.echo(f"Deleted profile {name}." + ("" if file.current else " No profile is in use now."))


@command("edit")
@click.pass_context
def edit(ctx: click.Context) -> None:
    """Open the file of profiles in $EDITOR, and check it afterwards."""
    with complaining():
        file = ProfileFile.load()
        if not file.path.exists():
            file.save()
        click.edit(filename=str(file.path))
        ctx.invoke(validate)


@command("validate")
@click.pass_context
def validate(ctx: click.Context) -> None:
    """Check all profiles and the project's file.

    Checks the form, that references lead somewhere, and that no password stands in a file. Asks no cluster.
    """
    with complaining():
        file = ProfileFile.load()
        if file.current:
            file.get(file.current)
        active_profile(None)
        wrong = [(each.name, problem) for each in file.profiles.values() for problem in each.problems()]
        for name, problem in wrong:
            click.echo(visible(f"{name}: {problem}"))
        if wrong:
            ctx.exit(1)
        count = len(file.profiles)
        click.echo("1 profile is valid." if count == 1 else f"{count} profiles are valid.")


@command("prompt")
@click.option(
    "--shell",
    type=click.Choice(tuple(SHELL_MARKS)),
    default="bash",
    show_default=True,
    help="Whose marks stand around the colours.",
)
def prompt(shell: str) -> None:
    """Print the active profile in its colour, for a prompt.

    For bash: PS1='$(tidelog profile prompt) \\$ '
    """
    try:
        active = active_profile(None)
    except (ValueError, OSError):
        click.echo("(profile?)", nl=False)  # a prompt never fails
        return
    if active is None:
        return
    click.echo(painted(active.profile, shell), nl=False, color=True)


def painted(found: Profile, shell: str) -> str:
    text = f"({visible(found.name)})"
    colour = found.colour.removeprefix("hi-")
    if colour not in COLOURS or os.environ.get("NO_COLOR"):
        return text
    before, behind = SHELL_MARKS[shell]
    code = (90 if found.colour.startswith("hi-") else 30) + COLOURS.index(colour)
    return f"{before}\x1b[{code}m{behind}{text}{before}\x1b[0m{behind}"
