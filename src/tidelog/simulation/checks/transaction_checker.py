"""Whether a history of transactions, with a last reading of every log, keeps the promise of exactly once.

The words are those of Adya's phenomena as Elle and Jepsen use them. A transaction writes unique values to
several partitions, may read (read_committed) between its begin and its end, and may commit group offsets.
Its outcome is *committed* where a commit was acknowledged, *aborted* where an abort was acknowledged, nobody
asked for a commit or each asking was refused for sure, and *unknown* otherwise: then it is either, but
wholly. A producer whose id was taken by another is fenced: what it asks for later never happens. This is
promised and checked:

G1a        No reader of committed records gets a value of a transaction that aborted (aborted read), nor one
           before its commit was even asked for (dirty read).
G1c        No cycle of write-read dependencies: T1 reads what T2 wrote, and T2, perhaps by way of others, what
           T1 wrote. Write-write cycles (G0) are legal: partitions are written without a common order.
atomic     A reader of committed records that has reached the end has all values of a transaction, in every
           partition, or none. (Midway it may have one partition's part and not yet another's.)
lost       Every value of a committed transaction is there; a value that was acknowledged is at the offset
           that was told.
duplicate  No value is twice in a log, not even among aborted ones.
order      What a producer wrote to a partition stands there in the order of its writes. Every reader gets
           what stands in the log, in its order, without a gap; the committed log is a part of the whole.
fenced     A producer whose id was taken before it asked commits nothing and writes nothing.
offsets    Group offsets move if and only if their transaction committed, together with its records: readers
           of stable offsets see those of the last commit that they can know of, or of one under way.
stable     Once the last transaction has ended the last stable offset is the end of the log: nothing hangs.
replay     What is read after the broker was killed and came back is what was read before.

`check` is a pure function. What it finds is told as small as it can be: the value, its transaction, their
lines in the history, and who read it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tidelog.simulation.checks.transaction_history import COMMITTED, OK, UNCOMMITTED, Line, Partition
from tidelog.simulation.checks.transaction_model import NEVER, Model, Read, Transaction, Verdict

Place = tuple[Partition, int]
Log = list[tuple[int, str]]  # offset and value, in the order of the log


class Problem(NamedTuple):
    rule: str
    text: str


@dataclass(slots=True)
class Final:
    """A reading of everything after the last transaction has ended."""

    who: str
    committed: dict[Partition, Log] = field(default_factory=dict)
    uncommitted: dict[Partition, Log] = field(default_factory=dict)
    stable_ends: dict[Partition, int] = field(default_factory=dict)
    ends: dict[Partition, int] = field(default_factory=dict)
    offsets: dict[str, dict[Partition, int]] = field(default_factory=dict)  # stable, by group
    waiting: dict[str, list[Partition]] = field(default_factory=dict)  # by group: not stable


def check(lines: Sequence[Line], finals: Sequence[Final]) -> list[Problem]:
    """Everything that is wrong. The first reading is the measure for the others."""
    model = Model(lines)
    problems = [Problem("failed", text) for text in model.problems]
    first = finals[0]
    seen = _Seen(model, first)
    problems += seen.check_logs()
    problems += seen.check_transactions()
    problems += seen.check_fencing()
    problems += _readers(model, first)
    problems += _dirty_reads(model)
    problems += _cycles(model)
    problems += _offsets(model, first, seen)
    for final in finals:
        problems += _hanging(model, final)
    for other in finals[1:]:
        problems += _differences(first, other)
    return problems


def report(problems: Sequence[Problem], seed: object) -> str:
    """For people: of each rule that is broken the smallest case, and how many more there are."""
    by_rule: defaultdict[str, list[str]] = defaultdict(list)
    for problem in problems:
        by_rule[problem.rule].append(problem.text)
    told = []
    for rule, texts in by_rule.items():
        more = f" (and {len(texts) - 1} more)" if len(texts) > 1 else ""
        told.append(f"  {rule}: {min(texts, key=len)}{more}")
    return f"seed {seed}: {len(problems)} violations\n" + "\n".join(told)


def _name(partition: Partition) -> str:
    return f"{partition[0]}-{partition[1]}"


# -- logs and transactions ---------------------------------------------------------------------------


class _Seen:
    """The final logs by value, and what they say of each transaction."""

    def __init__(self, model: Model, final: Final) -> None:
        self._model = model
        self._final = final
        self._problems: list[Problem] = []
        self.committed = self._places(final.committed, COMMITTED)
        self.uncommitted = self._places(final.uncommitted, UNCOMMITTED)

    def _places(self, logs: Mapping[Partition, Log], isolation: str) -> dict[str, Place]:
        places: dict[str, Place] = {}
        for partition, log in logs.items():
            for offset, value in log:
                before = places.setdefault(value, (partition, offset))
                if before != (partition, offset):
                    where = f"{_name(before[0])} offset {before[1]} and {_name(partition)} offset {offset}"
                    self._problems.append(
                        Problem("duplicate", f"{value} of {self._writer(value)} is at {where} ({isolation})")
                    )
        return places

    def _writer(self, value: str) -> Transaction | str:
        return self._model.writer_of.get(value, "nobody")

    def is_visible(self, transaction: Transaction) -> bool:
        return any(value in self.committed for value in transaction.writes)

    def check_logs(self) -> list[Problem]:
        for partition, log in self._final.uncommitted.items():
            self._check_order(partition, log)
            stored = set(log)
            for offset, value in self._final.committed.get(partition, ()):
                if (offset, value) not in stored:
                    where = f"{_name(partition)} offset {offset}"
                    self._add("order", f"{value} is committed at {where} and not stored")
        return self._taken()

    def _check_order(self, partition: Partition, log: Log) -> None:
        """Values of one producer, in the order in which it wrote them to this partition."""
        latest: dict[str, tuple[int, int, str]] = {}
        for offset, value in log:
            transaction = self._model.writer_of.get(value)
            if transaction is None:
                self._add("order", f"{value} at {_name(partition)} offset {offset} was never written")
                continue
            write = transaction.writes[value]
            at = list(transaction.writes).index(value)
            before = latest.get(transaction.who, (-1, -1, ""))
            if (write.invoked, at) < before[:2]:
                self._add("order", f"{_name(partition)} has {value} after {before[2]}, written before it")
            latest[transaction.who] = (write.invoked, at, value)

    def check_transactions(self) -> list[Problem]:
        for transaction in self._model.transactions.values():
            self._check_outcome(transaction)
            for value, write in transaction.writes.items():
                place = self.uncommitted.get(value)
                told = (write.entry.place, write.entry.offset)
                if place is not None and write.entry.offset >= 0 and place != told:
                    where = f"{_name(place[0])} offset {place[1]}"
                    self._add("lost", f"{value} is at {where}, and {write.entry.offset} was told")
        return self._taken()

    def _check_outcome(self, transaction: Transaction) -> None:
        there = [value for value in transaction.writes if value in self.committed]
        missing = [value for value in transaction.writes if value not in self.committed]
        if transaction.verdict is Verdict.COMMITTED and missing:
            kind = "lost" if not there else "atomic"
            stored = self.uncommitted.get(missing[0])
            where = f"stored at {_name(stored[0])} offset {stored[1]}" if stored else "not stored"
            has = f", and it has {there[0]} of the same transaction" if there else ""
            self._add(kind, f"{self._final.who} does not get {missing[0]} ({where}) of {transaction}{has}")
        elif transaction.verdict is Verdict.ABORTED and there:
            self._add("G1a", f"{self._final.who} gets {self._where(there[0])} of {transaction}")
        elif there and missing:
            self._add(
                "atomic",
                f"{self._final.who} gets {self._where(there[0])} and not {missing[0]} of {transaction}",
            )

    def _where(self, value: str) -> str:
        partition, offset = self.committed[value]
        return f"{value} at {_name(partition)} offset {offset}"

    def check_fencing(self) -> list[Problem]:
        for transaction in self._model.transactions.values():
            for attempt in transaction.attempts:
                # That it aborted is no lie: a client that has sent nothing does not ask the broker for that.
                is_told = attempt.commit and attempt.kind == OK
                if is_told and self._model.is_fenced(attempt.who, attempt.invoked):
                    self._add("fenced", f"{attempt.who} was superseded, and yet committed {transaction}")
            if transaction.prepared != NEVER:
                continue  # its owner said that nothing more is sent; nobody holds it to that
            # The leaders of the partitions learn of the new epoch when a kept transaction ends.
            fenced = transaction.taken_over if self._model.is_kept(transaction) else -1
            for value, write in transaction.writes.items():
                if write.invoked < fenced:
                    continue
                if value in self.uncommitted and self._model.is_fenced(transaction.who, write.invoked):
                    superseded = self._model.instances[transaction.who].superseded
                    self._add(
                        "fenced",
                        f"{value} was written in line {write.invoked + 1} by {transaction.who}, whose id was "
                        f"taken in line {superseded + 1}",
                    )
        return self._taken()

    def _add(self, rule: str, text: str) -> None:
        self._problems.append(Problem(rule, text))

    def _taken(self) -> list[Problem]:
        taken, self._problems = self._problems, []
        return taken


# -- readers -----------------------------------------------------------------------------------------


def _readers(model: Model, final: Final) -> Iterable[Problem]:
    """Each reads what stands in the log, in its order, and leaves nothing out."""
    for (who, isolation, partition), reads in model.reads.items():
        log = (final.committed if isolation == COMMITTED else final.uncommitted).get(partition, [])
        problem = _compare(reads, log)
        rule = _rule_of(model, reads, log, isolation) if problem else ""
        if rule not in ("", "G1a"):  # which the read itself tells, with its transaction
            yield Problem(rule, f"{who} ({isolation}) in {_name(partition)} {problem}")


def _compare(reads: Sequence[Read], log: Log) -> str:
    """What is wrong with a reader's way through a log; empty where nothing is."""
    position = next((at for at, (offset, _) in enumerate(log) if offset >= reads[0].entry.offset), len(log))
    for read in reads:
        got = (read.entry.offset, read.entry.value)
        if position == len(log):
            return f"gets {got[1]} at offset {got[0]} (line {read.line + 1}), and the log has nothing there"
        if got != log[position]:
            expected = f"{log[position][1]} at offset {log[position][0]}"
            return f"gets {got[1]} at offset {got[0]} (line {read.line + 1}), and the log has {expected}"
        position += 1
    return ""


def _rule_of(model: Model, reads: Sequence[Read], log: Log, isolation: str) -> str:
    """A value that is not in the committed log was read of a transaction that did not commit."""
    values = {value for _, value in log}
    for read in reads:
        writer = model.writer_of.get(read.entry.value)
        if isolation == COMMITTED and writer is not None and read.entry.value not in values:
            return "G1a" if writer.verdict is Verdict.ABORTED else "atomic"
    return "duplicate" if len(reads) != len({read.entry.offset for read in reads}) else "order"


def _dirty_reads(model: Model) -> Iterable[Problem]:
    for (who, isolation, _), reads in model.reads.items():
        if isolation != COMMITTED:
            continue
        for read in reads:
            writer = model.writer_of.get(read.entry.value)
            if writer is None:
                continue
            got = f"{who} reads {read.entry.value} at {read.entry} offset {read.entry.offset} "
            if writer.verdict is Verdict.ABORTED:
                yield Problem("G1a", f"{got}in line {read.line + 1}, of {writer}")
            elif read.line < writer.commit_asked:
                yield Problem("G1a", f"{got}in line {read.line + 1}, before the commit of {writer}")


# -- G1c ---------------------------------------------------------------------------------------------


def _cycles(model: Model) -> Iterable[Problem]:
    """The shortest cycle of reads, if there is one."""
    edges: defaultdict[str, dict[str, Read]] = defaultdict(dict)  # writer -> reader
    for reader in model.transactions.values():
        for read in reader.reads:
            writer = model.writer_of.get(read.entry.value)
            if writer is not None and writer is not reader:
                edges[writer.name].setdefault(reader.name, read)
    best: list[str] = []
    for name in _on_cycles(edges):
        found = _shortest_cycle(edges, name)
        if found and (not best or len(found) < len(best)):
            best = found
    if best:
        ring = zip(best, [*best[1:], best[0]], strict=True)
        reads = [(before, edges[before][after]) for before, after in ring]
        steps = [f"{read.txn} reads {read.entry.value} of {of} (line {read.line + 1})" for of, read in reads]
        yield Problem("G1c", "; ".join(steps))


def _on_cycles(edges: Mapping[str, Mapping[str, object]]) -> set[str]:
    """What is left when everything without a way in, or without a way out, is taken away, again and again."""
    left = set(edges) & {target for targets in edges.values() for target in targets}
    while True:
        entered = {target for source in left for target in edges[source]}
        kept = {name for name in left & entered if any(target in left for target in edges[name])}
        if kept == left:
            return left
        left = kept


def _shortest_cycle(edges: Mapping[str, Mapping[str, object]], start: str) -> list[str]:
    ways = [[start]]
    seen = {start}
    while ways:
        longer = []
        for way in ways:
            for target in edges.get(way[-1], ()):
                if target == start:
                    return way
                if target not in seen:
                    seen.add(target)
                    longer.append([*way, target])
        ways = longer
    return []


# -- offsets, ends, replay ---------------------------------------------------------------------------


class _Step(NamedTuple):
    """An offset that a transaction commits."""

    transaction: Transaction
    offset: int
    happened: bool | None  # None: nobody knows


def _steps(model: Model, seen: _Seen) -> dict[tuple[str, Partition], list[_Step]]:
    """The offsets of each group and partition, in the order of their transactions."""
    steps: defaultdict[tuple[str, Partition], list[_Step]] = defaultdict(list)
    ids = {instance.transactional_id for instance in model.instances.values()}
    for transactional_id in sorted(ids):
        for transaction in model.transactions_of_id(transactional_id):
            happened = {Verdict.COMMITTED: True, Verdict.ABORTED: False}.get(transaction.verdict)
            if happened is None and transaction.writes:
                happened = seen.is_visible(transaction)
            for entry in transaction.offsets:
                steps[entry.value, entry.place].append(_Step(transaction, entry.offset, happened))
    return steps


def _offsets(model: Model, final: Final, seen: _Seen) -> Iterable[Problem]:
    steps = _steps(model, seen)
    for (group, partition), mine in steps.items():
        found = final.offsets.get(group, {}).get(partition, -1)
        yield from _judge_offset(mine, found, NEVER, NEVER, f"in the end {group} has", partition)
    for read in model.offset_reads:
        mine = steps.get((read.entry.value, read.entry.place), [])
        who = f"line {read.done + 1}: {read.entry.value} has"
        yield from _judge_offset(mine, read.entry.offset, read.invoked, read.done, who, read.entry.place)


def _judge_offset(
    steps: Sequence[_Step], found: int, invoked: int, done: int, who: str, partition: Partition
) -> Iterable[Problem]:
    """Allowed is what was surely committed before the question, and what may have come until the answer."""
    allowed = [-1]
    for step in steps:
        if step.happened is False or step.transaction.commit_asked > done:
            continue
        if step.happened and step.transaction.commit_known < invoked:
            allowed = [step.offset]
        else:
            allowed.append(step.offset)
    if invoked == NEVER:  # in the end: what happened has happened, wherever that is known
        allowed = _last(steps)
    if found not in allowed:
        culprit = next((step.transaction for step in steps if step.offset == found), None)
        of = f", which is of {culprit}" if culprit else ""
        right = next((step.transaction for step in steps if step.offset == allowed[-1]), None)
        yield Problem(
            "offsets", f"{who} {found} in {_name(partition)}{of}; right is {allowed} of {right or 'nobody'}"
        )


def _last(steps: Sequence[_Step]) -> list[int]:
    allowed = [-1]
    for step in steps:
        if step.happened:
            allowed = [step.offset]
        elif step.happened is None:
            allowed.append(step.offset)
    return allowed


def _hanging(model: Model, final: Final) -> Iterable[Problem]:
    for partition, end in final.ends.items():
        stable = final.stable_ends[partition]
        if stable == end:
            continue
        first = next(
            (value for offset, value in final.uncommitted.get(partition, ()) if offset >= stable), ""
        )
        of = f" ({first} of {model.writer_of[first]})" if first in model.writer_of else ""
        yield Problem(
            "stable", f"{final.who}: {_name(partition)} ends at {end} and is stable up to {stable}{of}"
        )
    for group, partitions in final.waiting.items():
        for partition in partitions:
            text = f"{final.who}: the offset of {group} in {_name(partition)} waits for a transaction"
            yield Problem("stable", text)


def _differences(first: Final, other: Final) -> Iterable[Problem]:
    for isolation, before, after in (
        (COMMITTED, first.committed, other.committed),
        (UNCOMMITTED, first.uncommitted, other.uncommitted),
    ):
        for partition, log in before.items():
            if after.get(partition, log) != log:
                pairs = zip([*log, None], [*after[partition], None], strict=False)
                ours, theirs = next((pair for pair in pairs if pair[0] != pair[1]), (None, None))
                what = f"{ours}, and {other.who} gets {theirs}"
                yield Problem("replay", f"{first.who} ({isolation}) gets in {_name(partition)} {what}")
    for group, offsets in first.offsets.items():
        if other.offsets.get(group, offsets) != offsets:
            yield Problem(
                "replay", f"{group} has {offsets} for {first.who}, {other.offsets[group]} for {other.who}"
            )
