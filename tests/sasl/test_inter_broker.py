"""Brokers of a cluster log in at each other by SCRAM, and share users and tokens."""

from __future__ import annotations

import base64
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.support.sasl_broker import free_address, metric
from tests.support.wait import eventually
from tests.support.zookeeper import zookeeper_server
from tidelog import Admin, NewTopic, Producer
from tidelog.cli.main import main
from tidelog.clients.admin.users import ScramMechanism, UserScramCredentialUpsertion
from tidelog.errors import KafkaError
from tidelog.server.zookeeper_process import ZooKeeperProcess
from tidelog.testing import Broker

MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
SETTINGS: dict[str, object] = {
    "listeners": "BROKERS://127.0.0.1:0",
    "listener.security.protocol.map": "BROKERS:SASL_PLAINTEXT",
    "inter.broker.listener.name": "BROKERS",
    "sasl.enabled.mechanisms": "SCRAM-SHA-512,SCRAM-SHA-256",
    "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
    "listener.name.brokers.scram-sha-512.sasl.jaas.config": (
        f'{MODULE} required username="broker" password="broker-secret";'
    ),
    "connections.max.reauth.ms": 2000,
    "delegation.token.secret.key": "token-secret",
    "tidelog.guardian.enable": False,
    "controlled.shutdown.enable": False,
    "offsets.topic.replication.factor": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
}


def client(broker: Broker, user: str, password: str, extra: str = "") -> dict[str, object]:
    return {
        "bootstrap.servers": broker.bootstrap_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": f'{MODULE} required username="{user}" password="{password}"{extra};',
    }


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperProcess]:
    folder: Path = tmp_path_factory.mktemp("cluster")
    with zookeeper_server(folder) as running:
        yield running


@pytest.fixture(scope="module")
def brokers(server: ZooKeeperProcess) -> Iterator[list[Broker]]:
    with ExitStack() as stack:
        configs = [
            "configs",
            "--zookeeper",
            server.address,
            "--entity-type",
            "users",
            "--entity-name",
            "broker",
        ]
        made = CliRunner().invoke(
            main,
            [*configs, "--alter", "--add-config", "SCRAM-SHA-512=[iterations=8192,password=broker-secret]"],
        )
        assert made.exit_code == 0, made.output
        assert "Completed updating config for entity: user-principal 'broker'." in made.output
        shown = CliRunner().invoke(main, [*configs, "--describe"])
        assert "are SCRAM-SHA-512=iterations=8192\n" in shown.output
        assert "stored_key" not in shown.output
        started = []
        for broker_id in (1, 2):
            own = {"broker.id": broker_id, "zookeeper.connect": server.address}
            broker = Broker(SETTINGS | own | {"metrics.listener": free_address()})
            started.append(stack.enter_context(broker))
        yield started


def test_replicas_follow_over_a_sasl_listener(brokers: list[Broker]) -> None:
    with Admin(client(brokers[0], "broker", "broker-secret")) as admin:
        eventually(lambda: len(admin.describe_cluster().nodes) == 2, "both brokers are known")
        admin.create_topics([NewTopic("replicated", 2, 2, configs={"min.insync.replicas": "2"})])
        with Producer(client(brokers[0], "broker", "broker-secret") | {"acks": "all"}) as producer:
            for partition in (0, 1):
                producer.send("replicated", b"value", partition=partition).result(20)
        described = admin.describe_topics(["replicated"])["replicated"]
        assert [len(partition.isr) for partition in described.partitions] == [2, 2]


def test_a_user_of_one_broker_is_a_user_of_all(brokers: list[Broker]) -> None:
    with Admin(client(brokers[0], "broker", "broker-secret")) as admin:
        admin.alter_user_scram_credentials(
            [UserScramCredentialUpsertion("gina", "gina-secret", ScramMechanism.SCRAM_SHA_512, 4096)]
        )
    for broker in brokers:
        assert eventually(
            lambda broker=broker: _answers(client(broker, "gina", "gina-secret")), "gina is known"
        )


def test_a_token_of_one_broker_is_valid_on_all(brokers: list[Broker]) -> None:
    with Admin(client(brokers[0], "broker", "broker-secret")) as admin:
        token = admin.create_delegation_token()
        password = base64.b64encode(token.hmac).decode()
        for broker in brokers:
            settings = client(broker, token.token_id, password, " tokenauth=true")
            assert eventually(lambda settings=settings: _answers(settings), "the token is known")
        admin.expire_delegation_token(token.hmac)
    for broker in brokers:
        settings = client(broker, token.token_id, password, " tokenauth=true")
        assert eventually(lambda settings=settings: not _answers(settings), "the token is forgotten")


def test_brokers_authenticate_again_on_their_connections(brokers: list[Broker]) -> None:
    """No client runs: each login is that of a broker at the other one."""
    before = [metric(broker, "successful_reauthentication_total", "BROKERS") for broker in brokers]
    for broker, count in zip(brokers, before, strict=True):
        eventually(
            lambda broker=broker, count=count: (
                metric(broker, "successful_reauthentication_total", "BROKERS") > count + 1
            ),
            "another broker authenticates again, twice",
            30.0,
        )
        assert metric(broker, "failed_reauthentication_total", "BROKERS") == 0
    with Admin(client(brokers[0], "broker", "broker-secret")) as admin:
        described = admin.describe_topics(["replicated"])["replicated"]
    assert [len(partition.isr) for partition in described.partitions] == [2, 2]


def test_users_and_tokens_log_in_while_zookeeper_is_away(
    server: ZooKeeperProcess, brokers: list[Broker]
) -> None:
    with Admin(client(brokers[0], "broker", "broker-secret")) as admin:
        token = admin.create_delegation_token()
    password = base64.b64encode(token.hmac).decode()
    logins = [("broker", "broker-secret", ""), (token.token_id, password, " tokenauth=true")]
    for broker in brokers:
        for login in logins:
            settings = client(broker, *login)
            eventually(lambda settings=settings: _answers(settings), f"{login[0]} is known")
    server.signal(signal.SIGSTOP)
    try:
        for broker in brokers:
            assert [_answers(client(broker, *login)) for login in logins] == [True, True]
            assert not _answers(client(broker, "broker", "wrong"))
    finally:
        server.signal(signal.SIGCONT)


def _answers(settings: dict[str, object]) -> bool:
    try:
        with Admin(settings) as admin:
            return bool(admin.describe_cluster(timeout=10))
    except KafkaError:
        return False
