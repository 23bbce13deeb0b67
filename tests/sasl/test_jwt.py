"""Tokens of OAUTHBEARER: signatures, claims, and the keys of the provider."""

from __future__ import annotations

import base64
import json
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from tidelog.config.values import ConfigError
from tidelog.security.jwks import UNKNOWN_KEY_SECONDS, Jwks, fetch
from tidelog.security.jwt_validator import ClaimRules, JwtValidator, UnsecuredValidator
from tidelog.security.sasl.mechanisms import checked_url
from tidelog.security.sasl.oauthbearer import InvalidToken

NOW = 1_700_000_000.0
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())
CLAIMS: dict[str, object] = {"sub": "erin", "iat": NOW - 10, "exp": NOW + 600, "iss": "us", "aud": ["kafka"]}


def key_set(**rsa_fields: str) -> bytes:
    public = jwt.algorithms.RSAAlgorithm.to_jwk(RSA.public_key(), as_dict=True)
    other = jwt.algorithms.ECAlgorithm.to_jwk(EC.public_key(), as_dict=True)
    return json.dumps({"keys": [public | {"kid": "r"} | rsa_fields, other | {"kid": "e"}]}).encode()


class Provider:
    """Keys that can be replaced, or be away, and a clock."""

    def __init__(self) -> None:
        self.document: bytes | None = key_set()
        self.reads = 0
        self.now = 0.0

    def fetch(self, url: str) -> bytes:
        self.reads += 1
        if self.document is None:
            raise OSError("away")
        return self.document

    def keys(self) -> Jwks:
        return Jwks("https://keys", fetch=self.fetch, now=lambda: self.now)


def validator(**rules: object) -> JwtValidator:
    return JwtValidator(Provider().keys(), ClaimRules(**rules), now=lambda: NOW)  # type: ignore[arg-type]


def signed(algorithm: str = "RS256", key_id: str | None = "r", **claims: object) -> str:
    key = EC if algorithm.startswith("ES") else RSA
    wanted = {name: value for name, value in (CLAIMS | claims).items() if value is not None}
    return jwt.encode(wanted, key, algorithm, headers={"kid": key_id} if key_id else None)


def test_a_signed_token_names_its_user() -> None:
    token = validator().validate(signed(scope="read write"))
    assert (token.principal, token.expiry_ms) == ("erin", int((NOW + 600) * 1000))
    assert token.scope == {"read", "write"}


@pytest.mark.parametrize(("algorithm", "key_id"), [("RS512", "r"), ("PS256", "r"), ("ES256", "e")])
def test_algorithms_that_are_accepted(algorithm: str, key_id: str) -> None:
    assert validator().validate(signed(algorithm, key_id)).principal == "erin"


def test_no_signature_and_no_shared_secret_is_accepted() -> None:
    unsigned = jwt.encode(CLAIMS, "", "none", headers={"kid": "r"})
    shared = jwt.encode(CLAIMS, b"x" * 32, "HS256", headers={"kid": "r"})
    for token in (unsigned, shared, "a.b.c", ""):
        with pytest.raises(InvalidToken):
            validator().validate(token)


@pytest.mark.parametrize("critical", [["exp"], ["b64"], [], "exp"])
def test_a_token_with_critical_extensions_is_refused(critical: object) -> None:
    """What a critical extension demands is not checked, so the token must not count (RFC 7515, 4.1.11)."""
    header = {"kid": "r", "crit": critical, "exp": 1}
    with pytest.raises(InvalidToken):
        validator().validate(jwt.encode(CLAIMS, RSA, "RS256", headers=header))


def test_a_key_is_for_its_own_algorithm() -> None:
    provider = Provider()
    provider.document = key_set(alg="RS256")
    checks = JwtValidator(provider.keys(), ClaimRules(), now=lambda: NOW)
    assert checks.validate(signed("RS256")).principal == "erin"
    with pytest.raises(InvalidToken, match="no key"):
        checks.validate(signed("RS512"))
    with pytest.raises(InvalidToken, match="no key"):
        checks.validate(signed("RS256", key_id="e"))


def test_a_token_of_another_signer_is_refused() -> None:
    other = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    with pytest.raises(InvalidToken, match="InvalidSignatureError"):
        validator().validate(jwt.encode(CLAIMS, other, "RS256", headers={"kid": "r"}))


@pytest.mark.parametrize(
    ("claims", "problem"),
    [
        ({"exp": NOW - 31}, "has expired"),
        ({"exp": None}, "exp is missing"),
        ({"nbf": NOW + 31}, "not valid yet"),
        ({"iat": NOW + 31}, "issued in the future"),
        ({"sub": None}, "sub is missing"),
        ({"sub": " "}, "sub is missing"),
        ({"sub": "e\ud800rin"}, "sub is no text"),
        ({"sub": ["erin"]}, "sub is missing"),
        ({"iss": "them"}, "issuer"),
        ({"iss": None}, "issuer"),
        ({"aud": "others"}, "audience"),
        ({"aud": None}, "audience"),
        ({"exp": "tomorrow"}, "exp is not a time"),
        ({"scope": 7}, "scope is not"),
    ],
)
def test_claims_that_are_refused(claims: dict[str, object], problem: str) -> None:
    checks = validator(expected_issuer="us", expected_audience=("kafka", "tidelog"))
    assert checks.validate(signed()).principal == "erin"
    with pytest.raises(InvalidToken, match=problem):
        checks.validate(signed(**claims))


def test_clocks_may_differ_a_little() -> None:
    for claims in ({"iat": NOW - 99, "exp": NOW - 29}, {"nbf": NOW + 29}, {"iat": NOW + 29}):
        assert validator(clock_skew=30).validate(signed(**claims)).principal == "erin"


def test_other_claims_can_have_user_and_scope() -> None:
    checks = validator(sub_claim="name", scope_claim="scp", required_scope=("a",))
    assert checks.validate(signed(name="frank", scp=["a", "b"])).principal == "frank"
    with pytest.raises(InvalidToken) as refused:
        checks.validate(signed(name="frank", scp=["b"]))
    assert (refused.value.status, refused.value.scope) == ("insufficient_scope", "a")


def test_keys_are_read_again_when_they_are_old_or_a_key_is_unknown() -> None:
    provider = Provider()
    keys = provider.keys()
    assert keys.find("r", "RS256") is not None
    assert keys.find("new", "RS256") is None
    assert provider.reads == 1  # an unknown key does not read at once
    provider.document = key_set(kid="new")
    provider.now = UNKNOWN_KEY_SECONDS
    assert keys.find("new", "RS256") is not None
    assert provider.reads == 2
    provider.now += 3600
    keys.find("new", "RS256")
    assert provider.reads == 3


def test_after_a_failure_it_waits_longer_each_time_and_keeps_the_old_keys() -> None:
    provider = Provider()
    keys = provider.keys()
    keys.find("r", "RS256")
    provider.document, provider.now = None, 4000.0
    for wait in (0.1, 0.2, 0.4):
        before = provider.reads
        assert keys.find("r", "RS256") is not None
        assert keys.find("r", "RS256") is not None
        assert provider.reads == before + 1
        provider.now += wait
    provider.document = b"not json"
    assert keys.find("r", "RS256") is not None


def test_a_provider_that_does_not_answer_in_time_is_not_asked_by_each_thread_that_waits() -> None:
    provider = Provider()
    keys = provider.keys()

    def time_out(url: str) -> bytes:
        provider.reads += 1
        provider.now += 10.0
        raise OSError("no answer")

    keys._fetch = time_out
    for _ in range(3):
        with pytest.raises(InvalidToken, match="cannot be read"):
            keys.find("r", "RS256")
    assert provider.reads == 1
    provider.now += 0.1
    with pytest.raises(InvalidToken, match="cannot be read"):
        keys.find("r", "RS256")
    assert provider.reads == 2


def test_a_slow_provider_keeps_one_thread_and_known_keys_are_used_meanwhile() -> None:
    begun, go_on, now = threading.Event(), threading.Event(), [0.0]

    def read(url: str) -> bytes:
        if now[0]:
            begun.set()
            assert go_on.wait(30)
        return key_set()

    keys = Jwks("https://keys", fetch=read, now=lambda: now[0])
    assert keys.find("r", "RS256") is not None
    now[0] = 4000.0
    reading = threading.Thread(target=keys.find, args=("unknown", "RS256"))
    reading.start()
    assert begun.wait(30)
    with ThreadPoolExecutor(1) as others:
        try:
            assert others.submit(keys.find, "r", "RS256").result(10) is not None
            assert others.submit(keys.find, "unknown", "RS256").result(10) is None
        finally:
            go_on.set()
    reading.join()


@pytest.mark.parametrize(
    "document",
    [b"[" * 100_000, b'{"keys": [' * 20_000, json.dumps({"keys": [{"kty": "RSA", "kid": []}]}).encode()],
)
def test_a_document_that_cannot_be_read_is_not_read_again_at_once(document: bytes) -> None:
    provider = Provider()
    provider.document = document
    keys = provider.keys()
    for _ in range(3):
        with pytest.raises(InvalidToken, match="cannot be read"):
            keys.find("r", "RS256")
    assert provider.reads == 1


def test_an_answer_that_is_no_http_is_a_failure_to_read() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            peer, _ = server.accept()
            with peer:
                peer.recv(1000)
                peer.sendall(b"nonsense\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(OSError, match="not an answer of HTTP"):
            fetch(f"http://127.0.0.1:{server.getsockname()[1]}/keys")
        thread.join()


def test_without_any_keys_no_token_is_valid() -> None:
    provider = Provider()
    provider.document = None
    with pytest.raises(InvalidToken, match="cannot be read"):
        provider.keys().find("r", "RS256")


def test_private_keys_and_keys_for_encryption_are_not_used() -> None:
    provider = Provider()
    private = jwt.algorithms.RSAAlgorithm.to_jwk(RSA, as_dict=True) | {"kid": "r"}
    shared = {"kty": "oct", "k": base64.urlsafe_b64encode(b"x" * 32).decode(), "kid": "o"}
    provider.document = json.dumps({"keys": [private, shared]}).encode()
    with pytest.raises(InvalidToken):
        provider.keys().find("r", "RS256")
    provider.document = key_set(use="enc")
    assert provider.keys().find("r", "RS256") is None


def test_keys_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a key.json"
    path.write_bytes(key_set())
    assert Jwks(path.as_uri(), fetch=fetch).find("e", "ES256") is not None


@pytest.mark.parametrize(
    ("url", "allowed", "problem"),
    [
        ("https://keys", (), "not an allowed URL"),
        ("https://keys/", ("https://keys",), "not an allowed URL"),
        ("ftp://keys", ("ftp://keys",), "expected a file:"),
    ],
)
def test_urls_that_are_refused(url: str, allowed: tuple[str, ...], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        checked_url(url, allowed)
    assert checked_url("https://keys", ("https://keys",)) == "https://keys"


def unsecured(claims: dict[str, object], header: dict[str, object] | None = None) -> str:
    def part(value: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    return f"{part(header or {'alg': 'none'})}.{part(claims)}."


def test_unsecured_tokens() -> None:
    make: Callable[[], UnsecuredValidator] = lambda: UnsecuredValidator(now=lambda: NOW)  # noqa: E731
    assert make().validate(unsecured(CLAIMS)).principal == "erin"
    for token in (unsecured(CLAIMS, {"alg": "RS256"}), unsecured(CLAIMS) + "x", "a.b.", signed()):
        with pytest.raises(InvalidToken):
            make().validate(token)
    scoped = make()
    scoped.configure({"unsecuredValidatorRequiredScope": "a b"})
    with pytest.raises(InvalidToken):
        scoped.validate(unsecured(CLAIMS | {"scope": "a"}))
