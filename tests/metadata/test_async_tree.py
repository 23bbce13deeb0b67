"""ZooKeeper, the embedded tree and the simulated ZooKeeper behave the same."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.metadata.trees import (
    Backend,
    SimulatedBackend,
    ThreadedBackend,
    ZooKeeperBackend,
    run,
    with_trees,
)
from tests.support.scale import scale
from tests.support.wait import eventually_async
from tidelog.metadata.async_tree import AsyncTree, delete_recursively, ensure_path, subtree
from tidelog.metadata.tree import (
    BadVersion,
    Check,
    Create,
    Delete,
    EventType,
    NoChildrenForEphemerals,
    NodeExists,
    NoNode,
    NotEmpty,
    Operation,
    SetData,
    Stat,
    TreeError,
    TreeUnavailable,
    WatchEvent,
)
from tidelog.server.zookeeper_process import ZooKeeperProcess

CREATED, CHANGED, DELETED, CHILDREN = (
    EventType.CREATED,
    EventType.CHANGED,
    EventType.DELETED,
    EventType.CHILDREN,
)


def make(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    if kind == "threaded":
        return ThreadedBackend(tmp_path)
    if kind == "simulated":
        return SimulatedBackend()
    server: ZooKeeperProcess = request.getfixturevalue("zookeeper")
    return ZooKeeperBackend(f"{server.address}/{uuid.uuid4().hex}")


@pytest.fixture(params=["zookeeper", "threaded", "simulated"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    return make(request.param, request, tmp_path)


@pytest.fixture(params=["zookeeper", "simulated"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    """A store with several sessions at a time."""
    return make(request.param, request, tmp_path)


def test_a_node_is_read_as_it_was_written(backend: Backend) -> None:
    async def story(tree: AsyncTree) -> None:
        assert await tree.create("/a", b"\x00\xff") == "/a"
        data, stat = await tree.get("/a")
        assert data == b"\x00\xff"
        assert (stat.version, stat.cversion, stat.ephemeral_owner, stat.children) == (0, 0, 0, 0)
        assert stat.czxid == stat.mzxid > 0
        assert await tree.exists("/a") == stat
        assert await tree.exists("/b") is None
        assert await tree.get("/") == (b"", await tree.exists("/"))

    with_trees(backend, story)


def test_versions_count_changes_and_guard_them(backend: Backend) -> None:
    async def story(tree: AsyncTree) -> None:
        await tree.create("/a", b"0")
        first = await tree.set("/a", b"1")
        second = await tree.set("/a", b"2", version=1)
        assert (first.version, second.version) == (1, 2)
        assert second.czxid < first.mzxid < second.mzxid
        with pytest.raises(BadVersion):
            await tree.set("/a", b"lost", version=1)
        with pytest.raises(BadVersion):
            await tree.delete("/a", version=1)
        assert (await tree.get("/a"))[0] == b"2"
        await tree.delete("/a", version=2)
        for call in (tree.get("/a"), tree.set("/a", b""), tree.delete("/a"), tree.children("/a")):
            with pytest.raises(NoNode) as missing:
                await call
            assert missing.value.path == "/a"

    with_trees(backend, story)


def test_parents_and_children(backend: Backend) -> None:
    async def story(tree: AsyncTree) -> None:
        with pytest.raises(NoNode):
            await tree.create("/a/b")
        await ensure_path(tree, "/a/b/c")
        await ensure_path(tree, "/a/b/c")
        await tree.create("/a/z")
        await tree.create("/a/d")
        assert await tree.children("/a") == ["b", "d", "z"]
        assert await tree.children("/") == ["a"]
        with pytest.raises(NodeExists):
            await tree.create("/a/b")
        with pytest.raises(NotEmpty):
            await tree.delete("/a")
        _, stat = await tree.get("/a")
        assert (stat.children, stat.cversion) == (3, 3)
        assert await subtree(tree, "/a") == ["/a", "/a/b", "/a/d", "/a/z", "/a/b/c"]
        await delete_recursively(tree, "/a", at_once=2)
        assert await tree.exists("/a") is None
        assert await subtree(tree, "/a") == []

    with_trees(backend, story)


def test_sequential_nodes_are_numbered_by_their_parent(backend: Backend) -> None:
    async def story(tree: AsyncTree) -> None:
        await tree.create("/q")
        assert await tree.create("/q/n_", sequential=True) == "/q/n_0000000000"
        await tree.create("/q/other")
        assert await tree.create("/q/n_", b"x", sequential=True) == "/q/n_0000000002"
        await tree.delete("/q/n_0000000002")
        assert await tree.multi([Create("/q/m_", sequential=True)]) == ["/q/m_0000000003"]

    with_trees(backend, story)


def test_ephemeral_nodes_belong_to_the_session_and_end_with_it(backend: Backend) -> None:
    async def story(tree: AsyncTree) -> None:
        await tree.create("/e", b"mine", ephemeral=True)
        _, stat = await tree.get("/e")
        assert stat.ephemeral_owner == tree.session_id != 0
        with pytest.raises(NoChildrenForEphemerals):
            await tree.create("/e/child")
        await tree.close()
        with pytest.raises(TreeUnavailable):
            await tree.get("/e")
        await tree.close()
        again = await backend.open()
        try:
            assert await again.exists("/e") is None
            assert again.session_id != stat.ephemeral_owner
        finally:
            await again.close()

    with_trees(backend, story)


def test_a_multi_does_all_or_nothing(backend: Backend) -> None:
    async def story(tree: AsyncTree) -> None:
        assert await tree.multi([]) == []
        results = await tree.multi(
            [
                Create("/a", b"1"),
                Create("/a/b"),
                SetData("/a", b"2", 0),
                Check("/a", 1),
                Delete("/a/b"),
            ]
        )
        made, below, stat, checked, deleted = results
        assert (made, below, checked, deleted) == ("/a", "/a/b", None, None)
        assert isinstance(stat, Stat)
        assert stat.version == 1
        before = await tree.get("/a")
        for failing, error in (
            (SetData("/a", b"", 7), BadVersion),
            (Check("/a", 0), BadVersion),
            (Check("/none", 0), NoNode),
            (Create("/a"), NodeExists),
            (Create("/none/b"), NoNode),
            (Delete("/none"), NoNode),
        ):
            with pytest.raises(error) as refused:
                await tree.multi([SetData("/a", b"3"), Create("/c"), failing, Create("/d")])
            assert refused.value.path == failing.path
        after, unchanged = await tree.get("/a")
        assert (after, unchanged) == before
        assert await tree.children("/") == ["a"]

    with_trees(backend, story)


def test_watches_are_called_once_for_the_next_change(backend: Backend) -> None:
    async def story(tree: AsyncTree) -> None:
        seen: list[WatchEvent] = []
        assert await tree.exists("/a", seen.append) is None
        await tree.create("/a")
        assert seen == [WatchEvent(CREATED, "/a")], "the event comes before the answer of the change"
        await tree.set("/a", b"1")
        assert len(seen) == 1, "a watch is called once"
        seen.clear()
        await tree.get("/a", seen.append)
        await tree.children("/a", seen.append)
        await tree.create("/a/b")
        await tree.set("/a", b"2")
        assert seen == [WatchEvent(CHILDREN, "/a"), WatchEvent(CHANGED, "/a")]
        seen.clear()
        await tree.exists("/a/b", seen.append)
        await tree.children("/a", seen.append)
        await tree.delete("/a/b")
        assert seen == [WatchEvent(DELETED, "/a/b"), WatchEvent(CHILDREN, "/a")]
        seen.clear()
        await tree.children("/a", seen.append)
        await tree.delete("/a")
        assert seen == [WatchEvent(DELETED, "/a")]
        with pytest.raises(NoNode):
            await tree.get("/a", seen.append)
        await tree.create("/a")
        assert len(seen) == 1, "a failed get sets no watch"

    with_trees(backend, story)


def test_a_watch_that_is_set_twice_is_called_once(backend: Backend) -> None:
    async def story(tree: AsyncTree) -> None:
        await tree.create("/a")
        seen: list[WatchEvent] = []
        others: list[WatchEvent] = []
        await tree.get("/a", seen.append)
        await tree.exists("/a", seen.append)
        await tree.get("/a", others.append)
        await tree.set("/a", b"")
        await tree.get("/a")
        assert seen == [WatchEvent(CHANGED, "/a")]
        assert others == [WatchEvent(CHANGED, "/a")]
        seen.clear()
        await tree.get("/a", seen.append)
        await tree.exists("/a", seen.append)
        await tree.children("/a", seen.append)
        await tree.delete("/a")
        await tree.exists("/a")
        assert seen == [WatchEvent(DELETED, "/a")]

    with_trees(backend, story)


def test_the_answer_that_set_a_watch_comes_before_its_event(backend: Backend) -> None:
    async def story(tree: AsyncTree) -> None:
        await tree.create("/a", b"0")
        order: list[str] = []

        async def read() -> None:
            data, _ = await tree.get("/a", lambda event: order.append("event"))
            order.append(f"read {data.decode()}")

        for _ in range(50):
            order.clear()
            await asyncio.gather(read(), tree.set("/a", b"0"), tree.get("/a"))
            assert order == ["read 0", "event"]

    with_trees(backend, story)


def test_calls_are_pipelined_and_made_in_order(backend: Backend) -> None:
    async def story(tree: AsyncTree) -> None:
        await tree.create("/a")
        calls = [tree.set("/a", b"%d" % number) for number in range(100)]
        stats = await asyncio.gather(*calls)
        assert [stat.version for stat in stats] == list(range(1, 101))
        assert (await tree.get("/a"))[0] == b"99"

    with_trees(backend, story)


def test_many_nodes_are_read_at_once_without_the_missing_ones(backend: Backend) -> None:
    async def story(tree: AsyncTree) -> None:
        await ensure_path(tree, "/n")
        paths = [f"/n/{number}" for number in range(1200)]
        await asyncio.gather(*(tree.create(path, path.encode()) for path in paths))
        found = await tree.get_all(["/none", *paths, paths[0]])
        assert list(found) == paths
        assert all(found[path][0] == path.encode() for path in paths)
        children = await tree.children_of_all(["/n", "/none", "/n/1"])
        assert children == {"/n": sorted(path[3:] for path in paths), "/n/1": []}
        assert await tree.get_all([]) == {}
        await delete_recursively(tree, "/n")
        assert await tree.get_all(paths) == {}

    with_trees(backend, story)


@pytest.mark.parametrize("path", ["a", "/a/", "//", "/a//b", "/./a", "/a\0"])
def test_paths_that_name_no_node_are_refused(backend: Backend, path: str) -> None:
    async def story(tree: AsyncTree) -> None:
        for call in (tree.create(path), tree.get(path), tree.multi([Delete(path)]), tree.get_all([path])):
            with pytest.raises(ValueError, match="is not the path of a node"):
                await call
        with pytest.raises(ValueError, match="root"):
            await tree.delete("/")

    with_trees(backend, story)


def test_a_cancelled_read_leaves_the_others_alone(backend: Backend) -> None:
    async def story(tree: AsyncTree) -> None:
        await tree.create("/a", b"1")
        reads = [asyncio.ensure_future(tree.get("/a")) for _ in range(10)]
        await asyncio.sleep(0)
        reads[4].cancel()
        answers = await asyncio.gather(*reads, return_exceptions=True)
        assert isinstance(answers.pop(4), asyncio.CancelledError)
        assert all(isinstance(answer, tuple) and answer[0] == b"1" for answer in answers)

    with_trees(backend, story)


def test_sessions_see_each_other(shared: Backend) -> None:
    async def story(one: AsyncTree, two: AsyncTree) -> None:
        seen: list[WatchEvent] = []
        await one.create("/ids")
        assert await two.children("/ids", seen.append) == []
        await one.create("/ids/1", ephemeral=True)
        await eventually_async(lambda: seen, "the new node is seen")
        assert await two.exists("/ids/1", seen.append) is not None
        assert await two.children("/ids", seen.append) == ["1"]
        with pytest.raises(NodeExists):
            await two.create("/ids/1", ephemeral=True)
        await one.close()
        await eventually_async(lambda: len(seen) == 3, "the end of the session is seen")
        assert seen[1:] == [WatchEvent(DELETED, "/ids/1"), WatchEvent(CHILDREN, "/ids")]

    with_trees(shared, story, 2)


def test_an_event_comes_before_a_read_that_shows_the_change(shared: Backend) -> None:
    async def story(writer: AsyncTree, reader: AsyncTree) -> None:
        await writer.create("/a", b"0")
        for number in range(1, 40):
            seen: list[WatchEvent] = []
            await reader.get("/a", seen.append)
            change = asyncio.ensure_future(writer.set("/a", b"%d" % number))
            while (await reader.get("/a"))[0] != b"%d" % number:
                pass
            assert seen == [WatchEvent(CHANGED, "/a")]
            await change

    with_trees(shared, story, 2)


def comparable(value: object) -> object:
    """What trees with different clocks, sessions and histories have in common."""
    match value:
        case Stat():
            return value.version, value.cversion, value.children, value.ephemeral_owner != 0
        case tuple() | list():
            return [comparable(item) for item in value]
    return value


async def outcome(call: Awaitable[object]) -> object:
    try:
        return comparable(await call)
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


def random_call(rng: random.Random, seen: list[WatchEvent]) -> Callable[[AsyncTree], Awaitable[object]]:
    path, version = random_path(rng), rng.choice([-1, -1, 0, 1, 2])
    data = b"%d" % rng.randrange(99)
    ephemeral, sequential = rng.random() < 0.1, rng.random() < 0.3
    operations = [random_operation(rng) for _ in range(rng.randint(1, 3))]
    watch = seen.append if rng.random() < 0.5 else None
    calls: list[Callable[[AsyncTree], Awaitable[object]]] = [
        lambda tree: tree.create(path, data, ephemeral=ephemeral, sequential=sequential),
        lambda tree: ensure_path(tree, path),
        lambda tree: tree.get(path, watch),
        lambda tree: tree.set(path, data, version),
        lambda tree: tree.delete(path, version),
        lambda tree: tree.exists(path, watch),
        lambda tree: tree.children(path, watch),
        lambda tree: tree.multi(operations),
    ]
    return rng.choice(calls)


async def random_story(tree: AsyncTree, seed: int, seen: list[WatchEvent]) -> list[object]:
    rng = random.Random(seed)
    answers = [await outcome(random_call(rng, seen)(tree)) for _ in range(400)]
    nodes = await tree.get_all(await subtree(tree, "/"))
    return [*answers, *((path, data, comparable(stat)) for path, (data, stat) in nodes.items())]


@pytest.mark.parametrize("seed", range(scale(3, 30)))
def test_all_trees_answer_the_same(request: pytest.FixtureRequest, tmp_path: Path, seed: int) -> None:
    told = []
    for kind in ("threaded", "simulated", "zookeeper"):
        seen: list[WatchEvent] = []
        store = make(kind, request, tmp_path)
        answers = with_trees(store, lambda tree: random_story(tree, seed, seen))  # noqa: B023
        told.append((answers, seen))
    assert told[0] == told[1] == told[2]


def test_kazoo_reads_what_we_write(zookeeper: ZooKeeperProcess) -> None:
    from kazoo.client import KazooClient

    store = ZooKeeperBackend(f"{zookeeper.address}/kazoo")

    async def story() -> dict[str, tuple[bytes, Stat]]:
        tree = await store.open()
        await random_story(tree, 77, [])
        nodes = await tree.get_all(await subtree(tree, "/"))
        await tree.close()
        return {path: found for path, found in nodes.items() if not found[1].ephemeral_owner}

    ours = run(store.loop, story)
    assert len(ours) > 3
    client = KazooClient(store.connect)
    client.start()
    try:
        for path, (data, stat) in ours.items():
            read, theirs = client.get(path)
            assert read == data
            assert (theirs.czxid, theirs.mzxid, theirs.ctime, theirs.mtime, theirs.version) == stat[:5]
    finally:
        client.stop()
        client.close()
