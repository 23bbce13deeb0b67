"""Encryption with passwords, as PKCS12 stores use it: PBES2, and the older schemes with 3DES and RC2."""

from __future__ import annotations

import hashlib

from tidelog.security.der import SEQUENCE, Der
from tidelog.security.rc2 import decrypt_cbc
from tidelog.security.store_entries import KeyStoreError, WrongPassword

PBES2, PBKDF2 = "1.2.840.113549.1.5.13", "1.2.840.113549.1.5.12"
PRFS = {f"1.2.840.113549.2.{number}": name for number, name in
        ((7, "sha1"), (8, "sha224"), (9, "sha256"), (10, "sha384"), (11, "sha512"))}  # fmt: skip
AES_KEYS = {f"2.16.840.1.101.3.4.1.{number}": size for number, size in ((2, 16), (22, 24), (42, 32))}
DES_EDE3 = "1.2.840.113549.3.7"
_OLD = "1.2.840.113549.1.12.1."
OLD_SCHEMES = {
    _OLD + "3": ("3DES", 24),
    _OLD + "4": ("3DES", 16),
    _OLD + "5": ("RC2", 16),
    _OLD + "6": ("RC2", 5),
}
MAX_ITERATIONS = 5_000_000  # Java's limit

CIPHER_KEY, CIPHER_IV = 1, 2


def decrypt(algorithm: Der, data: bytes, password: str) -> bytes:
    """Decrypt with the algorithm that stands beside the data. Raises WrongPassword."""
    kind, parameters = algorithm.items()
    if kind.oid == PBES2:
        cipher, key, iv = _pbes2(parameters, password)
    elif kind.oid in OLD_SCHEMES:
        cipher, size = OLD_SCHEMES[kind.oid]
        salt, rounds = parameters.items()
        key = derive(password, salt.octets, rounds.number, CIPHER_KEY, size, "sha1")
        iv = derive(password, salt.octets, rounds.number, CIPHER_IV, 8, "sha1")
    else:
        raise KeyStoreError(f"encryption with {kind.oid} is not supported")
    if not data or len(data) % len(iv):
        raise KeyStoreError("the store is damaged: a cipher text has a part of a block")
    padded = decrypt_cbc(key, iv, data) if cipher == "RC2" else _decrypted(cipher, key, iv, data)
    padding = padded[-1]
    if not 0 < padding <= len(iv) or padded[-padding:] != bytes([padding]) * padding:
        raise WrongPassword("the password is wrong, or the store is damaged")
    return padded[:-padding]


def _pbes2(parameters: Der, password: str) -> tuple[str, bytes, bytes]:
    """The cipher, its key and its initialization vector."""
    derivation, encryption = parameters.items()
    kind, settings = derivation.items()
    if kind.oid != PBKDF2:
        raise KeyStoreError(f"keys derived with {kind.oid} are not supported")
    salt, rounds, *rest = settings.items()
    prf = next((PRFS.get(item.items()[0].oid) for item in rest if item.tag == SEQUENCE), "sha1")
    if prf is None:
        raise KeyStoreError("a key is derived with an unknown digest")
    cipher, iv = encryption.items()
    size = 24 if cipher.oid == DES_EDE3 else AES_KEYS.get(cipher.oid)
    if size is None:
        raise KeyStoreError(f"encryption with {cipher.oid} is not supported")
    key = hashlib.pbkdf2_hmac(prf, password.encode(), salt.octets, _allowed(rounds.number), size)
    return "3DES" if cipher.oid == DES_EDE3 else "AES", key, iv.octets


def _allowed(rounds: int) -> int:
    if not 0 < rounds <= MAX_ITERATIONS:
        raise KeyStoreError(f"{rounds} iterations are not supported; at most {MAX_ITERATIONS} are")
    return rounds


def _decrypted(cipher: str, key: bytes, iv: bytes, data: bytes) -> bytes:
    from cryptography.hazmat.decrepit.ciphers.algorithms import TripleDES
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import AES
    from cryptography.hazmat.primitives.ciphers.modes import CBC

    # 3DES with two keys uses the first one again.
    algorithm = AES(key) if cipher == "AES" else TripleDES((key + key[:8])[:24])
    work = Cipher(algorithm, CBC(iv)).decryptor()
    return work.update(data) + work.finalize()


def derive(password: str, salt: bytes, rounds: int, purpose: int, size: int, digest: str) -> bytes:
    """The key derivation of PKCS12 (RFC 7292, B.2); `purpose` is 1 for keys, 2 for IVs, 3 for checks."""
    hashing = getattr(hashlib, digest)
    block = hashing().block_size
    secret = password.encode("utf-16-be") + b"\0\0"
    mixed = _filled(salt, block) + _filled(secret, block)
    diversifier = bytes([purpose]) * block
    key = b""
    while True:
        hashed: bytes = diversifier + mixed
        for _ in range(_allowed(rounds)):
            hashed = hashing(hashed).digest()
        key += hashed
        if len(key) >= size:
            return key[:size]
        addend = int.from_bytes(_filled(hashed, block)[:block], "big") + 1
        pieces = (mixed[start : start + block] for start in range(0, len(mixed), block))
        mixed = b"".join(
            ((int.from_bytes(piece, "big") + addend) % (1 << 8 * block)).to_bytes(block, "big")
            for piece in pieces
        )


def _filled(data: bytes, block: int) -> bytes:
    """The data repeated until it fills blocks."""
    size = -(-len(data) // block) * block
    return (data * (size // len(data) + 1))[:size] if data else b""
