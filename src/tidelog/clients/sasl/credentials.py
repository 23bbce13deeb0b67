"""User and password of the settings, and the options of a JAAS line."""

from __future__ import annotations

from tidelog.clients.settings import ClientSettings
from tidelog.config import ConfigError
from tidelog.security.jaas import JaasError, login_module
from tidelog.security.jaas_file import CLIENT_SECTION, jaas_of_file


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
    """The credentials from sasl.username and sasl.password, or from sasl.jaas.config, or from a JAAS file."""
    if settings.sasl_username is not None and settings.sasl_password is not None:
        return Credentials(settings.sasl_username, settings.sasl_password.secret)
    options = jaas_options(settings)
    if "username" in options and "password" in options:
        token = options.get("tokenauth", "false").lower() == "true"
        return Credentials(options["username"], options["password"], is_token=token)
    if settings.sasl_jaas_config is not None:
        raise ConfigError("sasl.jaas.config", "[hidden]", 'expected username="..." and password="..." in it')
    raise ConfigError(
        "sasl.username", settings.sasl_username, "expected with sasl.password, or sasl.jaas.config instead"
    )


def jaas_options(settings: ClientSettings) -> dict[str, str]:
    """The options of sasl.jaas.config, else of the JAAS file, for the mechanism; empty without both.

    Raises ConfigError if the text has another login module than Kafka's of the mechanism.
    """
    if settings.sasl_jaas_config is not None:
        given: str | None = settings.sasl_jaas_config.secret
    else:
        given = jaas_of_file((CLIENT_SECTION,), settings.sasl_mechanism)
    if given is None:
        return {}
    try:
        # Databricks names Kafka's classes so.
        text = given.replace("kafkashaded.org.apache.kafka.", "org.apache.kafka.")
        return login_module(text, settings.sasl_mechanism).options
    except JaasError as error:
        raise ConfigError("sasl.jaas.config", "[hidden]", str(error)) from None
