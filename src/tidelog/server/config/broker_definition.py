"""The definition of a broker's settings, and which of them belong together."""

from __future__ import annotations

from functools import cache

from tidelog.config.definition import ConfigDef, ConfigKey
from tidelog.server.config import broker_settings

LISTENER_PREFIX = "listener.name."
SASL_MECHANISMS = ("gssapi", "plain", "scram-sha-256", "scram-sha-512", "oauthbearer")
OF_MECHANISM = (
    "connections.max.reauth.ms",
    "sasl.jaas.config",
    "sasl.login.callback.handler.class",
    "sasl.server.callback.handler.class",
)
"""Settings that can have the prefix of a listener and of a mechanism."""

FILE_ONLY = frozenset(
    (
        "sasl.client.callback.handler.class",
        "sasl.login.callback.handler.class",
        "sasl.login.class",
        "sasl.oauthbearer.jwks.endpoint.url",
        "sasl.oauthbearer.token.endpoint.url",
        "sasl.server.callback.handler.class",
        "tidelog.sasl.oauthbearer.allowed.urls",
        "tidelog.sasl.oauthbearer.unsecured.enable",
    )
)
"""Settings that load code, or say where the broker connects to or whom it trusts. No client can change them,
for one listener either, and no stored value counts."""


@cache
def broker_definition() -> ConfigDef:
    served = (
        broker_settings.SERVED
        + broker_settings.INTERNAL_TOPICS
        + broker_settings.TRANSACTIONS
        + broker_settings.CLUSTER
        + broker_settings.SASL
        + broker_settings.TOKENS
        + broker_settings.TLS
        + broker_settings.OURS
    )
    return ConfigDef(served, broker_settings.NOT_SERVED)


@cache
def internal_topic_settings() -> tuple[str, ...]:
    return tuple(line.split()[0] for line in broker_settings.INTERNAL_TOPICS.splitlines())


@cache
def cluster_settings() -> frozenset[str]:
    """The settings that need zookeeper.connect."""
    return frozenset(line.split()[0] for line in broker_settings.CLUSTER.splitlines())


@cache
def security_settings() -> frozenset[str]:
    """The settings of SASL, TLS and delegation tokens, which have no attributes."""
    lines = (broker_settings.SASL + broker_settings.TOKENS).splitlines()
    return tls_listener_settings() | {line.split()[0] for line in lines}


@cache
def tls_listener_settings() -> frozenset[str]:
    """The settings of listeners with TLS."""
    return frozenset(line.split()[0] for line in broker_settings.TLS.splitlines())


def key_of(name: str) -> ConfigKey | None:
    """The key of a setting, also with the prefix of a listener (`listener.name.NAME.SETTING`)."""
    return broker_definition().get(base_name(name))


def base_name(name: str) -> str:
    """A name without the prefixes of a listener and of a SASL mechanism."""
    if not name.startswith(LISTENER_PREFIX):
        return name
    rest = name[len(LISTENER_PREFIX) :].partition(".")[2]
    mechanism, _, setting = rest.partition(".")
    return setting if mechanism in SASL_MECHANISMS and setting in OF_MECHANISM else rest
