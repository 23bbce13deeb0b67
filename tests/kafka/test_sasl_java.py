"""Kafka's own tools log in at our broker, by every mechanism, and manage its users and tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kafka.jars import run_tool
from tests.support.sasl_broker import PLAIN_MODULE, free_address, metric, sasl_broker
from tidelog import Admin, NewTopic
from tidelog.testing import Broker

SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
OAUTH_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
LOGINS = {
    "PLAIN": f'{PLAIN_MODULE} required username="alice" password="alice-secret";',
    "SCRAM-SHA-256": f'{SCRAM_MODULE} required username="carol" password="carol-secret";',
    "SCRAM-SHA-512": f'{SCRAM_MODULE} required username="dave" password="dave-secret";',
    "OAUTHBEARER": f'{OAUTH_MODULE} required unsecuredLoginStringClaim_sub="erin";',
}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    broker = sasl_broker(
        **{
            "delegation.token.secret.key": "token-secret",
            "metrics.listener": free_address(),
            "listener.name.reauth.connections.max.reauth.ms": 1500,
        }
    )
    with Admin(bootstrap_servers=broker.address_of("PLAINTEXT")) as admin:
        admin.create_topics([NewTopic("demo", 1, 1)])
    yield broker
    broker.close()


def login(folder: Path, mechanism: str, jaas: str | None = None) -> str:
    path = folder / "login.properties"
    path.write_text(
        f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\n"
        f"sasl.jaas.config={jaas or LOGINS[mechanism]}\n"
    )
    return str(path)


def sent(broker: Broker, folder: Path, mechanism: str, listener: str = "SASL", seconds: int = 0) -> str:
    """The summary of Kafka's ProducerPerformance."""
    rate, count = (50, 50 * seconds) if seconds else (-1, 100)
    done = run_tool(
        "kafka3",
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", "demo", "--num-records", str(count), "--record-size", "100"),
        *("--throughput", str(rate), "--producer.config", login(folder, mechanism)),
        *("--producer-props", f"bootstrap.servers={broker.address_of(listener)}"),
    )
    return done.stdout


@pytest.mark.parametrize("mechanism", LOGINS)
def test_kafkas_producer_logs_in(broker: Broker, tmp_path: Path, mechanism: str) -> None:
    assert "100 records sent" in sent(broker, tmp_path, mechanism)


def test_kafkas_producer_re_authenticates(broker: Broker, tmp_path: Path) -> None:
    before = metric(broker, "successful_reauthentication_total", "REAUTH")
    for _ in range(3):  # on a busy machine the tool sends everything within one session
        assert "250 records sent" in sent(broker, tmp_path, "PLAIN", "REAUTH", seconds=5)
        if metric(broker, "successful_reauthentication_total", "REAUTH") > before:
            break
    assert metric(broker, "successful_reauthentication_total", "REAUTH") > before
    assert metric(broker, "expired_connections_killed_count", "REAUTH") == 0


def test_kafkas_tool_makes_users_and_tokens(broker: Broker, tmp_path: Path) -> None:
    common = ("--bootstrap-server", broker.address_of("SASL"), "--command-config", login(tmp_path, "PLAIN"))
    user = ("--entity-type", "users", "--entity-name", "judy", "--alter")
    made = run_tool(
        "kafka3", "kafka.admin.ConfigCommand", *common, *user, "--add-config", "SCRAM-SHA-256=[password=x]"
    )
    assert "Completed updating config for user judy." in made.stdout
    tool = "org.apache.kafka.tools.DelegationTokenCommand"
    created = run_tool("kafka3", tool, *common, "--create", "--max-life-time-period", "-1").stdout
    token_id = re.search(r"tokenId : (\S+)", created)
    hmac = re.search(r"\S{86}==", created)
    assert token_id is not None
    assert hmac is not None
    jaas = f'{SCRAM_MODULE} required username="{token_id[1]}" password="{hmac[0]}" tokenauth=true;'
    by_token = login(tmp_path, "SCRAM-SHA-256", jaas)
    listed = run_tool(
        "kafka3",
        "org.apache.kafka.tools.TopicCommand",
        *("--bootstrap-server", broker.address_of("SASL"), "--command-config", by_token, "--list"),
    )
    assert "demo" in listed.stdout.split()
