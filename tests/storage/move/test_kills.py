"""The broker is killed while it copies a partition, while appends wait for the rest, and while it swaps.

Each round draws its moment from the seed: a share of the copy, or some time after a file of the swap is seen.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.storage.move.test_broker import Client, two_folders
from tests.support.broker import Broker
from tests.support.raw import ConnectionClosed
from tests.support.scale import scale
from tests.support.wait import eventually
from tidelog.storage.future_replica import MOVE_COMPLETE

KILLS = scale(6, 70)
FILL = 2000  # records before the first move
COUNT, SIZE = 20, 1000  # of the batches that are written meanwhile
RATE = 4_000_000
"""So slow that a copy is hit on its way, so fast that a round takes less than a second of it."""
ROUND_SECONDS = 30.0


class Places:
    """What the two folders hold of the partition, as the kernel tells it."""

    def __init__(self, *folders: str) -> None:
        self.folders = folders

    def futures(self) -> list[str]:
        return [
            f"{folder}/{name}"
            for folder in self.folders
            for name in os.listdir(folder)
            if name.endswith("-future")
        ]

    def copied_bytes(self) -> int:
        return sum(file.stat().st_size for path in self.futures() for file in Path(path).glob("*.log"))

    def named(self) -> list[str]:
        return [path for folder in self.folders if os.path.exists(path := f"{folder}/t-0")]

    def is_marked(self) -> bool:
        return any(os.path.exists(f"{path}/{MOVE_COMPLETE}") for path in [*self.futures(), *self.named()])

    def state(self) -> str:
        if len(self.named()) > 1:
            return "swapped, the old folder still there"
        if self.futures():
            return "copied and marked" if self.is_marked() else "copying"
        return "swapped, the mark still there" if self.is_marked() else "at rest"


class Killer(threading.Thread):
    """Kills the broker some time after a condition has come true, or once the move is over."""

    def __init__(self, broker: Broker, target: str, condition: Callable[[], bool], delay: float) -> None:
        super().__init__()
        self._broker, self._target = broker, f"{target}/t-0"
        self._condition, self._delay = condition, delay

    def run(self) -> None:
        deadline = time.monotonic() + ROUND_SECONDS
        try:
            while not self._is_true() and time.monotonic() < deadline:
                pass  # moments count here
            time.sleep(self._delay)
        finally:
            self._broker.kill()

    def _is_true(self) -> bool:
        try:
            return self._condition() or os.path.exists(self._target)
        except FileNotFoundError:  # renamed at this moment
            return False


def draw(rng: random.Random, stage: int, places: Places, size: int) -> tuple[Callable[[], bool], float]:
    if stage == 0:
        share = rng.uniform(0, 1) * size
        return lambda: places.copied_bytes() >= share, 0.0
    if stage == 1:  # the last bytes, the syncs and the mark
        return lambda: places.copied_bytes() >= size, rng.uniform(0, 0.03)
    return places.is_marked, rng.uniform(0, 0.005)


def test_nothing_is_lost_when_the_broker_is_killed_while_it_moves(tmp_path: Path) -> None:
    rng = random.Random(5)
    broker, a, b = two_folders(tmp_path, replica_alter_log_dirs_io_max_bytes_per_second=str(RATE))
    places, caught = Places(a, b), Counter[str]()
    with broker:
        client = Client(broker)
        client.create("t")
        client.produce("t", 0, FILL, SIZE // 3)
        client.produce("t", FILL, FILL, SIZE // 3)
        written = 2 * FILL
        for turn in range(KILLS):
            client = Client(broker)
            ((folder, *_), *futures) = client.where("t")
            target = b if folder == a else a
            if not futures:
                assert client.alter("t", target) == 0
            size = sum(path.stat().st_size for path in Path(folder).glob("t-0/*.log"))
            killer = Killer(broker, target, *draw(rng, turn % 3, places, size))
            killer.start()
            try:
                while True:
                    client.produce("t", written, COUNT, SIZE)
                    written += COUNT
                    killer.join(0.02)
            except (ConnectionClosed, OSError):
                pass
            killer.join()
            caught[places.state()] += 1
            broker.start()
            numbers = Client(broker).read_all("t")
            assert numbers == list(range(len(numbers)))
            assert len(numbers) in (written, written + COUNT)  # the last batch may not have been answered
            written = len(numbers)
        client = Client(broker)
        eventually(lambda: [f for _, f, _ in client.where("t")] == [False], "the last move ends", 30)
        assert client.read_all("t") == list(range(written))
    print(f"{KILLS} kills, {written} records:", dict(caught))
    assert caught["copying"] > 0
    if KILLS >= 30:  # the swap takes moments: a few kills may all miss it
        assert sum(count for state, count in caught.items() if "swapped" in state or "marked" in state) > 0
