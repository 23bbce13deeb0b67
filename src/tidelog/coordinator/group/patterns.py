"""The patterns of subscriptions, in RE2's syntax: a match takes time linear in the length of the name.

Patterns cannot block the loop for long: the size of a compiled pattern is limited, and topics are matched in
steps, in turns of the loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

from tidelog.errors import InvalidRegularExpression

if TYPE_CHECKING:
    import re2

# The memory limit of RE2 for one pattern. A list of two thousand topic names fits. The worst pattern that
# fits takes about 6 ms to compile, and as long to match a name of 249 characters (measured). RE2's default
# limit of 8 MB would allow ten times that.
MAX_MEMORY = 1 << 20


@lru_cache(maxsize=256)
def compiled(pattern: str) -> re2._Regexp[str]:
    """Compile a pattern; InvalidRegularExpression if that fails."""
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
    """Add the names that each pattern matches in full to `found`, one name in each step."""
    ready = []
    for pattern in patterns:
        found[pattern] = set()
        try:
            ready.append((compiled(pattern), found[pattern]))
        except InvalidRegularExpression:
            continue  # written by another coordinator: it matches nothing here
        yield
    for name in names:
        for expression, matched in ready:
            if expression.fullmatch(name):
                matched.add(name)
        yield
