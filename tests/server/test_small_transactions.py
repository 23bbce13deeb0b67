"""The short way of AddPartitionsToTxn and EndTxn gives the answers of the way that all requests can take."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import pytest

from tidelog.network.loop import BrokerLoop
from tidelog.network.request import FastRequest
from tidelog.protocol.headers import read_response_header, request_header
from tidelog.protocol.json import to_json
from tidelog.protocol.message import Message, decoder_for
from tidelog.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
)
from tidelog.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from tidelog.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from tidelog.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from tidelog.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tidelog.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tidelog.protocol.messages.produce import ProduceRequest, ProduceResponse
from tidelog.records.batch import Record, build_batch
from tidelog.server.apis.small_transactions import SmallTransactions
from tidelog.server.broker import Broker
from tidelog.server.config.broker import BrokerConfig

SECONDS = 20.0
NAME, PARTITIONS = "a transaction", 3

M = TypeVar("M", bound=Message)
Take = Callable[[SmallTransactions, FastRequest, memoryview, int], bool]


class Stage:
    """A broker and its client, both in this thread."""

    def __init__(self, folder: Path) -> None:
        self._loop = BrokerLoop()
        settings = {"log.dirs": str(folder), "listeners": "PLAINTEXT://127.0.0.1:0"}
        self._broker = Broker(BrokerConfig(settings), self._loop)
        self._loop.run_until_complete(self._broker.start())
        host, _, port = self._broker.address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setblocking(False)
        for topic in ("t", "u"):
            wanted = CreateTopicsRequest.CreatableTopic(
                name=topic, num_partitions=PARTITIONS, replication_factor=1
            )
            made = self.ask(
                CreateTopicsRequest(topics=[wanted], timeout_ms=60_000), 2, CreateTopicsResponse
            ).topics[0]
            assert made.error_code == 0, made.error_code

    def ask(self, message: Message, version: int, kind: type[M]) -> M:
        assert message.KEY is not None
        body = message.encode(version, request_header(message.KEY, version, 7, "a client"))
        self._socket.sendall(struct.pack(">i", len(body)) + body)
        answer = self._answer()
        correlation_id, start = read_response_header(message.KEY, version, answer)
        assert correlation_id == 7
        found, end = decoder_for(kind, version)(answer, start)
        assert end == len(answer)
        return found

    def until(self, ask: Callable[[], M]) -> M:
        end = time.monotonic() + SECONDS
        while (answer := ask()).error_code:  # type: ignore[attr-defined]
            assert time.monotonic() < end
        return answer

    def _answer(self) -> bytes:
        received, end = bytearray(), time.monotonic() + SECONDS
        while len(received) < 4 or len(received) < 4 + int.from_bytes(received[:4], "big"):
            assert time.monotonic() < end, "the broker does not answer"
            self._loop.call_soon(self._loop.stop)
            self._loop.run_forever()
            try:
                received += self._socket.recv(1 << 16)
            except BlockingIOError:
                continue
        return bytes(received[4:])

    def close(self) -> None:
        self._socket.close()
        self._loop.run_until_complete(asyncio.wait_for(self._broker.stop(), SECONDS))
        self._loop.close()


class Producer:
    """A producer of one transactional id. It notes each answer, without what differs from run to run."""

    def __init__(self, stage: Stage, add_version: int, end_version: int) -> None:
        self._stage = stage
        self._versions = add_version, end_version
        self.answers: list[object] = []
        stage.until(
            lambda: stage.ask(FindCoordinatorRequest(key=NAME, key_type=1), 3, FindCoordinatorResponse)
        )
        init = InitProducerIdRequest(transactional_id=NAME, transaction_timeout_ms=60_000)
        given = stage.until(lambda: stage.ask(init, 2, InitProducerIdResponse))
        self.id, self.epoch, self.sequence = given.producer_id, given.producer_epoch, 0

    def add(self, topics: dict[str, list[int]], *, name: str = NAME, epoch: int = 0, other: int = 0) -> None:
        """`epoch` and `other` are added to the epoch and to the producer id."""
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=self.id + other,
            v3_and_below_producer_epoch=self.epoch + epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic, partitions=indexes)
                for topic, indexes in topics.items()
            ],
        )
        version = self._versions[0]
        self.answers.append(to_json(self._stage.ask(request, version, AddPartitionsToTxnResponse), version))

    def produce(self, partition: int) -> None:
        data = build_batch(
            [Record(0, time.time_ns() // 1_000_000, None, b"value")],
            producer_id=self.id,
            producer_epoch=self.epoch,
            base_sequence=self.sequence,
            transactional=True,
        )
        topic = ProduceRequest.TopicProduceData(
            name="t", partition_data=[ProduceRequest.PartitionProduceData(index=partition, records=data)]
        )
        request = ProduceRequest(transactional_id=NAME, acks=-1, timeout_ms=1000, topic_data=[topic])
        answer = self._stage.ask(request, 9, ProduceResponse)
        self.answers.append(answer.responses[0].partition_responses[0].error_code)

    def end(self, commit: bool, *, name: str = NAME, epoch: int = 0, other: int = 0) -> None:
        request = EndTxnRequest(
            transactional_id=name,
            producer_id=self.id + other,
            producer_epoch=self.epoch + epoch,
            committed=commit,
        )
        version = self._versions[1]
        answer = self._stage.ask(request, version, EndTxnResponse)
        if version >= 5 and not answer.error_code:
            assert answer.producer_id == self.id
            self.epoch, self.sequence = answer.producer_epoch, 0
            answer.producer_id = answer.producer_epoch = 0
        self.answers.append(to_json(answer, version))

    def describe(self) -> None:
        request = DescribeTransactionsRequest(transactional_ids=[NAME])
        (state,) = self._stage.ask(request, 0, DescribeTransactionsResponse).transaction_states
        topics = {topic.topic: sorted(topic.partitions) for topic in state.topics}
        self.answers.append((state.transaction_state, topics, state.producer_epoch - self.epoch))


def script(producer: Producer) -> None:
    every = {"t": [*range(PARTITIONS)]}
    producer.end(True)  # there is nothing to end
    producer.add(every)
    producer.describe()
    producer.add(every)
    producer.add({"u": [2, 0], "t": [1]})
    producer.describe()
    for wrong in ({"epoch": -1}, {"epoch": 1}, {"other": 1}, {"name": "another"}, {"name": ""}):
        producer.add(every, **wrong)  # type: ignore[arg-type]
        producer.end(True, **wrong)  # type: ignore[arg-type]
    producer.add({"t": [0, PARTITIONS], "nowhere": [0]})
    producer.add({})
    for partition in range(PARTITIONS):
        producer.produce(partition)
    producer.sequence += 1
    producer.end(True)
    producer.describe()
    producer.end(True, epoch=-1)  # a retry of a client that knows epochs
    producer.end(False)
    producer.add({"t": [0]})
    producer.produce(0)
    producer.produce(1)  # not part of the transaction
    producer.end(False)
    producer.describe()
    producer.add({"t": [1]}, name="x" * 200)


class Ways:
    """Lets requests take the short way, and counts those that do; without `is_short` none does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_short = True
        self.taken = {"add_partitions": 0, "end": 0}
        for name in self.taken:
            monkeypatch.setattr(
                SmallTransactions, name, self._counting(name, getattr(SmallTransactions, name))
            )

    def _counting(self, name: str, take: Take) -> Take:
        def counting(self_: SmallTransactions, request: FastRequest, frame: memoryview, start: int) -> bool:
            took = self.is_short and take(self_, request, frame, start)
            self.taken[name] += took
            return took

        return counting


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> Ways:
    return Ways(monkeypatch)


@pytest.fixture
def stage(tmp_path: Path, ways: Ways) -> Iterator[Stage]:
    with closing(Stage(tmp_path)) as stage:
        yield stage


@pytest.mark.parametrize(("add", "end"), [(0, 0), (0, 1), (1, 2), (2, 3), (3, 4), (3, 5)])
def test_both_ways_give_the_same_answers(stage: Stage, ways: Ways, add: int, end: int) -> None:
    short = Producer(stage, add, end)
    script(short)
    assert ways.taken["add_partitions"] >= 3
    assert ways.taken["end"] >= 2
    ways.is_short = False
    long = Producer(stage, add, end)
    script(long)
    assert short.answers == long.answers
