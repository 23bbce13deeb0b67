"""Logins and access rules for the benchmark, by this project's protocol library, on any broker."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import socket
import ssl
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar

from load import Load
from wire import WireError

from tidelog.clients.connection import answer_body, request_frame
from tidelog.protocol.message import Message
from tidelog.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
)
from tidelog.protocol.messages.create_acls import CreateAclsRequest, CreateAclsResponse
from tidelog.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from tidelog.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

R = TypeVar("R", bound=Message)

MECHANISM: Final = "SCRAM-SHA-512"
SCRAM_SHA_512: Final = 2
DIGEST: Final = "sha512"
ITERATIONS: Final = 4096
USER: Final = "bench"
SALT: Final = b"0123456789abcdef01234567"
TIMEOUT: Final = 60.0
RULES_PER_REQUEST: Final = 1_000
TOPIC, LITERAL, PREFIXED = 2, 3, 4
WRITE, ALLOW = 4, 3


@dataclass(slots=True, frozen=True)
class Keys:
    """What a client derives from its password. It is slow on purpose, so that it is done once."""

    salted: bytes
    client: bytes
    stored: bytes

    @classmethod
    def of(cls, password: bytes) -> Keys:
        salted = hashlib.pbkdf2_hmac(DIGEST, password, SALT, ITERATIONS)
        client = hmac.digest(salted, b"Client Key", DIGEST)
        return cls(salted, client, hashlib.new(DIGEST, client).digest())


class Connection:
    """One blocking connection, with TLS if a context is given."""

    def __init__(self, host: str, port: int, context: ssl.SSLContext | None = None) -> None:
        plain = socket.create_connection((host, port), timeout=TIMEOUT)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = plain if context is None else context.wrap_socket(plain, server_hostname="localhost")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def ask(self, request: Message, answer: type[R], version: int) -> R:
        self._socket.sendall(request_frame(request, version, 1, "bench"))
        (size,) = struct.unpack(">i", self._receive(4))
        return answer.decode(answer_body(type(request), version, self._receive(size)), version)

    def _receive(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = self._socket.recv(size - len(data))
            if not piece:
                raise WireError("the broker closed the connection")
            data += piece
        return bytes(data)

    def log_in(self, keys: Keys) -> None:
        """The exchange of SCRAM. Raises WireError if the broker refuses it."""
        shaken = self.ask(SaslHandshakeRequest(mechanism=MECHANISM), SaslHandshakeResponse, 1)
        if shaken.error_code:
            raise WireError(f"the handshake of {MECHANISM} answered with error {shaken.error_code}")
        first = f"n={USER},r={secrets.token_urlsafe(18)}"
        server_first = self._token(f"n,,{first}".encode()).decode()
        nonce = dict(part.split("=", 1) for part in server_first.split(","))["r"]
        final = f"c=biws,r={nonce}"
        signature = hmac.digest(keys.stored, f"{first},{server_first},{final}".encode(), DIGEST)
        proof = base64.b64encode(bytes(a ^ b for a, b in zip(keys.client, signature, strict=True)))
        self._token(final.encode() + b",p=" + proof)

    def _token(self, token: bytes) -> bytes:
        answer = self.ask(SaslAuthenticateRequest(auth_bytes=token), SaslAuthenticateResponse, 1)
        if answer.error_code:
            raise WireError(f"the login answered with error {answer.error_code}: {answer.error_message}")
        return bytes(answer.auth_bytes)


def add_user(host: str, port: int, keys: Keys) -> None:
    wanted = AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
        name=USER, mechanism=SCRAM_SHA_512, iterations=ITERATIONS, salt=SALT, salted_password=keys.salted
    )
    with Connection(host, port) as connection:
        request = AlterUserScramCredentialsRequest(upsertions=[wanted])
        answer = connection.ask(request, AlterUserScramCredentialsResponse, 0)
    if error := answer.results[0].error_code:
        raise WireError(f"the user was not added: error {error} {answer.results[0].error_message}")


def add_rules(host: str, port: int, rules: Sequence[tuple[str, int, str]]) -> None:
    """Allow principals to write to topics: name, kind of pattern, principal."""
    creations = [
        CreateAclsRequest.AclCreation(
            resource_type=TOPIC,
            resource_name=name,
            resource_pattern_type=pattern,
            principal=principal,
            host="*",
            operation=WRITE,
            permission_type=ALLOW,
        )
        for name, pattern, principal in rules
    ]
    with Connection(host, port) as connection:
        for begin in range(0, len(creations), RULES_PER_REQUEST):
            request = CreateAclsRequest(creations=creations[begin : begin + RULES_PER_REQUEST])
            answer = connection.ask(request, CreateAclsResponse, 3)
            for result in answer.results:
                if result.error_code:
                    raise WireError(f"a rule was not added: error {result.error_code} {result.error_message}")


def rules_for(topic: str, count: int) -> list[tuple[str, int, str]]:
    """Rules of other topics and users, half of them for prefixes; the last one is for the load itself."""
    others = [
        (f"team-{number}-", PREFIXED, f"User:u{number % 100}")
        if number % 2
        else (f"topic-{number}", LITERAL, f"User:u{number % 100}")
        for number in range(count - 1)
    ]
    return [*others, (topic, LITERAL, "User:ANONYMOUS")]


def connect_often(host: str, port: int, trusted: Path, count: int, keys: Keys | None) -> Load:
    """Connections by TLS, one after the other, each with a full handshake; with keys each logs in, too."""
    context = ssl.create_default_context(cafile=str(trusted))
    begun = time.monotonic()
    for _ in range(count):
        with Connection(host, port, context) as connection:
            if keys is not None:
                connection.log_in(keys)
    return Load(count, 0, time.monotonic() - begun, 0.0, 0.0, 0.0, 0.0)
