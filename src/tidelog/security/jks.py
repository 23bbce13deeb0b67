"""Reads JKS, the key store format of Java before PKCS12.

The digest at the end proves the password of the store. Each key is hidden with its own password: a stream of
SHA-1 digests, which is weak, so the file has to be kept as secret as an open key.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from functools import partial

from tidelog.security.der import Der, DerError
from tidelog.security.store_entries import KeyEntry, KeyStore, KeyStoreError, WrongPassword

MAGIC = b"\xfe\xed\xfe\xed"
DIGEST_SIZE = 20
PRIVATE_KEY, TRUSTED_CERTIFICATE = 1, 2
SUN_KEY_PROTECTOR = "1.3.6.1.4.1.42.2.17.1.1"
# Java mixes this text into the digest of every store.
_SALT = b"Mighty Aphrodite"


def read_jks(data: bytes, password: str | None) -> KeyStore:
    """The entries of a store. Without a password the digest is not checked.

    Raises WrongPassword, or KeyStoreError if the store is damaged.
    """
    body, digest = data[:-DIGEST_SIZE], data[-DIGEST_SIZE:]
    if password is not None:
        found = hashlib.sha1(_utf16(password) + _SALT + body).digest()
        if not hmac.compare_digest(found, digest):
            raise WrongPassword("the password is wrong, or the store is damaged")
    try:
        return _entries(_Reader(body))
    except (struct.error, UnicodeDecodeError, DerError) as error:
        raise KeyStoreError(f"the store is damaged: {error}") from None


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def number(self, kind: str) -> int:
        value: int
        (value,) = struct.unpack_from(kind, self._data, self._position)
        self._position += struct.calcsize(kind)
        return value

    def take(self, size: int) -> bytes:
        if size > len(self._data) - self._position:
            raise KeyStoreError("the store is damaged: it ends inside an entry")
        self._position += size
        return self._data[self._position - size : self._position]

    def text(self) -> str:
        return self.take(self.number(">H")).decode("utf-8", "surrogatepass")

    def block(self) -> bytes:
        return self.take(self.number(">I"))


def _entries(reader: _Reader) -> KeyStore:
    if reader.take(4) != MAGIC:
        raise KeyStoreError("this is no JKS store")
    version = reader.number(">I")
    if version not in (1, 2):
        raise KeyStoreError(f"version {version} of JKS is not known")
    keys: list[KeyEntry] = []
    certificates: list[bytes] = []

    def certificate() -> bytes:
        if version == 2:
            reader.text()  # X.509
        return reader.block()

    for _ in range(reader.number(">I")):
        kind, alias = reader.number(">I"), reader.text()
        reader.number(">Q")  # when it was made
        if kind == PRIVATE_KEY:
            hidden = _hidden_key(reader.block())
            chain = tuple(certificate() for _ in range(reader.number(">I")))
            keys.append(KeyEntry(alias, chain, partial(_open, hidden)))
        elif kind == TRUSTED_CERTIFICATE:
            certificates.append(certificate())
        else:
            raise KeyStoreError(f"the entry {alias!r} has the unknown kind {kind}")
    return KeyStore(tuple(keys), tuple(certificates))


def _hidden_key(data: bytes) -> bytes:
    algorithm, hidden = Der.parse(data).items()
    oid = algorithm.items()[0].oid
    if oid != SUN_KEY_PROTECTOR:
        raise KeyStoreError(f"a key is protected by the unknown algorithm {oid}")
    return hidden.octets


def _open(hidden: bytes, password: str) -> bytes:
    secret = _utf16(password)
    digest, body, check = hidden[:DIGEST_SIZE], hidden[DIGEST_SIZE:-DIGEST_SIZE], hidden[-DIGEST_SIZE:]
    key = bytearray()
    for start in range(0, len(body), DIGEST_SIZE):
        digest = hashlib.sha1(secret + digest).digest()
        key += bytes(a ^ b for a, b in zip(body[start : start + DIGEST_SIZE], digest, strict=False))
    if not hmac.compare_digest(hashlib.sha1(secret + key).digest(), check):
        raise WrongPassword("the password does not open the key")
    return bytes(key)


def _utf16(password: str) -> bytes:
    return password.encode("utf-16-be")
