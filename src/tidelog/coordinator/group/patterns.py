"""Patterns that members subscribe with: RE2's syntax and promise, to match in time linear in the name.

Neither a pattern nor the number of topics can hold up the loop for long: what a pattern may grow to when it
is compiled is bounded, and topics are matched in steps with others' turns in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

from tidelog.errors import InvalidRegularExpression

if TYPE_CHECKING:
    import re2

# What RE2 may use for one pattern. A list of two thousand topic names fits; the worst that fits takes about
# 6 ms to compile, and as long to match with a name of 249 characters (measured). With RE2's own limit of 8 MB
# it is ten times that.
MAX_MEMORY = 1 << 20


@lru_cache(maxsize=256)
def compiled(pattern: str) -> re2._Regexp[str]:
    """The pattern, ready to match; InvalidRegularExpression where it is none."""
    import re2

    options = re2.Options()
    options.max_mem = MAX_MEMORY
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0] if error.args else ""
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise InvalidRegularExpression(f"{pattern!r} is no regular expression of RE2: {text}") from None


def check(pattern: str) -> None:
    compiled(pattern)


def resolve(patterns: Iterable[str], names: Iterable[str], found: dict[str, set[str]]) -> Iterator[None]:
    """Put the names that each pattern matches as a whole into `found`, one name in each step."""
    ready = []
    for pattern in patterns:
        found[pattern] = set()
        try:
            ready.append((compiled(pattern), found[pattern]))
        except InvalidRegularExpression:
            continue  # from a log that another coordinator has written: it matches nothing here
        yield
    for name in names:
        for expression, matched in ready:
            if expression.fullmatch(name):
                matched.add(name)
        yield
