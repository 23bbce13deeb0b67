"""The checkers of replication find what they are there for."""

from __future__ import annotations

from pathlib import Path

from tests.replication.readers import Sightings
from tests.replication.replicas import differences, partition_folders
from tests.support.contents import Contents, SeenRecord
from tidelog.records.batch import Record, build_batch


def write(folder: Path, *values: bytes) -> None:
    folder.mkdir(parents=True)
    data = b"".join(build_batch([Record(at, 1, None, value)]) for at, value in enumerate(values))
    (folder / "00000000000000000000.log").write_bytes(data)


def found(*values: bytes) -> dict[tuple[str, int], Contents]:
    records = [SeenRecord(at, 1, 1, None, value) for at, value in enumerate(values)]
    return {("t", 0): Contents(0, len(values), records)}


def test_replicas_that_are_the_same_have_no_differences(tmp_path: Path) -> None:
    for broker in (1, 2):
        write(tmp_path / str(broker) / "t-0", b"a", b"b")
    folders = partition_folders({1: tmp_path / "1", 2: tmp_path / "2"})
    assert folders == {"t-0": {1: tmp_path / "1" / "t-0", 2: tmp_path / "2" / "t-0"}}
    assert differences(folders["t-0"], below=10) == []


def test_a_record_that_differs_is_found_below_the_high_watermark_only(tmp_path: Path) -> None:
    write(tmp_path / "1", b"a", b"b")
    write(tmp_path / "2", b"a", b"c")
    folders = {1: tmp_path / "1", 2: tmp_path / "2"}
    assert len(differences(folders, below=2)) == 1
    assert differences(folders, below=1) == []


def test_a_record_that_one_replica_lacks_is_found(tmp_path: Path) -> None:
    write(tmp_path / "1", b"a", b"b")
    write(tmp_path / "2", b"a")
    assert len(differences({1: tmp_path / "1", 2: tmp_path / "2"}, below=2)) == 1


def test_an_offset_that_shows_two_values_is_found() -> None:
    sightings = Sightings()
    sightings.saw(("t", 0, 0), b"a", "one reader")
    assert sightings.check(found(b"a"), "the last reader") == []
    sightings.saw(("t", 0, 0), b"b", "another one")
    assert len(sightings.check(found(b"a"), "the last reader")) == 1


def test_a_record_that_was_seen_and_is_gone_is_found() -> None:
    sightings = Sightings()
    sightings.saw(("t", 0, 1), b"b", "one reader")
    assert len(sightings.check(found(b"a"), "the last reader")) == 1
