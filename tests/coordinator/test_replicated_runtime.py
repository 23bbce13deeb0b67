"""A coordinator on a partition with two replicas: written is not committed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.world import FOLLOWER, SELF, HeldWorker
from tests.coordinator.test_runtime import TOPIC, Stage
from tidelog.cluster.partition import Partition
from tidelog.errors import CoordinatorLoadInProgress, CoordinatorNotAvailable, KafkaError, NotCoordinator

REPLICAS = (SELF, FOLLOWER)


def lead(stage: Stage, **settings: object) -> Partition:
    return stage.lead(replicas=REPLICAS, **settings)


def waits(stage: Stage) -> list[KafkaError | None]:
    answers: list[KafkaError | None] = []
    stage.runtime.when_committed(0, answers.append)
    return answers


def test_readers_see_a_record_when_the_high_watermark_has_passed_it(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "data")
    partition = lead(stage)
    stage.append((b"a", b"1"))
    stage.append((b"a", b"2"), (b"b", b"1"))
    stage.append((b"a", None))
    shard = stage.runtime.committed(0)
    assert shard.values == {b"b": b"1"}
    assert shard.committed() == {}
    stage.world.follower_has(partition, 1)
    assert shard.committed() == {b"a": b"1"}
    stage.world.follower_has(partition, 3)
    assert shard.committed() == {b"a": b"2", b"b": b"1"}
    stage.world.follower_has(partition, 4)
    assert shard.committed() == shard.values == {b"b": b"1"}
    assert shard.journal.is_empty
    assert stage.answers == [None] * 3


def test_a_marker_commits_for_readers_when_it_is_committed(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "data")
    partition = lead(stage, transaction_verification_enable=False)
    stage.append((b"a", b"1"), producer_id=7)
    stage.world.follower_has(partition, 1)
    stage.end(7, commit=True)
    shard = stage.runtime.shard(0)
    assert shard.values == {b"a": b"1"}
    assert shard.committed() == {}
    stage.world.follower_has(partition, 2)
    assert shard.committed() == {b"a": b"1"}


def test_with_one_replica_the_journal_stays_empty(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "data")
    stage.lead()
    stage.append((b"a", b"1"))
    assert stage.runtime.shard(0).journal.is_empty
    assert waits(stage) == [None]


def test_a_flush_that_is_under_way_holds_readers_back_too(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "data")
    stage.lead(flush_messages=1)
    stage.append((b"a", b"1"))
    shard = stage.runtime.shard(0)
    assert stage.answers == []
    assert shard.values == {b"a": b"1"}
    assert shard.committed() == {}
    stage.world.advance()
    assert stage.answers == [None]
    assert shard.committed() == {b"a": b"1"}


def test_nothing_to_append_waits_for_what_was_decided_before(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "data")
    partition = lead(stage)
    stage.append((b"a", b"1"))
    stage.append()
    assert stage.answers == []
    stage.world.follower_has(partition, 1)
    assert stage.answers == [None, None]
    stage.append()
    assert stage.answers == [None] * 3


def test_a_wait_for_the_commit_ends_in_time(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "data")
    lead(stage)
    stage.append((b"a", b"1"))
    answers = waits(stage)
    stage.world.advance(1.1)
    assert [type(error) for error in answers] == [CoordinatorNotAvailable]


def test_what_is_in_flight_fails_once_when_the_partition_leaves(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "data")
    partition = lead(stage)
    stage.append((b"a", b"1"))
    answers = waits(stage)
    stage.runtime.resigned(0)
    assert [type(error) for error in (*stage.answers, *answers)] == [NotCoordinator] * 2
    # The followers have it later: nobody is answered again.
    stage.world.follower_has(partition, 1)
    stage.world.advance(2.0)
    assert len(stage.answers) == len(answers) == 1


def test_an_append_at_the_worker_fails_when_the_partition_leaves(tmp_path: Path) -> None:
    worker = HeldWorker()
    stage = Stage(tmp_path / "data", worker=worker)
    partition = lead(stage)
    stage.append((b"a", b"x" * 70_000))
    shard = stage.runtime.shard(0)
    stage.runtime.resigned(0)
    assert [type(error) for error in stage.answers] == [NotCoordinator]
    worker.run_all()
    stage.world.follower_has(partition, 1)
    assert len(stage.answers) == 1
    assert shard.values == {}


def test_an_append_of_an_earlier_epoch_that_is_written_late_is_loaded(tmp_path: Path) -> None:
    """Partitions fail such appends; if one gets through, the shard has what the log has."""
    worker = HeldWorker()
    stage = Stage(tmp_path / "data", worker=worker)
    partition = lead(stage)
    stage.append((b"a", b"x" * 70_000))
    stage.runtime.resigned(0)
    stage.runtime.elected(partition)
    stage.world.advance(1.0)
    worker.run_all()
    stage.world.advance(1.0)
    assert list(stage.runtime.shard(0).values) == [b"a"]


def test_a_loaded_shard_knows_what_is_not_committed(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "data")
    partition = lead(stage)
    stage.append((b"a", b"1"))
    stage.world.follower_has(partition, 1)
    stage.append((b"a", b"2"))
    loaded = stage.loaded_anew(partition)
    assert loaded.values == {b"a": b"2"}
    assert loaded.committed() == {b"a": b"1"}
    stage.world.follower_has(partition, 2)
    assert loaded.committed() == {b"a": b"2"}


def test_readers_wait_until_everything_that_was_loaded_is_committed(tmp_path: Path) -> None:
    """The leader before may have acknowledged records above the high watermark of the new one."""
    stage = Stage(tmp_path / "data")
    partition = lead(stage)
    stage.append((b"a", b"1"))
    stage.append((b"a", b"2"))
    stage.world.follower_has(partition, 1)
    runtime = stage.new_runtime()
    runtime.elected(partition)
    stage.world.advance()
    assert runtime.shard(0).values == {b"a": b"2"}
    with pytest.raises(CoordinatorLoadInProgress, match="up to offset 2 are loaded, and those up to 1"):
        runtime.committed(0)
    stage.world.follower_has(partition, 2)
    assert runtime.committed(0).committed() == {b"a": b"2"}
    stage.append((b"a", b"3"))
    assert runtime.committed(0).committed() == {b"a": b"2"}


def test_a_new_epoch_forgets_what_was_in_flight(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "data")
    lead(stage)
    stage.append((b"a", b"1"))
    before = stage.runtime.shard(0)
    partition = stage.world.partition(TOPIC, replicas=REPLICAS, leader_epoch=1)
    stage.runtime.elected(partition)
    assert [type(error) for error in stage.answers] == [NotCoordinator]
    stage.world.advance()
    after = stage.runtime.shard(0)
    assert before.is_unloaded
    assert after is not before
    assert after.values == {b"a": b"1"}
    assert after.committed() == {}


def test_appends_are_written_and_committed_at_once_only_with_one_replica(tmp_path: Path) -> None:
    single, replicated = Stage(tmp_path / "single"), Stage(tmp_path / "replicated")
    single.lead()
    lead(replicated)
    assert single.runtime.commits_now(0)
    assert not replicated.runtime.commits_now(0)


@pytest.mark.parametrize("partition", [0, 3])
def test_a_partition_is_led_here_from_its_election_on(tmp_path: Path, partition: int) -> None:
    stage = Stage(tmp_path / "data")
    assert not stage.runtime.is_led_here(partition)
    stage.lead()
    assert stage.runtime.is_led_here(partition) is (partition == 0)
