"""What is in the page cache is told from what is not, by each of the ways that kernels offer."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tidelog.storage import page_cache
from tidelog.storage.disk import CACHED_NS, LOOK_AHEAD_BYTES, RealDisk, RealFile

SIZE = 1 << 20


@pytest.fixture
def file(tmp_path: Path) -> RealFile:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(SIZE))
    return RealDisk().open(str(path))


@pytest.fixture
def evicted(file: RealFile) -> RealFile:
    os.fsync(file.fd)
    os.posix_fadvise(file.fd, 0, 0, os.POSIX_FADV_DONTNEED)
    if page_cache._count_pages(file.fd, SIZE, 0) != 0:
        pytest.skip("files of this file system cannot be evicted, or nobody can tell")
    return file


@pytest.fixture(params=["cachestat", "samples"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "samples":
        monkeypatch.setattr(page_cache, "_cachestat", lambda: None)
    elif page_cache._cachestat() is None:
        pytest.skip("this kernel has no cachestat")


def test_an_evicted_range_is_not_cached(evicted: RealFile) -> None:
    """By cachestat: a read that does not wait makes the kernel begin one, which a quick disk may end."""
    if page_cache._cachestat() is None:
        pytest.skip("this kernel has no cachestat")
    assert not evicted.is_cached(100_000, 512 * 1024)


def test_a_range_is_cached_once_it_was_brought_in(evicted: RealFile, way: None) -> None:
    start, size = 512 * 1024, 100_000
    evicted.bring_in(size, start)
    assert evicted.is_cached(size, start)
    evicted.bring_in(SIZE, 0)
    assert evicted.is_cached(SIZE, 0)
    assert evicted.is_cached(1, SIZE - 1)


def test_a_read_of_what_is_not_cached_gives_nothing(file: RealFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel refuses here; a real one begins to read, and gives the bytes where the disk is quick."""

    def refuse(*_: object) -> int:
        raise BlockingIOError

    whole = file.pread(SIZE, 0)
    with monkeypatch.context() as patched:
        patched.setattr(os, "preadv", refuse)
        assert file.pread_cached(10, SIZE // 2) is None
    assert file.pread_cached(SIZE, 0) == whole


def test_a_read_that_does_not_wait_gives_all_or_nothing(evicted: RealFile) -> None:
    part = evicted.pread_cached(10, SIZE // 2)
    assert part is None or part == evicted.pread(10, SIZE // 2)


def test_a_cached_read_ends_with_the_file(file: RealFile) -> None:
    whole = file.pread(SIZE, 0)
    assert file.pread_cached(100, SIZE - 10) == whole[-10:]
    assert file.pread_cached(100, SIZE) == b""


def test_where_reads_cannot_refuse_to_wait_cachestat_decides(
    file: RealFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog.storage.disk.NOWAIT", 0)
    monkeypatch.setattr(page_cache, "NOWAIT", 0)
    whole = file.pread(SIZE, 0)
    for cached in (True, False):
        monkeypatch.setattr("tidelog.storage.disk.is_cached", lambda *_, cached=cached: cached)
        assert file.pread_cached(SIZE, 0) == (whole if cached else None)


class Looks:
    """Counts the looks at the page cache, under a clock that the test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns = 1
        self.sizes: list[int] = []
        monkeypatch.setattr("tidelog.storage.disk.is_cached", self)
        monkeypatch.setattr("tidelog.storage.disk.perf_counter_ns", lambda: self.now_ns)

    def __call__(self, fd: int, size: int, position: int) -> bool:
        self.sizes.append(size)
        return page_cache.is_cached(fd, size, position)


def test_a_reader_in_order_has_the_kernel_asked_once_for_several_ranges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(2 * LOOK_AHEAD_BYTES + SIZE))
    file, looks = RealDisk().open(str(path)), Looks(monkeypatch)
    ranges = LOOK_AHEAD_BYTES // SIZE
    assert all(file.is_cached(SIZE, at * SIZE) for at in range(ranges))
    assert looks.sizes == [LOOK_AHEAD_BYTES]
    assert file.is_cached(SIZE, ranges * SIZE)
    looks.now_ns += CACHED_NS
    assert file.is_cached(SIZE, ranges * SIZE), "what was seen long ago is looked at again"
    assert looks.sizes == [LOOK_AHEAD_BYTES] * 3


def test_a_range_is_cached_also_where_what_follows_is_not(
    evicted: RealFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = Looks(monkeypatch)
    evicted.bring_in(4096, 0)
    assert [evicted.is_cached(4096, 0) for _ in range(3)] == [True] * 3
    assert looks.sizes == [LOOK_AHEAD_BYTES, 4096, 4096, 4096], "looking ahead is not tried every time"
    assert not evicted.is_cached(SIZE, 0)
