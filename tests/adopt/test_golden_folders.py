"""Folders that Kafka 3.9 left behind are adopted and served to clients exactly as Kafka served them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import golden
from tests.support.broker import Broker
from tests.support.contents import Contents, Partition, offset_at, produce, read_with_client, read_with_fetch
from tests.support.golden import expected_committed, expected_contents
from tests.support.raw import RawConnection
from tests.support.topics import topic_configs
from tests.support.wait import eventually
from tidelog import Admin, NewTopic
from tidelog.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tidelog.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from tidelog.protocol.offset_specs import EARLIEST
from tidelog.protocol.wire import uuid_to_text
from tidelog.storage.checkpoints import decode_partition_metadata

PARTITIONS = golden.partitions()
TOPICS = sorted({topic for topic, _ in PARTITIONS})
NAMES = ["{}-{}".format(*partition) for partition in PARTITIONS]


def adopt(folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "tidelog", "adopt", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def adopted_broker(kind: str, target: Path, settings: dict[str, str] | None = None) -> Broker:
    broker = Broker(target / "broker", settings)
    shutil.move(golden.unpack(kind, target), broker.data)
    adopt(broker.data)
    return broker


@pytest.fixture(scope="module", params=golden.KINDS)
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    # The groups have been without members for longer than offsets are kept, and the open transaction has
    # had its time.
    settings = {
        "offsets.retention.minutes": "2147483647",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "3600000",
    }
    with adopted_broker(request.param, tmp_path_factory.mktemp(request.param), settings) as running:
        yield running


@pytest.fixture(scope="module")
def seen(broker: Broker) -> dict[Partition, Contents]:
    return read_with_client(broker.bootstrap, PARTITIONS)


@pytest.fixture(scope="module")
def seen_committed(broker: Broker) -> dict[Partition, Contents]:
    return read_with_client(broker.bootstrap, PARTITIONS, committed=True)


@pytest.mark.parametrize("partition", PARTITIONS, ids=NAMES)
def test_a_client_reads_every_record(seen: dict[Partition, Contents], partition: Partition) -> None:
    assert seen[partition] == expected_contents(partition)


@pytest.mark.parametrize("partition", PARTITIONS, ids=NAMES)
def test_a_client_reads_what_was_committed(
    seen_committed: dict[Partition, Contents], partition: Partition
) -> None:
    assert seen_committed[partition].offsets == expected_committed(partition)


@pytest.mark.parametrize("partition", PARTITIONS, ids=NAMES)
def test_fetch_requests_give_every_record(broker: Broker, partition: Partition) -> None:
    assert read_with_fetch(broker.bootstrap, partition) == expected_contents(partition)


@pytest.mark.parametrize("partition", PARTITIONS, ids=NAMES)
def test_fetch_requests_tell_what_was_aborted(broker: Broker, partition: Partition) -> None:
    found = read_with_fetch(broker.bootstrap, partition, committed=True)
    assert found.offsets == expected_committed(partition)


def test_topics_keep_their_ids(broker: Broker) -> None:
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        ids = {topic.name: topic.topic_id for topic in admin.list_topics().values()}
    for topic in TOPICS:
        path = broker.data / f"{topic}-0" / "partition.metadata"
        assert ids[topic] == uuid_to_text(decode_partition_metadata(str(path), path.read_bytes()))


def test_what_can_be_seen_of_settings_is_set(broker: Broker) -> None:
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        configs = {topic: topic_configs(admin, topic) for topic in TOPICS}
    assert configs["appendtime"]["message.timestamp.type"] == "LogAppendTime"
    assert configs["plain"]["message.timestamp.type"] == "CreateTime"
    assert configs["compact"]["cleanup.policy"] == "compact"
    assert {configs[topic]["retention.ms"] for topic in TOPICS} == {"-1"}


def test_a_new_producer_is_not_taken_for_an_old_one(broker: Broker) -> None:
    """The folder's logs remember producers by id: ids that they know are not given again."""
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
    with RawConnection(broker.bootstrap) as connection:
        answer = connection.ask(request, InitProducerIdResponse, 4)
    assert answer.producer_id > 1_000_000
    assert answer.producer_id == pytest.approx(1_000_000, abs=10_000)


@pytest.mark.parametrize("kind", golden.KINDS)
def test_nothing_is_deleted_by_default(tmp_path: Path, kind: str) -> None:
    """Every record is older than the week of the broker's default, and retention runs all the time."""
    settings = {"log.retention.check.interval.ms": "20", "log.retention.ms": "1000"}
    with adopted_broker(kind, tmp_path, settings) as broker:
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            admin.create_topics([NewTopic("short")])
        # A topic without settings of its own shows that retention was there and looked at everything.
        produce(broker.bootstrap, {("short", 0): [b"old"]}, timestamp=1_767_225_600_000)
        with RawConnection(broker.bootstrap) as connection:
            eventually(
                lambda: offset_at(connection, ("short", 0), EARLIEST) == 1, "retention deletes old records"
            )
        for partition in PARTITIONS:
            assert read_with_fetch(broker.bootstrap, partition) == expected_contents(partition)


@pytest.mark.parametrize(("kind", "kill"), [("clean", True), ("crashed", False)])
def test_production_goes_on_where_kafka_ended(tmp_path: Path, kind: str, kill: bool) -> None:
    with adopted_broker(kind, tmp_path, {"log.flush.interval.messages": "1"}) as broker:
        produce(broker.bootstrap, {partition: [b"one", b"two"] for partition in PARTITIONS})
        broker.restart(kill=kill)
        seen = read_with_client(broker.bootstrap, PARTITIONS)
        for partition in PARTITIONS:
            before, now = expected_contents(partition), seen[partition]
            assert now.records[:-2] == before.records
            assert [(r.offset, r.value) for r in now.records[-2:]] == [
                (before.high, b"one"),
                (before.high + 1, b"two"),
            ]
            assert (now.low, now.high) == (before.low, before.high + 2)


def test_the_report_names_everything(tmp_path: Path) -> None:
    told = adopt(golden.unpack("crashed", tmp_path))
    assert "Cluster Op1KtY-PTVCuIrOzPLsjQA, broker 0, not cleanly stopped" in told
    for topic in TOPICS:
        assert re.search(rf"^  {topic}: [12] partitions, .*retention.ms=-1", told, re.MULTILINE)
    assert "compact: 1 partitions, retention.ms=-1,retention.bytes=-1,cleanup.policy=compact" in told
    assert re.search(r"does not contain.*: retention.ms, .*max.message.bytes", told)


def test_the_offsets_of_groups_are_served(broker: Broker) -> None:
    def committed(group_id: str) -> dict[str, int]:
        with RawConnection(broker.address) as connection:
            wanted = OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group_id, topics=None)
            request = OffsetFetchRequest(groups=[wanted], require_stable=True)
            answer = eventually(
                lambda: is_loaded(connection.ask(request, OffsetFetchResponse, 9)), "the offsets of a group"
            )
        return {
            f"{topic.name}-{partition.partition_index}": partition.committed_offset
            for topic in answer.groups[0].topics
            for partition in topic.partitions
        }

    def is_loaded(answer: OffsetFetchResponse) -> OffsetFetchResponse | None:
        return answer if answer.groups[0].error_code == 0 else None

    groups = golden.expected()["group_offsets"]
    assert groups
    assert {group_id: committed(group_id) for group_id in groups} == groups
