"""JWKS: the public keys of a token provider, from a file or a URL.

`find` runs on the thread that checks a token. It reads the keys at the first call and again when they are
older than the refresh interval, or when a key id is unknown; after a failure it waits longer each time. One
thread reads at a time, and the others use the keys that are known. The event loop never reads keys.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, cast
from urllib.parse import unquote, urlsplit

from tidelog.security.sasl.oauthbearer import InvalidToken

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

log = logging.getLogger("tidelog.security.jwks")

MAX_BYTES: Final = 1 << 20
FETCH_SECONDS: Final = 10.0
UNKNOWN_KEY_SECONDS: Final = 10.0
"""An unknown key id reads the keys again at most so often: clients can invent key ids."""

RSA_ALGORITHMS: Final = frozenset(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"))
CURVES: Final = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512"}

Fetch: TypeAlias = Callable[[str], bytes]
PublicKey: TypeAlias = "RSAPublicKey | EllipticCurvePublicKey"


class Key(NamedTuple):
    """A public key, and the algorithms whose signatures it verifies."""

    public_key: PublicKey
    algorithms: frozenset[str]


def fetch(url: str) -> bytes:
    """The document of a file: or http(s): URL, without redirects: the URL is the allowed one. Or OSError."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        with open(unquote(parts.path), "rb") as file:
            return file.read(MAX_BYTES + 1)
    from tidelog.security.https import ask  # a broker that reads no URL does not load it

    return ask(url, seconds=FETCH_SECONDS, max_bytes=MAX_BYTES)


class Jwks:
    """The keys of one URL, shared by the connections of a listener."""

    def __init__(
        self,
        url: str,
        *,
        refresh_seconds: float = 3600.0,
        retry_seconds: float = 0.1,
        retry_max_seconds: float = 10.0,
        fetch: Fetch = fetch,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._url = url
        self._refresh = refresh_seconds
        self._retry, self._retry_max = retry_seconds, retry_max_seconds
        self._fetch = fetch
        self._now = now
        self._reading = threading.Lock()  # a provider that is slow keeps one thread, not all that log in
        self._keys: dict[str | None, Key] = {}
        self._read_at: float | None = None
        self._failures = 0
        self._try_after = 0.0

    def find(self, key_id: object, algorithm: str) -> PublicKey | None:
        """The key with this id for this algorithm, or None. InvalidToken if the keys cannot be read."""
        name = key_id if isinstance(key_id, str) else None
        if self._is_read_due(name) and self._reading.acquire(blocking=self._read_at is None):
            try:
                if self._is_read_due(name):
                    self._read(self._now())
            finally:
                self._reading.release()
        if self._read_at is None:
            raise InvalidToken("the keys of the provider cannot be read")
        keys = self._keys
        key = keys.get(name)
        if key is None and name is None and len(keys) == 1:
            key = next(iter(keys.values()))
        return key.public_key if key is not None and algorithm in key.algorithms else None

    def _is_read_due(self, name: str | None) -> bool:
        if self._read_at is None:
            return True
        age = self._now() - self._read_at
        return age >= self._refresh or (name not in self._keys and age >= UNKNOWN_KEY_SECONDS)

    def _read(self, now: float) -> None:
        if now < self._try_after:
            return
        try:
            self._keys = _parse(self._fetch(self._url))
        except (OSError, ValueError, RecursionError) as error:
            delay = min(self._retry * 2**self._failures, self._retry_max)
            self._failures = min(self._failures + 1, 30)
            self._try_after = self._now() + delay  # the read itself may have taken long
            log.error("the keys of %s cannot be read: %s; trying again after %.1f s", self._url, error, delay)
            return
        self._failures, self._try_after, self._read_at = 0, 0.0, now


def _parse(document: bytes) -> dict[str | None, Key]:
    """The signature keys by key id. ValueError if there is none."""
    import jwt

    if len(document) > MAX_BYTES:
        raise ValueError(f"the document has more than {MAX_BYTES} bytes")
    found = json.loads(document)
    listed = found.get("keys") if isinstance(found, dict) else None
    if not isinstance(listed, list):
        raise ValueError("the document is not a JSON Web Key Set")
    keys: dict[str | None, Key] = {}
    for entry in listed:
        algorithms = _algorithms(entry) if isinstance(entry, dict) else frozenset()
        key_id = entry.get("kid") if algorithms else None
        if not algorithms or not (key_id is None or isinstance(key_id, str)):
            continue
        try:
            key = cast("PublicKey", jwt.PyJWK.from_dict(entry).key)
        except jwt.PyJWTError:
            continue  # of an algorithm that this library does not know
        keys[key_id] = Key(key, algorithms)
    if not keys:
        raise ValueError("the document has no key for signatures")
    return keys


def _algorithms(entry: dict[str, object]) -> frozenset[str]:
    """The algorithms of a key for signatures; none for other keys, and for private ones."""
    if entry.get("use", "sig") != "sig" or "d" in entry:
        return frozenset()
    possible: frozenset[str] = frozenset()
    if entry.get("kty") == "RSA":
        possible = RSA_ALGORITHMS
    elif entry.get("kty") == "EC":
        possible = frozenset(filter(None, (CURVES.get(str(entry.get("crv"))),)))
    named = entry.get("alg")
    return possible if named is None else possible & {str(named)}
