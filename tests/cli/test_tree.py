"""`tidelog tree export` writes a broker's tree elsewhere and says why when it cannot."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tidelog.cli.main import main
from tidelog.metadata.embedded_tree import FILE_NAME, EmbeddedTree
from tidelog.metadata.nodes import encode_config
from tidelog.metadata.threaded_tree import ThreadedTree
from tidelog.metadata.zookeeper import ZooKeeperSettings, ZooKeeperTree
from tidelog.security.password_encoder import PasswordEncoder

Export = Callable[..., Result]
CLUSTER = b'{"version":"1","id":"Y2x1c3RlciBmb3IgYSB0ZXN"}'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A log folder with the tree of a broker that made one topic."""
    folder = tmp_path / "data"
    folder.mkdir()
    with EmbeddedTree(folder / FILE_NAME) as tree:
        tree.create("/cluster/id", CLUSTER, make_parents=True)
        tree.create("/brokers/topics/t", b'{"partitions":{"0":[1]}}', make_parents=True)
        tree.create("/brokers/ids/1", b"alive", ephemeral=True, make_parents=True)
    return folder


@pytest.fixture
def export(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Export:
    """The command, with another embedded store in the place of the ZooKeeper."""

    async def connect(_connect: str, _settings: ZooKeeperSettings, *, rng: random.Random) -> ThreadedTree:
        return ThreadedTree(EmbeddedTree(tmp_path / "target"))

    monkeypatch.setattr(ZooKeeperTree, "connect", connect)
    return lambda *arguments: CliRunner().invoke(
        main, ["tree", "export", str(folder), "--zookeeper", "zk:2181", *arguments]
    )


def test_the_tree_arrives_without_what_belongs_to_a_process(export: Export, tmp_path: Path) -> None:
    done = export()
    assert done.exit_code == 0, done.output
    assert "with 1 topics to zk:2181" in done.stdout
    with EmbeddedTree(tmp_path / "target") as target:
        assert target.get("/cluster/id")[0] == CLUSTER
        assert target.get("/brokers/topics/t")[0] == b'{"partitions":{"0":[1]}}'
        assert target.exists("/brokers/ids/1") is None


def test_a_cluster_that_is_there_is_replaced_only_by_force(export: Export) -> None:
    assert export().exit_code == 0
    refused = export()
    assert refused.exit_code == 1
    assert "--force" in refused.stderr
    assert export("--force").exit_code == 0


def test_a_broker_that_is_running_is_not_exported(export: Export, folder: Path) -> None:
    with EmbeddedTree(folder / FILE_NAME):
        refused = export()
    assert refused.exit_code == 1
    assert "Error: " in refused.stderr
    assert "Traceback" not in refused.output


def test_a_folder_without_a_tree_is_refused(tmp_path: Path) -> None:
    refused = CliRunner().invoke(main, ["tree", "export", str(tmp_path), "--zookeeper", "zk:2181"])
    assert refused.exit_code == 1
    assert f"{tmp_path} has no {FILE_NAME}" in refused.stderr


def test_the_zookeeper_must_be_named(folder: Path) -> None:
    refused = CliRunner().invoke(main, ["tree", "export", str(folder)])
    assert refused.exit_code == 2
    assert "--zookeeper" in refused.stderr


@pytest.mark.parametrize("entity", ["1001", "<default>"])
def test_a_password_that_is_not_encrypted_stays_here(
    export: Export, folder: Path, tmp_path: Path, entity: str
) -> None:
    name = "listener.name.outside.ssl.key.password"
    with EmbeddedTree(folder / FILE_NAME) as tree:
        stored = {"log.cleaner.threads": "2", name: "planted-secret"}
        tree.create(f"/config/brokers/{entity}", encode_config(stored), make_parents=True)
    refused = export()
    assert refused.exit_code == 1
    assert f"the stored settings of broker {entity} have the password {name} unencrypted" in refused.stderr
    assert "planted-secret" not in refused.output
    with EmbeddedTree(tmp_path / "target") as target:
        assert target.exists("/cluster/id") is None


def test_an_encrypted_password_is_exported(export: Export, folder: Path, tmp_path: Path) -> None:
    encoded = PasswordEncoder("the secret", None, "PBKDF2WithHmacSHA512").encode("planted-secret")
    with EmbeddedTree(folder / FILE_NAME) as tree:
        stored = encode_config({"listener.name.outside.ssl.key.password": encoded})
        tree.create("/config/brokers/1001", stored, make_parents=True)
    assert export().exit_code == 0
    with EmbeddedTree(tmp_path / "target") as target:
        assert target.get("/config/brokers/1001")[0] == stored
