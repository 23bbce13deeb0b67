"""After a restart a producer's last five batches are found in the log: a snapshot has only the last one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.storage.cleaner.helpers import World as CleanedWorld
from tests.storage.helpers import NOW, append, batch, config, end_transaction, open_log
from tests.support.cold_disk import ColdDisk
from tests.support.scale import scale
from tidelog.errors import InvalidProducerEpoch, OutOfOrderSequenceNumber
from tidelog.records.check import check_produced
from tidelog.storage import producer_history
from tidelog.storage.append import AppendOrigin, AppendResult, DuplicateBatch
from tidelog.storage.config import LogConfig
from tidelog.storage.log import Log
from tidelog.storage.reads import NotCached

PRODUCER = 7
LAST_SEQUENCE = (1 << 31) - 1
COUNTS = (1, 2, 1, 3, 1, 2, 1)


def numbered(sequence: int, count: int = 1, epoch: int = 0, *, transactional: bool = False) -> bytearray:
    return batch(count, producer=(PRODUCER, epoch, sequence & LAST_SEQUENCE), transactional=transactional)


def write(log: Log, counts: Sequence[int] = COUNTS, first: int = 0, epoch: int = 0) -> dict[int, int]:
    """Batches of the producer that follow each other; returns the first offset of each by its sequence."""
    offsets, sequence = {}, first
    for count in counts:
        offsets[sequence] = append(log, numbered(sequence, count, epoch)).base_offset
        sequence += count
    return offsets


def again(log: Log, sequence: int, count: int, epoch: int = 0) -> int | str:
    """The first offset that a retry is answered with, or the name of its error."""
    end = log.log_end_offset
    try:
        result = append(log, numbered(sequence, count, epoch))
    except (OutOfOrderSequenceNumber, InvalidProducerEpoch) as error:
        return type(error).__name__
    assert log.log_end_offset == end, "it is written again"
    assert result.last_offset == result.base_offset + count - 1
    return result.base_offset


def retries(log: Log, offsets: dict[int, int], counts: Sequence[int] = COUNTS) -> list[int | str]:
    """The answers to all batches again, as differences from their offsets."""
    answers = [again(log, *sent) for sent in zip(offsets, counts, strict=True)]
    return [
        answer - offset if isinstance(answer, int) else answer
        for answer, offset in zip(answers, offsets.values(), strict=True)
    ]


def restarted(log: Log, folder: Path, settings_: LogConfig | None = None, *, clean: bool = True) -> Log:
    if clean:
        log.close(NOW)
    else:
        log.release()
    return open_log(folder, settings_ or log.config, clean=clean, recovery_point=log.recovery_point)


TOO_OLD = "OutOfOrderSequenceNumber"


@pytest.mark.parametrize("segment_bytes", [1 << 20, 150], ids=["one segment", "a segment for each batch"])
@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
def test_each_of_the_last_five_batches_is_known_after_a_restart(
    tmp_path: Path, clean: bool, segment_bytes: int
) -> None:
    log = open_log(tmp_path, config(segment_bytes=segment_bytes))
    offsets = write(log)
    before = log.producers.entries[PRODUCER]
    log.flush(NOW)
    log = restarted(log, tmp_path, clean=clean)
    assert retries(log, offsets) == [TOO_OLD, TOO_OLD, 0, 0, 0, 0, 0]
    assert log.producers.entries[PRODUCER].batches == before.batches
    assert append(log, numbered(sum(COUNTS))).base_offset == sum(COUNTS)


@pytest.mark.parametrize("order", [(2, 3, 4, 5, 6), (6, 5, 4, 3, 2), (4, 6, 2, 3, 5)])
def test_the_order_of_the_retries_does_not_matter(tmp_path: Path, order: Sequence[int]) -> None:
    log = open_log(tmp_path)
    offsets = list(write(log).items())
    log = restarted(log, tmp_path)
    assert [again(log, offsets[at][0], COUNTS[at]) for at in order] == [offsets[at][1] for at in order]


def test_batches_since_the_restart_count_among_the_five(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    offsets = write(log)
    log = restarted(log, tmp_path)
    offsets |= write(log, (1, 2), first=sum(COUNTS))
    assert retries(log, offsets, (*COUNTS, 1, 2)) == [TOO_OLD] * 4 + [0] * 5


def test_a_second_restart_looks_again(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    offsets = write(log)
    for _ in range(2):
        log = restarted(log, tmp_path)
        assert retries(log, offsets) == [TOO_OLD, TOO_OLD, 0, 0, 0, 0, 0]


def test_only_a_batch_with_the_same_sequences_is_a_duplicate(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    write(log)
    log = restarted(log, tmp_path)
    for sequence, count in ((4, 2), (3, 3), (4, 4), (5, 1), (8, 1), (9, 2), (12, 1), (100, 1)):
        assert again(log, sequence, count) == TOO_OLD


def test_the_log_is_searched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(tmp_path)
    offsets = write(log, (1, 1, 1))
    log = restarted(log, tmp_path)
    searches: list[int] = []
    search = producer_history.earlier_batches

    def counting(*given: object) -> object:
        searches.append(1)
        return search(*given)  # type: ignore[arg-type]

    monkeypatch.setattr("tidelog.storage.log_appender.earlier_batches", counting)
    for _ in range(3):
        assert retries(log, offsets, (1, 1, 1)) == [0, 0, 0]
        assert again(log, LAST_SEQUENCE, 1) == TOO_OLD
        assert again(log, 17, 1) == TOO_OLD
    assert len(searches) == 1, "the third batch from the end is the first of all"


def test_a_batch_that_follows_is_not_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(tmp_path)
    write(log)
    log = restarted(log, tmp_path)
    monkeypatch.setattr("tidelog.storage.log_appender.earlier_batches", None)
    append(log, numbered(sum(COUNTS)))
    assert again(log, sum(COUNTS) + 5, 1) == TOO_OLD
    append(log, batch(1, producer=(PRODUCER + 1, 0, 5)))


def test_a_producer_that_is_known_since_its_first_batch_is_not_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path)
    write(log)
    log = restarted(log, tmp_path)
    append(log, batch(1, producer=(PRODUCER + 1, 0, 5)))
    write(log, (1,), epoch=1)
    monkeypatch.setattr("tidelog.storage.log_appender.earlier_batches", None)
    with pytest.raises(OutOfOrderSequenceNumber):
        append(log, batch(1, producer=(PRODUCER + 1, 0, 4)))
    assert again(log, LAST_SEQUENCE, 1, epoch=1) == TOO_OLD


def test_batches_of_an_older_epoch_do_not_count(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    write(log)
    newer = write(log, (1, 2), epoch=1)
    log = restarted(log, tmp_path)
    assert again(log, 0, 1, epoch=1) == newer[0]
    assert again(log, LAST_SEQUENCE, 1, epoch=1) == TOO_OLD
    assert again(log, sum(COUNTS[:-1]), COUNTS[-1]) == "InvalidProducerEpoch"
    assert [entry.last_sequence for entry in log.producers.entries[PRODUCER].batches] == [0, 2]


def test_sequences_begin_anew_behind_the_largest(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    first = LAST_SEQUENCE - 3
    offsets = write(log, (2, 1, 2, 1, 2), first=first)
    log = restarted(log, tmp_path)
    assert retries(log, offsets, (2, 1, 2, 1, 2)) == [0] * 5


def test_markers_are_between_the_batches_of_transactions(tmp_path: Path) -> None:
    log = open_log(tmp_path, config(transaction_verification_enable=False))
    offsets = []
    for sequence in range(5):
        offsets.append(append(log, numbered(sequence, transactional=True)).base_offset)
        if sequence < 4:
            end_transaction(log, PRODUCER, commit=sequence % 2 == 0)
    log = restarted(log, tmp_path)
    for sequence, offset in enumerate(offsets):
        assert append(log, numbered(sequence, transactional=True)).base_offset == offset
    assert log.log_end_offset == 9


def test_a_marker_with_a_higher_epoch_ends_what_is_known(tmp_path: Path) -> None:
    """KIP-890: every end of a transaction raises the epoch."""
    log = open_log(tmp_path, config(transaction_verification_enable=False))
    for sequence in range(3):
        append(log, numbered(sequence, transactional=True))
    end_transaction(log, PRODUCER, commit=True, epoch=1)
    first = append(log, numbered(0, 1, 1, transactional=True)).base_offset
    append(log, numbered(1, 1, 1, transactional=True))
    log = restarted(log, tmp_path)
    assert append(log, numbered(0, 1, 1, transactional=True)).base_offset == first
    assert len(log.producers.entries[PRODUCER].batches) == 2


def test_batches_below_the_log_start_are_known_while_their_segment_is_there(tmp_path: Path) -> None:
    """As in a broker that was not restarted: a producer may retry what DeleteRecords has deleted."""
    log = open_log(tmp_path, config(segment_bytes=300))
    offsets = write(log)
    log.commit_all()
    log.delete_records_before(log.log_end_offset - 1)
    log.close(NOW)
    log = open_log(tmp_path, log.config, clean=True, log_start_offset=log.log_start_offset)
    assert retries(log, offsets)[2:] == [0, 0, 0, 0, 0]


def test_batches_of_deleted_segments_are_not_known(tmp_path: Path) -> None:
    settings_ = config(segment_bytes=150)
    log = open_log(tmp_path, settings_)
    offsets = write(log)
    log.commit_all()
    log.delete_records_before(log.segments[-2].base_offset)
    assert log.delete_old_segments(NOW) == len(COUNTS) - 2
    log.close(NOW)
    log = open_log(tmp_path, settings_, clean=True, log_start_offset=log.log_start_offset)
    assert retries(log, offsets) == [TOO_OLD] * 5 + [0, 0]


def test_a_cleaned_log_knows_the_batches_that_are_left() -> None:
    world = CleanedWorld()
    for sequence in range(5):
        world.append((b"k%d" % (sequence % 3), b"%d" % sequence), producer=(PRODUCER, 0, sequence))
    world.append((b"z", b"1"))
    world.clean()
    world.cleaner.close()
    world.manager.shutdown()
    log = world.start()
    kept = {header.base_sequence for header in _headers(log) if header.producer_id == PRODUCER}
    assert kept == {2, 3, 4}
    answers = []
    for sequence in range(5):
        try:
            answers.append(world.append((b"k", b"v"), producer=(PRODUCER, 0, sequence)))
        except OutOfOrderSequenceNumber:
            answers.append(-1)
    assert answers == [-1, -1, 2, 3, 4]


def _headers(log: Log) -> list[object]:
    from tests.storage.helpers import headers

    return list(headers(log))


def test_a_follower_that_loaded_a_snapshot_becomes_leader(tmp_path: Path) -> None:
    leader = open_log(tmp_path / "leader")
    offsets = write(leader)
    follower = open_log(tmp_path / "follower")
    follower.append_as_follower(_bytes_of(leader, 0), NOW)
    follower = restarted(follower, tmp_path / "follower")
    offsets |= write(leader, (1,), first=sum(COUNTS))
    follower.append_as_follower(_bytes_of(leader, follower.log_end_offset), NOW)
    assert retries(follower, offsets, (*COUNTS, 1)) == [TOO_OLD] * 3 + [0] * 5


def _bytes_of(log: Log, offset: int) -> bytes:
    found = log.read(offset, 1 << 20).slice
    assert found is not None
    return found.read()


def test_a_log_that_is_cut_back_is_searched_from_its_new_end(tmp_path: Path) -> None:
    log = open_log(tmp_path, config(segment_bytes=300))
    offsets = write(log)
    log = restarted(log, tmp_path)
    log.truncate_to(offsets[8], NOW)
    assert log.log_end_offset == offsets[8]
    sequences = [sequence for sequence in offsets if sequence < 8]
    assert [again(log, *sent) for sent in zip(sequences, COUNTS, strict=False)] == sequences


@settings(max_examples=scale(60, 1_000), derandomize=True, deadline=None)
@given(
    plan=st.lists(
        st.tuples(st.integers(0, 3), st.integers(1, 4), st.sampled_from((1, 700, 90_000))),
        min_size=1,
        max_size=60,
    ),
    segment_bytes=st.sampled_from((400_000, 1 << 20, 1 << 30)),
    interval=st.sampled_from((0, 4096, 1 << 20)),
    restarts_at=st.integers(0, 60),
)
def test_a_restart_changes_no_answer(
    plan: list[tuple[int, int, int]],
    segment_bytes: int,
    interval: int,
    restarts_at: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Several producers write batches of all sizes: a broker that never stopped knows the same duplicates."""
    folder = tmp_path_factory.mktemp("history")
    settings_ = config(segment_bytes=segment_bytes, index_interval_bytes=interval)
    log = open_log(folder, settings_)
    next_sequence: dict[int, int] = {}
    sent: list[tuple[int, int, int]] = []
    for at, (producer, count, size) in enumerate(plan):
        if at == restarts_at:
            log = restarted(log, folder)
        sequence = next_sequence.get(producer, 0)
        next_sequence[producer] = sequence + count
        append(log, batch(count, value=bytes(size), producer=(producer, 0, sequence)))
        sent.append((producer, sequence, count))
    expected = {
        producer: [s for s in sent if s[0] == producer][-producer_history.REMEMBERED_BATCHES :]
        for producer in next_sequence
    }
    log = restarted(log, folder)
    end = log.log_end_offset
    for producer, sequence, count in sent:
        data = batch(count, value=b"", producer=(producer, 0, sequence))
        if (producer, sequence, count) in expected[producer]:
            assert append(log, data).last_offset < end
        else:
            with pytest.raises(OutOfOrderSequenceNumber):
                append(log, data)
    assert log.log_end_offset == end


# -- bounds, damage, and cold disks


def test_a_search_reads_only_so_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(tmp_path)
    offsets = write(log, (1, 1))
    for _ in range(300):
        append(log, batch(1, value=bytes(1000)))
    append(log, numbered(2))
    monkeypatch.setattr(producer_history, "SEARCHED_BYTES", 200_000)
    log = restarted(log, tmp_path)
    assert again(log, 0, 1) == TOO_OLD
    monkeypatch.setattr(producer_history, "SEARCHED_BYTES", 1 << 20)
    assert again(log, 0, 1) == TOO_OLD, "once for each state"
    log = restarted(log, tmp_path)
    assert again(log, 0, 1) == offsets[0]


def test_large_batches_are_stepped_over(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    offsets = write(log, (1, 1))
    for _ in range(16):
        append(log, batch(1, value=bytes(1 << 19)))
    append(log, numbered(2))
    assert log.size > producer_history.SEARCHED_BYTES
    log = restarted(log, tmp_path)
    assert again(log, 0, 1) == offsets[0]


@pytest.mark.parametrize(("at", "is_seen"), [(8, True), (16, True), (20, False)])
def test_a_damaged_batch_ends_the_search(tmp_path: Path, at: int, is_seen: bool) -> None:
    """A length, the format, or the checksum: the search trusts checksums, as fetches do."""
    log = open_log(tmp_path)
    offsets = write(log)
    log = restarted(log, tmp_path)
    position = log.active_segment.position_of(offsets[4])
    assert position is not None
    log.active_segment.file.pwrite(b"\x7f", position[0] + at)
    assert retries(log, offsets) == ([TOO_OLD] * 6 + [0] if is_seen else [TOO_OLD] * 2 + [0] * 5)
    assert append(log, numbered(sum(COUNTS))).base_offset == sum(COUNTS)


@pytest.mark.parametrize(
    ("index", "is_usable"),
    [(b"", True), (b"\0" * 8, True), (b"\x7f" * 16, True), (b"\0\0\0\3\0\0\0\x0a", False)],
    ids=["empty", "of zeros", "of nonsense", "inside a batch"],
)
def test_a_wrong_index_misleads_nobody(
    tmp_path: Path, index: bytes, is_usable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer_history, "_FIRST_WINDOW", 100)
    log = open_log(tmp_path, config(segment_bytes=2000, index_interval_bytes=1))
    offsets = write(log)
    log.roll(NOW)
    append(log)
    log.close(NOW)
    (tmp_path / f"{0:020d}.index").write_bytes(index)
    log = open_log(tmp_path, log.config, clean=True)
    assert retries(log, offsets) == ([TOO_OLD] * 2 + [0] * 5 if is_usable else [TOO_OLD] * 6 + [0])


def test_nothing_is_read_from_a_cold_disk_on_the_loop(tmp_path: Path) -> None:
    disk = ColdDisk()
    log = open_log(tmp_path, config(index_interval_bytes=1), disk=disk)
    offsets = write(log)
    log.close(NOW)
    log = open_log(tmp_path, log.config, disk=disk, clean=True)
    data = numbered(4, 3)
    checked = check_produced(memoryview(data), log.appender.rules, NOW)
    disk.evict()
    disk.may_read.clear()
    with pytest.raises(NotCached):
        log.appender.prepare(checked, 0, NOW)
    with pytest.raises(NotCached):
        log.appender.prepare(checked, 0, NOW)
    disk.make_hot()
    found = log.appender.prepare(checked, 0, NOW)
    assert isinstance(found, DuplicateBatch)
    assert found.result.base_offset == offsets[4]
    assert log.appender.append_as_leader(
        numbered(4, 3), leader_epoch=0, origin=AppendOrigin.CLIENT, now_ms=NOW
    ) == AppendResult(4, 6, NOW + 2, 0)
