"""The types of settings: parses and renders values with Kafka's rules for spaces, signs and case."""

from __future__ import annotations

import math
import re
from enum import IntEnum

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1

_WHOLE = re.compile(r"[+-]?[0-9]+", re.ASCII)
# Java's notation of a double, which may end with f or d.
_DOUBLE = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFdD]?", re.ASCII)
_DOUBLE_WORDS = {"NaN": math.nan, "Infinity": math.inf, "+Infinity": math.inf, "-Infinity": -math.inf}


class ConfigType(IntEnum):
    """The type of a setting, with its number in DescribeConfigs."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9

    @classmethod
    def _missing_(cls, value: object) -> ConfigType:
        return cls.UNKNOWN  # a newer broker may have more types


class Password:
    """A secret; log lines and tracebacks show it as [hidden]."""

    __slots__ = ("secret",)

    def __init__(self, secret: str) -> None:
        self.secret = secret

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Password) and other.secret == self.secret

    def __hash__(self) -> int:
        return hash(self.secret)

    def __repr__(self) -> str:
        return "[hidden]"


ConfigValue = bool | int | float | str | tuple[str, ...] | Password | None


class ConfigError(ValueError):
    """A setting is invalid; the message has its name and value, and says what is expected."""

    def __init__(self, name: str, value: str | None, problem: str) -> None:
        self.name = name
        self.value = value
        self.problem = problem
        super().__init__(f"{name}={value}: {problem}" if value is not None else f"{name}: {problem}")


_BITS = {ConfigType.SHORT: 15, ConfigType.INT: 31, ConfigType.LONG: 63}


def parse_value(name: str, kind: ConfigType, text: str) -> ConfigValue:
    """The typed value of `text`, without spaces around it. Raises ConfigError."""
    text = text.strip()
    if kind in _BITS:
        return _parse_whole(name, kind, text)
    if kind is ConfigType.BOOLEAN:
        if (lower := text.lower()) in ("true", "false"):
            return lower == "true"
        raise ConfigError(name, text, "expected true or false")
    if kind is ConfigType.DOUBLE:
        return _parse_double(name, text)
    if kind is ConfigType.LIST:
        return tuple(part.strip() for part in text.split(",")) if text else ()
    if kind is ConfigType.PASSWORD:
        return Password(text)
    return text


def _parse_whole(name: str, kind: ConfigType, text: str) -> int:
    if not _WHOLE.fullmatch(text):
        raise ConfigError(name, text, "expected a whole number")
    limit = 1 << _BITS[kind]
    # More than 20 characters cannot be in range, and converting huge numbers costs time.
    if len(text) > 40 or not -limit <= int(text) < limit:
        bound = f"at least {-limit}" if text.startswith("-") else f"at most {limit - 1}"
        raise ConfigError(name, text, f"expected a whole number of {bound}")
    return int(text)


def _parse_double(name: str, text: str) -> float:
    if text in _DOUBLE_WORDS:
        return _DOUBLE_WORDS[text]
    if match := _DOUBLE.fullmatch(text):
        return float(match[1])
    raise ConfigError(name, text, "expected a number")


def render_value(value: ConfigValue) -> str | None:
    """The text of a value as in Kafka's tools; None for a secret."""
    if value is None or isinstance(value, Password):
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _render_double(value)
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value)


def _render_double(value: float) -> str:
    """The text of a double as in Java: shortest digits, an exponent below 0.001 and from 10 million on."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    mantissa, _, exponent = f"{value!r}".partition("e")
    if not exponent:
        sign, digits = ("-", mantissa[1:]) if value < 0 else ("", mantissa)
        whole, _, fraction = digits.partition(".")
        significant = (whole + fraction).strip("0")
        power = len(whole) - 1 if whole != "0" else -(len(fraction) - len(fraction.lstrip("0")) + 1)
        mantissa = f"{sign}{significant[0]}.{significant[1:] or '0'}"
        return f"{mantissa}E{power}"
    return f"{mantissa if '.' in mantissa else mantissa + '.0'}E{int(exponent)}"
