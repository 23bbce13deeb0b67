"""A cleaning that a crash interrupted is completed where its result was whole, and undone otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.storage.helpers import NOW, append, batch, config, offsets, open_log, records

SETTINGS = config(cleanup_policy=frozenset({"compact"}), segment_bytes=3 * len(batch(1)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Segments at 0, 3, 6 and 9."""
    log = open_log(tmp_path, SETTINGS)
    for _ in range(12):
        append(log)
    log.close(NOW)
    return tmp_path


def files(folder: Path, base: int, suffix: str = "") -> list[Path]:
    return [folder / f"{base:020d}{kind}{suffix}" for kind in (".log", ".index", ".timeindex")]


def put_cleaned(folder: Path, suffix: str) -> None:
    """The segments at 0 and 3, cleaned down to the batches at 1, 4 and 5, as one segment at 0."""
    size = len(batch(1))
    first, second = ((folder / f"{base:020d}.log").read_bytes() for base in (0, 3))
    log, index, times = files(folder, 0, suffix)
    log.write_bytes(first[size : 2 * size] + second[size:])
    index.write_bytes(b"")
    times.write_bytes(b"")


def test_a_segment_that_was_whole_takes_the_place_of_its_origins(folder: Path) -> None:
    put_cleaned(folder, ".swap")
    log = open_log(folder, SETTINGS)
    assert log.segments.bases() == [0, 6, 9]
    assert offsets(records(log)) == [1, 4, 5, 6, 7, 8, 9, 10, 11]
    assert not list(folder.glob("*.swap"))


def test_a_segment_that_was_still_being_cleaned_is_thrown_away(folder: Path) -> None:
    put_cleaned(folder, ".cleaned")
    log = open_log(folder, SETTINGS)
    assert offsets(records(log)) == list(range(12))
    assert not list(folder.glob("*.cleaned"))


def test_where_one_of_several_was_not_ready_none_takes_effect(folder: Path) -> None:
    put_cleaned(folder, ".swap")
    (folder / "00000000000000000000.log.cleaned").write_bytes(b"")
    assert offsets(records(open_log(folder, SETTINGS))) == list(range(12))
    assert not list(folder.glob("*.swap"))


def test_an_interrupted_swap_goes_on_where_it_stopped(folder: Path) -> None:
    put_cleaned(folder, ".swap")
    for path in files(folder, 3):
        path.rename(f"{path}.deleted")
    log, _, _ = files(folder, 0, ".swap")
    for path in files(folder, 0):
        path.unlink()
    log.rename(folder / "00000000000000000000.log")
    assert offsets(records(open_log(folder, SETTINGS))) == [1, 4, 5, 6, 7, 8, 9, 10, 11]
