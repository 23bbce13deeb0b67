"""`--zk-tls-config-file`: the tools that write to ZooKeeper itself use TLS and an identity of a file."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.kafka.certificates import make_certificates
from tests.support.ports import free_port
from tests.support.zookeeper import tls_settings, zookeeper_server
from tidelog.cli.main import main
from tidelog.clock import SystemClock
from tidelog.endpoints import Endpoint
from tidelog.metadata import paths
from tidelog.metadata.cluster_store import ClusterStore
from tidelog.metadata.embedded_tree import FILE_NAME, EmbeddedTree
from tidelog.metadata.nodes import BrokerNode
from tidelog.metadata.tree import TreeError
from tidelog.metadata.zookeeper import ZooKeeperSettings, ZooKeeperTree, secure_acl
from tidelog.server.zookeeper_process import ZooKeeperProcess

USER = ("--entity-type", "users", "--entity-name", "alice")
PASSWORD = ("--alter", "--add-config", "SCRAM-SHA-256=[password=secret]")
RULE = ("--allow-principal", "User:alice", "--operation", "Read", "--topic", "letters")
DENIED = "the ACL of the node does not allow this"


def tool(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperProcess]:
    with zookeeper_server(tmp_path_factory.mktemp("zookeeper")) as server:
        asyncio.run(prepare(server.address))
        yield server


async def prepare(address: str) -> None:
    """The nodes of a cluster with one broker, which protects them."""
    settings = ZooKeeperSettings(auth=(("digest", b"broker:secret"),), acl=secure_acl)
    async with await ZooKeeperTree.connect(address, settings, rng=random.Random()) as tree:
        await ClusterStore(tree, SystemClock(), random.Random()).prepare()
        node = BrokerNode([Endpoint("PLAINTEXT", "PLAINTEXT", "here", 9092)], 0)
        await tree.create(paths.broker(1), node.encode())


@pytest.fixture
def file(tmp_path: Path) -> str:
    written = tmp_path / "server.properties"
    written.write_text(
        "broker.id=1\nlog.dirs=/data\nzookeeper.set.acl=true\ntidelog.zookeeper.digest=broker:secret\n"
    )
    return str(written)


def test_users_of_a_protected_tree_are_changed_with_the_identity_of_the_brokers(
    zookeeper: ZooKeeperProcess, file: str
) -> None:
    configs = ("configs", "--zookeeper", zookeeper.address, *USER)
    refused = tool(*configs, *PASSWORD)
    assert (refused.exit_code, DENIED in refused.output) == (1, True)
    changed = tool(*configs, *PASSWORD, "--zk-tls-config-file", file)
    assert changed.exit_code == 0, changed.output
    shown = tool(*configs, "--describe", "--zk-tls-config-file", file)
    assert "for user-principal 'alice' are SCRAM-SHA-256=" in shown.stdout


def test_topics_of_a_protected_tree_are_created(zookeeper: ZooKeeperProcess, file: str) -> None:
    topics = ("topics", "--zookeeper", zookeeper.address)
    create = (*topics, "--create", "--topic", "letters", "--partitions", "1", "--replication-factor", "1")
    refused = tool(*create)
    assert (refused.exit_code, DENIED in refused.output) == (1, True)
    assert tool(*create, "--zk-tls-config-file", file).stdout == "Created topic letters.\n"


def test_rules_of_a_protected_tree_are_changed(zookeeper: ZooKeeperProcess, file: str) -> None:
    acls = ("acls", "--authorizer-properties", f"zookeeper.connect={zookeeper.address}")
    added = tool(*acls, "--add", *RULE, "--zk-tls-config-file", file)
    assert added.exit_code == 0, added.output
    assert tool(*acls, "--add", *RULE, "--allow-host", "10.0.0.1").exit_code == 1
    assert "User:alice" in tool(*acls, "--list", "--zk-tls-config-file", file).stdout


def test_the_tree_of_a_broker_is_exported_with_the_identity_of_the_brokers(
    zookeeper: ZooKeeperProcess, file: str, tmp_path: Path
) -> None:
    with EmbeddedTree(tmp_path / FILE_NAME) as tree:
        tree.create(paths.CLUSTER_ID, b'{"version":"1","id":"Y2x1c3RlciBmb3IgYSB0ZXN"}', make_parents=True)
    place = f"{zookeeper.address}/exported"
    done = tool("tree", "export", str(tmp_path), "--zookeeper", place, "--zk-tls-config-file", file)
    assert done.exit_code == 0, done.output

    async def change() -> None:
        async with await ZooKeeperTree.connect(place, rng=random.Random()) as tree:
            await tree.set(paths.CLUSTER_ID, b"{}")

    with pytest.raises(TreeError, match=DENIED):
        asyncio.run(change())


def test_users_are_stored_over_tls(tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path / "certificates", "secret")
    port = free_port()
    written = tmp_path / "tls.properties"
    written.write_text(
        "zookeeper.clientCnxnSocket=org.apache.zookeeper.ClientCnxnSocketNetty\n"
        "zookeeper.ssl.client.enable=true\nzookeeper.ssl.enabled.protocols=TLSv1.2,TLSv1.3\n"
        f"zookeeper.ssl.keystore.location={certificates.client}\nzookeeper.ssl.keystore.type=PEM\n"
        f"zookeeper.ssl.truststore.location={certificates.authority}\nzookeeper.ssl.truststore.type=PEM\n"
    )
    secure = tls_settings(port, certificates.server, certificates.authority)
    with zookeeper_server(tmp_path / "data", secure):
        flags = ("--zookeeper", f"127.0.0.1:{port}", "--zk-tls-config-file", str(written))
        changed = tool("configs", *flags, *USER, *PASSWORD)
        assert changed.exit_code == 0, changed.output
        assert "SCRAM-SHA-256=" in tool("configs", *flags, *USER, "--describe").stdout


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("zookeeper.set.acl=true\n", "zookeeper.set.acl"),
        ("zookeeper.ssl.client.enable=true\nzookeeper.ssl.truststore.location=/missing\n", "/missing"),
        (None, "cannot be read"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_in_one_line(
    tmp_path: Path, text: str | None, problem: str
) -> None:
    file = tmp_path / "zookeeper.properties"
    if text is not None:
        file.write_text(text)
    flags = ("--zookeeper", "127.0.0.1:1", "--zk-tls-config-file", str(file))
    refused = tool("configs", *flags, *USER, "--describe")
    assert refused.exit_code == 1
    assert problem in refused.output
    assert refused.exception is None or isinstance(refused.exception, SystemExit)


@pytest.mark.parametrize(
    "arguments",
    [
        ("configs", *USER, "--describe"),
        ("topics", "--list"),
        ("acls", "--list"),
    ],
)
def test_the_file_is_for_tools_without_a_broker(arguments: tuple[str, ...], file: str) -> None:
    refused = tool(*arguments, "--zk-tls-config-file", file)
    assert (refused.exit_code, "--zk-tls-config-file goes with" in refused.output) == (1, True)
