"""The embedded tree behaves as ZooKeeper does, and keeps what it acknowledged."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidelog.clock import ManualClock
from tidelog.metadata.embedded_tree import FILE_NAME, EmbeddedTree
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
    SetData,
    TreeUnavailable,
    WatchEvent,
    delete_recursively,
    walk,
)


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[EmbeddedTree]:
    with EmbeddedTree(tmp_path / FILE_NAME, ManualClock(1000)) as opened:
        yield opened


def test_a_node_is_read_as_it_was_written(tree: EmbeddedTree) -> None:
    assert tree.create("/a", b"\x00\xff") == "/a"
    data, stat = tree.get("/a")
    assert data == b"\x00\xff"
    assert (stat.version, stat.cversion, stat.ephemeral_owner, stat.ctime) == (0, 0, 0, 1000)


def test_versions_count_the_changes_and_zxids_number_them(tree: EmbeddedTree) -> None:
    tree.create("/a")
    first = tree.set("/a", b"1")
    second = tree.set("/a", b"2", version=1)
    assert (first.version, second.version) == (1, 2)
    assert second.czxid < first.mzxid < second.mzxid


def test_a_change_that_expects_another_version_is_refused(tree: EmbeddedTree) -> None:
    tree.create("/a", b"kept")
    with pytest.raises(BadVersion):
        tree.set("/a", b"lost", version=3)
    with pytest.raises(BadVersion):
        tree.delete("/a", version=1)
    assert tree.get("/a")[0] == b"kept"


def test_a_node_needs_its_parent_unless_parents_are_made(tree: EmbeddedTree) -> None:
    with pytest.raises(NoNode):
        tree.create("/a/b/c")
    tree.create("/a/b/c", b"x", make_parents=True)
    assert tree.children("/a") == ["b"]
    with pytest.raises(NodeExists):
        tree.create("/a/b/c", make_parents=True)


def test_a_node_with_children_is_not_deleted(tree: EmbeddedTree) -> None:
    tree.create("/a/b", make_parents=True)
    with pytest.raises(NotEmpty):
        tree.delete("/a")
    delete_recursively(tree, "/a")
    assert tree.exists("/a") is None
    with pytest.raises(NoNode):
        tree.delete("/a")


@pytest.mark.parametrize("path", ["", "a", "/a/", "//", "/a//b", "/a/../b", "/a/.", "/a\0"])
def test_what_is_not_a_path_is_refused(tree: EmbeddedTree, path: str) -> None:
    with pytest.raises(ValueError):
        tree.create(path)


def test_the_root_stays(tree: EmbeddedTree) -> None:
    with pytest.raises(ValueError):
        tree.delete("/")
    assert tree.children("/") == []


def test_sequential_nodes_are_never_numbered_twice(tree: EmbeddedTree) -> None:
    tree.create("/q")
    assert tree.create("/q/n_", sequential=True) == "/q/n_0000000000"
    assert tree.create("/q/n_", sequential=True) == "/q/n_0000000001"
    tree.delete("/q/n_0000000001")
    assert tree.create("/q/n_", sequential=True) == "/q/n_0000000002"
    assert tree.children("/q") == ["n_0000000000", "n_0000000002"]


def test_cversion_counts_children_made_and_removed(tree: EmbeddedTree) -> None:
    tree.create("/q")
    tree.create("/q/a")
    tree.create("/q/b")
    tree.delete("/q/a")
    stat = tree.exists("/q")
    assert stat is not None
    assert (stat.cversion, stat.children) == (3, 1)


def test_a_multi_is_done_as_a_whole(tree: EmbeddedTree) -> None:
    tree.create("/a", b"old")
    results = tree.multi([Check("/a", 0), SetData("/a", b"new"), Create("/a/b"), Create("/b"), Delete("/b")])
    assert results[2:] == ["/a/b", "/b", None]
    assert [path for path, _, _ in walk(tree)] == ["/", "/a", "/a/b"]


def test_a_multi_that_fails_in_the_middle_changes_nothing(tree: EmbeddedTree) -> None:
    tree.create("/a", b"old")
    seen: list[WatchEvent] = []
    tree.get("/a", seen.append)
    with pytest.raises(NoNode) as failure:
        tree.multi([SetData("/a", b"new"), Create("/b"), Delete("/missing")])
    assert failure.value.path == "/missing"
    assert tree.get("/a")[0] == b"old"
    assert tree.exists("/b") is None
    assert seen == []


def test_a_watch_sees_one_change(tree: EmbeddedTree) -> None:
    tree.create("/a")
    seen: list[WatchEvent] = []
    tree.get("/a", seen.append)
    tree.set("/a", b"1")
    tree.set("/a", b"2")
    assert seen == [WatchEvent(EventType.CHANGED, "/a")]


def test_a_watch_on_a_missing_node_sees_it_made(tree: EmbeddedTree) -> None:
    seen: list[WatchEvent] = []
    assert tree.exists("/a", seen.append) is None
    tree.create("/a")
    assert seen == [WatchEvent(EventType.CREATED, "/a")]


def test_a_watch_on_children_sees_them_come_and_go_but_not_change(tree: EmbeddedTree) -> None:
    tree.create("/a/b", make_parents=True)
    seen: list[WatchEvent] = []
    tree.children("/a", seen.append)
    tree.set("/a/b", b"x")
    tree.set("/a", b"x")
    assert seen == []
    tree.create("/a/c")
    assert seen == [WatchEvent(EventType.CHILDREN, "/a")]
    tree.children("/a", seen.append)
    tree.delete("/a/b")
    assert len(seen) == 2


def test_a_watch_may_use_the_tree_and_sees_what_woke_it(tree: EmbeddedTree) -> None:
    tree.create("/a")
    seen: list[bytes] = []
    tree.get("/a", lambda event: seen.append(tree.get(event.path)[0]))
    tree.set("/a", b"1")
    assert seen == [b"1"]


def test_everything_is_there_after_opening_again(tmp_path: Path) -> None:
    with EmbeddedTree(tmp_path / FILE_NAME) as tree:
        tree.create("/a/b", b"x", make_parents=True)
        tree.create("/a/n_", sequential=True)
        before = list(walk(tree))
    with EmbeddedTree(tmp_path / FILE_NAME) as tree:
        assert list(walk(tree)) == before
        assert tree.create("/a/n_", sequential=True) == "/a/n_0000000002"
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]


def test_ephemeral_nodes_go_with_the_session(tmp_path: Path) -> None:
    with EmbeddedTree(tmp_path / FILE_NAME) as tree:
        tree.create("/ids/1", ephemeral=True, make_parents=True)
        stat = tree.exists("/ids/1")
        assert stat is not None
        assert stat.ephemeral_owner == tree.session
        with pytest.raises(NoChildrenForEphemerals):
            tree.create("/ids/1/x")
    with EmbeddedTree(tmp_path / FILE_NAME) as tree:
        assert tree.children("/ids") == []
        assert tree.create("/ids/1", ephemeral=True) == "/ids/1"


def test_a_second_process_is_refused_with_the_reason(tmp_path: Path) -> None:
    with EmbeddedTree(tmp_path / FILE_NAME):
        script = (
            "import sys\nfrom tidelog.metadata.embedded_tree import EmbeddedTree\nEmbeddedTree(sys.argv[1])"
        )
        command = [sys.executable, "-c", script, str(tmp_path / FILE_NAME)]
        second = subprocess.run(command, capture_output=True, text=True, check=False)
    assert second.returncode != 0
    assert "open in another process" in second.stderr


def test_a_file_that_is_no_tree_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    path.write_bytes(b"something else entirely" * 100)
    with pytest.raises(TreeUnavailable, match=FILE_NAME):
        EmbeddedTree(path)
    assert path.read_bytes().startswith(b"something else")


def test_a_file_of_a_later_format_is_refused(tmp_path: Path) -> None:
    EmbeddedTree(tmp_path / FILE_NAME).close()
    database = sqlite3.connect(tmp_path / FILE_NAME)
    database.execute("UPDATE store SET format = 99")
    database.commit()
    database.close()
    with pytest.raises(TreeUnavailable, match="format 99"):
        EmbeddedTree(tmp_path / FILE_NAME)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(TreeUnavailable, match="nowhere"):
        EmbeddedTree(tmp_path / "nowhere" / FILE_NAME)


def test_a_closed_tree_says_so_and_closes_again(tmp_path: Path) -> None:
    tree = EmbeddedTree(tmp_path / FILE_NAME)
    tree.close()
    tree.close()
    with pytest.raises(TreeUnavailable):
        tree.get("/")
    with pytest.raises(TreeUnavailable):
        tree.create("/a")


def test_threads_do_not_lose_each_others_changes(tree: EmbeddedTree) -> None:
    tree.create("/counter", b"0")

    def count() -> None:
        for _ in range(25):
            while True:
                data, stat = tree.get("/counter")
                try:
                    tree.set("/counter", b"%d" % (int(data) + 1), stat.version)
                    break
                except BadVersion:
                    continue

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tree.get("/counter")[0] == b"100"


def test_every_change_is_synced_before_it_is_acknowledged(tree: EmbeddedTree) -> None:
    assert tree._db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert tree._db.execute("PRAGMA synchronous").fetchone() == (2,), "FULL: the log is synced at each commit"


def test_a_full_disk_fails_the_change_alone(tree: EmbeddedTree) -> None:
    tree.create("/before", b"kept")
    pages = tree._db.execute("PRAGMA page_count").fetchone()[0]
    tree._db.execute(f"PRAGMA max_page_count={pages}")
    with pytest.raises(TreeUnavailable, match="full"):
        tree.multi([Create("/small"), Create("/large", bytes(100_000))])
    assert tree.children("/") == ["before"]
    tree._db.execute("PRAGMA max_page_count=1000000")
    tree.create("/after")
    assert tree.children("/") == ["after", "before"]
    assert tree.get("/before")[0] == b"kept"
