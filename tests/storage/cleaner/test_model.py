"""Random lives of a compacted log beside a model of what a reader may still see.

Each seed appends with and without keys, in transactions and out of them, deletes, rolls, flushes, cleans,
moves the clock and changes settings, pulls the plug at an operation drawn from the seed, and starts again.
The log's readers then see what the model says. Bugs that are planted into the cleaner are found.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest

from tests.storage.cleaner.helpers import KEY, World, batches, committed, settings
from tests.storage.helpers import marker
from tests.support.scale import scale
from tests.support.simdisk import Crash, SimulatedDisk
from tidelog.records.batch import Record, build_batch
from tidelog.records.codecs import Codec
from tidelog.records.loops import SLOT_SIZE
from tidelog.storage.append import AppendOrigin
from tidelog.storage.cleaner import cleaning, log_cleaner, policy
from tidelog.storage.cleaner.log_cleaner import CleanerSettings
from tidelog.storage.cleaner.transactions import CleanedTransactions
from tidelog.storage.log import Log

RUNS = scale(300, 6000)
KEYS = [b"k%d" % at for at in range(7)]
PRODUCERS = (7, 8)
TRANSACTIONAL = (21, 22)


@dataclass
class Batch:
    base: int
    producer_id: int
    last_sequence: int
    transactional: bool
    commits: bool | None  # of a marker: how it ends the transaction
    records: list[Record]

    @property
    def last(self) -> int:
        return self.base + max(1, len(self.records)) - 1


@dataclass
class Model:
    """Everything that was ever appended and is not lost, and what the cleaner was asked to do."""

    history: list[Batch]
    passes: list[tuple[int, int, int]]  # end of the range, when, and how long tombstones are kept
    keyless_may_go: bool = False

    def readable(self, start: int, stable: int) -> tuple[dict[int, Record], set[int]]:
        """Committed records by offset, and those of them that a reader may no longer see."""
        ends: dict[int, bool] = {}
        found: dict[int, Record] = {}
        for batch in reversed(self.history):
            if batch.commits is not None:
                ends[batch.producer_id] = batch.commits
            elif not batch.transactional or ends.get(batch.producer_id):
                found.update((record.offset, record) for record in batch.records)
        found = {offset: found[offset] for offset in sorted(found) if start <= offset < stable}
        last = {record.key: offset for offset, record in found.items()}
        return found, {offset for offset, record in found.items() if self.may_go(record, last[record.key])}

    def may_go(self, record: Record, last_of_key: int) -> bool:
        if record.key is None:
            return self.keyless_may_go
        if record.offset != last_of_key:
            return True
        horizons = [now + keep for end, now, keep in self.passes if end > record.offset]
        return record.value is None and bool(horizons) and self.last_pass() >= min(horizons)

    def last_pass(self) -> int:
        return max(now for _, now, _ in self.passes)

    def stable_offsets(self, start: int, end: int) -> tuple[int, int]:
        """Where the oldest transaction begins that has no marker. How it began before the start of the log a
        crash may leave unknown."""
        return max(start, self.first_open(0, end)), self.first_open(start, end)

    def first_open(self, start: int, end: int) -> int:
        started: dict[int, int] = {}
        for batch in self.history:
            if batch.base < start:
                continue
            if batch.commits is not None:
                started.pop(batch.producer_id, None)
            elif batch.transactional:
                started.setdefault(batch.producer_id, batch.base)
        return min(started.values(), default=end)


class Life:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.model = Model([], [])
        self.values = 0
        self.disk = SimulatedDisk()
        self.world = World(
            self.settings(),
            disk=self.disk,
            cleaner=CleanerSettings(
                backoff_ms=1000,
                io_buffer_size=self.rng.choice([2048, 4096, 1 << 16]),
                dedupe_buffer_size=self.rng.choice([24 * 4, 24 * 9, 1 << 16]),
            ),
            step_bytes=1,
        )
        self.watch()

    def settings(self) -> object:
        rng = self.rng
        policy = rng.choice([{"compact"}, {"compact"}, {"compact"}, {"compact", "delete"}, {"delete"}])
        return settings(
            cleanup_policy=frozenset(policy),
            segment_bytes=rng.choice([1200, 2500]),
            segment_index_bytes=rng.choice([48, 400]),
            delete_retention_ms=rng.choice([0, 2_000, 20_000]),
            min_compaction_lag_ms=rng.choice([0, 0, 3_000]),
            max_compaction_lag_ms=rng.choice([1 << 60, 1 << 60, 8_000]),
            min_cleanable_dirty_ratio=rng.choice([0.0, 0.0, 0.3]),
            message_timestamp_type=rng.choice(["CreateTime", "CreateTime", "LogAppendTime"]),
            retention_bytes=rng.choice([-1, -1, 6000]),
        )

    def watch(self) -> None:
        """Note what the cleaner sets out to do, before it does it."""
        cleaner = self.world.cleaner
        begin = cleaner._begin

        def noting(key: object, log: object, folder: object, range_: policy.CleanableRange) -> None:
            self.model.keyless_may_go = True
            config = self.world.log.config
            self.model.passes.append((range_.end, self.world.now, config.delete_retention_ms))
            begin(key, log, folder, range_)  # type: ignore[arg-type]

        cleaner._begin = noting  # type: ignore[method-assign,assignment]

    # -- what happens

    def step(self) -> None:
        rng, world, log = self.rng, self.world, self.world.log
        action = rng.random()
        if action < 0.42:
            self.append()
        elif action < 0.5:
            self.end_transaction()
        elif action < 0.58:
            log.roll(world.now)
        elif action < 0.64:
            log.flush(world.now)
        elif action < 0.90:
            world.cleaner.clean_dirtiest()
            world.scheduler.advance(rng.choice([0, 0, 0.001, 0.5, 3]))
        elif action < 0.92:
            world.scheduler.clock.jump_to(world.now + rng.choice([-5_000, 2_000, 25_000]))
        elif action < 0.94:
            world.config = self.settings()  # type: ignore[assignment]
            log.update_config(world.config)
        elif action < 0.95:
            log.delete_records_before(rng.randint(log.log_start_offset, log.high_watermark))
        elif action < 0.96:
            world.manager.retention.run()
        elif action < 0.98:
            world.manager.checkpoints.write_recovery_points()
            world.manager.checkpoints.write_log_start_offsets()
        elif action < 0.985:
            world.restart()
            self.watch()
            self.check()
        else:
            self.check()

    def append(self) -> None:
        rng, log = self.rng, self.world.log
        producer_id = rng.choice([-1, -1, *PRODUCERS, *TRANSACTIONAL])
        entry = log.producers.entries.get(producer_id)
        sequence = -1 if producer_id < 0 else 0 if entry is None else entry.last_sequence + 1
        base, made = log.log_end_offset, []
        for at in range(rng.randint(1, 4)):
            self.values += 1
            key = None if not log.config.compacted and rng.random() < 0.2 else rng.choice(KEYS)
            value = None if rng.random() < 0.2 else b"%d " % self.values + bytes(rng.randint(0, 60))
            made.append(Record(base + at, self.world.now + rng.randint(-50, 50), key, value))
        batch = Batch(base, producer_id, sequence + len(made) - 1, producer_id in TRANSACTIONAL, None, made)
        data = build_batch(
            [record._replace(offset=at) for at, record in enumerate(made)],
            codec=rng.choice([Codec.NONE, Codec.NONE, Codec.LZ4, Codec.GZIP]),
            producer_id=producer_id,
            producer_epoch=-1 if producer_id < 0 else 0,
            base_sequence=sequence,
            transactional=batch.transactional,
        )
        if log.config.log_append_time:
            batch.records = [record._replace(timestamp=self.world.now) for record in made]
        self.write(batch, bytearray(data), AppendOrigin.CLIENT)

    def end_transaction(self) -> None:
        ongoing = self.world.log.producers.ongoing
        if ongoing:
            producer_id = self.rng.choice(sorted(ongoing))
            commits = self.rng.random() < 0.5
            batch = Batch(self.world.log.log_end_offset, producer_id, -1, True, commits, [])
            data = marker(producer_id, commit=commits, timestamp=self.world.now)
            self.write(batch, data, AppendOrigin.COORDINATOR)

    def write(self, batch: Batch, data: bytearray, origin: AppendOrigin) -> None:
        log = self.world.log
        self.model.history.append(batch)  # before it is written: a crash may leave it or not
        log.appender.append_as_leader(data, leader_epoch=0, origin=origin, now_ms=self.world.now)
        log.update_high_watermark(log.log_end_offset)

    def crash(self) -> None:
        """The power fails, perhaps once more while the log is recovered."""
        on_disk = self.world.log.recovery_point
        self.disk.crash_at = None
        while True:
            self.disk = self.world.disk = self.disk.after_crash(self.rng)
            self.world.scheduler = type(self.world.scheduler)(self.world.scheduler.clock)
            if self.rng.random() < 0.2:
                self.disk.crash_at = self.rng.randint(1, 50)
            try:
                self.world.start()
            except Crash:
                self.disk.crash_at = None
                continue
            break
        self.disk.crash_at = None
        self.watch()
        log = self.world.log
        assert log.log_end_offset >= on_disk
        known = max(on_disk, log.log_start_offset)
        present = {header.base_offset for segment in log.segments for _, header in segment.batches()}
        self.model.history = [
            batch
            for batch in self.model.history
            if batch.last < log.log_end_offset and (batch.base < known or batch.base in present)
        ]

    # -- what has to be true

    def check(self) -> None:
        log = self.world.log
        assert not self.world.cleaner.uncleanable
        assert self.world.manager.log_dirs[0].offline is None
        assert log.last_stable_offset in self.model.stable_offsets(log.log_start_offset, log.log_end_offset)
        everything = {record.offset: record for batch in self.model.history for record in batch.records}
        last = log.log_start_offset - 1
        for header, inside in batches(log):
            assert header.last_offset > last
            last = header.last_offset
            if not header.is_control:
                assert all(record == everything[record.offset] for record in inside)
        wanted, may_go = self.model.readable(log.log_start_offset, log.last_stable_offset)
        seen = {record.offset for record in committed(log) if record.offset >= log.log_start_offset}
        assert seen <= wanted.keys()
        assert wanted.keys() - seen <= may_go
        self.check_producers()

    def check_producers(self) -> None:
        log = self.world.log
        last = {
            batch.producer_id: batch.last_sequence
            for batch in self.model.history
            if batch.commits is None and batch.producer_id > 0 and batch.base >= log.log_start_offset
        }
        known = {producer_id: entry.last_sequence for producer_id, entry in log.producers.entries.items()}
        assert known == {**known, **last}
        written = {h.producer_id: h.last_sequence for h, _ in batches(log) if not h.is_control}
        assert written == {**written, **last}  # a start without snapshots has only the log to go by

    def check_cleaned(self) -> None:
        """Once the cleaner had its time, only the last record of each key is left of what it may clean."""
        world = self.world
        config = replace(settings(), segment_bytes=2500)
        world.config = config
        world.log.update_config(config)
        for producer_id in sorted(world.log.producers.ongoing):
            batch = Batch(world.log.log_end_offset, producer_id, -1, True, True, [])
            self.write(batch, marker(producer_id, commit=True, timestamp=world.now), AppendOrigin.COORDINATOR)
        world.clean()
        self.check()
        end = world.cleaner.checkpoints.get(KEY, 0)
        assert world.cleaner.range_of(world.log).dirty_bytes == 0
        wanted, _ = self.model.readable(world.log.log_start_offset, world.log.last_stable_offset)
        newest = {record.key: offset for offset, record in wanted.items()}
        for record in committed(world.log):
            if world.log.log_start_offset <= record.offset < end:
                assert newest[record.key] == record.offset


def play(seed: int) -> None:
    life = Life(seed)
    for _ in range(3):
        life.disk.crash_at = life.disk.operations + life.rng.randint(1, 900)
        try:
            for _ in range(110):
                life.step()
        except Crash:
            pass
        life.crash()
        life.check()
    life.check_cleaned()


@pytest.mark.parametrize("part", range(10))
def test_readers_see_what_the_model_says(part: int) -> None:
    for seed in range(part * RUNS // 10, (part + 1) * RUNS // 10):
        try:
            play(seed)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


def test_a_crash_at_every_operation_of_a_cleaning() -> None:
    """The same short life again and again, each time one operation longer."""

    def life() -> Life:
        made = Life(4)
        made.world.config = settings(segment_bytes=1200, delete_retention_ms=0)
        made.world.log.update_config(made.world.config)
        for _ in range(60):
            made.append()
            made.end_transaction()
        made.world.clean()
        for _ in range(20):
            made.append()
        while made.world.log.producers.ongoing:
            made.end_transaction()
        made.world.roll()
        return made

    first = life()
    start = first.disk.operations
    first.world.clean()
    count = first.disk.operations - start
    assert count > 100
    for at in range(1, count + 1, scale(5, 1)):
        again = life()
        again.rng.seed(at)
        again.disk.crash_at = start + at
        with pytest.raises(Crash):
            again.world.clean()
        again.crash()
        again.check()
        again.check_cleaned()


# -- the model finds bugs


def found(seeds: range) -> bool:
    for seed in seeds:
        try:
            play(seed)
        except AssertionError:
            return True
    return False


def drops_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last record of a key is taken for one before the last."""
    original = cleaning.Cleaning._fill_map

    def planted(self: cleaning.Cleaning) -> Iterator[int]:
        yield from original(self)
        table = self._map.table
        for at in range(16, len(table), SLOT_SIZE):
            stored = int.from_bytes(table[at : at + 8], sys.byteorder)
            if stored:
                table[at : at + 8] = (stored + 1).to_bytes(8, sys.byteorder)

    monkeypatch.setattr(cleaning.Cleaning, "_fill_map", planted)


def forgets_tombstones_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    original = cleaning.Cleaning.__init__

    def planted(self: cleaning.Cleaning, *arguments: object) -> None:
        original(self, *arguments)  # type: ignore[arg-type]
        self._horizon = 0

    monkeypatch.setattr(cleaning.Cleaning, "__init__", planted)


def believes_aborted_records(monkeypatch: pytest.MonkeyPatch) -> None:
    original = CleanedTransactions.batch
    monkeypatch.setattr(CleanedTransactions, "batch", lambda self, header: original(self, header) and False)


def forgets_producers(monkeypatch: pytest.MonkeyPatch) -> None:
    original = cleaning.begin

    def planted(*arguments: object) -> cleaning.CleaningPlan:
        plan = original(*arguments)  # type: ignore[arg-type]
        del plan.retained[:]
        return plan

    monkeypatch.setattr(cleaning, "begin", planted)


def cleans_what_is_not_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    original = cleaning.begin

    def planted(*arguments: object) -> cleaning.CleaningPlan:
        return replace(original(*arguments), flush=None)  # type: ignore[arg-type]

    monkeypatch.setattr(cleaning, "begin", planted)


def cleans_open_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    original = log_cleaner.cleanable_range

    def planted(*arguments: object, **values: object) -> policy.CleanableRange:
        return original(*arguments, **{**values, "last_stable_offset": 1 << 60})  # type: ignore[arg-type]

    monkeypatch.setattr(log_cleaner, "cleanable_range", planted)


def swaps_in_the_wrong_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Old segments go before the new one is there."""
    original = Log.replace_segments

    def planted(self: Log, old: list[object], cleaned: object) -> bool:
        for segment in old:
            for path in segment.existing_files():  # type: ignore[attr-defined]
                if self.disk.exists(path):
                    self.disk.rename(path, path + ".deleted")
                    self.disk.rename(path + ".deleted", path + ".x")
        self.disk.fsync_dir(self.dir)
        for segment in old:
            for path in segment.existing_files():  # type: ignore[attr-defined]
                if self.disk.exists(path + ".x"):
                    self.disk.rename(path + ".x", path)
        return original(self, old, cleaned)  # type: ignore[arg-type]

    monkeypatch.setattr(Log, "replace_segments", planted)


PLANTED: list[Callable[[pytest.MonkeyPatch], None]] = [
    drops_the_newest,
    forgets_tombstones_at_once,
    believes_aborted_records,
    forgets_producers,
    cleans_what_is_not_on_disk,
    cleans_open_transactions,
    swaps_in_the_wrong_order,
]


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert found(range(10_000, 10_000 + scale(150, 500)))
