"""Delete records: the log start moves at once, the answer waits for the replicas."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.replicated import OTHER, Replicated
from tests.cluster.world import FOLLOWER, SELF, World
from tests.storage.helpers import batch
from tidelog.errors import NotLeaderOrFollower, OffsetOutOfRange, RequestTimedOut, UnknownTopicOrPartition

T0 = ("t", 0)
BOTH = (SELF, FOLLOWER)


def test_the_only_replica_answers_at_once_with_its_log_start(tmp_path: Path) -> None:
    world = World(tmp_path)
    partition = world.partition()
    world.produce(partition, batch(10))
    assert world.delete_records({T0: 4}) == [{T0: (4, None)}]
    assert partition.log is not None
    assert partition.log.log_start_offset == 4
    assert world.delete_records({T0: 2}) == [{T0: (4, None)}], "the start never moves back"
    assert world.delete_records({T0: -1}) == [{T0: (10, None)}], "-1 is the high watermark"


def test_the_answer_waits_until_the_follower_has_deleted_too(tmp_path: Path) -> None:
    world = World(tmp_path)
    partition = world.partition(replicas=BOTH)
    world.produce(partition, batch(10), acks=1)
    world.follower_has(partition, 10)
    answers = world.delete_records({T0: 5})
    assert answers == []
    partition.followers.replicas[FOLLOWER].log_start_offset = 5
    world.replicas.delete_records_purgatory.check(T0)
    assert answers == [{T0: (5, None)}]


def test_fetches_of_followers_on_live_brokers_complete_the_wait(tmp_path: Path) -> None:
    world = Replicated(tmp_path)
    partition = world.lead()
    world.produce(partition, batch(10), acks=1)
    for follower in (FOLLOWER, OTHER):
        world.follow(10, replica_id=follower, fetcher_log_start_offset=0)
    answers = world.delete_records({T0: 5})
    world.follow(10, fetcher_log_start_offset=5)
    assert answers == []
    world.follow(10, replica_id=OTHER, fetcher_log_start_offset=7)
    assert answers == [{T0: (5, None)}]
    world.alive(SELF, FOLLOWER)
    world.follow(10, fetcher_log_start_offset=6)
    assert world.delete_records({T0: 6}) == [{T0: (6, None)}], "broker 2 is gone: nobody waits for it"
    partition.followers.replicas[OTHER].log_start_offset = 0
    assert world.delete_records({T0: 6}) == [{T0: (6, None)}]


def test_a_wait_that_is_too_long_is_a_time_out(tmp_path: Path) -> None:
    world = World(tmp_path)
    partition = world.partition(replicas=BOTH)
    world.produce(partition, batch(10), acks=1)
    world.follower_has(partition, 10)
    answers = world.delete_records({T0: 5}, timeout_ms=100)
    world.advance(0.2)
    ((low_watermark, error),) = answers[0].values()
    assert low_watermark == -1
    assert isinstance(error, RequestTimedOut)


def test_what_is_not_committed_cannot_be_deleted(tmp_path: Path) -> None:
    world = World(tmp_path)
    partition = world.partition(replicas=BOTH)
    world.produce(partition, batch(10), acks=1)
    world.follower_has(partition, 3)
    for offset in (4, -2):
        ((_, error),) = world.delete_records({T0: offset})[0].values()
        assert isinstance(error, OffsetOutOfRange)


def test_every_partition_gets_an_answer_of_its_own(tmp_path: Path) -> None:
    world = World(tmp_path)
    partition = world.partition(replicas=BOTH)
    other = world.partition("other", replicas=BOTH)
    for each in (partition, other):
        world.produce(each, batch(10), acks=1)
        world.follower_has(each, 10)
    answers = world.delete_records({T0: 5, ("other", 0): 5, ("missing", 0): 0})
    assert answers == []
    world.replicas.delete_partition("other", 0)
    assert answers == []
    partition.followers.replicas[FOLLOWER].log_start_offset = 6
    world.replicas.delete_records_purgatory.check(T0)
    (answer,) = answers
    assert answer[T0] == (5, None)
    assert isinstance(answer["other", 0][1], NotLeaderOrFollower)
    assert isinstance(answer["missing", 0][1], UnknownTopicOrPartition)


def test_a_stop_answers_everything_that_was_asked_for(tmp_path: Path) -> None:
    world = World(tmp_path)
    partition = world.partition(replicas=BOTH)
    world.produce(partition, batch(10), acks=1)
    world.follower_has(partition, 10)
    answers = world.delete_records({T0: 5})
    world.replicas.end_waits()
    ((_, error),) = answers[0].values()
    assert isinstance(error, NotLeaderOrFollower)
