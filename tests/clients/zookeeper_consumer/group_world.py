"""A group of consumers on a simulated ZooKeeper and virtual time, with fetchers that fetch when told to."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

from tests.support.virtual_loop import VirtualLoop
from tests.support.wait import eventually_async
from tidelog.clients.zookeeper_consumer.connector import AsyncConsumerConnector, Environment
from tidelog.clients.zookeeper_consumer.settings import ZooKeeperConsumerSettings
from tidelog.clients.zookeeper_consumer.streams import AsyncKafkaStream, PartitionTopicInfo
from tidelog.clients.zookeeper_consumer.topic_count import TopicFilter
from tidelog.clock import ManualClock
from tidelog.endpoints import Endpoint
from tidelog.metadata import nodes, paths
from tidelog.metadata.async_tree import AsyncTree, SessionListener
from tidelog.metadata.cluster_store import ClusterStore
from tidelog.metadata.nodes import BrokerNode, TopicNode
from tidelog.metadata.simulated import SimulatedTree, SimulatedZooKeeper
from tidelog.metadata.state import BrokerRegistration
from tidelog.metadata.tree import ANY_VERSION, Operation, Result, Stat, Watch
from tidelog.metadata.zookeeper import ZooKeeperSettings
from tidelog.partitions import TopicPartition
from tidelog.records.loops import ConsumerRecord

LATENCY = 0.001
SESSION_TIMEOUT = 6.0


class CountingTree:
    """Counts the operations of one session by kind."""

    def __init__(self, tree: AsyncTree) -> None:
        self.counts: Counter[str] = Counter()
        self._tree = tree

    @property
    def session_id(self) -> int:
        return self._tree.session_id

    def listen(self, listener: SessionListener) -> None:
        self._tree.listen(listener)

    async def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequential: bool = False
    ) -> str:
        self.counts["create"] += 1
        return await self._tree.create(path, data, ephemeral=ephemeral, sequential=sequential)

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, Stat]:
        self.counts["get"] += 1
        return await self._tree.get(path, watch)

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat:
        self.counts["set"] += 1
        return await self._tree.set(path, data, version)

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        self.counts["delete"] += 1
        await self._tree.delete(path, version)

    async def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        self.counts["exists"] += 1
        return await self._tree.exists(path, watch)

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        self.counts["children"] += 1
        return await self._tree.children(path, watch)

    async def multi(self, operations: Sequence[Operation]) -> list[Result]:
        self.counts["multi"] += 1
        return await self._tree.multi(operations)

    async def get_all(self, paths: Iterable[str]) -> dict[str, tuple[bytes, Stat]]:
        asked = list(paths)
        self.counts["get"] += len(asked)
        return await self._tree.get_all(asked)

    async def children_of_all(self, paths: Iterable[str]) -> dict[str, list[str]]:
        asked = list(paths)
        self.counts["children"] += len(asked)
        return await self._tree.children_of_all(asked)

    async def close(self) -> None:
        await self._tree.close()


class ScriptedFetchers:
    """Fetches nothing by itself: a test calls `deliver`."""

    def __init__(self, settings: Mapping[str, object]) -> None:
        self.settings = settings
        self.infos: dict[TopicPartition, PartitionTopicInfo] = {}
        self.starts = 0

    async def start_connections(
        self, brokers: Collection[BrokerRegistration], infos: Sequence[PartitionTopicInfo]
    ) -> None:
        assert brokers
        self.starts += 1
        self.infos = {info.partition: info for info in infos}

    async def stop_connections(self) -> None:
        self.infos = {}

    async def close(self) -> None:
        self.infos = {}

    @property
    def fetched(self) -> set[TopicPartition]:
        return set(self.infos)

    def deliver(self, topic: str, partition: int, first: int, count: int = 1) -> None:
        """Put records into the queue of their stream, as a fetch would."""
        info = self.infos[TopicPartition(topic, partition)]
        if info.consumed is None:
            info.consumed = first
        info.queue.put(info, [record(topic, partition, first + index) for index in range(count)])


def record(topic: str, partition: int, offset: int) -> ConsumerRecord[None, bytes]:
    return ConsumerRecord(topic, partition, offset, 0, None, b"%d" % offset)


class TestedMember:
    """A consumer of the group, with its session and its fetchers in reach of the test."""

    __test__ = False

    def __init__(self, world: GroupWorld, name: str, settings: Mapping[str, object]) -> None:
        self.name = name
        self.tree: CountingTree
        self.fetchers = ScriptedFetchers({})
        self._world = world
        environment = Environment(
            world.clock, random.Random(name), name, self._open_tree, self._make_fetchers
        )
        given = {"zookeeper.connect": "simulated", "group.id": "g", "consumer.id": name, **settings}
        self.connector = AsyncConsumerConnector(given, environment=environment)

    async def _open_tree(self, settings: ZooKeeperConsumerSettings, rng: random.Random) -> AsyncTree:
        sessions = ZooKeeperSettings(session_timeout=settings.zookeeper_session_timeout_ms / 1000)
        opened = await SimulatedTree.open(self._world.server, self.name, rng=rng, settings=sessions)
        self.tree = CountingTree(opened)
        return self.tree

    def _make_fetchers(self, settings: Mapping[str, object]) -> ScriptedFetchers:
        self.fetchers = ScriptedFetchers(settings)
        return self.fetchers

    async def read(self, topics: Mapping[str, int]) -> dict[str, list[AsyncKafkaStream]]:
        return await self.connector.create_message_streams(topics)

    async def read_filter(self, topic_filter: TopicFilter, streams: int = 1) -> list[AsyncKafkaStream]:
        return await self.connector.create_message_streams_by_filter(topic_filter, streams)

    @property
    def fetched(self) -> list[str]:
        return sorted(str(partition) for partition in self.fetchers.fetched)


class GroupWorld:
    """A tree with a broker and topics. `member` makes a consumer of the group "g"."""

    def __init__(self, latency: tuple[float, float] = (LATENCY, LATENCY)) -> None:
        self.server = SimulatedZooKeeper(asyncio.get_running_loop(), random.Random(1), latency=latency)
        self.clock = ManualClock()
        self.members: list[TestedMember] = []
        self.cluster: ClusterStore

    @property
    def now(self) -> float:
        """Seconds of virtual time."""
        return asyncio.get_running_loop().time()

    async def start(self, topics: Mapping[str, int], *, broker: bool = True) -> None:
        tree = await SimulatedTree.open(self.server, "broker", rng=random.Random(2))
        self.cluster = ClusterStore(tree, self.clock, random.Random(3))
        await self.cluster.prepare()
        for topic, partitions in topics.items():
            await self.create_topic(topic, partitions)
        if broker:
            await self.start_broker()

    async def start_broker(self, broker_id: int = 1) -> None:
        node = BrokerNode([Endpoint("PLAINTEXT", "PLAINTEXT", "localhost", 9092)], self.clock.ms())
        await self.cluster.register_broker(broker_id, node, wait_seconds=1.0)

    async def create_topic(self, topic: str, partitions: int) -> None:
        await self.cluster.tree.create(paths.topic(topic), _topic(partitions))

    async def grow_topic(self, topic: str, partitions: int) -> None:
        await self.cluster.tree.set(paths.topic(topic), _topic(partitions))

    def member(self, name: str, **settings: object) -> TestedMember:
        made = TestedMember(self, name, settings)
        self.members.append(made)
        return made

    # --- what the tree says

    def owners(self, topic: str = "clicks") -> dict[int, str]:
        """The owners of the partitions by name, without those that have none."""
        start = paths.consumer_owner("g", topic, 0).removesuffix("0")
        return {
            int(path.removeprefix(start)): node.data.decode().removeprefix("g_")
            for path, node in sorted(self.server.tree.nodes.items())
            if path.startswith(start)
        }

    def offset(self, partition: int, topic: str = "clicks") -> int | None:
        node = self.server.tree.nodes.get(paths.consumer_offset("g", topic, partition))
        return None if node is None else nodes.decode_number(node.data)

    async def until_owners(self, expected: Mapping[int, str], topic: str = "clicks") -> None:
        """Wait until the partitions have these owners, and the owners fetch them."""

        def settled() -> bool:
            fetching = {
                partition.partition
                for member in self.members
                for partition in member.fetchers.fetched
                if partition.topic == topic
            }
            return self.owners(topic) == expected and fetching == set(expected)

        await eventually_async(settled, f"owners {expected}", 60.0)

    async def close(self) -> None:
        for member in self.members:
            await member.connector.shutdown()
        await self.cluster.tree.close()


def _topic(partitions: int) -> bytes:
    return TopicNode({index: [1] for index in range(partitions)}, b"0123456789abcdef").encode()


def in_world(
    story: Callable[[GroupWorld], Awaitable[None]], latency: tuple[float, float] = (LATENCY, LATENCY)
) -> None:
    """Run a story on virtual time."""

    async def main() -> None:
        world = GroupWorld(latency)
        try:
            await story(world)
        finally:
            await world.close()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())
