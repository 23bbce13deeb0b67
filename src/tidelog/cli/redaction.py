"""Removes secrets from texts and settings that leave the machine: passwords, tokens, keys, credentials.

Nobody can know every secret by its looks. So three rules work together: the names of settings, the forms that
secrets have in texts, and the secrets that the caller knows, wherever they occur.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

REMOVED = "[removed]"
SECRET_NAME = re.compile(
    r"(?i)pass(?:word|wd|phrase)|secret|token(?!\.(?:endpoint|auth|expiry))|credential|private[._-]?key|api[._-]?key"
    r"|keystore\.key$|ssl\.key$|jaas\.config|sasl\.(?:username|password)|hmac|access[._-]?key|authorization|salt"
    r"|stored[._-]?key|server[._-]?key|sas[._-]?uri|connection[._-]?string"
)
FORMS = tuple(
    re.compile(form)
    for form in (
        r"(?is)(-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
        r"(?i)(\b(?:bearer|basic|digest|negotiate)\s+)[\w+/=.~-]{6,}",
        # A search that began at each character of a word would take hours for a long one.
        r"((?<![\w+.-])[\w+.-]+://[^\s:/@]*:)[^\s/@]+(?=@)",
        # name="value", name=value, "name": "value", name: value
        r"""(?ix)((?<![\w.-])["']?[\w.-]*(?:pass(?:word|wd|phrase)|secret|token|credential|private[._-]?key|api[._-]?key|hmac
            |access[._-]?key|salt|stored[._-]?key|server[._-]?key|authorization)[\w.-]*["']?\s*[=:]\s*)
            (?:(?P<quote>["'])(?:\\.|(?!(?P=quote))[^\\])*(?P=quote)|[^\s,;}\]&]+)""",
        r'(\buser_[\w.@-]+\s*=\s*)(?P<quote>")(?:\\.|[^"\\])*"',  # users of PLAIN in JAAS
        r"(\b(?:AKIA|ASIA))[A-Z0-9]{16}\b",
        r"(\beyJ)[\w-]{8,}\.[\w-]{4,}(?:\.[\w-]*)?",  # a signed token
    )
)
# Shorter values would be found in harmless places.
SHORTEST_KNOWN = 4


def is_secret_name(name: str) -> bool:
    return SECRET_NAME.search(name) is not None


class Redactor:
    """Removes secrets; `known` are secrets that are removed wherever they occur."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        words = sorted({each for each in known if len(each) >= SHORTEST_KNOWN}, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, words))) if words else None

    def text(self, text: str) -> str:
        if self._known is not None:
            text = self._known.sub(REMOVED, text)
        for form in FORMS:
            text = form.sub(_removed, text)
        return text

    def setting(self, name: str, value: str | None) -> str | None:
        """The value of a setting; removed if its name says that it is secret."""
        if value in (None, ""):
            return value
        return REMOVED if is_secret_name(name) else self.text(str(value))

    def settings(self, given: Mapping[str, object]) -> dict[str, str | None]:
        return {name: self.setting(name, str(value)) for name, value in given.items()}

    def value(self, value: object) -> object:
        """A value of JSON; fields with the name of a secret are removed."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {
                self.text(str(name)): REMOVED
                if is_secret_name(str(name)) and isinstance(each, str)
                else self.value(each)
                for name, each in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.value(each) for each in value]
        return value


def _removed(found: re.Match[str]) -> str:
    """What stands in place of a secret: between the quotes that it had, so that JSON stays JSON."""
    quote = found.groupdict().get("quote") or ""
    return f"{found[1]}{quote}{REMOVED}{quote}"


def secrets_in(settings: Mapping[str, object]) -> list[str]:
    """The secrets of settings, to be removed wherever they occur; in JAAS, those between quotes."""
    found: list[str] = []
    for name, value in settings.items():
        if name.lower().endswith("jaas.config"):
            found += re.findall(
                r'(?i)(?:password|secret|token|\buser_)\w*\s*=\s*"((?:[^"\\]|\\.)*)"', str(value)
            )
        elif is_secret_name(name):
            found.append(str(value))
    return found
