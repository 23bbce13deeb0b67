"""Kafka 3.9 takes over our folder after `tree export`, goes on with it, and hands it back to `adopt`."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kafka.servers import Kafka3, ZooKeeper
from tests.support.broker import Broker
from tests.support.contents import Contents, Partition, produce, read_with_client
from tests.support.raw import RawConnection
from tests.support.topics import topic_configs
from tests.support.wait import eventually
from tidelog import Admin, NewTopic
from tidelog.metadata.embedded_tree import FILE_NAME
from tidelog.protocol.messages.delete_records import DeleteRecordsRequest, DeleteRecordsResponse
from tidelog.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tidelog.protocol.messages.produce import ProduceRequest, ProduceResponse
from tidelog.records.batch import Record, build_batch

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
SETTINGS: dict[str, dict[str, str]] = {
    **{f"codec-{codec}": {"index.interval.bytes": "0", "segment.index.bytes": "96"} for codec in CODECS},
    "appendtime": {"message.timestamp.type": "LogAppendTime", "retention.ms": "-1"},
    "tidied": {"cleanup.policy": "compact,delete", "max.message.bytes": "2000000"},
    "cut": {},
    "idem": {},
    "empty": {},
}
PARTITIONS: list[Partition] = [(topic, index) for topic in SETTINGS for index in range(2)]
QUICK_CHECKPOINTS = {"log.flush.start.offset.checkpoint.interval.ms": "100"}


class IdempotentProducer:
    """One producer that outlives its brokers: it keeps id, epoch and sequence and sends batches by hand."""

    def __init__(self, producer_id: int) -> None:
        self.producer_id = producer_id
        self.sequence = 0

    def send(self, bootstrap: str, *, again: bool = False) -> int:
        """The offset of a batch of three; `again` sends the one before once more, as after a lost answer."""
        first = self.sequence - 3 if again else self.sequence
        # A producer whose batches are a day old by their timestamps is forgotten.
        now = time.time_ns() // 1_000_000
        records = [Record(at, now, b"key", b"%d" % (first + at)) for at in range(3)]
        data = build_batch(records, producer_id=self.producer_id, producer_epoch=0, base_sequence=first)
        partition = ProduceRequest.PartitionProduceData(index=0, records=data)
        topic = ProduceRequest.TopicProduceData(name="idem", partition_data=[partition])
        request = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[topic])
        with RawConnection(bootstrap) as connection:
            answer = connection.ask(request, ProduceResponse, 9)
        answered = answer.responses[0].partition_responses[0]
        assert answered.error_code == 0, answered.error_message
        self.sequence = first + 3
        return answered.base_offset


def new_producer_id(bootstrap: str) -> int:
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
    with RawConnection(bootstrap) as connection:
        answer = connection.ask(request, InitProducerIdResponse, 4)
    assert answer.error_code == 0
    return answer.producer_id


def delete_records(bootstrap: str, partition: Partition, offset: int) -> None:
    wanted = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=partition[1], offset=offset)
    topic = DeleteRecordsRequest.DeleteRecordsTopic(name=partition[0], partitions=[wanted])
    with RawConnection(bootstrap) as connection:
        answer = connection.ask(
            DeleteRecordsRequest(topics=[topic], timeout_ms=30_000), DeleteRecordsResponse, 2
        )
    assert answer.topics[0].partitions[0].error_code == 0


def fill(bootstrap: str) -> None:
    with Admin(bootstrap_servers=bootstrap) as admin:
        for topic, configs in SETTINGS.items():
            admin.create_topics([NewTopic(topic, num_partitions=2, configs=configs)])
    for codec in CODECS:
        values = [b"%04d" % number * 10 for number in range(300)]
        batches = {"compression.type": codec, "batch.num.messages": "10"}
        produce(bootstrap, {(f"codec-{codec}", index): values for index in range(2)}, batches)
    values = [b"%d" % number for number in range(20)]
    produce(bootstrap, {(topic, i): values for topic in ("appendtime", "tidied", "cut") for i in range(2)})
    delete_records(bootstrap, ("cut", 0), 7)


class Cluster:
    """What can be asked of either kind of broker."""

    def __init__(self, bootstrap: str) -> None:
        self.contents: dict[Partition, Contents] = read_with_client(bootstrap, PARTITIONS)
        with Admin(bootstrap_servers=bootstrap) as admin:
            listed = admin.list_topics()
            self.topic_ids = {name: listed[name].topic_id for name in SETTINGS if name in listed}
            self.brokers = [node.id for node in admin.describe_cluster().nodes]
            self.configs = {
                topic: {name: topic_configs(admin, topic)[name] for name in settings}
                for topic, settings in SETTINGS.items()
            }


def tidelog(*arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tidelog", *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Takeover:
    """Ours, Kafka on our folder, ours again: what each served, in the order in which it was done."""

    def __init__(self, target: Path, *, kill: bool) -> None:
        self.kill = kill
        self.folders = [target / "one", target / "two"]
        dirs = {"log.dirs": ",".join(map(str, self.folders))}
        self.broker = Broker(target / "broker", {"broker.id": "4", **dirs, **QUICK_CHECKPOINTS})
        self.zookeeper = ZooKeeper(target / "zookeeper")
        # Kafka must not clean or delete while the records are compared.
        quiet = {"log.cleaner.enable": "false", "log.retention.ms": "-1", **dirs}
        self.kafka = Kafka3(target / "kafka", self.broker.data, self.zookeeper, quiet)
        self.kafka.awaited = frozenset(SETTINGS)
        self.offsets: list[int] = []
        self.producer_ids: list[int] = []
        self.seen: list[Cluster] = []

    def run(self) -> None:
        with self.broker:
            fill(self.broker.bootstrap)
            # As in Kafka, deleted records come back when a broker is killed before the next checkpoint.
            eventually(self._log_start_is_written, "the log start offset is written")
            producer = IdempotentProducer(new_producer_id(self.broker.bootstrap))
            self._use(self.broker.bootstrap, producer)
            if not self.kill:
                assert self.broker.terminate() == 0
        with self.zookeeper:
            tidelog("tree", "export", self.folders[0], "--zookeeper", self.zookeeper.bootstrap)
            with self.kafka:
                self.seen.append(Cluster(self.kafka.bootstrap))
                self.offsets.append(producer.send(self.kafka.bootstrap, again=True))
                self._use(self.kafka.bootstrap, producer)
                if not self.kill:
                    self.kafka.stop()
        (self.folders[0] / FILE_NAME).unlink()
        tidelog("adopt", *self.folders)
        with self.broker:
            self.seen.append(Cluster(self.broker.bootstrap))
            self.offsets.append(producer.send(self.broker.bootstrap, again=True))
            self._use(self.broker.bootstrap, producer)

    def _log_start_is_written(self) -> bool:
        checkpoints = [folder / "log-start-offset-checkpoint" for folder in self.folders]
        return any("cut 0 7" in path.read_text() for path in checkpoints if path.exists())

    def _use(self, bootstrap: str, producer: IdempotentProducer) -> None:
        self.offsets += [producer.send(bootstrap), producer.send(bootstrap)]
        produce(bootstrap, {partition: [b"next"] for partition in PARTITIONS if partition[0] != "empty"})
        self.producer_ids.append(new_producer_id(bootstrap))
        self.seen.append(Cluster(bootstrap))


@pytest.fixture(scope="module", params=["stopped", "killed"])
def takeover(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Takeover]:
    done = Takeover(tmp_path_factory.mktemp(request.param), kill=request.param == "killed")
    done.run()
    yield done
    done.broker.close()


OURS, THEIRS_AT_FIRST, THEIRS, OURS_AT_FIRST, OURS_AGAIN = range(5)


def test_kafka_serves_what_we_served(takeover: Takeover) -> None:
    assert takeover.seen[THEIRS_AT_FIRST].contents == takeover.seen[OURS].contents


def test_kafka_has_nothing_to_say_about_our_files(takeover: Takeover) -> None:
    """Not a warning from its log layer, nor, after a kill, from its recovery."""
    of_logs = re.compile(r"kafka\.log\.|storage\.internals|LogLoader|Index|Snapshot", re.IGNORECASE)
    assert [line for line in takeover.kafka.warnings() if of_logs.search(line)] == []


def test_both_folders_were_used(takeover: Takeover) -> None:
    for folder in takeover.folders:
        assert len(list(folder.glob("*-[01]"))) >= len(PARTITIONS) // 2 - 1


def test_we_serve_what_kafka_served(takeover: Takeover) -> None:
    assert takeover.seen[OURS_AT_FIRST].contents == takeover.seen[THEIRS].contents


def test_each_wrote_behind_the_other(takeover: Takeover) -> None:
    for before, after in ((OURS, THEIRS), (THEIRS, OURS_AGAIN)):
        for partition in PARTITIONS:
            old = takeover.seen[before].contents[partition]
            new = takeover.seen[after].contents[partition]
            assert new.records[: len(old.records)] == old.records
            assert (new.high > old.high) == (partition[0] != "empty")


def test_records_that_were_deleted_stay_so(takeover: Takeover) -> None:
    assert [seen.contents["cut", 0].low for seen in takeover.seen] == [7] * 5
    assert {seen.contents["cut", 0].offsets[0] for seen in takeover.seen} == {7}


def test_topics_keep_their_ids_and_the_broker_its_own(takeover: Takeover) -> None:
    assert {len(seen.topic_ids) for seen in takeover.seen} == {len(SETTINGS)}
    assert all(seen.topic_ids == takeover.seen[OURS].topic_ids for seen in takeover.seen)
    assert all(seen.brokers == [4] for seen in takeover.seen)


def test_kafka_finds_the_settings(takeover: Takeover) -> None:
    assert takeover.seen[OURS].configs == SETTINGS
    assert takeover.seen[THEIRS].configs == SETTINGS


def test_an_idempotent_producer_goes_on_without_duplicates(takeover: Takeover) -> None:
    """A batch that is sent again to the next broker is answered with the offset it has there."""
    ours, theirs, again = takeover.offsets[:2], takeover.offsets[2:5], takeover.offsets[5:]
    assert theirs[0] == ours[-1]
    assert again[0] == theirs[-1]
    values = [
        record.value
        for record in takeover.seen[OURS_AGAIN].contents["idem", 0].records
        if record.value != b"next"
    ]
    assert values == [b"%d" % number for number in range(18)]


def test_producer_ids_are_never_given_twice(takeover: Takeover) -> None:
    assert len(set(takeover.producer_ids)) == 3
    assert takeover.producer_ids == sorted(takeover.producer_ids)
