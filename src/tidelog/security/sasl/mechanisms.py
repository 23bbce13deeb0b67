"""The mechanisms of a listener, from its settings: each makes the broker's side of an exchange."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol
from urllib.parse import urlsplit

from tidelog.config.values import ConfigError
from tidelog.security import scram
from tidelog.security.jaas import JaasError, login_module
from tidelog.security.sasl.authenticator import MechanismOptions
from tidelog.security.sasl.callback_handlers import UNSECURED_HANDLER, load_handler
from tidelog.security.sasl.plain import JaasUsers, PlainSaslServer
from tidelog.security.sasl.scram import ScramSaslServer, TokenCredential
from tidelog.security.sasl.server import MakeSaslServer
from tidelog.security.scram import ScramAlgorithm, ScramCredential

MECHANISMS: Final = ("GSSAPI", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
JAAS: Final = "sasl.jaas.config"
JWKS_URL: Final = "sasl.oauthbearer.jwks.endpoint.url"
ALLOWED_URLS: Final = "tidelog.sasl.oauthbearer.allowed.urls"
UNSECURED: Final = "tidelog.sasl.oauthbearer.unsecured.enable"


class ScramUsers(Protocol):
    """The users with SCRAM credentials."""

    def find(self, user: str, mechanism: ScramAlgorithm) -> ScramCredential | None: ...

    def iterations(self, user: str, mechanism: ScramAlgorithm) -> int:
        """The iterations that a user of this name seems to have if there is none."""


class NoScramUsers:
    """No user at all, to check settings."""

    def find(self, user: str, mechanism: ScramAlgorithm) -> ScramCredential | None:
        return None

    def iterations(self, user: str, mechanism: ScramAlgorithm) -> int:
        return mechanism.min_iterations


FindTokenOf = Callable[[str, ScramAlgorithm], TokenCredential | None]


@dataclass(slots=True, frozen=True)
class MechanismSettings:
    """The settings of one mechanism on one listener; `prefix` stands before their names."""

    name: str
    prefix: str
    jaas: str | None = field(default=None, repr=False)
    handler_class: str | None = None
    max_reauth_ms: int = 0


@dataclass(slots=True, frozen=True)
class OAuthBearerSettings:
    jwks_url: str | None = None
    allowed_urls: tuple[str, ...] = ()
    is_unsecured_enabled: bool = False
    refresh_ms: int = 3_600_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 10_000
    expected_issuer: str | None = None
    expected_audience: tuple[str, ...] = ()
    scope_claim: str = "scope"
    sub_claim: str = "sub"
    clock_skew_seconds: int = 30


@dataclass(slots=True, frozen=True)
class SaslSettings:
    """The settings of SASL on one listener."""

    mechanisms: tuple[MechanismSettings, ...]
    oauthbearer: OAuthBearerSettings = field(default_factory=OAuthBearerSettings)
    kerberos_service: str | None = None
    kerberos_rules: tuple[str, ...] = ("DEFAULT",)
    max_receive_size: int = 524_288
    failure_delay_ms: int = 100


def make_mechanisms(
    settings: SaslSettings, users: ScramUsers, find_token: FindTokenOf | None
) -> dict[str, MechanismOptions]:
    """The mechanisms by name. Raises ConfigError: what cannot work fails the start, not each client."""
    return {
        mechanism.name: MechanismOptions(
            _maker(mechanism, settings, users, find_token), max(0, mechanism.max_reauth_ms)
        )
        for mechanism in settings.mechanisms
    }


def _maker(
    mechanism: MechanismSettings, settings: SaslSettings, users: ScramUsers, find_token: FindTokenOf | None
) -> MakeSaslServer:
    options = jaas_options(mechanism)
    handler = load_handler(mechanism.handler_class, mechanism.name, options or {})
    if mechanism.name == "PLAIN":
        if options is None and handler is None:
            raise ConfigError(mechanism.prefix + JAAS, None, 'needed for PLAIN: user_NAME="password"')
        of_jaas = JaasUsers(options or {})
        return lambda: PlainSaslServer(of_jaas, handler)
    if mechanism.name in scram.BY_NAME:
        kind = scram.BY_NAME[mechanism.name]
        of_token = None if find_token is None else partial(_token_of, find_token, kind)
        return lambda: ScramSaslServer(
            kind,
            lambda user: users.find(user, kind),
            of_token,
            handler,
            iterations=lambda user: users.iterations(user, kind),
        )
    if mechanism.name == "OAUTHBEARER":
        return _oauthbearer(mechanism, settings.oauthbearer, options or {}, handler)
    if mechanism.name == "GSSAPI":
        return _gssapi(mechanism, settings, options or {})
    raise ConfigError("sasl.enabled.mechanisms", mechanism.name, f"expected some of {', '.join(MECHANISMS)}")


def _token_of(find: FindTokenOf, kind: ScramAlgorithm, token_id: str) -> TokenCredential | None:
    return find(token_id, kind)


def jaas_options(mechanism: MechanismSettings) -> dict[str, str] | None:
    """The options of the login module; None without a JAAS text. Raises ConfigError."""
    if mechanism.jaas is None:
        return None
    try:
        return login_module(mechanism.jaas, mechanism.name).options
    except JaasError as error:
        raise ConfigError(mechanism.prefix + JAAS, "[hidden]", str(error)) from None


def _oauthbearer(
    mechanism: MechanismSettings, settings: OAuthBearerSettings, options: Mapping[str, str], handler: object
) -> MakeSaslServer:
    from tidelog.security.jwt_validator import ClaimRules, JwtValidator, UnsecuredValidator
    from tidelog.security.sasl.oauthbearer import OAuthBearerSaslServer, OAuthBearerValidator

    validator: OAuthBearerValidator
    if handler is not None:
        validator = handler  # type: ignore[assignment]  # load_handler looked for its method
    elif settings.jwks_url is None or mechanism.handler_class == UNSECURED_HANDLER:
        if not settings.is_unsecured_enabled:
            problem = f"OAUTHBEARER needs the keys of a token provider; {UNSECURED}=true is for tests"
            raise ConfigError(JWKS_URL, settings.jwks_url, problem)
        validator = UnsecuredValidator()
        validator.configure(options)
    else:
        from tidelog.security.jwks import Jwks

        keys = Jwks(
            checked_url(settings.jwks_url, settings.allowed_urls),
            refresh_seconds=settings.refresh_ms / 1000,
            retry_seconds=settings.retry_backoff_ms / 1000,
            retry_max_seconds=settings.retry_backoff_max_ms / 1000,
        )
        rules = ClaimRules(
            expected_issuer=settings.expected_issuer,
            expected_audience=settings.expected_audience,
            scope_claim=settings.scope_claim,
            sub_claim=settings.sub_claim,
            clock_skew=settings.clock_skew_seconds,
        )
        validator = JwtValidator(keys, rules)
    return lambda: OAuthBearerSaslServer(validator)


def checked_url(url: str, allowed: tuple[str, ...]) -> str:
    """The URL, if it is a file: or http(s): URL that the allow-list has. Raises ConfigError."""
    if urlsplit(url).scheme not in ("file", "http", "https"):
        raise ConfigError(JWKS_URL, url, "expected a file:, https: or http: URL")
    if url not in allowed:
        raise ConfigError(JWKS_URL, url, f"not an allowed URL: add it to {ALLOWED_URLS}")
    return url


def _gssapi(
    mechanism: MechanismSettings, settings: SaslSettings, options: Mapping[str, str]
) -> MakeSaslServer:
    from tidelog.security.sasl.gssapi import GssapiSaslServer, acceptor_credentials, gssapi_module

    gssapi = gssapi_module()
    service = settings.kerberos_service or options.get("serviceName")
    if service is None:
        raise ConfigError("sasl.kerberos.service.name", None, "needed for GSSAPI")
    credentials = acceptor_credentials(service, options)
    try:
        credentials()
    except gssapi.exceptions.GSSError as error:
        problem = f"there are no keys of the service {service}: {' '.join(str(error).split())}"
        raise ConfigError(mechanism.prefix + JAAS, "[hidden]", problem) from None
    return lambda: GssapiSaslServer(credentials)
