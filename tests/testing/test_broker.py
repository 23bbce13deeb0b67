"""The broker for tests: quick, complete, and gone without a trace."""

from __future__ import annotations

import logging
import os
import pkgutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import confluent_kafka
import confluent_kafka.admin
import pytest

import kafka
from tidelog import Producer
from tidelog.config.values import ConfigError
from tidelog.server.run import StartFailed
from tidelog.testing import Broker


def written_and_read(bootstrap: str, topic: str, values: list[bytes]) -> list[bytes]:
    """What a consumer of confluent-kafka finds after a producer of it has written the values."""
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(30) == 0
    return read(bootstrap, topic, len(values))


def read(bootstrap: str, topic: str, count: int) -> list[bytes]:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": uuid.uuid4().hex, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    try:
        found = [message.value() for message in consumer.consume(count, 30)]
    finally:
        consumer.close()
    return found


def connects(host: str, port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) == 0


def test_confluent_kafka_works_on_it_with_groups() -> None:
    with Broker() as broker:
        assert written_and_read(broker.bootstrap_servers, "greetings", [b"a", b"b"]) == [b"a", b"b"]


def test_kafka_python_works_on_it() -> None:
    with Broker() as broker:
        broker.create_topic("orders")
        producer = kafka.KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
        assert producer.send("orders", b"one tea").get(30).offset == 0
        producer.close()
        consumer = kafka.KafkaConsumer(
            "orders", bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest"
        )
        assert next(consumer).value == b"one tea"
        consumer.close()


def test_it_is_ready_in_under_three_tenths_of_a_second() -> None:
    with Broker():
        pass  # what a process imports once
    took = []
    for _ in range(5):
        before = time.process_time()
        with Broker():
            took.append(time.process_time() - before)
    # CPU, not the clock: other tests run beside this one.
    assert min(took) < 0.3


def test_two_brokers_at_once_know_nothing_of_each_other() -> None:
    with Broker() as one, Broker(broker_id=7) as other:
        assert one.port != other.port
        assert one.data != other.data
        one.create_topic("here")
        admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": other.bootstrap_servers})
        assert list(admin.list_topics(timeout=10).brokers) == [7]
        assert "here" not in admin.list_topics(timeout=10).topics
        assert any("broker=7" in line for line in other.log_lines())
        assert not any("broker=7" in line for line in one.log_lines())


def test_nothing_is_left_after_close() -> None:
    threads = set(threading.enumerate())
    with Broker() as broker:
        written_and_read(broker.bootstrap_servers, "traces", [os.urandom(100_000)] * 5)
        host, port, folder = broker.host, broker.port, broker.data
        assert os.path.isdir(folder)
        files = open_files(folder)
        assert files
    # librdkafka's own threads are not Python's.
    assert {thread.name for thread in set(threading.enumerate()) - threads} == set()
    assert not os.path.exists(folder)
    assert not connects(host, port)
    assert not open_files(folder)


def open_files(folder: str) -> list[str]:
    links = (f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd"))
    return [
        target for link in links if os.path.islink(link) and (target := os.readlink(link)).startswith(folder)
    ]


def test_it_leaves_logging_as_it_was() -> None:
    parts = [logging.getLogger(f"tidelog.{part}") for part in ("server", "storage")]
    before = [(part.propagate, part.level, list(part.handlers)) for part in parts]
    with Broker():
        second = Broker()
        second.start()
    assert parts[0].handlers  # the second one still listens
    second.close()
    assert [(part.propagate, part.level, list(part.handlers)) for part in parts] == before


def test_a_restart_keeps_data_and_port() -> None:
    with Broker() as broker:
        written_and_read(broker.bootstrap_servers, "kept", [b"before"])
        address = broker.bootstrap_servers
        broker.restart()
        assert broker.bootstrap_servers == address
        assert read(address, "kept", 1) == [b"before"]


@pytest.mark.parametrize("host", ["localhost", "", "[::1]"])
def test_a_restart_keeps_the_ports_of_listeners_that_were_given(host: str) -> None:
    with Broker(
        listeners=f"INSIDE://{host}:0,OUTSIDE://{host}:0",
        listener_security_protocol_map="INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
        inter_broker_listener_name="INSIDE",
    ) as broker:
        address = broker.bootstrap_servers
        (before,) = [line for line in broker.log_lines() if "msg=started" in line]
        since = broker.log_count
        broker.restart()
        assert broker.bootstrap_servers == address
        (after,) = [line for line in broker.log_lines(since) if "msg=started" in line]
        assert listeners_in(before) == listeners_in(after)


def listeners_in(line: str) -> str:
    return next(word for word in line.split() if word.startswith("listeners="))


def test_a_stopped_one_is_away_until_it_is_started() -> None:
    with Broker() as broker:
        host, port = broker.host, broker.port
        broker.stop()
        assert not broker.running
        assert not connects(host, port)
        broker.stop()
        broker.start()
        assert connects(host, port)
        with pytest.raises(RuntimeError, match="running already"):
            broker.start()


@contextmanager
def forked() -> Iterator[None]:
    """A child process, as multiprocessing makes it by fork: it has everything open that this one has."""
    wait, end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(end)
        os.read(wait, 1)
        os._exit(0)
    try:
        yield
    finally:
        os.close(wait)
        os.close(end)
        os.waitpid(child, 0)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")  # Python 3.12 and newer
def test_it_stops_and_starts_while_a_forked_process_lives() -> None:
    with Broker() as broker, socket.create_connection((broker.host, broker.port), 30) as connection:
        ask_for_versions(connection)
        with forked():
            broker.stop()
            assert connection.recv(1) == b""
            assert not connects(broker.host, broker.port)
            broker.start()
            with socket.create_connection((broker.host, broker.port), 30) as again:
                ask_for_versions(again)


def output_of(program: str) -> tuple[str, str]:
    """What a program of its own prints, to standard output and to standard error."""
    command = [sys.executable, "-W", "default", "-c", program]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return run.stdout, run.stderr


def test_a_forked_process_that_ends_takes_nothing_away() -> None:
    printed, _ = output_of("""
import os, sys
from tidelog.testing import Broker

with Broker() as broker:
    broker.create_topic("kept")
    child = os.fork()
    if child == 0:
        for call in (broker.stop, broker.start):
            try:
                call()
            except RuntimeError as error:
                print(error, flush=True)
        sys.exit()  # leaves the block, and ends as programs do
    os.waitpid(child, 0)
    print(broker.running, os.path.isdir(f"{broker.data}/kept-0"))
""")
    *refused, kept = printed.splitlines()
    assert kept == "True True"
    assert len(refused) == 2
    assert all("from which this one was forked: stop and start it there" in line for line in refused)


def test_one_that_is_forgotten_leaves_no_folder_when_the_program_ends() -> None:
    folder, warned = output_of(
        "from tidelog.testing import Broker; broker = Broker(); broker.start(); print(broker.data)"
    )
    assert "a broker was not closed" in warned
    assert not os.path.exists(folder.strip())


def ask_for_versions(connection: socket.socket) -> None:
    """A whole request, so that the broker has taken up the connection."""
    connection.settimeout(30)
    connection.sendall(bytes.fromhex("0000000a 0012 0000 00000001 ffff"))
    (size,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
    assert len(connection.recv(size, socket.MSG_WAITALL)) == size


def test_settings_are_those_of_a_broker_as_keywords_or_as_a_dict() -> None:
    with Broker({"num.partitions": 3}, auto_create_topics_enable=False) as broker:
        admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        resource = confluent_kafka.admin.ConfigResource("broker", "1001")
        (future,) = admin.describe_configs([resource]).values()
        values = {name: entry.value for name, entry in future.result(10).items()}
        assert values["num.partitions"] == "3"
        assert values["auto.create.topics.enable"] == "false"
        assert values["offsets.topic.num.partitions"] == "1"
        assert values["group.initial.rebalance.delay.ms"] == "0"


@pytest.mark.parametrize("setting", ["log.dirs", "log.dir"])
def test_a_folder_that_was_given_stays(tmp_path: os.PathLike[str], setting: str) -> None:
    with Broker({setting: tmp_path}) as broker:
        assert broker.data == str(tmp_path)
        broker.create_topic("kept")
    assert os.path.isdir(os.path.join(tmp_path, "kept-0"))
    with Broker({setting: tmp_path}) as again:
        admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": again.bootstrap_servers})
        assert "kept" in admin.list_topics(timeout=10).topics


def test_a_start_that_fails_says_why_and_leaves_nothing() -> None:
    threads = set(threading.enumerate())
    with pytest.raises(ConfigError, match=r"num\.partitions"):
        Broker(num_partitions="many").start()
    with Broker() as taken, pytest.raises(StartFailed, match="cannot listen on"):
        Broker(listeners=f"PLAINTEXT://{taken.bootstrap_servers}").start()
    assert not set(threading.enumerate()) - threads


@pytest.mark.parametrize("step", ["tidelog.network.loop.BrokerLoop", "tidelog.server.broker.Broker.start"])
def test_a_start_that_is_interrupted_leaves_nothing(monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    threads = set(threading.enumerate())
    folders: list[str] = []
    real = pkgutil.resolve_name(step)

    def interrupted(*arguments: object) -> object:
        folders.append(broker.data)
        os.kill(os.getpid(), signal.SIGINT)
        return real(*arguments)

    monkeypatch.setattr(step, interrupted)
    broker = Broker()
    with pytest.raises(KeyboardInterrupt):
        broker.start()
    assert not broker.running
    assert not set(threading.enumerate()) - threads
    assert not os.path.exists(folders[0])


def test_a_setting_that_is_unknown_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with Broker(num_partition=3) as broker:
        assert any("did you mean num.partitions?" in line for line in broker.log_lines())
    assert "did you mean num.partitions?" in caplog.text


def test_its_address_is_asked_for_too_early() -> None:
    with pytest.raises(RuntimeError, match="was not started"):
        _ = Broker().bootstrap_servers


def test_close_may_be_called_again() -> None:
    broker = Broker()
    broker.start()
    broker.close()
    broker.close()
    assert not broker.running


def test_records_are_written_and_read_in_one_call() -> None:
    with Broker(num_partitions=2) as broker:
        (first,) = broker.produce(
            "orders", "grüße", key=b"k", headers=[("h", b"1")], partition=1, timestamp_ms=17
        )
        broker.produce("orders", b"a", None, partition=0)
        assert (first.topic, first.partition, first.offset) == ("orders", 1, 0)
        found = broker.records("orders")
        assert [(each.partition, each.offset, each.value) for each in found] == [
            (0, 0, b"a"),
            (0, 1, None),
            (1, 0, "grüße".encode()),
        ]
        assert (found[2].key, found[2].headers, found[2].timestamp) == (b"k", (("h", b"1"),), 17)
        assert [each.value for each in broker.records("orders", 1)] == ["grüße".encode()]
        with pytest.raises(ValueError, match="topic 'orders' has no partition 2: it has 2"):
            broker.records("orders", 2)


def test_records_of_transactions_are_read_by_their_isolation_level() -> None:
    with Broker() as broker:
        broker.create_topic("orders")
        settings = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "t"}
        with Producer(settings) as producer:
            with producer.transaction():
                producer.send("orders", b"committed")
            producer.begin_transaction()
            producer.send("orders", b"aborted")
            producer.flush()
            producer.abort_transaction()
        committed = broker.records("orders", isolation_level="read_committed")
        assert [each.value for each in committed] == [b"committed"]
        assert [each.value for each in broker.records("orders")] == [b"committed", b"aborted"]
