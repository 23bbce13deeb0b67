"""Gets tokens from an OAuth 2.0 token endpoint, with the credentials of a client (RFC 6749, 4.4)."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import time
from collections.abc import Mapping
from urllib.parse import quote_plus, urlencode, urlsplit

from tidelog.clients.settings import ClientSettings
from tidelog.config import ConfigError
from tidelog.errors import NetworkException, SaslAuthenticationFailed
from tidelog.security.https import TimedResponse
from tidelog.security.tls import TlsSettings, client_context

MAX_ANSWER_BYTES = 1 << 20
DEFAULT_TIMEOUT_SECONDS = 10.0
WORTH_A_RETRY = (408, 425, 429)


class TokenEndpoint:
    """`fetch` blocks. It repeats what may succeed later, for up to sasl.login.retry.backoff.max.ms."""

    def __init__(self, url: str, settings: ClientSettings, options: Mapping[str, str]) -> None:
        """`options` are those of the JAAS line. Raises ConfigError if something is missing."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            problem = "expected a URL that begins with https://, or with file:// for a token in a file"
            raise ConfigError("sasl.oauthbearer.token.endpoint.url", url, problem)
        self._url = parts
        self._host: str = parts.hostname
        self._settings = settings
        self._authorization = _authorization(settings, options)
        self._scope = settings.sasl_oauthbearer_scope or options.get("scope")
        self._context = _context(options) if parts.scheme == "https" else None

    def fetch(self) -> tuple[str, float | None]:
        """A token, and its lifetime in seconds if the answer has one.

        Raises SaslAuthenticationFailed if the endpoint refuses, NetworkException if it cannot be reached.
        """
        settings = self._settings
        pause = settings.sasl_login_retry_backoff_ms / 1000
        end = time.monotonic() + settings.sasl_login_retry_backoff_max_ms / 1000
        while True:
            try:
                return self._ask()
            except NetworkException:
                if time.monotonic() + pause > end:
                    raise
            time.sleep(pause)
            pause = min(2 * pause, settings.sasl_login_retry_backoff_max_ms / 1000)

    def _ask(self) -> tuple[str, float | None]:
        where = f"the token endpoint {self._host}"
        try:
            status, body = self._post()
        except (OSError, http.client.HTTPException) as error:
            raise NetworkException(f"{where} cannot be reached: {error}") from None
        if status >= 500 or status in WORTH_A_RETRY:
            raise NetworkException(f"{where} answered with status {status}")
        if status != 200:
            raise SaslAuthenticationFailed(f"{where} refused with status {status}{_why(body)}")
        try:
            answer = json.loads(body)
            token = answer["access_token"]
        except (ValueError, KeyError, TypeError):
            raise SaslAuthenticationFailed(f"{where} answered without an access_token") from None
        lifetime = answer.get("expires_in")
        return str(token), float(lifetime) if isinstance(lifetime, int | float) else None

    def _post(self) -> tuple[int, bytes]:
        settings = self._settings
        connect, read = settings.sasl_login_connect_timeout_ms, settings.sasl_login_read_timeout_ms
        limit = DEFAULT_TIMEOUT_SECONDS if not connect else connect / 1000
        if self._context is None:
            connection = http.client.HTTPConnection(self._host, self._url.port, timeout=limit)
        else:
            connection = http.client.HTTPSConnection(
                self._host, self._url.port, timeout=limit, context=self._context
            )
        connection.response_class = TimedResponse
        try:
            connection.connect()
            if connection.sock is not None:
                connection.sock.settimeout(DEFAULT_TIMEOUT_SECONDS if not read else read / 1000)
            path = self._url.path or "/"
            form = {"grant_type": "client_credentials"}
            if self._scope:
                form["scope"] = self._scope
            headers = {
                "Accept": "application/json",
                "Authorization": self._authorization,
                "Cache-Control": "no-cache",
                "Content-Type": "application/x-www-form-urlencoded",
            }
            target = f"{path}?{self._url.query}" if self._url.query else path
            connection.request("POST", target, urlencode(form), headers)
            answer = connection.getresponse()
            return answer.status, answer.read(MAX_ANSWER_BYTES)
        finally:
            connection.close()


def _authorization(settings: ClientSettings, options: Mapping[str, str]) -> str:
    name = settings.sasl_oauthbearer_client_credentials_client_id or options.get("clientId")
    password = settings.sasl_oauthbearer_client_credentials_client_secret
    secret = password.secret if password is not None else options.get("clientSecret")
    if not name:
        raise ConfigError(
            "sasl.oauthbearer.client.credentials.client.id", None, "needed by the token endpoint"
        )
    if not secret:
        raise ConfigError(
            "sasl.oauthbearer.client.credentials.client.secret", None, "needed by the token endpoint"
        )
    if settings.sasl_oauthbearer_header_urlencode:
        name, secret = quote_plus(name), quote_plus(secret)
    return "Basic " + base64.b64encode(f"{name}:{secret}".encode()).decode()


def _context(options: Mapping[str, str]) -> ssl.SSLContext:
    """The TLS context to the endpoint: as in Kafka the JAAS line may have settings ssl.* for it."""
    return client_context(TlsSettings.of(options))


def _why(body: bytes) -> str:
    """The text of an error answer, without anything that could be a secret."""
    try:
        answer = json.loads(body)
    except ValueError:
        return ""
    words = [str(answer[name]) for name in ("error", "error_description") if answer.get(name)]
    return f": {' - '.join(words)}" if words else ""
