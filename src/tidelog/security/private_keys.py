"""Private keys: their type, and their encryption before one is written to a disk."""

from __future__ import annotations

import secrets

from tidelog.security.der import Der

_TYPES = {"1.2.840.113549.1.1.1": "RSA", "1.2.840.113549.1.1.10": "RSA-PSS", "1.2.840.10045.2.1": "EC"}


def key_type(key: bytes) -> str:
    """The type of a key in PKCS 8: RSA, EC, or the object identifier of another one."""
    oid = Der.parse(key).items()[1].items()[0].oid
    return _TYPES.get(oid, oid)


def encrypted_key(key: str) -> tuple[str, str]:
    """The PEM text of a key, encrypted with a new password, and that password."""
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        Encoding,
        PrivateFormat,
        load_pem_private_key,
    )

    password = secrets.token_urlsafe(32)
    encryption = BestAvailableEncryption(password.encode())
    opened = load_pem_private_key(key.encode(), None)
    return opened.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption).decode(), password
