"""Two brokers in one process, in simulated time: every partition has a replica on both.

A test moves leaders, stops the replication of a partition for a while, and delays metadata. A replica that
becomes leader has only what it has fetched: records above the high watermark may be gone, as with Kafka. The
brokers talk over a network that delays and loses requests and answers.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol, TypeVar

from tests.cluster.world import OfflinePartitions
from tidelog.clock import SimulatedScheduler
from tidelog.cluster.fetch import Fetcher
from tidelog.cluster.metadata_cache import MetadataCache
from tidelog.cluster.partition import Partition
from tidelog.cluster.replica_manager import ReplicaManager
from tidelog.cluster.topic_metrics import AllTopicMetrics
from tidelog.cluster.worker import InlineWorker
from tidelog.endpoints import Endpoint
from tidelog.errors import NetworkException
from tidelog.metadata.state import BrokerRegistration, ClusterState, PartitionState, TopicState
from tidelog.metrics.registry import Registry
from tidelog.partitions import PartitionKey
from tidelog.protocol.message import Message
from tidelog.storage.config import LogConfig
from tidelog.storage.disk import RealDisk
from tidelog.storage.log import Log
from tidelog.storage.log_manager import LogManager

R = TypeVar("R", bound=Message)
T = TypeVar("T")

BROKERS = (0, 1)
STEP = 0.02
"""Between two fetches of the followers, in seconds."""

Handler = Callable[["Node", SimpleNamespace, Any], Generator[None, None, Message | None]]


class Coordinator(Protocol):
    def elected(self, partition: Partition) -> None: ...

    def resigned(self, partition: int) -> None: ...


class Node:
    """A broker: its logs, its partitions and what it knows of the cluster."""

    def __init__(self, cluster: TwoBrokers, broker_id: int, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.cluster = cluster
        self.broker_id = broker_id
        scheduler = cluster.scheduler
        self.logs = LogManager(
            [str(folder)], LogConfig(), disk=RealDisk(), clock=scheduler.clock, scheduler=scheduler
        )
        self.logs.log_dirs.lock()
        self.logs.log_dirs.claim("cluster", broker_id)
        self.logs.load()
        self.replicas = ReplicaManager(
            broker_id, self.logs, scheduler, InlineWorker(scheduler), AllTopicMetrics(Registry())
        )
        self.logs.listen(OfflinePartitions(self.replicas))
        self.fetcher = Fetcher(self.replicas)
        self.metadata = MetadataCache("cluster")
        # The coordinators by their topics, and what this broker does with requests of the other one.
        self.coordinators: dict[str, Coordinator] = {}
        self.handlers: dict[int, Handler] = {}
        self.transport = _Transport(cluster)

    def endpoint_of(self, broker_id: int) -> Endpoint | None:
        known = self.metadata.snapshot.brokers.get(broker_id)
        return None if known is None else known.endpoint("PLAINTEXT")

    def log(self, key: PartitionKey) -> Log:
        topic_id, config = self.cluster.topic_id(key[0]), self.cluster.config
        return self.logs.get_or_create(*key, topic_id, config, is_new=True)

    def close(self) -> None:
        self.replicas.shutdown()
        self.logs.shutdown()


class _Replicated:
    __slots__ = ("epoch", "is_stalled", "leader")

    def __init__(self) -> None:
        self.leader = -1
        self.epoch = -1
        self.is_stalled = False


class TwoBrokers:
    """The brokers and the controller that tells them who leads. `advance` lets time pass."""

    def __init__(self, folder: Path, seed: int, topics: dict[str, int], **config: object) -> None:
        self.random = random.Random(seed)
        self.scheduler = SimulatedScheduler()
        self.loop = asyncio.new_event_loop()
        self.config = LogConfig(**config)  # type: ignore[arg-type]
        self.topics = dict(topics)
        self.faults = 0.0
        """The part of requests between the brokers that are lost, or whose answers are."""
        self.metadata_delay = 0.0
        self.nodes = [Node(self, broker_id, folder / str(broker_id)) for broker_id in BROKERS]
        self.partitions = {
            (topic, index): _Replicated() for topic, count in topics.items() for index in range(count)
        }
        self._is_closed = False
        self._publish_to(self.nodes)
        self._replicate_on_time()

    def close(self) -> None:
        self._is_closed = True
        self.run(self._settle())
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.run(self._settle())
        self.loop.close()
        for node in self.nodes:
            node.close()

    @staticmethod
    def topic_id(topic: str) -> bytes:
        return topic.encode()[:16].ljust(16, b"-")

    # -- time --------------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        return self.loop.is_running()

    def run(self, work: Coroutine[None, None, T]) -> T:
        return self.loop.run_until_complete(work)

    def advance(self, seconds: float = 0.0) -> None:
        self.run(self._advance(seconds))

    def in_loop(self, call: Callable[[], T]) -> T:
        """Call a function as a broker does: on its loop."""
        if self.is_running:
            return call()

        async def called() -> T:
            result = call()
            await self._settle()
            return result

        return self.run(called())

    async def _advance(self, seconds: float) -> None:
        until = self.scheduler.clock.monotonic() + seconds
        while True:
            await self._settle()
            left = until - self.scheduler.clock.monotonic()
            self.scheduler.advance(min(STEP, max(left, 0.0)))
            if left <= 0:
                await self._settle()
                return

    async def _settle(self) -> None:
        """Let the tasks run until they wait for time or for the network."""
        for _ in range(5):
            await asyncio.sleep(0)

    # -- replication -------------------------------------------------------------------------------

    def _replicate_on_time(self) -> None:
        if not self._is_closed:
            for key in self.partitions:
                self.replicate(key)
            self.scheduler.schedule(STEP, self._replicate_on_time)

    def replicate(self, key: PartitionKey) -> None:
        """A fetch of the follower: it tells what it has, and gets what it lacks."""
        replicated = self.partitions[key]
        if replicated.leader < 0 or replicated.is_stalled:
            return
        leading = self.nodes[replicated.leader].replicas.partition(*key)
        log, copy = leading.leader_log(), self.nodes[1 - replicated.leader].log(key)
        if copy.log_end_offset == log.log_end_offset == copy.high_watermark == log.high_watermark:
            return
        leading.followers.replicas[1 - replicated.leader].log_end_offset = copy.log_end_offset
        leading.advance_high_watermark()
        if copy.log_end_offset < log.log_end_offset:
            found = log.read(copy.log_end_offset, 1 << 30, max_offset=log.log_end_offset)
            assert found.slice is not None
            copy.append_as_follower(bytearray(found.slice.read()), self.now_ms)
        copy.update_high_watermark(min(log.high_watermark, copy.log_end_offset))

    @property
    def now_ms(self) -> int:
        return self.scheduler.clock.ms()

    def stall(self, key: PartitionKey, seconds: float) -> None:
        """The follower fetches nothing for a while: what is written is not committed."""
        self.partitions[key].is_stalled = True

        def over() -> None:
            self.partitions[key].is_stalled = False

        self.scheduler.schedule(seconds, over)

    # -- leaders -----------------------------------------------------------------------------------

    def leader(self, key: PartitionKey) -> Node:
        return self.nodes[self.partitions[key].leader]

    def elect(self, key: PartitionKey, broker_id: int) -> None:
        """Make a broker the leader, with a new epoch. The other one drops what the leader does not have."""
        self.in_loop(lambda: self._elect(key, broker_id))

    def _elect(self, key: PartitionKey, broker_id: int) -> None:
        topic, index = key
        replicated = self.partitions[key]
        before, replicated.leader = replicated.leader, broker_id
        replicated.epoch += 1
        state = PartitionState(list(BROKERS), broker_id, replicated.epoch, list(BROKERS))
        if before >= 0 and before != broker_id:
            self._demote(self.nodes[before], key)
        node = self.nodes[broker_id]
        partition = node.replicas.become_leader(topic, self.topic_id(topic), index, state, self.config)
        coordinator = node.coordinators.get(topic)
        if coordinator is not None:
            coordinator.elected(partition)
        self.publish()

    def _demote(self, node: Node, key: PartitionKey) -> None:
        partition = node.replicas.partition(*key)
        partition.leader_id = self.partitions[key].leader
        coordinator = node.coordinators.get(key[0])
        if coordinator is not None:
            coordinator.resigned(key[1])
        node.replicas._end_waits(partition)
        end = self.leader(key).log(key).log_end_offset
        node.log(key).truncate_to(end, self.now_ms)

    def publish(self) -> None:
        """Tell the brokers who leads, each after a while."""
        for node in self.nodes:
            delay = self.random.uniform(0.0, self.metadata_delay)
            self.scheduler.schedule(delay, lambda node=node: self._publish_to([node]))  # type: ignore[misc]

    def _publish_to(self, nodes: list[Node]) -> None:
        brokers = {
            broker: BrokerRegistration(broker, [Endpoint("PLAINTEXT", "PLAINTEXT", "host", 9092 + broker)])
            for broker in BROKERS
        }
        topics = [
            TopicState(
                topic,
                self.topic_id(topic),
                {
                    index: PartitionState(
                        list(BROKERS),
                        self.partitions[topic, index].leader,
                        self.partitions[topic, index].epoch,
                        list(BROKERS),
                    )
                    for index in range(count)
                },
            )
            for topic, count in self.topics.items()
        ]
        for node in nodes:
            node.metadata.update(ClusterState("cluster", brokers=brokers).with_topics(topics))

    def forget_metadata(self, broker_id: int) -> None:
        """The broker is as after its start: it knows nothing until the controller tells it."""
        metadata = self.nodes[broker_id].metadata
        metadata.snapshot = ClusterState("cluster")
        metadata.is_initialized = False


# -- the network -------------------------------------------------------------------------------------


class _Transport:
    def __init__(self, cluster: TwoBrokers) -> None:
        self._cluster = cluster

    async def connect(self, broker_id: int, endpoint: Endpoint, *, timeout: float) -> _Connection:
        await self._cluster_delay()
        if self._cluster.random.random() < self._cluster.faults / 2:
            raise NetworkException(f"broker {broker_id} refuses the connection")
        return _Connection(self._cluster, self._cluster.nodes[broker_id])

    async def _cluster_delay(self) -> None:
        await passed(self._cluster.scheduler, self._cluster.random.uniform(0.0, 0.02))


async def passed(scheduler: SimulatedScheduler, seconds: float) -> None:
    over = asyncio.Event()
    scheduler.schedule(seconds, over.set)
    await over.wait()


class _Connection:
    """Encodes and decodes, as a real connection does; counts how many requests are in flight."""

    def __init__(self, cluster: TwoBrokers, node: Node) -> None:
        self.closed = False
        self._cluster = cluster
        self._node = node
        self._in_flight = 0

    async def call(
        self, request: Message, answer: type[R], *, version: int | None = None, timeout: float | None = None
    ) -> R:
        assert self._in_flight == 0, "two requests in flight"
        self._in_flight += 1
        if version is None:
            version = type(request).VERSIONS[1]
        try:
            return await self._call(request, answer, version)
        finally:
            self._in_flight -= 1

    async def _call(self, request: Message, answer: type[R], version: int) -> R:
        random, scheduler = self._cluster.random, self._cluster.scheduler
        data = request.encode(version)
        await passed(scheduler, random.uniform(0.0, 0.03))
        fate = random.random()
        if fate < self._cluster.faults:
            raise NetworkException("the request is lost")
        if self.closed:
            raise NetworkException("the connection was closed")
        answers: asyncio.Queue[Message] = asyncio.Queue()
        assert request.KEY is not None
        served(self._node, request.KEY, type(request).decode(memoryview(data), version), version, answers)
        found = await answers.get()
        await passed(scheduler, random.uniform(0.0, 0.03))
        if fate < 2 * self._cluster.faults or self.closed:
            raise NetworkException("the answer is lost")
        return answer.decode(memoryview(found.encode(version)), version)

    def close(self, reason: str = "it was closed") -> None:
        self.closed = True


def served(node: Node, key: int, body: Message, version: int, answers: asyncio.Queue[Message]) -> None:
    """Serve a request with the handler of a real broker."""
    request = SimpleNamespace(
        api_version=version, done=False, waiting=lambda: None, respond=answers.put_nowait
    )
    answer = node.handlers[key](node, request, body)
    try:
        while True:
            next(answer)
    except StopIteration as end:
        if end.value is not None:
            answers.put_nowait(end.value)
