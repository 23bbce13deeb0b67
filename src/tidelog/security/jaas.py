"""JAAS texts, as sasl.jaas.config has them: login modules with their control flags and options.

    org.apache.kafka.common.security.plain.PlainLoginModule required username="alice" password="secret";

Only the login modules of Kafka's mechanisms are known. No module is loaded: its name says what the options
mean.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

PLAIN_MODULE: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
OAUTHBEARER_MODULE: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
KERBEROS_MODULE: Final = "com.sun.security.auth.module.Krb5LoginModule"
IBM_KERBEROS_MODULE: Final = "com.ibm.security.auth.module.Krb5LoginModule"

MODULES: Final = {
    "PLAIN": (PLAIN_MODULE,),
    "SCRAM-SHA-256": (SCRAM_MODULE,),
    "SCRAM-SHA-512": (SCRAM_MODULE,),
    "OAUTHBEARER": (OAUTHBEARER_MODULE,),
    "GSSAPI": (KERBEROS_MODULE, IBM_KERBEROS_MODULE),
}
"""The login modules of each mechanism."""

KNOWN_MODULES: Final = frozenset(name for names in MODULES.values() for name in names)

DISALLOWED_MODULES: Final = frozenset(
    ("com.sun.security.auth.module.JndiLoginModule", "com.sun.security.auth.module.LdapLoginModule")
)
"""Modules that fetch and run code of others, or send passwords to a server that the text names.

Kafka refuses them by default (org.apache.kafka.disallowed.login.modules).
"""

FLAGS: Final = ("required", "requisite", "sufficient", "optional")

Token = tuple[str, str]
"""The kind (value, sign or word) and the text of a token."""


def _token(signs: str) -> re.Pattern[str]:
    return re.compile(
        rf"""\s+ | //[^\n]* | /\*.*?\*/            # left out
          | (?P<quoted>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
          | (?P<sign>[{signs}])
          | (?P<word>[^\s"'{signs}]+)""",
        re.VERBOSE | re.DOTALL,
    )


_TOKEN = _token("=;")
_FILE_TOKEN = _token("=;{}")
_ESCAPE = re.compile(r"\\([0-7]{1,3}|.)", re.DOTALL)
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v"}


class JaasError(ValueError):
    """A JAAS text is malformed, or names a login module that is not accepted. Never quotes a value."""


@dataclass(slots=True, frozen=True)
class LoginModule:
    """A login module of a JAAS text. The repr hides its options: they have passwords."""

    name: str
    flag: str
    options: dict[str, str] = field(repr=False)

    def text(self) -> str:
        """The module as a JAAS text."""
        options = "".join(f' {name}="{_escaped(value)}"' for name, value in self.options.items())
        return f"{self.name} {self.flag}{options};"


def parse_jaas(text: str) -> list[LoginModule]:
    """The login modules of a text. Raises JaasError.

    >>> parse_jaas('org.apache.kafka.common.security.scram.ScramLoginModule required;')[0].flag
    'required'
    """
    tokens = list(tokens_of(text))
    modules: list[LoginModule] = []
    at = 0
    while at < len(tokens):
        end = next((i for i in range(at, len(tokens)) if tokens[i] == ("sign", ";")), None)
        if end is None:
            raise JaasError("a login module does not end with a semicolon")
        modules.append(_known(login_module_of(tokens[at:end])))
        at = end + 1
    if not modules:
        raise JaasError("it has no login module")
    return modules


def login_module(text: str, mechanism: str) -> LoginModule:
    """The one login module of a mechanism. Raises JaasError if there are more, or if it is of another one."""
    modules = parse_jaas(text)
    if len(modules) != 1:
        raise JaasError(f"expected one login module, not {len(modules)}")
    expected = MODULES.get(mechanism, ())
    if modules[0].name not in expected:
        raise JaasError(f"{modules[0].name} is not the login module of {mechanism}")
    return modules[0]


def _known(module: LoginModule) -> LoginModule:
    if module.name in DISALLOWED_MODULES:
        raise JaasError(
            f"{module.name} is not allowed: it loads code, or sends passwords, where the text says"
        )
    if module.name not in KNOWN_MODULES:
        raise JaasError(f"{module.name} is not a known login module")
    return module


def login_module_of(tokens: Sequence[Token]) -> LoginModule:
    """The login module of the tokens before its semicolon, whatever its name. Raises JaasError."""
    if len(tokens) < 2 or tokens[0][0] != "word" or tokens[1][0] != "word":
        raise JaasError("a login module has a name and a control flag, such as required")
    name, flag = tokens[0][1], tokens[1][1].lower()
    if flag not in FLAGS:
        raise JaasError(f"{tokens[1][1]} is not a control flag; one of {', '.join(FLAGS)} is")
    rest = tokens[2:]
    options: dict[str, str] = {}
    for at in range(0, len(rest), 3):
        option = rest[at : at + 3]
        if [kind for kind, _ in option[:2]] != ["word", "sign"] or len(option) < 3 or option[2][0] == "sign":
            raise JaasError(f"an option of {name} is not of the form name=value")
        options[option[0][1]] = option[2][1]
    return LoginModule(name, flag, options)


def tokens_of(text: str, *, has_sections: bool = False) -> Iterator[Token]:
    """The tokens of a text. With `has_sections` braces are signs. Raises JaasError."""
    pattern = _FILE_TOKEN if has_sections else _TOKEN
    at = 0
    while at < len(text):
        match = pattern.match(text, at)
        if match is None:
            raise JaasError("a quoted value has no end")
        at = match.end()
        if (quoted := match["quoted"]) is not None:
            yield "value", _ESCAPE.sub(_unescaped, quoted[1:-1])
        elif (sign := match["sign"]) is not None:
            yield "sign", sign
        elif (word := match["word"]) is not None:
            yield "word", word


def _unescaped(match: re.Match[str]) -> str:
    escaped = match[1]
    return chr(int(escaped, 8)) if escaped[0] in "01234567" else _ESCAPES.get(escaped, escaped)


def _escaped(value: str) -> str:
    for written, meant in (("\\\\", "\\"), ('\\"', '"'), ("\\n", "\n"), ("\\r", "\r")):
        value = value.replace(meant, written)
    return value
