"""The entries of a key store of any format."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


class KeyStoreError(ValueError):
    """A store is damaged, or uses something that is not supported."""


class WrongPassword(KeyStoreError):
    """The password does not open the store or a key; None was given if there is one."""


@dataclass(slots=True, frozen=True)
class KeyEntry:
    """A private key and its certificates as DER, the key's own first.

    `open` returns the key as PKCS 8 for the password of the key. It raises WrongPassword.
    """

    alias: str
    chain: tuple[bytes, ...] = field(repr=False)
    open: Callable[[str], bytes] = field(repr=False)


@dataclass(slots=True, frozen=True)
class KeyStore:
    """`certificates` are the entries that are trusted, as DER."""

    keys: tuple[KeyEntry, ...]
    certificates: tuple[bytes, ...] = field(repr=False)

    @property
    def trusted(self) -> tuple[bytes, ...]:
        """What Java's PKIX trusts: the entries with certificates, and the own certificates of keys."""
        return (*self.certificates, *(entry.chain[0] for entry in self.keys if entry.chain))
