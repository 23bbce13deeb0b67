"""Reads PKCS12 key stores, as keytool, OpenSSL and Bouncy Castle write them.

Libraries return one key and hide which certificates the store marks as trusted; Java uses both, so the bags
are read here. The ciphers come from `cryptography`.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tidelog.security.der import INTEGER, SET, Der, DerError
from tidelog.security.pbe import decrypt, derive
from tidelog.security.store_entries import KeyEntry, KeyStore, KeyStoreError, WrongPassword

DATA = "1.2.840.113549.1.7.1"
ENCRYPTED_DATA = "1.2.840.113549.1.7.6"
_BAGS = "1.2.840.113549.1.12.10.1."
KEY_BAG, SHROUDED_KEY_BAG, CERTIFICATE_BAG, NESTED_BAGS = (_BAGS + kind for kind in "1236")
X509 = "1.2.840.113549.1.9.22.1"
FRIENDLY_NAME, LOCAL_KEY_ID = "1.2.840.113549.1.9.20", "1.2.840.113549.1.9.21"
TRUSTED = "2.16.840.1.113894.746875.1.1"  # Java's mark of a trusted certificate
DIGESTS = {
    "1.3.14.3.2.26": "sha1",
    "2.16.840.1.101.3.4.2.4": "sha224",
    "2.16.840.1.101.3.4.2.1": "sha256",
    "2.16.840.1.101.3.4.2.2": "sha384",
    "2.16.840.1.101.3.4.2.3": "sha512",
}
MAC_KEY = 3
"""The purpose of a derived key: to check the store."""


def read_pkcs12(data: bytes, password: str | None) -> KeyStore:
    """The entries of a store. Raises WrongPassword, or KeyStoreError if the store is damaged."""
    try:
        return _store(list(_bags(data, password)))
    except DerError as error:
        raise KeyStoreError(f"the store is damaged: {error}") from None
    except KeyStoreError:
        raise
    except (IndexError, ValueError):
        raise KeyStoreError("the store is damaged") from None


@dataclass(slots=True, frozen=True)
class _Bag:
    kind: str
    content: bytes = field(repr=False)
    name: str = ""
    key_id: bytes | None = None
    is_trusted: bool = False


def _bags(data: bytes, password: str | None) -> Iterator[_Bag]:
    _, content, *mac = Der.parse(data).items()
    kind, wrapped = content.items()
    if kind.oid != DATA:
        raise KeyStoreError("a store that is signed with a key is not supported")
    safe = wrapped.inner().octets
    if mac and password is not None:
        _check(mac[0], safe, password)
    for info in Der.parse(safe).items():
        kind, wrapped = info.items()
        if kind.oid == DATA:
            yield from _contents(Der.parse(wrapped.inner().octets))
        elif kind.oid == ENCRYPTED_DATA:
            if password is None:
                raise WrongPassword("the store has a password")
            _, encrypted = wrapped.inner().items()
            _, algorithm, secret = encrypted.items()
            yield from _contents(Der.parse(decrypt(algorithm, secret.octets, password)))
        else:
            raise KeyStoreError(f"content of the type {kind.oid} is not supported")


def _check(mac: Der, safe: bytes, password: str) -> None:
    digest_info, salt, *iterations = mac.items()
    algorithm, expected = digest_info.items()
    digest = DIGESTS.get(algorithm.items()[0].oid)
    if digest is None:
        raise KeyStoreError(f"the check of the store uses the unknown digest {algorithm.items()[0].oid}")
    rounds = iterations[0].number if iterations else 1
    key = derive(password, salt.octets, rounds, MAC_KEY, hashlib.new(digest).digest_size, digest)
    if not hmac.compare_digest(hmac.digest(key, safe, digest), expected.octets):
        raise WrongPassword("the password is wrong, or the store is damaged")


def _contents(safe: Der) -> Iterator[_Bag]:
    for bag in safe.items():
        kind, wrapped, *attributes = bag.items()
        if kind.oid == NESTED_BAGS:
            yield from _contents(wrapped.inner())
            continue
        yield _bag(kind.oid, wrapped.inner(), attributes)


def _bag(kind: str, value: Der, attributes: list[Der]) -> _Bag:
    content, name, key_id, is_trusted = value.encoded, "", None, False
    if kind == CERTIFICATE_BAG:
        form, certificate = value.items()
        if form.oid != X509:
            raise KeyStoreError(f"a certificate has the unknown form {form.oid}")
        content = certificate.inner().octets
    for attribute in attributes[0].items(SET) if attributes else ():
        oid, values = attribute.items()
        if oid.oid == FRIENDLY_NAME:
            name = values.items(SET)[0].content.decode("utf-16-be")
        elif oid.oid == LOCAL_KEY_ID:
            key_id = values.items(SET)[0].octets
        elif oid.oid == TRUSTED:
            is_trusted = True
    return _Bag(kind, content, name, key_id, is_trusted)


def _store(bags: list[_Bag]) -> KeyStore:
    found = [bag for bag in bags if bag.kind == CERTIFICATE_BAG]
    keys = [bag for bag in bags if bag.kind in (KEY_BAG, SHROUDED_KEY_BAG)]
    entries = tuple(KeyEntry(bag.name, _chain(bag, found), _opener(bag)) for bag in keys)
    trusted = tuple(bag.content for bag in found if bag.is_trusted)
    if not keys and not trusted:
        # OpenSSL does not mark certificates. In a store without keys they have no other purpose.
        trusted = tuple(bag.content for bag in found)
    return KeyStore(entries, trusted)


def _opener(bag: _Bag) -> Callable[[str], bytes]:
    if bag.kind == KEY_BAG:
        return lambda password: bag.content

    def opened(password: str) -> bytes:
        algorithm, secret = Der.parse(bag.content).items()
        key = decrypt(algorithm, secret.octets, password)
        try:
            Der.parse(key).items()
        except DerError:
            raise WrongPassword("the password does not open the key") from None
        return key

    return opened


def _chain(key: _Bag, certificates: list[_Bag]) -> tuple[bytes, ...]:
    """The certificate of a key, then those of its authorities as far as the store has them."""
    own = [bag for bag in certificates if bag.key_id is not None and bag.key_id == key.key_id]
    if not own:
        return ()
    chain = [own[0].content]
    by_subject = {_names(bag.content)[1]: bag.content for bag in certificates}
    while (above := by_subject.get(_names(chain[-1])[0])) is not None and above not in chain:
        chain.append(above)
    return tuple(chain)


def _names(certificate: bytes) -> tuple[bytes, bytes]:
    """The issuer and the subject, as DER."""
    fields = Der.parse(certificate).items()[0].items()
    if fields[0].tag != INTEGER:
        fields = fields[1:]  # the version
    return fields[2].encoded, fields[4].encoded
