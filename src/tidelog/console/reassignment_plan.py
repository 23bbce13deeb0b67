"""Plans a reassignment: where replicas of partitions go so that brokers carry alike, with few moves."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tidelog.partitions import PartitionKey


class PlanRefused(ValueError):
    """The wish cannot be fulfilled; the message says why."""


@dataclass(frozen=True, slots=True)
class Move:
    """A partition whose replicas change. The first replica of each list is the preferred leader."""

    topic: str
    partition: int
    before: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def adding(self) -> tuple[int, ...]:
        """The brokers that copy the partition."""
        return tuple(broker for broker in self.after if broker not in self.before)

    @property
    def removing(self) -> tuple[int, ...]:
        return tuple(broker for broker in self.before if broker not in self.after)


def plan(
    partitions: Mapping[PartitionKey, Sequence[int]],
    brokers: Collection[int],
    racks: Mapping[int, str | None],
    replication_factor: int | None = None,
) -> list[Move]:
    """The moves that put the partitions on these brokers and nowhere else.

    Replicas on wanted brokers stay unless their broker carries two or more above another one. Replicas of a
    partition go to different racks where racks allow it. Leaders are spread. Raises PlanRefused.
    """
    wanted = sorted(set(brokers))
    if not wanted:
        raise PlanRefused("No broker is chosen.")
    if replication_factor is not None and replication_factor > len(wanted):
        raise PlanRefused(
            f"{replication_factor} replicas need as many brokers, but {len(wanted)} are chosen."
        )
    placed = _place(partitions, wanted, racks, replication_factor)
    _level(placed, wanted, racks)
    after = _with_leaders(partitions, placed, wanted)
    return [
        Move(topic, index, tuple(partitions[topic, index]), replicas)
        for (topic, index), replicas in after.items()
        if replicas != tuple(partitions[topic, index])
    ]


def _place(
    partitions: Mapping[PartitionKey, Sequence[int]],
    brokers: Sequence[int],
    racks: Mapping[int, str | None],
    replication_factor: int | None,
) -> dict[PartitionKey, list[int]]:
    """Keep the replicas on wanted brokers, and add the missing ones on those that carry least."""
    load = dict.fromkeys(brokers, 0)
    placed: dict[PartitionKey, list[int]] = {}
    for key, replicas in sorted(partitions.items()):
        count = min(replication_factor or len(replicas), len(brokers))
        placed[key] = [broker for broker in replicas if broker in load][:count]
        for broker in placed[key]:
            load[broker] += 1
    for key, replicas in sorted(partitions.items()):
        count = min(replication_factor or len(replicas), len(brokers))
        while len(placed[key]) < count:
            free = [broker for broker in brokers if broker not in placed[key]]
            broker = min(free, key=lambda one: (_rack_use(placed[key], one, racks), load[one], one))
            placed[key].append(broker)
            load[broker] += 1
    return placed


def _level(
    placed: Mapping[PartitionKey, list[int]], brokers: Sequence[int], racks: Mapping[int, str | None]
) -> None:
    """Move replicas from the fullest broker to the emptiest, until they differ by at most one.

    A replica does not move to a rack that its partition uses more than the rack of its old broker.
    """
    load = dict.fromkeys(brokers, 0)
    for replicas in placed.values():
        for broker in replicas:
            load[broker] += 1
    is_level = False
    while not is_level:
        is_level = True
        shifts = _Shifts(placed, racks)
        while pair := next((pair for pair in _uneven(load) if shifts.move_one(*pair)), None):
            full, empty = pair
            load[full] -= 1
            load[empty] += 1
            is_level = False


def _uneven(load: Mapping[int, int]) -> Iterator[tuple[int, int]]:
    """The pairs of brokers that differ by two or more, the fullest first and the emptiest second."""
    for full in sorted(load, key=lambda one: -load[one]):
        for empty in sorted(load, key=lambda one: load[one]):
            if load[full] - load[empty] < 2:
                break
            yield full, empty


class _Shifts:
    """Looks at each partition once for each pair of brokers: there may be tens of thousands."""

    def __init__(self, placed: Mapping[PartitionKey, list[int]], racks: Mapping[int, str | None]) -> None:
        self._placed = placed
        self._racks = racks
        self._left: dict[tuple[int, int], Iterator[list[int]]] = {}

    def move_one(self, full: int, empty: int) -> bool:
        """Move a replica from one broker to another. False if no partition that is left allows it."""
        left = self._left.setdefault((full, empty), iter(self._placed.values()))
        for replicas in left:
            if full not in replicas or empty in replicas:
                continue
            others = [broker for broker in replicas if broker != full]
            if _rack_use(others, empty, self._racks) <= _rack_use(others, full, self._racks):
                replicas[replicas.index(full)] = empty
                return True
        return False


def _with_leaders(
    before: Mapping[PartitionKey, Sequence[int]],
    placed: Mapping[PartitionKey, list[int]],
    brokers: Sequence[int],
) -> dict[PartitionKey, tuple[int, ...]]:
    """Let each broker be the preferred leader of about as many partitions; keep leaders where it is even."""
    led = dict.fromkeys(brokers, 0)
    most = -(-len(placed) // len(brokers))
    after: dict[PartitionKey, tuple[int, ...]] = {}
    for key, replicas in placed.items():
        old = before[key][0] if before[key] else -1
        keeps = old in replicas and led[old] < most
        leader = old if keeps else min(replicas, key=lambda one: (led[one], replicas.index(one)))
        led[leader] += 1
        after[key] = (leader, *(broker for broker in replicas if broker != leader))
    return after


def _rack_use(replicas: Sequence[int], broker: int, racks: Mapping[int, str | None]) -> int:
    """How many of the replicas are in the rack of a broker; 0 without racks."""
    rack = racks.get(broker)
    return 0 if rack is None else sum(racks.get(other) == rack for other in replicas)
