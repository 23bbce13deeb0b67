"""PrincipalMapper: the name of a principal from a distinguished name, by `ssl.principal.mapping.rules`.

A rule is DEFAULT, which takes the whole name, or RULE:pattern/replacement/ with an L or U behind it for lower
or upper case. The first rule whose pattern matches the whole name counts. Patterns are Java's in the usual
cases; named groups and possessive quantifiers work, classes such as \\p{Alpha} do not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tidelog.config import ConfigError

SETTING = "ssl.principal.mapping.rules"
# A slash or comma inside a pattern or a replacement has a backslash before it.
_PART = r"((?:\\.|[^\\/])*)"
_RULE = re.compile(rf"\s*(?:(DEFAULT)|RULE:{_PART}/{_PART}/([LU]?))\s*(?:,|$)")


class NoMatchingRule(ValueError):
    """No rule applies to the distinguished name of a client."""


@dataclass(slots=True, frozen=True)
class Rule:
    """A rule; `pattern` is None for DEFAULT."""

    pattern: re.Pattern[str] | None
    replacement: str = ""
    case: str = ""

    def apply(self, name: str) -> str | None:
        """The name of the principal, None if the rule does not apply."""
        if self.pattern is None:
            return name
        if not self.pattern.fullmatch(name):
            return None
        mapped = self.pattern.sub(self._replace, name)
        return mapped.lower() if self.case == "L" else mapped.upper() if self.case == "U" else mapped

    def _replace(self, match: re.Match[str]) -> str:
        return "".join(_replaced(self.replacement, match))


class PrincipalMapper:
    def __init__(self, text: str) -> None:
        """Reads the rules. No rules refuse everybody, as in Kafka. Raises ConfigError."""
        self._text = text.strip()
        self._rules = list(_rules(self._text))

    def name_of(self, distinguished_name: str) -> str:
        """The name of a principal. Raises NoMatchingRule."""
        for rule in self._rules:
            if (name := rule.apply(distinguished_name)) is not None:
                return name
        raise NoMatchingRule(f"no rule of {SETTING}={self._text} applies to {distinguished_name}")


def _rules(text: str) -> Iterator[Rule]:
    position = 0
    while position < len(text):
        match = _RULE.match(text, position)
        if match is None:
            problem = f"expected DEFAULT or RULE:pattern/replacement/[LU] at {text[position:]!r}"
            raise ConfigError(SETTING, text, problem)
        position = match.end()
        default, pattern, replacement, case = match.groups()
        if default:
            yield Rule(None)
            continue
        try:
            # Java spells a named group (?<name>...).
            yield Rule(re.compile(re.sub(r"\(\?<(?![=!])", "(?P<", pattern)), replacement, case)
        except re.error as error:
            raise ConfigError(SETTING, text, f"the pattern {pattern!r} is not valid: {error}") from None


def _replaced(replacement: str, match: re.Match[str]) -> Iterator[str]:
    """The pieces of a replacement: $1 is a group, a backslash makes the next character plain, as in Java.

    As in Kafka, $ with the number of a group that the pattern does not have is plain text.
    """
    position, groups = 0, match.re.groups
    while position < len(replacement):
        each = replacement[position]
        position += 1
        if each == "\\" and position < len(replacement):
            yield replacement[position]
            position += 1
            continue
        number = replacement[position : position + 1]
        if each == "$" and number.isdecimal() and int(number) <= groups:
            position += 1
            while (more := replacement[position : position + 1]).isdecimal() and int(number + more) <= groups:
                number += more
                position += 1
            yield match[int(number)] or ""
        else:
            yield each
