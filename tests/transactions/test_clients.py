"""Transactions of other people's producers on a broker of ours, through kills, stops and time."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kafka import KafkaProducer
from tests.support.own_cluster import AnyBroker, any_broker
from tests.support.routing import routed_connection
from tests.support.wait import eventually
from tests.transactions.by_hand import described, end, open_transaction, write_prepared
from tests.transactions.reading import read
from tidelog.coordinator.transaction.state import State
from tidelog.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tidelog.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

PARTITIONS = 2
SETTINGS = {
    "transaction.state.log.num.partitions": "3",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
    "transaction.two.phase.commit.enable": "true",
}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AnyBroker]:
    with any_broker(tmp_path_factory.mktemp("transactions"), SETTINGS) as broker:
        yield broker


@pytest.fixture
def topic(running: AnyBroker, request: pytest.FixtureRequest) -> str:
    return make_topic(running, request.node.name.replace("[", "-").replace("]", ""))


def make_topic(broker: AnyBroker, name: str) -> str:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result()
    return name


def producer(broker: AnyBroker, transactional_id: str, **settings: object) -> Producer:
    made = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": transactional_id, **settings})
    made.init_transactions(30)
    return made


# -- ends


def test_what_confluent_kafka_commits_is_read_and_what_it_aborts_is_not(
    running: AnyBroker, topic: str
) -> None:
    writer = producer(running, topic)
    for number in range(6):
        writer.begin_transaction()
        for index in range(PARTITIONS):
            writer.produce(topic, f"{number}".encode(), partition=index)
        if number % 2:
            writer.abort_transaction(30)
        else:
            writer.commit_transaction(30)
    assert read(running.bootstrap, topic, PARTITIONS) == [[b"0", b"2", b"4"]] * PARTITIONS


def test_what_kafka_python_commits_is_read_and_what_it_aborts_is_not(running: AnyBroker, topic: str) -> None:
    writer = KafkaProducer(bootstrap_servers=running.bootstrap, transactional_id=topic)
    writer.init_transactions()
    for number in range(4):
        writer.begin_transaction()
        for index in range(PARTITIONS):
            writer.send(topic, f"{number}".encode(), partition=index).get(30)
        if number % 2:
            writer.abort_transaction()
        else:
            writer.commit_transaction()
    writer.close()
    assert read(running.bootstrap, topic, PARTITIONS) == [[b"0", b"2"]] * PARTITIONS


def test_an_open_transaction_holds_back_readers_of_committed_records_alone(
    running: AnyBroker, topic: str
) -> None:
    writer = producer(running, topic)
    writer.begin_transaction()
    writer.produce(topic, b"open", partition=0)
    writer.flush(30)
    plain = Producer({"bootstrap.servers": running.bootstrap})
    plain.produce(topic, b"plain", partition=0)
    plain.flush(30)
    assert read(running.bootstrap, topic) == [[]]
    assert read(running.bootstrap, topic, isolation="read_uncommitted") == [[b"open", b"plain"]]
    writer.commit_transaction(30)
    assert read(running.bootstrap, topic) == [[b"open", b"plain"]]


@pytest.mark.parametrize("commit", [True, False])
def test_a_groups_offsets_move_with_the_transaction_or_not_at_all(
    running: AnyBroker, topic: str, commit: bool
) -> None:
    consumer = Consumer({"bootstrap.servers": running.bootstrap, "group.id": topic})
    before = [TopicPartition(topic, 0, 1)]
    consumer.commit(offsets=before, asynchronous=False)
    writer = producer(running, topic)
    writer.begin_transaction()
    writer.produce(topic, b"v", partition=0)
    group = consumer.consumer_group_metadata()
    writer.send_offsets_to_transaction([TopicPartition(topic, 0, 7)], group, 30)
    if commit:
        writer.commit_transaction(30)
    else:
        writer.abort_transaction(30)
    (after,) = consumer.committed([TopicPartition(topic, 0)], 30)
    consumer.close()
    assert after.offset == (7 if commit else 1)


# -- producers that fail


def test_a_producer_that_is_replaced_is_fenced(running: AnyBroker, topic: str) -> None:
    old = producer(running, topic)
    old.begin_transaction()
    old.produce(topic, b"old", partition=0)
    old.flush(30)
    new = producer(running, topic)
    new.begin_transaction()
    new.produce(topic, b"new", partition=0)
    new.commit_transaction(30)
    with pytest.raises(KafkaException):
        old.commit_transaction(30)
    assert read(running.bootstrap, topic) == [[b"new"]]


STOPPED = """
import sys
from tests.support import secure_clients
secure_clients.install_if_secured("confluent-kafka")
from confluent_kafka import Producer, KafkaException
writer = Producer({"bootstrap.servers": sys.argv[1], "transactional.id": sys.argv[2]})
writer.init_transactions(30)
writer.begin_transaction()
writer.produce(sys.argv[2], b"stopped", partition=0)
writer.flush(30)
print("open", flush=True)
sys.stdin.readline()
try:
    writer.produce(sys.argv[2], b"late", partition=0)
    writer.commit_transaction(30)
    print("committed", flush=True)
except KafkaException as error:
    print("refused", error.args[0].name(), flush=True)
"""


def test_a_producer_that_was_stopped_meanwhile_is_fenced(running: AnyBroker, topic: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STOPPED, running.bootstrap, topic],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        process.send_signal(signal.SIGSTOP)
        try:
            other = producer(running, topic)
            other.begin_transaction()
            other.produce(topic, b"other", partition=0)
            other.commit_transaction(30)
        finally:
            process.send_signal(signal.SIGCONT)
        process.stdin.write("go on\n")
        process.stdin.flush()
        assert process.stdout.readline().startswith("refused")
    assert read(running.bootstrap, topic) == [[b"other"]]


def test_a_transaction_that_takes_too_long_is_aborted(running: AnyBroker, topic: str) -> None:
    writer = producer(running, topic, **{"transaction.timeout.ms": 1000})
    writer.begin_transaction()
    writer.produce(topic, b"slow", partition=0)
    writer.flush(30)
    with routed_connection(running.bootstrap) as connection:
        eventually(lambda: described(connection, topic).transaction_state == "CompleteAbort", "it is aborted")
    with pytest.raises(KafkaException):
        writer.commit_transaction(30)
    assert read(running.bootstrap, topic) == [[]]


# -- brokers that fail


def test_a_broker_that_was_killed_keeps_what_was_committed_and_what_is_open(tmp_path: Path) -> None:
    with any_broker(tmp_path, SETTINGS) as broker:
        topic = make_topic(broker, "t")
        writer = producer(broker, "w")
        writer.begin_transaction()
        writer.produce(topic, b"first", partition=0)
        writer.commit_transaction(30)
        writer.begin_transaction()
        writer.produce(topic, b"second", partition=0)
        writer.flush(30)
        broker.restart(kill=True)
        assert read(broker.bootstrap, topic) == [[b"first"]]
        writer.produce(topic, b"third", partition=0)
        writer.commit_transaction(60)
        assert read(broker.bootstrap, topic) == [[b"first", b"second", b"third"]]


@pytest.mark.parametrize("commit", [True, False])
def test_a_broker_that_was_killed_before_the_markers_writes_them_when_it_starts(
    tmp_path: Path, commit: bool
) -> None:
    """The record of the prepared end is the last thing that the coordinator wrote."""
    with any_broker(tmp_path, SETTINGS) as broker:
        topic = make_topic(broker, "t")
        with routed_connection(broker.bootstrap, client_id="__admin_client") as connection:
            open_transaction(connection, topic)
            assert read(broker.bootstrap, topic) == [[]]
            write_prepared(connection, "raw", State.PREPARE_COMMIT if commit else State.PREPARE_ABORT)
        broker.restart(kill=True)
        with routed_connection(broker.bootstrap) as connection:
            wanted = "CompleteCommit" if commit else "CompleteAbort"
            eventually(lambda: described(connection, "raw").transaction_state == wanted, f"it is {wanted}")
        assert read(broker.bootstrap, topic) == [[b"v"] if commit else []]


@pytest.mark.parametrize("commit", [True, False])
def test_a_prepared_transaction_is_decided_after_restarts_of_everyone(tmp_path: Path, commit: bool) -> None:
    with any_broker(tmp_path, SETTINGS) as broker:
        topic = make_topic(broker, "t")
        with routed_connection(broker.bootstrap) as connection:
            old = open_transaction(connection, topic, two_phase=True)
        broker.restart(kill=True)
        with routed_connection(broker.bootstrap) as connection:
            new = connection.ask(
                InitProducerIdRequest(transactional_id="raw", enable_2pc=True, keep_prepared_txn=True),
                InitProducerIdResponse,
                6,
            )
            assert (new.ongoing_txn_producer_id, new.ongoing_txn_producer_epoch) == old
        broker.restart()
        with routed_connection(broker.bootstrap) as connection:
            assert end(connection, *old, commit=commit).error_code == 90
            assert described(connection, "raw").transaction_state == "Ongoing"
            assert end(connection, new.producer_id, new.producer_epoch, commit=commit).error_code == 0
        assert read(broker.bootstrap, topic) == [[b"v"] if commit else []]


@pytest.mark.parametrize(("enabled", "newest"), [("true", 6), ("false", 5)])
def test_two_phase_commits_are_announced_where_they_are_enabled(
    tmp_path: Path, enabled: str, newest: int
) -> None:
    settings = {"transaction.two.phase.commit.enable": enabled}
    with any_broker(tmp_path, settings) as broker, routed_connection(broker.bootstrap) as connection:
        request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
        answer = connection.ask(request, ApiVersionsResponse, 4)
        versions = {api.api_key: api.max_version for api in answer.api_keys}
        levels = {feature.name: feature.max_version_level for feature in answer.finalized_features}
    assert versions[22] == newest
    assert levels["transaction.version"] == 2
