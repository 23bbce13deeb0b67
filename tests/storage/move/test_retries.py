"""A producer's older batches are found in the log after a clean restart, in the folder that it moved to."""

from __future__ import annotations

import pytest

from tests.storage.helpers import batch
from tests.storage.move.world import KEY, A, B, Moving

PRODUCER = 7
SENT = range(8)
KNOWN = SENT[-5:]


def written(segment_bytes: int) -> tuple[Moving, list[int]]:
    """A partition in folder A with batches of a producer between others, and the offset of each."""
    world = Moving(segment_bytes=segment_bytes)
    sent = []
    for sequence in SENT:
        world.append()
        sent.append(world.log.log_end_offset)
        assert send(world, sequence) == sent[-1]
    world.append()
    assert world.folder() == A
    return world, sent


def send(world: Moving, sequence: int) -> int | str:
    """The offset that a batch of the producer is answered with, or the name of its error."""
    (answer,) = world.append(batch(1, producer=(PRODUCER, 0, sequence)))
    if answer.error is not None:
        return type(answer.error).__name__
    assert answer.result is not None
    return answer.result.base_offset


def restarted(world: Moving) -> Moving:
    world.logs.shutdown()
    return world.crashed(world.disk, epoch=0)


def move(world: Moving, target: str) -> None:
    world.moves.alter(KEY, target)
    world.advance(120)
    assert world.folder() == target
    assert world.names(A if target == B else B) == [], "the files of the other folder are gone"


def known_batches(world: Moving) -> list[int]:
    return [found.last_sequence for found in world.log.producers.entries[PRODUCER].batches]


def check_retries(world: Moving, sent: list[int]) -> None:
    """Each of the last five batches has its old offset, older ones are refused, and nothing is written."""
    end = world.log.log_end_offset
    assert [send(world, sequence) for sequence in KNOWN] == sent[-len(KNOWN) :]
    assert send(world, KNOWN[0] - 1) == "OutOfOrderSequenceNumber"
    assert world.log.log_end_offset == end
    assert send(world, SENT.stop) == end


@pytest.mark.parametrize("segment_bytes", [1 << 20, 100], ids=["one segment", "a segment for each batch"])
def test_a_move_before_the_restart(segment_bytes: int) -> None:
    world, sent = written(segment_bytes)
    move(world, B)
    world = restarted(world)
    assert world.folder() == B
    assert known_batches(world) == [SENT[-1]], "a snapshot has only the last batch"
    check_retries(world, sent)


@pytest.mark.parametrize("segment_bytes", [1 << 20, 100], ids=["one segment", "a segment for each batch"])
def test_a_move_between_the_restart_and_the_first_retry(segment_bytes: int) -> None:
    world, sent = written(segment_bytes)
    world = restarted(world)
    move(world, B)
    assert known_batches(world) == [SENT[-1]]
    check_retries(world, sent)


def test_a_move_while_the_retries_come() -> None:
    world, sent = written(100)
    world = restarted(world)
    world.moves.alter(KEY, B)
    assert world.folder() == A
    assert send(world, KNOWN[0]) == sent[KNOWN[0]]
    assert known_batches(world) == list(KNOWN)
    world.advance(120)
    assert world.folder() == B
    check_retries(world, sent)


def test_a_move_back_finds_what_was_written_in_both_folders() -> None:
    world, sent = written(100)
    world = restarted(world)
    move(world, B)
    for sequence in (SENT.stop, SENT.stop + 1):
        sent.append(world.log.log_end_offset)
        assert send(world, sequence) == sent[-1]
    world = restarted(world)
    move(world, A)
    assert known_batches(world) == [SENT.stop + 1]
    end = world.log.log_end_offset
    assert [send(world, sequence) for sequence in range(5, 10)] == sent[5:]
    assert send(world, 4) == "OutOfOrderSequenceNumber"
    assert world.log.log_end_offset == end


def test_a_broker_that_is_killed_during_a_move_knows_the_batches() -> None:
    """Whichever of the two folders the start keeps."""
    world, sent = written(100)
    world = restarted(world)
    world.log.flush(0)
    world.moves.alter(KEY, B)
    assert world.folder() == A
    world = world.crashed(world.disk, epoch=0)
    check_retries(world, sent)
