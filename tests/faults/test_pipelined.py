"""Requests that arrive together on one connection or on many: joined writes, each answered by itself."""

from __future__ import annotations

import errno
from contextlib import ExitStack
from pathlib import Path

import confluent_kafka
import pytest

from tests.chaos.writer import NewEpochs
from tests.faults.client import Client, batch_of, produce_request
from tests.faults.faulty_disk import FaultyDisk, faulty_broker
from tests.support.raw import RawConnection
from tests.support.wait import eventually
from tidelog.clients.connection import request_frame
from tidelog.cluster.partition import HEAVY_BYTES, Partition
from tidelog.errors import ErrorCode, KafkaError
from tidelog.protocol.message import Message
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tidelog.protocol.messages.produce import ProduceRequest, ProduceResponse
from tidelog.storage.append import DuplicateBatch
from tidelog.storage.disk import RealDisk

VERSION = 9
STORAGE_ERROR = ErrorCode.KAFKA_STORAGE_ERROR


def ask_at_once(raw: RawConnection, requests: list[Message]) -> list[Message]:
    """Send all requests with one call, and take the answers in the order they come."""
    frames = [request_frame(request, VERSION, at, "raw") for at, request in enumerate(requests)]
    raw.send_bytes(b"".join(frames))
    answers = []
    for at, request in enumerate(requests):
        frame = raw.receive_frame()
        assert int.from_bytes(frame[:4], "big") == at
        response = ProduceResponse if isinstance(request, ProduceRequest) else MetadataResponse
        answers.append(response.decode(frame[5:], VERSION))
    return answers


def outcome(answer: Message) -> tuple[int, int]:
    assert isinstance(answer, ProduceResponse)
    share = answer.responses[0].partition_responses[0]
    return share.error_code, share.base_offset


def test_pipelined_requests_are_answered_in_order_and_fail_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, disk = tmp_path / "data", FaultyDisk()
    with ExitStack() as stack:
        broker = stack.enter_context(faulty_broker(monkeypatch, disk, {"log.dirs": str(folder)}))
        client = stack.enter_context(Client(broker.address))
        raw = stack.enter_context(RawConnection(broker.address))
        assert client.create_topic("t", 2) == 0
        producer = client.producer_id()

        def requests(first: int, count: int) -> list[Message]:
            return [
                produce_request("t", 0, bytes(batch_of(b"%d" % at, producer=(producer, 0, at))))
                for at in range(first, first + count)
            ]

        assert [outcome(answer) for answer in ask_at_once(raw, requests(0, 6))] == [(0, n) for n in range(6)]
        # Another API in between, a batch for another partition, one that is too large to join, a duplicate.
        mixed: list[Message] = [
            *requests(6, 2),
            MetadataRequest(topics=None),
            produce_request("t", 1, bytes(batch_of(b"other"))),
            produce_request("t", 0, bytes(batch_of(b"x" * 6000, producer=(producer, 0, 8)))),
            *requests(7, 1),
            *requests(9, 2),
        ]
        found = ask_at_once(raw, mixed)
        assert isinstance(found[2], MetadataResponse)
        expected = [(0, 6), (0, 7), (0, 0), (0, 8), (0, 7), (0, 9), (0, 10)]
        assert [outcome(answer) for answer in (*found[:2], *found[3:])] == expected
        disk.fail(folder, errno.ENOSPC)
        assert [outcome(answer)[0] for answer in ask_at_once(raw, requests(11, 5))] == [STORAGE_ERROR] * 5
        assert len(client.read_all("t", 0)) == 11
        disk.heal(folder)
        found = ask_at_once(raw, requests(11, 5))
        assert [outcome(answer) for answer in found] == [(0, n) for n in range(11, 16)]
        assert len(client.read_all("t", 0)) == 16


def test_a_transaction_that_the_general_path_begins_in_a_topic_that_the_broker_stamps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"log.dirs": str(tmp_path / "data"), "transaction.partition.verification.enable": "false"}
    failures: list[object] = []
    with (
        faulty_broker(monkeypatch, RealDisk(), settings) as broker,
        Client(broker.address) as client,
    ):
        assert client.create_topic("t", 1, {"message.timestamp.type": "LogAppendTime"}) == 0
        bootstrap = "{}:{}".format(*broker.address)
        writer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": "x"})
        writer.init_transactions(30)
        writer.begin_transaction()
        writer.produce("t", b"v", on_delivery=lambda error, _: failures.append(error))
        writer.commit_transaction(30)
    assert failures == [None]


def test_librdkafka_goes_on_in_its_epoch_when_the_disk_was_full_for_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a higher epoch it would send again what other brokers have written, and write it twice."""
    folder, disk, epochs = tmp_path / "data", FaultyDisk(), NewEpochs()
    failures: list[str] = []

    def heard(writer: confluent_kafka.Producer) -> int:
        writer.poll(0)
        return epochs.refused

    def delivered(error: object, _: object) -> None:
        if error is not None:
            failures.append(str(error))

    with ExitStack() as stack:
        broker = stack.enter_context(faulty_broker(monkeypatch, disk, {"log.dirs": str(folder)}))
        client = stack.enter_context(Client(broker.address))
        assert client.create_topic("t", 1) == 0
        writer = confluent_kafka.Producer(
            {
                "bootstrap.servers": "{}:{}".format(*broker.address),
                "enable.idempotence": True,
                "linger.ms": 0,
                "batch.num.messages": 1,  # five requests are in flight all the time
                "retry.backoff.ms": 1,
                "retry.backoff.max.ms": 1,
                "log_level": 7,
                "debug": "eos,msg",
            },
            logger=epochs.logger(),
        )
        # The worker writes batches of this size, each by itself.
        wanted = [b"%d" % number * HEAVY_BYTES for number in range(10, 90)]
        for number, value in enumerate(wanted):
            if number % 20 == 5:
                disk.fail(folder, errno.ENOSPC)
            elif number % 20 == 15:
                before = heard(writer)
                eventually(lambda before=before: heard(writer) > before, "batches are refused")
                disk.heal(folder)
            writer.produce("t", value, partition=0, on_delivery=delivered)
        assert writer.flush(30) == 0
        found = [value for stored in client.read_all("t", 0) for value in stored.values]
    assert failures == []
    assert epochs.numbered == [], epochs.reasons
    assert found == wanted


def test_a_gap_in_the_sequences_is_refused_between_good_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as stack:
        broker = stack.enter_context(faulty_broker(monkeypatch, FaultyDisk(), {"log.dirs": str(tmp_path)}))
        client = stack.enter_context(Client(broker.address))
        raw = stack.enter_context(RawConnection(broker.address))
        assert client.create_topic("t", 1) == 0
        batches = [batch_of(b"v", producer=(9, 0, sequence)) for sequence in (0, 1, 5, 2)]
        asked: list[Message] = [produce_request("t", 0, bytes(data)) for data in batches]
        answers = [outcome(answer) for answer in ask_at_once(raw, asked)]
        assert answers == [(0, 0), (0, 1), (45, -1), (0, 2)]


def test_a_partition_whose_turn_fails_unexpectedly_leaves_the_answers_of_others_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Partition.write_turn

    def write_turn(self: Partition, now_ms: int) -> list[int | DuplicateBatch | KafkaError]:
        outcomes = whole(self, now_ms)
        if self.index == 0:
            raise RuntimeError("planted")
        return outcomes

    with ExitStack() as stack:
        broker = stack.enter_context(
            faulty_broker(monkeypatch, FaultyDisk(), {"log.dirs": str(tmp_path / "data")})
        )
        client = stack.enter_context(Client(broker.address))
        raw = stack.enter_context(RawConnection(broker.address))
        assert client.create_topic("t", 2) == 0
        requests: list[Message] = [
            produce_request("t", at % 2, bytes(batch_of(b"%d" % at))) for at in range(6)
        ]
        with monkeypatch.context() as planted:
            planted.setattr(Partition, "write_turn", write_turn)
            found = [outcome(answer) for answer in ask_at_once(raw, requests)]
        errors = [error for error, _ in found]
        assert errors[1::2] == [0, 0, 0]
        assert set(errors[::2]) == {ErrorCode.UNKNOWN_SERVER_ERROR}
        assert [outcome(answer)[0] for answer in ask_at_once(raw, requests)] == [0] * 6
