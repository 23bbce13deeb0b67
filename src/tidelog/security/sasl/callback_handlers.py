"""Callback handlers: Python classes that check credentials instead of the broker's own ways.

`sasl.server.callback.handler.class` names a class, `package.module.Class`. It has `configure(options)`, which
gets the options of the login module, and a method of its mechanism: `authenticate(username, password)` for
PLAIN, `credential(username)` for SCRAM, `validate(token)` for OAUTHBEARER. The methods run on threads.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

from tidelog.config.values import ConfigError

SETTING: Final = "sasl.server.callback.handler.class"
_SECURITY: Final = "org.apache.kafka.common.security"
UNSECURED_HANDLER: Final = (
    f"{_SECURITY}.oauthbearer.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"
)
KAFKAS_OWN: Final = frozenset(
    (
        f"{_SECURITY}.plain.internals.PlainServerCallbackHandler",
        f"{_SECURITY}.scram.internals.ScramServerCallbackHandler",
        f"{_SECURITY}.oauthbearer.OAuthBearerValidatorCallbackHandler",
        f"{_SECURITY}.oauthbearer.secured.OAuthBearerValidatorCallbackHandler",
        f"{_SECURITY}.authenticator.SaslServerCallbackHandler",
        UNSECURED_HANDLER,
    )
)
"""Kafka's names of what the broker does without a handler."""

METHODS: Final = {
    "PLAIN": "authenticate",
    "SCRAM-SHA-256": "credential",
    "SCRAM-SHA-512": "credential",
    "OAUTHBEARER": "validate",
}


def load_class(setting: str, name: str) -> Any:
    """The Python class of a name, package.module.Class. Raises ConfigError."""
    module, _, class_name = name.rpartition(".")
    try:
        return getattr(import_module(module), class_name)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise ConfigError(setting, name, f"expected a Python class, package.module.Class: {error}") from None


def load_handler(name: str | None, mechanism: str, options: Mapping[str, str]) -> Any:
    """A configured handler; None for the broker's own. Raises ConfigError."""
    if name is None or not name.strip() or name in KAFKAS_OWN:
        return None
    method = METHODS.get(mechanism)
    if method is None:
        raise ConfigError(SETTING, name, f"{mechanism} has no callback handlers")
    try:
        handler = load_class(SETTING, name)()
    except TypeError as error:
        problem = f"expected a class that is made without arguments: {error}"
        raise ConfigError(SETTING, name, problem) from None
    if not callable(getattr(handler, method, None)):
        raise ConfigError(SETTING, name, f"a handler of {mechanism} has a method {method}")
    configure = getattr(handler, "configure", None)
    if callable(configure):
        configure(dict(options))
    return handler
