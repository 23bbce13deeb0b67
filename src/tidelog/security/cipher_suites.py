"""Names of cipher suites: settings have Java's (IANA's), OpenSSL has its own for TLS 1.2."""

from __future__ import annotations

import re

TLS13_SUITES = (
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
    "TLS_AES_128_GCM_SHA256",
    "TLS_AES_128_CCM_SHA256",
    "TLS_AES_128_CCM_8_SHA256",
)

_IANA = re.compile(r"TLS_([A-Z0-9_]+)_WITH_([A-Z0-9_]+)")
_DIGEST = re.compile(r"_(SHA\d*|MD5)$")


def openssl_name(suite: str) -> str:
    """OpenSSL's name of a suite of TLS 1.2. A name that is no name of IANA stays as it is.

    >>> openssl_name("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384")
    'ECDHE-RSA-AES256-GCM-SHA384'
    >>> openssl_name("TLS_RSA_WITH_AES_128_CBC_SHA")
    'AES128-SHA'
    """
    match = _IANA.fullmatch(suite)
    if match is None:
        return suite
    exchange, cipher = match.groups()
    # OpenSSL has no name for CBC, the old mode, nor for the only digest of these ciphers.
    cipher = cipher.replace("3DES_EDE_CBC", "DES-CBC3").replace("_CBC_", "_").replace("CCM_8", "CCM8")
    if "CHACHA20" in cipher:
        cipher = _DIGEST.sub("", cipher)
    cipher = re.sub(r"(AES|CAMELLIA)_(\d+)", r"\1\2", cipher).replace("_", "-")
    return cipher if exchange == "RSA" else f"{exchange.replace('_', '-')}-{cipher}"
