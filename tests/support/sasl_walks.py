"""Walks through the states of SASL authentication: what is sent, and what a broker answers.

Kafka's answers are in tests/data/sasl-walks.json; tests/kafka/test_sasl_walks.py records and compares them.
The broker needs the users of `PLAIN_USERS` and `SCRAM_USERS`, and two listeners: one with all mechanisms of
`MECHANISMS`, and one with PLAIN and SCRAM-SHA-256 whose sessions end after REAUTH_MS.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import time
from collections.abc import Callable

from tests.support.raw import ConnectionClosed, NoAnswer, RawConnection
from tidelog.protocol.api import API
from tidelog.protocol.json import Json, to_json
from tidelog.protocol.message import Message
from tidelog.protocol.messages.api_versions import ApiVersionsRequest
from tidelog.protocol.messages.metadata import MetadataRequest
from tidelog.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from tidelog.protocol.messages.sasl_handshake import SaslHandshakeRequest

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
PLAIN_USERS = {"admin": "admin-secret", "alice": "alice-secret", "bob": "bob-secret"}
SCRAM_USERS = {"carol": "carol-secret", "dave": "dave-secret"}
ITERATIONS = 4096
REAUTH_MS = 3000
TOKEN_SECONDS = 2
OPEN_SECONDS = 0.1
MAX_RECEIVE = 20_000
NONCE = "abcdefghijklmnopqrstuvwx"

PLAIN = b"\0alice\0alice-secret"
Answer = dict[str, Json] | str
NORMAL = (
    (re.compile(re.escape(NONCE) + r"[\x21-\x2b\x2d-\x7e]+"), NONCE + "<nonce>"),
    (re.compile(r",s=[A-Za-z0-9+/=]+"), ",s=<salt>"),
    (re.compile(r"^v=[A-Za-z0-9+/=]+"), "v=<signature>"),
)


class Walk:
    """One connection; `answers` has what came back, in order."""

    def __init__(self, address: str) -> None:
        self._connection = RawConnection(address, client_id="walk", timeout=5.0)
        self.answers: list[Answer] = []
        self.token = b""

    def ask(self, request: Message, version: int) -> None:
        if self.is_over:
            return
        try:
            answer = self._connection.call(request, version)
        except ConnectionClosed:
            self.answers.append("closed")
            return
        except NoAnswer:
            self.answers.append("silence")
            return
        self.answers.append(self._plain(answer, version))

    def _plain(self, answer: Message, version: int) -> dict[str, Json]:
        if hasattr(answer, "api_keys"):
            keys = [(key.api_key, key.min_version, key.max_version) for key in answer.api_keys]
            login = [list(key) for key in keys if key[0] in (17, 18, 36)]
            return {"errorCode": answer.error_code, "keys": login if version or len(keys) > 1 else len(keys)}
        if hasattr(answer, "brokers"):
            return {"metadata": "answered"}
        found = to_json(answer, version)
        if hasattr(answer, "auth_bytes"):
            self.token = bytes(answer.auth_bytes)
            found["authBytes"] = normal(self.token)
            lifetime = found.get("sessionLifetimeMs")
            if isinstance(lifetime, int) and lifetime > 2 * REAUTH_MS:
                found["sessionLifetimeMs"] = "long"
            elif isinstance(lifetime, int) and lifetime not in (0, REAUTH_MS):
                found["sessionLifetimeMs"] = "what is left of the token"
        if isinstance(found.get("mechanisms"), list):
            found["mechanisms"] = sorted(map(str, found["mechanisms"]))  # type: ignore[arg-type]
        return found

    def handshake(self, mechanism: str, version: int = 1) -> None:
        self.ask(SaslHandshakeRequest(mechanism=mechanism), version)

    def authenticate(self, token: bytes, version: int = 2) -> None:
        self.ask(SaslAuthenticateRequest(auth_bytes=token), version)

    def versions(self, version: int = 3, name: str = "walk") -> None:
        self.ask(ApiVersionsRequest(client_software_name=name, client_software_version="1"), version)

    def raw(self, payload: bytes, *, answered: bool = True) -> None:
        """Bytes in a frame without a Kafka header, as after a handshake of version 0."""
        self.send(len(payload).to_bytes(4, "big") + payload, answered=answered)

    def send(self, data: bytes, *, answered: bool = True) -> None:
        if self.is_over:
            return
        try:
            self._connection.send_bytes(data)
            if answered:
                self.token = bytes(self._connection.receive_frame())
                self.answers.append(normal(self.token))
        except ConnectionClosed:
            self.answers.append("closed")
        except NoAnswer:
            self.answers.append("silence")

    def metadata(self) -> None:
        self.ask(MetadataRequest(topics=[]), 9)

    def ended(self) -> None:
        """Note whether the broker closed the connection, without sending more."""
        if self.is_over:
            return
        try:
            self._connection.receive_frame(OPEN_SECONDS)
            self.answers.append("more")
        except ConnectionClosed:
            self.answers.append("closed")
        except NoAnswer:
            self.answers.append("open")

    @property
    def is_over(self) -> bool:
        return bool(self.answers) and self.answers[-1] == "closed"

    def close(self) -> None:
        self._connection.close()


def normal(token: bytes) -> str:
    """A token as text, without what differs between two exchanges."""
    text = token.decode("latin-1")
    for pattern, replacement in NORMAL:
        text = pattern.sub(replacement, text)
    return text


def scram_first(user: str, gs2: str = "n,,", extension: str = "") -> bytes:
    return f"{gs2}n={user},r={NONCE}{extension}".encode()


def scram_final(
    first: bytes, server_first: bytes, password: str, *, digest: str = "sha256", **changed: str
) -> bytes:
    """The client's last message; `changed` replaces its nonce (r), channel binding (c) or proof (p)."""
    gs2, bare = re.match(rb"([^,]*,[^,]*,)(.*)", first, re.DOTALL).groups()  # type: ignore[union-attr]
    fields = dict(part.split("=", 1) for part in server_first.decode().split(","))
    salted = hashlib.pbkdf2_hmac(digest, password.encode(), base64.b64decode(fields["s"]), int(fields["i"]))
    binding = changed.get("c", base64.b64encode(gs2).decode())
    last = f"c={binding},r={changed.get('r', fields['r'])}"
    message = b",".join((bare, server_first, last.encode()))
    key = hmac.digest(salted, b"Client Key", digest)
    signature = hmac.digest(hashlib.new(digest, key).digest(), message, digest)
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(key, signature, strict=True))).decode()
    return f"{last},p={changed.get('p', proof)}".encode()


def unsecured_token(claims: dict[str, object]) -> str:
    def part(value: dict[str, object]) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    return f"{part({'alg': 'none'})}.{part(claims)}."


def oauth(token: str, gs2: str = "n,,", extensions: str = "") -> bytes:
    return f"{gs2}\x01auth=Bearer {token}\x01{extensions}\x01".encode()


def fresh(**claims: object) -> str:
    now = time.time()
    return unsecured_token({"sub": "erin", "iat": now - 1, "exp": now + 3600} | claims)


def ending() -> str:
    """A token that soon expires."""
    return fresh(exp=time.time() + TOKEN_SECONDS)


def _scram(
    walk: Walk, user: str, password: str, gs2: str = "n,,", extension: str = "", **changed: str
) -> None:
    first = scram_first(user, gs2, extension)
    walk.handshake("SCRAM-SHA-256")
    walk.authenticate(first)
    if b",s=" not in walk.token:
        return
    walk.authenticate(scram_final(first, walk.token, password, **changed))
    walk.ended()


def _plain(walk: Walk, token: bytes, version: int = 2) -> None:
    walk.handshake("PLAIN")
    walk.authenticate(token, version)
    walk.ended()


def _raw_plain(walk: Walk, token: bytes) -> None:
    walk.handshake("PLAIN", 0)
    walk.raw(token)
    walk.metadata()


def _then(*steps: Callable[[Walk], None]) -> Callable[[Walk], None]:
    def walk_on(walk: Walk) -> None:
        for step in steps:
            step(walk)

    return walk_on


def _oauth(walk: Walk, token: str) -> None:
    walk.handshake("OAUTHBEARER")
    walk.authenticate(oauth(token))


def _pause(seconds: float) -> Callable[[Walk], None]:
    return lambda _: time.sleep(seconds)  # the broker's own clock has to pass


def _header(key: int, version: int) -> bytes:
    return key.to_bytes(2, "big", signed=True) + version.to_bytes(2, "big") + b"\0\0\0\1\0\4walk"


ALL, REAUTH = "all", "reauth"
WALKS: dict[str, tuple[str, Callable[[Walk], None]]] = {
    "versions before the handshake": (
        ALL,
        _then(lambda w: w.versions(), lambda w: _plain(w, PLAIN), Walk.metadata),
    ),
    "versions of an unknown version, then of a known one": (
        ALL,
        _then(
            lambda w: w.send(
                (lambda p: len(p).to_bytes(4, "big") + p)(_header(18, 99) + b"\0\5walk\0021\0"), answered=True
            ),
            lambda w: w.versions(),
            lambda w: w.handshake("PLAIN"),
        ),
    ),
    "versions twice": (ALL, _then(lambda w: w.versions(), lambda w: w.versions())),
    "versions with a bad name, then a good one": (
        ALL,
        _then(lambda w: w.versions(name="-"), lambda w: w.versions()),
    ),
    "versions after the handshake": (
        ALL,
        _then(lambda w: w.handshake("PLAIN"), lambda w: w.versions(), Walk.ended),
    ),
    "metadata first": (ALL, Walk.metadata),
    "metadata after versions": (ALL, _then(lambda w: w.versions(), Walk.metadata)),
    "metadata after the handshake": (ALL, _then(lambda w: w.handshake("PLAIN"), Walk.metadata, Walk.ended)),
    "authenticate first": (ALL, lambda w: w.authenticate(PLAIN)),
    "authenticate after versions": (ALL, _then(lambda w: w.versions(), lambda w: w.authenticate(PLAIN))),
    "an unknown key": (ALL, lambda w: w.raw(_header(9999, 0))),
    "garbage first": (ALL, lambda w: w.raw(b"\x60\x82garbage")),
    "an empty frame": (ALL, lambda w: w.raw(b"")),
    "a frame that is too large": (ALL, lambda w: w.send((MAX_RECEIVE + 1).to_bytes(4, "big") + b"\0" * 100)),
    "a frame of a negative size": (ALL, lambda w: w.send(b"\xff\xff\xff\xff")),
    "unknown mechanism": (ALL, _then(lambda w: w.handshake("DIGEST-MD5"), Walk.ended)),
    "unknown mechanism, version 0": (ALL, _then(lambda w: w.handshake("DIGEST-MD5", 0), Walk.ended)),
    "a mechanism in lower case": (ALL, _then(lambda w: w.handshake("plain"), Walk.ended)),
    "handshake twice": (
        ALL,
        _then(lambda w: w.handshake("PLAIN"), lambda w: w.handshake("PLAIN"), Walk.ended),
    ),
    "handshake version 9": (ALL, lambda w: w.raw(_header(17, 9) + b"\0\5PLAIN")),
    "authenticate version 9": (
        ALL,
        _then(lambda w: w.handshake("PLAIN"), lambda w: w.raw(_header(36, 9) + b"\0\1\0")),
    ),
    "plain, version 0": (ALL, lambda w: _plain(w, PLAIN, 0)),
    "plain, version 1": (ALL, lambda w: _plain(w, PLAIN, 1)),
    "plain, version 2": (ALL, lambda w: _plain(w, PLAIN, 2)),
    "plain, wrong password": (ALL, lambda w: _plain(w, b"\0alice\0wrong")),
    "plain, unknown user": (ALL, lambda w: _plain(w, b"\0nobody\0wrong")),
    "plain, no user": (ALL, lambda w: _plain(w, b"\0\0wrong")),
    "plain, no password": (ALL, lambda w: _plain(w, b"\0alice\0")),
    "plain, same authorization id": (ALL, lambda w: _plain(w, b"alice\0alice\0alice-secret")),
    "plain, other authorization id": (ALL, lambda w: _plain(w, b"bob\0alice\0alice-secret")),
    "plain, two parts": (ALL, lambda w: _plain(w, b"alice\0alice-secret")),
    "plain, four parts": (ALL, lambda w: _plain(w, b"\0alice\0alice-secret\0x")),
    "plain, empty": (ALL, lambda w: _plain(w, b"")),
    "plain, bad utf-8": (ALL, lambda w: _plain(w, b"\0alice\0\xff\xfe")),
    "raw plain": (ALL, lambda w: _raw_plain(w, PLAIN)),
    "raw plain, wrong password": (ALL, lambda w: _raw_plain(w, b"\0alice\0wrong")),
    "scram": (ALL, _then(lambda w: _scram(w, "carol", "carol-secret"), Walk.metadata)),
    "scram, wrong password": (ALL, lambda w: _scram(w, "carol", "wrong")),
    "scram, unknown user": (ALL, lambda w: _scram(w, "nobody", "wrong")),
    "scram, flag y": (ALL, lambda w: _scram(w, "carol", "carol-secret", "y,,")),
    "scram, flag p": (ALL, lambda w: _scram(w, "carol", "carol-secret", "p=tls-unique,,")),
    "scram, same authorization id": (ALL, lambda w: _scram(w, "carol", "carol-secret", "n,a=carol,")),
    "scram, other authorization id": (ALL, lambda w: _scram(w, "carol", "carol-secret", "n,a=dave,")),
    "scram, other channel binding": (ALL, lambda w: _scram(w, "carol", "carol-secret", c="eSws")),
    "scram, other nonce": (ALL, lambda w: _scram(w, "carol", "carol-secret", r=NONCE)),
    "scram, other proof": (ALL, lambda w: _scram(w, "carol", "carol-secret", p="AAAA")),
    "scram, an extension": (ALL, lambda w: _scram(w, "carol", "carol-secret", extension=",color=red")),
    "scram, an unknown token": (ALL, lambda w: _scram(w, "carol", "x", extension=",tokenauth=true")),
    "scram, garbage": (
        ALL,
        _then(lambda w: w.handshake("SCRAM-SHA-256"), lambda w: w.authenticate(b"hello"), Walk.ended),
    ),
    "scram, empty": (
        ALL,
        _then(lambda w: w.handshake("SCRAM-SHA-256"), lambda w: w.authenticate(b""), Walk.ended),
    ),
    "scram, garbage at the end": (
        ALL,
        _then(
            lambda w: w.handshake("SCRAM-SHA-256"),
            lambda w: w.authenticate(scram_first("carol")),
            lambda w: w.authenticate(b"hello"),
            Walk.ended,
        ),
    ),
    "raw scram": (
        ALL,
        _then(
            lambda w: w.handshake("SCRAM-SHA-256", 0),
            lambda w: w.raw(scram_first("carol")),
            lambda w: w.raw(scram_final(scram_first("carol"), w.token, "carol-secret")),
            Walk.metadata,
        ),
    ),
    "oauth": (
        ALL,
        _then(lambda w: w.handshake("OAUTHBEARER"), lambda w: w.authenticate(oauth(fresh())), Walk.metadata),
    ),
    "oauth, same authorization id": (
        ALL,
        _then(
            lambda w: w.handshake("OAUTHBEARER"),
            lambda w: w.authenticate(oauth(fresh(), "n,a=erin,")),
            Walk.ended,
        ),
    ),
    "oauth, other authorization id": (
        ALL,
        _then(
            lambda w: w.handshake("OAUTHBEARER"),
            lambda w: w.authenticate(oauth(fresh(), "n,a=bob,")),
            Walk.ended,
        ),
    ),
    "oauth, extensions": (
        ALL,
        _then(
            lambda w: w.handshake("OAUTHBEARER"),
            lambda w: w.authenticate(oauth(fresh(), extensions="traceId=123\x01lkc=x y\x01")),
            Walk.ended,
        ),
    ),
    "oauth, a bad extension": (
        ALL,
        _then(
            lambda w: w.handshake("OAUTHBEARER"),
            lambda w: w.authenticate(oauth(fresh(), extensions="tr4ce=1\x01")),
            Walk.ended,
        ),
    ),
    "oauth, the extension auth": (
        ALL,
        _then(
            lambda w: w.handshake("OAUTHBEARER"),
            lambda w: w.authenticate(oauth(fresh(), extensions="auth=1\x01")),
            Walk.ended,
        ),
    ),
    "oauth, expired": (
        ALL,
        _then(
            lambda w: w.handshake("OAUTHBEARER"),
            lambda w: w.authenticate(oauth(fresh(exp=1000))),
            lambda w: w.authenticate(b"\x01"),
            Walk.ended,
        ),
    ),
    "oauth, garbage": (
        ALL,
        _then(lambda w: w.handshake("OAUTHBEARER"), lambda w: w.authenticate(b"hello"), Walk.ended),
    ),
    "oauth, no token": (
        ALL,
        _then(
            lambda w: w.handshake("OAUTHBEARER"),
            lambda w: w.authenticate(b"n,,\x01host=x\x01\x01"),
            Walk.ended,
        ),
    ),
    "oauth, metadata after the end of the token": (
        ALL,
        _then(lambda w: _oauth(w, ending()), _pause(TOKEN_SECONDS + 0.2), Walk.metadata),
    ),
    "oauth, re-authentication with a new token": (
        ALL,
        _then(
            lambda w: _oauth(w, ending()),
            lambda w: _oauth(w, fresh()),
            _pause(TOKEN_SECONDS + 0.2),
            Walk.metadata,
        ),
    ),
    "oauth, re-authentication after the end of the token": (
        ALL,
        _then(
            lambda w: _oauth(w, ending()),
            _pause(TOKEN_SECONDS + 0.2),
            lambda w: _oauth(w, fresh()),
            Walk.metadata,
        ),
    ),
    "oauth, re-authentication with an expired token": (
        ALL,
        _then(
            lambda w: _oauth(w, fresh()),
            lambda w: _oauth(w, fresh(exp=time.time() - 1, iat=time.time() - 10)),
            lambda w: w.authenticate(b"\x01"),
            Walk.ended,
        ),
    ),
    "handshake when authenticated": (
        ALL,
        _then(lambda w: _plain(w, PLAIN), lambda w: w.handshake("PLAIN"), Walk.metadata),
    ),
    "authenticate when authenticated": (
        ALL,
        _then(lambda w: _plain(w, PLAIN), lambda w: w.authenticate(PLAIN), Walk.metadata),
    ),
    "versions when authenticated": (
        ALL,
        _then(lambda w: _plain(w, PLAIN), lambda w: w.versions(), Walk.metadata),
    ),
    "a session with an end": (REAUTH, lambda w: _plain(w, PLAIN)),
    "a session with an end, version 0": (REAUTH, lambda w: _plain(w, PLAIN, 0)),
    "re-authentication": (
        REAUTH,
        _then(lambda w: _plain(w, PLAIN), lambda w: _plain(w, PLAIN), Walk.metadata),
    ),
    "re-authentication, twice at once": (
        REAUTH,
        _then(
            lambda w: _then(lambda w: w.handshake("PLAIN"), lambda w: w.authenticate(PLAIN))(w),
            lambda w: _then(lambda w: w.handshake("PLAIN"), lambda w: w.authenticate(PLAIN))(w),
            lambda w: w.handshake("PLAIN"),
            Walk.metadata,
        ),
    ),
    "re-authentication, metadata in between": (
        REAUTH,
        _then(lambda w: _plain(w, PLAIN), lambda w: w.handshake("PLAIN"), Walk.metadata, Walk.ended),
    ),
    "re-authentication, versions in between": (
        REAUTH,
        _then(lambda w: _plain(w, PLAIN), lambda w: w.handshake("PLAIN"), lambda w: w.versions(), Walk.ended),
    ),
    "re-authentication as another user": (
        REAUTH,
        _then(lambda w: _plain(w, PLAIN), lambda w: _plain(w, b"\0bob\0bob-secret")),
    ),
    "re-authentication by another mechanism": (
        REAUTH,
        _then(
            lambda w: _plain(w, PLAIN),
            lambda w: w.handshake("SCRAM-SHA-256"),
            lambda w: w.authenticate(scram_first("carol")),
            Walk.ended,
        ),
    ),
    "re-authentication by an unknown mechanism": (
        REAUTH,
        _then(lambda w: _plain(w, PLAIN), lambda w: w.handshake("OAUTHBEARER"), Walk.ended),
    ),
    "re-authentication, wrong password": (
        REAUTH,
        _then(lambda w: _plain(w, PLAIN), lambda w: _plain(w, b"\0alice\0wrong")),
    ),
    "re-authentication, scram, wrong password": (
        REAUTH,
        _then(lambda w: _scram(w, "carol", "carol-secret"), lambda w: _scram(w, "carol", "wrong")),
    ),
    "re-authentication without a handshake": (
        REAUTH,
        _then(lambda w: _plain(w, PLAIN), lambda w: w.authenticate(PLAIN), Walk.metadata),
    ),
    "re-authentication of raw plain": (
        REAUTH,
        _then(lambda w: _raw_plain(w, PLAIN), lambda w: _plain(w, PLAIN), Walk.metadata),
    ),
    "metadata after the end of the session": (
        REAUTH,
        _then(lambda w: _plain(w, PLAIN), _pause(REAUTH_MS / 1000 + 0.2), Walk.metadata),
    ),
    "re-authentication after the end of the session": (
        REAUTH,
        _then(
            lambda w: _plain(w, PLAIN),
            _pause(REAUTH_MS / 1000 + 0.2),
            lambda w: _plain(w, PLAIN),
            Walk.metadata,
        ),
    ),
}


def take(name: str, addresses: dict[str, str]) -> list[Answer]:
    """The answers of one walk, by the addresses of the listeners "all" and "reauth"."""
    listener, steps = WALKS[name]
    walk = Walk(addresses[listener])
    try:
        steps(walk)
    finally:
        walk.close()
    return walk.answers


assert API  # the table of APIs is made before the first connection, outside of its time-outs
