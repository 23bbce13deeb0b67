"""Folders that Kafka 3.9 wrote, stopped cleanly and killed, are read as Kafka read them."""

from __future__ import annotations

import gzip
import hashlib
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.storage.helpers import records
from tidelog.clock import ManualClock
from tidelog.storage.checkpoints import HIGH_WATERMARKS, LOG_START_OFFSETS, RECOVERY_POINTS, decode_offsets
from tidelog.storage.config import LogConfig
from tidelog.storage.disk import RealDisk
from tidelog.storage.log import Log
from tidelog.storage.log_manager import LogManager

DATA = Path(__file__).parent.parent / "data"
WRITTEN_AT = 1_794_730_900_000
CLUSTER = "Op1KtY-PTVCuIrOzPLsjQA"
TOPIC_SETTINGS: dict[str, LogConfig] = {
    "compact": LogConfig(cleanup_policy=frozenset({"compact"})),
    "plain": LogConfig(index_interval_bytes=1024),
}

EXPECTED: dict[str, Any] = json.loads(gzip.decompress((DATA / "expected.json.gz").read_bytes()))
PARTITIONS = sorted(EXPECTED["read_uncommitted"])


def unpack(kind: str, target: Path) -> Path:
    with tarfile.open(DATA / f"logdir-{kind}.tar.gz") as archive:
        archive.extractall(target, filter="data")
    return target / kind


def open_manager(folder: Path) -> LogManager:
    manager = LogManager([str(folder)], LogConfig(), disk=RealDisk(), clock=ManualClock(WRITTEN_AT))
    manager.log_dirs.lock()
    manager.log_dirs.claim(CLUSTER, 0)
    manager.load(lambda topic: TOPIC_SETTINGS.get(topic, LogConfig()))
    for log in manager.logs.values():
        log.update_high_watermark(log.log_end_offset)
    return manager


@pytest.fixture(scope="module", params=["clean", "crashed"])
def manager(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LogManager:
    return open_manager(unpack(request.param, tmp_path_factory.mktemp(request.param)))


def log_of(manager: LogManager, name: str) -> Log:
    topic, _, partition = name.rpartition("-")
    return manager.logs[topic, int(partition)]


def as_expected(log: Log) -> list[list[Any]]:
    def text(data: bytes | None) -> str | None:
        return None if data is None else data.decode()

    return [
        [
            record.offset,
            [2 if header.is_log_append_time else 1, record.timestamp],
            text(record.key),
            text(record.value),
            [[name, text(value)] for name, value in record.headers],
        ]
        for header, record in records(log)
    ]


@pytest.mark.parametrize("name", PARTITIONS)
def test_every_record_is_read_as_kafka_read_it(manager: LogManager, name: str) -> None:
    log, expected = log_of(manager, name), EXPECTED["read_uncommitted"][name]
    assert (log.log_start_offset, log.high_watermark) == (expected["low"], expected["high"])
    assert as_expected(log) == expected["records"]


@pytest.mark.parametrize("name", PARTITIONS)
def test_committed_readers_see_what_was_committed(manager: LogManager, name: str) -> None:
    log = log_of(manager, name)
    aborted = log.aborted_transactions(log.log_start_offset, log.last_stable_offset)
    visible = [
        record.offset
        for header, record in records(log)
        if record.offset < log.last_stable_offset
        and not (
            header.is_transactional
            and any(
                entry.producer_id == header.producer_id
                and entry.first_offset <= record.offset <= entry.last_offset
                for entry in aborted
            )
        )
    ]
    assert visible == EXPECTED["read_committed_offsets"][name]


@pytest.mark.parametrize("name", PARTITIONS)
def test_reads_in_small_pieces_find_the_same(manager: LogManager, name: str) -> None:
    log = log_of(manager, name)
    expected = [entry[0] for entry in EXPECTED["read_uncommitted"][name]["records"]]
    assert [record.offset for _, record in records(log, max_bytes=500)] == expected


def test_topic_ids_come_from_partition_metadata(manager: LogManager) -> None:
    ids = {topic: log.topic_id for (topic, _), log in manager.logs.items()}
    assert all(topic_id is not None and len(topic_id) == 16 for topic_id in ids.values())
    assert len(set(ids.values())) == len(ids)


def test_the_open_transaction_holds_back_the_last_stable_offset(manager: LogManager) -> None:
    log = manager.logs["txn", 0]
    assert log.producers.ongoing == {2: 48}
    assert (log.last_stable_offset, log.log_end_offset) == (48, 49)


def test_a_clean_stop_after_the_crash_gives_kafkas_own_files(tmp_path: Path) -> None:
    """Recovery makes of the killed broker's folder, file for file, what Kafka's own clean stop made."""
    kafkas, ours = unpack("clean", tmp_path), unpack("crashed", tmp_path)
    open_manager(ours).shutdown()
    assert contents(ours) == contents(kafkas)
    for name in (RECOVERY_POINTS, HIGH_WATERMARKS, LOG_START_OFFSETS):
        expected, found = (decode_offsets(name, (folder / name).read_bytes()) for folder in (kafkas, ours))
        assert found == expected


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.endswith("-offset-checkpoint") and path.name != ".lock"
    }


def test_opening_and_closing_a_clean_folder_changes_nothing(tmp_path: Path) -> None:
    folder = unpack("clean", tmp_path)
    before = contents(folder)
    open_manager(folder).shutdown()
    assert contents(folder) == before
