"""The functions of CEL that filters may call: sizes, texts, conversions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

from tidelog.console.records.cel_syntax import CelError
from tidelog.console.records.cel_values import Scope, Value, in_range, is_number, no_overload

Function: TypeAlias = Callable[..., Value]
MAX_DIGITS = 40


def size(scope: Scope, position: int, value: Value) -> Value:
    if isinstance(value, str | bytes | list | dict):
        return len(value)
    raise no_overload("size", position, value)


def texts(name: str, operation: Callable[[str, str], Value]) -> Function:
    """A method of a text with one text as argument."""

    def run(scope: Scope, position: int, text: Value, part: Value) -> Value:
        if not isinstance(text, str) or not isinstance(part, str):
            raise no_overload(name, position, text, part)
        scope.spend(len(text) // 64 + 1)
        return operation(text, part)

    return run


def changed(name: str, operation: Callable[[str], str]) -> Function:
    """A method of a text without arguments."""

    def run(scope: Scope, position: int, text: Value) -> Value:
        if not isinstance(text, str):
            raise no_overload(name, position, text)
        scope.spend(len(text) // 64 + 1)
        return operation(text)

    return run


def to_int(scope: Scope, position: int, value: Value) -> Value:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise no_overload("int", position, value)
    if isinstance(value, float) and not math.isfinite(value):
        raise CelError(f"int at character {position}: {value} is not a number of 64 bits")
    if isinstance(value, str) and len(value) > MAX_DIGITS:
        raise CelError(f"int at character {position}: the text is too long for a number")
    try:
        return in_range(int(value), position)
    except ValueError:
        raise CelError(f"int at character {position}: {value!r} is not an integer") from None


def to_double(scope: Scope, position: int, value: Value) -> Value:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise no_overload("double", position, value)
    try:
        return float(value)
    except (ValueError, OverflowError):
        raise CelError(f"double at character {position}: {str(value)[:80]!r} is not a number") from None


def to_string(scope: Scope, position: int, value: Value) -> Value:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if is_number(value):
        return f"{value:g}" if isinstance(value, float) else str(value)
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise CelError(f"string at character {position}: the bytes are not UTF-8") from None
    raise no_overload("string", position, value)


def to_bool(scope: Scope, position: int, value: Value) -> Value:
    if isinstance(value, bool):
        return value
    if value in ("true", "True", "TRUE", "t", "1", "false", "False", "FALSE", "f", "0"):
        return str(value)[0] in "tT1"
    raise no_overload("bool", position, value)


def same(scope: Scope, position: int, value: Value) -> Value:
    return value


def lower(text: str) -> str:
    return "".join(char.lower() if char.isascii() else char for char in text)


def upper(text: str) -> str:
    return "".join(char.upper() if char.isascii() else char for char in text)


METHOD, FUNCTION, BOTH = (True,), (False,), (True, False)
FUNCTIONS: dict[tuple[str, int], tuple[Function, tuple[bool, ...]]] = {
    ("size", 1): (size, BOTH),
    ("contains", 2): (texts("contains", lambda text, part: part in text), METHOD),
    ("startsWith", 2): (texts("startsWith", str.startswith), METHOD),
    ("endsWith", 2): (texts("endsWith", str.endswith), METHOD),
    ("lowerAscii", 1): (changed("lowerAscii", lower), METHOD),
    ("upperAscii", 1): (changed("upperAscii", upper), METHOD),
    ("trim", 1): (changed("trim", str.strip), METHOD),
    ("int", 1): (to_int, FUNCTION),
    ("uint", 1): (to_int, FUNCTION),
    ("double", 1): (to_double, FUNCTION),
    ("string", 1): (to_string, FUNCTION),
    ("bool", 1): (to_bool, FUNCTION),
    ("dyn", 1): (same, FUNCTION),
}
"""By name and number of values, where the target of a method counts; with the ways to call the function."""
