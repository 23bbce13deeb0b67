"""A large write reserves its blocks first. Contents and size of the file come from the write alone."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tidelog.storage.disk import RealDisk, RealFile
from tidelog.storage.reservation import WORTHWHILE, reserve

SLACK = 1 << 16  # what a file system may round up to, and its own blocks for the file


def test_large_writes_leave_their_bytes_and_no_blocks_beyond_them(tmp_path: Path) -> None:
    file = RealDisk().open(str(tmp_path / "log"), create=True)
    small, large = os.urandom(1000), os.urandom(WORTHWHILE + 1234)
    position = 0
    for piece in (small, large, small, large):
        file.pwrite(piece, position)
        position += len(piece)
        assert file.size() == position
    assert Path(file.path).read_bytes() == small + large + small + large
    file.fsync()
    assert os.stat(file.path).st_blocks * 512 <= position + SLACK


def test_a_reservation_without_its_write_changes_nothing_and_goes_with_a_truncation(tmp_path: Path) -> None:
    file = RealDisk().open(str(tmp_path / "log"), create=True)
    file.pwrite(b"kept", 0)
    reserve(file.fileno(), 8 << 20, 4)
    assert file.size() == 4
    assert file.pread(100, 0) == b"kept"
    file.truncate(4)  # as after a write that failed
    assert os.stat(file.path).st_blocks * 512 <= SLACK


def test_where_nothing_can_be_reserved_the_write_itself_speaks(tmp_path: Path) -> None:
    full = RealFile("/dev/full", os.open("/dev/full", os.O_RDWR))
    with pytest.raises(OSError) as refused:
        full.pwrite(bytes(WORTHWHILE), 0)
    assert refused.value.errno == errno.ENOSPC
