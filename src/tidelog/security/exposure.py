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

UNSECURED = "tidelog.sasl.oauthbearer.unsecured.enable"
CLEAR = frozenset(("PLAIN", "OAUTHBEARER"))
"""Mechanisms that send what logs a client in as it is."""

SETTINGS = (
    "advertised.listeners",
    "allow.everyone.if.no.acl.found",
    "authorizer.class.name",
    "console.access.config",
    "console.listener",
    "console.read.only",
    "listener.security.protocol.map",
    "listeners",
    "metrics.listener",
    "sasl.enabled.mechanisms",
    "sasl.oauthbearer.expected.audience",
    "sasl.oauthbearer.jwks.endpoint.url",
    "ssl.client.auth",
    "super.users",
    UNSECURED,
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
    host = metrics.removeprefix("https://").rpartition(":")[0].strip("[]") or "127.0.0.1"
    client_auth = _of_listener(settings, "metrics", "ssl.client.auth").lower()
    asks = metrics.startswith("https://") and client_auth == "required"
    if metrics and not asks and not is_loopback(host):
        yield Exposure(
            f"metrics.listener={metrics}",
            "whoever reaches it reads the names of topics, groups and clients",
            "Let metrics.listener be on 127.0.0.1, or ask the collector for a certificate (https and "
            "listener.name.metrics.ssl.client.auth=required).",
            is_address=True,
        )


def _console(settings: Settings) -> Iterator[Exposure]:
    console = _text(settings, "console.listener")
    if not console or is_loopback(console.rpartition(":")[0].strip("[]") or "127.0.0.1"):
        return
    if _text(settings, "console.access.config"):
        yield Exposure(
            f"console.listener={console}",
            "passwords and records can be read on the way",
            "Let console.listener be on 127.0.0.1, behind a proxy with TLS.",
        )
        return
    reads = _text(settings, "console.read.only").lower() == "true"
    yield Exposure(
        f"console.listener={console}",
        f"whoever reaches it {'reads everything' if reads else 'reads and changes everything'}",
        "Let console.listener be on 127.0.0.1, or set console.access.config.",
        is_address=True,
    )


def _listener(settings: Settings, name: str, address: str, protocol: str) -> Iterator[Exposure]:
    asked = _of_listener(settings, name, "sasl.enabled.mechanisms").upper().split(",")
    mechanisms = {part.strip() for part in asked} if protocol.startswith("SASL") else set()
    if protocol == "PLAINTEXT":
        yield Exposure(
            f"listener {address}",
            "nobody has to log in, and nothing is encrypted",
            "Use SASL_SSL or SSL there (tidelog security init), or an address of this machine alone.",
            is_address=True,
        )
    elif protocol == "SSL":
        if _of_listener(settings, name, "ssl.client.auth").lower() != "required":
            yield Exposure(
                f"listener {address}",
                "clients without a certificate are let in, as User:ANONYMOUS",
                "Set ssl.client.auth=required, or use SASL_SSL.",
                is_address=True,
            )
    elif protocol == "SASL_PLAINTEXT":
        clear = not mechanisms.isdisjoint(CLEAR)
        yield Exposure(
            f"listener {address}",
            "passwords and records can be read on the way" if clear else "records can be read on the way",
            "Use SASL_SSL.",
        )
    if "OAUTHBEARER" in mechanisms:
        yield from _tokens(settings, name, address)


def _tokens(settings: Settings, name: str, address: str) -> Iterator[Exposure]:
    """What a listener with OAUTHBEARER leaves open."""
    keys = _of_listener(settings, name, "sasl.oauthbearer.jwks.endpoint.url")
    if not keys and _text(settings, UNSECURED).lower() == "true":
        yield Exposure(
            f"listener {address}",
            "anybody can make a token that logs in as any user",
            f"Set sasl.oauthbearer.jwks.endpoint.url, and remove {UNSECURED}.",
            is_address=True,
        )
        return
    if keys.lower().startswith("http:"):
        yield Exposure(
            f"listener {address}",
            "the keys of tokens can be replaced on their way from the provider",
            "Let sasl.oauthbearer.jwks.endpoint.url begin with https://.",
        )
    if keys and not _of_listener(settings, name, "sasl.oauthbearer.expected.audience"):
        yield Exposure(
            f"listener {address}",
            "a token that the provider made for another service logs in",
            "Set sasl.oauthbearer.expected.audience.",
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


def _of_listener(settings: Settings, name: str, setting: str) -> str:
    """The value for one listener."""
    return (settings.get(f"listener.name.{name}.{setting}") or "").strip() or _text(settings, setting)


def _text(settings: Settings, name: str) -> str:
    return (settings.get(name) or "").strip()
