"""The ring search finds what a look at the whole log finds, in any order of arrival, and forgets old ones."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.scale import scale
from tests.tables.arrow_rows import frame, without_spark
from tidelog.spark.pipelines import invitees
from tidelog.spark.pipelines import rings as module
from tidelog.spark.pipelines.alerts import Finding, ring_name
from tidelog.spark.pipelines.days import DAY_MS, HOUR_MS
from tidelog.spark.pipelines.declare import Context
from tidelog.spark.pipelines.rings import INVITATIONS, MOST_RINGS, RingSearch

MINUTE = 60_000
TODAY = 20_000 * DAY_MS
WITHIN = 12 * HOUR_MS

Edge = tuple[str, str, int]
"""Inviter, invitee and time."""


def table(edges: Iterable[Edge]) -> pa.Table:
    rows = list(edges)
    columns = [list(column) for column in zip(*rows, strict=True)] if rows else [[], [], []]
    return pa.table(columns, INVITATIONS)


def invitations(*pairs: str, apart: int = MINUTE) -> list[Edge]:
    """`a>b` is an invitation of b by a."""
    return [(*pair.split(">"), TODAY + n * apart) for n, pair in enumerate(pairs)]  # type: ignore[misc]


def named(found: Iterable[Finding]) -> list[tuple[str, int]]:
    return sorted((ring.subject, ring.first // DAY_MS) for ring in found)


def at_once(edges: Sequence[Edge], longest: int = 5, within: int = WITHIN) -> list[Finding]:
    return RingSearch(longest, within).add(table(edges), 0)


def recomputed(edges: Sequence[Edge], longest: int, within: int) -> list[tuple[str, int]]:
    """Every circle of users, with every choice of invitations, over the whole log."""
    times: dict[tuple[str, str], list[int]] = {}
    invitees: dict[str, set[str]] = {}
    for inviter, invitee, ts in edges:
        times.setdefault((inviter, invitee), []).append(ts)
        invitees.setdefault(inviter, set()).add(invitee)

    def circles(path: list[str]) -> Iterator[list[str]]:
        for other in invitees.get(path[-1], ()):
            if other == path[0] and len(path) > 1:
                yield path
            elif other > path[0] and len(path) < longest and other not in path:
                yield from circles([*path, other])

    found = set()
    for first in invitees:
        for members in circles([first]):
            pairs = zip(members, [*members[1:], members[0]], strict=True)
            for choice in product(*(times[pair] for pair in pairs)):
                if max(choice) - min(choice) <= within:
                    found.add((ring_name(members), min(choice) // DAY_MS))
    return sorted(found)


@pytest.mark.parametrize(
    ("pairs", "found"),
    [
        (["a>b", "b>a"], ["a>b"]),
        (["c>a", "b>c", "a>b"], ["a>b>c"]),
        (["a>b", "b>c", "c>d", "d>e", "e>a"], ["a>b>c>d>e"]),
        (["a>b", "b>c", "c>d", "d>e", "e>f", "f>a"], []),
        (["a>b", "b>c", "a>c"], []),
        (["a>a"], []),
        (["a>b", "b>a", "b>c", "c>b", "a>x", "y>b"], ["a>b", "b>c"]),
        (["a>b", "a>b", "b>a"], ["a>b"]),
    ],
)
def test_rings_are_circles_of_invitations(pairs: list[str], found: list[str]) -> None:
    assert sorted(ring.subject for ring in at_once(invitations(*pairs))) == found


def test_a_ring_is_closed_within_its_time_and_belongs_to_the_day_of_its_first_invitation() -> None:
    slow = invitations("a>b", "b>a", apart=2 * HOUR_MS)
    assert named(at_once(slow, within=2 * HOUR_MS)) == [("a>b", TODAY // DAY_MS)]
    assert not at_once(slow, within=2 * HOUR_MS - 1)
    over_midnight = [("a", "b", TODAY - 1), ("b", "a", TODAY + 1)]
    assert named(at_once(over_midnight)) == [("a>b", TODAY // DAY_MS - 1)]


def test_the_evidence_is_that_of_the_ring() -> None:
    (ring,) = at_once(invitations("b>a", "a>b"))
    assert (ring.first, ring.last) == (TODAY, TODAY + MINUTE)
    assert '"members":["a","b"],"length":2' in ring.evidence


def test_a_ring_is_found_once_for_a_day_also_when_its_first_invitations_are_old() -> None:
    search = RingSearch(5, HOUR_MS)
    morning, evening = TODAY + HOUR_MS, TODAY + 20 * HOUR_MS
    assert len(search.add(table([("a", "b", morning), ("b", "a", morning)]), 0)) == 1
    assert not search.add(table([("a", "b", evening), ("b", "a", evening)]), evening)
    tomorrow = evening + DAY_MS
    assert len(search.add(table([("a", "b", tomorrow), ("b", "a", tomorrow)]), tomorrow)) == 1


def test_a_crowd_that_invites_everybody_is_no_endless_search() -> None:
    crowd = [f"u{n}" for n in range(20)]
    everybody = [f"{one}>{other}" for one in crowd for other in crowd if one != other]
    edges = invitations(*everybody, apart=1)
    found = at_once(edges, longest=8)
    assert len(found) == MOST_RINGS
    random.Random(1).shuffle(edges)
    assert found == at_once(edges, longest=8), "a replay reads the same rows in another order"


edges = st.lists(
    st.tuples(st.sampled_from("abcdef"), st.sampled_from("abcdef"), st.integers(0, 40)), max_size=30
)


@settings(max_examples=scale(50, 1_000))
@given(edges, st.integers(2, 5), st.integers(1, 14), st.randoms(use_true_random=False))
def test_small_batches_with_replays_find_what_a_look_at_the_whole_log_finds(
    pairs: list[tuple[str, str, int]], longest: int, hours: int, chance: random.Random
) -> None:
    """Shuffled arrivals, with duplicates. Each batch is replayed from the invitations before it."""
    within = hours * HOUR_MS
    log = [(inviter, invitee, TODAY + at * HOUR_MS) for inviter, invitee, at in pairs]
    wanted = recomputed([edge for edge in log if edge[0] != edge[1]], longest, within)
    assert named(at_once(log, longest, within)) == wanted
    arrivals = [*log, *(edge for edge in log if chance.random() < 0.2)]
    chance.shuffle(arrivals)
    search, found, known = RingSearch(longest, within), [], list[Edge]()
    while arrivals:
        batch = [arrivals.pop() for _ in range(min(len(arrivals), chance.randint(1, 8)))]
        replay = RingSearch(longest, within)
        replay.load(table(known))
        known += batch
        first = search.add(table(batch), 0)
        assert named(first) == named(replay.add(table(batch), 0))
        found += first
    assert named(found) == wanted


@settings(max_examples=scale(5, 200))
@given(st.randoms(use_true_random=False))
def test_invitations_that_are_forgotten_are_not_needed(chance: random.Random) -> None:
    """Five days in order, up to two hours late: the search keeps little and finds all."""
    users = [f"u{n}" for n in range(25)]
    log = [(*chance.sample(users, 2), TODAY + n * HOUR_MS + chance.randrange(HOUR_MS)) for n in range(120)]
    arrivals = sorted(log, key=lambda edge: edge[2] + chance.randrange(2 * HOUR_MS))
    search, found, newest = RingSearch(3, 6 * HOUR_MS), [], 0
    while arrivals:
        count = chance.randint(1, 20)
        batch, arrivals = arrivals[:count], arrivals[count:]
        watermark = max(0, newest - 2 * HOUR_MS)
        assert all(edge[2] >= watermark for edge in batch)
        found += search.add(table(batch), watermark)
        newest = max(newest, *(edge[2] for edge in batch))
        assert len(search) <= 24 + 6 + 2 + 6 // module.PRUNES + 2 * 20
    assert named(found) == recomputed(log, 3, 6 * HOUR_MS)


def test_names_with_the_same_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    def poor(values: np.ndarray[tuple[int], np.dtype[np.object_]], *, categorize: bool) -> object:
        return np.array([ord(name[0]) % 3 for name in values], np.uint64)

    monkeypatch.setattr(module, "hash_array", poor)
    edges = invitations("a>b", "b>c", "c>a", "e>c", "d>b", "c>d")
    hidden = {edge for edge in recomputed(edges, 3, WITHIN) if edge not in named(at_once(edges, 3))}
    assert named(at_once(edges, 3)), "a>b>c is found"
    assert not {edge for edge in named(at_once(edges, 3)) if edge not in recomputed(edges, 3, WITHIN)}
    assert not hidden


def test_many_small_batches_are_kept_in_few_parts_of_less_than_a_hundred_bytes_an_invitation() -> None:
    search, count, size = RingSearch(5, WITHIN), 300, 50
    for number in range(count):
        at = TODAY + number * MINUTE
        search.add(table((f"user-{at + n}", f"invitee-{at + n}", at) for n in range(size)), TODAY)
    assert len(search) == count * size
    assert len(search._parts) <= 10, "a step looks into each part"
    arrays = sum(part.inviter.nbytes + part.invitee.nbytes + part.ts.nbytes for part in search._parts)
    assert (arrays + sum(part.names.nbytes for part in search._parts)) / len(search) < 100


def test_the_history_forgets_what_was_decided_and_nothing_else(tmp_path: Path) -> None:
    tables = without_spark(tmp_path)
    hour, day = HOUR_MS, DAY_MS
    kinds = [invitees.SPAN, invitees.EDGE, invitees.CLOCK]
    kept = {(invitees.SPAN, 18 * hour), (invitees.EDGE, 3 * day), (invitees.CLOCK, 9 * day)}
    old = {(invitees.SPAN, 12 * hour), (invitees.EDGE, 2 * day), (invitees.CLOCK, 8 * day)}
    found = sorted(kept | old)
    columns = {"kind": [kind for kind, _ in found], "slot": [slot for _, slot in found], "who": kinds * 2}
    rows = frame({name: pa.array(values) for name, values in columns.items()})
    by = invitees.PARTITION_BY
    tables.write(rows, invitees.HISTORY, writer="w", batch=0, partition_by=by)
    limits = {"idle_hours": 6, "silent_minutes": 60}
    now = (10 * day + hour) * 1_000
    invitees.forget(Context(tables.spark, limits, tables), 30 * hour - 1, 3 * day, now)
    left = tables.delta(invitees.HISTORY).to_pyarrow_table().to_pylist()
    assert {(row["kind"], row["slot"]) for row in left} == kept
