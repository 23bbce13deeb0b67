"""CommitChain: whether the commits of one partition can have taken effect one after the other.

A chain leads from the start of the log to its end. Each commit in it was read from where the one before it
ends. An acknowledged commit is in the chain, a refused one is not, one of unknown outcome may be.

Only commits of unknown outcome leave a choice, and every rule concerns a single commit or a single offset:

- The chain stops at each offset that was acknowledged, at each one where a member started, and at the end.
- No commit stands before an acknowledged one of a greater offset that was done before it was sent.
- A commit into an offset where a member started was sent before that member's first read.

So the offsets that a chain can reach are found in one pass from the smallest to the greatest, in a time that
grows with the number of commits and not with the number of chains.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

NEVER = 1 << 62


@dataclass(slots=True, eq=False)
class Commit:
    """`sent` and `done` are positions in the history; `done` is NEVER where the outcome is unknown.

    Its reads start at `base`, or where a commit of unknown outcome ended that the member sent since:
    `before` is the last of them.
    """

    member: str
    base: int
    offset: int
    sent: int
    before: Commit | None = field(default=None, repr=False)
    done: int = NEVER
    refused: bool = False

    @property
    def sure(self) -> bool:
        return self.done != NEVER and not self.refused

    def __str__(self) -> str:
        kind = "acknowledged" if self.sure else "unsure"
        perhaps = f", perhaps from up to {self.before.offset}" if self.before is not None else ""
        where = f"line {self.sent + 1}, reads from {self.base}{perhaps}"
        return f"{kind} commit of {self.offset} by {self.member} ({where})"


@dataclass(slots=True)
class Start:
    """A member's first read of a partition that it was given."""

    member: str
    offset: int
    assigned: int
    read: int

    def __str__(self) -> str:
        return f"{self.member} starts at {self.offset} (line {self.read + 1})"


class CommitChain:
    """Finds what is in the way of a chain from 0 to `end`; `problems` is empty where nothing is."""

    def __init__(self, commits: Iterable[Commit], starts: Sequence[Start], end: int) -> None:
        self._starts = starts
        self._end = end
        self._at: defaultdict[int, list[Commit]] = defaultdict(list)
        self._sure: dict[int, Commit] = {}
        self._doubled: list[Commit] = []
        for commit in commits:
            if commit.refused:
                continue
            self._at[commit.offset].append(commit)
            if commit.sure and self._sure.setdefault(commit.offset, commit) is not commit:
                self._doubled.append(commit)
        self._sure_offsets = sorted(self._sure)
        done = [self._sure[offset].done for offset in reversed(self._sure_offsets)]
        self._done_above = [*accumulate(done, min)][::-1]
        # By offset where a member started: the first such start.
        self._first_starts: dict[int, Start] = {}
        for start in sorted(starts, key=lambda start: start.read):
            if start.offset:
                self._first_starts.setdefault(start.offset, start)
        self._reached = {0}
        self._furthest = 0
        self._bases: dict[int, int] = {}  # by the identity of a commit: the greatest reached base

    def problems(self) -> list[str]:
        return [*self._broken_links(), *self._stale_starts()]

    # -- links

    def _broken_links(self) -> Iterable[str]:
        """The starts that nobody committed, and the first acknowledged commit, or the end, out of reach."""
        stop = 0  # the last offset that every chain has
        for offset in sorted({*self._at, *self._first_starts, self._end}):
            if offset > self._end:
                break
            if self._reaches(offset, stop):
                self._reached.add(offset)
                self._furthest = offset
            elif offset in self._sure:
                yield self._strange(self._sure[offset])
                return
            elif offset == self._end:
                yield f"commits lead to {self._furthest}, and the log ends at {offset}"
                return
            elif offset in self._first_starts:
                yield self._unfounded(self._first_starts[offset])
                continue
            if offset in self._sure or offset in self._first_starts:
                stop = offset
        for commit in self._doubled:
            yield f"{commit.offset} was committed, so the {commit} reads records twice"
        for offset in self._sure_offsets[bisect_right(self._sure_offsets, self._end) :]:
            yield f"the log ends at {self._end}, before the {self._sure[offset]}"
        for start in self._starts:
            if start.offset > self._end:
                yield f"{start}, and the log ends at {self._end}"

    def _reaches(self, offset: int, stop: int) -> bool:
        """Whether a chain that stops at `stop` goes on to `offset` at once."""
        found = offset == 0
        sure = self._sure.get(offset)
        for commit in self._at.get(offset, ()):
            base = self._greatest_base(commit)
            fits = (sure is None or sure is commit) and self._is_in_time(commit)
            found = found or (fits and stop <= base < offset)
        return found

    def _greatest_base(self, commit: Commit) -> int:
        """Where its reads start, as far on as a chain reaches; -1 where none reaches its base.

        Offsets come in their order, so everything about the commit before it is known.
        """
        before = commit.before
        if before is not None and before.offset < commit.offset and before.offset in self._reached:
            base = before.offset
        elif before is not None and id(before) in self._bases:
            base = self._bases[id(before)]
        else:
            base = commit.base if commit.base in self._reached else -1
        self._bases[id(commit)] = base
        return base

    def _is_in_time(self, commit: Commit) -> bool:
        start = self._first_starts.get(commit.offset)
        return commit.sent < self._done_after(commit.offset) and (start is None or commit.sent < start.read)

    def _done_after(self, offset: int) -> int:
        """When the first acknowledged commit of a greater offset was done."""
        at = bisect_right(self._sure_offsets, offset)
        return self._done_above[at] if at < len(self._sure_offsets) else NEVER

    # -- the words of a problem

    def _strange(self, commit: Commit) -> str:
        if commit.sent > self._done_after(commit.offset):
            return f"a greater offset was committed before the {commit} was sent"
        start = self._first_starts.get(commit.offset)
        if start is not None and commit.sent > start.read:
            return f"{start} before the {commit} was sent"
        what = "reads records twice" if commit.base < self._furthest else "leaves records out"
        return f"{self._furthest} was committed, so the {commit} {what}"

    def _unfounded(self, start: Start) -> str:
        candidates = self._at.get(start.offset, [])
        if not candidates:
            return f"{start}, which nobody committed"
        if all(commit.sent > start.read for commit in candidates):
            return f"{start} before it was committed"
        return f"{start}, and no commit leads there from {self._furthest}"

    def _stale_starts(self) -> Iterable[str]:
        """Members that started before an offset that was committed when they were given the partition.

        An offset was committed when its commit was acknowledged, and when a member started there.
        """
        moments = sorted(
            [(commit.done, commit.offset) for commit in self._sure.values()]
            + [(start.read, start.offset) for start in self._starts]
        )
        greatest = [*accumulate((offset for _, offset in moments), max)]
        for start in self._starts:
            at = bisect_left(moments, (start.assigned, -1))
            if at and greatest[at - 1] > start.offset:
                yield f"{start}, and {greatest[at - 1]} was committed before it was assigned"
