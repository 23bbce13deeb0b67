"""SCRAM: credentials, their text in the tree, and the broker's side of the exchange."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.sasl_walks import NONCE, scram_final, scram_first
from tidelog.cluster.metadata_cache import MetadataCache
from tidelog.security.sasl.scram import ScramSaslServer, TokenCredential
from tidelog.security.sasl.server import SaslException
from tidelog.security.scram import ScramAlgorithm, ScramCredential, scram_credential
from tidelog.server.listener_security import ScramUsers

SHA_256, SHA_512 = ScramAlgorithm.SCRAM_SHA_256, ScramAlgorithm.SCRAM_SHA_512
TREE = Path(__file__).parent.parent / "data" / "zookeeper-tree.json"


def answer(server: ScramSaslServer, message: bytes) -> bytes:
    """The answer, after the work that belongs on a thread."""
    evaluation = server.evaluate(message)
    result: object = None
    while True:
        try:
            result = evaluation.send(result)()
        except StopIteration as end:
            return bytes(end.value)


def log_in(server: ScramSaslServer, user: str, password: str, digest: str, extension: str = "") -> None:
    first = scram_first(user, extension=extension)
    final = scram_final(first, answer(server, first), password, digest=digest)
    assert answer(server, final).startswith(b"v=")


def test_the_example_of_rfc_7677() -> None:
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    credential = scram_credential("pencil", SHA_256, 4096, salt=salt)
    nonce = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    server = ScramSaslServer(SHA_256, lambda _: credential, nonce=nonce)
    assert answer(server, b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO") == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    final = (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert answer(server, final) == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert (server.is_complete, server.authorization_id) == (True, "user")


def test_a_nonce_ends_as_the_server_told() -> None:
    """Old versions of librdkafka send their own part of the nonce twice."""
    credential = scram_credential("secret", SHA_256, 4096)

    def final_with(change: Callable[[str], str]) -> bytes:
        server = ScramSaslServer(SHA_256, lambda _: credential)
        first = scram_first("alice")
        told = answer(server, first)
        nonce = told.decode().partition(",")[0].removeprefix("r=")
        return answer(server, scram_final(first, told, "secret", r=change(nonce)))

    assert final_with(lambda nonce: NONCE + nonce).startswith(b"v=")
    with pytest.raises(SaslException):
        final_with(lambda nonce: nonce + "x")
    with pytest.raises(SaslException):
        final_with(lambda nonce: NONCE)


def test_a_channel_binding_is_refused_and_what_the_client_said_of_it_is_checked() -> None:
    credential = scram_credential("secret", SHA_256, 4096)
    for flag in ("y,,", "p=tls-unique,,"):
        with pytest.raises(SaslException, match="client-first-message"):
            answer(ScramSaslServer(SHA_256, lambda _: credential), scram_first("alice", flag))
    server = ScramSaslServer(SHA_256, lambda _: credential)
    first = scram_first("alice")
    with pytest.raises(SaslException, match="wrong credentials"):
        answer(server, scram_final(first, answer(server, first), "secret", c="eSws"))


def test_every_exchange_has_a_nonce_of_its_own() -> None:
    credential = scram_credential("secret", SHA_256, 4096)
    first = scram_first("alice")
    answers = {answer(ScramSaslServer(SHA_256, lambda _: credential), first) for _ in range(500)}
    parts = {told.decode().partition(",")[0].removeprefix(f"r={NONCE}") for told in answers}
    assert len(parts) == 500
    assert min(map(len, parts)) >= 24


def test_a_message_of_an_earlier_exchange_logs_nobody_in() -> None:
    """Though the client's part of the nonce is the same."""
    credential = scram_credential("secret", SHA_256, 4096)
    first = scram_first("alice")
    recorded = ScramSaslServer(SHA_256, lambda _: credential)
    final = scram_final(first, answer(recorded, first), "secret")
    assert answer(recorded, final).startswith(b"v=")
    replayed = ScramSaslServer(SHA_256, lambda _: credential)
    answer(replayed, first)
    with pytest.raises(SaslException):
        answer(replayed, final)
    with pytest.raises(SaslException):
        answer(recorded, final)  # the exchange is over


@pytest.mark.parametrize("mechanism", [SHA_256, SHA_512])
def test_a_credential_is_its_text(mechanism: ScramAlgorithm) -> None:
    credential = scram_credential("secret", mechanism, 4096)
    assert ScramCredential.parse(credential.format()) == credential
    log_in(ScramSaslServer(mechanism, lambda _: credential), "alice", "secret", mechanism.digest)


def test_credentials_that_kafka_wrote() -> None:
    tree = json.loads(TREE.read_text())
    texts = [
        (name, text)
        for path, node in _nodes(tree)
        if path.startswith("/config/users/")
        for name, text in json.loads(node or "{}").get("config", {}).items()
        if name.startswith("SCRAM-")
    ]
    assert texts
    for name, text in texts:
        assert ScramCredential.parse(text).format() == text, name


def _nodes(tree: object) -> list[tuple[str, str]]:
    """Paths and data, whatever the file's form is: a map of paths to data or to objects with `data`."""
    assert isinstance(tree, dict)
    found = tree.get("nodes", tree)
    pairs = found.items() if isinstance(found, dict) else ((node["path"], node) for node in found)
    return [(path, node if isinstance(node, str) else node.get("data") or "") for path, node in pairs]


@pytest.mark.parametrize("text", ["", "salt=x", "salt=QQ==,stored_key=QQ==,server_key=QQ==,iterations=x"])
def test_other_texts_are_refused_without_quoting_them(text: str) -> None:
    with pytest.raises(ValueError, match="not a SCRAM credential"):
        ScramCredential.parse(text)


def test_a_repr_has_no_keys() -> None:
    assert repr(scram_credential("secret", SHA_256)) == "ScramCredential(iterations=4096)"


def test_an_unknown_user_always_has_the_same_salt_and_fails_last() -> None:
    def first(user: str) -> bytes:
        return answer(ScramSaslServer(SHA_256, lambda _: None, nonce="n"), scram_first(user))

    assert first("nobody") == first("nobody") != first("nobody2")
    server = ScramSaslServer(SHA_256, lambda _: None)
    message = scram_first("nobody")
    with pytest.raises(SaslException, match="wrong credentials"):
        next(server.evaluate(scram_final(message, answer(server, message), "any")))


def test_an_unknown_user_is_told_the_iterations_of_users() -> None:
    server = ScramSaslServer(SHA_256, lambda _: None, iterations=lambda user: 5000)
    assert answer(server, scram_first("nobody")).endswith(b",i=5000")


def test_a_credential_with_too_few_iterations_is_no_credential() -> None:
    credential = scram_credential("secret", SHA_256, 1000)
    server = ScramSaslServer(SHA_256, lambda _: credential)
    first = scram_first("alice")
    with pytest.raises(SaslException):
        next(server.evaluate(scram_final(first, answer(server, first), "secret")))


def test_escaped_names() -> None:
    asked = []
    credential = scram_credential("secret", SHA_256)
    server = ScramSaslServer(SHA_256, lambda user: asked.append(user) or credential)  # type: ignore[func-returns-value]
    log_in(server, "a=2Cb=3Dc", "secret", "sha256")
    assert asked == ["a,b=c"]


def test_a_delegation_token_logs_in_its_owner() -> None:
    token = TokenCredential("alice", scram_credential("hmac", SHA_256), expiry_ms=1234)
    server = ScramSaslServer(SHA_256, lambda _: None, lambda name: token if name == "id" else None)
    log_in(server, "id", "hmac", "sha256", extension=",tokenauth=true")
    assert server.authorization_id == "alice"
    assert server.is_token_authenticated
    assert server.credential_expiry_ms == 1234


def test_an_unknown_user_seems_to_have_the_iterations_of_users() -> None:
    metadata = MetadataCache("cluster")
    users = ScramUsers(metadata)
    assert users.iterations("nobody", SHA_256) == 4096
    for name, iterations in (("alice", 5000), ("bob", 6000)):
        text = scram_credential("secret", SHA_256, iterations).format()
        metadata.set_entity_configs(f"users/{name}", {"SCRAM-SHA-256": text})
    found = {name: users.iterations(name, SHA_256) for name in map(str, range(50))}
    assert set(found.values()) == {5000, 6000}
    assert all(users.iterations(name, SHA_256) == iterations for name, iterations in found.items())
    assert users.iterations("nobody", SHA_512) == 4096
    known = users.find("alice", SHA_256)
    assert known is not None
    assert known.iterations == 5000
    assert users.find("alice", SHA_512) is None
