"""sasl.kerberos.principal.to.local.rules: from a Kerberos principal (kafka/host@REALM) to a user's name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_PRINCIPAL = re.compile(r"([^/@]+)(?:/([^/@]+))?(?:@([^/@]+))?")
_RULE = re.compile(
    r"RULE:\[(?P<count>[12]):(?P<format>[^\]]*)\](?:\((?P<match>[^)]*)\))?"
    r"(?:s/(?P<from>[^/]*)/(?P<to>[^/]*)/(?P<all>g)?)?/?(?P<case>[LU])?"
)


@dataclass(slots=True, frozen=True)
class _Rule:
    count: int
    format: str
    match: re.Pattern[str] | None
    replace: tuple[re.Pattern[str], str] | None
    every: bool
    case: str | None

    def apply(self, parts: Sequence[str]) -> str | None:
        """The name that the rule makes of realm, primary and instance; None if it does not apply."""
        if len(parts) - 1 != self.count:
            return None
        base = re.sub(r"\$([0-9])", lambda found: _part(parts, int(found[1])), self.format)
        if self.match is not None and not self.match.fullmatch(base):
            return None
        if self.replace is not None:
            pattern, replacement = self.replace
            base = pattern.sub(re.sub(r"\$([0-9])", r"\\\1", replacement), base, count=0 if self.every else 1)
        return base.lower() if self.case == "L" else base.upper() if self.case == "U" else base


def _part(parts: Sequence[str], index: int) -> str:
    if index >= len(parts):
        raise ValueError(f"a rule names ${index}, which a principal with {len(parts) - 1} parts has not")
    return parts[index]


class KerberosNames:
    """`rules` as in the setting: RULE:[n:string](regexp)s/pattern/replacement/g/L, or DEFAULT."""

    def __init__(self, rules: Sequence[str], default_realm: str) -> None:
        """Raises ValueError for a text that is not a rule."""
        self._realm = default_realm
        self._rules: list[_Rule | None] = []  # None is DEFAULT
        for text in rules:
            if text == "DEFAULT":
                self._rules.append(None)
                continue
            found = _RULE.fullmatch(text.strip())
            if found is None:
                raise ValueError(f"{text!r} is not a rule")
            replace = None if found["from"] is None else (re.compile(found["from"]), found["to"])
            match = None if found["match"] is None else re.compile(found["match"])
            self._rules.append(
                _Rule(int(found["count"]), found["format"], match, replace, bool(found["all"]), found["case"])
            )

    def short_name(self, principal: str) -> str:
        """Raises ValueError if no rule applies."""
        found = _PRINCIPAL.fullmatch(principal)
        if found is None:
            raise ValueError("not a Kerberos principal")
        primary, instance, realm = found[1], found[2], found[3]
        if realm is None:
            return principal
        parts = [realm, primary] + ([] if instance is None else [instance])
        for rule in self._rules:
            if rule is None:
                if realm == self._realm:
                    return str(primary)
            elif (name := rule.apply(parts)) is not None:
                return name
        raise ValueError("no rule of sasl.kerberos.principal.to.local.rules applies to the principal")
