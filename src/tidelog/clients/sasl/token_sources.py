"""Where a client's tokens come from: a Python callable, a token endpoint, a file, or none (unsecured)."""

from __future__ import annotations

import asyncio
import base64
import inspect
import json
import math
import time
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from tidelog.clients.sasl.credentials import jaas_options
from tidelog.clients.sasl.oauthbearer import Token, token_of
from tidelog.clients.sasl.token_endpoint import TokenEndpoint
from tidelog.clients.settings import ClientSettings
from tidelog.config import ConfigError
from tidelog.errors import KafkaError, SaslAuthenticationFailed

Source = Callable[[], Token]

_HANDLERS = "org.apache.kafka.common.security.oauthbearer."
ENDPOINT_HANDLERS = (
    _HANDLERS + "OAuthBearerLoginCallbackHandler",
    _HANDLERS + "secured.OAuthBearerLoginCallbackHandler",
)
UNSECURED_HANDLERS = (_HANDLERS + "internals.unsecured.OAuthBearerUnsecuredLoginCallbackHandler",)
EXTENSION, UNSECURED_EXTENSION = "extension_", "unsecuredLoginExtension_"
UNSECURED = "unsecuredLogin"


def token_source(settings: ClientSettings) -> Source:
    """The source that the settings name. Raises ConfigError if they name none."""
    handler = settings.sasl_login_callback_handler_class
    provider = settings.sasl_oauth_token_provider
    name = "sasl.oauth.token.provider"
    if provider is None and handler is not None and not isinstance(handler, str):
        provider, name = handler, "sasl.login.callback.handler.class"
    if provider is not None:
        return _provided(provider, name)
    if isinstance(handler, str) and handler not in (*ENDPOINT_HANDLERS, *UNSECURED_HANDLERS):
        problem = "a Java class cannot be called; give a Python callable that returns a token"
        raise ConfigError("sasl.login.callback.handler.class", handler, problem)
    options = jaas_options(settings)
    url = settings.sasl_oauthbearer_token_endpoint_url
    if url is not None:
        extensions = _extensions(options, EXTENSION)
        if urlsplit(url).scheme == "file":
            return lambda: _from_file(urlsplit(url).path, extensions)
        endpoint = TokenEndpoint(url, settings, options)
        return lambda: _checked(endpoint.fetch, extensions)
    if any(option.startswith(UNSECURED) for option in options):
        return lambda: _unsecured(options)
    raise ConfigError(
        "sasl.oauthbearer.token.endpoint.url",
        None,
        "needed by OAUTHBEARER, or sasl.oauth.token.provider with a Python callable",
    )


def _provided(provider: object, name: str) -> Source:
    """A callable as for confluent-kafka, or an object with `token` as for kafka-python and aiokafka."""
    made = provider() if inspect.isclass(provider) else provider
    method = getattr(made, "token", None)
    ask = method if callable(method) else made
    if not callable(ask):
        raise ConfigError(name, repr(type(made)), "expected a callable, or an object with a method token")
    named = getattr(made, "extensions", None) if callable(method) else None

    def fetch() -> Token:
        try:
            # confluent-kafka passes a text of settings, which most callables ignore.
            found = _waited(ask("") if _takes_one(ask) else ask())
            extensions = _waited(named()) if callable(named) else {}
            return _token_from(found, extensions)
        except KafkaError:
            raise
        except Exception as error:
            raise SaslAuthenticationFailed(f"{name}: no token: {type(error).__name__}: {error}") from error

    return fetch


def _takes_one(function: Callable[..., object]) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [each for each in parameters if each.kind in kinds and each.default is inspect.Parameter.empty]
    return len(needed) == 1


def _waited(found: object) -> object:
    """The result of a coroutine, run here: sources are called beside the loop of the client."""
    if not inspect.iscoroutine(found):
        return found

    async def result() -> object:
        return await found

    return asyncio.run(result())


def _token_from(found: object, extensions: object) -> Token:
    """A token, or a tuple of token, expiry in seconds since 1970, principal and extensions."""
    more = extensions if isinstance(extensions, Mapping) else {}
    if isinstance(found, Token):
        return found
    if isinstance(found, str):
        return token_of(found, dict(more), None, time.time())
    if isinstance(found, tuple) and len(found) >= 2 and isinstance(found[0], str):
        given = found[3] if len(found) > 3 and isinstance(found[3], Mapping) else more
        expires = found[1] if isinstance(found[1], int | float) else None
        return Token(found[0], expires, None, dict(given))
    raise TypeError(f"expected a token as text, or a tuple with its expiry, not {type(found).__name__}")


def _from_file(path: str, extensions: Mapping[str, str]) -> Token:
    def read() -> tuple[str, float | None]:
        try:
            with open(path, encoding="utf-8") as file:
                return file.read().strip(), None
        except OSError as error:
            problem = f"the token cannot be read from {path}: {error.strerror or error}"
            raise SaslAuthenticationFailed(problem) from None

    return _checked(read, extensions)


def _checked(fetch: Callable[[], tuple[str, float | None]], extensions: Mapping[str, str]) -> Token:
    value, lifetime = fetch()
    try:
        return token_of(value, extensions, lifetime, time.time())
    except ValueError as error:
        raise SaslAuthenticationFailed(f"OAUTHBEARER: {error}") from None


def _extensions(options: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {name.removeprefix(prefix): value for name, value in options.items() if name.startswith(prefix)}


def _unsecured(options: Mapping[str, str]) -> Token:
    """A token that nobody signed, from options such as unsecuredLoginStringClaim_sub; only for tests."""
    # Kafka's broker counts whole milliseconds: within this one, a part of one would lie in its future.
    now = math.floor(time.time() * 1000) / 1000
    lifetime = float(options.get("unsecuredLoginLifetimeSeconds", "3600"))
    claims: dict[str, object] = {"iat": now, "exp": now + lifetime}
    for name, value in options.items():
        kind, _, claim = name.removeprefix(UNSECURED).partition("Claim_")
        if not claim or not name.startswith(UNSECURED):
            continue
        if kind == "String":
            claims[claim] = value
        elif kind == "Number":
            claims[claim] = float(value)
        elif kind == "List":  # its first character separates the items
            claims[claim] = value[1:].split(value[:1]) if value else []
    parts = ({"alg": "none"}, claims)
    encoded = (base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts)
    return Token(".".join((*encoded, "")), now + lifetime, now, _extensions(options, UNSECURED_EXTENSION))
