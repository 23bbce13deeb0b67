"""The settings of pipelines: strings from flags and files, converted and checked before anything starts.

A setting has the type of its default. `name` sets it in every pipeline of the run that has it,
`pipeline.name` in that one alone. An unknown name is refused with the nearest known one.
"""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

from tidelog.config import ConfigError
from tidelog.config.properties import parse_properties
from tidelog.spark.pipelines.declare import Pipeline, Setting, SettingValue

_SWITCHES = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def resolve(pipelines: Iterable[Pipeline], given: Mapping[str, object]) -> dict[str, dict[str, SettingValue]]:
    """The value of every setting of every pipeline. Raises ConfigError for an invalid name or value."""
    pipelines = tuple(pipelines)
    check_names(pipelines, given)
    return {
        pipeline.name: {setting.name: _chosen(pipeline, setting, given) for setting in pipeline.settings}
        for pipeline in pipelines
    }


def check_names(pipelines: Iterable[Pipeline], given: Iterable[str]) -> None:
    plain = {setting.name for pipeline in pipelines for setting in pipeline.settings}
    full = {f"{pipeline.name}.{setting.name}" for pipeline in pipelines for setting in pipeline.settings}
    for name in given:
        if name not in plain and name not in full:
            known = sorted(full if "." in name else plain)
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = (
                f"did you mean {near[0]}?"
                if near
                else f"expected one of {', '.join(known)}"
                if known
                else f"{', '.join(pipeline.name for pipeline in pipelines)}: nothing to set"
            )
            raise ConfigError(name, None, f"no pipeline of this run has such a setting; {hint}")


def _chosen(pipeline: Pipeline, setting: Setting, given: Mapping[str, object]) -> SettingValue:
    for name in (f"{pipeline.name}.{setting.name}", setting.name):
        if name in given:
            return typed(setting, name, given[name])
    return setting.default


def typed(setting: Setting, name: str, value: object) -> SettingValue:
    """Convert a value to the type of its setting. Spaces around a string are ignored."""
    found = _as_type(setting.default, value.strip() if isinstance(value, str) else value)
    if found is None:
        raise ConfigError(name, str(value), f"expected {_wanted(setting)}")
    try:
        good = setting.check(found)
    except (TypeError, ValueError):  # a check that fails on a value does not accept it
        good = False
    if not good:
        raise ConfigError(name, str(value), f"expected {_wanted(setting)}")
    return found


def _as_type(default: SettingValue, value: object) -> SettingValue | None:
    """The value as the type of the default; None if it cannot be converted."""
    if isinstance(default, bool):
        return value if isinstance(value, bool) else _SWITCHES.get(str(value).lower())
    if isinstance(value, bool):
        return str(value).lower() if isinstance(default, str) else None
    if isinstance(default, str):
        return str(value)
    if not isinstance(value, str | int | float):
        return None
    try:
        if isinstance(default, float):
            real = float(value)
            return real if math.isfinite(real) else None
        number = int(value)
    except (ValueError, OverflowError):
        return None
    return number if isinstance(value, str) or number == value else None


def _wanted(setting: Setting) -> str:
    if setting.allowed:
        return setting.allowed
    kinds = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
    return kinds[type(setting.default)]


def read_settings(path: str | Path) -> dict[str, object]:
    """Read a file of settings: TOML by its name, otherwise properties. A TOML table gives `table.name`."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(str(path), None, f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(str(path), None, "cannot be read: it is not UTF-8") from None
    if path.suffix.lower() != ".toml":
        return dict(parse_properties(text))
    try:
        return _flat(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(str(path), None, f"not TOML: {error}") from None


def _flat(table: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = value
    return found
