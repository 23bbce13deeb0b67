"""Names of cipher suites: settings have Java's (IANA's), OpenSSL has its own for TLS 1.2."""

from __future__ import annotations

import ctypes
import re
import ssl
import sys

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


def choose_tls13_suites(context: ssl.SSLContext, suites: list[str]) -> bool:
    """Allow only these suites of TLS 1.3, in this order. False if this Python cannot choose among them.

    Before Python 3.15 the ssl module has no function for that, so OpenSSL's own is called.
    """
    if hasattr(context, "set_ciphersuites"):
        context.set_ciphersuites(":".join(suites))
    elif sys.implementation.name == "cpython":
        try:
            _call_openssl(context, ":".join(suites))
        except (OSError, AttributeError):
            return False
    return _tls13_suites(context) == suites


def _tls13_suites(context: ssl.SSLContext) -> list[str]:
    return [cipher["name"] for cipher in context.get_ciphers() if cipher["name"] in TLS13_SUITES]


def _call_openssl(context: ssl.SSLContext, suites: str) -> None:
    import _ssl

    library = ctypes.CDLL(_ssl.__file__)  # also finds the functions of the OpenSSL that it is linked with
    function = library.SSL_CTX_set_ciphersuites
    function.argtypes = (ctypes.c_void_p, ctypes.c_char_p)
    # CPython's SSLContext begins with the pointer to OpenSSL's context, behind the header of every object.
    address = ctypes.c_void_p.from_address(id(context) + object.__basicsize__)
    function(address, suites.encode())
