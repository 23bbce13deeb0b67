"""LeaderAndIsr and StopReplica: which epochs are accepted, and what becomes of the partition."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.controlled import (
    NO_ID,
    OTHER,
    OTHER_ID,
    TOPIC_ID,
    Controlled,
    leader_and_isr,
    stop_replica,
    topic_state,
)
from tests.cluster.world import SELF, HeldWorker, stored, want
from tests.storage.helpers import batch
from tidelog.cluster.replica_states import ROOM_SECONDS
from tidelog.cluster.topic_overrides import TopicOverrides
from tidelog.errors import (
    ErrorCode,
    KafkaError,
    NotLeaderOrFollower,
    StaleControllerEpoch,
    UnknownServerError,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from tidelog.metadata.async_tree import SessionExpired
from tidelog.storage.append import AppendOrigin
from tidelog.storage.disk import RealDisk

NONE = ErrorCode.NONE
STALE_CONTROLLER_EPOCH = ErrorCode.STALE_CONTROLLER_EPOCH
FENCED_LEADER_EPOCH = ErrorCode.FENCED_LEADER_EPOCH
OFFSETS = "__consumer_offsets"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Controlled]:
    made = Controlled(tmp_path / "log")
    yield made
    made.close()


# -- epochs


@pytest.mark.parametrize(
    ("leader_epoch", "partition_epoch", "code", "is_applied"),
    [
        (6, 0, NONE, True),  # a newer leader epoch counts, whatever the partition epoch is
        (6, 9, NONE, True),
        (5, 4, NONE, True),  # the same leader with other replicas in sync
        (5, 3, STALE_CONTROLLER_EPOCH, False),  # a repeated request
        (5, 2, STALE_CONTROLLER_EPOCH, False),
        (4, 9, STALE_CONTROLLER_EPOCH, False),
        (0, 0, STALE_CONTROLLER_EPOCH, False),
    ],
)
def test_a_state_is_applied_by_its_leader_epoch_then_by_its_partition_epoch(
    broker: Controlled, leader_epoch: int, partition_epoch: int, code: int, is_applied: bool
) -> None:
    assert broker.lead(leader_epoch=5, partition_epoch=3, replicas=(SELF, OTHER)) == NONE
    answer = broker.lead(
        leader_epoch=leader_epoch, partition_epoch=partition_epoch, replicas=(SELF, OTHER), isr=(SELF,)
    )
    partition = broker.hosted()
    assert answer == code
    assert partition.isr == ([SELF] if is_applied else [SELF, OTHER])
    expected = (leader_epoch, partition_epoch) if is_applied else (5, 3)
    assert (partition.leader_epoch, partition.partition_epoch) == expected
    assert partition.is_leader


@pytest.mark.parametrize("epoch", [2, 3, 4])
def test_requests_of_an_older_controller_are_refused_as_a_whole(broker: Controlled, epoch: int) -> None:
    broker.lead(controller_epoch=3)
    assert broker.states.controller_epoch == 3
    requests = (
        broker.states.leader_and_isr(leader_and_isr("u", controller_epoch=epoch)),
        broker.states.stop_replica(stop_replica("t", controller_epoch=epoch)),
    )
    for request in requests:
        if epoch < 3:
            with pytest.raises(StaleControllerEpoch, match="has epoch 2, the latest known is 3"):
                broker.run(request)  # type: ignore[arg-type]
        else:
            broker.run(request)  # type: ignore[arg-type]
    assert ("u" in broker.replicas.topics) is (epoch >= 3)
    assert ("t" in broker.replicas.topics) is (epoch < 3)
    assert broker.states.controller_epoch == max(epoch, 3)


@pytest.mark.parametrize(
    ("leader_epoch", "code"),
    [(-2, NONE), (-1, NONE), (6, NONE), (5, NONE), (4, FENCED_LEADER_EPOCH), (0, FENCED_LEADER_EPOCH)],
)
@pytest.mark.parametrize("delete", [False, True])
def test_a_replica_is_not_stopped_by_an_older_epoch(
    broker: Controlled, leader_epoch: int, code: int, delete: bool
) -> None:
    broker.lead(leader_epoch=5)
    log = Path(broker.hosted().leader_log().dir)
    assert broker.stop(leader_epoch=leader_epoch, delete=delete) == code
    partition = broker.replicas.find_partition("t", 0)
    if code:
        assert partition is not None
        assert partition.is_leader
    elif delete:
        assert partition is None
        assert broker.logs.get("t", 0) is None
    else:
        assert partition is not None
        assert not partition.is_leader
    assert log.is_dir() is (bool(code) or not delete)


# -- leading and following


def test_a_log_is_made_before_the_partition_is_led(broker: Controlled) -> None:
    assert broker.lead("new", 2) == NONE
    assert broker.hosted("new", 2).leader_log().topic_id == TOPIC_ID
    assert Path(broker.hosted("new", 2).leader_log().dir).is_dir()
    assert broker.replicas.topics_by_id[TOPIC_ID].name == "new"


def test_becoming_leader_again_with_the_same_epoch_changes_nothing(broker: Controlled) -> None:
    broker.lead(leader_epoch=5)
    partition = broker.hosted()
    assert broker.produce(partition).offset == 0
    epochs = partition.leader_log().end_offset_for_epoch(5)
    assert broker.lead(leader_epoch=5) == STALE_CONTROLLER_EPOCH
    assert broker.hosted() is partition
    assert broker.produce(partition).offset == 1
    assert partition.leader_log().end_offset_for_epoch(5) == (5, epochs[1] + 1)


def test_a_new_epoch_begins_at_the_log_end(broker: Controlled) -> None:
    broker.lead(leader_epoch=5)
    partition = broker.hosted()
    broker.produce(partition)
    broker.lead(leader_epoch=8)
    broker.produce(partition)
    assert partition.leader_log().end_offset_for_epoch(5) == (5, 1)
    assert partition.leader_log().end_offset_for_epoch(8) == (8, 2)


def test_followers_that_stay_keep_their_state_within_an_epoch(broker: Controlled) -> None:
    broker.lead(leader_epoch=5, replicas=(SELF, OTHER))
    partition = broker.hosted()
    partition.followers.replicas[OTHER].log_end_offset = 42
    broker.lead(leader_epoch=5, partition_epoch=1, replicas=(SELF, OTHER, 2))
    assert {broker_id: one.log_end_offset for broker_id, one in partition.followers.replicas.items()} == {
        OTHER: 42,
        2: -1,
    }
    broker.lead(leader_epoch=6, replicas=(SELF, OTHER))
    assert {broker_id: one.log_end_offset for broker_id, one in partition.followers.replicas.items()} == {
        OTHER: -1
    }


@pytest.mark.parametrize("leader", [OTHER, -1])
def test_a_partition_that_is_lost_answers_what_waits_for_it(broker: Controlled, leader: int) -> None:
    broker.lead(replicas=(SELF, OTHER))
    partition = broker.hosted()
    produced = broker.produce(partition)
    fetched = broker.fetch([want(offset=0)], max_wait_ms=60_000)
    deleted = broker.delete_records({("t", 0): 0}, timeout_ms=60_000)
    assert not produced.answered
    assert not fetched.answered
    assert broker.lead(leader=leader, leader_epoch=1, replicas=(SELF, OTHER)) == NONE
    assert isinstance(produced.error, NotLeaderOrFollower)
    assert isinstance(fetched.only.error, NotLeaderOrFollower)
    ((answer,),) = [list(found.values()) for found in deleted]
    assert isinstance(answer[1], NotLeaderOrFollower)
    assert isinstance(broker.produce(partition).error, NotLeaderOrFollower)
    assert partition.leader_id == leader
    assert len(stored(partition)) == 1  # the log stays, for the fetches from the new leader


def test_a_broker_that_is_no_replica_refuses_the_partition(broker: Controlled) -> None:
    code = broker.lead(replicas=(OTHER,), leader=OTHER)
    assert code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert broker.replicas.find_partition("t", 0) is None
    assert broker.logs.get("t", 0) is None


def test_coordinators_follow_the_partitions_of_their_topics(broker: Controlled) -> None:
    broker.lead(OFFSETS, 3, leader_epoch=1)
    broker.lead(OFFSETS, 3, leader_epoch=1)  # repeated: nothing to load
    broker.lead(OFFSETS, 3, leader_epoch=2)
    broker.lead(OFFSETS, 3, leader_epoch=3, leader=OTHER, replicas=(SELF, OTHER))
    broker.lead(OFFSETS, 4)
    broker.stop(OFFSETS, 4, delete=False)
    broker.lead("__transaction_state", 0)
    broker.stop("__transaction_state", 0)
    broker.lead("t")
    assert broker.offsets.events == [
        ("elected", 3, 1),
        ("elected", 3, 2),
        ("resigned", 3, -1),
        ("elected", 4, 0),
        ("resigned", 4, -1),
    ]
    assert broker.transactions.events == [("elected", 0, 0), ("resigned", 0, -1)]
    assert broker.replicas.topics[OFFSETS].is_internal


# -- appends at the worker


@pytest.fixture
def held(tmp_path: Path) -> Iterator[tuple[Controlled, HeldWorker]]:
    worker = HeldWorker()
    made = Controlled(tmp_path / "log", worker=worker)
    yield made, worker
    worker.run_all()
    made.close()


def lead_while(broker: Controlled, worker: HeldWorker, steps: int, **state: object) -> bool:
    """Apply a LeaderAndIsr during an append; returns whether it was applied before the worker went on."""

    async def work() -> bool:
        task = asyncio.ensure_future(broker.states.leader_and_isr(leader_and_isr(**state)))  # type: ignore[arg-type]
        for _ in range(20):
            broker.advance()
            await asyncio.sleep(0)
        was_early = task.done()
        for _ in range(steps):
            worker.run_one()
        worker.run_all()
        await task
        return was_early

    return asyncio.run(work())


@pytest.mark.parametrize("leader", [SELF, OTHER])
def test_an_append_at_the_worker_is_written_under_its_own_epoch(
    held: tuple[Controlled, HeldWorker], leader: int
) -> None:
    broker, worker = held
    broker.lead(leader_epoch=1, replicas=(SELF, OTHER), isr=(SELF,))
    partition = broker.hosted()
    first = broker.produce(partition, batch(3), acks=1, heavy=True)
    second = broker.produce(partition, batch(2), acks=1, heavy=True)
    worker.run_one()  # both are checked, and the first is at the worker
    worker.run_one()
    was_early = lead_while(
        broker, worker, 2, leader=leader, leader_epoch=2, replicas=(SELF, OTHER), isr=(SELF,)
    )
    assert not was_early
    assert first.offset == 0
    assert isinstance(second.error, NotLeaderOrFollower)
    assert [(header.base_offset, header.partition_leader_epoch) for header, _ in stored(partition)] == [
        (0, 1)
    ]
    if leader == SELF:
        assert broker.produce(partition, acks=1).offset == 3
        assert partition.leader_log().end_offset_for_epoch(1) == (1, 3)
        assert stored(partition)[-1][0].partition_leader_epoch == 2


def test_a_batch_that_is_checked_when_the_epoch_changes_is_not_written(
    held: tuple[Controlled, HeldWorker],
) -> None:
    broker, worker = held
    broker.lead(leader_epoch=1)
    partition = broker.hosted()
    produced = broker.produce(partition, batch(3), heavy=True, origin=AppendOrigin.COORDINATOR)
    assert lead_while(broker, worker, 0, leader_epoch=2)
    assert isinstance(produced.error, NotLeaderOrFollower)
    assert stored(partition) == []


def test_the_batches_of_a_turn_are_written_under_their_own_epoch(broker: Controlled) -> None:
    broker.lead(leader_epoch=1)
    partition = broker.hosted()
    now_ms = broker.scheduler.clock.ms()
    partition.append_in_turn(partition.check_now(memoryview(batch()), now_ms, True))

    async def work() -> None:
        task = asyncio.ensure_future(broker.states.leader_and_isr(leader_and_isr(leader_epoch=2)))
        for _ in range(5):
            broker.advance()
            await asyncio.sleep(0)
        assert partition.leader_epoch == 1
        assert partition.write_turn(now_ms) == [0]
        partition.turn_written()
        assert partition.leader_epoch == 2
        await task

    asyncio.run(work())
    assert [header.partition_leader_epoch for header, _ in stored(partition)] == [1]


def test_a_held_partition_changes_its_epoch_at_once(broker: Controlled) -> None:
    broker.lead(leader_epoch=1)
    partition = broker.hosted()
    partition.appends.hold(lambda: None)
    queued = broker.produce(partition, acks=1)
    assert broker.lead(leader_epoch=2) == NONE
    partition.appends.release()
    assert isinstance(queued.error, NotLeaderOrFollower)
    assert broker.produce(partition).offset == 0


# -- topic ids


@pytest.mark.parametrize(
    ("first", "second", "code"),
    [
        (TOPIC_ID, TOPIC_ID, NONE),
        (TOPIC_ID, OTHER_ID, ErrorCode.INCONSISTENT_TOPIC_ID),
        (TOPIC_ID, NO_ID, NONE),
        (NO_ID, TOPIC_ID, NONE),
        (NO_ID, NO_ID, NONE),
    ],
)
@pytest.mark.parametrize("restarts", [False, True])
def test_a_log_of_another_topic_id_is_refused(
    tmp_path: Path, first: bytes, second: bytes, code: int, restarts: bool
) -> None:
    broker = Controlled(tmp_path / "log")
    broker.lead(topic_id=first)
    if restarts:
        broker.close()
        broker = Controlled(tmp_path / "log")
    assert broker.lead(topic_id=second, leader_epoch=1, is_new=False) == code
    if code:
        assert broker.stop() == NONE
        assert broker.lead(topic_id=second) == NONE
        assert broker.hosted().leader_log().topic_id == second
        assert list(broker.replicas.topics_by_id) == [second]
    else:
        known = {first, second} - {NO_ID}
        assert set(broker.replicas.topics_by_id) == ({second} - {NO_ID} if restarts else known)
        assert broker.hosted().leader_log().topic_id == (next(iter(known)) if known else None)
    broker.close()


def test_a_topic_with_partitions_of_another_id_is_refused(broker: Controlled) -> None:
    broker.lead("t", 0)
    assert broker.lead("t", 1, topic_id=OTHER_ID) == ErrorCode.INCONSISTENT_TOPIC_ID
    assert broker.replicas.find_partition("t", 1) is None


# -- log folders


def test_a_partition_of_an_offline_folder_is_a_storage_error(broker: Controlled) -> None:
    broker.lead(leader_epoch=1)
    log_dir = broker.logs.log_dir_of(("t", 0))
    assert log_dir is not None
    broker.logs.log_dirs.failed(log_dir, OSError(5, "broken"))
    for epoch in (1, 2):
        assert broker.lead(leader_epoch=epoch, is_new=False) == ErrorCode.KAFKA_STORAGE_ERROR
    assert broker.stop() == ErrorCode.KAFKA_STORAGE_ERROR
    assert broker.lead("u", is_new=True) == ErrorCode.KAFKA_STORAGE_ERROR


def test_a_replica_that_may_be_in_an_offline_folder_is_not_deleted(broker: Controlled) -> None:
    """Its log comes back with the folder: a topic that was forgotten by then would leave it there."""
    broker.logs.log_dirs.failed(next(iter(broker.logs.log_dirs)), OSError(5, "broken"))
    assert broker.lead(leader_epoch=1, is_new=False) == ErrorCode.KAFKA_STORAGE_ERROR
    assert broker.stop() == ErrorCode.KAFKA_STORAGE_ERROR
    assert broker.stop(leader_epoch=1, delete=False) == ErrorCode.KAFKA_STORAGE_ERROR
    assert broker.replicas.find_partition("t", 0) is not None
    assert broker.stop("unknown") == NONE


class FullDisk(RealDisk):
    """A disk without room for another folder while the test says so."""

    is_full = False

    def make_dir(self, path: str) -> None:
        if self.is_full:
            raise OSError(28, "no space")
        super().make_dir(path)


def test_the_controller_is_asked_again_while_logs_lack_room(tmp_path: Path) -> None:
    disk = FullDisk()
    broker = Controlled(tmp_path / "log", disk=disk)
    asked: list[str] = []
    broker.states.on_lacking_room = lambda: asked.append("again")
    disk.is_full = True
    assert broker.lead() == ErrorCode.KAFKA_STORAGE_ERROR
    broker.advance(3 * ROOM_SECONDS)
    assert len(asked) == 3
    disk.is_full = False
    assert broker.lead(is_new=False) == NONE
    broker.advance(3 * ROOM_SECONDS)
    assert len(asked) == 3
    broker.close()


class UnsyncedDisk(RealDisk):
    """A disk that cannot sync a folder once the test says so."""

    fails = False

    def fsync_dir(self, path: str) -> None:
        if self.fails:
            raise OSError(28, "no space")
        super().fsync_dir(path)


def test_a_deletion_that_cannot_be_synced_is_no_success(tmp_path: Path) -> None:
    disk = UnsyncedDisk()
    broker = Controlled(tmp_path / "log", disk=disk)
    broker.lead()
    disk.fails = True
    assert broker.stop() == ErrorCode.KAFKA_STORAGE_ERROR
    disk.fails = False
    broker.close()


def test_a_log_is_removed_that_no_partition_uses(tmp_path: Path) -> None:
    """The topic was deleted while the broker was down."""
    broker = Controlled(tmp_path / "log")
    broker.lead()
    broker.close()
    broker = Controlled(tmp_path / "log")
    assert broker.logs.get("t", 0) is not None
    assert broker.stop() == NONE
    assert broker.logs.get("t", 0) is None
    assert broker.stop() == NONE  # repeated
    broker.close()


# -- settings


def test_a_log_is_made_with_the_settings_of_its_topic(broker: Controlled) -> None:
    broker.tree["t"] = {"segment_bytes": "4711"}
    broker.lead("t", 0)
    broker.lead("t", 1)
    assert broker.hosted("t", 1).leader_log().config.segment_bytes == 4711
    assert broker.reads == [["t"]]
    broker.states.topic_config_changed("t", {"segment_bytes": "4712"})
    broker.states.topic_config_changed("elsewhere", {"segment_bytes": "1"})
    assert broker.hosted("t", 0).leader_log().config.segment_bytes == 4712
    broker.lead("t", 2)
    assert broker.hosted("t", 2).leader_log().config.segment_bytes == 4712
    for index in range(3):
        broker.stop("t", index)
    assert broker.overrides.loaded() == []
    broker.lead("t", 0)
    assert broker.hosted("t", 0).leader_log().config.segment_bytes == 4711


def test_a_change_of_settings_while_they_are_read_is_not_lost(broker: Controlled) -> None:
    async def read(topics: object) -> dict[str, dict[str, str]]:
        broker.states.topic_config_changed("t", {"segment_bytes": "2222"})
        return {"t": {"segment_bytes": "1111"}}

    broker.overrides._read = read
    broker.lead()
    assert broker.hosted().leader_log().config.segment_bytes == 2222


def test_no_log_is_made_without_the_settings_of_its_topic(broker: Controlled) -> None:
    async def read(topics: object) -> dict[str, dict[str, str]]:
        raise SessionExpired("/config/topics/t")

    broker.states._overrides = TopicOverrides(read)
    with pytest.raises(UnknownServerError, match="the settings of new logs cannot be read"):
        broker.lead()
    assert broker.logs.get("t", 0) is None


# -- partitions of other brokers


@pytest.mark.parametrize("by_id", [False, True])
def test_a_partition_of_another_broker_is_told_from_an_unknown_one(broker: Controlled, by_id: bool) -> None:
    name: str | bytes = TOPIC_ID if by_id else "t"
    unknown = UnknownTopicId if by_id else UnknownTopicOrPartition
    with pytest.raises(unknown):
        broker.replicas.partition(name, 0)
    broker.update(topic_state("t", leaders={0: OTHER, 1: SELF}))
    with pytest.raises(NotLeaderOrFollower):
        broker.replicas.partition(name, 0)
    with pytest.raises(NotLeaderOrFollower):
        broker.replicas.hosted_topic(name)
    with pytest.raises(UnknownTopicOrPartition):
        broker.replicas.partition(name, 2)
    broker.lead("t", 1)
    assert broker.replicas.partition(name, 1).is_leader
    with pytest.raises(NotLeaderOrFollower):
        broker.replicas.partition(name, 0)


def test_a_fetch_of_a_partition_elsewhere_does_not_wait(broker: Controlled) -> None:
    broker.update(topic_state("t", leaders={0: OTHER}))
    error = broker.fetch([want(offset=0)], max_wait_ms=60_000).only.error
    assert isinstance(error, KafkaError)
    assert error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
