"""Whether the history of a group's members explains itself: every record once between commits.

Members commit synchronously after each poll, so of each partition this is promised, and checked:

1. A member that is given a partition starts at the offset that was committed at some moment between its
   assignment and its first read (at the log's start where nothing was committed), reads from there without a
   gap and without going back, reads nothing after the partition was taken from it, and commits what it read.
2. The commits that took effect form one chain from the start of the log to its end. Each link was read by one
   member, from where the link before it ended: no record belongs to two links (read twice between commits) or
   to none (lost). A commit that was acknowledged is in the chain, one that was refused is not, and one whose
   outcome nobody knows (its member or the broker was killed) may be in it. A commit that was acknowledged
   before another was sent stands before it. No member starts before an offset at which another had started
   when it was given the partition.
3. No two members are given a partition in the same generation, where the clients tell generations. (Static
   members are the same while they have the same instance id.) A commit that was sent after a later generation
   gave the partition away is not acknowledged.
4. At the end the broker names the end of each log as its committed offset, every record that was acknowledged
   to the producer was read in its partition, and an offset holds the same record for everybody who read it.

What is read and not committed may be read again by the next owner: nothing is promised of that. So a member
that was paused may wake up and go on reading for a moment, but what it then commits is refused.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from tidelog.simulation.checks.commit_chain import Commit, CommitChain, Start
from tidelog.simulation.checks.group_history import BROKER, NOBODY, Line

Partition = tuple[str, int]


@dataclass(slots=True)
class Owner:
    """One member's way through one partition."""

    assigned: int | None = None
    generation: int = -1
    position: int | None = None
    base: int = 0  # where it started, or what it surely committed last
    perhaps: Commit | None = None  # its last commit of unknown outcome since
    under_way: Commit | None = None
    fenced_by: int = -1  # the later generation that gave the partition away before that commit was sent


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
        self._newest = -1  # the last generation that gave it to a member
        self._broker_fell = -1
        self._paused: dict[str, int] = {}

    def take(self, at: int, line: Line) -> None:
        owner = self._owners[line.who]
        if line.what == "assigned":
            self._owners[line.who] = Owner(assigned=at, generation=self._note_generation(at, line))
        elif line.what in ("revoked", "lost"):
            self._owners[line.who] = Owner()
        elif line.what == "read":
            self._read(at, line, owner)
        elif line.what == "committing":
            self._intend(at, line, owner)
        elif line.what in ("committed", "unsure", "refused"):
            self._settle(at, line, owner)

    def broker_fell(self, at: int) -> None:
        self._broker_fell = at

    def member_paused(self, at: int, member: str) -> None:
        self._paused[member] = at

    def _wrong(self, at: int, text: str) -> None:
        self.problems.append(f"{self.name}, line {at + 1}: {text}")

    def _note_generation(self, at: int, line: Line) -> int:
        """The generation of an assignment, -1 where the client does not tell it."""
        generation, _, instance = line.detail.partition(":")
        if generation in (NOBODY, "-1"):
            return -1
        owner = instance or line.who
        other = self._generations.setdefault(generation, owner)
        if other != owner:
            self._wrong(at, f"generation {generation} gives it to {owner} and to {other}")
        self._newest = max(self._newest, int(generation))
        return int(generation)

    def _read(self, at: int, line: Line, owner: Owner) -> None:
        if owner.assigned is None:
            self._wrong(at, f"{line.who} reads {line.offset} without being its owner")
        elif owner.position is None:
            self.starts.append(Start(line.who, line.offset, owner.assigned, at))
            owner.base = line.offset
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
        owner.under_way = Commit(line.who, owner.base, line.offset, at, owner.perhaps)
        owner.fenced_by = self._newest if -1 < owner.generation < self._newest else -1
        self.commits.append(owner.under_way)

    def _settle(self, at: int, line: Line, owner: Owner) -> None:
        commit = owner.under_way
        if commit is None or commit.offset != line.offset:
            self._wrong(at, f"{line.who} has an outcome of a commit of {line.offset} that it did not send")
            return
        owner.under_way = None
        # A commit may be refused although it took effect: it was sent again, because the broker fell, or
        # because its member was paused and waited too long for the answer.
        in_doubt = max(self._broker_fell, self._paused.get(line.who, -1)) > commit.sent
        if line.what == "committed":
            commit.done = at
            owner.base, owner.perhaps = line.offset, None
            if owner.fenced_by != -1:
                given = f"after generation {owner.fenced_by} had given it away"
                self._wrong(at, f"the {commit} of generation {owner.generation} was sent {given}")
        elif line.what == "refused" and not in_doubt:
            commit.done = at
            commit.refused = True
        else:
            owner.perhaps = commit

    def check_chain(self, end: int) -> None:
        """Find an order of commits from 0 to `end` that fits what was seen, or say what is in the way."""
        chain = CommitChain(self.commits, self.starts, end)
        self.problems += [f"{self.name}: {problem}" for problem in chain.problems()]


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
