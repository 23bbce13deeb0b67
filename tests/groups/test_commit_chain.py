"""CommitChain says the same as a search through all chains, and says it soon for thousands of commits."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

import pytest

from tests.support.scale import scale
from tidelog.simulation.checks.commit_chain import NEVER, Commit, CommitChain, Start
from tidelog.simulation.checks.group_checker import check
from tidelog.simulation.checks.group_history import Line

T = ("t", 0)


# -- the definition, which takes a time that doubles with each commit of unknown outcome


def bases(commit: Commit) -> set[int]:
    found = {commit.base}
    before = commit.before
    while before is not None:
        found.add(before.offset)
        before = before.before
    return found


def is_explained(commits: Sequence[Commit], starts: Sequence[Start], end: int) -> bool:
    """Whether one of all chains fits."""
    candidates = [commit for commit in commits if not commit.refused]
    sure = [commit for commit in candidates if commit.sure]
    chains: list[list[Commit]] = [[]]
    while chains:
        chain = chains.pop()
        reached = chain[-1].offset if chain else 0
        if reached == end and all(commit in chain for commit in sure) and fits(chain, starts):
            return True
        chains += [
            [*chain, commit] for commit in candidates if commit.offset > reached and reached in bases(commit)
        ]
    return False


def fits(chain: Sequence[Commit], starts: Sequence[Start]) -> bool:
    for at, commit in enumerate(chain):
        if any(before.sent >= commit.done for before in chain[:at]):
            return False
    for start in starts:
        into = next((commit for commit in chain if commit.offset == start.offset), None)
        if start.offset and (into is None or into.sent >= start.read):
            return False
        if any(other.offset > start.offset and other.done < start.assigned for other in chain):
            return False
        if any(other.offset > start.offset and other.read < start.assigned for other in starts):
            return False
    return True


def drawn(chance: random.Random) -> tuple[list[Commit], list[Start], int]:
    """A few owners that may be right or wrong."""
    commits: list[Commit] = []
    starts: list[Start] = []
    at = end = 0
    for member in range(chance.randrange(1, 5)):
        possible = [0, *(commit.offset for commit in commits)]
        base = position = chance.choice(possible) if chance.random() < 0.3 else max(possible)
        perhaps: Commit | None = None
        assigned, at = at, at + 1
        starts += [Start(f"m{member}", base, max(0, assigned - chance.randrange(2)), at)]
        for _ in range(chance.randrange(4)):
            position += chance.randrange(1, 3)
            commit = Commit(f"m{member}", base, position, at := at + 1, perhaps)
            commits.append(commit)
            fate = chance.random()
            if fate < 0.4:
                commit.done = at = at + 1
                base, perhaps = position, None
            elif fate < 0.5:
                commit.done, commit.refused = at, True
                break
            else:
                perhaps = commit
        end = max(end, position)
    # Lines of members mix: some are told late.
    for commit in commits:
        if commit.sure and chance.random() < 0.2:
            commit.done += chance.randrange(6)
    return commits, starts, end if chance.random() < 0.8 else chance.randrange(end + 2)


def test_it_says_what_a_search_through_all_chains_says() -> None:
    chance = random.Random(29)
    right = 0
    histories = scale(2_000, 100_000)
    for _ in range(histories):
        commits, starts, end = drawn(chance)
        problems = CommitChain(commits, starts, end).problems()
        assert (problems == []) == is_explained(commits, starts, end), (commits, starts, end, problems)
        right += problems == []
    assert histories // 10 < right < histories * 9 // 10  # the draw has enough of both kinds


# -- long histories


class Draft:
    """The history of a broker that keeps its promises while hardly any commit is answered."""

    def __init__(self, seed: int) -> None:
        self.lines: list[Line] = []
        self.committed = 0
        self._chance = random.Random(seed)
        self.generation = 0

    def own(self, commits: int, answered: float) -> None:
        """One more owner, which sends so many commits of which a share is answered."""
        self.generation += 1
        who = f"m{self.generation}"
        self.lines.append(Line(who, "assigned", *T, detail=str(self.generation)))
        position = self.committed
        for _ in range(commits):
            for _ in range(self._chance.randrange(1, 4)):
                self.lines.append(Line(who, "read", *T, position, f"v{position}"))
                position += 1
            self.lines.append(Line(who, "committing", *T, position))
            is_answered = self._chance.random() < answered
            if is_answered or self._chance.random() < 0.5:
                self.committed = position
            self.lines.append(Line(who, "committed" if is_answered else "unsure", *T, position))

    def end(self) -> None:
        """A last owner, whose commits are all answered."""
        self.own(3, answered=1.0)

    def problems(self) -> list[str]:
        return check(self.lines, {T: self.committed}, {T: self.committed})


def long_draft(seed: int = 0, *, ends: bool = True) -> Draft:
    draft = Draft(seed)
    for _ in range(20):
        draft.own(commits=scale(150, 1_000), answered=0.0)
        draft.own(commits=scale(10, 100), answered=0.1)
    if ends:
        draft.end()
    return draft


def test_thousands_of_commits_without_an_answer_are_judged_at_once() -> None:
    draft = long_draft()
    unsure = sum(line.what == "unsure" for line in draft.lines)
    assert unsure > 3_000
    began = time.process_time()
    assert draft.problems() == []
    assert time.process_time() - began < unsure / 1_000


def test_many_owners_that_read_the_same_records_are_judged_at_once() -> None:
    """Each sends commits of the same offsets: there are more chains than anybody can try."""
    lines: list[Line] = []
    for number in range(50):
        lines.append(Line(f"m{number}", "assigned", *T))
        for position in range(100):
            lines.append(Line(f"m{number}", "read", *T, position, f"v{position}"))
            lines += [Line(f"m{number}", what, *T, position + 1) for what in ("committing", "unsure")]
    began = time.process_time()
    assert check(lines, {T: 100}, {T: 100}) == []
    assert check(lines, {T: 101}, {T: 101}) == ["t-0: commits lead to 100, and the log ends at 101"]
    assert time.process_time() - began < 5


def lost_commit(draft: Draft) -> None:
    """The next owner starts at what was committed before the last acknowledged commit."""
    before = draft.committed
    draft.own(commits=1, answered=1.0)
    draft.committed = before
    draft.own(commits=1, answered=1.0)


def fenced_commit(draft: Draft) -> None:
    """An owner has a successor, and its commit is acknowledged all the same."""
    before = draft.committed
    draft.own(commits=1, answered=1.0)
    *draft.lines, committing, committed = draft.lines
    draft.committed, after = before, draft.committed
    draft.own(commits=0, answered=0.0)
    draft.lines += [committing, committed]
    draft.committed = after


def offset_back(draft: Draft) -> None:
    """One owner starts at a commit without an answer, and the next one before it."""
    before = draft.committed
    while draft.committed == before:
        draft.own(commits=1, answered=0.0)
    after = draft.committed
    draft.own(commits=1, answered=0.0)
    draft.committed = before
    draft.own(commits=1, answered=0.0)
    draft.committed = after


def two_owners(draft: Draft) -> None:
    """Two members are given the partition in the same generation."""
    draft.own(commits=0, answered=0.0)
    draft.lines.append(Line("other", "assigned", *T, detail=draft.lines[-1].detail))


def refused_commit(draft: Draft) -> None:
    """The broker refuses a commit, and the next owner starts there."""
    draft.own(commits=1, answered=1.0)
    last = draft.lines.pop()
    draft.lines.append(Line(last.who, "refused", *T, last.offset))


FAULTS: dict[Callable[[Draft], None], str] = {
    lost_commit: "was committed before it was assigned",
    fenced_commit: "had given it away",
    offset_back: "was committed before it was assigned",
    two_owners: "gives it to",
    refused_commit: "which nobody committed",
}


@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.__name__)
def test_a_fault_among_thousands_of_unsure_commits_is_found(plant: Callable[[Draft], None]) -> None:
    draft = long_draft(ends=False)
    plant(draft)
    draft.own(commits=100, answered=0.0)
    draft.end()
    assert any(FAULTS[plant] in problem for problem in draft.problems()), draft.problems()


def test_a_commit_is_told_with_where_its_reads_start() -> None:
    first = Commit("a", 0, 1, 2)
    assert str(Commit("a", 0, 2, 4, first)) == (
        "unsure commit of 2 by a (line 5, reads from 0, perhaps from up to 1)"
    )
    assert str(Commit("a", 1, 2, 4, done=5)) == "acknowledged commit of 2 by a (line 5, reads from 1)"
    assert first.done == NEVER
