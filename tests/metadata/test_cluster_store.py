"""The store of a cluster finds out what happened, keeps what it does not know and splits what is large."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Callable, Coroutine, Iterable, Sequence

import pytest

from tests.support.virtual_loop import VirtualLoop
from tidelog.clock import ManualClock
from tidelog.endpoints import Endpoint
from tidelog.metadata import nodes
from tidelog.metadata.async_tree import ConnectionLost, SessionExpired
from tidelog.metadata.cluster_store import ClusterStore, ConfigChangeNotice, KRaftController
from tidelog.metadata.controller_store import ControllerStore
from tidelog.metadata.operations import CHANGE_EXPIRY_MS, CLEANED, ControllerEpoch, Fenced
from tidelog.metadata.simulated import SimulatedTree, SimulatedZooKeeper
from tidelog.metadata.state import NO_STATE_NODE, PartitionState, TopicState
from tidelog.metadata.tree import Create, DataTooLarge, Delete, NodeExists, NoNode, Operation, Result, Stat
from tidelog.metadata.tree_writes import MAX_MULTI_BYTES, MAX_MULTI_OPERATIONS, Step, write_steps
from tidelog.metadata.zookeeper.settings import ZooKeeperSettings
from tidelog.partitions import TopicPartition
from tidelog.slices import ITEMS_PER_TURN

BROKER = nodes.BrokerNode([Endpoint("PLAINTEXT", "PLAINTEXT", "here", 9092)], 1)


class World:
    """A ZooKeeper with as many sessions as a test asks for."""

    def __init__(self, seed: int = 1) -> None:
        self.seed = seed
        self.clock = ManualClock()
        self.zookeeper = SimulatedZooKeeper(asyncio.get_running_loop(), random.Random(seed))
        self.commits: list[list[Operation]] = []
        self.zookeeper.on_commit = lambda _zxid, _session, operations: self.commits.append(operations)

    async def store(self, client: str = "first", *, prepare: bool = True) -> ClusterStore:
        rng = random.Random(f"{self.seed} {client}")
        settings = ZooKeeperSettings(session_timeout=6.0)
        tree = await SimulatedTree.open(self.zookeeper, client, rng=rng, settings=settings)
        store = ClusterStore(tree, self.clock, rng)
        if prepare:
            await store.prepare()
        return store

    async def controller(self) -> tuple[ClusterStore, ControllerStore]:
        store = await self.store()
        epoch = await store.elect(1)
        assert epoch is not None
        return store, ControllerStore(store, epoch)


def run(story: Callable[[World], Coroutine[object, object, None]], seed: int = 1) -> None:
    loop = VirtualLoop()

    async def main() -> None:
        await story(World(seed))

    try:
        loop.run_until_complete(main())
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


def topic(name: str, partitions: int = 1) -> TopicState:
    states = {index: PartitionState([1, 2], 1, 0, [1, 2]) for index in range(partitions)}
    return TopicState(name, nodes.random_id(), states, {"retention.ms": "5"})


def test_the_root_nodes_are_made_once() -> None:
    async def story(world: World) -> None:
        store, other = await world.store("a"), await world.store("b")
        made = await store.cluster_id()
        assert await other.cluster_id("another") == made
        assert await store.generate_broker_id(1000) == 1001
        assert await other.generate_broker_id(1000) == 1002

    run(story)


# --- registration


def test_a_registered_broker_is_seen_with_its_epoch() -> None:
    async def story(world: World) -> None:
        store, other = await world.store("a"), await world.store("b")
        registered = await store.register_broker(7, BROKER, wait_seconds=1)
        assert await other.read_brokers() == {7: registered}
        assert registered.epoch == world.zookeeper.tree.get("/brokers/ids/7")[1].czxid

    run(story)


def test_an_id_that_a_live_broker_has_is_refused() -> None:
    async def story(world: World) -> None:
        store, other = await world.store("a"), await world.store("b")
        await store.register_broker(7, BROKER, wait_seconds=1)
        with pytest.raises(NodeExists, match="alive"):
            await other.register_broker(7, BROKER, wait_seconds=2)
        assert asyncio.get_running_loop().time() == pytest.approx(2, abs=0.5)

    run(story)


def test_a_broker_that_restarts_quickly_waits_for_its_last_session() -> None:
    async def story(world: World) -> None:
        store = await world.store("a")
        first = await store.register_broker(7, BROKER, wait_seconds=1)
        world.zookeeper.cut("a")
        restarted = await world.store("b")
        second = await restarted.register_broker(7, BROKER, wait_seconds=20)
        assert second.epoch > first.epoch

    run(story)


def test_a_node_of_an_earlier_session_of_the_same_process_is_replaced() -> None:
    """ZooKeeper may tell a client that its session is over before it deletes the nodes."""

    async def story(world: World) -> None:
        store, other = await world.store("a"), await world.store("b")
        await store.register_broker(7, BROKER, wait_seconds=1)
        owner = world.zookeeper.tree.get("/brokers/ids/7")[1].ephemeral_owner
        store._sessions.add(other.tree.session_id)
        world.zookeeper.expire("a")
        while store.tree.session_id == owner or not store.tree.session_id:
            await asyncio.sleep(0.01)
        await other.register_broker(7, BROKER, wait_seconds=1)
        again = await store.register_broker(7, BROKER, wait_seconds=0)
        assert world.zookeeper.tree.get("/brokers/ids/7")[1].ephemeral_owner == store.tree.session_id
        assert (await store.read_brokers())[7] == again

    run(story)


@pytest.mark.parametrize("seed", range(20))
def test_a_registration_with_an_unknown_outcome_is_resolved(seed: int) -> None:
    async def story(world: World) -> None:
        store = await world.store("a")
        world.zookeeper.loss = 0.4
        registered = await store.register_broker(7, BROKER, wait_seconds=30)
        world.zookeeper.loss = 0.0
        assert await store.read_broker(7) == registered
        creations = [
            operation
            for operations in world.commits
            for operation in operations
            if isinstance(operation, Create) and operation.path == "/brokers/ids/7"
        ]
        assert len(creations) == 1

    run(story, seed)


# --- the election


@pytest.mark.parametrize("seed", range(20))
def test_an_election_with_an_unknown_outcome_is_resolved(seed: int) -> None:
    async def story(world: World) -> None:
        store, other = await world.store("a"), await world.store("b")
        world.zookeeper.loss = 0.4
        won = await asyncio.gather(store.elect(1), other.elect(2))
        world.zookeeper.loss = 0.0
        (epoch,) = [epoch for epoch in won if epoch is not None]
        data, stat = world.zookeeper.tree.get("/controller_epoch")
        assert (int(data), stat.version) == epoch
        assert await store.read_controller() == (1 if won[0] is not None else 2)

    run(story, seed)


def test_a_kraft_controller_is_refused() -> None:
    async def story(world: World) -> None:
        store = await world.store()
        node = nodes.ControllerNode(3000, 1, kraft_epoch=5)
        await store.tree.create("/controller", node.encode())
        with pytest.raises(KRaftController):
            await store.read_controller()
        with pytest.raises(KRaftController):
            await store.elect(1)

    run(story)


def test_only_the_owner_resigns() -> None:
    async def story(world: World) -> None:
        store, other = await world.store("a"), await world.store("b")
        assert await store.elect(1) == ControllerEpoch(1, 1)
        await other.resign()
        assert await other.read_controller() == 1
        await store.resign()
        assert await other.elect(2) == ControllerEpoch(2, 2)

    run(story)


def test_the_writes_of_a_replaced_controller_are_fenced() -> None:
    async def story(world: World) -> None:
        store, controller = await world.controller()
        await controller.create_topics([topic("old")])
        await store.resign()
        await (await world.store("other")).elect(2)
        with pytest.raises(Fenced):
            await controller.create_topics([topic("new")])
        with pytest.raises(Fenced):
            await controller.delete_topics(["old"])
        assert await store.read_topic_names() == ["old"]

    run(story)


# --- topics


def test_topics_are_read_as_they_were_written() -> None:
    async def story(world: World) -> None:
        store, controller = await world.controller()
        made = [topic(f"t{n}", n + 1) for n in range(5)]
        assert await controller.create_topics(made) == {}
        states = {
            TopicPartition(each.name, index): state
            for each in made
            for index, state in each.partitions.items()
        }
        before = await store.read_topics([each.name for each in made])
        assert before["t0"].partitions[0].partition_epoch == NO_STATE_NODE
        assert await controller.create_partition_states(states) == {}
        found = await store.read_topics([each.name for each in made] + ["missing"])
        assert {name: each.partitions for name, each in found.items()} == {
            each.name: each.partitions for each in made
        }
        assert {each.topic_id for each in found.values()} == {each.topic_id for each in made}
        assert await store.topic_configs(["t1", "no"]) == {"t1": {"retention.ms": "5"}, "no": {}}

    run(story)


def test_other_tasks_run_while_the_partitions_of_a_large_topic_are_decoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decoded = longest = 0
    decode = nodes.PartitionNode.decode

    def count(data: bytes) -> nodes.PartitionNode:
        nonlocal decoded, longest
        if not decoded:
            asyncio.get_running_loop().call_soon(next_turn)
        decoded += 1
        longest = max(longest, decoded)
        return decode(data)

    def next_turn() -> None:
        nonlocal decoded
        decoded = 0

    async def story(world: World) -> None:
        store, controller = await world.controller()
        large = topic("large", 1000)
        await controller.create_topics([large])
        await controller.create_partition_states(
            {TopicPartition("large", index): state for index, state in large.partitions.items()}
        )
        monkeypatch.setattr(nodes.PartitionNode, "decode", count)
        assert (await store.read_topics(["large"]))["large"].partitions == large.partitions
        assert 0 < longest <= ITEMS_PER_TURN

    run(story)


def test_settings_left_by_a_deleted_topic_are_replaced() -> None:
    async def story(world: World) -> None:
        store, controller = await world.controller()
        await store.tree.create("/config/topics/demo", nodes.encode_config({"old": "1"}))
        await store.tree.create("/brokers/topics/taken", nodes.TopicNode({0: [1]}).encode())
        refused = await controller.create_topics([topic("demo"), topic("taken"), topic("other")])
        assert refused.keys() == {"taken"}
        assert isinstance(refused["taken"], NodeExists)
        assert (await store.topic_configs(["demo"]))["demo"] == {"retention.ms": "5"}
        assert await store.read_topic_names() == ["demo", "other", "taken"]
        assert await store.topic_configs(["taken"]) == {"taken": {}}

    run(story)


def test_no_multi_is_larger_than_zookeeper_takes_and_no_topic_is_split() -> None:
    async def story(world: World) -> None:
        store, controller = await world.controller()
        world.commits.clear()
        large = [topic(f"topic-{n}", 3000) for n in range(16)]
        await controller.create_topics(large)
        assert len(world.commits) > 1
        for operations in world.commits:
            assert sum(len(getattr(each, "data", b"")) for each in operations) < MAX_MULTI_BYTES
            assert len(operations) <= MAX_MULTI_OPERATIONS + 1
            made = [each.path for each in operations if isinstance(each, Create)]
            topics = [path for path in made if path.startswith("/brokers/topics/") and path.count("/") == 3]
            configs = [path for path in made if path.startswith("/config/topics/")]
            assert len(topics) == len(configs)
        assert len(await store.read_topic_names()) == 16

    run(story)


@pytest.mark.parametrize("seed", range(8))
def test_many_writes_with_unknown_outcomes_are_each_made_once(seed: int) -> None:
    async def story(world: World) -> None:
        store, controller = await world.controller()
        world.zookeeper.loss = 0.2
        made = [topic(f"t{n}", 2) for n in range(250)]
        assert await controller.create_topics(made) == {}
        states = {TopicPartition(each.name, 0): each.partitions[0] for each in made}
        assert await controller.create_partition_states(states) == {}
        outcome = await controller.update_partition_states(states)
        assert (outcome.retriable, outcome.failed) == ([], {})
        world.zookeeper.loss = 0.0
        for partition in states:
            _, stat = world.zookeeper.tree.get(f"/brokers/topics/{partition.topic}/partitions/0/state")
            assert stat.version == outcome.updated[partition].partition_epoch == 1
        world.zookeeper.loss = 0.2
        await controller.mark_for_deletion([each.name for each in made])
        await controller.delete_topics([each.name for each in made])
        world.zookeeper.loss = 0.0
        assert await store.read_topic_names() == await store.topics_to_delete() == []
        assert await store.tree.children("/config/topics") == []

    run(story, seed)


def test_a_state_with_another_version_does_not_prevent_the_others() -> None:
    async def story(world: World) -> None:
        _, controller = await world.controller()
        await controller.create_topics([topic("demo", 3)])
        states = {TopicPartition("demo", n): PartitionState([1], 1, 0, [1]) for n in range(3)}
        await controller.create_partition_states(states)
        states[TopicPartition("demo", 1)] = PartitionState([1], 1, 0, [1], partition_epoch=5)
        states[TopicPartition("none", 0)] = PartitionState([1], 1, 0, [1])
        outcome = await controller.update_partition_states(states)
        assert outcome.updated.keys() == {("demo", 0), ("demo", 2)}
        assert outcome.retriable == [("demo", 1)]
        assert isinstance(outcome.failed[TopicPartition("none", 0)], NoNode)
        again = await controller.create_partition_states({TopicPartition("demo", 0): states["demo", 0]})  # type: ignore[index]
        assert isinstance(again[TopicPartition("demo", 0)], NodeExists)

    run(story)


def test_fields_that_this_version_does_not_know_are_kept() -> None:
    async def story(world: World) -> None:
        store, controller = await world.controller()
        await controller.create_topics([topic("demo", 1)])
        path = "/brokers/topics/demo/partitions/0"
        await store.tree.create(path)
        future = b'{"controller_epoch":1,"leader":1,"version":1,"leader_epoch":4,"isr":[1],'
        future += b'"leader_recovery_state":1,"elr":[2]}'
        await store.tree.create(f"{path}/state", future)
        found = (await store.read_topics(["demo"]))["demo"].partitions[0]
        assert (found.leader_epoch, found.leader_recovery_state) == (4, 1)
        await controller.update_partition_states({TopicPartition("demo", 0): found})
        assert (await store.tree.get(f"{path}/state"))[0] == future
        data, _ = await store.tree.get("/brokers/topics/demo")
        await store.tree.set("/brokers/topics/demo", data.replace(b"{", b'{"colour":"blue",', 1))
        await controller.set_assignments({"demo": topic("demo", 2)})
        node = nodes.TopicNode.decode((await store.tree.get("/brokers/topics/demo"))[0])
        assert node.other_fields == {"colour": "blue"}
        assert len(node.partitions) == 2

    run(story)


def test_a_topic_that_zookeeper_does_not_take_does_not_prevent_the_others() -> None:
    async def story(world: World) -> None:
        store, controller = await world.controller()
        wide = topic("wide", 100_000)
        refused = await controller.create_topics([topic("a"), wide, topic("b")])
        assert {name: type(error) for name, error in refused.items()} == {"wide": DataTooLarge}
        assert await store.read_topic_names() == ["a", "b"]

    run(story)


def test_a_topic_that_a_tool_creates_anew_during_a_deletion_stays() -> None:
    async def story(world: World) -> None:
        store, controller = await world.controller()
        tool = await world.store("tool")
        await controller.create_topics([topic("demo", 3)])
        await controller.mark_for_deletion(["demo"])
        again = nodes.TopicNode({0: [1]}, nodes.random_id()).encode()
        made = [Create("/config/topics/demo", b"{}"), Create("/brokers/topics/demo", again)]

        def create_at_once(_zxid: int, _session: int, operations: list[Operation]) -> None:
            if Delete("/brokers/topics/demo") in operations:
                asyncio.get_running_loop().call_soon(world.zookeeper.change, tool.tree.session_id, made)

        world.zookeeper.on_commit = create_at_once
        await controller.delete_topics(["demo"])
        assert (await store.tree.get("/brokers/topics/demo"))[0] == again
        assert (await store.tree.get("/config/topics/demo"))[0] == b"{}"
        assert await store.topics_to_delete() == []

    run(story)


def test_a_partition_that_a_tool_creates_during_a_deletion_is_deleted() -> None:
    async def story(world: World) -> None:
        store, controller = await world.controller()
        tool = await world.store("tool")
        await controller.create_topics([topic("demo", 1), topic("other", 1)])
        added = Create("/brokers/topics/demo/partitions/7")
        multi = store.tree.multi

        async def create_before(operations: Sequence[Operation]) -> list[Result]:
            store.tree.multi = multi  # type: ignore[method-assign]
            await tool.tree.multi([added])
            return await multi(operations)

        store.tree.multi = create_before  # type: ignore[method-assign]
        await controller.delete_topics(["demo", "other"])
        assert await store.read_topic_names() == []

    run(story)


def test_a_write_ends_with_its_session() -> None:
    async def story(world: World) -> None:
        _, controller = await world.controller()
        world.zookeeper.cut("first")
        writing = asyncio.ensure_future(controller.create_topics([topic("demo")]))
        await asyncio.sleep(0.1)
        world.zookeeper.expire("first")
        world.zookeeper.heal("first")
        with pytest.raises((SessionExpired, Fenced)):
            await writing
        assert not world.zookeeper.tree.children("/brokers/topics")

    run(story)


def test_a_write_that_is_given_up_fails_silently(caplog: pytest.LogCaptureFixture) -> None:
    """A broker that stops gives up the writes of its controller. Later they fail with the session."""

    async def story(world: World) -> None:
        _, controller = await world.controller()
        world.zookeeper.cut("first")
        writing = asyncio.ensure_future(controller.create_topics([topic("demo")]))
        await asyncio.sleep(0.1)
        writing.cancel()
        world.zookeeper.expire("first")
        world.zookeeper.heal("first")
        await asyncio.sleep(1.0)
        gc.collect()
        assert writing.cancelled()

    run(story)
    assert "never retrieved" not in caplog.text


def test_no_steps_make_no_multi() -> None:
    async def story(world: World) -> None:
        store = await world.store()
        world.commits.clear()
        steps: list[Step[str]] = []
        assert await write_steps(store.tree, steps) == {}
        assert world.commits == []

    run(story)


# --- settings and notifications


def test_changed_settings_are_announced_and_old_announcements_are_deleted() -> None:
    async def story(world: World) -> None:
        store = await world.store()
        await store.write_config("brokers/<default>", {"a": "1"})
        await store.write_config("users/alice/clients/app", {"b": "2"})
        await store.write_config("brokers/<default>", {"a": "3"})
        assert await store.read_entity_configs() == {
            "brokers/<default>": {"a": "3"},
            "users/alice/clients/app": {"b": "2"},
        }
        notices = await store.read_config_changes(-1)
        assert notices == [
            ConfigChangeNotice(0, "brokers/<default>"),
            ConfigChangeNotice(1, "users/alice/clients/app"),
            ConfigChangeNotice(2, "brokers/<default>"),
        ]
        assert await store.read_config_changes(1) == notices[2:]
        await asyncio.sleep(CHANGE_EXPIRY_MS / 1000 + 1)
        await store.write_config("brokers/1", {"c": "4"})
        last = [ConfigChangeNotice(3, "brokers/1")]
        assert await store.read_config_changes(2) == last
        assert await store.read_config_changes(-1) == last

    run(story)


def test_a_read_of_announcements_does_not_grow_with_those_of_the_last_minutes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[str] = []
    get_all = SimulatedTree.get_all

    async def counted(tree: SimulatedTree, paths: Iterable[str]) -> dict[str, tuple[bytes, Stat]]:
        wanted = list(paths)
        read.extend(wanted)
        return await get_all(tree, wanted)

    async def story(world: World) -> None:
        store = await world.store()
        for number in range(250):
            await store.write_config(f"users/u{number}", {"a": "1"})
        monkeypatch.setattr(SimulatedTree, "get_all", counted)
        assert await store.read_config_changes(248) == [ConfigChangeNotice(249, "users/u249")]
        assert len(read) == 1 + CLEANED
        # The oldest are read, so that they are deleted once they are old.
        await asyncio.sleep(CHANGE_EXPIRY_MS / 1000 + 1)
        await store.write_config("users/u", {"a": "1"})
        while len(await store.tree.children("/config/changes")) > 1:
            assert await store.read_config_changes(249) == [ConfigChangeNotice(250, "users/u")]

    run(story)


def test_a_broker_with_another_time_deletes_no_new_announcement() -> None:
    async def story(world: World) -> None:
        store = await world.store()
        await store.write_config("brokers/1", {"a": "1"})
        world.clock.jump_to(2_000_000_000_000)  # years after that of ZooKeeper
        await store.read_config_changes(-1)
        assert await store.read_config_changes(-1) == [ConfigChangeNotice(0, "brokers/1")]

    run(story)


def test_settings_that_cannot_be_understood_hide_no_others() -> None:
    async def story(world: World) -> None:
        store = await world.store()
        for entity_path in ("topics/bad", "topics/good", "users/bad", "users/good"):
            await store.write_config(entity_path, {"a": "1"})
        for entity_path in ("topics/bad", "users/bad"):
            await store.tree.set(f"/config/{entity_path}", b"{")
        assert await store.topic_configs(["bad", "good"]) == {"bad": {}, "good": {"a": "1"}}
        assert await store.read_entity_configs() == {"users/good": {"a": "1"}}

    run(story)


def test_settings_that_cannot_be_understood_are_replaced() -> None:
    async def story(world: World) -> None:
        store = await world.store()
        await store.write_config("topics/bad", {"a": "1"})
        await store.tree.set("/config/topics/bad", b"{")
        await store.change_config("topics/bad", lambda present: {**present, "b": "2"})
        assert await store.read_config("topics/bad") == {"b": "2"}

    run(story)


def test_an_announcement_that_cannot_be_understood_hides_no_other() -> None:
    async def story(world: World) -> None:
        store = await world.store()
        await store.write_config("brokers/1", {"a": "1"})
        await store.tree.create("/config/changes/config_change_", b"", sequential=True)
        await store.write_config("brokers/2", {"a": "1"})
        found = await store.read_config_changes(-1)
        assert found == [ConfigChangeNotice(0, "brokers/1"), ConfigChangeNotice(2, "brokers/2")]

    run(story)


def test_notifications_are_read_and_deleted() -> None:
    async def story(world: World) -> None:
        store, controller = await world.controller()
        await store.write_isr_change([TopicPartition("a", 0), TopicPartition("b", 1)])
        await store.write_isr_change([TopicPartition("a", 0)])
        await store.write_log_dir_event(3)
        changes = await store.read_isr_changes()
        assert changes.subjects == [("a", 0), ("b", 1)]
        assert len(changes.paths) == 2
        events = await store.read_log_dir_events()
        assert events.subjects == [3]
        await controller.delete_nodes([*changes.paths, *events.paths, "/isr_change_notification/gone"])
        assert (await store.read_isr_changes()).paths == (await store.read_log_dir_events()).paths == []

    run(story)


def test_requests_of_tools_are_read_from_their_nodes() -> None:
    async def story(world: World) -> None:
        store = await world.store()
        assert await store.read_preferred_elections() is None
        assert await store.read_reassignments() is None
        await store.tree.create("/admin/preferred_replica_election", nodes.encode_partitions([("a", 1)]))
        await store.tree.create("/admin/reassign_partitions", nodes.encode_reassignment({("a", 1): [2]}))
        assert await store.read_preferred_elections() == [("a", 1)]
        assert await store.read_reassignments() == {("a", 1): [2]}

    run(story)


@pytest.mark.parametrize("seed", range(10))
def test_no_producer_id_is_allocated_twice(seed: int) -> None:
    async def story(world: World) -> None:
        stores = [await world.store(client) for client in ("a", "b", "c")]
        world.zookeeper.loss = 0.2

        async def several(store: ClusterStore) -> list[range]:
            return [await store.allocate_producer_ids(1) for _ in range(5)]

        blocks = [block for found in await asyncio.gather(*map(several, stores)) for block in found]
        assert len({block.start for block in blocks}) == 15
        assert all(len(block) == 1000 for block in blocks)

    run(story, seed)


def test_a_lost_answer_to_a_single_write_is_an_error_of_the_tree() -> None:
    """Callers that use the tree directly have to expect it; the store never raises it."""

    async def story(world: World) -> None:
        store = await world.store()
        world.zookeeper.loss = 1.0
        with pytest.raises(ConnectionLost):
            await store.tree.create("/x")

    run(story)
