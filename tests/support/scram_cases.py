"""Requests for SCRAM credentials, in an order in which each meets what the ones before left.

Kafka's answers are in tests/data/scram-answers.json; tests/kafka/test_sasl_answers.py records and compares.
"""

from __future__ import annotations

from tests.support.raw import RawConnection
from tidelog.protocol.json import Json, to_json
from tidelog.protocol.message import Message
from tidelog.protocol.messages.alter_user_scram_credentials import AlterUserScramCredentialsRequest as Alter
from tidelog.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest as Describe,
)

SHA_256, SHA_512 = 1, 2


def put(
    name: str,
    mechanism: int = SHA_256,
    iterations: int = 4096,
    salt: bytes = b"salt",
    salted: bytes = b"x" * 32,
) -> Alter.ScramCredentialUpsertion:
    return Alter.ScramCredentialUpsertion(
        name=name, mechanism=mechanism, iterations=iterations, salt=salt, salted_password=salted
    )


def drop(name: str, mechanism: int = SHA_256) -> Alter.ScramCredentialDeletion:
    return Alter.ScramCredentialDeletion(name=name, mechanism=mechanism)


def users(*names: str) -> Describe:
    return Describe(users=[Describe.UserName(name=name) for name in names])


CASES: dict[str, Message] = {
    "set": Alter(upsertions=[put("u1")]),
    "set both mechanisms": Alter(upsertions=[put("u2"), put("u2", SHA_512)]),
    "set twice": Alter(upsertions=[put("u3"), put("u3")]),
    "set and delete the same": Alter(upsertions=[put("u1")], deletions=[drop("u1")]),
    "set one mechanism, delete the other": Alter(upsertions=[put("u1", SHA_512)], deletions=[drop("u1")]),
    "delete of an unknown user": Alter(deletions=[drop("u9")]),
    "delete of a missing mechanism": Alter(deletions=[drop("u1")]),
    "delete": Alter(deletions=[drop("u1", SHA_512)]),
    "delete twice": Alter(deletions=[drop("u2", SHA_512), drop("u2", SHA_512)]),
    "set without a name": Alter(upsertions=[put("")]),
    "delete without a name": Alter(deletions=[drop("")]),
    "set of an unknown mechanism": Alter(upsertions=[put("u4", 9)]),
    "set of mechanism 0": Alter(upsertions=[put("u4", 0)]),
    "delete of an unknown mechanism": Alter(deletions=[drop("u4", 7)]),
    "too few iterations": Alter(upsertions=[put("u4", SHA_256, 4095)]),
    "too many iterations": Alter(upsertions=[put("u4", SHA_256, 16385)]),
    "most iterations": Alter(upsertions=[put("u4", SHA_256, 16384)]),
    "no salt": Alter(upsertions=[put("u5", salt=b"")]),
    "no password": Alter(upsertions=[put("u5", salted=b"")]),
    "nothing": Alter(),
    "good and bad users": Alter(upsertions=[put("u6"), put("u7", SHA_256, 1)], deletions=[drop("u8")]),
    "a user with a good and a bad change": Alter(upsertions=[put("u6"), put("u6", SHA_512, 1)]),
    "an odd name": Alter(upsertions=[put("a/b c=d,ü")]),
    "describe all": Describe(users=None),
    "describe an empty list": Describe(users=[]),
    "describe some": users("u2", "missing"),
    "describe a user twice": users("u2", "u2", "u6"),
    "describe without a name": users(""),
}


def answers(address: str) -> dict[str, Json]:
    """The answers of a broker without users, with their results in the order of the users."""
    found: dict[str, Json] = {}
    with RawConnection(address) as connection:
        for name, request in CASES.items():
            answer = to_json(connection.call(request, 0), 0)
            results = answer["results"]
            assert isinstance(results, list)
            answer["results"] = sorted(results, key=lambda result: str(result["user"]))  # type: ignore[index,call-overload]
            found[name] = answer
    return found
