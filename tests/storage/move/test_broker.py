"""A running broker moves a partition under a producer and a reader."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.support.broker import Broker
from tests.support.raw import RawConnection
from tests.support.wait import eventually
from tidelog.errors import ErrorCode
from tidelog.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
)
from tidelog.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from tidelog.protocol.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from tidelog.protocol.messages.fetch import FetchRequest, FetchResponse
from tidelog.protocol.messages.produce import ProduceRequest, ProduceResponse
from tidelog.records.batch import Record, build_batch, iter_batches, read_records


class Client:
    """One connection that makes topics, writes numbered records, reads them and asks for moves."""

    def __init__(self, broker: Broker) -> None:
        self.connection = RawConnection(broker.address)

    def create(self, topic: str) -> None:
        wanted = CreateTopicsRequest.CreatableTopic(
            name=topic,
            num_partitions=1,
            replication_factor=1,
            configs=[CreateTopicsRequest.CreatableTopicConfig(name="segment.bytes", value="1048576")],
        )
        answer = self.connection.ask(
            CreateTopicsRequest(topics=[wanted], timeout_ms=10_000), CreateTopicsResponse, 5
        )
        assert answer.topics[0].error_code == 0

    def alter(self, topic: str, path: str, partition: int = 0) -> int:
        named = AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic(name=topic, partitions=[partition])
        folder = AlterReplicaLogDirsRequest.AlterReplicaLogDir(path=path, topics=[named])
        answer = self.connection.ask(
            AlterReplicaLogDirsRequest(dirs=[folder]), AlterReplicaLogDirsResponse, 2
        )
        return answer.results[0].partitions[0].error_code

    def where(self, topic: str) -> list[tuple[str, bool, int]]:
        """The folders that a partition is in, whether as a future replica, and its lag."""
        answer = self.connection.ask(DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse, 4)
        return [
            (folder.log_dir, partition.is_future_key, partition.offset_lag)
            for folder in answer.results
            for found in folder.topics
            for partition in found.partitions
            if found.name == topic
        ]

    def produce(self, topic: str, first: int, count: int, size: int = 1000) -> int:
        """Records numbered from `first` on, in one batch; the offset that they got."""
        records = [Record(at, 0, b"", b"%08d" % (first + at) + bytes(size)) for at in range(count)]
        partition = ProduceRequest.PartitionProduceData(index=0, records=build_batch(records))
        topics = [ProduceRequest.TopicProduceData(name=topic, partition_data=[partition])]
        answer = self.connection.ask(
            ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=topics), ProduceResponse, 9
        )
        response = answer.responses[0].partition_responses[0]
        assert response.error_code == 0
        return response.base_offset

    def read(self, topic: str, offset: int) -> list[int]:
        """The numbers of the records from an offset on, as far as one answer goes."""
        partition = FetchRequest.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1 << 22,
            topics=[FetchRequest.FetchTopic(topic=topic, partitions=[partition])],
        )
        answer = self.connection.ask(request, FetchResponse, 11)
        found = answer.responses[0].partitions[0]
        assert found.error_code == 0
        data = bytes(found.records or b"")
        return [
            int((record.value or b"")[:8])
            for at, header in iter_batches(data)
            for record in read_records(data, at, header=header)
            if record.offset >= offset
        ]

    def read_all(self, topic: str) -> list[int]:
        numbers: list[int] = []
        while found := self.read(topic, len(numbers)):
            numbers += found
        return numbers


def two_folders(tmp_path: Path, **settings: str) -> tuple[Broker, str, str]:
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    names = {name.replace("_", "."): value for name, value in settings.items()}
    return Broker(tmp_path, {"log.dirs": f"{a},{b}", **names}), a, b


def test_a_partition_moves_under_load(tmp_path: Path) -> None:
    broker, a, b = two_folders(tmp_path)
    with broker:
        client = Client(broker)
        client.create("t")
        assert client.where("t") == [(a, False, 0)]
        for at in range(0, 4000, 500):
            client.produce("t", at, 500)
        written, read = 4000, 0
        assert client.alter("t", b) == 0
        futures = []
        deadline = time.monotonic() + 30
        while client.where("t") != [(b, False, 0)] and time.monotonic() < deadline:
            futures += [place for place in client.where("t") if place[1]]
            written += client.produce("t", written, 100) - written + 100
            read += len(client.read("t", read))
        assert client.where("t") == [(b, False, 0)]
        assert all(path == b for path, _, _ in futures)
        client.produce("t", written, 100)
        assert client.read_all("t") == list(range(written + 100))
        eventually(lambda: not list(Path(a).glob("t-0")), "the old folder is renamed")


def test_the_answers_are_kafkas(tmp_path: Path) -> None:
    broker, a, b = two_folders(tmp_path)
    with broker:
        client = Client(broker)
        client.create("t")
        assert client.alter("nope", b) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert client.alter("t", b, 7) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert client.alter("t", b, -1) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        for path in ("b", "/nowhere", b + "/", ""):
            assert client.alter("t", path) == ErrorCode.LOG_DIR_NOT_FOUND
        assert client.alter("x" * 230, b) == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert client.alter("t", a) == 0
        for index in range(3):
            client.alter(f"wished{index}", b)
            client.create(f"wished{index}")
            assert client.where(f"wished{index}") == [(b, False, 0)]


@pytest.mark.parametrize("kill", [False, True])
def test_a_move_goes_on_after_a_stop(tmp_path: Path, kill: bool) -> None:
    broker, _, b = two_folders(tmp_path, replica_alter_log_dirs_io_max_bytes_per_second="0")
    with broker:
        client = Client(broker)
        client.create("t")
        client.produce("t", 0, 500)
        assert client.alter("t", b) == 0
        assert [future for _, future, _ in client.where("t")] == [False, True]
        broker.settings.pop("replica.alter.log.dirs.io.max.bytes.per.second")
        broker.restart(kill=kill)
        client = Client(broker)
        eventually(lambda: client.where("t") == [(b, False, 0)], "the move ends", 20)
        assert client.read_all("t") == list(range(500))
