"""JAAS files: sections of login modules, as java.security.auth.login.config names them for Kafka.

    KafkaServer {
        org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="secret";
    };

The path comes from the environment, as for Kafka's scripts:

    KAFKA_OPTS=-Djava.security.auth.login.config=/etc/kafka/jaas.conf
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tidelog.config.values import ConfigError
from tidelog.security.jaas import (
    DISALLOWED_MODULES,
    MODULES,
    JaasError,
    LoginModule,
    Token,
    login_module_of,
    tokens_of,
)

PROPERTY: Final = "java.security.auth.login.config"
SERVER_SECTION: Final = "KafkaServer"
CLIENT_SECTION: Final = "KafkaClient"

_OPTION = re.compile(rf"(?:^|\s)-D{re.escape(PROPERTY)}==?(?:\"([^\"]*)\"|'([^']*)'|(\S+))")


def jaas_of_file(sections: Sequence[str], mechanism: str) -> str | None:
    """The JAAS text of a mechanism, from the first of these sections that the file has.

    Returns None if KAFKA_OPTS names no file, or the section has no login module of the mechanism. Raises
    ConfigError if the file cannot be read.
    """
    path = jaas_path(os.environ.get("KAFKA_OPTS", ""))
    if path is None:
        return None
    try:
        found = parse_jaas_file(Path(path).read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(PROPERTY, path, f"cannot be read: {error}") from None
    except JaasError as error:
        raise ConfigError(PROPERTY, path, str(error)) from None
    modules = next((found[name] for name in sections if name in found), [])
    for module in modules:
        if module.name in DISALLOWED_MODULES:
            raise ConfigError(PROPERTY, path, f"{module.name} is not allowed")
    return next((module.text() for module in modules if module.name in MODULES.get(mechanism, ())), None)


def jaas_path(options: str) -> str | None:
    """The path that options of a JVM name; the last one counts.

    >>> jaas_path("-Xmx1g -Djava.security.auth.login.config=/etc/kafka/jaas.conf")
    '/etc/kafka/jaas.conf'
    """
    found = _OPTION.findall(options)
    return "".join(found[-1]) if found else None


def parse_jaas_file(text: str) -> dict[str, list[LoginModule]]:
    """The login modules of each section. Raises JaasError, which never quotes a value."""
    tokens = list(tokens_of(text, has_sections=True))
    sections: dict[str, list[LoginModule]] = {}
    at = 0
    while at < len(tokens):
        if tokens[at][0] == "sign" or tokens[at + 1 : at + 2] != [("sign", "{")]:
            raise JaasError("a section has a name and an opening brace")
        name = tokens[at][1]
        if name in sections:
            raise JaasError(f"there are two sections {name}")
        end = _index(tokens, at, "}")
        if tokens[end + 1 : end + 2] != [("sign", ";")]:
            raise JaasError(f"the section {name} does not end with a brace and a semicolon")
        sections[name] = _modules(tokens[at + 2 : end])
        at = end + 2
    return sections


def _modules(tokens: list[Token]) -> list[LoginModule]:
    modules: list[LoginModule] = []
    while tokens:
        end = _index(tokens, 0, ";")
        module = login_module_of(tokens[:end])
        if any("${" in value for value in module.options.values()):
            raise JaasError(f"an option of {module.name} has ${{...}}: there are no properties of a JVM here")
        modules.append(module)
        tokens = tokens[end + 1 :]
    return modules


def _index(tokens: Sequence[Token], start: int, sign: str) -> int:
    for at in range(start, len(tokens)):
        if tokens[at] == ("sign", sign):
            return at
    raise JaasError("a login module does not end with a semicolon" if sign == ";" else "a section has no end")
