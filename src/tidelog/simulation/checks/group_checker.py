"""Whether the history of a group's members explains itself: every record once between commits.

Members commit synchronously after each poll, so of each partition this is promised, and checked:

1. A member that is given a partition starts at the offset that was committed at some moment between its
   assignment and its first read (at the log's start where nothing was committed), reads from there without a
   gap and without going back, reads nothing after the partition was taken from it, and commits what it read.
2. The commits that took effect form one chain from the start of the log to its end. Each link was read by one
   member, from where the link before it ended: no record belongs to two links (read twice between commits) or
   to none (lost). A commit that was acknowledged is in the chain, one that was refused is not, and one whose
   outcome nobody knows (its member or the broker was killed) may be in it. A commit that was acknowledged
   before another was sent stands before it.
3. No two members are given a partition in the same generation, where the clients tell generations. (Static
   members are the same while they have the same instance id.)
4. At the end the broker names the end of each log as its committed offset, every record that was acknowledged
   to the producer was read in its partition, and an offset holds the same record for everybody who read it.

What is read and not committed may be read again by the next owner: nothing is promised of that. So a member
that was paused may wake up and go on reading for a moment, but what it then commits is refused.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tidelog.simulation.checks.group_history import BROKER, NOBODY, Line

Partition = tuple[str, int]
NEVER = 1 << 62


@dataclass(slots=True)
class Commit:
    """`sent` and `done` are positions in the history; `done` is NEVER where the outcome is unknown."""

    member: str
    bases: frozenset[int]  # where its reads may start: what this member had committed, for sure or perhaps
    offset: int
    sent: int
    done: int = NEVER
    refused: bool = False

    @property
    def sure(self) -> bool:
        return self.done != NEVER and not self.refused

    def __str__(self) -> str:
        kind = "acknowledged" if self.sure else "unsure"
        where = f"line {self.sent + 1}, reads from {sorted(self.bases)}"
        return f"{kind} commit of {self.offset} by {self.member} ({where})"


@dataclass(slots=True)
class Start:
    """A member's first read of a partition that it was given."""

    member: str
    offset: int
    assigned: int
    read: int


@dataclass(slots=True)
class Owner:
    """One member's way through one partition."""

    assigned: int | None = None
    position: int | None = None
    bases: set[int] = field(default_factory=set)
    under_way: Commit | None = None


class PartitionHistory:
    """Takes the lines of one partition; gathers the starts, the commits and what is wrong with the lines."""

    def __init__(self, partition: Partition) -> None:
        self.name = f"{partition[0]}-{partition[1]}"
        self.problems: list[str] = []
        self.starts: list[Start] = []
        self.commits: list[Commit] = []
        self.values: dict[int, str] = {}
        self._owners: defaultdict[str, Owner] = defaultdict(Owner)
        self._generations: dict[str, str] = {}
        self._broker_falls: list[int] = []
        self._pauses: defaultdict[str, list[int]] = defaultdict(list)
        self._longest: tuple[Commit, ...] = ()
        self._start_problem = ""

    def take(self, at: int, line: Line) -> None:
        owner = self._owners[line.who]
        if line.what == "assigned":
            self._owners[line.who] = Owner(assigned=at)
            self._note_generation(at, line)
        elif line.what in ("revoked", "lost"):
            self._owners[line.who] = Owner()
        elif line.what == "read":
            self._read(at, line, owner)
        elif line.what == "committing":
            self._intend(at, line, owner)
        elif line.what in ("committed", "unsure", "refused"):
            self._settle(at, line, owner)

    def broker_fell(self, at: int) -> None:
        self._broker_falls.append(at)

    def member_paused(self, at: int, member: str) -> None:
        self._pauses[member].append(at)

    def _wrong(self, at: int, text: str) -> None:
        self.problems.append(f"{self.name}, line {at + 1}: {text}")

    def _note_generation(self, at: int, line: Line) -> None:
        generation, _, instance = line.detail.partition(":")
        if generation in (NOBODY, "-1"):
            return
        owner = instance or line.who
        other = self._generations.setdefault(generation, owner)
        if other != owner:
            self._wrong(at, f"generation {generation} gives it to {owner} and to {other}")

    def _read(self, at: int, line: Line, owner: Owner) -> None:
        if owner.assigned is None:
            self._wrong(at, f"{line.who} reads {line.offset} without being its owner")
        elif owner.position is None:
            self.starts.append(Start(line.who, line.offset, owner.assigned, at))
            owner.bases = {line.offset}
        elif line.offset != owner.position:
            kind = "leaves out" if line.offset > owner.position else "goes back from"
            self._wrong(at, f"{line.who} {kind} {owner.position} and reads {line.offset}")
        owner.position = line.offset + 1
        before = self.values.setdefault(line.offset, line.detail)
        if before != line.detail:
            self._wrong(at, f"{line.who} reads {line.detail} at {line.offset}, where {before} was before")

    def _intend(self, at: int, line: Line, owner: Owner) -> None:
        if line.offset != owner.position:
            self._wrong(at, f"{line.who} commits {line.offset}, after reading up to {owner.position}")
        owner.under_way = Commit(line.who, frozenset(owner.bases), line.offset, at)
        self.commits.append(owner.under_way)

    def _settle(self, at: int, line: Line, owner: Owner) -> None:
        commit = owner.under_way
        if commit is None or commit.offset != line.offset:
            self._wrong(at, f"{line.who} has an outcome of a commit of {line.offset} that it did not send")
            return
        owner.under_way = None
        # A commit may be refused although it took effect: it was sent again, because the broker fell, or
        # because its member was paused and waited too long for the answer.
        sent_again = (*self._broker_falls, *self._pauses[line.who])
        in_doubt = any(commit.sent < moment < at for moment in sent_again)
        if line.what == "committed":
            commit.done = at
            owner.bases = {line.offset}
        elif line.what == "refused" and not in_doubt:
            commit.done = at
            commit.refused = True
        else:
            owner.bases.add(line.offset)

    # -- the chain

    def check_chain(self, end: int) -> None:
        """Find an order of commits from 0 to `end` that fits what was seen, or say what is in the way."""
        candidates = [commit for commit in self.commits if not commit.refused]
        self._longest = ()
        self._start_problem = ""
        if self._explain(candidates, end):
            return
        reached = self._longest[-1].offset if self._longest else 0
        used = set(map(id, self._longest))
        strange = next((commit for commit in candidates if commit.sure and id(commit) not in used), None)
        if strange is not None:
            twice = min(strange.bases, default=reached) < reached
            what = "reads records twice" if twice else "leaves records out"
            problem = f"{reached} was committed, so the {strange} {what}"
        elif reached != end:
            problem = f"commits lead to {reached}, and the log ends at {end}"
        else:
            problem = self._start_problem
        self.problems.append(f"{self.name}: {problem}")

    def _explain(self, candidates: Sequence[Commit], end: int) -> bool:
        """Try every chain, which is one unless outcomes are unknown; keep the longest for the report."""
        by_base: defaultdict[int, list[Commit]] = defaultdict(list)
        for commit in candidates:
            for base in commit.bases:
                by_base[base].append(commit)
        sure = sorted(commit.offset for commit in candidates if commit.sure)
        tries: list[tuple[tuple[Commit, ...], int]] = [((), -1)]
        while tries:
            chain, latest_sent = tries.pop()
            if len(chain) > len(self._longest):
                self._longest = chain
            reached = chain[-1].offset if chain else 0
            if reached == end and self._complete(chain, candidates):
                problem = self._misplaced_start(chain)
                if not problem:
                    return True
                self._start_problem = self._start_problem or problem
            at = bisect_right(sure, reached)
            limit = sure[at] if at < len(sure) else NEVER  # an acknowledged commit is not passed over
            for commit in by_base[reached]:
                if reached < commit.offset <= limit and commit.done > latest_sent:
                    tries.append(((*chain, commit), max(latest_sent, commit.sent)))
        return False

    def _complete(self, chain: Collection[Commit], candidates: Iterable[Commit]) -> bool:
        used = {id(commit) for commit in chain}
        return all(id(commit) in used for commit in candidates if commit.sure)

    def _misplaced_start(self, chain: Sequence[Commit]) -> str:
        """The first start that is not at what was committed then."""
        for start in self.starts:
            into = next((commit for commit in chain if commit.offset == start.offset), None)
            later = [other for other in chain if other.offset > start.offset and other.done < start.assigned]
            where = f"{start.member} starts at {start.offset} (line {start.read + 1})"
            if into is None and start.offset != 0:
                return f"{where}, which nobody committed"
            if into is not None and into.sent > start.read:
                return f"{where} before it was committed"
            if later:
                return f"{where}, and {later[-1].offset} was committed before it was assigned"
        return ""


def check(
    lines: Sequence[Line],
    ends: Mapping[Partition, int],
    committed: Mapping[Partition, int],
    written: Mapping[Partition, Collection[str]] | None = None,
) -> list[str]:
    """Everything that is wrong with a history, given the ends of the logs, what the broker names as committed
    in the end, and the values that the producer knows to be written."""
    histories = {partition: PartitionHistory(partition) for partition in ends}
    problems: list[str] = []
    for at, line in enumerate(lines):
        if line.who == BROKER:
            for history in histories.values():
                history.broker_fell(at)
        elif line.partition >= 0:
            found = histories.get((line.topic, line.partition))
            if found is None:
                problems.append(f"line {at + 1}: {line.topic}-{line.partition} is not known")
            else:
                found.take(at, line)
        elif line.what == "paused":
            for history in histories.values():
                history.member_paused(at, line.who)
        elif line.what == "failed":
            problems.append(f"line {at + 1}: {line.who} ended with {line.detail}")
    for partition, history in histories.items():
        problems += history.problems
        history.problems = []
        history.check_chain(ends[partition])
        problems += history.problems
        if committed.get(partition, 0) != ends[partition]:
            final = committed.get(partition)
            problems.append(f"{history.name}: {final} is committed, and the log ends at {ends[partition]}")
        lost = set((written or {}).get(partition, ())) - set(history.values.values())
        if lost:
            some = f"{sorted(lost)[:5]} ({len(lost)} acknowledged records)"
            problems.append(f"{history.name}: nobody read {some}")
    return problems
