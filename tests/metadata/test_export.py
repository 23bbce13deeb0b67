"""An exported tree holds what the broker knew, and never overwrites a cluster that nobody gave up."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidelog.endpoints import Endpoint
from tidelog.metadata.async_tree import subtree
from tidelog.metadata.embedded_tree import EmbeddedTree
from tidelog.metadata.export import Exported, ExportRefused, OnProgress
from tidelog.metadata.export import export_tree as export_to
from tidelog.metadata.nodes import BrokerNode, random_id
from tidelog.metadata.state import PartitionState, TopicState
from tidelog.metadata.store import MetadataStore
from tidelog.metadata.threaded_tree import ThreadedTree
from tidelog.metadata.tree import Tree, walk
from tidelog.metadata.zookeeper import ZooKeeperTree
from tidelog.server.zookeeper_process import ZooKeeperProcess


def export_tree(
    source: EmbeddedTree, target: EmbeddedTree, *, force: bool = False, progress: OnProgress | None = None
) -> Exported:
    """Export into an embedded tree, which stays open."""

    async def export() -> Exported:
        return await export_to(source, ThreadedTree(target), force=force, progress=progress)

    return asyncio.run(export())


@pytest.fixture
def source(tmp_path: Path) -> Iterator[EmbeddedTree]:
    with EmbeddedTree(tmp_path / "source") as tree:
        store = MetadataStore(tree)
        store.prepare()
        store.cluster_id()
        store.generate_broker_id()
        store.generate_broker_id()
        store.elect(1)
        store.register_broker(1, BrokerNode([Endpoint("PLAINTEXT", "PLAINTEXT", "h", 9092)], 5))
        partition = PartitionState([1], 1, 3, [1], controller_epoch=1)
        store.create_topics([TopicState("demo", random_id(), {0: partition}, {"retention.ms": "5"})])
        store.write_config("users/al%20ice", {"producer_byte_rate": "1"})
        store.allocate_producer_ids(1)
        yield tree


@pytest.fixture
def target(tmp_path: Path) -> Iterator[EmbeddedTree]:
    with EmbeddedTree(tmp_path / "target") as tree:
        yield tree


def contents(tree: Tree) -> dict[str, bytes]:
    return {path: data for path, data, _ in walk(tree)}


def test_everything_that_stays_is_exported(source: EmbeddedTree, target: EmbeddedTree) -> None:
    progress: list[tuple[int, int]] = []
    written = export_tree(source, target, progress=lambda done, total: progress.append((done, total)))
    expected = contents(source)
    for left_out in ("/controller", "/brokers/ids/1", "/config/changes/config_change_0000000000"):
        del expected[left_out]
    assert contents(target) == expected
    assert written.topics == 1
    assert progress[-1] == (written.nodes, written.nodes)
    assert [done for done, _ in progress] == list(range(1, written.nodes + 1))


def test_the_exported_cluster_goes_on_where_the_other_stopped(
    source: EmbeddedTree, target: EmbeddedTree
) -> None:
    export_tree(source, target)
    before, after = MetadataStore(source), MetadataStore(target)
    assert after.cluster_id() == before.cluster_id()
    assert after.read_topics() == before.read_topics()
    assert after.elect(1) == 2
    assert after.generate_broker_id() == 1003
    assert after.allocate_producer_ids(1) == range(1000, 2000)


def test_a_cluster_that_is_there_is_refused_and_left_alone(
    source: EmbeddedTree, target: EmbeddedTree
) -> None:
    other = MetadataStore(target)
    other.prepare()
    other.cluster_id()
    before = contents(target)
    with pytest.raises(ExportRefused, match="holds a Kafka cluster already"):
        export_tree(source, target)
    assert contents(target) == before


def test_with_force_a_cluster_is_replaced_and_strangers_are_not(
    source: EmbeddedTree, target: EmbeddedTree
) -> None:
    other = MetadataStore(target)
    other.prepare()
    other.cluster_id()
    partition = PartitionState([1], 1, 0, [1])
    other.create_topics([TopicState("gone", random_id(), {0: partition})])
    target.create("/hbase/x", b"not ours", make_parents=True)
    export_tree(source, target, force=True)
    assert set(MetadataStore(target).read_topics()) == {"demo"}
    assert target.get("/hbase/x")[0] == b"not ours"


@pytest.mark.parametrize("force", [False, True])
def test_running_brokers_are_never_written_under(
    source: EmbeddedTree, target: EmbeddedTree, force: bool
) -> None:
    target.create("/brokers/ids/3", b"{}", ephemeral=True, make_parents=True)
    with pytest.raises(ExportRefused, match="running"):
        export_tree(source, target, force=force)


def test_an_export_cut_short_is_refused_until_forced(source: EmbeddedTree, target: EmbeddedTree) -> None:
    class PowerCut(Exception):
        pass

    def cut(done: int, _total: int) -> None:
        if done == 5:
            raise PowerCut

    with pytest.raises(PowerCut):
        export_tree(source, target, progress=cut)
    with pytest.raises(ExportRefused):
        export_tree(source, target)
    export_tree(source, target, force=True)
    assert set(MetadataStore(target).read_topics()) == {"demo"}


def test_an_empty_tree_is_not_exported(tmp_path: Path, target: EmbeddedTree) -> None:
    with EmbeddedTree(tmp_path / "empty") as empty, pytest.raises(ExportRefused, match="nothing to export"):
        export_tree(empty, target)


def test_a_tree_that_kafka_wrote_is_exported_as_it_is(tmp_path: Path, target: EmbeddedTree) -> None:
    kafkas = json.loads((Path(__file__).parent.parent / "data" / "zookeeper-tree.json").read_text())
    with EmbeddedTree(tmp_path / "kafkas") as source:
        for path, node in kafkas.items():
            if path != "/":
                source.create(path, (node["data"] or "").encode(), ephemeral=node["ephemeral"])
        export_tree(source, target)
    kept = {
        path: (node["data"] or "").encode()
        for path, node in kafkas.items()
        if not node["ephemeral"] and not path.startswith("/config/changes/")
    }
    assert contents(target) == kept


def test_a_tree_goes_into_a_real_zookeeper_and_replaces_another(
    source: EmbeddedTree, zookeeper: ZooKeeperProcess
) -> None:
    async def export() -> dict[str, bytes]:
        target = await ZooKeeperTree.connect(f"{zookeeper.address}/export/deep", rng=random.Random(1))
        try:
            first = await export_to(source, target)
            second = await export_to(source, target, force=True)
            assert first == second
            sequence = await target.exists("/brokers/seqid")
            assert sequence is not None
            assert sequence.version == 2
            nodes = await target.get_all(await subtree(target, "/"))
        finally:
            await target.close()
        return {path: data for path, (data, _) in nodes.items()}

    expected = contents(source)
    for left_out in ("/controller", "/brokers/ids/1", "/config/changes/config_change_0000000000"):
        del expected[left_out]
    assert asyncio.run(export()) == expected
