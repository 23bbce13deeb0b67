"""The settings of SASL on the broker's listeners: which mechanisms, and the settings of each.

A setting is looked up as listener.name.NAME.MECHANISM.SETTING, then as listener.name.NAME.SETTING, then as
SETTING. sasl.jaas.config needs the mechanism: each has a login module of its own. Without that setting the
JAAS file counts, if there is one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.config.values import ConfigError, ConfigValue, Password
from tidelog.security.delegation_tokens import TokenSettings
from tidelog.security.jaas_file import SERVER_SECTION, jaas_of_file
from tidelog.security.sasl.mechanisms import (
    MECHANISMS,
    MechanismSettings,
    OAuthBearerSettings,
    SaslSettings,
)

if TYPE_CHECKING:
    from tidelog.server.config.broker import BrokerConfig


def listener_prefix(listener: str) -> str:
    return f"listener.name.{listener.lower()}."


def mechanism_prefix(listener: str, mechanism: str) -> str:
    return f"{listener_prefix(listener)}{mechanism.lower()}."


def mechanism_value(config: BrokerConfig, listener: str, mechanism: str, name: str) -> ConfigValue:
    """The value of a setting for a mechanism of a listener."""
    text = config.text(mechanism_prefix(listener, mechanism) + name)
    return (
        config.definition[name].parse(text) if text is not None else config[listener_prefix(listener) + name]
    )


def jaas_text(config: BrokerConfig, listener: str, mechanism: str) -> str | None:
    """The login module of the setting, else of the JAAS file. Raises ConfigError if the file is bad."""
    given = config.text(mechanism_prefix(listener, mechanism) + "sasl.jaas.config")
    if given is not None:
        return given
    return jaas_of_file((f"{listener.lower()}.{SERVER_SECTION}", SERVER_SECTION), mechanism)


def inter_broker_mechanism(config: BrokerConfig, listener: str) -> str:
    value = config[listener_prefix(listener) + "sasl.mechanism.inter.broker.protocol"]
    return str(value)


def sasl_settings(config: BrokerConfig, listener: str) -> SaslSettings:
    """The settings of a SASL listener. Raises ConfigError."""
    prefix = listener_prefix(listener)

    def number(name: str) -> int:
        value = config[prefix + name]
        assert isinstance(value, int)
        return value

    def text(name: str) -> str | None:
        value = config[prefix + name]
        return value if isinstance(value, str) and value else None

    def texts(name: str) -> tuple[str, ...]:
        value = config[prefix + name]
        return value if isinstance(value, tuple) else ()

    enabled = texts("sasl.enabled.mechanisms")
    if not enabled:
        raise ConfigError(prefix + "sasl.enabled.mechanisms", "", "a SASL listener needs a mechanism")
    mechanisms = []
    for name in enabled:
        if name not in MECHANISMS:
            problem = f"expected some of {', '.join(MECHANISMS)}"
            raise ConfigError("sasl.enabled.mechanisms", name, problem)
        handler = mechanism_value(config, listener, name, "sasl.server.callback.handler.class")
        reauth = mechanism_value(config, listener, name, "connections.max.reauth.ms")
        mechanisms.append(
            MechanismSettings(
                name,
                mechanism_prefix(listener, name),
                jaas_text(config, listener, name),
                handler if isinstance(handler, str) else None,
                reauth if isinstance(reauth, int) else 0,
            )
        )
    return SaslSettings(
        tuple(mechanisms),
        OAuthBearerSettings(
            jwks_url=text("sasl.oauthbearer.jwks.endpoint.url"),
            allowed_urls=texts("tidelog.sasl.oauthbearer.allowed.urls"),
            is_unsecured_enabled=config["tidelog.sasl.oauthbearer.unsecured.enable"] is True,
            refresh_ms=number("sasl.oauthbearer.jwks.endpoint.refresh.ms"),
            retry_backoff_ms=number("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms"),
            retry_backoff_max_ms=number("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms"),
            expected_issuer=text("sasl.oauthbearer.expected.issuer"),
            expected_audience=texts("sasl.oauthbearer.expected.audience"),
            scope_claim=text("sasl.oauthbearer.scope.claim.name") or "scope",
            sub_claim=text("sasl.oauthbearer.sub.claim.name") or "sub",
            clock_skew_seconds=number("sasl.oauthbearer.clock.skew.seconds"),
        ),
        kerberos_service=text("sasl.kerberos.service.name"),
        kerberos_rules=texts("sasl.kerberos.principal.to.local.rules"),
        max_receive_size=number("sasl.server.max.receive.size"),
        failure_delay_ms=number("connection.failed.authentication.delay.ms"),
    )


def token_settings(config: BrokerConfig) -> TokenSettings | None:
    """The settings of delegation tokens; None without a key, which disables them."""
    key = config["delegation.token.secret.key"] or config["delegation.token.master.key"]
    longest, expiry = config["delegation.token.max.lifetime.ms"], config["delegation.token.expiry.time.ms"]
    if not isinstance(key, Password) or not key.secret:
        return None
    assert isinstance(longest, int)
    assert isinstance(expiry, int)
    return TokenSettings(key.secret, longest, expiry)
