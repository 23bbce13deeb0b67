"""The values of CEL and its operators, within a budget of steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol, TypeAlias

import re2

from tidelog.console.records.cel_syntax import CelError

Value: TypeAlias = object
BUDGET = 50_000
"""Steps of one evaluation: about 20 ms."""
MAX_PATTERN = 1000
MAX_MADE_TEXT = 1 << 20
INT_LOW, INT_HIGH = -(1 << 63), 1 << 64


class Match(Protocol):
    def group(self) -> str: ...


class Pattern(Protocol):
    """A pattern of re2, which matches in linear time."""

    def search(self, text: str) -> Match | None: ...

    def fullmatch(self, text: str) -> Match | None: ...

    def sub(self, replacement: Callable[[Match], str], text: str) -> str: ...


class BudgetExceeded(CelError):
    """The expression takes too many steps for one record."""


class Scope:
    """The variables of one evaluation, and the steps that are left."""

    __slots__ = ("steps", "variables")

    def __init__(self, variables: dict[str, Value], steps: int = BUDGET) -> None:
        self.variables = variables
        self.steps = steps

    def spend(self, steps: int) -> None:
        self.steps -= steps
        if self.steps < 0:
            raise BudgetExceeded(f"the expression takes more than {BUDGET} steps for one record")


def kind_of(value: Value) -> str:
    """The name of a value's type in CEL."""
    if value is None:
        return "null"
    for kind, name in (
        (bool, "bool"), (int, "int"), (float, "double"), (str, "string"), (bytes, "bytes"), (list, "list"),
    ):  # fmt: skip
        if isinstance(value, kind):
            return name
    return "map"


def is_number(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def equal(left: Value, right: Value, scope: Scope) -> bool:
    """CEL's equality: numbers by value, other kinds only with their own kind."""
    if is_number(left) and is_number(right):
        return left == right
    if kind_of(left) != kind_of(right):
        return False
    if isinstance(left, list) and isinstance(right, list):
        scope.spend(len(left))
        return len(left) == len(right) and all(equal(a, b, scope) for a, b in zip(left, right, strict=True))
    if isinstance(left, dict) and isinstance(right, dict):
        scope.spend(len(left))
        return left.keys() == right.keys() and all(equal(left[key], right[key], scope) for key in left)
    return left == right


def truth(value: Value, position: int) -> bool:
    if not isinstance(value, bool):
        raise CelError(f"character {position}: expected true or false, got {kind_of(value)}")
    return value


def negation(value: Value, position: int) -> Value:
    return not truth(value, position)


def negative(value: Value, position: int) -> Value:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return in_range(-value, position)
    raise no_overload("-", position, value)


def no_overload(name: str, position: int, *values: Value) -> CelError:
    kinds = " and ".join(kind_of(value) for value in values)
    return CelError(f"{name} at character {position} is not defined for {kinds}")


def in_range(value: int | float, position: int) -> int | float:
    if isinstance(value, int) and not INT_LOW <= value < INT_HIGH:
        raise CelError(f"the number at character {position} has more than 64 bits")
    return value


def select(value: Value, key: Value, position: int) -> Value:
    if isinstance(value, dict):
        if isinstance(key, list | dict) or key not in value:
            raise CelError(f"no such key: {str(key)[:80]!r} (character {position})")
        return value[key]
    if isinstance(value, list) and isinstance(key, int) and not isinstance(key, bool):
        if not 0 <= key < len(value):
            raise CelError(f"index {key} of a list with {len(value)} items (character {position})")
        return value[key]
    raise no_overload("the selection of a field", position, value)


def map_key(value: Value) -> Value:
    if not isinstance(value, str | bool | int):
        raise CelError(f"a map has no keys of type {kind_of(value)}")
    return value


COMPARISONS: dict[str, Callable[[int], bool]] = {
    "<": lambda order: order == -1,
    "<=": lambda order: order in (-1, 0),
    ">": lambda order: order == 1,
    ">=": lambda order: order in (0, 1),
}
UNORDERED = 2


def order(left: Value, right: Value, operator: str, position: int) -> int:
    """-1, 0 or 1; UNORDERED for a comparison with NaN."""
    if (
        isinstance(left, int | float)
        and isinstance(right, int | float)
        and isinstance(left, bool) is isinstance(right, bool)
    ):
        if left < right:
            return -1
        return 1 if left > right else (0 if left == right else UNORDERED)
    if isinstance(left, str) and isinstance(right, str):
        return (left > right) - (left < right)
    if isinstance(left, bytes) and isinstance(right, bytes):
        return (left > right) - (left < right)
    raise no_overload(operator, position, left, right)


def contained(item: Value, items: Value, scope: Scope, position: int) -> bool:
    if isinstance(items, dict):
        return not isinstance(item, list | dict) and item in items
    if isinstance(items, list):
        scope.spend(len(items))
        return any(equal(item, other, scope) for other in items)
    raise no_overload("in", position, item, items)


def arithmetic(operator: str, left: Value, right: Value, scope: Scope, position: int) -> Value:
    if operator == "+":
        for kind in (str, bytes, list):
            if isinstance(left, kind) and isinstance(right, kind):
                return _joined(left, right, scope, position)
    if not (is_number(left) and is_number(right)):
        raise no_overload(operator, position, left, right)
    assert isinstance(left, int | float)
    assert isinstance(right, int | float)
    try:
        return in_range(_calculated(operator, left, right, position), position)
    except OverflowError:
        raise CelError(f"{operator} at character {position} overflows") from None


def _calculated(operator: str, left: int | float, right: int | float, position: int) -> int | float:
    if operator == "+":
        return left + right
    if operator == "-":
        return left - right
    if operator == "*":
        return left * right
    whole = isinstance(left, int) and isinstance(right, int)
    if right == 0 and (whole or operator == "%"):
        raise CelError(f"{operator} at character {position} divides by zero")
    if whole:
        quotient = abs(left) // abs(right)
        quotient = quotient if (left < 0) is (right < 0) else -quotient
        return quotient if operator == "/" else left - quotient * right
    if operator == "%":
        raise no_overload("%", position, left, right)
    if right == 0:
        return math.nan if left == 0 else math.copysign(math.inf, left)
    return left / right


def _joined(left: Value, right: Value, scope: Scope, position: int) -> Value:
    made = left + right  # type: ignore[operator]
    scope.spend(len(made) // 64 + 1)
    if len(made) > MAX_MADE_TEXT:
        raise CelError(f"+ at character {position} makes more than {MAX_MADE_TEXT} characters")
    return made


def pattern_of(pattern: Value, position: int) -> Pattern:
    if not isinstance(pattern, str):
        raise no_overload("matches", position, pattern)
    if len(pattern) > MAX_PATTERN:
        raise CelError(f"the pattern at character {position} is longer than {MAX_PATTERN} characters")
    options = re2.Options()
    options.log_errors = False
    options.max_mem = 1 << 20
    try:
        made: Pattern = re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0]
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise CelError(f"the pattern at character {position} is not valid: {text}") from None
    return made


def search(pattern: Pattern, text: Value, scope: Scope, position: int) -> bool:
    if not isinstance(text, str):
        raise no_overload("matches", position, text)
    scope.spend(len(text) // 64 + 1)
    return pattern.search(text) is not None
