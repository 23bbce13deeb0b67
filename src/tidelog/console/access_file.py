"""The file of `console.access.config`: logins, sessions and roles, in TOML.

    [scram]                                   # users and passwords of the cluster
    client = { "bootstrap.servers" = "localhost:9093", "security.protocol" = "SASL_SSL" }

    [oidc]                                    # or a provider of OpenID Connect
    issuer = "https://login.example.com/realms/main"
    client_id = "tidelog-console"
    client_secret_file = "/etc/tidelog/oidc-secret"

    [sessions]
    idle_minutes = 30
    max_hours = 12

    [roles]
    default = "viewer"
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tidelog.config import ConfigError, Password
from tidelog.console.logins import MECHANISMS
from tidelog.console.oidc import OidcSettings, check_url
from tidelog.console.roles import EVERYTHING, Roles, parse_roles
from tidelog.console.sessions import IDLE_SECONDS, MAX_SECONDS

SETTING: Final = "console.access.config"
TABLES: Final = ("public_url", "scram", "oidc", "sessions", "roles")
OIDC_TEXTS: Final = ("issuer", "client_id", "scope", "audience", "principal_claim", "groups_claim")


@dataclass(slots=True, frozen=True)
class ScramSettings:
    """How logins are checked. `client` overrides settings of the cluster; `mechanisms` are tried in order."""

    client: Mapping[str, object] = field(default_factory=dict, repr=False)
    mechanisms: tuple[str, ...] = MECHANISMS


@dataclass(slots=True, frozen=True)
class AccessSettings:
    """Everything about logins, sessions and roles. Without `scram` and `oidc` nobody has to log in."""

    scram: ScramSettings | None = None
    oidc: OidcSettings | None = None
    idle_seconds: float = IDLE_SECONDS
    max_seconds: float = MAX_SECONDS
    roles: Roles = EVERYTHING
    public_url: str = ""
    """The address that browsers use, if a proxy is in between."""

    @property
    def needs_login(self) -> bool:
        return self.scram is not None or self.oidc is not None


def read_settings(path: str) -> AccessSettings:
    """The settings of a file; those without a login if there is no file."""
    return read_access(path) if path else AccessSettings()


def read_access(path: str | Path) -> AccessSettings:
    """The settings of a file. Raises ConfigError that names the wrong value."""
    try:
        document = tomllib.loads(Path(path).read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(SETTING, str(path), f"the file cannot be read: {error}") from None
    _known(document, TABLES, "")
    public_url = _text(document, "public_url", "")
    if public_url:
        check_url("public_url", public_url)
    scram = _table(document, "scram")
    oidc = _table(document, "oidc")
    if scram is None and oidc is None:
        raise ConfigError(SETTING, str(path), "expected a login: [scram] or [oidc]")
    sessions = _table(document, "sessions") or {}
    _known(sessions, ("idle_minutes", "max_hours"), "sessions")
    return AccessSettings(
        None if scram is None else _scram(scram),
        None if oidc is None else _oidc(oidc, public_url),
        60 * _number(sessions, "idle_minutes", IDLE_SECONDS / 60),
        3600 * _number(sessions, "max_hours", MAX_SECONDS / 3600),
        parse_roles(_table(document, "roles") or {}, f"{SETTING}: roles"),
        public_url.rstrip("/"),
    )


def _scram(table: Mapping[str, object]) -> ScramSettings:
    _known(table, ("client", "mechanisms"), "scram")
    mechanisms = table.get("mechanisms", list(MECHANISMS))
    if not isinstance(mechanisms, list) or not mechanisms or not set(mechanisms) <= set(MECHANISMS):
        raise ConfigError(
            f"{SETTING}: scram.mechanisms", str(mechanisms), f"expected a list of {', '.join(MECHANISMS)}"
        )
    return ScramSettings(_client(table, "scram"), tuple(mechanisms))


def _oidc(table: Mapping[str, object], public_url: str) -> OidcSettings:
    _known(table, (*OIDC_TEXTS, "client_secret_file", "acts_as_user", "client"), "oidc")
    texts = {name: _text(table, name, "") for name in OIDC_TEXTS if name in table}
    missing = [name for name in ("issuer", "client_id") if not texts.get(name)]
    if missing:
        raise ConfigError(f"{SETTING}: oidc.{missing[0]}", "", "expected a text")
    acts = table.get("acts_as_user", False)
    if not isinstance(acts, bool):
        raise ConfigError(f"{SETTING}: oidc.acts_as_user", str(acts), "expected true or false")
    return OidcSettings(
        **texts,
        client_secret=_secret(_text(table, "client_secret_file", "")),
        redirect_url=f"{public_url.rstrip('/')}/login/oidc/callback" if public_url else "",
        acts_as_user=acts,
        client=_client(table, "oidc"),
    )


def _client(table: Mapping[str, object], where: str) -> dict[str, object]:
    client = table.get("client", {})
    if not isinstance(client, dict):
        raise ConfigError(f"{SETTING}: {where}.client", "", "expected a table of client settings")
    return client


def _secret(path: str) -> Password | None:
    if not path:
        return None
    try:
        return Password(Path(path).read_text().strip())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{SETTING}: oidc.client_secret_file", path, str(error)) from None


def _table(document: Mapping[str, object], name: str) -> Mapping[str, object] | None:
    found = document.get(name)
    if found is not None and not isinstance(found, dict):
        raise ConfigError(f"{SETTING}: {name}", str(found), f"expected a table: [{name}]")
    return found


def _known(table: Mapping[str, object], names: tuple[str, ...], where: str) -> None:
    for name in table:
        if name not in names:
            at = f"{SETTING}: {where}.{name}" if where else f"{SETTING}: {name}"
            raise ConfigError(at, "", f"unknown name; expected {', '.join(names)}")


def _text(table: Mapping[str, object], name: str, default: str) -> str:
    value = table.get(name, default)
    if not isinstance(value, str):
        raise ConfigError(f"{SETTING}: {name}", str(value), "expected a text")
    return value


def _number(table: Mapping[str, object], name: str, default: float) -> float:
    value = table.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 10_000:
        raise ConfigError(f"{SETTING}: sessions.{name}", str(value), "expected a number above 0")
    return float(value)
