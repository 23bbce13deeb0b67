"""Secrets are compared in constant time, and a login takes the same steps whether or not its user exists."""

from __future__ import annotations

import ast
import hmac as real_hmac
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.sasl_walks import scram_final, scram_first
from tidelog.security.sasl import plain, scram
from tidelog.security.sasl.plain import JaasUsers, PlainSaslServer
from tidelog.security.sasl.scram import ScramSaslServer, TokenCredential
from tidelog.security.sasl.server import Evaluation, SaslException
from tidelog.security.scram import ScramAlgorithm, scram_credential

SOURCE = Path(__file__).parents[2] / "src" / "tidelog"
NAMES = {
    "client_key", "csrf", "hmac", "key_hash", "mac", "password", "proof", "salted", "secret", "server_key",
    "signature", "stored_key",
}  # fmt: skip
NOT_OF_CLIENTS = {
    "config/values.py": "whether a setting has changed",
    "metadata/simulated/server.py": "the simulated ZooKeeper",
    "simulation/platform.py": "the simulated ZooKeeper",
}
"""Comparisons whose time tells no client anything."""


def name_of(node: ast.expr) -> str:
    """The last name of an expression: the password of `user.password.encode()`."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        node = node.func.value
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def quick_comparisons(source: str) -> Iterator[int]:
    """The lines that compare a secret with == or !=, which end at the first byte that differs."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Compare) or not isinstance(node.ops[0], ast.Eq | ast.NotEq):
            continue
        sides = (node.left, *node.comparators)
        if any(isinstance(side, ast.Constant) for side in sides):
            continue  # whether it is empty
        if any(name_of(side).lstrip("_") in NAMES for side in sides):
            yield node.lineno


def test_secrets_are_compared_in_constant_time() -> None:
    found = {
        f"{path.relative_to(SOURCE)}:{line}"
        for path in SOURCE.rglob("*.py")
        if str(path.relative_to(SOURCE)) not in NOT_OF_CLIENTS
        for line in quick_comparisons(path.read_text())
    }
    assert found == set()


def test_a_quick_comparison_is_found() -> None:
    assert list(quick_comparisons("if user.password.encode() == given: pass")) == [1]
    assert list(quick_comparisons("if a != self._proof: pass\nif proof != '': pass")) == [1]


Step = tuple[object, ...]
Recorded = Callable[[ModuleType, Callable[[], None]], list[Step]]


class Recorder:
    """Stands in for the module hmac: what was computed and compared, with the sizes."""

    def __init__(self) -> None:
        self.steps: list[Step] = []

    def digest(self, key: bytes, message: bytes, digest: str) -> bytes:
        self.steps.append(("digest", len(key), len(message), digest))
        return real_hmac.digest(key, message, digest)

    def compare_digest(self, known: bytes, given: bytes) -> bool:
        self.steps.append(("compare", len(given)))  # its time depends on the second operand alone
        return real_hmac.compare_digest(known, given)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    """Runs a login that fails; returns the steps of the mechanism in a module."""

    def run(module: ModuleType, login: Callable[[], None]) -> list[Step]:
        recorder = Recorder()
        with monkeypatch.context() as patch:
            patch.setattr(module, "hmac", recorder)
            with pytest.raises(SaslException):
                login()
        return recorder.steps

    return run


def answer(evaluation: Evaluation) -> bytes:
    """The answer of a mechanism; its work is done here."""
    try:
        work = next(evaluation)
        while True:
            work = evaluation.send(work())
    except StopIteration as end:
        return bytes(end.value)


def test_plain_compares_for_unknown_users_too(recorded: Recorded) -> None:
    users = JaasUsers({"user_alice": "the right word"})

    def login(user: bytes) -> Callable[[], None]:
        return lambda: answer(PlainSaslServer(users).evaluate(b"\0" + user + b"\0wrong")) and None

    known = recorded(plain, login(b"alice"))
    assert known == [("compare", 5)]
    assert recorded(plain, login(b"nobody")) == known


@pytest.mark.parametrize("mechanism", ScramAlgorithm)
@pytest.mark.parametrize("extension", ["", ",tokenauth=true"], ids=["user", "token"])
def test_scram_computes_for_unknown_users_too(
    recorded: Recorded, mechanism: ScramAlgorithm, extension: str
) -> None:
    credential = scram_credential("secret", mechanism, 4096)
    token = TokenCredential("alice", credential, expiry_ms=1 << 50)

    def login(user: str) -> Callable[[], None]:
        def run() -> None:
            server = ScramSaslServer(
                mechanism,
                lambda name: credential if name == "alice" else None,
                lambda name: token if name == "alice" else None,
            )
            first = scram_first(user, extension=extension)
            told = answer(server.evaluate(first))
            answer(server.evaluate(scram_final(first, told, "wrong", digest=mechanism.digest)))

        return run

    known = recorded(scram, login("alice"))
    assert [step[0] for step in known].count("compare") == 1
    assert recorded(scram, login("nobod")) == known
