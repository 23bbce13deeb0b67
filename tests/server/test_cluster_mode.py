"""Several brokers, each a process of its own, on one real ZooKeeper."""

from __future__ import annotations

import errno
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.faults.faulty_disk import FaultyDisk, faulty_broker
from tests.server.scrape import scrape
from tests.support.broker import Broker
from tests.support.cluster import ClusterOfBrokers
from tests.support.ports import free_port
from tests.support.raw import RawConnection
from tests.support.small_client import Client
from tests.support.wait import eventually
from tests.support.zookeeper import zookeeper_server
from tidelog import Admin, Consumer, NewTopic, Producer
from tidelog.clients.admin.users import QuotaEntity
from tidelog.errors import ErrorCode
from tidelog.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from tidelog.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse
from tidelog.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from tidelog.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tidelog.protocol.messages.produce import ProduceResponse
from tidelog.protocol.messages.write_txn_markers import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from tidelog.server.zookeeper_process import ZooKeeperProcess

TOPIC, BROKER = 2, 4
VALUES = [b"%d" % number for number in range(200)]


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperProcess]:
    with zookeeper_server(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, zookeeper: ZooKeeperProcess
) -> Iterator[ClusterOfBrokers]:
    """Two brokers that stay up."""
    folder = tmp_path_factory.mktemp("cluster")
    settings = {"metrics.listener": "127.0.0.1:0"}
    with ClusterOfBrokers(folder, 2, settings, zookeeper=f"{zookeeper.address}/shared") as brokers:
        yield brokers


def create(bootstrap: str, name: str, partitions: int = 4) -> None:
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topics([NewTopic(name, partitions, 1)])


def metadata(broker: Broker, topic: str | None = None, *, create: bool = False) -> MetadataResponse:
    """The metadata of one broker, which may not be that of the others."""
    topics = [] if topic is None else [MetadataRequest.MetadataRequestTopic(name=topic)]
    request = MetadataRequest(topics=topics, allow_auto_topic_creation=create)
    with Client(broker.address) as client:
        return client.raw.ask(request, MetadataResponse, 9)


def leaders(broker: Broker, topic: str) -> list[int]:
    (found,) = metadata(broker, topic).topics
    return sorted(partition.leader_id for partition in found.partitions)


def epochs(broker: Broker, topic: str) -> dict[int, int]:
    (found,) = metadata(broker, topic).topics
    return {partition.partition_index: partition.leader_epoch for partition in found.partitions}


def produce(bootstrap: str, topic: str, values: Sequence[bytes] = VALUES) -> None:
    with Producer(bootstrap_servers=bootstrap) as producer:
        for sent in [producer.send(topic, value, value) for value in values]:
            sent.result(20)


def consume(bootstrap: str, topic: str, count: int, group: str) -> set[bytes]:
    found: set[bytes] = set()
    with Consumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    ) as consumer:

        def enough() -> bool:
            found.update(record.value or b"" for record in consumer.poll(0.2))
            return len(found) >= count

        eventually(enough, f"{count} records of {topic}", 20.0, 0)
    return found


def other_than_controller(cluster: ClusterOfBrokers) -> Broker:
    return next(broker for id, broker in cluster.brokers.items() if id != cluster.controller)


@pytest.mark.parametrize("broker_id", [1, 2])
def test_topics_are_created_written_and_read_from_any_broker(
    cluster: ClusterOfBrokers, broker_id: int
) -> None:
    bootstrap, topic = cluster[broker_id].bootstrap, f"from-{broker_id}"
    create(bootstrap, topic)
    for broker in cluster.running:
        assert leaders(broker, topic) == [1, 1, 2, 2]
    produce(bootstrap, topic)
    for broker in cluster.running:
        assert consume(broker.bootstrap, topic, len(VALUES), f"g{broker_id}-{broker.port}") == set(VALUES)


def test_any_broker_passes_changes_of_topics_on_to_the_controller(cluster: ClusterOfBrokers) -> None:
    broker = other_than_controller(cluster)
    with Client(broker.address) as client:
        assert client.create("forwarded", 3) == 0
        assert client.create("forwarded", 3) == 36, "the controller's answer comes back: it exists already"
        assert leaders(broker, "forwarded") in ([1, 1, 2], [1, 2, 2])
        assert client.delete("forwarded") == 0
        assert metadata(broker, "forwarded").topics[0].error_code == 3


def test_quotas_count_on_every_broker_and_for_changes_that_are_passed_on(cluster: ClusterOfBrokers) -> None:
    first, second = cluster.running
    app: QuotaEntity = (("client-id", "limited"),)
    with Admin(bootstrap_servers=first.bootstrap) as admin:
        admin.alter_client_quotas({app: {"controller_mutation_rate": 0.1, "producer_byte_rate": 1_000.0}})
    with Admin(bootstrap_servers=second.bootstrap) as admin:
        assert admin.describe_client_quotas()[app] == {
            "controller_mutation_rate": 0.1,
            "producer_byte_rate": 1_000.0,
        }
    create(first.bootstrap, "limited", 2)
    led = {broker: leaders(broker, "limited") for broker in cluster.running}
    assert all(found == [1, 2] for found in led.values())
    for broker in cluster.running:

        def throttle_ms(broker: Broker = broker) -> int:
            throttled = []
            for index in range(2):  # this broker leads one of the two
                with Client(broker.address) as client:
                    client.raw.client_id = "limited"
                    request = client.produce_request("limited", index, b"v" * 30_000)
                    throttled.append(client.raw.ask(request, ProduceResponse, 9).throttle_time_ms)
            return max(throttled)

        eventually(throttle_ms, "the quota counts", 10.0)
    other = other_than_controller(cluster)
    raw = RawConnection(other.address, client_id="limited")
    wanted = CreateTopicsRequest.CreatableTopic(name="limited-5", num_partitions=3, replication_factor=1)
    request = CreateTopicsRequest(topics=[wanted], timeout_ms=10_000)
    began = time.monotonic()
    answer = raw.ask(request, CreateTopicsResponse, 5)
    assert (answer.topics[0].error_code, answer.throttle_time_ms > 5_000) == (0, True)
    assert time.monotonic() - began < 5.0
    wanted.name = "limited-6"
    refused = RawConnection(other.address, client_id="limited").ask(request, CreateTopicsResponse, 6)
    assert refused.topics[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert refused.throttle_time_ms > 0
    with Admin(bootstrap_servers=second.bootstrap) as admin:
        admin.alter_client_quotas({app: {"controller_mutation_rate": None, "producer_byte_rate": None}})


def test_a_client_of_any_broker_creates_topics_by_asking_for_them(cluster: ClusterOfBrokers) -> None:
    for broker in cluster.running:
        name = f"wanted-{broker.port}"
        assert metadata(broker, name, create=True).topics[0].error_code == 3
        eventually(lambda name=name: len(leaders(broker, name)) == 1, "it is there")  # noqa: B023


def test_producer_ids_are_different_on_all_brokers(cluster: ClusterOfBrokers) -> None:
    found = []
    for broker in cluster.running * 2:
        with Client(broker.address) as client:

            def given(client: Client = client) -> int | None:
                request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
                answer = client.raw.ask(request, InitProducerIdResponse, 4)
                return None if answer.error_code else answer.producer_id + 1

            found.append(eventually(given, "a producer id"))
    assert len(set(found)) == len(found)
    assert len({number // 1000 for number in found}) == 2, "each broker has a block"


def test_transactions_span_partitions_offsets_and_coordinators_on_all_brokers(
    cluster: ClusterOfBrokers,
) -> None:
    create(cluster.bootstrap, "sink", 4)
    committed: set[bytes] = set()
    for number in range(8):  # ids with coordinators on both brokers
        values = [b"%d-%d" % (number, index) for index in range(40)]
        with Producer(bootstrap_servers=cluster.bootstrap, transactional_id=f"writer-{number}") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            for value in values:
                producer.send("sink", value, value)
            producer.send_offsets_to_transaction({("sink", 0): number + 1}, f"group-{number}")
            if number % 2:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
                committed.update(values)
    assert consume(cluster.bootstrap, "sink", len(committed), "readers") == committed
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        for number in range(8):
            (found,) = admin.list_consumer_group_offsets([f"group-{number}"]).values()
            offsets = [position.offset for position in found.values()]
            assert offsets == ([] if number % 2 else [number + 1]), number


def test_the_coordinator_knows_the_lag_in_partitions_of_other_brokers(cluster: ClusterOfBrokers) -> None:
    create(cluster.bootstrap, "late", partitions=2)
    assert leaders(cluster[1], "late") == [1, 2]
    partitions = [("late", 0), ("late", 1)]
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.alter_consumer_group_offsets("slow", dict.fromkeys(partitions, 0))
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        for partition in (0, 1):
            producer.send_and_wait("late", b"unread", partition=partition)

    def lags(name: str) -> list[float]:
        found = [scrape(broker) for broker in cluster.running]
        return [lag for metrics in found for lag in metrics.all(name, consumergroup="slow", topic="late")]

    eventually(
        lambda: lags("kafka_consumergroup_lag") == [1, 1],
        "the lag in both partitions",
        timeout=60.0,
        interval=0.5,
    )
    assert len(lags("kafka_consumergroup_lag_sum")) == 1
    metrics = scrape(cluster[1])
    assert metrics("kafka_server_sessionexpirelistener_zookeepersyncconnects_total") >= 1
    assert metrics("kafka_server_zookeeperclientmetrics_zookeeperrequestlatencyms_count") > 0


def test_a_marker_is_for_the_broker_that_gets_it_and_is_not_passed_on(cluster: ClusterOfBrokers) -> None:
    create(cluster.bootstrap, "marked", 2)
    request = WriteTxnMarkersRequest(
        markers=[
            WriteTxnMarkersRequest.WritableTxnMarker(
                producer_id=7,
                topics=[
                    WriteTxnMarkersRequest.WritableTxnMarkerTopic(name="marked", partition_indexes=[0, 1]),
                    WriteTxnMarkersRequest.WritableTxnMarkerTopic(name="nowhere", partition_indexes=[0]),
                ],
            )
        ]
    )
    for broker in cluster.running:
        with Client(broker.address) as client:
            (marker,) = client.raw.ask(request, WriteTxnMarkersResponse, 1).markers
        codes = [partition.error_code for topic in marker.topics for partition in topic.partitions]
        assert sorted(codes) == [0, 3, 6], "one of the two partitions is led here, the coordinator asks again"


# Settings


def setting(broker: Broker, kind: int, name: str, key: str) -> str | None:
    request = DescribeConfigsRequest(
        resources=[
            DescribeConfigsRequest.DescribeConfigsResource(
                resource_type=kind, resource_name=name, configuration_keys=[key]
            )
        ]
    )
    with Client(broker.address) as client:
        (result,) = client.raw.ask(request, DescribeConfigsResponse, 4).results
    assert result.error_code == 0, result.error_message
    return result.configs[0].value if result.configs else None


def alter(broker: Broker, kind: int, name: str, key: str, value: str) -> int:
    request = IncrementalAlterConfigsRequest(
        resources=[
            IncrementalAlterConfigsRequest.AlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=[
                    IncrementalAlterConfigsRequest.AlterableConfig(name=key, config_operation=0, value=value)
                ],
            )
        ]
    )
    with Client(broker.address) as client:
        return client.raw.ask(request, IncrementalAlterConfigsResponse, 1).responses[0].error_code


def test_any_broker_changes_the_settings_of_a_topic_for_all(cluster: ClusterOfBrokers) -> None:
    one, two = cluster.running
    create(cluster.bootstrap, "small", 2)
    assert alter(one, TOPIC, "small", "max.message.bytes", "500") == 0
    assert setting(two, TOPIC, "small", "max.message.bytes") == "500"

    def refused(broker: Broker) -> bool:
        with Client(broker.address) as client:
            return {client.produce("small", index, bytes(1000)).error_code for index in (0, 1)} == {10, 6}

    for broker in (one, two):
        eventually(lambda broker=broker: refused(broker), "the leader refuses large records")
    assert alter(two, TOPIC, "small", "max.message.bytes", "x") == 40
    assert alter(two, TOPIC, "nowhere", "max.message.bytes", "5") == 3


def test_settings_of_all_brokers_reach_all_without_a_restart(cluster: ClusterOfBrokers) -> None:
    one, two = cluster.running
    assert alter(two, BROKER, "", "message.max.bytes", "777777") == 0
    for id, broker in cluster.brokers.items():
        eventually(
            lambda broker=broker, id=id: setting(broker, BROKER, str(id), "message.max.bytes") == "777777",
            "the default is known",
        )
    assert alter(one, BROKER, "1", "message.max.bytes", "888888") == 0
    assert setting(one, BROKER, "1", "message.max.bytes") == "888888"
    assert setting(two, BROKER, "2", "message.max.bytes") == "777777"
    assert alter(two, BROKER, "1", "message.max.bytes", "1") == 42, "each broker has settings of its own"


# Starts and stops


@pytest.fixture
def pair(tmp_path: Path, zookeeper: ZooKeeperProcess) -> Iterator[ClusterOfBrokers]:
    """Two brokers that a test may kill."""
    chroot = f"{zookeeper.address}/{tmp_path.name}"
    with ClusterOfBrokers(tmp_path, 2, {"zookeeper.session.timeout.ms": "3000"}, zookeeper=chroot) as brokers:
        yield brokers


@pytest.fixture
def patient_pair(tmp_path: Path, zookeeper: ZooKeeperProcess) -> Iterator[ClusterOfBrokers]:
    """The same with sessions that outlive the restart of a broker, however slow the machine is."""
    chroot = f"{zookeeper.address}/{tmp_path.name}"
    settings = {"zookeeper.session.timeout.ms": "40000", "tidelog.guardian.enable": "false"}
    with ClusterOfBrokers(tmp_path, 2, settings, zookeeper=chroot) as brokers:
        yield brokers


def test_a_killed_broker_comes_back_at_once_with_its_records_and_new_leader_epochs(
    patient_pair: ClusterOfBrokers,
) -> None:
    pair = patient_pair
    create(pair.bootstrap, "kept", 4)
    produce(pair.bootstrap, "kept")
    before = epochs(pair[1], "kept")
    session = pair[2].data / "__zookeeper-session.json"
    assert stat.S_IMODE(session.stat().st_mode) == 0o600, "it has the password of the session"
    pair[2].restart(kill=True)
    assert "closed the ZooKeeper session" in pair[2].log()
    pair.await_members()
    after = eventually(
        lambda: found if sum((found := epochs(pair[1], "kept")).values()) > sum(before.values()) else None,
        "the controller elects the leaders anew",
    )
    led_by_two = [index for index in before if after[index] > before[index]]
    assert len(led_by_two) == 2
    assert consume(pair.bootstrap, "kept", len(VALUES), "after") == set(VALUES)


def test_another_broker_takes_over_from_a_killed_controller(pair: ClusterOfBrokers) -> None:
    first = pair.controller
    second = 3 - first
    pair[first].kill()
    survivor = pair[second]
    eventually(lambda: metadata(survivor).controller_id == second, "the other one is the controller", 20.0)
    eventually(lambda: len(metadata(survivor).brokers) == 1, "the dead one is gone", 20.0)
    create(survivor.bootstrap, "after", 2)
    assert leaders(survivor, "after") == [second, second]
    pair[first].start()
    pair.await_members()
    assert leaders(pair[first], "after") == [second, second]


def test_a_stopped_broker_says_goodbye(patient_pair: ClusterOfBrokers) -> None:
    pair = patient_pair
    create(pair.bootstrap, "t", 2)
    leaving = 3 - pair.controller
    assert pair[leaving].terminate() == 0
    assert "stopping without a controlled shutdown" not in pair[leaving].log()
    survivor = pair[3 - leaving]
    eventually(
        lambda: len(metadata(survivor).brokers) == 1, "it is gone before its session could expire", 20.0
    )
    eventually(lambda: -1 in leaders(survivor, "t"), "its only replica is offline")
    pair[leaving].start()
    pair.await_members()
    eventually(lambda: leaders(survivor, "t") == [1, 2], "it leads again")


def test_a_paused_broker_registers_again_when_its_session_expired(pair: ClusterOfBrokers) -> None:
    create(pair.bootstrap, "t", 4)
    paused = 3 - pair.controller
    pair[paused].process.send_signal(signal.SIGSTOP)
    try:
        eventually(lambda: len(metadata(pair[3 - paused]).brokers) == 1, "its session expired", 20.0)
    finally:
        pair[paused].process.send_signal(signal.SIGCONT)
    pair.await_members()
    eventually(lambda: leaders(pair[paused], "t") == [1, 1, 2, 2], "it leads again")
    produce(pair.bootstrap, "t")
    assert consume(pair.bootstrap, "t", len(VALUES), "g") == set(VALUES)
    # More often if the machine was too busy for such a short session.
    assert pair[paused].log().count("msg=registered") >= 2


def test_the_id_of_a_live_broker_is_refused_in_one_line(pair: ClusterOfBrokers) -> None:
    pair.add(7)
    second = Broker(pair.folder / "other", {**pair[1].settings, "zookeeper.session.timeout.ms": "1000"})
    second.launch()
    assert second.wait() == 1
    (line,) = [line for line in second.log().splitlines() if line.startswith("tidelog: ")]
    assert line.startswith("tidelog: broker id 1 is taken: /brokers/ids/1 exists already")


def test_a_folder_of_another_cluster_is_refused(tmp_path: Path, zookeeper: ZooKeeperProcess) -> None:
    settings = {"broker.id": "1", "zookeeper.connect": f"{zookeeper.address}/one"}
    broker = Broker(tmp_path, settings)
    broker.start()
    broker.terminate()
    broker.settings["zookeeper.connect"] = f"{zookeeper.address}/two"
    with Broker(tmp_path / "founder", {**broker.settings, "broker.id": "2"}):
        broker.launch()
        assert broker.wait() == 1
    assert "belongs to cluster.id" in broker.log()


def test_brokers_without_ids_get_different_ones(tmp_path: Path, zookeeper: ZooKeeperProcess) -> None:
    settings = {"zookeeper.connect": f"{zookeeper.address}/generated"}
    with Broker(tmp_path / "a", settings) as one, Broker(tmp_path / "b", settings) as two:
        found = eventually(
            lambda: nodes if len(nodes := [b.node_id for b in metadata(one).brokers]) == 2 else None, "both"
        )
        assert sorted(found) == [1001, 1002]
        two.restart()
        eventually(lambda: [b.node_id for b in metadata(two).brokers] == [1001, 1002], "the ids stay")


def test_the_controllers_requests_come_over_their_own_listener(
    tmp_path: Path, zookeeper: ZooKeeperProcess
) -> None:
    control, client = free_port(), free_port()
    settings = {
        "broker.id": "1",
        "zookeeper.connect": f"{zookeeper.address}/control",
        "listeners": f"PLAINTEXT://127.0.0.1:{client},CONTROL://127.0.0.1:{control}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROL:PLAINTEXT",
        "control.plane.listener.name": "CONTROL",
        "tidelog.log.levels": "request:DEBUG",
    }
    with Broker(tmp_path, settings) as broker:
        create(broker.bootstrap, "t", 1)
        lines = [line for line in broker.log().splitlines() if "api=LeaderAndIsr" in line]
        assert lines
        assert all("listener=CONTROL" in line for line in lines)


def test_partitions_of_a_failed_log_folder_have_no_leader(
    tmp_path: Path, zookeeper: ZooKeeperProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [tmp_path / "first", tmp_path / "second"]
    settings = {
        "broker.id": "1",
        "zookeeper.connect": f"{zookeeper.address}/folders",
        "log.dirs": ",".join(map(str, folders)),
    }
    disk = FaultyDisk()
    with faulty_broker(monkeypatch, disk, settings) as running, Client(running.address) as client:
        request = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="t")])

        def now_leading() -> list[int]:
            (found,) = client.raw.ask(request, MetadataResponse, 9).topics
            return [partition.leader_id for partition in found.partitions]

        eventually(lambda: client.create("t", 4) in (0, 36), "a controller creates the topic")
        eventually(lambda: now_leading() == [1, 1, 1, 1], "it leads all")
        disk.fail(folders[1], errno.EIO)
        for index in range(4):
            client.produce("t", index, b"x")
        eventually(lambda: now_leading().count(-1) == 2, "the controller knows which replicas are lost")


def test_a_broker_alone_imports_nothing_of_a_cluster(tmp_path: Path) -> None:
    script = """
import asyncio, sys
from tidelog.network.loop import BrokerLoop
from tidelog.server.broker import Broker
from tidelog.server.config.broker import BrokerConfig
loop = BrokerLoop(1)
asyncio.set_event_loop(loop)
settings = {"log.dirs": sys.argv[1], "listeners": "PLAINTEXT://127.0.0.1:0"}
broker = Broker(BrokerConfig.load(None, settings), loop)
async def life():
    await broker.start()
    await broker.stop()
loop.run_until_complete(life())
print("\\n".join(name for name in sys.modules if name.startswith("tidelog.")))
"""
    ran = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=60, check=True
    )
    loaded = set(ran.stdout.split())
    assert "tidelog.server.embedded_membership" in loaded
    of_a_cluster = (
        "tidelog.clients",
        "tidelog.metadata.zookeeper",
        "tidelog.metadata.cluster_store",
        "tidelog.controller.cluster_controller",
        "tidelog.coordinator.transaction.remote",
        "tidelog.cluster.replica_states",
        "tidelog.server.zookeeper",
        "tidelog.server.config.cluster",
        "tidelog.server.controller_",
        "tidelog.server.forwarding",
    )
    assert sorted(name for name in loaded if name.startswith(of_a_cluster)) == []
