"""The short way into a log gives what the long one gives: files, offsets, indexes, refusals."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from tests.storage.helpers import open_log
from tidelog.errors import KafkaStorageError
from tidelog.records.batch import Record, build_batch
from tidelog.records.check import look_at, plain_batch
from tidelog.storage.config import LogConfig
from tidelog.storage.disk import RealFile
from tidelog.storage.log import Log

NOW = 1_700_000_000_000
CONFIG = LogConfig(segment_bytes=1500, index_interval_bytes=300, segment_ms=50_000)

batches = st.lists(
    st.tuples(st.integers(1, 4), st.integers(0, 120), st.integers(0, 90_000)), min_size=1, max_size=40
)


def batch(count: int, size: int, later: int) -> bytes:
    return build_batch([Record(at, NOW + later, None, bytes(size), []) for at in range(count)])


def append_plainly(log: Log, data: bytes, epoch: int) -> object:
    view = memoryview(bytearray(data))
    rules = log.rules()
    plain = plain_batch(look_at(view, rules, NOW), view, rules)
    assert plain is not None
    return log.append_plain(view, *plain, epoch, NOW)


@seed(7)
@settings(max_examples=60, deadline=None)
@given(batches)
def test_both_ways_leave_the_same_log(
    tmp_path_factory: pytest.TempPathFactory, made: list[tuple[int, int, int]]
) -> None:
    long_way = open_log(tmp_path_factory.mktemp("long"), CONFIG)
    short_way = open_log(tmp_path_factory.mktemp("short"), CONFIG)
    for number, shape in enumerate(made):
        epoch = number // 10
        data = batch(*shape)
        expected = long_way.append_as_leader(bytearray(data), leader_epoch=epoch, now_ms=NOW)
        assert append_plainly(short_way, data, epoch) == expected
    assert short_way.segments.bases() == long_way.segments.bases()
    assert short_way.leader_epochs.entries() == long_way.leader_epochs.entries()
    for log in (long_way, short_way):
        log.close(NOW)
    assert files(short_way) == files(long_way)


def files(log: Log) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(log.dir).iterdir()}


def test_a_write_that_fails_leaves_the_log_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(tmp_path, CONFIG)
    append_plainly(log, batch(1, 10, 0), 0)
    before = Path(log.active_segment.path(".log")).read_bytes()

    def half_then_full(self: RealFile, data: memoryview, position: int) -> None:
        whole(self, data[:20], position)
        raise OSError(errno.ENOSPC, "No space left on device")

    whole = RealFile.pwrite
    with monkeypatch.context() as full:
        full.setattr(RealFile, "pwrite", half_then_full)
        with pytest.raises(KafkaStorageError):
            append_plainly(log, batch(1, 10, 0), 0)
    assert Path(log.active_segment.path(".log")).read_bytes() == before
    assert log.log_end_offset == 1
    result = append_plainly(log, batch(2, 10, 0), 0)
    assert (result.base_offset, result.last_offset) == (1, 2)  # type: ignore[attr-defined]
    assert not log.has_pending


@pytest.mark.parametrize(
    "data",
    [
        build_batch([Record(0, NOW, None, b"v", [])], producer_id=5, producer_epoch=0, base_sequence=0),
        build_batch(
            [Record(0, NOW, None, b"v", [])],
            transactional=True,
            producer_id=5,
            producer_epoch=0,
            base_sequence=0,
        ),
        batch(1, 10, 0) + b"more",
        batch(1, 10, 0)[:-1],
    ],
    ids=["producer id", "transactional", "bytes behind it", "cut"],
)
def test_what_is_not_plain_takes_the_long_way(tmp_path: Path, data: bytes) -> None:
    rules = open_log(tmp_path, CONFIG).rules()
    view = memoryview(bytearray(data))
    assert plain_batch(look_at(view, rules, NOW), view, rules) is None
