"""What our tools share of the conventions of Kafka's own: exit code 1 for wrong flags, one value per flag.

Scripts that call Kafka's tools look at the exit code and at standard output, so both are kept.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn, TypeVar

import click

from tidelog.clients.admin import Admin
from tidelog.config.properties import read_properties
from tidelog.errors import ErrorCode, KafkaError, error_name

if TYPE_CHECKING:
    from tidelog.clients.security import Security

T = TypeVar("T")
Decorator = Callable[[Callable[..., None]], Callable[..., None]]

BOOTSTRAP = "127.0.0.1:9092"
BOOTSTRAP_VARIABLE = "TIDELOG_BOOTSTRAP_SERVER"

# Errors whose class has another name in Kafka than their code.
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


class Assumed(str):
    """The value of a flag that was not given. A file of settings goes before it."""

    __slots__ = ()


class WrongUsage(click.UsageError):
    exit_code = 1


class KafkaStyleCommand(click.Command):
    """A command that ends with 1, not with click's 2, when its flags are wrong.

    A reader that goes away ends it with 0, as Kafka's tools; lines that cannot be written are told of in one.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            raise WrongUsage(error.format_message(), error.ctx or ctx) from None

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            seen_enough(ctx)
        except OSError as error:
            click.echo(f"tidelog: {error}", err=True)
            ctx.exit(1)


def seen_enough(ctx: click.Context) -> NoReturn:
    """The end where whoever read our lines has gone: nothing may be written at the exit either."""
    sys.stdout = None
    ctx.exit(0)


class KafkaStyleGroup(click.Group):
    """A command with subcommands that ends with 1, not with click's 2, when it is called in a wrong way."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            raise WrongUsage(error.format_message(), error.ctx or ctx) from None

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except WrongUsage:
            raise
        except click.UsageError as error:
            raise WrongUsage(error.format_message(), error.ctx or ctx) from None


def _single(ctx: click.Context, option: click.Parameter, values: tuple[T, ...]) -> T | None:
    if len(values) > 1:
        raise click.UsageError(f"{option.opts[0]} was given {len(values)} times; it takes one value", ctx)
    return values[0] if values else None


def valued(name: str, metavar: str, text: str, kind: type[str] | type[int] = str) -> Decorator:
    """A flag with one value, refused when it is given twice."""
    attribute = name.lstrip("-").replace("-", "_").replace(".", "_")
    return click.option(
        name, attribute, metavar=metavar, type=kind, multiple=True, callback=_single, help=text
    )


def _bootstrap(ctx: click.Context, option: click.Parameter, values: tuple[str, ...]) -> str:
    return _single(ctx, option, values) or Assumed(os.environ.get(BOOTSTRAP_VARIABLE) or BOOTSTRAP)


bootstrap_server: Decorator = click.option(
    "--bootstrap-server",
    metavar="HOST:PORT[,...]",
    multiple=True,
    callback=_bootstrap,
    help="Brokers to ask first. Without the flag the settings file names them, then "
    f"${BOOTSTRAP_VARIABLE}; the default is {BOOTSTRAP}.",
)
"""The flag of every tool that talks to brokers."""


def value_or_not(name: str, metavar: str, text: str) -> Decorator:
    """A flag whose value may be left out: then it is empty, and None where the flag is not there at all."""
    return click.option(name, metavar=metavar, is_flag=False, flag_value="", default=None, help=text)


def switch(name: str, text: str) -> Decorator:
    return click.option(name, is_flag=True, help=text)


def not_both(ctx: click.Context, name: str, value: object, old_name: str, old_value: object) -> None:
    """A flag and its older name: whoever gives both would have one of them ignored."""
    if value not in (None, ()) and old_value not in (None, ()):
        raise WrongUsage(f"{name} and {old_name} cannot be specified together", ctx)


def admin_for(bootstrap: str, command_config: str | None, timeout: float | None = None) -> Admin:
    """A client of the cluster, with the settings of the file that --command-config names.

    No request takes longer than the timeout, in seconds, where one is given.
    """
    settings = read_properties(command_config) if command_config else {}
    if isinstance(bootstrap, Assumed):
        bootstrap = settings.get("bootstrap.servers", bootstrap)
    security: Security | None = None
    if settings.get("security.protocol", "PLAINTEXT").upper() != "PLAINTEXT":
        from tidelog.clients.security import Security
        from tidelog.clients.settings import admin_settings

        security = Security(admin_settings({**settings, "bootstrap.servers": bootstrap}))
    connect_timeout = milliseconds(settings, "socket.connection.setup.timeout.ms", 10_000)
    request_timeout = milliseconds(settings, "request.timeout.ms", 30_000)
    if timeout is not None:
        connect_timeout, request_timeout = min(connect_timeout, timeout), min(request_timeout, timeout)
    return Admin(
        bootstrap,
        client_id=settings.get("client.id", "tidelog-admin"),
        connect_timeout=connect_timeout,
        request_timeout=request_timeout,
        security=security,
    )


def exception_name(error: KafkaError) -> str:
    """What Kafka's tools call an error: scripts look for it in their output."""
    name = type(error).__name__.removesuffix("Error").removesuffix("Exception")
    return f"org.apache.kafka.common.errors.{RENAMED.get(name, name)}Exception"


def error_text(error: KafkaError) -> str:
    """An error as Kafka's tools print it: the name of its class, then what happened."""
    return f"{exception_name(error)}: {error_words(error)}"


def error_words(error: KafkaError) -> str:
    """What happened; for an error that came as a bare code, the words that scripts know it by."""
    text = str(error)
    return CODE_WORDS.get(error.code, text) if text == error_name(error.code) else text


def milliseconds(settings: dict[str, str], name: str, default: int) -> float:
    """The seconds of a setting that is written in milliseconds."""
    text = settings.get(name, str(default))
    if not text.isdigit() or int(text) == 0:
        raise ValueError(f"{name}={text}: expected a number of milliseconds above 0")
    return int(text) / 1000
