"""Assigns the replicas of partitions to brokers, spread over racks and brokers.

Kafka's counterpart is AdminUtils. The first replicas (the preferred leaders) go round-robin over the brokers.
The other replicas follow at a distance that grows by one with each round, so that the partitions of a lost
broker are spread over all others. With racks, the order of the brokers alternates between racks, and a
partition has a second replica in a rack only if every rack has one.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from tidelog.errors import InvalidPartitions, InvalidReplicationFactor


def place_partitions(
    brokers: Mapping[int, str | None],
    count: int,
    replication_factor: int,
    *,
    first_partition: int = 0,
    start: int | None = None,
    shift: int | None = None,
    rng: random.Random | None = None,
) -> dict[int, list[int]]:
    """The replicas of `count` partitions from `first_partition` on. `brokers` has the rack of each broker.

    `start` and `shift` are the first broker and the first distance, by default random: the first partitions
    of many small topics must not be on the same broker. Racks are used if every broker has one.
    """
    _check_counts(len(brokers), count, replication_factor)
    draw = rng or random
    order = _alternate_racks(brokers) if None not in brokers.values() else sorted(brokers)
    size = len(order)
    start = draw.randrange(size) if start is None else start
    shift = draw.randrange(size) if shift is None else shift
    placed: dict[int, list[int]] = {}
    for partition in range(first_partition, first_partition + count):
        if partition > 0 and partition % size == 0:
            shift += 1
        placed[partition] = _replicas(order, brokers, (partition + start) % size, shift, replication_factor)
    return placed


def _check_counts(brokers: int, count: int, replication_factor: int) -> None:
    if count <= 0:
        raise InvalidPartitions(f"Number of partitions is {count}; it has to be above 0.")
    if replication_factor <= 0:
        raise InvalidReplicationFactor(f"Replication factor is {replication_factor}; it has to be above 0.")
    if replication_factor > brokers:
        raise InvalidReplicationFactor(
            f"Replication factor is {replication_factor}, but there are only {brokers} live broker(s)."
        )


def _replicas(
    order: Sequence[int], racks: Mapping[int, str | None], first: int, shift: int, replication_factor: int
) -> list[int]:
    size = len(order)
    # The other brokers, each once, beginning `shift` positions after the leader.
    other_brokers = [order[(first + 1 + (shift + i) % (size - 1)) % size] for i in range(size - 1)]
    chosen = [order[first]]
    while len(chosen) < replication_factor:
        uses = _count_racks(chosen, racks)
        free = [broker for broker in other_brokers if broker not in chosen]
        least = min(uses.get(racks[broker], 0) for broker in free)
        chosen.append(next(broker for broker in free if uses.get(racks[broker], 0) == least))
    return chosen


def _count_racks(chosen: Sequence[int], racks: Mapping[int, str | None]) -> dict[str | None, int]:
    uses: dict[str | None, int] = {}
    for broker in chosen:
        rack = racks[broker]
        if rack is not None:
            uses[rack] = uses.get(rack, 0) + 1
    return uses


def _alternate_racks(brokers: Mapping[int, str | None]) -> list[int]:
    """The brokers in an order that alternates between the racks."""
    by_rack: dict[str | None, list[int]] = {}
    for broker in sorted(brokers):
        by_rack.setdefault(brokers[broker], []).append(broker)
    columns = [by_rack[rack] for rack in sorted(by_rack, key=str)]
    rows = max(len(column) for column in columns)
    return [column[row] for row in range(rows) for column in columns if row < len(column)]
