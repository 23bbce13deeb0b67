"""A leader-epoch-checkpoint that cannot be right is named in the log, and made anew from the batches."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.storage.helpers import NOW, append, batch, config, open_log

SETTINGS = config(segment_bytes=200)
EPOCHS = [(0, 0), (3, 6), (4, 12)]

DAMAGES = {
    "no checkpoint": b"\x00\xff\xfe garbage",
    "cut off": b"0\n3\n0 0\n3",
    "cut off before the entries": b"0\n",
    "unknown version": b"9\n3\n0 0\n3 6\n4 12\n",
    "too few entries": b"0\n3\n0 0\n3 6\n",
    "not a number": b"0\n3\n0 0\n3 x\n4 12\n",
    "epochs fall": b"0\n3\n0 0\n4 6\n3 12\n",
    "offsets fall": b"0\n3\n0 0\n3 12\n4 6\n",
    "negative": b"0\n1\n-5 0\n",
}


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("damage", DAMAGES)
def test_epochs_are_taken_from_the_batches(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str, clean: bool
) -> None:
    log = open_log(tmp_path / "log", SETTINGS)
    for at in range(9):
        append(log, batch(2), epoch=(0, 3, 4)[at // 3])
    assert log.leader_epochs.entries() == EPOCHS
    assert len(log.segments) > 3
    log.close(NOW)
    file = tmp_path / "log" / "leader-epoch-checkpoint"
    good = file.read_bytes()
    file.write_bytes(DAMAGES[damage])
    with caplog.at_level(logging.WARNING):
        point = 0 if clean else log.segments[2].base_offset
        again = open_log(tmp_path / "log", SETTINGS, clean=clean, recovery_point=point)
    assert again.leader_epochs.entries() == EPOCHS
    assert again.end_offset_for_epoch(2) == (0, 6)
    assert str(file) in caplog.text
    again.close(NOW)
    assert file.read_bytes() == good


def test_a_log_without_the_file_or_with_an_empty_one_has_no_epochs(tmp_path: Path) -> None:
    """As Kafka takes it: folders of versions that had no such file do not have it."""
    log = open_log(tmp_path / "log", SETTINGS)
    append(log)
    log.close(NOW)
    file = tmp_path / "log" / "leader-epoch-checkpoint"
    file.write_bytes(b"")
    assert open_log(tmp_path / "log", SETTINGS, clean=True).leader_epochs.entries() == []
    file.unlink()
    assert open_log(tmp_path / "log", SETTINGS, clean=True).leader_epochs.entries() == []
