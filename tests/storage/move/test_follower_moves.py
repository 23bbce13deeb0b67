"""A follower moves to another folder while it is fetched, truncated and elected."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.cluster.scripted_leader import batches
from tests.storage.helpers import NOW, offsets, records
from tests.storage.move.world import KEY, A, B, Moving
from tidelog.cluster.follower_append import FollowerAppend, FollowerTruncation
from tidelog.cluster.moves import MoveSettings
from tidelog.metadata.state import PartitionState
from tidelog.storage.checkpoints import GAP, encode_gap
from tidelog.storage.follower_appender import FetchedRecords
from tidelog.storage.future_copy import FutureCopy, SegmentState
from tidelog.storage.log import Log


class MovingFollower(Moving):
    """Broker 0 follows broker 1."""

    def follow(self, epoch: int) -> None:
        state = PartitionState([1, 0], 1, epoch, [1, 0])
        self.partition = self.replicas.become_follower("t", b"t" * 16, 0, state, self.config)

    def fetched(self, base: int, epoch: int, count: int = 1) -> list[BaseException | None]:
        """Append a batch as a fetcher would; the list gets the outcome."""
        outcomes: list[BaseException | None] = []

        def done(_: FetchedRecords | None, error: BaseException | None) -> None:
            outcomes.append(error)

        data = memoryview(batches((base, count, epoch)))
        self.partition.appends.put(
            FollowerAppend(
                self.partition,
                data,
                self.partition.leader_epoch,
                self.scheduler.clock.ms(),
                done,
                scheduler=self.scheduler,
            )
        )
        return outcomes

    def truncate(self, offset: int) -> list[BaseException | None]:
        outcomes: list[BaseException | None] = []
        self.partition.appends.put(
            FollowerTruncation(
                self.partition,
                self.partition.leader_epoch,
                self.scheduler,
                lambda _, error: outcomes.append(error),
                offset=offset,
            )
        )
        return outcomes


def following(count: int = 60, **settings: object) -> MovingFollower:
    world = MovingFollower(is_hosted=False, **settings)  # type: ignore[arg-type]
    world.follow(0)
    for base in range(count):
        assert world.fetched(base, 0) == [None]
    assert world.folder() == A
    return world


@pytest.mark.parametrize(
    ("step", "then", "gap"),
    [
        ("complete", lambda log: None, 30),
        ("prepare", Log.forget_gap, None),
        ("complete", Log.forget_gap, None),
    ],
)
def test_a_gap_that_a_start_has_found_is_known_in_the_next_folder(
    monkeypatch: pytest.MonkeyPatch, step: str, then: Callable[[Log], None], gap: int | None
) -> None:
    """It may be forgotten after each step of the copy."""
    world = following()
    world.log.gap = 30  # as recovery found it, and wrote it down
    world.disk.write(f"{A}/t-0/{GAP}", encode_gap(30))
    copy = getattr(FutureCopy, step)

    def copied(future: FutureCopy, *given: object) -> None:
        copy(future, *given)
        then(world.log)

    monkeypatch.setattr(FutureCopy, step, copied)
    world.moves.alter(KEY, B)
    world.advance(1)
    world.logs.shutdown()
    again = MovingFollower(world.disk, is_hosted=False)
    again.follow(0)
    assert (again.log.dir, again.log.gap) == (f"{B}/t-0", gap)


def test_a_follower_moves_while_it_is_fetched() -> None:
    world = following()
    world.moves.alter(KEY, B)
    base = 60
    while world.folder() == A:
        outcome = world.fetched(base, 0)
        world.advance()
        assert outcome == [None]
        base += 1
    assert world.fetched(base, 0) == [None]
    world.advance(1)
    assert world.log.dir == f"{B}/t-0"
    assert offsets(records(world.log)) == list(range(base + 1))
    assert world.names(B) == ["t-0"]


@pytest.mark.parametrize("seed", range(12))
def test_a_truncation_on_the_way_is_followed(seed: int) -> None:
    rng = random.Random(seed)
    world = following(settings=MoveSettings(io_max_bytes_per_second=rng.choice((8_000, 30_000))))
    world.moves.alter(KEY, B)
    world.advance(rng.random() * 0.4)
    cut = rng.randrange(0, 60)
    outcome = world.truncate(cut)
    while not outcome:
        world.advance(0.001)
    assert outcome == [None]
    assert world.log.log_end_offset == cut
    for base in range(cut, 80):
        appended = world.fetched(base, 1)
        world.advance(rng.random() * 0.01)
        assert appended == [None]
    world.advance(30)
    assert world.folder() == B
    found = records(world.log)
    assert offsets(found) == list(range(80))
    assert [header.partition_leader_epoch for header, _ in found] == [0] * cut + [1] * (80 - cut)
    world.logs.shutdown()
    world.disk.locks.clear()
    again = MovingFollower(world.disk, is_hosted=False)
    again.follow(2)
    assert again.folder() == B
    assert records(again.log) == found


def test_a_follower_that_is_elected_on_the_way_goes_on_to_move() -> None:
    world = following(settings=MoveSettings(io_max_bytes_per_second=20_000))
    world.moves.alter(KEY, B)
    world.advance(0.05)
    state = PartitionState([1, 0], 0, 1, [0])
    world.partition.appends.between(
        lambda: world.replicas.become_leader("t", b"t" * 16, 0, state, world.config) and None
    )
    world.advance(30)
    assert world.folder() == B
    assert offsets(records(world.log)) == list(range(60))


def test_a_file_that_is_cut_while_it_is_copied_is_no_failure_of_the_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = following()
    step = FutureCopy.step
    cuts: list[int] = []

    def cut_first(copy: FutureCopy, segments: list[SegmentState], limit: int) -> int:
        if not cuts:
            cuts.append(5)
            world.log.truncate_to(5, NOW)
        return step(copy, segments, limit)

    monkeypatch.setattr(FutureCopy, "step", cut_first)
    world.moves.alter(KEY, B)
    world.advance(30)
    assert not world.logs.log_dirs.offline
    assert world.folder() == B
    assert offsets(records(world.log)) == list(range(5))
