"""A broker of a cluster in this process, on a ZooKeeper in memory that can be gone and expire sessions."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from pathlib import Path

import pytest

from tests.cluster.controlled import live_broker, update_metadata
from tests.storage.helpers import batch
from tidelog.clients.async_connection import AsyncConnection
from tidelog.clients.metadata import BrokerNode
from tidelog.clients.security import Security
from tidelog.clients.settings import admin_settings
from tidelog.controller import cluster_controller
from tidelog.endpoints import Endpoint
from tidelog.errors import ErrorCode, NetworkException
from tidelog.metadata.async_tree import AsyncTree
from tidelog.metadata.cluster_store import ClusterStore
from tidelog.metadata.nodes import BrokerNode as RegistrationNode
from tidelog.metadata.nodes import ControllerNode
from tidelog.metadata.simulated import SimulatedTree, SimulatedZooKeeper
from tidelog.metadata.state import BrokerRegistration
from tidelog.metadata.zookeeper import session
from tidelog.network.loop import BrokerLoop
from tidelog.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
)
from tidelog.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from tidelog.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse
from tidelog.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tidelog.protocol.messages.produce import ProduceRequest, ProduceResponse
from tidelog.protocol.messages.update_metadata import UpdateMetadataResponse
from tidelog.server import broker as broker_module
from tidelog.server.broker import SUPPORTED_FEATURES, Broker, BrokerState
from tidelog.server.config.broker import BrokerConfig
from tidelog.server.config.cluster import ClusterConfig
from tidelog.server.platform import RealPlatform
from tidelog.server.run import StartFailed
from tidelog.server.zookeeper_membership import SESSION_MARGIN

TOPIC, BROKER = 2, 4
OTHER = 9
NAME = "broker"
SECONDS = 30.0


class OnSimulatedZooKeeper(RealPlatform):
    """This machine, with a ZooKeeper in memory."""

    def __init__(self, loop: BrokerLoop) -> None:
        super().__init__()
        self.rng = random.Random(1)
        self.zookeeper = SimulatedZooKeeper(loop, self.rng)
        self.guarded: list[AsyncTree] = []

    def guard_session(self, config: ClusterConfig, tree: AsyncTree) -> None:
        self.guarded.append(tree)

    async def connect_zookeeper(self, config: ClusterConfig, folder: str) -> AsyncTree:
        return await self.session(NAME)

    async def session(self, client: str) -> SimulatedTree:
        return await SimulatedTree.open(self.zookeeper, client, rng=self.rng)


class Stage:
    def __init__(self, folder: Path, **more: str) -> None:
        self.loop = BrokerLoop(1)
        self.platform = OnSimulatedZooKeeper(self.loop)
        self.zookeeper = self.platform.zookeeper
        settings = {
            "broker.id": "1",
            "log.dirs": str(folder),
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "zookeeper.connect": "simulated:2181",
            "controlled.shutdown.enable": "false",
            **{name.replace("_", "."): value for name, value in more.items()},
        }
        self.broker = Broker(BrokerConfig.load(None, settings), self.loop, self.platform)

    def run(self, story: Coroutine[None, None, None]) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_until_complete(asyncio.wait_for(story, SECONDS))
        finally:
            self.loop.close()
            asyncio.set_event_loop(None)

    async def connect(self) -> AsyncConnection:
        host, _, port = self.broker.address.rpartition(":")
        settings = admin_settings({"bootstrap.servers": self.broker.address})
        return await AsyncConnection.open(BrokerNode(1, host, int(port)), settings, Security(settings))

    async def features(self) -> dict[str, int]:
        """The finalized features, as a new client learns them."""
        connection = await self.connect()
        connection.close()
        return connection.features


async def create(client: AsyncConnection, name: str) -> None:
    topic = CreateTopicsRequest.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    request = CreateTopicsRequest(topics=[topic])
    while (await client.call(request, CreateTopicsResponse)).topics[0].error_code not in (0, 36):
        await asyncio.sleep(0.01)


def test_topics_for_clients_are_no_changes_of_the_broker_that_creates_them(tmp_path: Path) -> None:
    """A quota of every client id, which the client id of a broker is as well."""
    stage = Stage(tmp_path, num_partitions="5", controller_quota_window_num="1")
    entity = AlterClientQuotasRequest.EntityData(entity_type="client-id", entity_name=None)
    limit = AlterClientQuotasRequest.OpData(key="controller_mutation_rate", value=0.01)
    quotas = AlterClientQuotasRequest(
        entries=[AlterClientQuotasRequest.EntryData(entity=[entity], ops=[limit])]
    )
    wanted = [MetadataRequest.MetadataRequestTopic(name=name) for name in "ab"]

    async def story() -> None:
        await stage.broker.start()
        client = await stage.connect()
        altered = await client.call(quotas, AlterClientQuotasResponse)
        assert altered.entries[0].error_code == 0
        for topic in wanted:
            request = MetadataRequest(topics=[topic], allow_auto_topic_creation=True)
            while (await client.call(request, MetadataResponse)).topics[0].error_code:
                await asyncio.sleep(0.01)
        client.close()
        await stage.broker.stop()

    stage.run(story())


def test_a_broker_has_its_guardian_when_it_is_ready(tmp_path: Path) -> None:
    """Killed at once, it would else stay registered, perhaps as the controller, until its session expires."""
    stage = Stage(tmp_path)

    async def story() -> None:
        await stage.broker.start()
        assert len(stage.platform.guarded) == 1
        await stage.broker.stop()

    stage.run(story())


def test_a_broker_waits_for_its_last_registration_as_long_as_zookeeper_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ZooKeeper has a shortest session time-out, which may be longer than the one that is asked for."""
    waits: list[float] = []
    register = ClusterStore.register_broker

    async def registered(
        store: ClusterStore, broker_id: int, node: RegistrationNode, *, wait_seconds: float
    ) -> BrokerRegistration:
        waits.append(wait_seconds)
        return await register(store, broker_id, node, wait_seconds=wait_seconds)

    monkeypatch.setattr(ClusterStore, "register_broker", registered)
    stage = Stage(tmp_path, zookeeper_session_timeout_ms="100")

    async def story() -> None:
        await stage.broker.start()
        assert waits == [18.0 * SESSION_MARGIN]
        await stage.broker.stop()

    stage.run(story())


def test_a_stop_does_not_wait_for_a_request_that_waits_for_zookeeper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The controller and the session are given up soon: a stop waits for ZooKeeper for them, too.
    monkeypatch.setattr(broker_module, "TREE_SECONDS", 0.1)
    monkeypatch.setattr(cluster_controller, "CLOSE_SECONDS", 0.1)
    monkeypatch.setattr(session, "CLOSE_SECONDS", 0.1)
    stage = Stage(tmp_path)
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(resource_type=BROKER, resource_name="")

    async def story() -> None:
        await stage.broker.start()
        client = await stage.connect()
        stage.zookeeper.stop()
        request = IncrementalAlterConfigsRequest(resources=[resource])
        asked = asyncio.create_task(client.call(request, IncrementalAlterConfigsResponse))
        await asyncio.sleep(0.1)
        assert not asked.done(), "it waits for ZooKeeper"
        await stage.broker.stop()
        with pytest.raises(NetworkException):
            await asked

    stage.run(story())


def test_settings_are_neither_read_nor_changed_while_zookeeper_is_gone(tmp_path: Path) -> None:
    stage = Stage(tmp_path, request_timeout_ms="500")
    change = IncrementalAlterConfigsRequest.AlterConfigsResource(resource_type=BROKER, resource_name="")
    wanted = DescribeConfigsRequest.DescribeConfigsResource(resource_type=TOPIC, resource_name="t")

    async def story() -> None:
        await stage.broker.start()
        client = await stage.connect()
        await create(client, "t")
        stage.zookeeper.stop()
        altered = await client.call(
            IncrementalAlterConfigsRequest(resources=[change]), IncrementalAlterConfigsResponse
        )
        assert altered.responses[0].error_code == ErrorCode.REQUEST_TIMED_OUT
        described = await client.call(DescribeConfigsRequest(resources=[wanted]), DescribeConfigsResponse)
        assert described.results[0].error_code == ErrorCode.REQUEST_TIMED_OUT
        stage.zookeeper.start()
        while described.results[0].error_code:
            described = await client.call(DescribeConfigsRequest(resources=[wanted]), DescribeConfigsResponse)
        client.close()
        await stage.broker.stop()

    stage.run(story())


def test_a_log_folder_that_fails_while_the_controller_moves_leaderships_is_offline(tmp_path: Path) -> None:
    stage = Stage(tmp_path)

    async def story() -> None:
        await stage.broker.start()
        client = await stage.connect()
        await create(client, "t")
        wanted = ProduceRequest.PartitionProduceData(index=0, records=bytes(batch()))
        topic = ProduceRequest.TopicProduceData(name="t", partition_data=[wanted])
        request = ProduceRequest(acks=1, timeout_ms=1000, topic_data=[topic])

        async def produced() -> int:
            answer = await client.call(request, ProduceResponse, version=9)
            return answer.responses[0].partition_responses[0].error_code

        while await produced():
            await asyncio.sleep(0.01)
        stage.broker.state = BrokerState.PENDING_CONTROLLED_SHUTDOWN
        stage.broker.log_dir_offline(str(tmp_path), [("t", 0)])
        assert await produced() == ErrorCode.KAFKA_STORAGE_ERROR
        client.close()
        await stage.broker.stop()

    stage.run(story())


def test_features_that_changed_while_there_was_no_session_are_known(tmp_path: Path) -> None:
    """The controller tells of brokers with other addresses, not of those with other features."""
    stage = Stage(tmp_path)
    endpoint = Endpoint("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 1)
    ours = {name: (1, high) for name, (_, high) in SUPPORTED_FEATURES.items()}

    async def tell_brokers() -> None:
        """The other broker is the controller: it tells this one that both are alive."""
        client = await stage.connect()
        update = update_metadata(brokers=[live_broker(1), live_broker(OTHER)])
        assert (await client.call(update, UpdateMetadataResponse, version=8)).error_code == 0
        client.close()

    async def story() -> None:
        tree = await stage.platform.session("other")
        store = ClusterStore(tree, stage.loop.clock, stage.platform.rng)
        await store.prepare()
        await store.register_broker(OTHER, RegistrationNode([endpoint], 1, features=ours), wait_seconds=1)
        await tree.create("/controller", ControllerNode(OTHER, 1).encode(), ephemeral=True)
        await stage.broker.start()
        await tell_brokers()
        while "group.version" not in await stage.features():
            await asyncio.sleep(0.01)
        stage.zookeeper.cut(NAME)
        await tree.set(f"/brokers/ids/{OTHER}", RegistrationNode([endpoint], 1).encode())
        stage.zookeeper.expire(NAME)
        stage.zookeeper.heal(NAME)
        while await tree.exists("/brokers/ids/1") is None:
            await asyncio.sleep(0.01)
        await tell_brokers()
        while "group.version" in await stage.features():
            await asyncio.sleep(0.01)
        await stage.broker.stop()
        await tree.close()

    stage.run(story())


def test_an_id_that_zookeeper_may_generate_for_another_broker_is_refused(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "refused", broker_id="1001")
    allowed = Stage(tmp_path / "allowed", broker_id="1001", reserved_broker_max_id="1001")
    without = Stage(tmp_path / "without", broker_id="1001", broker_id_generation_enable="false")

    async def refuse() -> None:
        with pytest.raises(StartFailed, match=r"broker\.id=1001 is above reserved\.broker\.max\.id=1000"):
            await stage.broker.start()
        await stage.broker.stop()

    async def start(stage: Stage) -> None:
        await stage.broker.start()
        await stage.broker.stop()

    stage.run(refuse())
    for started in (allowed, without):
        started.run(start(started))
