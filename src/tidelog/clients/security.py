"""The client's side of TLS and SASL: the TLS context, and the exchanges of the mechanisms.

Keys and certificates are PEM, in files or in the settings themselves. A mechanism is a generator: it yields
the bytes to send and receives the broker's answers, so tests need no socket.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
import secrets
import ssl
import tempfile
from collections.abc import Generator

from tidelog.clients.settings import ClientSettings
from tidelog.config import ConfigError
from tidelog.errors import SaslAuthenticationFailed, error_class
from tidelog.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from tidelog.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

Steps = Generator[bytes, bytes, None]
Asked = SaslHandshakeRequest | SaslAuthenticateRequest
Answered = SaslHandshakeResponse | SaslAuthenticateResponse
Authentication = Generator[Asked, Answered, int]

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
# The minimum of RFC 7677. With fewer rounds a recorded exchange is cheap to attack.
LEAST_ITERATIONS = 4096
_JAAS_OPTION = re.compile(r"""(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s;]+))""")


class Security:
    """The security settings of connections. Invalid settings raise when the client is created."""

    __slots__ = ("_context", "_settings", "credentials", "mechanism", "tls")

    def __init__(self, settings: ClientSettings) -> None:
        protocol = settings.security_protocol.upper()
        self._settings = settings
        self.tls = protocol in ("SSL", "SASL_SSL")
        self._context: ssl.SSLContext | None = None
        self.mechanism: str | None = None
        self.credentials: Credentials | None = None
        if protocol.startswith("SASL_"):
            self.mechanism = settings.sasl_mechanism
            if self.mechanism not in MECHANISMS:
                raise ConfigError(
                    "sasl.mechanism", self.mechanism, f"expected one of {', '.join(MECHANISMS)}"
                )
            self.credentials = credentials_of(settings)

    @property
    def context(self) -> ssl.SSLContext | None:
        """The TLS context, created on first use; None for plain connections."""
        if self.tls and self._context is None:
            self._context = tls_context(self._settings)
        return self._context

    @property
    def checks_host(self) -> bool:
        return self._settings.ssl_endpoint_identification_algorithm != ""

    def sasl_steps(self) -> Steps | None:
        """A new exchange of the configured mechanism; None without SASL."""
        if self.mechanism is None or self.credentials is None:
            return None
        if self.mechanism == "PLAIN":
            return plain_steps(self.credentials)
        return scram_steps(self.credentials, self.mechanism)


def authentication(security: Security, address: str) -> Authentication:
    """The SASL requests of a connection: yields requests, receives their answers, and returns the lifetime of
    the session in milliseconds, 0 for unlimited. Without SASL it yields nothing.
    """
    steps, mechanism = security.sasl_steps(), security.mechanism
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


def tls_context(settings: ClientSettings) -> ssl.SSLContext:
    """The TLS context of the settings. Without a truststore it trusts the system's certificates."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = settings.ssl_endpoint_identification_algorithm != ""
    versions = settings.ssl_enabled_protocols
    context.minimum_version = ssl.TLSVersion.TLSv1_2 if "TLSv1.2" in versions else ssl.TLSVersion.TLSv1_3
    context.maximum_version = ssl.TLSVersion.TLSv1_3 if "TLSv1.3" in versions else ssl.TLSVersion.TLSv1_2
    if settings.ssl_cipher_suites:
        try:
            context.set_ciphers(":".join(settings.ssl_cipher_suites))
        except ssl.SSLError:
            names = ",".join(settings.ssl_cipher_suites)
            raise ConfigError("ssl.cipher.suites", names, "expected OpenSSL's names of suites") from None
    _trust(context, settings)
    _identify(context, settings)
    return context


def _trust(context: ssl.SSLContext, settings: ClientSettings) -> None:
    if settings.ssl_truststore_certificates is not None:
        path, text = None, settings.ssl_truststore_certificates.secret
        name, shown = "ssl.truststore.certificates", "[hidden]"
    elif settings.ssl_truststore_location is not None:
        path, text = settings.ssl_truststore_location, None
        name, shown = "ssl.truststore.location", path
    else:
        context.load_default_certs()
        return
    try:
        context.load_verify_locations(cafile=path, cadata=text)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(name, shown, f"expected certificates in PEM: {error}") from None


def _identify(context: ssl.SSLContext, settings: ClientSettings) -> None:
    secret = settings.ssl_key_password.secret if settings.ssl_key_password is not None else None
    chain, key = settings.ssl_keystore_certificate_chain, settings.ssl_keystore_key
    if chain is not None and key is not None:
        # The library reads keys only from files: write one with private permissions, and delete it after use.
        handle, path = tempfile.mkstemp(suffix=".pem")
        try:
            with os.fdopen(handle, "w") as file:
                file.write(f"{key.secret}\n{chain.secret}\n")
            _load_identity(context, path, secret, "ssl.keystore.key", "[hidden]")
        finally:
            os.unlink(path)
    elif settings.ssl_keystore_location is not None:
        location = settings.ssl_keystore_location
        _load_identity(context, location, secret, "ssl.keystore.location", location)


def _load_identity(context: ssl.SSLContext, path: str, secret: str | None, name: str, shown: str) -> None:
    def password() -> str:
        # Otherwise the library would ask on the terminal.
        if secret is None:
            raise ConfigError("ssl.key.password", None, "needed: the key is encrypted")
        return secret

    try:
        context.load_cert_chain(path, password=password)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(name, shown, f"expected a key and its certificates in PEM: {error}") from None


def plain_steps(credentials: Credentials) -> Steps:
    yield b"\0" + credentials.username.encode() + b"\0" + credentials.password.encode()


def scram_steps(credentials: Credentials, mechanism: str, nonce: str | None = None) -> Steps:
    """The SCRAM exchange: the password is not sent, and the broker proves that it knows it, too."""
    algorithm = "sha512" if mechanism == "SCRAM-SHA-512" else "sha256"
    nonce = nonce or secrets.token_urlsafe(24)
    name = credentials.username.replace("=", "=3D").replace(",", "=2C")
    extension = ",tokenauth=true" if credentials.is_token else ""
    first = f"n={name},r={nonce}{extension}"
    server_first = (yield f"n,,{first}".encode()).decode()
    answer = _attributes(server_first)
    refused = f"{mechanism}: the broker refused {credentials.username!r}"
    if "e" in answer:
        raise SaslAuthenticationFailed(f"{refused}: {answer['e']}")
    try:
        server_nonce, salt, rounds = answer["r"], base64.b64decode(answer["s"]), int(answer["i"])
    except (KeyError, ValueError):
        raise SaslAuthenticationFailed(
            f"{mechanism}: the broker's answer lacks nonce, salt or count"
        ) from None
    if not server_nonce.startswith(nonce) or server_nonce == nonce or rounds < LEAST_ITERATIONS:
        raise SaslAuthenticationFailed(
            f"{mechanism}: the broker answered with {rounds} rounds and a nonce that does not follow ours"
            if rounds >= LEAST_ITERATIONS
            else f"{mechanism}: the broker asks for {rounds} rounds; at least {LEAST_ITERATIONS} are safe"
        )
    salted = hashlib.pbkdf2_hmac(algorithm, credentials.password.encode(), salt, rounds)
    last = f"c=biws,r={server_nonce}"
    exchange = f"{first},{server_first},{last}".encode()
    client_key = hmac.digest(salted, b"Client Key", algorithm)
    signature = hmac.digest(hashlib.new(algorithm, client_key).digest(), exchange, algorithm)
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(client_key, signature, strict=True))).decode()
    final = _attributes((yield f"{last},p={proof}".encode()).decode())
    if "e" in final:
        raise SaslAuthenticationFailed(f"{refused}: {final['e']}")
    expected = hmac.digest(hmac.digest(salted, b"Server Key", algorithm), exchange, algorithm)
    if not hmac.compare_digest(base64.b64encode(expected).decode(), final.get("v", "")):
        raise SaslAuthenticationFailed(f"{mechanism}: the broker does not know the password")


def _attributes(text: str) -> dict[str, str]:
    return {part[0]: part[2:] for part in text.split(",") if part[1:2] == "="}
