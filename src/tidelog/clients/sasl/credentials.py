"""User and password of the settings, and the options of a JAAS line."""

from __future__ import annotations

import re

from tidelog.clients.settings import ClientSettings
from tidelog.config import ConfigError

_JAAS_OPTION = re.compile(r"""([\w.]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s;]+))""")


class Credentials:
    """User name and password. The repr hides the password."""

    __slots__ = ("is_token", "password", "username")

    def __init__(self, username: str, password: str, *, is_token: bool = False) -> None:
        self.username = username
        self.password = password
        self.is_token = is_token

    def __repr__(self) -> str:
        return f"Credentials({self.username!r}, [hidden])"


def credentials_of(settings: ClientSettings) -> Credentials:
    """The credentials from sasl.username and sasl.password, or from sasl.jaas.config."""
    if settings.sasl_username is not None and settings.sasl_password is not None:
        return Credentials(settings.sasl_username, settings.sasl_password.secret)
    if settings.sasl_jaas_config is not None:
        options = jaas_options(settings.sasl_jaas_config.secret)
        if "username" in options and "password" in options:
            token = options.get("tokenauth", "false").lower() == "true"
            return Credentials(options["username"], options["password"], is_token=token)
        raise ConfigError("sasl.jaas.config", "[hidden]", 'expected username="..." and password="..." in it')
    raise ConfigError(
        "sasl.username", settings.sasl_username, "expected with sasl.password, or sasl.jaas.config instead"
    )


def jaas_options(text: str) -> dict[str, str]:
    """The options of a JAAS line.

    >>> jaas_options('org.example.PlainLoginModule required username="alice" password="a\\\\"b";')
    {'username': 'alice', 'password': 'a"b'}
    """
    return {
        match[1]: re.sub(r"\\(.)", r"\1", match[2] or match[3] or match[4] or "")
        for match in _JAAS_OPTION.finditer(text)
    }
