"""Topics are made, grown and deleted as Kafka does it, and are still so after a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.controller.hosts import BROKER, RecordingHost, running
from tidelog.controller.interface import ZERO_ID, NewPartitions, NewTopic, TopicResult, TopicToDelete
from tidelog.controller.planning import ControllerSettings
from tidelog.controller.single import SingleController
from tidelog.errors import (
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    InvalidTopic,
    KafkaError,
    KafkaStorageError,
    PolicyViolation,
    TopicAlreadyExists,
    TopicDeletionDisabled,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from tidelog.metadata.state import NO_LEADER


async def create(
    controller: SingleController, *topics: NewTopic, validate_only: bool = False
) -> list[TopicResult]:
    return await controller.create_topics(topics, validate_only=validate_only)


async def create_one(controller: SingleController, topic: NewTopic) -> TopicResult:
    (result,) = await controller.create_topics([topic])
    return result


def test_a_new_topic_is_led_known_and_kept(tmp_path: Path) -> None:
    async def first() -> bytes:
        host = RecordingHost()
        async with running(tmp_path, host) as controller:
            result = await create_one(controller, NewTopic("demo", 3, 1, configs=[("retention.ms", "5")]))
            assert result.error is None
            assert (result.num_partitions, result.replication_factor) == (3, 1)
            assert result.configs == {"retention.ms": "5"}
            assert sorted(host.leads) == [("demo", 0), ("demo", 1), ("demo", 2)]
            assert host.ids == {"demo": result.topic_id}
            state = host.states[-1]
            assert state is controller.state
            assert state.topic_by_id(result.topic_id) is state.topics["demo"]
            return result.topic_id

    async def second(topic_id: bytes) -> None:
        host = RecordingHost()
        async with running(tmp_path, host) as controller:
            topic = controller.state.topics["demo"]
            assert topic.topic_id == topic_id
            assert topic.configs == {"retention.ms": "5"}
            partition = topic.partitions[2]
            assert (partition.leader, partition.isr, partition.replicas) == (BROKER, [BROKER], [BROKER])
            assert sorted(host.leads) == [("demo", 0), ("demo", 1), ("demo", 2)]

    asyncio.run(second(asyncio.run(first())))


def test_a_restart_counts_up_the_controller_epoch_but_no_leader_epoch(tmp_path: Path) -> None:
    async def start() -> tuple[int, int, int]:
        async with running(tmp_path) as controller:
            if "demo" not in controller.state.topics:
                await create_one(controller, NewTopic("demo"))
            partition = controller.state.topics["demo"].partitions[0]
            return controller.state.controller_epoch, partition.leader_epoch, partition.controller_epoch

    assert [asyncio.run(start()) for _ in range(3)] == [(1, 0, 1), (2, 0, 1), (3, 0, 1)]


def test_defaults_come_from_the_settings(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path, settings=ControllerSettings(num_partitions=4)) as controller:
            result = await create_one(controller, NewTopic("demo"))
            assert (result.num_partitions, result.replication_factor) == (4, 1)

    asyncio.run(run())


REFUSED = [
    (NewTopic("", 1, 1), InvalidTopic),
    (NewTopic(".", 1, 1), InvalidTopic),
    (NewTopic("..", 1, 1), InvalidTopic),
    (NewTopic("a/b", 1, 1), InvalidTopic),
    (NewTopic("ä", 1, 1), InvalidTopic),
    (NewTopic("a\n", 1, 1), InvalidTopic),
    (NewTopic("n" * 250, 1, 1), InvalidTopic),
    (NewTopic("__cluster_metadata", 1, 1), InvalidRequest),
    (NewTopic("old", 1, 1), TopicAlreadyExists),
    (NewTopic("old", 0, 1, configs=[("nope", "1")]), TopicAlreadyExists),
    (NewTopic("with_dot", 1, 1), InvalidTopic),
    (NewTopic("x", 0, 1), InvalidPartitions),
    (NewTopic("x", -2, 1), InvalidPartitions),
    (NewTopic("x", 10_001, 1), PolicyViolation),
    (NewTopic("x", 0, 0), InvalidReplicationFactor),
    (NewTopic("x", 0, 5), InvalidPartitions),
    (NewTopic("x", 0, 0, configs=[("nope", "1")]), InvalidConfig),
    (NewTopic("x", 1, 0), InvalidReplicationFactor),
    (NewTopic("x", 1, -2), InvalidReplicationFactor),
    (NewTopic("x", 1, 2), InvalidReplicationFactor),
    (NewTopic("x", 1, 1, configs=[("nope", "1")]), InvalidConfig),
    (NewTopic("x", 1, 1, configs=[("retention.ms", None)]), InvalidConfig),
    (NewTopic("x", 1, -1, assignments=[(0, [BROKER])]), InvalidRequest),
    (NewTopic("x", -1, 1, assignments=[(0, [BROKER])]), InvalidRequest),
    (NewTopic("x", assignments=[(0, [99])]), InvalidReplicaAssignment),
    (NewTopic("x", assignments=[(0, [BROKER, BROKER])]), InvalidReplicaAssignment),
    (NewTopic("x", assignments=[(0, [])]), InvalidReplicaAssignment),
    (NewTopic("x", assignments=[(1, [BROKER])]), InvalidReplicaAssignment),
    (NewTopic("x", assignments=[(0, [BROKER]), (0, [BROKER])]), InvalidReplicaAssignment),
]


@pytest.mark.parametrize(("topic", "error"), REFUSED, ids=[f"{t.name[:9]}-{e.__name__}" for t, e in REFUSED])
def test_a_topic_that_breaks_a_rule_is_refused(
    tmp_path: Path, topic: NewTopic, error: type[KafkaError]
) -> None:
    async def run() -> None:
        host = RecordingHost()
        async with running(tmp_path, host) as controller:
            await create(controller, NewTopic("old"), NewTopic("with.dot"))
            before = controller.state
            result = await create_one(controller, topic)
            assert type(result.error) is error
            assert (result.topic_id, result.num_partitions) == (ZERO_ID, -1)
            assert controller.state is before
            assert set(host.leads) == {("old", 0), ("with.dot", 0)}

    asyncio.run(run())


def test_each_topic_of_a_request_stands_for_itself(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path) as controller:
            twice = NewTopic("twice", 1, 1)
            results = await create(
                controller, NewTopic("good"), NewTopic("b/d"), twice, twice, NewTopic("fine")
            )
            errors = {result.name: type(result.error) for result in results}
            assert errors == {
                "good": type(None),
                "b/d": InvalidTopic,
                "twice": InvalidRequest,
                "fine": type(None),
            }
            assert set(controller.state.topics) == {"good", "fine"}

    asyncio.run(run())


def test_too_many_partitions_in_all_fail_the_whole_request(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path) as controller:
            results = await create(controller, NewTopic("a", 6000, 1), NewTopic("b", 4000, 1), NewTopic("c"))
            assert [type(result.error) for result in results] == [PolicyViolation] * 3

    asyncio.run(run())


def test_names_that_differ_in_dot_and_underscore_may_come_together(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path) as controller:
            results = await create(controller, NewTopic("a.b"), NewTopic("a_b"))
            assert [result.error for result in results] == [None, None], "as Kafka 4.3 does it"

    asyncio.run(run())


def test_a_layout_by_hand_is_followed(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path) as controller:
            result = await create_one(controller, NewTopic("x", assignments=[(1, [BROKER]), (0, [BROKER])]))
            assert (result.num_partitions, result.replication_factor) == (2, 1)

    asyncio.run(run())


def test_validating_says_the_same_and_makes_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        host = RecordingHost()
        async with running(tmp_path, host) as controller:
            results = await create(controller, NewTopic("x", 3, 1), NewTopic("", 1, 1), validate_only=True)
            assert [r.num_partitions for r in results] == [3, -1]
            assert not controller.state.topics
            assert not host.leads

    asyncio.run(run())


def test_partitions_are_added_behind_those_that_are_there(tmp_path: Path) -> None:
    async def run() -> None:
        host = RecordingHost()
        async with running(tmp_path, host) as controller:
            await create_one(controller, NewTopic("demo", 2, 1))
            before = controller.state.topics["demo"]
            (result,) = await controller.create_partitions([NewPartitions("demo", 5)])
            assert result.error is None
            assert sorted(controller.state.topics["demo"].partitions) == [0, 1, 2, 3, 4]
            assert controller.state.topics["demo"].topic_id == before.topic_id
            assert sorted(before.partitions) == [0, 1], "a snapshot that was handed out never changes"
            assert len(host.leads) == 5
        async with running(tmp_path) as controller:
            assert sorted(controller.state.topics["demo"].partitions) == [0, 1, 2, 3, 4]

    asyncio.run(run())


NO_GROWTH = [
    (NewPartitions("nope", 5), UnknownTopicOrPartition),
    (NewPartitions("demo", 1), InvalidPartitions),
    (NewPartitions("demo", 2), InvalidPartitions),
    (NewPartitions("demo", -1), InvalidPartitions),
    (NewPartitions("demo", 20_000), PolicyViolation),
    (NewPartitions("demo", 4, [[BROKER]]), InvalidReplicaAssignment),
    (NewPartitions("demo", 3, [[99]]), InvalidReplicaAssignment),
    (NewPartitions("demo", 3, [[]]), InvalidReplicaAssignment),
]


@pytest.mark.parametrize(
    ("request_", "error"), NO_GROWTH, ids=[f"{r.count}-{e.__name__}" for r, e in NO_GROWTH]
)
def test_growth_that_breaks_a_rule_is_refused(
    tmp_path: Path, request_: NewPartitions, error: type[KafkaError]
) -> None:
    async def run() -> None:
        async with running(tmp_path) as controller:
            await create_one(controller, NewTopic("demo", 2, 1))
            (result,) = await controller.create_partitions([request_])
            assert type(result.error) is error
            assert len(controller.state.topics["demo"].partitions) == 2

    asyncio.run(run())


def test_a_deleted_topic_is_gone_with_its_logs_and_can_be_made_again(tmp_path: Path) -> None:
    async def run() -> None:
        host = RecordingHost()
        async with running(tmp_path, host) as controller:
            first = await create_one(controller, NewTopic("demo", 2, 1, configs=[("retention.ms", "5")]))
            (result,) = await controller.delete_topics([TopicToDelete("demo")])
            assert (result.name, result.topic_id, result.error) == ("demo", first.topic_id, None)
            assert host.deleted == [("demo", 0), ("demo", 1)]
            assert not host.states[-1].topics
            assert not host.states[-1].names_by_id
            again = await create_one(controller, NewTopic("demo"))
            assert again.error is None
            assert again.topic_id != first.topic_id
            assert controller.state.topics["demo"].configs == {}

    asyncio.run(run())


def test_topics_are_deleted_by_name_or_id_but_not_by_both(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path) as controller:
            made = await create(controller, *(NewTopic(name) for name in "abc"))
            ids = [result.topic_id for result in made]
            results = await controller.delete_topics(
                [
                    TopicToDelete(None, ids[0]),
                    TopicToDelete("b", ids[1]),
                    TopicToDelete(),
                    TopicToDelete("nope"),
                    TopicToDelete(None, b"x" * 16),
                    TopicToDelete("c"),
                    TopicToDelete(None, ids[2]),
                ]
            )
            assert [type(result.error) for result in results] == [
                type(None),
                InvalidRequest,
                InvalidRequest,
                UnknownTopicOrPartition,
                UnknownTopicId,
                InvalidRequest,
                InvalidRequest,
            ]
            assert results[0].name == "a"
            assert set(controller.state.topics) == {"b", "c"}

    asyncio.run(run())


def test_a_topic_named_twice_is_not_deleted_and_answered_once(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path) as controller:
            await create(controller, NewTopic("a"), NewTopic("b"))
            names = ["a", "a", "nope", "nope", "b"]
            results = await controller.delete_topics([TopicToDelete(name) for name in names])
            assert [(result.name, type(result.error)) for result in results] == [
                ("a", InvalidRequest),
                ("nope", InvalidRequest),
                ("b", type(None)),
            ]
            assert set(controller.state.topics) == {"a"}

    asyncio.run(run())


def test_topics_stay_where_deleting_is_switched_off(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path, settings=ControllerSettings(delete_topic_enable=False)) as controller:
            await create_one(controller, NewTopic("demo"))
            (result,) = await controller.delete_topics([TopicToDelete("demo")])
            assert type(result.error) is TopicDeletionDisabled
            assert "demo" in controller.state.topics

    asyncio.run(run())


def test_a_deletion_that_was_cut_short_is_finished_at_the_next_start(tmp_path: Path) -> None:
    async def run() -> None:
        host = RecordingHost()
        async with running(tmp_path, host) as controller:
            await create_one(controller, NewTopic("demo", 2, 1))
            host.broken.add(("demo", 1))
            await controller.delete_topics([TopicToDelete("demo")])
            assert "demo" not in controller.state.topics
            refused = await create_one(controller, NewTopic("demo"))
            assert type(refused.error) is TopicAlreadyExists
        host = RecordingHost()
        async with running(tmp_path, host) as controller:
            assert host.deleted == [("demo", 0), ("demo", 1)]
            assert not host.leads
            assert (await create_one(controller, NewTopic("demo"))).error is None
        host = RecordingHost()
        async with running(tmp_path, host):
            assert not host.deleted

    asyncio.run(run())


def test_a_partition_whose_log_cannot_be_had_is_offline_until_it_can(tmp_path: Path) -> None:
    async def run() -> None:
        host = RecordingHost()
        host.broken.add(("demo", 1))
        async with running(tmp_path, host) as controller:
            assert (await create_one(controller, NewTopic("demo", 2, 1))).error is None
            offline = controller.state.topics["demo"].partitions[1]
            assert (offline.leader, offline.leader_epoch, offline.isr) == (NO_LEADER, 1, [BROKER])
            assert controller.state.topics["demo"].partitions[0].leader == BROKER
        async with running(tmp_path) as controller:
            back = controller.state.topics["demo"].partitions[1]
            assert (back.leader, back.leader_epoch, back.partition_epoch) == (BROKER, 2, 2)

    asyncio.run(run())


def test_a_partition_whose_log_lacked_room_is_led_once_there_is_some(tmp_path: Path) -> None:
    async def run() -> None:
        host = RecordingHost()
        host.no_room = {("demo", 1), ("gone", 0)}
        async with running(tmp_path, host) as controller:
            controller.retry_seconds = 0.001
            await create(controller, NewTopic("demo", 2, 1), NewTopic("gone", 1, 1))
            assert controller.state.topics["demo"].partitions[1].leader == NO_LEADER
            assert sorted(host.leads) == [("demo", 0)]
            await controller.delete_topics([TopicToDelete("gone")])
            host.no_room.clear()
            async with asyncio.timeout(30):
                while host.states[-1].topics["demo"].partitions[1].leader != BROKER:
                    await asyncio.sleep(0.001)
            led = host.leads["demo", 1]
            assert (led.leader_epoch, led.partition_epoch) == (2, 2)
            assert ("gone", 0) not in host.leads
        async with running(tmp_path) as controller:
            assert controller.state.topics["demo"].partitions[1].leader_epoch == 2

    asyncio.run(run())


def test_a_log_that_cannot_be_removed_keeps_no_other_from_being_removed(tmp_path: Path) -> None:
    async def run() -> None:
        host = RecordingHost()
        async with running(tmp_path, host) as controller:
            await create(controller, NewTopic("stuck", 3, 1), NewTopic("free", 2, 1))
            host.broken.add(("stuck", 1))
            await controller.delete_topics([TopicToDelete("stuck"), TopicToDelete("free")])
            assert host.deleted == [("stuck", 0), ("stuck", 2), ("free", 0), ("free", 1)]
            assert host.syncs == 1, "for all topics of a request"
            assert (await create_one(controller, NewTopic("free"))).error is None
            assert type((await create_one(controller, NewTopic("stuck"))).error) is TopicAlreadyExists

    asyncio.run(run())


def test_nodes_stay_while_a_crash_could_bring_logs_back(tmp_path: Path) -> None:
    class Unsynced(RecordingHost):
        async def sync_deletions(self) -> None:
            raise KafkaStorageError("the disk is gone")

    async def run() -> None:
        async with running(tmp_path, Unsynced()) as controller:
            await create_one(controller, NewTopic("demo", 2, 1))
            (result,) = await controller.delete_topics([TopicToDelete("demo")])
            assert result.error is None
            assert type((await create_one(controller, NewTopic("demo"))).error) is TopicAlreadyExists
        host = RecordingHost()
        async with running(tmp_path, host):
            assert host.deleted == [("demo", 0), ("demo", 1)]

    asyncio.run(run())


def test_partitions_of_a_failed_folder_lose_their_leader(tmp_path: Path) -> None:
    async def run() -> None:
        host = RecordingHost()
        async with running(tmp_path, host) as controller:
            await create_one(controller, NewTopic("demo", 2, 1))
            await controller.partitions_offline([("demo", 0), ("demo", 9), ("nope", 0)])
            partitions = host.states[-1].topics["demo"].partitions
            assert [partitions[i].leader for i in (0, 1)] == [NO_LEADER, BROKER]

    asyncio.run(run())


def test_a_client_that_goes_away_does_not_stop_its_change(tmp_path: Path) -> None:
    async def run() -> None:
        host = RecordingHost()
        async with running(tmp_path, host) as controller:
            task = asyncio.create_task(controller.create_topics([NewTopic("demo")]))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert task.cancelled()
            await create_one(controller, NewTopic("later"))
            assert set(controller.state.topics) == {"demo", "later"}
            assert set(host.leads) == {("demo", 0), ("later", 0)}

    asyncio.run(run())


def test_changes_made_at_once_come_one_after_the_other(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path) as controller:
            results = await asyncio.gather(*(create_one(controller, NewTopic("demo")) for _ in range(10)))
            assert sum(result.error is None for result in results) == 1
            assert sum(type(result.error) is TopicAlreadyExists for result in results) == 9

    asyncio.run(run())


def test_a_tree_that_cannot_be_written_fails_the_request_and_changes_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        host = RecordingHost()
        async with running(tmp_path, host) as controller:
            controller._store.tree.close()
            result = await create_one(controller, NewTopic("demo"))
            assert type(result.error) is KafkaStorageError
            assert not controller.state.topics
            assert not host.leads
            with pytest.raises(KafkaStorageError):
                await controller.allocate_producer_ids()

    asyncio.run(run())


def test_producer_ids_are_never_given_twice(tmp_path: Path) -> None:
    async def run() -> list[range]:
        async with running(tmp_path) as controller:
            return [await controller.allocate_producer_ids() for _ in range(2)]

    blocks = asyncio.run(run()) + asyncio.run(run())
    assert blocks == [range(1000), range(1000, 2000), range(2000, 3000), range(3000, 4000)]
