"""`tidelog security init` and `tidelog cluster start --security`: a cluster with TLS, SCRAM and ACLs."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.cli.test_cluster import started
from tests.faults.client import surprises
from tests.support.wait import eventually
from tidelog import Admin, NewTopic, Producer
from tidelog.cli.main import main
from tidelog.clients.admin import (
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from tidelog.config.properties import read_properties
from tidelog.errors import KafkaError, SaslAuthenticationFailed, TopicAuthorizationFailed
from tidelog.security.security_folder import LOGIN_MODULE


def settings(folder: Path, user: str, bootstrap: str) -> dict[str, object]:
    found = dict(read_properties(folder / f"{user}.properties"))
    return {**found, "bootstrap.servers": bootstrap, "default.api.timeout.ms": "20000"}


def test_a_secure_cluster_is_one_command_away(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    made = CliRunner().invoke(main, ["security", "init", str(folder), "--brokers", "2"])
    assert made.exit_code == 0, made.output
    with started(tmp_path, "--security", str(folder)) as cluster:
        first = cluster.addresses[1]
        arguments = Path(f"/proc/{cluster.pid_of(1)}/cmdline").read_bytes()
        assert b"password" not in arguments
        with Admin(settings(folder, "admin", first)) as admin:
            assert len(admin.describe_cluster().nodes) == 2
            admin.create_topics([NewTopic("t", 2, 2)])
            eventually(
                lambda: all(len(p.isr) == 2 for p in admin.describe_topics(["t"])["t"].partitions),
                "the brokers replicate: they have logged in to each other",
            )
        with Producer(settings(folder, "admin", first)) as producer:
            assert producer.send("t", b"v").result(20).offset == 0
        with Admin(settings(folder, "client", first)) as client, pytest.raises(TopicAuthorizationFailed):
            client.create_topics([NewTopic("u", 1, 1)])
        with pytest.raises(KafkaError), Admin(bootstrap_servers=first, default_api_timeout_ms=3000) as nobody:
            nobody.list_topics()
        logs = [(cluster.folder / f"broker-{broker}" / "broker.log").read_text() for broker in (1, 2)]
        assert [surprises(log) for log in logs] == [[], []]
        assert cluster.stop() == 0


def test_a_changed_password_stays_changed_when_the_cluster_starts_again(tmp_path: Path) -> None:
    """Also a removed user stays away. Only a new folder brings its own passwords."""
    folder = tmp_path / "secrets"

    def init(*flags: str) -> None:
        made = CliRunner().invoke(main, ["security", "init", str(folder), "--brokers", "1", *flags])
        assert made.exit_code == 0, made.output

    init()
    with started(tmp_path, "--security", str(folder)) as cluster:
        with Admin(settings(folder, "admin", cluster.addresses[1])) as admin:
            changed = UserScramCredentialUpsertion("client", "new-word", ScramMechanism.SCRAM_SHA_512, 4096)
            removed = UserScramCredentialDeletion("admin", ScramMechanism.SCRAM_SHA_512)
            admin.alter_user_scram_credentials([changed, removed])
        assert cluster.stop() == 0
    with started(tmp_path, "--security", str(folder)) as cluster:
        first = cluster.addresses[1]
        for user in ("client", "admin"):
            with pytest.raises(SaslAuthenticationFailed), Admin(settings(folder, user, first)) as refused:
                refused.describe_cluster()
        jaas = f'{LOGIN_MODULE} required username="client" password="new-word";'
        with Admin({**settings(folder, "client", first), "sasl.jaas.config": jaas}) as client:
            assert client.describe_cluster().nodes
        assert cluster.stop() == 0
    init("--force")
    with started(tmp_path, "--security", str(folder)) as cluster:
        for user in ("client", "admin"):
            with Admin(settings(folder, user, cluster.addresses[1])) as known:
                assert known.describe_cluster().nodes
        assert cluster.stop() == 0
