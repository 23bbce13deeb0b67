"""The mechanisms SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677), also for delegation tokens."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Generator

from tidelog.clients.sasl.credentials import Credentials
from tidelog.errors import SaslAuthenticationFailed

# The minimum of RFC 7677. With fewer rounds a recorded exchange is cheap to attack.
LEAST_ITERATIONS = 4096
MOST_ITERATIONS = 1_000_000
"""About a second of work. More could keep the client busy for minutes, and the broker has proven nothing yet.
Kafka's own users have 16384 at most."""


def scram_steps(
    credentials: Credentials, mechanism: str, nonce: str | None = None
) -> Generator[bytes, bytes, None]:
    """The SCRAM exchange: the password is not sent, and the broker proves that it knows it, too."""
    algorithm = "sha512" if mechanism == "SCRAM-SHA-512" else "sha256"
    nonce = nonce or secrets.token_urlsafe(24)
    name = credentials.username.replace("=", "=3D").replace(",", "=2C")
    extension = ",tokenauth=true" if credentials.is_token else ""
    first = f"n={name},r={nonce}{extension}"
    server_first = (yield f"n,,{first}".encode()).decode()
    answer = _attributes(server_first)
    refused = f"{mechanism}: the broker refused {credentials.username!r}"
    if "e" in answer:
        raise SaslAuthenticationFailed(f"{refused}: {answer['e']}")
    try:
        server_nonce, salt, rounds = answer["r"], base64.b64decode(answer["s"]), int(answer["i"])
    except (KeyError, ValueError):
        raise SaslAuthenticationFailed(
            f"{mechanism}: the broker's answer lacks nonce, salt or count"
        ) from None
    if not server_nonce.startswith(nonce) or server_nonce == nonce:
        problem = "the broker answered with a nonce that does not follow ours"
        raise SaslAuthenticationFailed(f"{mechanism}: {problem}")
    if rounds < LEAST_ITERATIONS:
        problem = f"the broker asks for {rounds} rounds; at least {LEAST_ITERATIONS} are safe"
        raise SaslAuthenticationFailed(f"{mechanism}: {problem}")
    if rounds > MOST_ITERATIONS:
        problem = f"the broker asks for {rounds} rounds; at most {MOST_ITERATIONS} are done"
        raise SaslAuthenticationFailed(f"{mechanism}: {problem}")
    salted = hashlib.pbkdf2_hmac(algorithm, credentials.password.encode(), salt, rounds)
    last = f"c=biws,r={server_nonce}"
    exchange = f"{first},{server_first},{last}".encode()
    client_key = hmac.digest(salted, b"Client Key", algorithm)
    signature = hmac.digest(hashlib.new(algorithm, client_key).digest(), exchange, algorithm)
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(client_key, signature, strict=True))).decode()
    final = _attributes((yield f"{last},p={proof}".encode()).decode())
    if "e" in final:
        raise SaslAuthenticationFailed(f"{refused}: {final['e']}")
    expected = hmac.digest(hmac.digest(salted, b"Server Key", algorithm), exchange, algorithm)
    if not hmac.compare_digest(base64.b64encode(expected), final.get("v", "").encode()):
        raise SaslAuthenticationFailed(f"{mechanism}: the broker does not know the password")


def _attributes(text: str) -> dict[str, str]:
    return {part[0]: part[2:] for part in text.split(",") if part[1:2] == "="}
