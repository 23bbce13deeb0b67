"""Kafka 4.3 and we clean the same log, and leave the same: batch by batch, twice in a row."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.kafka.compacted import RETENTION_MS, TOPICS, fill, is_cleaned, log_files, set_ratio
from tests.kafka.jars import run_tool
from tests.kafka.servers import Kafka4
from tests.support.wait import eventually
from tidelog import Admin, NewTopic
from tidelog.clock import SimulatedScheduler, SystemClock
from tidelog.records.batch import BatchHeader, Record, iter_batches, read_records
from tidelog.storage.checkpoints import (
    CLEAN_SHUTDOWN,
    CLEANER_OFFSETS,
    encode_clean_shutdown,
)
from tidelog.storage.cleaner.log_cleaner import CleanerSettings, LogCleaner
from tidelog.storage.config import LogConfig
from tidelog.storage.disk import RealDisk
from tidelog.storage.log_manager import LogManager

Batches = list[tuple[BatchHeader, list[Record]]]


def clean_by_us(data: Path) -> None:
    """Every log of a folder, with the settings of the topics."""
    scheduler = SimulatedScheduler()
    scheduler.clock.jump_to(SystemClock().ms())
    config = LogConfig(
        cleanup_policy=frozenset({"compact"}),
        min_cleanable_dirty_ratio=0.0,
        delete_retention_ms=RETENTION_MS,
        index_interval_bytes=0,
        segment_index_bytes=96,
        file_delete_delay_ms=0,
    )
    manager = LogManager([str(data)], config, disk=RealDisk(), clock=scheduler.clock, scheduler=scheduler)
    manager.log_dirs.lock()
    manager.load()
    for log in manager.logs.values():
        log.update_high_watermark(log.log_end_offset)
    cleaner = LogCleaner(manager, scheduler, CleanerSettings(backoff_ms=10))
    cleaner.start()
    scheduler.advance(1.0)
    assert not cleaner.is_busy
    assert not cleaner.uncleanable
    cleaner.close()
    manager.shutdown()


def contents(folder: Path, topic: str) -> dict[str, Batches]:
    """The batches of each segment but the active one. When a horizon was set is left out."""
    found: dict[str, Batches] = {}
    for path in log_files(folder, topic)[:-1]:
        data = path.read_bytes()
        batches = found[path.name] = []
        for position, header in iter_batches(data):
            inside = read_records(data, position)
            if header.has_delete_horizon:
                header = header._replace(base_timestamp=0)
            batches.append((header._replace(crc=0, batch_length=0), inside))
    return found


class Cleaned:
    """The same logs before, cleaned by Kafka, and cleaned by us."""

    def __init__(self, folder: Path) -> None:
        self.before, self.kafka, self.ours = folder / "before", folder / "kafka", folder / "ours"


def copy(data: Path, target: Path) -> None:
    for topic in TOPICS:
        shutil.copytree(data / f"{topic}-0", target / f"{topic}-0")
    shutil.copy(data / CLEANER_OFFSETS, target)


@pytest.fixture(scope="module")
def turns(tmp_path_factory: pytest.TempPathFactory) -> list[Cleaned]:
    folder = tmp_path_factory.mktemp("compaction")
    kafka = Kafka4(
        folder / "server", folder / "data", {"log.cleaner.backoff.ms": "100", "log.retention.ms": "-1"}
    )
    kafka.format()
    done: list[Cleaned] = []
    with kafka:
        with Admin(bootstrap_servers=kafka.bootstrap) as admin:
            for topic, configs in TOPICS.items():
                admin.create_topics([NewTopic(topic, num_partitions=1, configs=configs)])
        for turn in range(3):
            fill(kafka.bootstrap, turn)
            logs = Cleaned(folder / f"turn-{turn}")
            copy(kafka.data, logs.before)
            copy(kafka.data, logs.ours)
            # Nothing is written now: only the active segment has to be read again.
            (logs.ours / CLEAN_SHUTDOWN).write_bytes(encode_clean_shutdown())
            set_ratio(kafka.bootstrap, "0.0")
            eventually(lambda: is_cleaned(kafka.data), "Kafka has cleaned its logs", 60.0, 0.2)
            set_ratio(kafka.bootstrap, "1.0")
            clean_by_us(logs.ours)
            copy(kafka.data, logs.kafka)
            done.append(logs)
            horizon = SystemClock().ms() + RETENTION_MS + 500
            eventually(lambda end=horizon: SystemClock().ms() > end, "the tombstones are old", 10.0)  # type: ignore[misc]
    return done


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("turn", range(3))
def test_what_is_left_is_the_same(turns: list[Cleaned], topic: str, turn: int) -> None:
    logs = turns[turn]
    kafka, ours = contents(logs.kafka, topic), contents(logs.ours, topic)
    assert contents(logs.before, topic) != kafka
    assert list(ours) == list(kafka)
    for name, batches in kafka.items():
        assert ours[name] == batches


@pytest.mark.parametrize("turn", range(3))
def test_the_transaction_indexes_are_the_same(turns: list[Cleaned], turn: int) -> None:
    logs = turns[turn]

    def indexes(folder: Path) -> dict[str, bytes]:
        found = {path.name: path.read_bytes() for path in (folder / "txn-0").glob("*.txnindex")}
        return {name: data for name, data in found.items() if data}

    assert indexes(logs.ours) == indexes(logs.kafka)


def test_kafkas_tools_find_no_fault_with_our_files(turns: list[Cleaned]) -> None:
    for topic in ("txn", "codec-zstd", "codec-none"):
        for path in log_files(turns[-1].ours, topic):
            files = ",".join(str(path.with_suffix(suffix)) for suffix in (".log", ".index", ".timeindex"))
            done = run_tool(
                "kafka4", "org.apache.kafka.tools.DumpLogSegments", "--deep-iteration", "--files", files
            )
            assert done.returncode == 0, done.stderr
            assert "isvalid: false" not in done.stdout
            assert "Found" not in done.stdout, done.stdout[-2000:]
