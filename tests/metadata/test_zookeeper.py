"""The embedded tree and a real ZooKeeper answer the same to the same operations."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kafka.servers import ZooKeeper
from tests.support.scale import scale
from tests.support.wait import eventually
from tidelog.metadata.embedded import FILE_NAME, EmbeddedTree
from tidelog.metadata.export import export_tree
from tidelog.metadata.store import MetadataStore
from tidelog.metadata.tree import (
    Check,
    Create,
    Delete,
    EventType,
    Operation,
    SetData,
    Stat,
    Tree,
    TreeError,
    TreeUnavailable,
    WatchEvent,
    walk,
)
from tidelog.metadata.zookeeper import ZooKeeperTree

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    with ZooKeeper(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


def comparable(value: object) -> object:
    """What two trees with different clocks and sessions have in common."""
    match value:
        case Stat():
            return value.version, value.cversion, value.children, value.ephemeral_owner != 0
        case tuple() | list():
            return [comparable(item) for item in value]
    return value


def outcome(call: Callable[[], object]) -> object:
    try:
        return comparable(call())
    except TreeError as error:
        return type(error), error.path


def random_path(rng: random.Random) -> str:
    return "".join(f"/{rng.choice('abc')}" for _ in range(rng.randint(1, 3)))


def random_operation(rng: random.Random) -> Operation:
    path, version = random_path(rng), rng.choice([-1, -1, 0, 1, 2])
    return rng.choice(
        [
            Create(path, b"%d" % rng.randrange(99)),
            Create(path, b"", ephemeral=rng.random() < 0.2, sequential=rng.random() < 0.5),
            SetData(path, b"%d" % rng.randrange(99), version),
            Delete(path, version),
            Check(path, max(0, version)),
        ]
    )


def random_call(rng: random.Random) -> Callable[[Tree], object]:
    path, version = random_path(rng), rng.choice([-1, -1, 0, 1, 2])
    data = b"%d" % rng.randrange(99)
    ephemeral, sequential, parents = (rng.random() < chance for chance in (0.1, 0.3, 0.3))
    operations = [random_operation(rng) for _ in range(rng.randint(1, 3))]
    calls: list[Callable[[Tree], object]] = [
        lambda tree: tree.create(
            path, data, ephemeral=ephemeral, sequential=sequential, make_parents=parents
        ),
        lambda tree: tree.get(path),
        lambda tree: tree.set(path, data, version),
        lambda tree: tree.delete(path, version),
        lambda tree: tree.exists(path),
        lambda tree: tree.children(path),
        lambda tree: tree.multi(operations),
    ]
    return rng.choice(calls)


@pytest.mark.parametrize("seed", range(scale(3, 30)))
def test_both_trees_answer_the_same(tmp_path: Path, zookeeper: ZooKeeper, seed: int) -> None:
    rng = random.Random(seed)
    with (
        EmbeddedTree(tmp_path / FILE_NAME) as ours,
        ZooKeeperTree(f"{zookeeper.bootstrap}/same{seed}") as theirs,
    ):
        for step in range(400):
            call = random_call(rng)
            assert outcome(lambda: call(ours)) == outcome(lambda: call(theirs)), step  # noqa: B023
        assert [(path, data, comparable(stat)) for path, data, stat in walk(ours)] == [
            (path, data, comparable(stat)) for path, data, stat in walk(theirs)
        ]


def test_watches_of_a_real_zookeeper_tell_the_same(zookeeper: ZooKeeper) -> None:
    with (
        ZooKeeperTree(f"{zookeeper.bootstrap}/watches") as watching,
        ZooKeeperTree(f"{zookeeper.bootstrap}/watches") as changing,
    ):
        seen: list[WatchEvent] = []
        watching.exists("/a", seen.append)
        changing.create("/a")
        eventually(lambda: len(seen) == 1, "the creation is seen")
        watching.get("/a", seen.append)
        watching.children("/a", seen.append)
        changing.create("/a/b")
        changing.set("/a", b"x")
        eventually(lambda: len(seen) == 3, "child and change are seen")
        assert seen == [
            WatchEvent(EventType.CREATED, "/a"),
            WatchEvent(EventType.CHILDREN, "/a"),
            WatchEvent(EventType.CHANGED, "/a"),
        ]


def test_nobody_at_the_address_is_said_so() -> None:
    with pytest.raises(TreeUnavailable, match="no ZooKeeper answered"):
        ZooKeeperTree("127.0.0.1:1", connect_timeout=1)


def test_a_tree_goes_into_a_zookeeper_and_replaces_another(tmp_path: Path, zookeeper: ZooKeeper) -> None:
    with (
        EmbeddedTree(tmp_path / FILE_NAME) as source,
        ZooKeeperTree(f"{zookeeper.bootstrap}/export/deep") as target,
    ):
        store = MetadataStore(source)
        store.prepare()
        store.cluster_id()
        store.generate_broker_id()
        export_tree(source, target)
        export_tree(source, target, force=True)
        assert [path for path, _, _ in walk(target)] == [path for path, _, _ in walk(source)]
        assert MetadataStore(target).cluster_id() == store.cluster_id()
        assert MetadataStore(target).generate_broker_id() == 1002
