"""What the metrics tell agrees with what happened, under the names that dashboards for Kafka ask for."""

from __future__ import annotations

import json
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.client import Client, batch_of, fetch_request, produce_request
from tests.faults.test_pipelined import ask_at_once
from tests.server.scrape import metrics_url, scrape
from tests.support.broker import Broker
from tests.support.wait import eventually
from tidelog.errors import ErrorCode
from tidelog.protocol.message import Message
from tidelog.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse

# Names that the dashboards which Strimzi ships ask for, as its rules make them out of Kafka's.
STRIMZI = [
    "kafka_controller_controllerstats_uncleanleaderelections_total",
    "kafka_controller_kafkacontroller_activecontrollercount",
    "kafka_controller_kafkacontroller_offlinepartitionscount",
    "kafka_log_log_size",
    "kafka_network_requestmetrics_errors_total",
    "kafka_network_requestmetrics_localtimems",
    "kafka_network_requestmetrics_remotetimems",
    "kafka_network_requestmetrics_requestqueuetimems",
    "kafka_network_requestmetrics_requests_total",
    "kafka_network_requestmetrics_responsequeuetimems",
    "kafka_network_requestmetrics_responsesendtimems",
    "kafka_network_requestmetrics_throttletimems",
    "kafka_network_requestmetrics_totaltimems",
    "kafka_network_requestmetrics_totaltimems_count",
    "kafka_network_socketserver_networkprocessoravgidle_percent",
    "kafka_server_brokertopicmetrics_bytesin_total",
    "kafka_server_brokertopicmetrics_bytesout_total",
    "kafka_server_brokertopicmetrics_failedfetchrequests_total",
    "kafka_server_brokertopicmetrics_failedproducerequests_total",
    "kafka_server_brokertopicmetrics_messagesin_total",
    "kafka_server_brokertopicmetrics_totalfetchrequests_total",
    "kafka_server_brokertopicmetrics_totalproducerequests_total",
    "kafka_server_delayedoperationpurgatory_purgatorysize",
    "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent",
    "kafka_server_kafkaserver_brokerstate",
    "kafka_server_replicamanager_isrexpands_total",
    "kafka_server_replicamanager_isrshrinks_total",
    "kafka_server_replicamanager_leadercount",
    "kafka_server_replicamanager_partitioncount",
    "kafka_server_replicamanager_underminisrpartitioncount",
    "kafka_server_replicamanager_underreplicatedpartitions",
    "kafka_server_socket_server_metrics_connection_count",
    "kafka_server_socket_server_metrics_connection_creation_rate",
    "kafka_server_socket_server_metrics_connections_software",
]

KAFKA_EXPORTER = [
    "kafka_brokers",
    "kafka_topic_partition_current_offset",
    "kafka_topic_partition_in_sync_replica",
    "kafka_topic_partition_leader",
    "kafka_topic_partition_leader_is_preferred",
    "kafka_topic_partition_oldest_offset",
    "kafka_topic_partition_replicas",
    "kafka_topic_partition_under_replicated_partition",
    "kafka_topic_partitions",
]

TOPICS = "kafka_server_brokertopicmetrics_"
REQUESTS = "kafka_network_requestmetrics_"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("metrics"), {"metrics.listener": "127.0.0.1:0"}) as running:
        yield running


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    with Client(broker.address) as connection:
        yield connection


def test_names_of_dashboards_are_served(broker: Broker, client: Client) -> None:
    client.create_topic("named")
    client.produce("named", 0, batch_of(b"v"))
    client.fetch("named", 0, 0)
    metrics = scrape(broker)
    assert [name for name in STRIMZI + KAFKA_EXPORTER if name not in metrics.names] == []
    for name in metrics.names:
        assert name == name.lower()
        if name.endswith("_total"):
            assert metrics.types[name] == "counter"


def test_bytes_and_messages_are_counted_per_topic_and_for_all(broker: Broker, client: Client) -> None:
    client.create_topic("counted")
    before = scrape(broker)
    batches = [batch_of(b"1", b"2", b"3"), batch_of(b"x" * 100_000), batch_of(b"4")]
    for data in batches:
        client.produce("counted", 0, data)
    read = client.fetch("counted", 0, 0).records
    assert read is not None
    client.produce("counted", 0, b"\0" * 100)
    after = scrape(broker)
    expected = {
        "messagesin_total": 5,
        "bytesin_total": sum(map(len, batches)),
        "bytesout_total": len(read),  # type: ignore[arg-type]
        "totalproducerequests_total": 4,
        "totalfetchrequests_total": 1,
        "failedproducerequests_total": 1,
        "failedfetchrequests_total": 0,
    }
    for name, value in expected.items():
        assert after(TOPICS + name, topic="counted") == value, name
        assert after(TOPICS + name) - before(TOPICS + name) == value, f"{name} of all topics"


def test_produces_of_one_turn_of_the_loop_are_counted_one_by_one(broker: Broker, client: Client) -> None:
    client.create_topic("joined")
    batches = [batch_of(b"%d" % at, b"x") for at in range(5)]
    requests: list[Message] = [produce_request("joined", 0, data) for data in batches]
    ask_at_once(client, requests)
    counted = scrape(broker)
    assert counted(TOPICS + "totalproducerequests_total", topic="joined") == 5
    assert counted(TOPICS + "messagesin_total", topic="joined") == 10
    assert counted(TOPICS + "bytesin_total", topic="joined") == sum(map(len, batches))


def test_batches_that_are_too_large_are_counted_as_rejected(broker: Broker, client: Client) -> None:
    client.create_topic("small", configs={"max.message.bytes": "1000"})
    data = batch_of(b"x" * 2000)
    assert client.produce("small", 0, data).error == ErrorCode.MESSAGE_TOO_LARGE
    metrics = scrape(broker)
    assert metrics(TOPICS + "bytesrejected_total", topic="small") == len(data)
    assert metrics(TOPICS + "failedproducerequests_total", topic="small") == 1


def test_requests_are_counted_by_version_with_their_times_and_errors(broker: Broker, client: Client) -> None:
    client.create_topic("timed")
    before = scrape(broker)
    for _ in range(3):
        client.produce("timed", 0, batch_of(b"v"))
    client.produce("missing", 0, batch_of(b"v"))
    after = scrape(broker)

    def grown(name: str, **labels: str) -> float:
        return sum(after.all(name, **labels)) - sum(before.all(name, **labels))

    assert grown(REQUESTS + "requests_total", request="Produce", version="9") == 4
    assert grown(REQUESTS + "errors_total", request="Produce", error="NONE") == 3
    assert grown(REQUESTS + "errors_total", request="Produce", error="UNKNOWN_TOPIC_OR_PARTITION") == 1
    for phase in ("totaltimems", "localtimems", "remotetimems", "requestqueuetimems", "throttletimems"):
        assert grown(f"{REQUESTS}{phase}_count", request="Produce") == 4, phase
    quantiles = after.all(REQUESTS + "totaltimems", request="Produce", quantile="0.99")
    assert quantiles[0] > 0


def test_a_fetch_that_waited_has_waited_remotely(broker: Broker, client: Client) -> None:
    client.create_topic("waits")
    client.send(fetch_request("waits", 0, 0, max_wait_ms=30_000), 11)
    eventually(
        lambda: sum(
            scrape(broker).all(
                "kafka_server_delayedoperationpurgatory_numdelayedoperations", delayedOperation="Fetch"
            )
        ),
        "the fetch waits",
    )
    size = "kafka_server_delayedoperationpurgatory_purgatorysize"
    assert scrape(broker)(size, delayedOperation="Fetch") == 1
    assert scrape(broker)(size, delayedOperation="Produce") == 0
    with Client(broker.address) as other:
        other.produce("waits", 0, batch_of(b"v"))
    client.receive_frame()
    metrics = scrape(broker)
    assert metrics(size, delayedOperation="Fetch") == 0
    assert metrics(REQUESTS + "remotetimems", request="FetchConsumer", quantile="0.999") > 0


def test_logs_and_partitions_are_shown_as_they_are(broker: Broker, client: Client) -> None:
    client.create_topic("shown", 2)
    data = batch_of(b"1", b"2", b"3")
    client.produce("shown", 1, data)
    client.delete_records("shown", 1, 2)
    metrics = scrape(broker)
    one = {"topic": "shown", "partition": "1"}
    assert metrics("kafka_log_log_size", **one) == len(data)
    assert metrics("kafka_log_log_size", topic="shown", partition="0") == 0
    assert metrics("kafka_log_log_logstartoffset", **one) == metrics(
        "kafka_topic_partition_oldest_offset", **one
    )
    assert metrics("kafka_topic_partition_oldest_offset", **one) == 2
    assert metrics("kafka_topic_partition_current_offset", **one) == 3
    assert metrics("kafka_topic_partitions", topic="shown") == 2
    assert metrics("kafka_topic_partition_leader", **one) == int(client.broker_id())
    assert metrics("kafka_brokers") == metrics("kafka_controller_kafkacontroller_activecontrollercount") == 1
    partitions = sum(client.partitions().values())
    assert metrics("kafka_server_replicamanager_leadercount") == partitions
    assert metrics("kafka_server_replicamanager_partitioncount") == partitions
    assert metrics("kafka_controller_kafkacontroller_globalpartitioncount") == partitions
    assert metrics("kafka_server_kafkaserver_brokerstate") == 3


def test_a_deleted_topic_leaves_no_numbers_behind(broker: Broker, client: Client) -> None:
    client.create_topic("brief")
    client.produce("brief", 0, batch_of(b"v"))
    assert 'topic="brief"' in scrape(broker).text
    client.delete_topic("brief")
    assert 'topic="brief"' not in scrape(broker).text


def test_connections_are_counted_by_the_software_of_their_clients(broker: Broker) -> None:
    name = "kafka_server_socket_server_metrics_connections_software"
    labels = {"clientSoftwareName": "clicker", "clientSoftwareVersion": "1.2"}
    with Client(broker.address) as first, Client(broker.address) as second:
        for connection in (first, second):
            request = ApiVersionsRequest(client_software_name="clicker", client_software_version="1.2")
            connection.ask(request, ApiVersionsResponse, 3)
        assert scrape(broker)(name, listener="PLAINTEXT", **labels) == 2
    eventually(lambda: not scrape(broker).all(name, **labels), "closed connections are gone")


def test_flushes_are_timed(broker: Broker, client: Client) -> None:
    client.create_topic("flushed", configs={"flush.messages": "1"})
    for _ in range(3):
        client.produce("flushed", 0, batch_of(b"v"))
    assert scrape(broker)("kafka_log_logflushstats_logflushrateandtimems_count") >= 3


def test_only_metrics_are_served_there(broker: Broker) -> None:
    url = metrics_url(broker)
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(url.replace("/metrics", "/other"), timeout=10)
    assert refused.value.code == 404


def test_metrics_are_off_by_default(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        assert "metrics at" not in broker.log()


def test_every_metric_says_what_it_is(broker: Broker) -> None:
    text = scrape(broker).text
    typed = re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)
    assert dict(re.findall(r"^# HELP (\S+) (.+)$", text, re.MULTILINE)).keys() == set(typed)


def test_the_process_and_its_disks_are_measured(broker: Broker) -> None:
    metrics = scrape(broker)
    with open(f"/proc/{broker.pid}/statm") as statm:
        resident = int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    assert metrics("process_resident_memory_bytes") == pytest.approx(resident, rel=0.2)
    assert 0.05 < metrics("process_cpu_seconds_total") < 300
    assert metrics("process_max_fds") >= metrics("process_open_fds") > 5
    assert metrics("process_start_time_seconds") == pytest.approx(time.time(), abs=600)
    assert metrics("tidelog_log_dir_bytes") >= metrics("tidelog_log_dir_free_bytes") > 0
    assert metrics("tidelog_log_dir_offline") == 0


def test_a_broker_that_serves_is_healthy(broker: Broker) -> None:
    with urllib.request.urlopen(metrics_url(broker).replace("/metrics", "/health"), timeout=10) as answer:
        told = json.loads(answer.read())
    assert told.keys() == {"broker", "state", "offline_log_dirs"}
    assert (told["state"], told["offline_log_dirs"]) == ("running as broker", [])
