"""CPU per request with the broker's loop and its clients in one thread: no other process takes part.

        python bench/one_thread.py                                 every case
        python bench/one_thread.py --only transaction --profile    one case, and where its time goes
        PYTHONPATH=OTHER/src python bench/one_thread.py            the same for another checkout

Compares two versions on a busy machine, in turns: the CPU time of one thread depends little on other work. A
figure includes the system calls of the client; `bare` is a server that only receives, writes and sends. In
`replicated` three brokers run in turn, as the requests between them ask for it.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import os
import pstats
import select
import shutil
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

from broker import free_port

from tidelog.network.loop import BrokerLoop
from tidelog.protocol.headers import read_response_header, request_header
from tidelog.protocol.message import Message, decoder_for
from tidelog.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
)
from tidelog.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from tidelog.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from tidelog.protocol.messages.fetch import FetchRequest
from tidelog.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tidelog.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tidelog.protocol.messages.produce import ProduceRequest, ProduceResponse
from tidelog.records.batch import Record, build_batch
from tidelog.server.broker import Broker
from tidelog.server.config.broker import BrokerConfig
from tidelog.server.platform import RealPlatform
from tidelog.server.zookeeper_process import ZooKeeperProcess

TOPIC, PARTITIONS, CONNECTIONS = "one-thread", 3, 16
REPLICAS = 3
REQUESTS_BETWEEN_TURNS = 480
"""Timers run between so many requests, such as those of a ZooKeeper session. They are not measured."""
VALUE = bytes(100)
ACKS_ALL = -1
WAIT_SECONDS = 30.0
PRODUCE, FETCH, ADD_PARTITIONS, END_TXN = 9, 12, 3, 3
"""The versions that librdkafka sends."""

M = TypeVar("M", bound=Message)
Case = Callable[[int], None]


class Client:
    """A connection whose answers come when the caller lets the loop run.

    `step` lets it run: whole turns at first, as tasks need; polls alone when a case is measured.
    """

    def __init__(self, stage: Brokers) -> None:
        self._stage = stage
        self.step = stage.turn
        self.sock = socket.create_connection(stage.address)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.setblocking(False)
        stage.turn()  # the broker accepts it

    def ask(self, frame: bytes) -> bytes:
        """Send a request and return its answer, without its size."""
        self.sock.send(frame)
        return self.answer()

    def answer(self) -> bytes:
        self.step()
        end = time.monotonic() + WAIT_SECONDS
        while True:
            try:
                return self.sock.recv(1 << 16)[4:]
            except BlockingIOError:
                if time.monotonic() > end:
                    raise SystemExit("the broker does not answer") from None
                self._stage.turn()


class SingleBroker:
    """A broker on a loop that runs only when it is told to."""

    def __init__(self, folder: Path, settings: dict[str, str] | None = None) -> None:
        self.loop = BrokerLoop()
        given = {"log.dirs": str(folder), "listeners": "PLAINTEXT://127.0.0.1:0", **(settings or {})}
        self._broker = Broker(BrokerConfig(given), self.loop, Unguarded())
        self.address = "", 0

    async def start(self) -> None:
        await self._broker.start()
        host, _, port = self._broker.address.rpartition(":")
        self.address = host, int(port)

    async def stop(self) -> None:
        await asyncio.wait_for(self._broker.stop(), WAIT_SECONDS)

    def poll(self) -> None:
        self.loop.direct.select(0.0)

    def turn(self) -> None:
        self.loop.call_soon(self.loop.stop)
        self.loop.run_forever()


class Unguarded(RealPlatform):
    """A broker that shares its process with others leaves no child to end its session."""

    def guard_session(self, config: object, tree: object) -> None:
        return None


class Brokers:
    """Brokers on a stage: one, or a leader with its followers, whose loops run in turn."""

    def __init__(self, folder: Path, settings: list[dict[str, str]]) -> None:
        self._brokers = [SingleBroker(folder / str(index), given) for index, given in enumerate(settings)]
        try:
            self._all(SingleBroker.start)
        except BaseException:
            self.close()
            raise
        self.address = self._brokers[0].address

    def _all(self, work: Callable[[SingleBroker], Coroutine[None, None, None]]) -> None:
        """Run a coroutine of each broker."""
        tasks = [broker.loop.create_task(work(broker)) for broker in self._brokers]
        self.until(lambda: all(task.done() for task in tasks))
        for task in tasks:
            task.result()

    def until(self, is_reached: Callable[[], bool]) -> None:
        end = time.monotonic() + WAIT_SECONDS
        while not is_reached():
            if time.monotonic() > end:
                raise SystemExit(f"the brokers took more than {WAIT_SECONDS:.0f} seconds")
            self.turn()

    def poll(self) -> None:
        """The first broker takes a request; it answers when the others have fetched its records."""
        first, *others = self._brokers
        first.poll()
        if others:
            for broker in others:
                broker.poll()
            first.poll()

    def turn(self) -> None:
        for broker in self._brokers:
            broker.turn()

    def close(self) -> None:
        self._all(SingleBroker.stop)
        for broker in self._brokers:
            broker.loop.close()


def framed(message: Message, version: int) -> bytes:
    assert message.KEY is not None
    body = message.encode(version, request_header(message.KEY, version, 1, "one-thread"))
    return struct.pack(">i", len(body)) + body


def call(client: Client, message: Message, version: int, kind: type[M]) -> M:
    assert message.KEY is not None
    answer = client.ask(framed(message, version))
    return decoder_for(kind, version)(answer, read_response_header(message.KEY, version, answer)[1])[0]


def produce(
    data: bytes, acks: int, transactional_id: str | None = None, partition: int = 0
) -> ProduceRequest:
    part = ProduceRequest.PartitionProduceData(index=partition, records=data)
    topic = ProduceRequest.TopicProduceData(name=TOPIC, partition_data=[part])
    return ProduceRequest(transactional_id=transactional_id, acks=acks, timeout_ms=30_000, topic_data=[topic])


def one_record(**producer: object) -> bytes:
    record = Record(0, time.time_ns() // 1_000_000, None, VALUE)
    return build_batch([record], **producer)  # type: ignore[arg-type]


# The cases: each prepares the stage, and returns a function that makes so many requests.


def bare(stage: Brokers) -> Case:
    """What the system calls of a one-record produce take."""
    frame = framed(produce(one_record(), 1), PRODUCE)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
    events = select.epoll()
    events.register(server, select.EPOLLIN)
    buffer = memoryview(bytearray(1 << 16))
    file = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as the case)

    def run(count: int) -> None:
        position = 0
        for _ in range(count):
            client.send(frame)
            events.poll(0)
            received = server.recv_into(buffer)
            position += os.pwrite(file.fileno(), buffer[:received], position)
            server.send(buffer[:60])
            client.recv(1 << 16)

    return run


def produces(acks: int) -> Callable[[Brokers], Case]:
    """One-record requests, one after the other."""

    def prepare(stage: Brokers) -> Case:
        client, frame = Client(stage), framed(produce(one_record(), acks), PRODUCE)
        expected = len(client.ask(frame))
        client.step = stage.poll

        def run(count: int) -> None:
            for _ in range(count):
                assert len(client.ask(frame)) == expected

        return run

    return prepare


def produce16(stage: Brokers) -> Case:
    """One-record requests of 16 connections that arrive together."""
    clients, frame = [Client(stage) for _ in range(CONNECTIONS)], framed(produce(one_record(), 1), PRODUCE)
    for client in clients:
        client.ask(frame)

    def run(count: int) -> None:
        for _ in range(count // CONNECTIONS):
            for client in clients:
                client.sock.send(frame)
            stage.poll()
            for client in clients:
                client.sock.recv(1 << 16)

    return run


def woken(stage: Brokers) -> Case:
    """A fetch that waits at the end of a partition, and the produce that wakes it."""
    consumer, producer = Client(stage), Client(stage)
    frame = framed(produce(one_record(), 1), PRODUCE)
    producer.ask(frame)
    producer.step = consumer.step = stage.poll
    offset = 1

    def run(count: int) -> None:
        nonlocal offset
        for _ in range(count):
            part = FetchRequest.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
            topic = FetchRequest.FetchTopic(topic=TOPIC, partitions=[part])
            wanted = FetchRequest(
                replica_id=-1, max_wait_ms=500, min_bytes=1, max_bytes=1 << 20, topics=[topic]
            )
            consumer.sock.send(framed(wanted, FETCH))
            stage.poll()
            producer.ask(frame)
            assert len(consumer.answer()) > len(VALUE)
            offset += 1

    return run


def transaction(stage: Brokers) -> Case:
    """Transactions of one record to each of 3 partitions: AddPartitionsToTxn, 3 Produce, EndTxn."""
    client, name = Client(stage), "one-thread"
    find = FindCoordinatorRequest(key=name, key_type=1)
    _until_ready(stage, lambda: call(client, find, 3, FindCoordinatorResponse))
    init = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
    found = _until_ready(stage, lambda: call(client, init, 2, InitProducerIdResponse))
    producer_id, epoch = found.producer_id, found.producer_epoch
    client.step = stage.poll
    add = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=producer_id,
        v3_and_below_producer_epoch=epoch,
        v3_and_below_topics=[
            AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=TOPIC, partitions=[*range(PARTITIONS)])
        ],
    )
    end = EndTxnRequest(transactional_id=name, producer_id=producer_id, producer_epoch=epoch, committed=True)
    sequence = 0

    def run(count: int) -> None:
        nonlocal sequence
        for _ in range(count):
            added = call(client, add, ADD_PARTITIONS, AddPartitionsToTxnResponse)
            topics = added.results_by_topic_v3_and_below
            assert not any(part.partition_error_code for part in topics[0].results_by_partition)
            data = one_record(
                producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, transactional=True
            )
            sequence += 1
            for partition in range(PARTITIONS):
                client.ask(framed(produce(data, ACKS_ALL, name, partition), PRODUCE))
            assert call(client, end, END_TXN, EndTxnResponse).error_code == 0

    return run


def _until_ready(stage: Brokers, ask: Callable[[], M]) -> M:
    end = time.monotonic() + WAIT_SECONDS
    while True:
        answer = ask()
        if not answer.error_code:
            return answer
        if time.monotonic() > end:
            raise SystemExit(f"{type(answer).__name__} has error {answer.error_code}")
        stage.turn()


CASES: dict[str, Callable[[Brokers], Case]] = {
    "bare": bare,
    "produce": produces(1),
    "produce-all": produces(ACKS_ALL),
    "produce16": produce16,
    "woken": woken,
    "transaction": transaction,
    "replicated": produces(ACKS_ALL),
}


def create_topic(stage: Brokers, replicas: int) -> None:
    """The topic, whose partitions the first broker leads."""
    assignments = [
        CreateTopicsRequest.CreatableReplicaAssignment(partition_index=index, broker_ids=[*range(replicas)])
        for index in range(PARTITIONS)
    ]
    topic = CreateTopicsRequest.CreatableTopic(
        name=TOPIC, num_partitions=-1, replication_factor=-1, assignments=assignments
    )
    request = CreateTopicsRequest(topics=[topic], timeout_ms=60_000)
    client = Client(stage)
    stage.until(lambda: not call(client, request, 2, CreateTopicsResponse).topics[0].error_code)

    def is_led() -> bool:
        answer = call(client, produce(one_record(), ACKS_ALL), PRODUCE, ProduceResponse)
        return not answer.responses[0].partition_responses[0].error_code

    stage.until(is_led)


@contextmanager
def stage_for(name: str) -> Iterator[Brokers]:
    replicas = REPLICAS if name == "replicated" else 1
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="tidelog-one-thread-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        settings: list[dict[str, str]] = [{"broker.id": "0"}]
        if replicas > 1:
            zookeeper = stack.enter_context(ZooKeeperProcess(folder / "zookeeper", free_port()))
            common = {
                "zookeeper.connect": zookeeper.address,
                "zookeeper.session.timeout.ms": "40000",
                "controlled.shutdown.enable": "false",
            }
            settings = [{"broker.id": str(index), **common} for index in range(replicas)]
        stage = Brokers(folder, settings)
        stack.callback(stage.close)
        create_topic(stage, replicas)
        yield stage


def measure(name: str, count: int, rounds: int, profile: cProfile.Profile | None = None) -> list[float]:
    """CPU microseconds per request of each round, in order of size."""
    with stage_for(name) as stage:
        run = CASES[name](stage)
        run(max(CONNECTIONS, count // 10))
        found = []
        for _ in range(rounds):
            taken_ns = 0
            for first in range(0, count, REQUESTS_BETWEEN_TURNS):
                stage.turn()
                some = min(REQUESTS_BETWEEN_TURNS, count - first)
                begun = time.thread_time_ns()
                if profile is None:
                    run(some)
                else:
                    profile.runcall(run, some)
                taken_ns += time.thread_time_ns() - begun
            found.append(taken_ns / count / 1000)
        return sorted(found)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", choices=list(CASES), metavar="NAME", help=", ".join(CASES))
    parser.add_argument("--requests", type=int, default=5_000, help="of a round (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="of a case (default: %(default)s)")
    parser.add_argument("--profile", action="store_true", help="also show the functions that take longest")
    options = parser.parse_args()
    if options.requests < CONNECTIONS or options.rounds < 1:
        parser.error(f"--requests is at least {CONNECTIONS}, --rounds at least 1")
    print(f"load average {os.getloadavg()[0]:.1f}; CPU microseconds per request")
    for name in options.only or CASES:
        profile = cProfile.Profile(time.thread_time_ns, 1e-9) if options.profile else None
        found = measure(name, options.requests, options.rounds, profile)
        print(f"{name:12} smallest {found[0]:7.2f}   median {found[len(found) // 2]:7.2f}", flush=True)
        if profile is not None:
            stats = pstats.Stats(profile, stream=sys.stdout)
            requests = options.requests * options.rounds
            print(f"{name:12} calls of functions per request: {stats.total_calls / requests:.1f}")  # type: ignore[attr-defined]
            stats.sort_stats("tottime").print_stats(40)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
