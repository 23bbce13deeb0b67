"""Patterns are RE2's: they match whole names, and none of them can hold up the loop."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from tidelog.coordinator.group.patterns import check, resolve
from tidelog.errors import InvalidRegularExpression


def matches(*patterns: str, names: list[str]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for _ in resolve(patterns, names, found):
        pass
    return found


def test_a_pattern_matches_whole_names() -> None:
    names = ["orders", "orders-2", "my-orders", "payments"]
    assert matches("orders", "orders.*", ".*", "", names=names) == {
        "orders": {"orders"},
        "orders.*": {"orders", "orders-2"},
        ".*": set(names),
        "": set(),
    }


@pytest.mark.parametrize("pattern", ["[", "(", "*a", "a{2,1}", "(?!x)a", "(?<=x)a", r"(a)\1", "a{1001}"])
def test_what_is_not_re2_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidRegularExpression, match="RE2"):
        check(pattern)


@pytest.mark.parametrize("pattern", [r"\d+", "(?i)ORDERS", "a|b", "[[:alpha:]]+", r"\pL+", "a{1,1000}"])
def test_what_is_re2_is_taken(pattern: str) -> None:
    check(pattern)


def test_a_pattern_that_was_stored_and_is_refused_now_matches_nothing() -> None:
    assert matches("(?!x)a", "a", names=["a"]) == {"(?!x)a": set(), "a": {"a"}}


@pytest.mark.parametrize("pattern", ["(a*)*b", "(a|a)*c", "(.*)(.*)(.*)(.*)(.*)x", "((a{1,30}){1,30})?b"])
def test_patterns_that_take_others_for_ever_are_matched_at_once(pattern: str) -> None:
    began = time.perf_counter()
    assert matches(pattern, names=["a" * 249]) == {pattern: set()}
    # A few ms; a matcher that goes back takes longer than the universe is old.
    assert time.perf_counter() - began < 1.0


def test_a_pattern_that_would_grow_too_large_is_refused() -> None:
    with pytest.raises(InvalidRegularExpression, match="too large"):
        check(r"(\pL{1,100}){1,10}")


def test_topics_are_matched_in_steps() -> None:
    found: dict[str, set[str]] = {}
    steps = sum(1 for _ in resolve(["a.*", "b.*"], [f"a{at}" for at in range(100)], found))
    assert steps >= 100


def test_nobody_pays_for_patterns_before_there_is_one() -> None:
    program = (
        "import sys, tidelog.coordinator.group.coordinator as _;"
        "assert 're2' not in sys.modules;"
        "from tidelog.coordinator.group.patterns import check; check('a');"
        "assert 're2' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
