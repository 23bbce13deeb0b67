"""One controller at a time, in an epoch of its own, whatever happens to its session."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from tests.controller.controllers import Cluster, simulated
from tidelog.controller.cluster_controller import NO_CONTROLLER
from tidelog.controller.interface import NewTopic
from tidelog.errors import NotController
from tidelog.metadata.nodes import ControllerNode
from tidelog.metadata.operations import ControllerEpoch
from tidelog.metadata.tree import Create, Delete


def test_one_of_several_brokers_is_the_controller_and_all_know_it() -> None:
    async def story() -> None:
        async with Cluster(1, 2, 3) as cluster:
            controller = await cluster.controller()
            assert controller.controller.epoch == cluster.epoch_in_tree() == 1
            others = [node for node in cluster.nodes.values() if node is not controller]
            for node in others:
                with pytest.raises(NotController):
                    await node.controller.create_topics([NewTopic("demo", 1, 1)])

    simulated(story())


def test_the_next_controller_takes_over_with_the_next_epoch() -> None:
    async def story() -> None:
        async with Cluster(1, 2, 3) as cluster:
            first = await cluster.controller()
            (result,) = await first.controller.create_topics([NewTopic("demo", 6, 1)])
            assert result.error is None
            await cluster.crash(first.broker_id)
            second = await cluster.controller()
            await cluster.settle()
            assert second.controller.epoch == cluster.epoch_in_tree() == 2
            assert set(second.controller.context.topics) == {"demo"}
            assert second.broker.live == set(cluster.nodes)

    simulated(story())


def test_a_controller_that_stops_hands_over_at_once() -> None:
    async def story() -> None:
        async with Cluster(1, 2) as cluster:
            first = await cluster.controller()
            await cluster.nodes.pop(first.broker_id).stop()
            second = await cluster.controller()
            assert second is not first
            assert cluster.epoch_in_tree() == 2

    simulated(story())


def test_a_controller_that_changes_and_goes_before_the_others_look_is_replaced() -> None:
    """The watch tells of the change, and the node is gone when the brokers read it."""

    async def story() -> None:
        async with Cluster(1, 2) as cluster:
            tree = (await cluster.controller()).tree
            data, _ = await tree.get("/controller")
            await asyncio.gather(tree.set("/controller", data), tree.delete("/controller"))
            await cluster.until(lambda: cluster.epoch_in_tree() == 2, "the next epoch")
            await cluster.controller()

    simulated(story())


def test_an_expired_session_ends_the_term_and_the_broker_registers_again() -> None:
    async def story() -> None:
        async with Cluster(1, 2) as cluster:
            first = await cluster.controller()
            registered = first.registrations[-1].epoch
            cluster.zookeeper.expire(first.client)
            await cluster.until(lambda: len(first.registrations) > 1, "a new registration")
            controller = await cluster.controller()
            await cluster.settle()
            assert controller.controller.epoch == 2
            assert first.registrations[-1].epoch > registered
            assert set(controller.controller.context.live_broker_ids) == {1, 2}

    simulated(story())


def test_a_broker_registers_again_although_an_event_of_its_old_session_never_ends() -> None:
    async def story() -> None:
        async with Cluster(1, 2) as cluster:
            node = await cluster.controller()
            node.controller._put("Endless", asyncio.get_running_loop().create_future)
            cluster.zookeeper.expire(node.client)
            await cluster.until(lambda: len(node.registrations) > 1, "a new registration")

    simulated(story())


def test_an_attempt_to_be_elected_does_not_replace_the_attempt_to_register() -> None:
    async def story() -> None:
        async with Cluster(1, 2) as cluster:
            node = await cluster.controller()
            register = node.controller._register_broker

            async def fail() -> None:
                node.controller._register_broker = register
                node.controller._later(0.5, "Reelect", node.controller._reelect)
                asyncio.get_running_loop().call_later(
                    0.2, node.controller._later, 0.5, "Reelect", node.controller._reelect
                )
                raise TimeoutError

            node.controller._register_broker = fail
            cluster.zookeeper.expire(node.client)
            await cluster.until(lambda: len(node.registrations) > 1, "a new registration")

    simulated(story())


def test_an_election_that_fails_for_an_unknown_reason_is_tried_again() -> None:
    async def story() -> None:
        async with Cluster(1) as cluster:
            node = await cluster.controller()
            read_controller = node.store.read_controller
            failures: list[object] = []

            async def fail(watch: object = None) -> None:
                failures.append(watch)
                raise RuntimeError("a planted fault")

            node.store.read_controller = fail  # type: ignore[method-assign,assignment]
            cluster.zookeeper.expire(node.client)
            await cluster.until(lambda: len(failures) >= 3, "attempts")
            node.store.read_controller = read_controller  # type: ignore[method-assign]
            assert await cluster.controller() is node

    simulated(story())


def test_requests_in_the_queue_of_an_expired_session_end_with_not_controller() -> None:
    """Until somebody is elected nobody raises the epoch: only the cleared queue keeps them from the tree."""

    async def story() -> None:
        async with Cluster(1) as cluster:
            node = await cluster.controller()
            cluster.zookeeper.cut(node.client)
            creations = [
                asyncio.ensure_future(node.controller.create_topics([NewTopic(f"t{n}", 1, 1)]))
                for n in range(5)
            ]
            await asyncio.sleep(1)
            assert node.controller.events.queue_size == 4
            cluster.zookeeper.expire(node.client)
            cluster.zookeeper.heal(node.client)
            await asyncio.wait(creations, timeout=60)
            assert all(isinstance(creation.exception(), NotController) for creation in creations)
            await cluster.controller()
            await cluster.settle()
            assert cluster.zookeeper.tree.children("/brokers/topics") == []

    simulated(story())


@pytest.mark.parametrize("seed", range(10))
def test_the_unknown_outcome_of_the_election_is_resolved(seed: int) -> None:
    """Connections are lost while brokers compete: there is one controller, and nobody reports another."""

    async def story() -> None:
        async with Cluster(seed=seed) as cluster:
            cluster.zookeeper.loss = 0.1
            for broker_id in (1, 2, 3):
                await cluster.start(broker_id)
            controller = await cluster.controller()
            await cluster.settle()
            cluster.zookeeper.loss = 0.0
            assert controller.controller.epoch == cluster.epoch_in_tree()
            assert set(controller.controller.context.live_broker_ids) == {1, 2, 3}

    simulated(story())


def test_a_controller_that_was_replaced_writes_nothing() -> None:
    async def story() -> None:
        async with Cluster(1, 2) as cluster:
            first = await cluster.controller()
            # The epoch is raised behind its back, as by a controller that was elected meanwhile.
            await first.tree.set("/controller_epoch", b"7")
            with pytest.raises(NotController):
                await first.controller.create_topics([NewTopic("demo", 1, 1)])
            controller = await cluster.controller()
            await cluster.settle()
            assert controller.controller.epoch == 8
            assert "demo" not in controller.controller.context.topics

    simulated(story())


def test_an_error_while_becoming_controller_moves_it_on() -> None:
    async def story() -> None:
        async with Cluster(1, 2) as cluster:
            first = await cluster.controller()
            other = next(node for node in cluster.nodes.values() if node is not first)

            async def fail() -> None:
                raise RuntimeError("a planted fault")

            read_topic_names = other.store.read_topic_names
            other.store.read_topic_names = lambda watch=None: fail()  # type: ignore[method-assign,assignment,return-value]
            cluster.zookeeper.expire(first.client)
            controller = await cluster.controller()
            await cluster.settle()
            other.store.read_topic_names = read_topic_names  # type: ignore[method-assign]
            assert controller is first

    simulated(story())


def test_a_broker_that_cannot_begin_a_term_waits_before_it_tries_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> None:
        async with Cluster(1) as cluster:
            node = await cluster.controller()
            attempts: list[ControllerEpoch] = []

            def fail(epoch: ControllerEpoch) -> None:
                attempts.append(epoch)
                raise ImportError("a planted fault")

            monkeypatch.setattr(node.controller, "_new_term", fail)
            cluster.zookeeper.expire(node.client)
            await asyncio.sleep(10)
            assert 2 <= len(attempts) <= 12
            monkeypatch.undo()
            assert await cluster.controller() is node

    simulated(story())


def test_an_election_that_a_new_session_completes_is_not_left_without_a_controller() -> None:
    """The session ends before the broker writes /controller: the node is of the next session, but no term."""

    async def story() -> None:
        async with Cluster(1) as cluster:
            node = await cluster.controller()
            elect = node.store.elect

            async def elect_in_the_next_session(broker_id: int) -> ControllerEpoch | None:
                node.store.elect = elect  # type: ignore[method-assign]
                before = node.tree.session_id
                cluster.zookeeper.expire(node.client)
                await cluster.until(lambda: node.tree.session_id not in (0, before), "the next session")
                return await elect(broker_id)

            node.store.elect = elect_in_the_next_session  # type: ignore[method-assign]
            await node.tree.delete("/controller")
            await cluster.until(lambda: len(node.registrations) > 1, "the next registration")
            await cluster.controller()
            await cluster.settle()
            assert node.controller.epoch == cluster.epoch_in_tree() == 3

    simulated(story())


def test_a_controller_resigns_when_a_kraft_controller_takes_over() -> None:
    async def story() -> None:
        async with Cluster(1) as cluster:
            node = await cluster.controller()
            taken = ControllerNode(3000, 0, kraft_epoch=5).encode()
            await node.tree.multi([Delete("/controller"), Create("/controller", taken)])
            await cluster.until(lambda: not node.controller.is_active, "the end of the term")
            assert node.controller.active_controller_id == NO_CONTROLLER

    simulated(story())


def test_a_term_that_is_over_leaves_no_memory_behind() -> None:
    """A broker may be elected again and again in one session, in which the watches of its terms stay."""

    async def story() -> None:
        async with Cluster(1) as cluster:
            node = await cluster.controller()
            await node.controller.create_topics([NewTopic(f"t{n}", 1, 1) for n in range(10)])
            terms: list[weakref.ref[object]] = []
            for epoch in range(2, 5):
                terms.append(weakref.ref(node.controller._active))
                await node.tree.delete("/controller")
                await cluster.until(lambda epoch=epoch: node.controller.epoch == epoch, "the next term")  # type: ignore[misc]
                await cluster.settle()
            gc.collect()
            assert [term() for term in terms] == [None] * 3
            watches = node.tree._session.watches
            assert {len(watches.data[f"/brokers/topics/t{n}"]) for n in range(10)} == {1}

    simulated(story())
