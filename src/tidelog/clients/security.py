"""The client's side of TLS and SASL: the TLS context, and the login of a connection."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Generator
from typing import TYPE_CHECKING

from tidelog.clients.settings import ClientSettings
from tidelog.config import ConfigError
from tidelog.errors import SaslAuthenticationFailed, error_class
from tidelog.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from tidelog.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

if TYPE_CHECKING:
    import ssl

    from tidelog.clients.sasl.credentials import Credentials
    from tidelog.clients.sasl.oauthbearer import Token
    from tidelog.clients.sasl.token_login import TokenLogin
    from tidelog.security.tls import TlsSettings

Steps = Generator[bytes, bytes, None]
Asked = SaslHandshakeRequest | SaslAuthenticateRequest
Answered = SaslHandshakeResponse | SaslAuthenticateResponse
Authentication = Generator[Asked, Answered, int]

PASSWORD_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
MECHANISMS = (*PASSWORD_MECHANISMS, "OAUTHBEARER", "GSSAPI")


class Security:
    """The security settings of connections. Invalid settings raise when the client is created."""

    __slots__ = ("_context", "_kerberos", "_login", "_settings", "credentials", "mechanism", "tls")

    def __init__(self, settings: ClientSettings) -> None:
        protocol = settings.security_protocol.upper()
        self._settings = settings
        self.tls = protocol in ("SSL", "SASL_SSL")
        self._context: ssl.SSLContext | None = None
        self._login: TokenLogin | None = None
        self._kerberos: dict[str, str] = {}
        self.mechanism: str | None = None
        self.credentials: Credentials | None = None
        if protocol.startswith("SASL_"):
            self._prepare_login(settings)
        if self.tls:
            from tidelog.security.tls import client_context

            self._context = client_context(tls_settings(settings))

    def _prepare_login(self, settings: ClientSettings) -> None:
        from tidelog.clients.sasl.credentials import credentials_of, jaas_options

        self.mechanism = mechanism = settings.sasl_mechanism
        if mechanism in PASSWORD_MECHANISMS:
            self.credentials = credentials_of(settings)
        elif mechanism == "OAUTHBEARER":
            from tidelog.clients.sasl.token_login import TokenLogin
            from tidelog.clients.sasl.token_sources import token_source

            self._login = TokenLogin(token_source(settings), settings)
        elif mechanism == "GSSAPI":
            from tidelog.clients.sasl.gssapi import gssapi_module

            if settings.sasl_kerberos_service_name is None:
                raise ConfigError("sasl.kerberos.service.name", None, "needed by GSSAPI, such as kafka")
            gssapi_module()
            self._kerberos = jaas_options(settings)
        else:
            raise ConfigError("sasl.mechanism", mechanism, f"expected one of {', '.join(MECHANISMS)}")

    @property
    def context(self) -> ssl.SSLContext | None:
        """The TLS context; None for plain connections."""
        return self._context

    async def token(self) -> Token | None:
        """The token of OAUTHBEARER, got beside the loop if needed; None for other mechanisms."""
        login = self._login
        if login is None:
            return None
        return login.current() or await asyncio.get_running_loop().run_in_executor(None, login.renewed)

    def token_now(self) -> Token | None:
        """As `token`, for a thread that may block."""
        return None if self._login is None else self._login.renewed()

    def sasl_steps(self, host: str, token: Token | None) -> Steps | None:
        """A new exchange of the configured mechanism; None without SASL."""
        mechanism = self.mechanism
        if mechanism == "GSSAPI":
            from tidelog.clients.sasl.gssapi import gssapi_steps

            service = self._settings.sasl_kerberos_service_name or "kafka"
            return gssapi_steps(service, host, self._kerberos)
        if mechanism == "OAUTHBEARER":
            from tidelog.clients.sasl.oauthbearer import oauthbearer_steps

            assert token is not None, "OAUTHBEARER has a token"
            return oauthbearer_steps(token)
        if mechanism is None or self.credentials is None:
            return None
        if mechanism == "PLAIN":
            from tidelog.clients.sasl.plain import plain_steps

            return plain_steps(self.credentials)
        from tidelog.clients.sasl.scram import scram_steps

        return scram_steps(self.credentials, mechanism)


def authentication(security: Security, host: str, port: int, token: Token | None) -> Authentication:
    """The SASL requests of a connection: yields requests, receives their answers, and returns the lifetime of
    the session in milliseconds, 0 for unlimited. Without SASL it yields nothing.
    """
    steps, mechanism, address = security.sasl_steps(host, token), security.mechanism, f"{host}:{port}"
    if steps is None or mechanism is None:
        return 0
    shake = yield SaslHandshakeRequest(mechanism=mechanism)
    assert isinstance(shake, SaslHandshakeResponse)
    if shake.error_code:
        offered = ", ".join(shake.mechanisms)
        raise error_class(shake.error_code)(
            f"{address} does not take {mechanism}; it offers {offered or 'none'}"
        )
    message = next(steps)
    while True:
        answer = yield SaslAuthenticateRequest(auth_bytes=message)
        assert isinstance(answer, SaslAuthenticateResponse)
        if answer.error_code:
            text = answer.error_message or "the broker refused without a reason"
            raise error_class(answer.error_code)(f"{address}: {text}")
        try:
            message = steps.send(bytes(answer.auth_bytes))
        except StopIteration:
            return answer.session_lifetime_ms
        except (ValueError, UnicodeDecodeError):
            raise SaslAuthenticationFailed(f"{mechanism}: {address} sent an invalid answer") from None


def answer_to(request: Asked) -> type[Answered]:
    return SaslHandshakeResponse if isinstance(request, SaslHandshakeRequest) else SaslAuthenticateResponse


def renewal_after(lifetime_ms: int) -> float | None:
    """The seconds after which to log in again: 85 to 95 percent of a session, as Kafka's clients.

    None if the session does not end.
    """
    return lifetime_ms / 1000 * random.uniform(0.85, 0.95) if lifetime_ms > 0 else None


def tls_settings(settings: ClientSettings) -> TlsSettings:
    """The settings ssl.* of a client."""
    from tidelog.security.tls import TlsSettings

    given = settings.given
    return TlsSettings(
        enabled_protocols=settings.ssl_enabled_protocols,
        protocol=settings.ssl_protocol,
        cipher_suites=settings.ssl_cipher_suites,
        endpoint_identification_algorithm=settings.ssl_endpoint_identification_algorithm,
        keystore_type=settings.ssl_keystore_type if "ssl.keystore.type" in given else None,
        keystore_location=settings.ssl_keystore_location,
        keystore_password=settings.ssl_keystore_password,
        key_password=settings.ssl_key_password,
        keystore_key=settings.ssl_keystore_key,
        keystore_certificate_chain=settings.ssl_keystore_certificate_chain,
        truststore_type=settings.ssl_truststore_type if "ssl.truststore.type" in given else None,
        truststore_location=settings.ssl_truststore_location,
        truststore_password=settings.ssl_truststore_password,
        truststore_certificates=settings.ssl_truststore_certificates,
    )
