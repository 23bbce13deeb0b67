"""The checker on histories made by hand: each phenomenon is found, and what is allowed is not reported."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tests.exactly_once.history import Diary, History
from tidelog.simulation.checks.transaction_checker import Final, Problem, check, report
from tidelog.simulation.checks.transaction_history import (
    COMMITTED,
    FAIL,
    INFO,
    INVOKE,
    OK,
    UNCOMMITTED,
    Entry,
    Line,
    Partition,
)

P, Q = ("t", 0), ("u", 0)


def init(who: str, transactional_id: str = "x") -> list[Line]:
    return [Line(who, INVOKE, "init", detail=transactional_id), Line(who, OK, "init")]


def writes(who: str, txn: str, *records: tuple[Partition, str], outcome: str = OK) -> list[Line]:
    entries = tuple(Entry(*place, -1, value) for place, value in records)
    return [
        Line(who, INVOKE, "begin", txn),
        Line(who, INVOKE, "write", txn, entries),
        Line(who, outcome, "write", txn, entries),
    ]


def ends(who: str, txn: str, what: str = "commit", outcome: str | None = OK) -> list[Line]:
    asked = [Line(who, INVOKE, what, txn)]
    return asked if outcome is None else [*asked, Line(who, outcome, what, txn)]


def reads(who: str, *entries: Entry, txn: str = "", isolation: str = COMMITTED) -> list[Line]:
    return [Line(who, OK, "read", txn, entries, isolation)]


def moves(who: str, txn: str, offset: int, group: str = "g") -> list[Line]:
    entries = (Entry(*P, offset, group),)
    return [Line(who, INVOKE, "offsets", txn, entries), Line(who, OK, "offsets", txn, entries)]


def final(
    committed: Iterable[Entry] = (),
    uncommitted: Iterable[Entry] | None = None,
    *,
    stable: int = 10,
    offset: int = -1,
    who: str = "final",
) -> Final:
    committed = list(committed)
    stored = committed if uncommitted is None else list(uncommitted)
    read = Final(who, {P: [], Q: []}, {P: [], Q: []}, {P: stable, Q: 10}, {P: 10, Q: 10})
    for entries, logs in ((committed, read.committed), (stored, read.uncommitted)):
        for entry in entries:
            logs[entry.place].append((entry.offset, entry.value))
    if offset >= 0:
        read.offsets = {"g": {P: offset}}
    return read


def a(offset: int, value: str) -> Entry:
    return Entry(*P, offset, value)


def b(offset: int, value: str) -> Entry:
    return Entry(*Q, offset, value)


def rules(problems: Iterable[Problem]) -> set[str]:
    return {problem.rule for problem in problems}


ONE = [*init("i"), *writes("i", "T", (P, "T.0"), (Q, "T.1"))]
BOTH = [a(0, "T.0"), b(0, "T.1")]


# -- what is right


def test_a_committed_transaction_that_is_there_is_right() -> None:
    history = [*ONE, *ends("i", "T"), *reads("r", *BOTH)]
    assert check(history, [final(BOTH), final(BOTH, who="again")]) == []


def test_an_aborted_transaction_that_only_uncommitted_readers_get_is_right() -> None:
    history = [*ONE, *reads("u", *BOTH, isolation=UNCOMMITTED), *ends("i", "T", "abort")]
    assert check(history, [final([], BOTH)]) == []


def test_an_unknown_outcome_may_be_either_but_wholly() -> None:
    history = [*ONE, *ends("i", "T", outcome=None)]
    assert check(history, [final(BOTH)]) == []
    assert check(history, [final([], BOTH)]) == []
    assert rules(check(history, [final(BOTH[:1], BOTH)])) == {"atomic"}


def test_a_reader_may_be_midway_through_a_transaction() -> None:
    history = [*ONE, *ends("i", "T"), *reads("r", a(0, "T.0"))]
    assert check(history, [final(BOTH)]) == []


def test_partitions_may_have_transactions_in_different_orders() -> None:
    """A cycle of write-write dependencies (G0)."""
    history = [*init("i", "x"), *init("j", "y")]
    for who, txn in (("i", "T"), ("j", "S")):
        history += writes(who, txn, (P, f"{txn}.0"), (Q, f"{txn}.1"))
    history += [*ends("i", "T"), *ends("j", "S")]
    log = [a(0, "T.0"), a(1, "S.0"), b(0, "S.1"), b(1, "T.1")]
    assert check(history, [final(log)]) == []


# -- G1a


def test_an_aborted_read() -> None:
    history = [*ONE, *reads("r", a(0, "T.0")), *ends("i", "T", "abort")]
    (problem,) = check(history, [final([], BOTH)])
    assert problem.rule == "G1a"
    assert "r reads T.0 at t-0 offset 0 in line 6, of T (aborted; i aborts in line 7" in problem.text


def test_an_aborted_record_in_the_end() -> None:
    assert rules(check([*ONE, *ends("i", "T", "abort")], [final(BOTH)])) == {"G1a"}
    assert rules(check([*ONE, *ends("i", "T", outcome=FAIL)], [final(BOTH)])) == {"G1a"}
    assert rules(check(ONE, [final(BOTH)])) == {"G1a"}


def test_a_dirty_read() -> None:
    history = [*ONE, *reads("r", a(0, "T.0")), *ends("i", "T")]
    (problem,) = check(history, [final(BOTH)])
    assert problem.rule == "G1a"
    assert "before the commit of T" in problem.text


# -- G1c


def test_a_cycle_of_reads() -> None:
    history = [*init("i", "x"), *init("j", "y"), *init("k", "z")]
    for who, txn in (("i", "T"), ("j", "S"), ("k", "U")):
        history += writes(who, txn, (P, f"{txn}.0"))
    log = [a(0, "T.0"), a(1, "S.0"), a(2, "U.0")]
    history += reads("i/r", a(1, "S.0"), txn="T")
    history += reads("j/r", a(0, "T.0"), txn="S")
    history += reads("k/r", a(0, "T.0"), txn="U")
    for who, txn in (("i", "T"), ("j", "S"), ("k", "U")):
        history += ends(who, txn)
    cycle = [problem for problem in check(history, [final(log)]) if problem.rule == "G1c"]
    assert [problem.text for problem in cycle] in (
        ["S reads T.0 of T (line 17); T reads S.0 of S (line 16)"],
        ["T reads S.0 of S (line 16); S reads T.0 of T (line 17)"],
    )


# -- lost, torn, twice, out of order


def test_a_lost_transaction() -> None:
    assert rules(check([*ONE, *ends("i", "T")], [final([])])) == {"lost"}


def test_a_torn_transaction() -> None:
    (problem,) = check([*ONE, *ends("i", "T")], [final(BOTH[:1], BOTH)])
    assert problem.rule == "atomic"
    assert "does not get T.1 (stored at u-0 offset 0) of T (committed;" in problem.text


def test_a_value_that_is_there_twice() -> None:
    log = [a(0, "T.0"), a(1, "T.0"), b(0, "T.1")]
    assert rules(check([*ONE, *ends("i", "T")], [final(log)])) == {"duplicate"}


def test_a_value_at_another_offset_than_was_told() -> None:
    history = [*ONE, Line("i", OK, "write", "T", (a(3, "T.0"),)), *ends("i", "T")]
    assert rules(check(history, [final(BOTH)])) == {"lost"}


def test_values_of_a_producer_out_of_order() -> None:
    history = [*init("i"), *writes("i", "T", (P, "T.0"), (P, "T.1")), *ends("i", "T")]
    assert rules(check(history, [final([a(0, "T.1"), a(1, "T.0")])])) == {"order"}


def test_a_reader_that_leaves_a_record_out_or_goes_back() -> None:
    history = [*init("i"), *writes("i", "T", *((P, f"T.{at}") for at in range(3))), *ends("i", "T")]
    log = [a(at, f"T.{at}") for at in range(3)]
    assert check([*history, *reads("r", *log)], [final(log)]) == []
    assert rules(check([*history, *reads("r", log[0], log[2])], [final(log)])) == {"order"}
    assert rules(check([*history, *reads("r", *log[:2], log[1])], [final(log)])) == {"duplicate"}


# -- fencing


def test_a_producer_that_was_superseded() -> None:
    late = [*init("i"), *init("j"), *writes("i", "T", (P, "T.0"))]
    assert check([*late, *ends("i", "T", outcome=INFO)], [final([])]) == []
    assert check([*late, *ends("i", "T", "abort")], [final([])]) == []
    assert rules(check([*late, *ends("i", "T", outcome=INFO)], [final([], [a(0, "T.0")])])) == {"fenced"}
    assert "fenced" in rules(check([*late, *ends("i", "T")], [final([a(0, "T.0")])]))


def test_a_commit_that_was_asked_for_before_is_unknown() -> None:
    history = [*ONE, *ends("i", "T", outcome=None), *init("j"), Line("i", INFO, "commit", "T")]
    assert check(history, [final(BOTH)]) == []
    assert check(history, [final([], BOTH)]) == []


def test_a_prepared_transaction_ends_as_its_owners_decided() -> None:
    history = [*ONE, Line("i", OK, "prepare", "T"), *init("j"), *ends("j", "T", outcome=None)]
    assert check(history, [final(BOTH)]) == []
    assert rules(check(history, [final([], BOTH)])) == {"lost"}


def test_a_kept_transaction_takes_records_of_its_first_owner_until_it_ends() -> None:
    open_ = [*init("i"), Line("i", INVOKE, "begin", "T", detail="x:7:1")]
    kept = [Line("j", INVOKE, "init", detail="x"), Line("j", OK, "init", detail="7:1")]
    other = [Line("j", INVOKE, "init", detail="x"), Line("j", OK, "init", detail="7:2")]
    late = [Line("i", INVOKE, "write", "T", (Entry(*P, -1, "T.0"),))]
    ended = ends("j", "T", "abort")
    stored = [final([], [a(0, "T.0")])]
    assert check([*open_, *kept, *late, *ended], stored) == []
    assert check([*open_, *kept, *late], stored) == []
    assert rules(check([*open_, *other, *late, *ended], stored)) == {"fenced"}
    assert rules(check([*open_, *kept, *ended, *late], stored)) == {"fenced"}
    assert "G1a" in rules(check([*open_, *kept, *late, *ended], [final([a(0, "T.0")])]))


# -- offsets


def test_offsets_move_with_their_transaction() -> None:
    history = [*ONE, *moves("i", "T", 5), *ends("i", "T")]
    assert check(history, [final(BOTH, offset=5)]) == []
    assert rules(check(history, [final(BOTH)])) == {"offsets"}
    aborted = [*ONE, *moves("i", "T", 5), *ends("i", "T", "abort")]
    assert check(aborted, [final([], BOTH)]) == []
    assert rules(check(aborted, [final([], BOTH, offset=5)])) == {"offsets"}


def test_an_unknown_outcome_is_the_same_for_records_and_offsets() -> None:
    history = [*ONE, *moves("i", "T", 5), *ends("i", "T", outcome=None)]
    assert check(history, [final(BOTH, offset=5)]) == []
    assert check(history, [final([], BOTH)]) == []
    assert rules(check(history, [final(BOTH)])) == {"offsets"}
    assert rules(check(history, [final([], BOTH, offset=5)])) == {"offsets"}


def test_stable_offsets_are_those_of_the_last_commit() -> None:
    def asked(offset: int) -> list[Line]:
        return [Line("o", INVOKE, "offsets?"), Line("o", OK, "offsets?", "", (Entry(*P, offset, "g"),))]

    before = [*ONE, *moves("i", "T", 5)]
    after = [*before, *ends("i", "T")]
    assert check([*before, *asked(-1), *ends("i", "T")], [final(BOTH, offset=5)]) == []
    assert check([*after, *asked(5)], [final(BOTH, offset=5)]) == []
    assert rules(check([*before, *asked(5), *ends("i", "T")], [final(BOTH, offset=5)])) == {"offsets"}
    assert rules(check([*after, *asked(-1)], [final(BOTH, offset=5)])) == {"offsets"}


# -- the end


def test_a_last_stable_offset_that_hangs() -> None:
    history = [*ONE, *ends("i", "T", "abort")]
    (problem,) = check(history, [final([], BOTH, stable=0)])
    assert problem.rule == "stable"
    assert "t-0 ends at 10 and is stable up to 0 (T.0 of T (aborted;" in problem.text


def test_an_offset_that_waits_for_a_transaction_which_is_over() -> None:
    read = final([], BOTH)
    read.waiting = {"g": [P]}
    (problem,) = check([*ONE, *ends("i", "T", "abort")], [read])
    assert problem == Problem("stable", "final: the offset of g in t-0 waits for a transaction")


def test_a_reading_that_differs_after_a_restart() -> None:
    history = [*ONE, *moves("i", "T", 5), *ends("i", "T")]
    first = final(BOTH, offset=5)
    assert rules(check(history, [first, final(BOTH[:1], BOTH, offset=5)])) == {"replay"}
    assert rules(check(history, [first, final(BOTH, offset=6)])) == {"replay"}


def test_a_report_has_the_seed_and_one_case_of_each_rule() -> None:
    problems = [Problem("lost", "a long story"), Problem("lost", "short"), Problem("G1a", "read")]
    assert report(problems, 7) == "seed 7: 3 violations\n  lost: short (and 1 more)\n  G1a: read"


def test_a_line_survives_the_file(tmp_path: Path) -> None:
    lines = [Line("who", OK, "write", "T", (a(3, "v\N{LATIN SMALL LETTER A WITH DIAERESIS}"),), "detail")]
    diary = Diary(tmp_path / "history")
    diary.write(*lines)
    diary.close()
    assert History(tmp_path / "history").read() == lines
