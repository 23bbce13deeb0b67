"""PasswordEncoder: passwords in the tree, encrypted with password.encoder.secret as Kafka 3.9 does.

A text is a list of `name:value` pairs that says how it was made: a broker with other settings reads it, too,
if it has the secret.
"""

from __future__ import annotations

import os
from base64 import b64decode, b64encode
from dataclasses import dataclass

KEY_FACTORIES = {
    "PBKDF2WithHmacSHA512": "sha512",
    "PBKDF2WithHmacSHA256": "sha256",
    "PBKDF2WithHmacSHA1": "sha1",
}
CBC, GCM = "AES/CBC/PKCS5Padding", "AES/GCM/NoPadding"
KEY_BITS = (128, 192, 256)
SALT_BYTES = 256
TAG_BYTES = 16
MAX_ITERATIONS = 10_000_000
"""A text with more would keep the broker busy for seconds."""

_PARTS = frozenset(("keyFactoryAlgorithm", "cipherAlgorithm", "encryptedPassword", "salt"))


class NotDecodable(Exception):
    """The text was made with another secret, or is none of these texts."""


@dataclass(slots=True, frozen=True, repr=False)
class PasswordEncoder:
    """Encrypts with `secret`; decrypts with `secret` or `old_secret`."""

    secret: str
    old_secret: str | None = None
    key_factory: str = "PBKDF2WithHmacSHA512"
    cipher: str = CBC
    key_bits: int = 128
    iterations: int = 4096

    def encode(self, password: str) -> str:
        data = password.encode()
        salt = os.urandom(SALT_BYTES)
        key = _key(self.secret, salt, self.key_factory, self.iterations, self.key_bits)
        vector = os.urandom(12 if self.cipher == GCM else 16)
        parts = {
            "initializationVector": b64encode(vector).decode(),
            "keyLength": str(self.key_bits),
            "salt": b64encode(salt).decode(),
            "keyFactoryAlgorithm": self.key_factory,
            "cipherAlgorithm": self.cipher,
            "iterations": str(self.iterations),
            "passwordLength": str(len(data)),
            "encryptedPassword": b64encode(_encrypt(self.cipher, key, vector, data)).decode(),
        }
        if self.cipher == GCM:
            parts["authenticationTagLength"] = str(TAG_BYTES * 8)
        return ",".join(f"{name}:{value}" for name, value in parts.items())

    def decode(self, text: str) -> str:
        """The password. Raises NotDecodable."""
        for secret in (self.secret, self.old_secret):
            if secret is not None:
                try:
                    return _decode(secret, text)
                except NotDecodable:
                    continue
        raise NotDecodable("it was not encrypted with password.encoder.secret")


def is_encoded(text: str) -> bool:
    """Whether a text looks like one of these, so that it is no password itself."""
    names = {part.partition(":")[0] for part in text.split(",")}
    return names >= _PARTS


def _decode(secret: str, text: str) -> str:
    parts = dict(part.partition(":")[::2] for part in text.split(","))
    try:
        iterations, key_bits = int(parts["iterations"]), int(parts["keyLength"])
        if not 0 < iterations <= MAX_ITERATIONS or key_bits not in KEY_BITS:
            raise NotDecodable("its parameters are out of range")
        salt = b64decode(parts["salt"], validate=True)
        key = _key(secret, salt, parts["keyFactoryAlgorithm"], iterations, key_bits)
        vector = b64decode(parts["initializationVector"], validate=True)
        encrypted = b64decode(parts["encryptedPassword"], validate=True)
        data = _decrypt(parts["cipherAlgorithm"], key, vector, encrypted)
        if len(data) != int(parts["passwordLength"]):
            raise NotDecodable("its length differs")
        return data.decode()
    except (KeyError, ValueError):
        raise NotDecodable("it is not an encrypted password") from None


def _key(secret: str, salt: bytes, key_factory: str, iterations: int, key_bits: int) -> bytes:
    import hashlib

    return hashlib.pbkdf2_hmac(KEY_FACTORIES[key_factory], secret.encode(), salt, iterations, key_bits // 8)


def _encrypt(cipher: str, key: bytes, vector: bytes, data: bytes) -> bytes:
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    if cipher == GCM:
        return AESGCM(key).encrypt(vector, data, None)
    padding = 16 - len(data) % 16
    encryptor = Cipher(algorithms.AES(key), modes.CBC(vector)).encryptor()
    return encryptor.update(data + bytes([padding]) * padding) + encryptor.finalize()


def _decrypt(cipher: str, key: bytes, vector: bytes, data: bytes) -> bytes:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    if cipher == GCM:
        try:
            return AESGCM(key).decrypt(vector, data, None)
        except InvalidTag:
            raise NotDecodable("another secret") from None
    if cipher != CBC:
        raise NotDecodable(f"the cipher {cipher} is not served")
    decryptor = Cipher(algorithms.AES(key), modes.CBC(vector)).decryptor()
    padded = decryptor.update(data) + decryptor.finalize()
    padding = padded[-1] if padded else 0
    if not 1 <= padding <= 16 or padded[-padding:] != bytes([padding]) * padding:
        raise NotDecodable("another secret")
    return padded[:-padding]
