"""The ground of the coordinators: what is appended is what is replayed, and what is loaded is the same."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.cluster.world import SELF, FailingDisk, HeldWorker, World
from tests.support.simdisk import SimulatedDisk
from tidelog.cluster.metadata_cache import MetadataCache
from tidelog.cluster.partition import Partition
from tidelog.coordinator.journal import CommittedValues, Journal
from tidelog.coordinator.runtime import LOADS_AT_ONCE, CoordinatorRuntime, NewRecord
from tidelog.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    KafkaError,
    NotCoordinator,
    UnknownServerError,
)
from tidelog.metadata.state import ClusterState, PartitionState, TopicState
from tidelog.storage.log import Log

TOPIC = "__state"


class Pairs:
    """A shard that keeps the last value of each key, transactions included."""

    def __init__(self, partition: int, epoch: int) -> None:
        self.partition, self.epoch = partition, epoch
        self.journal = Journal()
        self.readable: CommittedValues[bytes, bytes | None] = CommittedValues(self.journal)
        self.values: dict[bytes, bytes] = {}
        self.open: dict[int, list[tuple[bytes, bytes | None]]] = {}
        self.is_loaded = self.is_unloaded = False
        self.offsets: list[int] = []

    def replay(
        self,
        key: bytes,
        value: bytes | None,
        *,
        offset: int,
        timestamp: int,
        producer_id: int,
        producer_epoch: int,
    ) -> None:
        self.offsets.append(offset)
        if producer_id >= 0:
            self.open.setdefault(producer_id, []).append((key, value))
        else:
            self._take(key, value)

    def end_transaction(self, producer_id: int, producer_epoch: int, *, commit: bool) -> None:
        for key, value in self.open.pop(producer_id, ()):
            if commit:
                self._take(key, value)

    def _take(self, key: bytes, value: bytes | None) -> None:
        if self.journal.end:
            self.readable.note(key, self.values.get(key))
        if value is None:
            self.values.pop(key, None)
        else:
            self.values[key] = value

    def committed(self) -> dict[bytes, bytes]:
        """What readers see."""
        self.journal.settle()
        found = {key: self.readable.get(key, value) for key, value in self.values.items()}
        found |= dict(self.readable.items())
        return {key: value for key, value in found.items() if value is not None}

    def loaded(self) -> None:
        self.is_loaded = True

    def unload(self) -> None:
        self.is_unloaded = True


class Stage:
    """A world with one partition of an internal topic and the runtime over it."""

    def __init__(self, folder: Path, **world: object) -> None:
        self.world = World(folder, **world)  # type: ignore[arg-type]
        self.metadata = MetadataCache("cluster")
        self.runtime = self.new_runtime()
        self.answers: list[KafkaError | None] = []

    def new_runtime(self, load_buffer_size: int = 1 << 20) -> CoordinatorRuntime[Pairs]:
        return CoordinatorRuntime(
            TOPIC,
            self.world.replicas,
            self.metadata,
            self.world.scheduler,
            Pairs,
            append_timeout_ms=lambda: 1000,
            load_buffer_size=load_buffer_size,
        )

    def lead(self, **settings: object) -> Partition:
        partition = self.world.partition(TOPIC, **settings)  # type: ignore[arg-type]
        state = PartitionState([SELF], SELF, 0, [SELF])
        self.metadata.update(
            ClusterState("cluster", topics={TOPIC: TopicState(TOPIC, b"i" * 16, {0: state})})
        )
        self.runtime.elected(partition)
        self.world.advance()
        return partition

    def append(self, *pairs: tuple[bytes, bytes | None], producer_id: int = -1) -> None:
        records = [NewRecord(*pair) for pair in pairs]
        self.runtime.append(0, records, self.answers.append, producer_id=producer_id, producer_epoch=0)

    def end(self, producer_id: int, *, commit: bool) -> None:
        self.runtime.append_marker(
            0,
            self.answers.append,
            producer_id=producer_id,
            producer_epoch=0,
            coordinator_epoch=0,
            commit=commit,
        )

    def loaded_anew(self, partition: Partition, load_buffer_size: int = 1 << 20) -> Pairs:
        """What a coordinator that starts now has of the partition."""
        runtime = self.new_runtime(load_buffer_size)
        runtime.elected(partition)
        self.world.advance(1.0)
        return runtime.shard(0)


def test_a_key_without_the_topic_has_no_coordinator(tmp_path: Path) -> None:
    with pytest.raises(NotCoordinator):
        Stage(tmp_path / "data").runtime.shard_for("group")


def test_a_partition_that_is_not_led_here_is_refused(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "data")
    with pytest.raises(NotCoordinator):
        stage.runtime.shard(0)
    stage.append((b"k", b"v"))
    assert isinstance(stage.answers[0], NotCoordinator)


def test_what_is_appended_is_replayed_and_then_answered(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "data")
    stage.lead()
    stage.append((b"a", b"1"), (b"b", b"2"))
    stage.append((b"a", None))
    assert stage.answers == [None, None]
    shard = stage.runtime.shard_for("anything")
    assert shard.values == {b"b": b"2"}
    assert shard.offsets == [0, 1, 2]


def test_nothing_to_append_is_answered_at_once(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "data")
    partition = stage.lead()
    stage.append()
    assert stage.answers == [None]
    assert partition.leader_log().log_end_offset == 0


@pytest.mark.parametrize("buffer_size", [1, 200, 1 << 20])
def test_what_is_loaded_is_what_was_live(tmp_path: Path, buffer_size: int) -> None:
    stage = Stage(tmp_path / "data")
    partition = stage.lead(segment_bytes=400)
    for number in range(40):
        stage.append(
            (b"%d" % (number % 7), b"%d" % number), producer_id=-1 if number % 3 else 10 + number % 2
        )
        if number % 11 == 10:
            stage.end(10 + number % 2, commit=number % 2 == 0)
    live = stage.runtime.shard(0)
    loaded = stage.loaded_anew(partition, buffer_size)
    assert loaded.is_loaded
    assert loaded.values == live.values
    assert loaded.open == live.open
    assert loaded.offsets == live.offsets


def test_while_it_is_loading_everybody_is_told_so(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "data")
    partition = stage.lead()
    stage.append((b"a", b"1"))
    runtime = stage.new_runtime()
    runtime.elected(partition)
    assert runtime.is_loading
    with pytest.raises(CoordinatorLoadInProgress):
        runtime.shard(0)
    refused: list[KafkaError] = []
    runtime.run(0, lambda shard: None, refused.append)
    assert isinstance(refused[0], CoordinatorLoadInProgress)
    stage.world.advance()
    assert not runtime.is_loading
    assert runtime.shard(0).values == {b"a": b"1"}


def test_the_answer_waits_for_the_replicas_the_state_does_not(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "data")
    partition = stage.lead(replicas=(0, 1))
    stage.append((b"a", b"1"))
    assert stage.runtime.shard(0).values == {b"a": b"1"}
    assert stage.answers == []
    stage.world.follower_has(partition, 1)
    assert stage.answers == [None]


def test_replicas_that_do_not_follow_in_time_make_the_coordinator_unavailable(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "data")
    stage.lead(replicas=(0, 1))
    stage.append((b"a", b"1"))
    stage.world.advance(1.1)
    assert isinstance(stage.answers[0], CoordinatorNotAvailable)


def test_a_disk_that_refuses_leaves_the_state_as_it_was(tmp_path: Path) -> None:
    disk = FailingDisk()
    stage = Stage(tmp_path / "data", disk=disk)
    stage.lead()
    stage.append((b"a", b"1"))
    disk.write_errors.append(errno.ENOSPC)
    stage.append((b"a", b"2"))
    assert isinstance(stage.answers[1], NotCoordinator)
    assert stage.runtime.shard(0).values == {b"a": b"1"}


def test_a_record_that_is_too_large_is_nobodys_fault_but_ours(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "data")
    stage.lead(max_message_bytes=500)
    stage.append((b"a", b"x" * 1000))
    stage.world.advance()
    assert isinstance(stage.answers[0], UnknownServerError)
    assert stage.runtime.shard(0).values == {}


def test_a_decision_waits_for_the_append_before_it(tmp_path: Path) -> None:
    worker = HeldWorker()
    stage = Stage(tmp_path / "data", worker=worker)
    stage.lead()
    stage.append((b"a", b"x" * 70_000))
    seen: list[dict[bytes, bytes]] = []
    stage.runtime.run(0, lambda shard: seen.append(dict(shard.values)), lambda error: None)
    assert seen == []
    worker.run_all()
    assert [list(values) for values in seen] == [[b"a"]]


def test_a_decision_that_appends_goes_before_the_next(tmp_path: Path) -> None:
    worker = HeldWorker()
    stage = Stage(tmp_path / "data", worker=worker)
    stage.lead()
    stage.append((b"a", b"x" * 70_000))

    def count(shard: Pairs) -> None:
        before = int(shard.values.get(b"n", b"0"))
        stage.append((b"n", b"%d" % (before + 1)))

    for _ in range(5):
        stage.runtime.run(0, count, lambda error: None)
    worker.run_all()
    assert stage.runtime.shard(0).values[b"n"] == b"5"


def test_whoever_waits_is_told_when_the_partition_leaves(tmp_path: Path) -> None:
    worker = HeldWorker()
    stage = Stage(tmp_path / "data", worker=worker)
    stage.lead()
    shard = stage.runtime.shard(0)
    stage.append((b"a", b"x" * 70_000))
    refused: list[KafkaError] = []
    stage.runtime.run(0, lambda _: pytest.fail("ran on a shard that left"), refused.append)
    stage.runtime.resigned(0)
    assert isinstance(refused[0], NotCoordinator)
    assert shard.is_unloaded
    worker.run_all()
    assert shard.values == {}


def test_a_new_epoch_loads_the_partition_again(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "data")
    partition = stage.lead()
    stage.append((b"a", b"1"))
    before = stage.runtime.shard(0)
    stage.runtime.elected(partition)
    assert stage.runtime.shard(0) is before
    partition = stage.world.partition(TOPIC, leader_epoch=1)
    stage.runtime.elected(partition)
    stage.world.advance()
    assert before.is_unloaded
    assert stage.runtime.shard(0).values == {b"a": b"1"}
    assert stage.runtime.leader_epoch(0) == 1


def test_few_partitions_are_loaded_at_a_time_and_all_of_them_in_the_end(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "data")
    partitions = [stage.world.partition(TOPIC, number) for number in range(3 * LOADS_AT_ONCE)]
    stage.metadata.update(
        ClusterState(
            "cluster",
            topics={
                TOPIC: TopicState(
                    TOPIC,
                    b"i" * 16,
                    {each.index: PartitionState([SELF], SELF, 0, [SELF]) for each in partitions},
                )
            },
        )
    )
    for partition in partitions:
        stage.runtime.elected(partition)
        stage.world.advance()
        if partition.index % 2:  # every other one has nothing to load
            stage.runtime.append(
                partition.index, [NewRecord(b"k", b"%d" % partition.index)], stage.answers.append
            )
    runtime = stage.new_runtime()
    for partition in partitions:
        runtime.elected(partition)
    loaded = {shard.partition for shard in runtime.shards()}
    assert loaded == {0, 2, 4, 6}  # the four after them are being loaded
    runtime.resigned(3)
    runtime.resigned(len(partitions) - 1)
    stage.world.advance(1.0)
    assert not runtime.is_loading
    values = {shard.partition: shard.values for shard in runtime.shards()}
    assert values == {
        number: {b"k": b"%d" % number} if number % 2 else {}
        for number in range(len(partitions))
        if number not in (3, len(partitions) - 1)
    }


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOSPC])
@pytest.mark.parametrize("suffix", [".txnindex", ".log", ".index", ".snapshot"])
def test_a_disk_that_refuses_holds_no_request_up(tmp_path: Path, suffix: str, number: int) -> None:
    """Every append is answered, and whoever asks after it finds the shard as the log has it."""
    disk = SimulatedDisk()
    stage = Stage(tmp_path / "data", disk=disk)
    partition = stage.lead(segment_bytes=400, transaction_verification_enable=False)
    appended = 0
    for turn in range(30):
        if turn == 8:
            disk.fail(suffix, number, "open" if suffix != ".log" else "create", "create", "write")
        elif turn == 20:
            disk.heal()
        stage.append((b"%d" % turn, b"x" * 60), producer_id=turn)
        stage.end(turn, commit=turn % 2 == 0)
        stage.world.advance()
        appended += 2
        assert len(stage.answers) == appended
        seen: list[Pairs] = []
        stage.runtime.run(0, seen.append, lambda error: pytest.fail(repr(error)))
        assert len(seen) == 1, "nothing is left that the shard has not seen"
    assert disk.faults.refused
    assert stage.answers[-20:] == [None] * 20
    live, loaded = stage.runtime.shard(0), stage.loaded_anew(partition)
    assert (loaded.values, loaded.open, loaded.offsets) == (live.values, live.open, live.offsets)


@pytest.mark.parametrize("where", ["read", "loaded"])
def test_a_partition_that_cannot_be_loaded_keeps_no_other_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    stage = Stage(tmp_path / "data")
    stage.lead()
    stage.append((b"a", b"1"))
    stage.runtime.resigned(0)
    fine = [stage.world.partition(TOPIC, number) for number in range(1, 2 * LOADS_AT_ONCE)]
    read, loaded = Log.read, Pairs.loaded

    def fail_to_read(log: Log, *args: object, **more: object) -> object:
        if log.partition == 0:
            raise OSError(errno.EIO, "a bad sector")
        return read(log, *args, **more)  # type: ignore[arg-type]

    def fail_at_the_end(shard: Pairs) -> None:
        if shard.partition == 0:
            raise ValueError("a mistake")
        loaded(shard)

    if where == "read":
        monkeypatch.setattr(Log, "read", fail_to_read)
    else:
        monkeypatch.setattr(Pairs, "loaded", fail_at_the_end)
    for _ in range(2 * LOADS_AT_ONCE):
        stage.runtime.elected(stage.world.replicas.partition(TOPIC, 0))
        stage.world.advance()
    for partition in fine:
        stage.runtime.elected(partition)
    stage.world.advance()
    assert all(stage.runtime.shard(partition.index).is_loaded for partition in fine)
    with pytest.raises(NotCoordinator):
        stage.runtime.shard(0)


def test_a_record_that_cannot_be_replayed_makes_the_shard_load_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(tmp_path / "data")
    stage.lead()
    stage.append((b"a", b"1"))
    first = stage.runtime.shard(0)

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Pairs, "replay", broken)
    stage.append((b"b", b"2"))
    monkeypatch.undo()
    assert stage.answers == [None, None]
    stage.world.advance(1.0)
    assert first.is_unloaded
    assert stage.runtime.shard(0).values == {b"a": b"1", b"b": b"2"}


def test_a_request_that_fails_in_its_turn_is_its_own_matter(tmp_path: Path) -> None:
    """Neither the append that it waited for nor the request behind it hears of it."""
    worker = HeldWorker()
    stage = Stage(tmp_path / "data", worker=worker)
    stage.lead()
    stage.append((b"a", bytes(100_000)))
    failed: list[KafkaError] = []
    behind: list[Pairs] = []

    def fails(_: Pairs) -> None:
        raise ZeroDivisionError

    stage.runtime.run(0, fails, failed.append)
    stage.runtime.run(0, behind.append, failed.append)
    worker.run_all()
    assert stage.answers == [None]
    assert [type(error) for error in failed] == [UnknownServerError]
    assert len(behind) == 1


def test_ids_have_no_partition_while_some_partitions_are_not_known(tmp_path: Path) -> None:
    """The controller tells nothing of partitions whose brokers died before they had a leader."""
    stage = Stage(tmp_path)
    state = PartitionState([SELF], SELF, 0, [SELF])

    def know(*indexes: int) -> None:
        topic = TopicState(TOPIC, b"i" * 16, dict.fromkeys(indexes, state))
        stage.metadata.update(ClusterState("cluster", topics={TOPIC: topic}))

    with pytest.raises(NotCoordinator):
        stage.runtime.partition_for("id")
    for known in ((0, 2, 3, 5), (1,)):
        know(*known)
        with pytest.raises(CoordinatorNotAvailable):
            stage.runtime.partition_for("id")
    know(*range(6))
    assert {stage.runtime.partition_for(f"id-{number}") for number in range(100)} == set(range(6))
