"""Between its start and its stop no sync of a broker runs on the loop, whatever it is asked for."""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest

from tests.faults.client import Client
from tests.faults.faulty_disk import FaultyDisk, faulty_broker
from tests.storage.helpers import batch
from tests.support.wait import eventually
from tidelog.clock import SystemClock
from tidelog.errors import ErrorCode
from tidelog.protocol.messages.delete_records import DeleteRecordsRequest, DeleteRecordsResponse

OFTEN = {
    "log.flush.offset.checkpoint.interval.ms": "20",
    "log.flush.start.offset.checkpoint.interval.ms": "20",
    "replica.high.watermark.checkpoint.interval.ms": "20",
    "log.retention.check.interval.ms": "50",
    "log.cleaner.backoff.ms": "50",
    "log.segment.delete.delay.ms": "0",
    "log.flush.scheduler.interval.ms": "20",
}
SMALL = {"internal.segment.bytes": "3000", "segment.index.bytes": "4096"}
TOPICS = {
    "flushed": {"flush.messages": "1"},
    "lazy": {},
    "timed": {"flush.ms": "10"},
    "short": {"retention.bytes": "6000"},
    "compacted": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.ms": "100"},
}


def delete_records(client: Client, topic: str, offset: int) -> int:
    partition = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=offset)
    asked = DeleteRecordsRequest.DeleteRecordsTopic(name=topic, partitions=[partition])
    answer = client.ask(DeleteRecordsRequest(topics=[asked], timeout_ms=1000), DeleteRecordsResponse, 2)
    return answer.topics[0].partitions[0].error_code


def test_nothing_is_synced_on_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    disk = FaultyDisk()
    settings = {"log.dirs": ",".join(map(str, folders)), **OFTEN}
    chance, now_ms = random.Random(1), SystemClock().ms()
    with faulty_broker(monkeypatch, disk, settings) as broker, Client(broker.address) as client:
        disk.syncs.clear()
        producer = client.producer_id()
        for topic, configs in TOPICS.items():
            assert client.create_topic(topic, 1, SMALL | configs) == 0
        for at in range(120):
            for topic in TOPICS:
                value = b"%d" % at * chance.randint(10, 200)
                data = bytes(batch(value=value, producer=(producer, 0, at), timestamp=now_ms))
                if at % 30 == 29 and topic == "lazy":
                    # A write that fails behind a roll, which is taken back.
                    for folder in folders:
                        disk.fail(folder, errno.ENOSPC, "write", suffix=".log")
                    large = bytes(batch(value=chance.randbytes(2800), producer=(producer, 0, at)))
                    assert client.produce(topic, 0, large).error == ErrorCode.KAFKA_STORAGE_ERROR
                    for folder in folders:
                        disk.heal(folder)
                assert client.produce(topic, 0, data) == (0, at)
        assert delete_records(client, "lazy", 50) == 0
        assert client.grow_topic("timed", 3) == 0
        assert client.create_topic("more", 20) == 0
        assert client.delete_topic("more") == 0
        kinds = {
            "partition.metadata",
            ".log",
            ".index",
            ".snapshot",
            "leader-epoch-checkpoint",
            "-checkpoint",
        }

        def synced(kind: str) -> bool:
            return any(path.endswith(kind) for _, path in disk.syncs)

        eventually(lambda: all(map(synced, kinds)), f"files of all kinds are synced: {kinds}")
        on_loop = [path for thread, path in disk.syncs if thread == broker.thread_id]
    assert on_loop == []
