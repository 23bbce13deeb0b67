"""Log levels that change while the broker runs: the BROKER_LOGGER resource, for Python's loggers.

`root` is the logger above all others; a part of the broker has a logger such as `tidelog.network`. A logger
without a level has the level of the logger above it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from tidelog.config.entries import ConfigEntry, ConfigSource
from tidelog.errors import InvalidConfig, InvalidRequest
from tidelog.server.config.changes import AlterOperation, ConfigOp, check_operations

ROOT = "root"
TRACE = 5
LEVELS = {
    "TRACE": TRACE,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}


class BrokerLoggers:
    __slots__ = ("_part",)

    def __init__(self, part: str = "tidelog") -> None:
        """`part` is the logger above all loggers of the broker."""
        self._part = part

    def names(self) -> list[str]:
        known = logging.Logger.manager.loggerDict
        below = self._part + "."
        return [ROOT, *sorted(name for name in known if name == self._part or name.startswith(below))]

    def level(self, name: str) -> str:
        return level_name(_logger(name).getEffectiveLevel())

    def describe(self, names: Iterable[str] | None = None) -> list[ConfigEntry]:
        wanted = None if names is None else set(names)
        listed = [name for name in self.names() if wanted is None or name in wanted]
        return [
            ConfigEntry(name, self.level(name), ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG) for name in listed
        ]

    def validate(self, ops: list[ConfigOp]) -> None:
        """Raise InvalidConfig or InvalidRequest if `apply` would refuse a change."""
        check_operations(ops)
        known = set(self.names())
        for name, operation, value in ops:
            if operation in (AlterOperation.APPEND, AlterOperation.SUBTRACT):
                raise InvalidRequest(f"the level of {name} can be set or deleted, nothing else")
            if operation == AlterOperation.DELETE and name == ROOT:
                raise InvalidRequest("the level of root cannot be deleted")
            if name not in known:
                raise InvalidConfig(f"there is no logger {name}")
            if operation == AlterOperation.SET and value not in LEVELS:
                raise InvalidConfig(f"{name}={value}: expected one of {', '.join(LEVELS)}")

    def apply(self, ops: list[ConfigOp]) -> None:
        self.validate(ops)
        for name, operation, value in ops:
            deleted = operation == AlterOperation.DELETE or value is None
            _logger(name).setLevel(logging.NOTSET if deleted else LEVELS[str(value)])


def level_name(number: int) -> str:
    """The name of the highest level that is not above `number`."""
    name = "TRACE"
    for candidate, at in LEVELS.items():
        if at <= number:
            name = candidate
    return name


def _logger(name: str) -> logging.Logger:
    return logging.getLogger(None if name == ROOT else name)
