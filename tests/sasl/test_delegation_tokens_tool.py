"""`tidelog delegation-tokens` prints what Kafka's tool prints."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.support.sasl_broker import PLAIN_MODULE, sasl_broker
from tidelog.cli.main import main
from tidelog.testing import Broker

HEADER = (
    "TOKENID         HMAC                           OWNER           REQUESTER       "
    "RENEWERS                  ISSUEDATE       EXPIRYDATE      MAXDATE        "
)
DATE = r"\d{4}-\d\d-\d\dT\d\d:\d\d"


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    broker = sasl_broker(**{"delegation.token.secret.key": "token-secret"})
    yield broker
    broker.close()


@pytest.fixture
def login(tmp_path: Path) -> Path:
    path = tmp_path / "alice.properties"
    path.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        f'sasl.jaas.config={PLAIN_MODULE} required username="alice" password="alice-secret";\n'
    )
    return path


def tool(broker: Broker, login: Path, *args: str) -> Result:
    common = ["--bootstrap-server", broker.address_of("SASL"), "--command-config", str(login)]
    return CliRunner().invoke(main, ["delegation-tokens", *common, *args])


def test_a_token_from_its_creation_to_its_end(broker: Broker, login: Path) -> None:
    made = tool(broker, login, "--create", "--max-life-time-period", "-1", "--renewer-principal", "User:bob")
    assert made.exit_code == 0, made.output
    lines = made.stdout.splitlines()
    assert lines[0] == ("Calling create token operation with renewers :[User:bob] , max-life-time-period :-1")
    token_id = lines[1].removeprefix("Created delegation token with tokenId : ")
    assert lines[2:5] == ["", HEADER, ""]
    found = re.fullmatch(
        rf"{token_id} (\S{{88}}) User:alice      User:alice      \[User:bob\]                "
        rf"({DATE}) ({DATE}) ({DATE})",
        lines[5],
    )
    assert found is not None, lines[5]
    hmac = found[1]
    assert len(base64.b64decode(hmac)) == 64

    listed = tool(broker, login, "--describe")
    assert listed.stdout.splitlines()[:3] == [
        "Calling describe token operation for current user.",
        "Total number of tokens : 1",
        HEADER,
    ]
    others = tool(broker, login, "--describe", "--owner-principal", "User:carol")
    assert others.stdout == (
        f"Calling describe token operation for owners: [User:carol]\nTotal number of tokens : 0\n{HEADER}\n"
    )

    renewed = tool(broker, login, "--renew", "--hmac", hmac, "--renew-time-period", "100000")
    assert re.fullmatch(
        f"Completed renew operation. New expiry date : {DATE}", renewed.stdout.splitlines()[1]
    )
    ended = tool(broker, login, "--expire", "--hmac", hmac, "--expiry-time-period", "-1")
    assert re.fullmatch(f"Completed expire operation. New expiry date : {DATE}", ended.stdout.splitlines()[1])
    for shown in (renewed, ended):
        assert hmac not in shown.output
    again = tool(broker, login, "--renew", "--hmac", hmac, "--renew-time-period", "-1")
    assert again.exit_code == 1
    assert "Error while executing delegation token command" in again.stderr


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        ([], "expected one of --create"),
        (["--create", "--describe"], "expected one of --create"),
        (["--create"], "--create needs --max-life-time-period"),
        (["--renew", "--renew-time-period", "1"], "--renew needs --hmac"),
        (["--expire", "--hmac", "eA=="], "--expire needs --expiry-time-period"),
        (["--describe", "--hmac", "eA=="], "--hmac does not go with --describe"),
    ],
)
def test_flags_that_do_not_go_together(broker: Broker, login: Path, args: list[str], problem: str) -> None:
    refused = tool(broker, login, *args)
    assert refused.exit_code != 0
    assert problem in refused.stderr


def test_values_that_are_none(broker: Broker, login: Path) -> None:
    for args, problem in (
        (["--create", "--max-life-time-period", "x"], "not a number"),
        (["--create", "--max-life-time-period", "1", "--renewer-principal", "bob"], "TYPE:NAME"),
        (["--renew", "--hmac", "!", "--renew-time-period", "1"], "not in base64"),
    ):
        refused = tool(broker, login, *args)
        assert refused.exit_code == 1
        assert problem in refused.stderr
