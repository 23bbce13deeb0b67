"""`tidelog delegation-tokens`: tokens to log in with, with the flags and output of kafka-delegation-tokens.

The HMAC of a token is its password: it is printed where a token is created or listed, and nowhere else.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from tidelog.cli.flags import KafkaStyleCommand, WrongUsage, bootstrap_server, error_text, switch, valued
from tidelog.cli.output import connected_admin, output_option, print_json
from tidelog.errors import KafkaError

if TYPE_CHECKING:
    from tidelog import Admin
    from tidelog.clients.admin import DelegationToken, Principal

COLUMNS = (
    ("TOKENID", 15),
    ("HMAC", 30),
    ("OWNER", 15),
    ("REQUESTER", 15),
    ("RENEWERS", 25),
    ("ISSUEDATE", 15),
    ("EXPIRYDATE", 15),
    ("MAXDATE", 15),
)
NEEDED = {
    "create": ("max_life_time_period",),
    "renew": ("hmac", "renew_time_period"),
    "expire": ("hmac", "expiry_time_period"),
    "describe": (),
}
ALLOWED = {
    "create": ("owner_principal", "renewer_principal"),
    "renew": (),
    "expire": (),
    "describe": ("owner_principal",),
}


@click.command(cls=KafkaStyleCommand, context_settings={"help_option_names": ["-h", "--help"]})
@bootstrap_server
@valued("--command-config", "FILE", "A properties file with the login: only known clients have tokens.")
@switch("--create", "Create a token.")
@switch("--renew", "Extend the life of a token.")
@switch("--expire", "Expire a token.")
@switch("--describe", "List tokens.")
@click.option(
    "--owner-principal",
    metavar="TYPE:NAME",
    multiple=True,
    help="The owner of the new token, or of listed ones.",
)
@click.option("--renewer-principal", metavar="TYPE:NAME", multiple=True, help="Who may renew the new token.")
@valued("--max-life-time-period", "MS", "How long the token can be renewed; -1 is the cluster's limit.")
@valued(
    "--renew-time-period", "MS", "How long the token stays valid after --renew; -1 is the cluster's default."
)
@valued("--expiry-time-period", "MS", "When the token expires; -1 is now.")
@valued("--hmac", "HMAC", "The HMAC of the token.")
@output_option
@click.version_option(package_name="tidelog", message="%(version)s")
@click.pass_context
def delegation_tokens(ctx: click.Context, /, **flags: object) -> None:
    """Create, renew, expire and list delegation tokens."""
    action = check(ctx, flags)
    file = flags["command_config"]
    try:
        with connected_admin(str(flags["bootstrap_server"]), None if file is None else str(file)) as admin:
            {"create": create, "renew": renew, "expire": expire, "describe": describe}[action](admin, flags)
    except KafkaError as error:
        click.echo(f"Error while executing delegation token command : {error_text(error)}", err=True)
        ctx.exit(1)
    except (OSError, ValueError) as error:
        click.echo(f"Error while executing delegation token command : {error}", err=True)
        ctx.exit(1)


def check(ctx: click.Context, flags: dict[str, object]) -> str:
    """The action. Raises WrongUsage if the flags do not go together."""
    actions = [action for action in NEEDED if flags[action]]
    if len(actions) != 1:
        raise WrongUsage("expected one of --create, --renew, --expire and --describe", ctx)
    (action,) = actions
    if flags["output"] != "text" and action != "describe":
        raise WrongUsage(f"--output goes with --describe, not with --{action}", ctx)
    for name in NEEDED[action]:
        if flags[name] is None:
            raise WrongUsage(f"--{action} needs --{name.replace('_', '-')}", ctx)
    every = {name for names in (*NEEDED.values(), *ALLOWED.values()) for name in names}
    for name in sorted(every - {*NEEDED[action], *ALLOWED[action]}):
        if flags[name]:
            raise WrongUsage(f"--{name.replace('_', '-')} does not go with --{action}", ctx)
    return action


def create(admin: Admin, flags: dict[str, object]) -> None:
    renewers, owners = principals(flags["renewer_principal"]), principals(flags["owner_principal"])
    if len(owners) > 1:
        raise ValueError("a token has one owner")
    lifetime = number(flags["max_life_time_period"])
    names = ", ".join(f"{kind}:{name}" for kind, name in renewers)
    click.echo(f"Calling create token operation with renewers :[{names}] , max-life-time-period :{lifetime}")
    token = admin.create_delegation_token(
        owner=owners[0] if owners else None, renewers=renewers, max_lifetime_ms=lifetime
    )
    click.echo(f"Created delegation token with tokenId : {token.token_id}\n")
    print_tokens([token])


def renew(admin: Admin, flags: dict[str, object]) -> None:
    period = number(flags["renew_time_period"])
    click.echo(f"Calling renew token operation with hmac :[hidden] , renew-time-period :{period}")
    expiry = admin.renew_delegation_token(decoded(flags["hmac"]), renew_period_ms=period)
    click.echo(f"Completed renew operation. New expiry date : {date(expiry)}")


def expire(admin: Admin, flags: dict[str, object]) -> None:
    period = number(flags["expiry_time_period"])
    click.echo(f"Calling expire token operation with hmac :[hidden] , expire-time-period :{period}")
    expiry = admin.expire_delegation_token(decoded(flags["hmac"]), expiry_period_ms=period)
    click.echo(f"Completed expire operation. New expiry date : {date(expiry)}")


def describe(admin: Admin, flags: dict[str, object]) -> None:
    owners = principals(flags["owner_principal"])
    if flags["output"] != "text":
        print_json([token_as_json(token) for token in admin.describe_delegation_tokens(owners or None)])
        return
    if owners:
        names = ", ".join(f"{kind}:{name}" for kind, name in owners)
        click.echo(f"Calling describe token operation for owners: [{names}]")
    else:
        click.echo("Calling describe token operation for current user.")
    tokens = admin.describe_delegation_tokens(owners or None)
    click.echo(f"Total number of tokens : {len(tokens)}")
    print_tokens(tokens)


def principals(texts: object) -> list[Principal]:
    from tidelog.clients.admin import Principal

    assert isinstance(texts, tuple)
    found = []
    for text in texts:
        kind, colon, name = str(text).strip().partition(":")
        if not colon or not kind or not name:
            raise ValueError(f"the principal {text!r} is not of the form TYPE:NAME, such as User:alice")
        found.append(Principal(kind, name))
    return found


def number(text: object) -> int:
    try:
        return int(str(text))
    except ValueError:
        raise ValueError(f"{text!r} is not a number of milliseconds") from None


def decoded(text: object) -> bytes:
    try:
        return base64.b64decode(str(text), validate=True)
    except binascii.Error:
        raise ValueError("the HMAC is not in base64") from None


def token_as_json(token: DelegationToken) -> dict[str, object]:
    """A token without its HMAC, which is the password of the token."""
    return {
        "tokenId": token.token_id,
        "owner": ":".join(token.owner),
        "requester": ":".join(token.requester),
        "renewers": [f"{kind}:{name}" for kind, name in token.renewers],
        "issueDate": date(token.issue_timestamp),
        "expiryDate": date(token.expiry_timestamp),
        "maxDate": date(token.max_timestamp),
    }


def print_tokens(tokens: Iterable[DelegationToken]) -> None:
    click.echo(line(name for name, _ in COLUMNS))
    for token in tokens:
        renewers = ", ".join(f"{kind}:{name}" for kind, name in token.renewers)
        click.echo()
        click.echo(
            line(
                (
                    token.token_id,
                    base64.b64encode(token.hmac).decode(),
                    ":".join(token.owner),
                    ":".join(token.requester),
                    f"[{renewers}]",
                    date(token.issue_timestamp),
                    date(token.expiry_timestamp),
                    date(token.max_timestamp),
                )
            )
        )


def line(cells: Iterable[str]) -> str:
    return " ".join(f"{cell:<{width}}" for cell, (_, width) in zip(cells, COLUMNS, strict=True))


def date(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M")
