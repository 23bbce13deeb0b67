"""Rules for the values of settings, in a short notation.

- Numbers: `>=1`, `1..9`, `1..9|-1`.
- One of some texts: `in(a,b)`, `anycase(a,b)`. A list of some texts: `each(a,b)`.
- Texts with a pattern: `nonempty`, `replicas`, `hosts`, `address`, `version`, `levels`, `assignors`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Protocol

from tidelog.config.values import ConfigValue


class Rule(Protocol):
    def problem(self, value: ConfigValue) -> str | None:
        """A text that says what is expected if `value` is invalid, else None."""

    def allowed(self) -> str:
        """The allowed values, for the documentation."""


class Range:
    """Numbers from `low` to `high`, and the numbers in `also`."""

    __slots__ = ("also", "high", "low")

    def __init__(self, low: float, high: float | None = None, also: tuple[float, ...] = ()) -> None:
        self.low = low
        self.high = high
        self.also = also

    def problem(self, value: ConfigValue) -> str | None:
        if not isinstance(value, int | float) or value in self.also:
            return None
        # As in Kafka, NaN passes these comparisons.
        if value < self.low or (self.high is not None and value > self.high):
            return f"expected {self.allowed()}"
        return None

    def allowed(self) -> str:
        span = f"at least {self.low}" if self.high is None else f"{self.low} to {self.high}"
        return span + "".join(f", or {value}" for value in self.also)


class OneOf:
    __slots__ = ("any_case", "values")

    def __init__(self, values: tuple[str, ...], any_case: bool = False) -> None:
        self.values = values
        self.any_case = any_case

    def problem(self, value: ConfigValue) -> str | None:
        if value is None:
            return None
        text = str(value)
        if text in self.values:
            return None
        if self.any_case and text.lower() in (known.lower() for known in self.values):
            return None
        return f"expected {self.allowed()}"

    def allowed(self) -> str:
        return "one of " + ", ".join(self.values)


class EachOf:
    __slots__ = ("values",)

    def __init__(self, values: tuple[str, ...]) -> None:
        self.values = values

    def problem(self, value: ConfigValue) -> str | None:
        if isinstance(value, tuple) and any(item not in self.values for item in value):
            return f"expected {self.allowed()}"
        return None

    def allowed(self) -> str:
        return "a list of " + ", ".join(self.values)


class Shape:
    """A pattern that a text, or every item of a list, has to match."""

    __slots__ = ("_description", "_pattern")

    def __init__(self, pattern: str, description: str) -> None:
        self._pattern = re.compile(pattern)
        self._description = description

    def problem(self, value: ConfigValue) -> str | None:
        items = value if isinstance(value, tuple) else (value,)
        if all(item is None or self._pattern.fullmatch(str(item)) for item in items):
            return None
        return f"expected {self._description}"

    def allowed(self) -> str:
        return self._description


_SHAPES = {
    "nonempty": (r"[\s\S]+", "a text that is not empty"),
    "replicas": (r"\*|[0-9]+:[0-9]+", "* or a list of partition:broker"),
    "hosts": (r"(?:[^,]*[^,\s]:\s*[0-9]+\s*(?:,\s*(?!$)|$))*", "a list of host:count"),
    "address": (r".*:[0-9]{1,5}", "host:port"),
    "version": (r"[0-9]+(?:\.[0-9]+)+(?:-IV[0-9]+)?", "a version of Kafka such as 3.9 or 3.9-IV0"),
    # Kafka 3.9 has the names of their classes.
    "assignors": (
        r"uniform|range|org\.apache\.kafka\.coordinator\.group\.assignor\.(?:Uniform|Range)Assignor",
        "uniform or range",
    ),
    "levels": (r"[\w.]+:(?i:TRACE|DEBUG|INFO|WARN|ERROR|FATAL)", "part:LEVEL pairs such as network:DEBUG"),
}


def _number(text: str) -> float:
    return float(text) if "." in text else int(text)


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


_NAMED: dict[str, Callable[[tuple[str, ...]], Rule]] = {
    "in": OneOf,
    "anycase": lambda values: OneOf(values, any_case=True),
    "each": EachOf,
}


def parse_rule(notation: str) -> Rule:
    if notation.startswith(">="):
        return Range(_number(notation[2:]))
    if notation in _SHAPES:
        return Shape(*_SHAPES[notation])
    name, _, rest = notation.partition("(")
    if rest:
        return _NAMED[name](_words(rest.removesuffix(")")))
    span, *also = notation.split("|")
    low, _, high = span.partition("..")
    return Range(_number(low), _number(high), tuple(_number(value) for value in also))
