"""Replicas are spread evenly over brokers and over racks, and leaders are chosen by Kafka's rule."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.controller.election import elect, first_state, go_offline
from tidelog.controller.placement import place_partitions
from tidelog.errors import InvalidPartitions, InvalidReplicationFactor
from tidelog.metadata.state import NO_LEADER, PartitionState


def without_racks(count: int) -> dict[int, str | None]:
    return dict.fromkeys(range(count))


def test_leaders_go_round_the_brokers_and_followers_drift() -> None:
    placed = place_partitions(without_racks(5), 10, 3, start=0, shift=0)
    assert placed == {
        0: [0, 1, 2],
        1: [1, 2, 3],
        2: [2, 3, 4],
        3: [3, 4, 0],
        4: [4, 0, 1],
        5: [0, 2, 3],
        6: [1, 3, 4],
        7: [2, 4, 0],
        8: [3, 0, 1],
        9: [4, 1, 2],
    }


def test_racks_alternate() -> None:
    racks: dict[int, str | None] = {0: "a", 1: "b", 2: "c", 3: "c", 4: "a", 5: "b"}
    placed = place_partitions(racks, 12, 3, start=0, shift=0)
    assert all(len({racks[broker] for broker in replicas}) == 3 for replicas in placed.values())
    assert set(Counter(replicas[0] for replicas in placed.values()).values()) == {2}


def test_racks_count_only_where_every_broker_has_one() -> None:
    assert place_partitions({0: "a", 1: None, 2: "a"}, 1, 2, start=0, shift=0) == {0: [0, 1]}


def test_added_partitions_go_on_with_the_round() -> None:
    whole = place_partitions(without_racks(3), 6, 1, start=1, shift=0)
    added = place_partitions(without_racks(3), 3, 1, first_partition=3, start=1, shift=0)
    assert added == {n: whole[n] for n in (3, 4, 5)}


@settings(max_examples=150, derandomize=True, deadline=None)
@given(st.integers(1, 12), st.integers(1, 40), st.integers(0, 4), st.integers(0, 2**16), st.data())
def test_every_layout_is_even(
    brokers: int, partitions: int, racks: int, seed: int, data: st.DataObject
) -> None:
    factor = data.draw(st.integers(1, brokers))
    names = {n: f"rack{n % racks}" if racks else None for n in range(brokers)}
    placed = place_partitions(names, partitions, factor, rng=random.Random(seed))
    assert sorted(placed) == list(range(partitions))
    for replicas in placed.values():
        assert len(set(replicas)) == factor
        used = Counter(names[broker] for broker in replicas)
        if racks:
            assert len(used) == min(factor, len(set(names.values()))), "each rack before any a second time"
    leaders = Counter(replicas[0] for replicas in placed.values())
    assert max(leaders.values()) - min(leaders[n] for n in names) <= 1


@pytest.mark.parametrize(
    ("count", "factor", "error"),
    [(0, 1, InvalidPartitions), (1, 0, InvalidReplicationFactor), (1, 4, InvalidReplicationFactor)],
)
def test_what_cannot_be_placed_is_refused(count: int, factor: int, error: type[Exception]) -> None:
    with pytest.raises(error):
        place_partitions(without_racks(3), count, factor)


def test_a_new_partition_is_led_by_its_first_live_replica() -> None:
    state = first_state([3, 1, 2], {1, 2}, 7)
    assert (state.leader, state.isr, state.leader_epoch, state.controller_epoch) == (1, [1, 2], 0, 7)
    assert first_state([3], {1}, 7).leader == NO_LEADER


def test_a_leader_that_lives_stays() -> None:
    assert elect(PartitionState([1, 2], 2, 4, [1, 2]), {1, 2}, 9) is None


def test_the_next_leader_is_the_first_in_sync_replica_of_the_assignment() -> None:
    elected = elect(PartitionState([1, 2, 3], 1, 4, [3, 2, 1], 8, 1), {2, 3}, 9)
    assert elected == PartitionState([1, 2, 3], 2, 5, [2, 3], 8, 9)


def test_a_replica_that_is_not_in_sync_leads_only_where_that_is_allowed() -> None:
    state = PartitionState([1, 2], 1, 4, [1])
    offline = elect(state, {2}, 9)
    assert offline is not None
    assert (offline.leader, offline.isr, offline.leader_epoch) == (NO_LEADER, [1], 5)
    assert elect(offline, {2}, 10) is None, "an offline partition stays as it is"
    unclean = elect(offline, {2}, 10, unclean=True)
    assert unclean is not None
    assert (unclean.leader, unclean.isr, unclean.leader_epoch) == (2, [2], 6)


def test_a_lost_disk_takes_only_what_the_broker_leads() -> None:
    assert go_offline(PartitionState([1, 2], 2, 4, [1, 2]), 1, 9) is None
    offline = go_offline(PartitionState([1], 1, 4, [1]), 1, 9)
    assert offline is not None
    assert (offline.leader, offline.leader_epoch, offline.isr) == (NO_LEADER, 5, [1])
