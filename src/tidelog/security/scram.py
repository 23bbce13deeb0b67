"""SCRAM credentials (RFC 5802): how they are made of a password, and their text in the tree.

A credential has a salt and two keys, from which nobody can log in as the user. The broker never needs the
password; PBKDF2, which is slow on purpose, is for clients and for changes of a password alone.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

SALT_BYTES: Final = 24
MAX_ITERATIONS: Final = 16384

_BASE64 = r"(?:[a-zA-Z0-9/+]{4})*(?:[a-zA-Z0-9/+]{3}=|[a-zA-Z0-9/+]{2}==)?"
_CREDENTIAL = re.compile(
    rf"salt=(?P<salt>{_BASE64}),stored_key=(?P<stored>{_BASE64}),"
    rf"server_key=(?P<server>{_BASE64}),iterations=(?P<iterations>[0-9]{{1,9}})"
)


class ScramAlgorithm(IntEnum):
    """The hash algorithm of a SCRAM mechanism, with the mechanism's number in AlterUserScramCredentials."""

    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2

    @property
    def mechanism_name(self) -> str:
        return self.name.replace("_", "-")

    @property
    def digest(self) -> str:
        return "sha512" if self is ScramAlgorithm.SCRAM_SHA_512 else "sha256"

    @property
    def key_bytes(self) -> int:
        return 64 if self is ScramAlgorithm.SCRAM_SHA_512 else 32

    @property
    def min_iterations(self) -> int:
        """The minimum of RFC 7677; with fewer a stolen credential is cheap to attack."""
        return 4096


BY_NAME: Final = {mechanism.mechanism_name: mechanism for mechanism in ScramAlgorithm}


@dataclass(slots=True, frozen=True)
class ScramCredential:
    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int

    def format(self) -> str:
        """The text of the tree."""
        salt, stored, server = (
            base64.b64encode(part).decode() for part in (self.salt, self.stored_key, self.server_key)
        )
        return f"salt={salt},stored_key={stored},server_key={server},iterations={self.iterations}"

    @classmethod
    def parse(cls, text: str) -> ScramCredential:
        """Raises ValueError, without the text, if it is not a credential."""
        match = _CREDENTIAL.fullmatch(text)
        if match is None:
            raise ValueError("not a SCRAM credential")
        try:
            salt, stored, server = (
                base64.b64decode(match[name], validate=True) for name in ("salt", "stored", "server")
            )
        except binascii.Error:
            raise ValueError("not a SCRAM credential") from None
        return cls(salt, stored, server, int(match["iterations"]))


def salted_password(password: str, mechanism: ScramAlgorithm, salt: bytes, iterations: int) -> bytes:
    """Hi(password, salt, iterations), which takes milliseconds."""
    return hashlib.pbkdf2_hmac(mechanism.digest, password.encode(), salt, iterations)


def credential_of_salted(
    salted: bytes, mechanism: ScramAlgorithm, salt: bytes, iterations: int
) -> ScramCredential:
    """The credential of a salted password, as AlterUserScramCredentials has it."""
    digest = mechanism.digest
    stored = hashlib.new(digest, hmac.digest(salted, b"Client Key", digest)).digest()
    return ScramCredential(salt, stored, hmac.digest(salted, b"Server Key", digest), iterations)


def scram_credential(
    password: str, mechanism: ScramAlgorithm, iterations: int = 4096, *, salt: bytes | None = None
) -> ScramCredential:
    """The credential of a password, with a random salt unless one is given."""
    salt = secrets.token_bytes(SALT_BYTES) if salt is None else salt
    return credential_of_salted(
        salted_password(password, mechanism, salt, iterations), mechanism, salt, iterations
    )
