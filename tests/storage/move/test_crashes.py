"""A crash at any file operation of a move loses nothing that was on the disk, and the move goes on."""

from __future__ import annotations

import random

import pytest

from tests.storage.helpers import NOW, batch, headers, marker
from tests.storage.move.world import KEY, A, B, Moving
from tests.support.scale import scale
from tests.support.simdisk import Crash, SimulatedDisk
from tidelog.records.batch import BatchHeader
from tidelog.storage.append import AppendOrigin
from tidelog.storage.transaction_index import AbortedTransaction


class Life:
    """Random appends, flushes and moves of one partition, and what of them has to be there after a crash."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.epoch = 0
        self.world = Moving(SimulatedDisk())
        self.batches: list[BatchHeader] = []
        self.durable = 0  # everything below this offset was synced
        self.start = 0
        self.sequence = 0
        self.open_transaction = False
        self.aborted: list[AbortedTransaction] = []
        self.swaps = 0

    def append(self) -> None:
        rng, world = self.random, self.world
        kind = rng.random()
        if kind < 0.5:
            world.append(batch(rng.randint(1, 3)), heavy=rng.random() < 0.3)
        elif kind < 0.8 or not self.open_transaction:
            world.append(batch(1, producer=(7, 0, self.sequence), transactional=True))
            self.sequence += 1
            self.open_transaction = True
        else:
            commit = rng.random() < 0.3
            world.append(marker(7, commit=commit), origin=AppendOrigin.COORDINATOR)
            self.open_transaction = False

    def act(self) -> None:
        rng, world = self.random, self.world
        kind = rng.random()
        if kind < 0.45:
            self.append()
        elif kind < 0.85:
            world.advance(rng.choice((0, 0, 0.01)))
        elif kind < 0.90:
            world.log.flush(NOW)
            self.durable = world.log.recovery_point
        elif kind < 0.92:
            world.logs.checkpoints.write_recovery_points()
            world.logs.checkpoints.write_log_start_offsets()
        elif kind < 0.94:
            world.log.delete_records_before(min(world.log.high_watermark, self.start + rng.randint(0, 9)))
            self.start = world.log.log_start_offset
        elif kind < 0.96:
            world.logs.retention.run()
        else:
            before = world.folder()
            world.moves.alter(KEY, rng.choice((A, B)))
            self.swaps += before != world.folder()

    def live(self, turns: int) -> None:
        for _ in range(turns):
            self.act()
        self.remember()

    def remember(self) -> None:
        """What the log has now, as far as its producers were told."""
        log = self.world.log
        known = {header.base_offset: header for header in self.batches}
        for header in headers(log):
            assert known.setdefault(header.base_offset, header) == header
        self.batches = sorted(known.values(), key=lambda header: header.base_offset)
        self.aborted = log.aborted_transactions(0, 1 << 40)

    def crash(self) -> None:
        """The world ends in the middle of a file operation, and the next broker starts."""
        disk = self.world.disk
        disk.crash_at = disk.operations + self.random.randint(1, 120)
        seen: dict[int, BatchHeader] = {}
        try:
            while True:
                self.act()
                for header in headers(self.world.log):
                    seen[header.base_offset] = header
        except Crash:
            pass
        known = {header.base_offset: header for header in self.batches} | seen
        self.epoch += 1
        self.world = self.world.crashed(disk.after_crash(self.random), self.epoch)
        self.check(known)

    def check(self, known: dict[int, BatchHeader]) -> None:
        log = self.world.log
        found = headers(log)
        assert log.log_end_offset >= self.durable, "what was synced is there"
        assert log.log_start_offset <= max(self.start, self.durable, log.log_end_offset)
        at = log.log_start_offset
        for header in found:
            assert header.base_offset <= at, "nothing is missing in between"
            at = header.next_offset
            if header.base_offset in known:
                assert header == known[header.base_offset]
        assert at == log.log_end_offset
        self.batches = found
        self.start = log.log_start_offset
        self.durable = min(self.durable, log.log_end_offset)
        entry = log.producers.entries.get(7)
        self.sequence = entry.last_sequence + 1 if entry is not None and entry.batches else 0
        self.open_transaction = entry is not None and entry.transaction_start is not None
        names = self.world.names(A) + self.world.names(B)
        assert names.count("t-0") == 1


@pytest.mark.parametrize("seed", range(scale(60, 2500)))
def test_a_move_survives_crashes(seed: int) -> None:
    life = Life(seed)
    life.live(life.random.randint(5, 60))
    for _ in range(4):
        life.crash()
        life.live(life.random.randint(0, 30))
    world = life.world
    target = B if world.folder() == A else A
    world.moves.alter(KEY, target)
    world.advance(5)
    life.remember()
    assert world.folder() == target
    assert world.log.dir == f"{target}/t-0"
    assert [header.base_offset for header in headers(world.log)] == [
        header.base_offset for header in life.batches if header.next_offset > world.log.log_start_offset
    ]
    assert not world.logs.futures.all()
