"""GSSAPI (Kerberos): the broker's side, with the package `gssapi`, where it is installed.

The keytab and the principal come from the login module's options, or from the environment (KRB5_KTNAME).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final

from tidelog.config.values import ConfigError
from tidelog.security.sasl.server import Evaluation, SaslException

NO_PROTECTION: Final = 1
MISSING: Final = "GSSAPI needs the package gssapi, which is not installed (pip install gssapi)"


def gssapi_module() -> Any:
    """The package; ConfigError if it is missing."""
    try:
        return import_module("gssapi")
    except ImportError:
        raise ConfigError("sasl.enabled.mechanisms", "GSSAPI", MISSING) from None


def acceptor_credentials(service: str, options: Mapping[str, str]) -> Callable[[], Any]:
    """Makes the credentials of the broker's service from the keytab of the login module."""
    gssapi = gssapi_module()
    keytab, principal = options.get("keyTab"), options.get("principal")

    def make() -> Any:
        if principal is not None:
            name = gssapi.Name(principal, gssapi.NameType.kerberos_principal)
        else:
            name = gssapi.Name(service, gssapi.NameType.hostbased_service)
        store = {} if keytab is None else {"keytab": keytab}
        return gssapi.Credentials(name=name, usage="accept", **({"store": store} if store else {}))

    return make


class GssapiSaslServer:
    """Implements SaslServer (RFC 4752): the security context, then a choice of "no protection"."""

    is_token_authenticated = False
    credential_expiry_ms: int | None = None

    def __init__(self, credentials: Callable[[], Any]) -> None:
        self._credentials = credentials
        self._context: Any = None
        self._has_offered = False
        self.is_complete = False
        self.authorization_id = ""

    def evaluate(self, response: bytes) -> Evaluation:
        # The library may read files and ask a replay cache.
        answer = yield lambda: self._step(response)
        if not isinstance(answer, bytes):
            raise SaslException("GSSAPI made no token")
        return answer

    def _step(self, response: bytes) -> bytes:
        gssapi = gssapi_module()
        try:
            if self._context is None:
                self._context = gssapi.SecurityContext(creds=self._credentials(), usage="accept")
            context = self._context
            if not context.complete:
                token: bytes = context.step(response) or b""
                return self._offer() if context.complete and not token else token
            if not self._has_offered:
                return self._offer()
            return self._choose(context.unwrap(response).message)
        except gssapi.exceptions.GSSError as error:
            raise SaslException(f"GSSAPI: {type(error).__name__}") from None

    def _offer(self) -> bytes:
        self._has_offered = True
        offer: bytes = self._context.wrap(bytes((NO_PROTECTION, 0, 0, 0)), False).message
        return offer

    def _choose(self, choice: bytes) -> bytes:
        if len(choice) < 4 or choice[0] != NO_PROTECTION:
            raise SaslException("the client asks for a protection that is not offered")
        # As in Kafka, the user is the principal of the ticket, whatever authorization id the client sends:
        # kafka-python and aiokafka send the name of the service.
        self.authorization_id = str(self._context.initiator_name)
        self.is_complete = True
        return b""


def default_realm() -> str:
    """The default realm of the Kerberos library, or "" if it has none."""
    gssapi = gssapi_module()
    try:
        name = gssapi.Name("anybody", gssapi.NameType.user).canonicalize(gssapi.MechType.kerberos)
    except gssapi.exceptions.GSSError:
        return ""
    return str(name).partition("@")[2]
