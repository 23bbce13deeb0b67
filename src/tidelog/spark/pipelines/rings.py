"""Rings among invitations: users who invite each other in a circle.

A ring has two to `longest` different users and one invitation from each to the next, all within a window. It
belongs to the day (UTC) of its first invitation and is found once for this day, by the invitation that
completes it, in any order of arrival. `RingSearch` keeps the invitations of the window in sorted arrays,
about 70 bytes each. From each new invitation it walks back through inviters, for all new invitations
together. So its work grows with the new invitations, and with the logarithm of the kept ones.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, product

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pandas.util import hash_array

from tidelog.spark.pipelines.alerts import Finding, Seen, evidence, ring_name
from tidelog.spark.pipelines.days import DAY_MS

Longs = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]

MOST_RINGS = 1_000
"""A crowd in which all invite all has a huge number of rings: stop after this many of one micro-batch."""
MOST_WALKS = 1_000
"""The most chains of inviters that are followed from a new invitation, for the same reason."""
BLOCK = 1_024
"""New invitations that walk together: this bounds the memory of a search in a crowd."""
PRUNES = 4
"""How often old invitations are removed while the watermark moves by the length of the window."""
COLUMNS = ("inviter", "invitee", "ts")
INVITATIONS = pa.schema([("inviter", pa.string()), ("invitee", pa.string()), ("ts", pa.int64())])


@dataclass(frozen=True, slots=True)
class Invitations:
    """Invitations sorted by the invitee's hash. Names are compared only where hashes are equal."""

    inviter: Hashes
    invitee: Hashes
    ts: Longs
    names: pa.Table

    @classmethod
    def of(cls, rows: pa.Table) -> Invitations:
        """Takes the columns inviter, invitee and ts. Invitations of oneself are left out."""
        rows = rows.select(COLUMNS).cast(INVITATIONS)
        inviter, invitee = (_hashes(rows[name]) for name in ("inviter", "invitee"))
        ts = rows["ts"].to_numpy()
        order = np.lexsort((inviter, ts, invitee))
        order = order[inviter[order] != invitee[order]]
        names = rows.select(("inviter", "invitee")).take(pa.array(order)).combine_chunks()
        return cls(inviter[order], invitee[order], ts[order], names)

    def __len__(self) -> int:
        return len(self.ts)

    def since(self, begin: int) -> Invitations:
        """The invitations of a time and later."""
        kept = self.ts >= begin
        if kept.all():
            return self
        return Invitations(
            self.inviter[kept], self.invitee[kept], self.ts[kept], self.names.filter(pa.array(kept))
        )

    def merged(self, other: Invitations) -> Invitations:
        inviter, invitee = (
            np.concatenate((getattr(self, name), getattr(other, name))) for name in ("inviter", "invitee")
        )
        ts = np.concatenate((self.ts, other.ts))
        order = np.argsort(invitee, kind="stable")
        names = pa.concat_tables([self.names, other.names]).take(pa.array(order)).combine_chunks()
        return Invitations(inviter[order], invitee[order], ts[order], names)

    def into(self, users: Hashes) -> tuple[Longs, Longs]:
        """The invitations of these users: the position in `users` and the row of each."""
        low = np.searchsorted(self.invitee, users, "left")
        counts = np.searchsorted(self.invitee, users, "right") - low
        which = np.repeat(np.arange(len(users)), counts)
        within = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
        return which, np.repeat(low, counts) + within

    def between(self, inviter: np.uint64, invitee: np.uint64) -> Iterator[tuple[str, str, int]]:
        """The names and times of the invitations of one user by another."""
        _, rows = self.into(np.array([invitee], np.uint64))
        for row in rows[self.inviter[rows] == inviter]:
            at = int(row)
            yield self.names["inviter"][at].as_py(), self.names["invitee"][at].as_py(), int(self.ts[at])


def _hashes(names: pa.ChunkedArray) -> Hashes:
    values = names.to_numpy(zero_copy_only=False)
    return np.asarray(hash_array(values.astype(object), categorize=False), np.uint64)


@dataclass(frozen=True, slots=True)
class _Walks:
    """Chains of inviters. A row of `users` begins with the new invitation's invitee and inviter."""

    origin: Longs
    """The number of the new invitation."""
    users: Hashes


class RingSearch:
    """The invitations of a window, and the rings that new ones complete."""

    def __init__(self, longest: int, within_ms: int) -> None:
        self.longest = longest
        self.within_ms = within_ms
        self._parts: list[Invitations] = []
        """From large to small. Parts of about the same size are merged, so there are few."""
        self._pruned_at = 0

    def __len__(self) -> int:
        return sum(len(part) for part in self._parts)

    def oldest_day(self, watermark: int) -> int:
        """The first millisecond of the oldest day that invitations at `watermark` or later can matter to."""
        return (watermark - self.within_ms) // DAY_MS * DAY_MS

    def add(self, rows: pa.Table, watermark: int) -> list[Finding]:
        """Add new invitations, all at `watermark` or later; returns the rings that they complete."""
        new = Invitations.of(rows)
        self._prune(watermark)
        found = self._found(new) if len(new) else []
        self._keep(new)
        return found

    def load(self, rows: pa.Table) -> None:
        """Add invitations whose rings were found before."""
        self._keep(Invitations.of(rows))

    def _prune(self, watermark: int) -> None:
        if watermark - self._pruned_at < self.within_ms // PRUNES:
            return
        self._pruned_at = watermark
        begin = self.oldest_day(watermark)
        self._parts = [kept for part in self._parts if len(kept := part.since(begin))]

    def _keep(self, new: Invitations) -> None:
        while self._parts and len(self._parts[-1]) <= 2 * len(new):
            new = self._parts.pop().merged(new)
        if len(new):
            self._parts.append(new)

    def _found(self, new: Invitations) -> list[Finding]:
        every = [*self._parts, new]
        order = np.lexsort((new.inviter, new.invitee, new.ts))  # the same in a replay
        seen: set[tuple[int, ...]] = set()
        found: list[Finding] = []
        for begin in range(0, len(order), BLOCK):
            for ring in self._circles(every, new, order[begin : begin + BLOCK]):
                if ring not in seen:
                    seen.add(ring)
                    found += self._new_findings(every, ring)
                if len(found) >= MOST_RINGS:
                    return found[:MOST_RINGS]
        return found

    def _circles(
        self, every: Sequence[Invitations], new: Invitations, rows: Longs
    ) -> Iterator[tuple[int, ...]]:
        """The hashes of each circle that has one of the new invitations, from inviter to invitee."""
        times = new.ts[rows]
        walks = _Walks(np.arange(len(rows)), np.stack((new.invitee[rows], new.inviter[rows]), axis=1))
        for length in range(2, self.longest + 1):
            walks, closed = self._step(every, walks, times)
            # A walk goes back in the circle: the last user of its row invited the one before.
            for users in closed.users.tolist():
                yield smallest_first([users[0], *reversed(users[1:])])
            if not len(walks.origin) or length == self.longest:
                return

    def _step(self, every: Sequence[Invitations], walks: _Walks, times: Longs) -> tuple[_Walks, _Walks]:
        """Take each walk one inviter further. Returns the walks that go on, and the walks that are rings."""
        found = []
        for part in every:
            which, rows = part.into(walks.users[:, -1])
            near = np.abs(part.ts[rows] - times[walks.origin[which]]) <= self.within_ms
            found.append((which[near], part.inviter[rows[near]]))
        which = np.concatenate([each[0] for each in found])
        inviters = np.concatenate([each[1] for each in found])
        order = np.lexsort((inviters, which))
        which, inviters = which[order], inviters[order]
        first = np.ones(len(which), bool)  # several invitations between two users are one step
        first[1:] = (which[1:] != which[:-1]) | (inviters[1:] != inviters[:-1])
        which, inviters = which[first], inviters[first]
        closing = inviters == walks.users[which, 0]
        closed = _first_of_each(_Walks(walks.origin[which[closing]], walks.users[which[closing]]))
        new_user = (walks.users[which] != inviters[:, None]).all(axis=1)
        which, inviters = which[new_user], inviters[new_user]
        users = np.concatenate((walks.users[which], inviters[:, None]), axis=1)
        return _first_of_each(_Walks(walks.origin[which], users)), closed

    def _new_findings(self, every: Sequence[Invitations], circle: Sequence[int]) -> Iterator[Finding]:
        """The rings of a circle of hashes, on the days for which they were not complete before."""
        hashes = [np.uint64(user) for user in circle]
        pairs = list(zip(hashes, [*hashes[1:], hashes[0]], strict=True))
        old: dict[tuple[str, str], list[int]] = {}
        both: dict[tuple[str, str], list[int]] = {}
        names: list[set[str]] = []
        for inviter, invitee in pairs:
            inviters = set()
            for number, part in enumerate(every):
                for one, other, ts in part.between(inviter, invitee):
                    inviters.add(one)
                    both.setdefault((one, other), []).append(ts)
                    if number < len(every) - 1:
                        old.setdefault((one, other), []).append(ts)
            names.append(inviters)
        for times in (*old.values(), *both.values()):
            times.sort()
        for members in islice(product(*map(sorted, names)), MOST_RINGS):  # one, unless hashes collide
            before = by_day(members, old, self.within_ms)
            for day, times in by_day(members, both, self.within_ms).items():
                if day not in before:
                    yield ring(members, times)


def smallest_first(members: Sequence[int]) -> tuple[int, ...]:
    first = members.index(min(members))
    return (*members[first:], *members[:first])


def _first_of_each(walks: _Walks) -> _Walks:
    """At most `MOST_WALKS` of each new invitation."""
    order = np.argsort(walks.origin, kind="stable")
    origin, users = walks.origin[order], walks.users[order]
    number = np.arange(len(origin)) - np.searchsorted(origin, origin, "left")
    kept = number < MOST_WALKS
    return _Walks(origin[kept], users[kept])


def by_day(
    members: Sequence[str], invitations: dict[tuple[str, str], list[int]], within_ms: int
) -> dict[int, list[int]]:
    """The times of a circle's invitations, one for each member, for each day on which a ring begins.

    Takes the sorted times of the invitations between two users.
    """
    pairs = zip(members, [*members[1:], members[0]], strict=True)
    lists = [invitations.get(pair, []) for pair in pairs]
    found: dict[int, list[int]] = {}
    for first in sorted({ts for times in lists for ts in times}):
        if first // DAY_MS in found:
            continue
        at = [bisect_left(times, first) for times in lists]
        if all(
            place < len(times) and times[place] - first <= within_ms
            for place, times in zip(at, lists, strict=True)
        ):
            found[first // DAY_MS] = [times[place] for place, times in zip(at, lists, strict=True)]
    return found


def ring(members: Sequence[str], times: Sequence[int]) -> Finding:
    name = ring_name(members)
    seen = sorted(Seen(ts, "", "", "", True) for ts in times)
    facts = evidence(seen, members=name.split(">"), length=len(members))
    return Finding(name, seen[0].ts, seen[-1].ts, facts)
