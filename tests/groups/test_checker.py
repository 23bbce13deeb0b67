"""The checker accepts what Kafka promises, and finds each kind of fault that is planted in a history."""

from __future__ import annotations

import random

import pytest

from tests.support.wait import answered, known
from tidelog.simulation.checks.group_checker import check
from tidelog.simulation.checks.group_history import BROKER, Line

T = ("t", 0)


def test_a_coordinator_that_cannot_answer_yet_is_asked_again() -> None:
    answers = iter((None, None, {}))
    assert known(lambda: next(answers), "the committed offsets", interval=0.0) == {}


def test_a_question_that_a_broker_did_not_answer_is_asked_again() -> None:
    answers = iter((TimeoutError("no answer"), ConnectionResetError("gone"), 3))

    def ask() -> int:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert answered(ask, "the end of the log", (OSError,), interval=0.0) == 3


def test_a_question_that_nobody_answers_in_time_fails() -> None:
    def ask() -> int:
        raise TimeoutError("no answer")

    with pytest.raises(TimeoutError, match="no answer"):
        answered(ask, "the end of the log", (OSError,), timeout=0.0, interval=0.0)


def history(text: str) -> list[Line]:
    """Lines such as `a read 3`; `a assigned 7` names a generation. All are about one partition."""
    lines = []
    for row in text.strip().splitlines():
        who, what, *rest = row.split()
        number = int(rest[0]) if rest else -1
        if who == BROKER or what == "paused":
            lines.append(Line(who, what))
        elif what == "assigned":
            lines.append(Line(who, what, *T, detail=str(number)))
        elif what == "read":
            lines.append(Line(who, what, *T, number, f"v{number}"))
        else:
            lines.append(Line(who, what, *T, number))
    return lines


def problems(text: str, end: int, committed: int | None = None) -> str:
    return "\n".join(check(history(text), {T: end}, {T: end if committed is None else committed}))


ONE_AFTER_THE_OTHER = """
a assigned 1
a read 0
a read 1
a committing 2
a committed 2
a revoked
b assigned 2
b read 2
b committing 3
b committed 3
"""


def test_one_owner_after_the_other() -> None:
    assert problems(ONE_AFTER_THE_OTHER, 3) == ""


def test_what_was_not_committed_is_read_again() -> None:
    text = """
    a assigned
    a read 0
    a committing 1
    a committed 1
    a read 1
    b assigned
    b read 1
    b committing 2
    b committed 2
    """
    assert problems(text, 2) == ""


@pytest.mark.parametrize("took_effect", [True, False])
def test_a_commit_of_a_killed_member_may_have_taken_effect_or_not(took_effect: bool) -> None:
    text = f"""
    a assigned
    a read 0
    a committing 1
    b assigned
    {"" if took_effect else "b read 0"}
    b read 1
    b committing 2
    b committed 2
    """
    assert problems("\n".join(row for row in text.splitlines() if row.strip()), 2) == ""


def test_a_member_goes_on_after_a_commit_of_unknown_outcome() -> None:
    text = """
    a assigned
    a read 0
    a committing 1
    a unsure 1
    a read 1
    a committing 2
    a committed 2
    """
    assert problems(text, 2) == ""


def test_an_acknowledgement_may_be_told_late() -> None:
    text = """
    a assigned
    a read 0
    a committing 1
    b assigned
    b read 1
    b committing 2
    b committed 2
    a committed 1
    """
    assert problems(text, 2) == ""


def test_a_paused_member_reads_on_and_is_refused() -> None:
    text = """
    a assigned
    a read 0
    b assigned
    b read 0
    b committing 1
    b committed 1
    a read 1
    a committing 2
    a refused 2
    a lost
    b read 1
    b committing 2
    b committed 2
    """
    assert problems(text, 2) == ""


def test_a_refusal_after_a_pause_says_nothing() -> None:
    text = """
    a assigned
    a read 0
    a committing 1
    a paused
    b assigned
    a refused 1
    b read 1
    b committing 2
    b committed 2
    """
    assert problems(text, 2) == ""
    assert "leaves records out" in problems(text.replace("a paused", "b paused"), 2)


def test_a_refusal_after_the_broker_fell_says_nothing() -> None:
    text = """
    a assigned
    a read 0
    a committing 1
    broker killed
    a refused 1
    b assigned
    b read 1
    b committing 2
    b committed 2
    """
    assert problems(text, 2) == ""
    assert "leaves records out" in problems(text.replace("broker killed", "b lost"), 2)


PLANTED = {
    "a record that is left out": (
        "a assigned\na read 0\na read 2\na committing 3\na committed 3",
        3,
        "leaves out 1 and reads 2",
    ),
    "a record that is read again by its owner": (
        "a assigned\na read 0\na committing 1\na committed 1\na read 0\na committing 1\na committed 1",
        1,
        "goes back from 1 and reads 0",
    ),
    "a new owner that reads again what was committed": (
        ONE_AFTER_THE_OTHER.replace("b read 2", "b read 1\nb read 2"),
        3,
        "reads records twice",
    ),
    "a new owner that starts behind what was committed": (
        ONE_AFTER_THE_OTHER.replace(" 3", " 4").replace("b read 2", "b read 3"),
        4,
        "leaves records out",
    ),
    "two owners of one generation": (
        ONE_AFTER_THE_OTHER.replace("b assigned 2", "b assigned 1"),
        3,
        "generation 1 gives it to b and to a",
    ),
    "two owners that both commit": (
        """
        a assigned
        a read 0
        b assigned
        b read 0
        b committing 1
        b committed 1
        a read 1
        a committing 2
        a committed 2
        """,
        2,
        "reads records twice",
    ),
    "a read without being the owner": (
        ONE_AFTER_THE_OTHER.replace("b assigned 2", "c assigned 2"),
        3,
        "b reads 2 without being its owner",
    ),
    "a read after the partition was taken away": (
        ONE_AFTER_THE_OTHER + "a read 2",
        3,
        "a reads 2 without being its owner",
    ),
    "a refused commit that took effect": (
        """
        a assigned
        a read 0
        a committing 1
        a refused 1
        a lost
        b assigned
        b read 1
        b committing 2
        b committed 2
        """,
        2,
        "leaves records out",
    ),
    "an idle owner that started at an old commit": (
        ONE_AFTER_THE_OTHER + "c assigned 3\nc read 2",
        3,
        "c starts at 2",
    ),
    "an offset that goes back between two starts at unsure commits": (
        """
        a assigned
        a read 0
        a committing 1
        a unsure 1
        a read 1
        a committing 2
        b assigned
        b read 2
        c assigned
        c read 1
        d assigned
        d read 2
        d committing 3
        d committed 3
        """,
        3,
        "c starts at 1 (line 10), and 2 was committed before it was assigned",
    ),
    "a commit of a generation that has a successor": (
        """
        a assigned 1
        a read 0
        b assigned 2
        a committing 1
        a committed 1
        b read 1
        b committing 2
        b committed 2
        """,
        2,
        "of generation 1 was sent after generation 2 had given it away",
    ),
    "the same offset committed by two owners": (
        """
        a assigned
        a read 0
        b assigned
        b read 0
        a committing 1
        a committed 1
        b committing 1
        b committed 1
        """,
        1,
        "commit of 1 by b (line 7, reads from 0) reads records twice",
    ),
    "a commit beyond the end of the log": (
        ONE_AFTER_THE_OTHER,
        2,
        "the log ends at 2, before the acknowledged commit of 3",
    ),
    "the end of the log that nobody read": (
        ONE_AFTER_THE_OTHER,
        4,
        "commits lead to 3, and the log ends at 4",
    ),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_found(fault: str) -> None:
    text, end, expected = PLANTED[fault]
    assert expected in problems(text, end)


def test_a_final_offset_that_went_back_is_found() -> None:
    assert "2 is committed, and the log ends at 3" in problems(ONE_AFTER_THE_OTHER, 3, committed=2)


def test_a_record_that_changed_is_found() -> None:
    lines = history(ONE_AFTER_THE_OTHER)
    lines.insert(3, Line("a", "revoked", *T))
    lines.insert(4, Line("c", "assigned", *T))
    lines.insert(5, Line("c", "read", *T, 0, "other"))
    assert any("reads other at 0, where v0 was before" in text for text in check(lines, {T: 3}, {T: 3}))


def test_an_acknowledged_record_that_is_not_in_the_log_is_found() -> None:
    found = check(history(ONE_AFTER_THE_OTHER), {T: 3}, {T: 3}, {T: {"v0", "v1", "v2", "v3"}})
    assert found == ["t-0: nobody read ['v3'] (1 acknowledged records)"]


def made_up(seed: int) -> tuple[list[Line], int]:
    """A history of owners that follow each other, with commits that fail and members that die, as a broker
    that keeps its promises would make it."""
    chance = random.Random(seed)
    lines: list[Line] = []
    committed = 0
    for generation in range(1, 30):
        who = f"m{generation}"
        lines.append(Line(who, "assigned", *T, detail=str(generation)))
        position = committed
        for _ in range(chance.randrange(4)):
            for _ in range(chance.randrange(1, 4)):
                lines.append(Line(who, "read", *T, position, f"v{position}"))
                position += 1
            lines.append(Line(who, "committing", *T, position))
            fate = chance.choice(["committed", "committed", "committed", "refused", "unsure", "killed"])
            if fate == "committed" or (fate in ("unsure", "killed") and chance.random() < 0.5):
                committed = position
            if fate == "killed":
                break
            lines.append(Line(who, fate, *T, position))
            if fate == "refused":
                break
    who = "last"
    lines.append(Line(who, "assigned", *T, detail="99"))
    for position in range(committed, committed + 5):
        lines.append(Line(who, "read", *T, position, f"v{position}"))
    lines += [Line(who, "committing", *T, committed + 5), Line(who, "committed", *T, committed + 5)]
    return lines, committed + 5


@pytest.mark.parametrize("seed", range(100))
def test_made_up_histories_pass_and_a_single_change_of_them_is_found(seed: int) -> None:
    lines, end = made_up(seed)
    assert check(lines, {T: end}, {T: end}) == []
    chance = random.Random(seed)
    sure = [at for at, line in enumerate(lines) if line.what == "committed"]
    # An acknowledged commit that is forgotten: the next owner starts at the one before it.
    at = chance.choice(sure)
    before = max((lines[other].offset for other in sure if other < at), default=0)
    forgotten = [*lines[: at + 1], Line("x", "assigned", *T), Line("x", "read", *T, before, f"v{before}")]
    assert check([*forgotten, *lines[at + 1 :]], {T: end}, {T: end}) != []
    # A read that is missing.
    reads = [at for at, line in enumerate(lines) if line.what == "read"]
    at = chance.choice(reads[:-1])
    if lines[at + 1].what == "read" and lines[at - 1].what in ("read", "committed"):
        assert check(lines[:at] + lines[at + 1 :], {T: end}, {T: end}) != []
