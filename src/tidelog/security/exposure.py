"""Exposures in the settings of a broker: addresses without authentication, rights without rules.

A broker prints the open addresses when it starts, and `tidelog check` lists everything.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

Settings = Mapping[str, str | None]

_LISTENER = r"([^:/,\s]+)://(?:\[([^\]]*)\]|([^:/,\s]*)):(-?[0-9]+)"
_QUOTED = r"""(?:password|user_\w+)\s*=\s*["']?([^"';\s]+)"""
KNOWN_PASSWORDS = frozenset(
    ("changeit", "changeme", "password", "secret", "admin", "admin-secret", "alice-secret", "kafka",
     "test1234", "confluent", "bitnami", "broker-secret", "client-secret", "tidelog", "123456")
)  # fmt: skip
"""Passwords of documentation and examples, which attackers try first."""

SETTINGS = (
    "advertised.listeners",
    "allow.everyone.if.no.acl.found",
    "authorizer.class.name",
    "console.listener",
    "console.read.only",
    "listener.security.protocol.map",
    "listeners",
    "metrics.listener",
    "sasl.enabled.mechanisms",
    "ssl.client.auth",
    "super.users",
)
"""The settings that `exposures` reads, beside settings with the prefix of a listener and the settings of
passwords."""


class Exposure(NamedTuple):
    """Something that is open. `what` names it, `text` says what follows, `advice` what to change."""

    what: str
    text: str
    advice: str = ""
    is_address: bool = False


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a bound address; no host means all addresses."""
    if host in ("localhost", "127.0.0.1", "::1"):
        return True
    import ipaddress  # few brokers need it, and importing it would delay each start

    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


def open_addresses(settings: Settings) -> Iterator[Exposure]:
    """The listeners and the metrics address that others reach without showing who they are."""
    protocols = dict(
        pair.strip().upper().rpartition(":")[::2]
        for pair in _text(settings, "listener.security.protocol.map").split(",")
        if ":" in pair
    )
    for name, bracketed, plain, port in re.findall(_LISTENER, _text(settings, "listeners")):
        host = bracketed or plain
        address = f"{name}://{f'[{host}]' if ':' in host else host}:{port}"
        protocol = protocols.get(name.upper(), name.upper())
        if not is_loopback(host):
            yield from _listener(settings, name.lower(), address, protocol)
    yield from _console(settings)
    metrics = _text(settings, "metrics.listener")
    if metrics and not is_loopback(
        metrics.removeprefix("https://").rpartition(":")[0].strip("[]") or "127.0.0.1"
    ):
        yield Exposure(
            f"metrics.listener={metrics}",
            "whoever reaches it reads the names of topics, groups and clients",
            "Let metrics.listener be on 127.0.0.1, or let a firewall admit only the collector.",
            is_address=True,
        )


def _console(settings: Settings) -> Iterator[Exposure]:
    console = _text(settings, "console.listener")
    if not console or is_loopback(console.rpartition(":")[0].strip("[]") or "127.0.0.1"):
        return
    reads = _text(settings, "console.read.only").lower() == "true"
    yield Exposure(
        f"console.listener={console}",
        f"whoever reaches it {'reads everything' if reads else 'reads and changes everything'}",
        "Let console.listener be on 127.0.0.1, behind a proxy that asks who connects.",
        is_address=True,
    )


def _listener(settings: Settings, name: str, address: str, protocol: str) -> Iterator[Exposure]:
    prefix = f"listener.name.{name}."
    mechanisms = settings.get(f"{prefix}sasl.enabled.mechanisms") or _text(
        settings, "sasl.enabled.mechanisms"
    )
    if protocol == "PLAINTEXT":
        yield Exposure(
            f"listener {address}",
            "nobody has to log in, and nothing is encrypted",
            "Use SASL_SSL or SSL there (tidelog security init), or an address of this machine alone.",
            is_address=True,
        )
    elif protocol == "SSL":
        asked = settings.get(f"{prefix}ssl.client.auth") or _text(settings, "ssl.client.auth")
        if asked.lower() != "required":
            yield Exposure(
                f"listener {address}",
                "clients without a certificate are let in, as User:ANONYMOUS",
                "Set ssl.client.auth=required, or use SASL_SSL.",
                is_address=True,
            )
    elif protocol == "SASL_PLAINTEXT":
        clear = "PLAIN" in [part.strip().upper() for part in mechanisms.split(",")]
        yield Exposure(
            f"listener {address}",
            "passwords and records can be read on the way" if clear else "records can be read on the way",
            "Use SASL_SSL.",
        )


def exposures(settings: Settings) -> Iterator[Exposure]:
    """Everything that is open, addresses first."""
    yield from open_addresses(settings)
    if not _text(settings, "authorizer.class.name"):
        yield Exposure(
            "no authorizer",
            "whoever can connect may do everything",
            "Set authorizer.class.name, super.users and ACLs.",
        )
        return
    if _text(settings, "allow.everyone.if.no.acl.found").lower() == "true":
        yield Exposure(
            "allow.everyone.if.no.acl.found=true",
            "a topic or group without ACLs is open to everyone",
            "Set it to false once the ACLs are complete.",
        )
    users = [user.strip() for user in _text(settings, "super.users").split(";") if user.strip()]
    if "User:ANONYMOUS" in users:
        yield Exposure("super.users", "User:ANONYMOUS may do everything: nobody has to log in for it")
    if others := [user for user in users if user != "User:ANONYMOUS"]:
        yield Exposure("super.users", f"no ACL limits {', '.join(others)}")


def known_passwords(settings: Settings) -> Iterator[Exposure]:
    """Settings whose password stands in documentation. The password itself is not repeated."""
    for name, value in sorted(settings.items()):
        if not value:
            continue
        if name.endswith("jaas.config"):
            found = re.findall(_QUOTED, value)
        elif name.endswith((".password", "encoder.secret", "secret.key")):
            found = [value]
        else:
            continue
        if any(password.lower() in KNOWN_PASSWORDS for password in found):
            yield Exposure(
                name,
                "the password is one of documentation or examples",
                "Take a random password: openssl rand -base64 24",
            )


def holds_secrets(settings: Settings) -> bool:
    return any(
        value
        and name.endswith(("password", "jaas.config", "encoder.secret", "secret.key", "ssl.keystore.key"))
        for name, value in settings.items()
    )


def _text(settings: Settings, name: str) -> str:
    return (settings.get(name) or "").strip()
