"""Applies a request that alters settings to the present settings. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from tidelog.controller.interface import ConfigChange, ConfigEntity, ConfigOperation, ConfigRules
from tidelog.errors import InvalidConfig, InvalidRequest, UnknownServerError


def replaced(configs: Sequence[tuple[str, str | None]]) -> dict[str, str]:
    """Replace all settings."""
    _refuse_twice([name for name, _ in configs])
    for name, value in configs:
        if value is None:
            raise InvalidRequest(f"Null value not supported for {name}")
    return {name: value for name, value in configs if value is not None}


def changed(
    present: Mapping[str, str], changes: Sequence[ConfigChange], entity: ConfigEntity, rules: ConfigRules
) -> dict[str, str]:
    """Set or delete single settings, and append to or subtract from lists."""
    _refuse_twice([change.name for change in changes])
    result = dict(present)
    for change in changes:
        _apply(result, change, entity, rules)
    return result


def _apply(result: dict[str, str], change: ConfigChange, entity: ConfigEntity, rules: ConfigRules) -> None:
    if change.operation == ConfigOperation.DELETE:
        result.pop(change.name, None)
        return
    if change.operation not in (ConfigOperation.SET, ConfigOperation.APPEND, ConfigOperation.SUBTRACT):
        # Kafka's broker fails here with an unexpected exception, and answers no more than this.
        raise UnknownServerError(f"Unknown operation {change.operation} on {change.name}")
    if change.value is None:
        raise InvalidRequest(f"Null value not supported for {change.name}")
    if change.operation == ConfigOperation.SET:
        result[change.name] = change.value
        return
    inherited = rules.inherited_list(entity, change.name)
    if inherited is None:
        raise InvalidConfig(f"{change.name} cannot be appended to or subtracted from: it is not a list")
    items = _items(result.get(change.name, inherited))
    given = _items(change.value)
    if change.operation == ConfigOperation.APPEND:
        items += [item for item in given if item not in items]
    else:
        items = [item for item in items if item not in given]
    result[change.name] = ",".join(items)


def _items(value: str) -> list[str]:
    return [item.strip() for item in value.split(",") if item.strip()]


def _refuse_twice(names: Sequence[str]) -> None:
    twice = sorted(name for name, times in Counter(names).items() if times > 1)
    if twice:
        raise InvalidRequest(f"Error due to duplicate config keys: {', '.join(twice)}")
