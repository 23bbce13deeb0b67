"""Conventions of Kafka's tools that our tools share: exit code 1 for wrong flags, one value per flag.

Scripts check the exit code and standard output of Kafka's tools, so our tools have the same.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn, TypeVar

import click

from tidelog.cli.name_completion import complete_groups, complete_topics
from tidelog.errors import ErrorCode, KafkaError, error_name

T = TypeVar("T")
Decorator = Callable[[Callable[..., None]], Callable[..., None]]

BOOTSTRAP = "127.0.0.1:9092"
BOOTSTRAP_VARIABLE = "TIDELOG_BOOTSTRAP_SERVER"
PROFILE_VARIABLE = "TIDELOG_PROFILE"
PROFILE_NAME, PROFILE_SETTINGS = "tidelog.cli.profile.name", "tidelog.cli.profile.settings"

COMPLETED = {
    "--topic": complete_topics,
    "--like": complete_topics,
    "--from-group": complete_groups,
} | dict.fromkeys(("--group", "--group-id"), complete_groups)
"""Flags whose values a shell completes with names of the cluster."""

# Errors whose class in Kafka is not named after their code.
RENAMED = {
    "InvalidConfig": "InvalidConfiguration",
    "NonEmptyGroup": "GroupNotEmpty",
    "RequestTimedOut": "Timeout",
}

CODE_WORDS: dict[int, str] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "This server does not host this topic-partition.",
    ErrorCode.INVALID_GROUP_ID: "The group id is invalid.",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "Group authorization failed.",
    ErrorCode.NON_EMPTY_GROUP: "The group is not empty.",
    ErrorCode.GROUP_ID_NOT_FOUND: "The group id does not exist.",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: (
        "Deleting offsets of a topic is forbidden while the consumer group is actively subscribed to it."
    ),
}


TOPIC_NAME = "a name has 1 to 249 letters, digits, dots, dashes and underscores"


class FlagDefault(str):
    """The default of a flag. A file of settings takes precedence over it."""

    __slots__ = ()


class WrongUsage(click.UsageError):
    exit_code = 1


class NoSubcommand(click.exceptions.NoArgsIsHelpError):
    exit_code = 1


@contextmanager
def wrong_usage(ctx: click.Context) -> Iterator[None]:
    """Raise click's errors about the command line as WrongUsage."""
    try:
        yield
    except WrongUsage:
        raise
    except click.exceptions.NoArgsIsHelpError as error:  # its message is the help
        raise NoSubcommand(error.ctx or ctx) from None
    except click.UsageError as error:
        raise WrongUsage(error.format_message(), error.ctx or ctx) from None


class KafkaStyleCommand(click.Command):
    """A command that ends with 1, not with click's 2, when its flags are wrong.

    As in Kafka's tools, it ends with 0 when the reader of its output closes the pipe. If it cannot write its
    output for another reason, it prints one line about it.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with wrong_usage(ctx):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            end_at_closed_pipe(ctx)
        except OSError as error:
            click.echo(f"tidelog: {file_words(error)}", err=True)
            ctx.exit(1)


def end_at_closed_pipe(ctx: click.Context) -> NoReturn:
    """End the tool after its reader closed the pipe; the exit must not write to it either."""
    sys.stdout = None
    ctx.exit(0)


class KafkaStyleGroup(click.Group):
    """A command with subcommands that ends with 1, not with click's 2, when its flags are wrong."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with wrong_usage(ctx):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        with wrong_usage(ctx):
            return super().invoke(ctx)


def _single(ctx: click.Context, option: click.Parameter, values: tuple[T, ...]) -> T | None:
    if len(values) > 1:
        raise click.UsageError(f"{option.opts[0]} was given {len(values)} times; it takes one value", ctx)
    return values[0] if values else None


def valued(name: str, metavar: str, text: str, kind: type[str] | type[int] = str) -> Decorator:
    """A flag with one value; it is an error to repeat the flag."""
    attribute = name.lstrip("-").replace("-", "_").replace(".", "_")
    return click.option(
        name,
        attribute,
        metavar=metavar,
        type=kind,
        multiple=True,
        callback=_single,
        shell_complete=COMPLETED.get(name),
        help=text,
    )


def _bootstrap(ctx: click.Context, option: click.Parameter, values: tuple[str, ...]) -> str:
    """The servers: the flag, the variable, the profile. The profile's settings go with its own servers only.

    A profile that is named by the flag or the environment goes with any servers.
    """
    given = _single(ctx, option, values)
    variable = os.environ.get(BOOTSTRAP_VARIABLE)
    named = ctx.meta.get(PROFILE_NAME) is not None or PROFILE_VARIABLE in os.environ
    if (given or variable) and not named:
        return given or FlagDefault(variable or BOOTSTRAP)
    from tidelog.cli.profiles import active_profile

    try:
        active = active_profile(ctx.meta.get(PROFILE_NAME))
    except (ValueError, OSError) as error:
        raise click.UsageError(str(error), ctx) from None
    servers = ""
    if active is not None:
        servers = active.profile.bootstrap_servers
        ctx.meta[PROFILE_SETTINGS] = active.profile.settings
    return given or FlagDefault(variable or servers or BOOTSTRAP)


def _profile_name(ctx: click.Context, _option: click.Parameter, name: str | None) -> None:
    if name is not None:
        ctx.meta[PROFILE_NAME] = name


def bootstrap_server(function: Callable[..., None]) -> Callable[..., None]:
    """The flags of every tool that connects to brokers: --bootstrap-server and --profile."""
    profile = click.option(
        "--profile",
        metavar="NAME",
        expose_value=False,
        is_eager=True,
        callback=_profile_name,
        help="A profile of `tidelog profile`, for its brokers and settings; '' for none.",
    )
    servers = click.option(
        "--bootstrap-server",
        metavar="HOST:PORT[,...]",
        multiple=True,
        callback=_bootstrap,
        help="The first brokers to connect to. Without the flag: the settings file, then "
        f"${BOOTSTRAP_VARIABLE}, then the profile, then {BOOTSTRAP}.",
    )
    return servers(profile(function))


def value_or_not(name: str, metavar: str, text: str) -> Decorator:
    """A flag with an optional value: empty without a value, None without the flag."""
    return click.option(name, metavar=metavar, is_flag=False, flag_value="", default=None, help=text)


def switch(name: str, text: str) -> Decorator:
    return click.option(name, is_flag=True, help=text)


zk_tls_config_file = valued(
    "--zk-tls-config-file",
    "FILE",
    "A properties file with zookeeper.ssl.*, zookeeper.set.acl and tidelog.zookeeper.digest.",
)


def not_both(ctx: click.Context, name: str, value: object, old_name: str, old_value: object) -> None:
    """Raise WrongUsage if a flag is given by its name and also by its older name."""
    if value not in (None, ()) and old_value not in (None, ()):
        raise WrongUsage(f"{name} and {old_name} cannot be specified together", ctx)


def exception_name(error: KafkaError) -> str:
    """Kafka's class name of an error, which scripts search in the output."""
    name = type(error).__name__.removesuffix("Error").removesuffix("Exception")
    return f"org.apache.kafka.common.errors.{RENAMED.get(name, name)}Exception"


def error_text(error: KafkaError) -> str:
    """An error as Kafka's tools print it: the name of its class, then its message."""
    return f"{exception_name(error)}: {error_words(error)}"


def error_words(error: KafkaError) -> str:
    """The message of an error; Kafka's message for an error without one."""
    text = str(error)
    if error.code == ErrorCode.INVALID_TOPIC_EXCEPTION and came_as_code(error):
        return text.removesuffix(error_name(error.code)) + TOPIC_NAME
    return CODE_WORDS.get(error.code, text) if text == error_name(error.code) else text


def file_words(error: Exception) -> str:
    """What the system says about a file, with its name; the message of any other error."""
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def brief_text(error: KafkaError) -> str:
    """`error_text` for a line that already names the topic, group or partition."""
    return f"{exception_name(error)}: {brief_words(error)}"


def brief_words(error: KafkaError) -> str:
    """`error_words` for a line that already names the topic, group or partition."""
    return CODE_WORDS.get(error.code, error_name(error.code)) if came_as_code(error) else str(error)


def came_as_code(error: KafkaError) -> bool:
    """Whether the broker sent an error code without a message; the client's message ends with its name."""
    return str(error).rpartition(": ")[2] == error_name(error.code)
