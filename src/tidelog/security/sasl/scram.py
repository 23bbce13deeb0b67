"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677): the password is never sent.

A user who does not exist gets a salt, too, derived from a secret of this process, and fails where a wrong
password fails: neither the answers nor their time tell which users exist.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NoReturn, Protocol

from tidelog.security.sasl.server import (
    Evaluation,
    SaslAuthenticationException,
    SaslException,
    Work,
)
from tidelog.security.scram import SALT_BYTES, ScramAlgorithm, ScramCredential

_SASL_NAME = r"(?:[^=,\x00]|=2C|=3D)+"
_PRINTABLE = r"[\x21-\x2b\x2d-\x7e]+"
_CLIENT_FIRST = re.compile(
    rf"(?P<gs2>n,(?:a=(?P<authzid>{_SASL_NAME}))?,)"
    rf"(?P<bare>n=(?P<name>{_SASL_NAME}),r=(?P<nonce>{_PRINTABLE})(?P<extensions>(?:,[a-zA-Z]+=[^,\x00]*)*))"
)
_CLIENT_FINAL = re.compile(
    rf"(?P<without_proof>c=(?P<channel>[a-zA-Z0-9/+=]+),r=(?P<nonce>{_PRINTABLE})(?:,[a-zA-Z]=[^,\x00]*)*)"
    r",p=(?P<proof>[a-zA-Z0-9/+=]*)"
)
MOST_BYTES: Final = 16 * 1024
"""Longer messages are refused: nobody has logged in yet, and each byte takes time and memory."""

UNKNOWN_USER_SECRET: Final = secrets.token_bytes(32)


@dataclass(slots=True, frozen=True)
class TokenCredential:
    """A delegation token as a SCRAM credential: its owner, and when it expires."""

    owner: str
    credential: ScramCredential = field(repr=False)
    expiry_ms: int


class ScramCallbackHandler(Protocol):
    """Finds credentials elsewhere than in the tree. `credential` runs on a thread and may block.

    `configure` gets the options of the login module before the first call.
    """

    def configure(self, options: Mapping[str, str]) -> None: ...

    def credential(self, username: str) -> ScramCredential | None: ...


FindCredential = Callable[[str], ScramCredential | None]
FindToken = Callable[[str], TokenCredential | None]


def unknown_user(name: str, mechanism: ScramAlgorithm, iterations: int) -> ScramCredential:
    """The credential of a user who does not exist: always the same salt, and keys that no password has."""

    def derived(purpose: bytes, size: int) -> bytes:
        return hmac.digest(UNKNOWN_USER_SECRET, purpose + name.encode(), "sha512")[:size]

    size = mechanism.key_bytes
    return ScramCredential(
        derived(b"salt", SALT_BYTES), derived(b"stored", size), derived(b"server", size), iterations
    )


def choice(values: Sequence[int], name: str) -> int:
    """One of the values, always the same for a name as long as the values are."""
    number = int.from_bytes(hmac.digest(UNKNOWN_USER_SECRET, b"choice" + name.encode(), "sha256")[:8], "big")
    return values[number % len(values)]


class ScramSaslServer:
    """Implements SaslServer. `iterations` is the number that an unknown user seems to have."""

    def __init__(
        self,
        mechanism: ScramAlgorithm,
        find: FindCredential,
        find_token: FindToken | None = None,
        handler: ScramCallbackHandler | None = None,
        *,
        iterations: Callable[[str], int] | None = None,
        nonce: str | None = None,
    ) -> None:
        self._mechanism = mechanism
        self._find = find
        self._find_token = find_token
        self._handler = handler
        self._iterations = iterations
        self._nonce = nonce or secrets.token_urlsafe(24)
        self._credential: ScramCredential | None = None
        self._is_known = False
        self._gs2 = self._exchange = b""
        self._full_nonce = ""
        self.is_complete = False
        self.authorization_id = ""
        self.is_token_authenticated = False
        self.credential_expiry_ms: int | None = None

    def evaluate(self, response: bytes) -> Evaluation:
        if self.is_complete:
            raise SaslException("the exchange is over")
        if len(response) > MOST_BYTES:
            raise SaslException(f"a message of {len(response)} bytes")
        if self._credential is not None:
            return self._final(response)
        match = _CLIENT_FIRST.fullmatch(response.decode("utf-8", "replace"))
        if match is None:
            # Also one that asks for channel binding (p=...), or that would if we had it (y), as in Kafka.
            raise SaslException("not a client-first-message")
        name = _unescaped(match["name"])
        extensions = dict(part.split("=", 1) for part in match["extensions"].split(",")[1:])
        credential: object
        handler = self._handler
        if extensions.get("tokenauth", "").lower() == "true":
            credential = yield from self._token(name)
        else:
            credential = self._find(name) if handler is None else (yield lambda: handler.credential(name))
            self.authorization_id = name
        if match["authzid"] is not None and _unescaped(match["authzid"]) != name:
            raise SaslAuthenticationException(
                "Authentication failed: Client requested an authorization id that is different from username"
            )
        # Made for every user, so that both cases take the same time.
        self._credential = unknown_user(name, self._mechanism, self._unknown_iterations(name))
        if isinstance(credential, ScramCredential) and self._is_usable(credential):
            self._is_known = True
            self._credential = credential
        self._full_nonce = match["nonce"] + self._nonce
        self._gs2 = match["gs2"].encode()
        first = self._server_first()
        self._exchange = f"{match['bare']},{first}".encode()
        return first.encode()

    def _unknown_iterations(self, name: str) -> int:
        return self._mechanism.min_iterations if self._iterations is None else self._iterations(name)

    def _is_usable(self, credential: ScramCredential) -> bool:
        mechanism = self._mechanism
        return (
            credential.iterations >= mechanism.min_iterations
            and len(credential.stored_key) == mechanism.key_bytes
        )

    def _server_first(self) -> str:
        assert self._credential is not None
        salt = base64.b64encode(self._credential.salt).decode()
        return f"r={self._full_nonce},s={salt},i={self._credential.iterations}"

    def _token(self, token_id: str) -> Generator[Work, object, ScramCredential | None]:
        self.is_token_authenticated = True
        find = self._find_token
        if find is None:
            return None
        found = yield lambda: find(token_id)  # the first use of a token makes its credential
        if not isinstance(found, TokenCredential):
            return None
        self.authorization_id = found.owner
        self.credential_expiry_ms = found.expiry_ms
        return found.credential

    def _final(self, response: bytes) -> bytes:
        credential = self._credential
        assert credential is not None
        match = _CLIENT_FINAL.fullmatch(response.decode("utf-8", "replace"))
        if match is None:
            raise SaslException("not a client-final-message")
        digest = self._mechanism.digest
        exchange = self._exchange + b"," + match["without_proof"].encode()
        signature = hmac.digest(credential.stored_key, exchange, digest)
        proof = _decoded(match["proof"])
        if len(proof) != len(signature):
            _refuse()
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        is_right = hmac.compare_digest(hashlib.new(digest, client_key).digest(), credential.stored_key)
        is_bound = _decoded(match["channel"]) == self._gs2
        # librdkafka before 2.6.1 repeats its own part of the nonce in front of it, and Kafka 3.9 takes that.
        is_ours = match["nonce"].endswith(self._full_nonce)
        if not (is_right and is_bound and is_ours and self._is_known):
            _refuse()
        self.is_complete = True
        return b"v=" + base64.b64encode(hmac.digest(credential.server_key, exchange, digest))


def _refuse() -> NoReturn:
    raise SaslException("wrong credentials")


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        return b""


def _unescaped(name: str) -> str:
    return name.replace("=2C", ",").replace("=3D", "=")
