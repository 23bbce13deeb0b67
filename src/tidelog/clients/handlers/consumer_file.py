"""A handler consumer from a TOML file: settings, topics with their streams, and the paths of handlers.

    [consumer]                                  # Kafka's settings, under current names or those of 0.8
    bootstrap.servers = "localhost:9092"
    properties = "all-log-consumer.properties"  # more settings, in a file; those here override it

    [errors]
    retries = 3
    dead_letter_topic = "dead-letters"

    [topics.clicks]
    streams = 4
    handler = "shop.handlers:ClickHandler"      # called with each stream; returns its handler

Modules are looked for beside the file first. Everything is checked before anything is started.
"""

from __future__ import annotations

import difflib
import importlib
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import cast

from tidelog.clients.handlers.consumer import HandlerConsumer
from tidelog.clients.handlers.plan import Builder, ErrorPolicy, Stream, check_declared
from tidelog.clients.handlers.worker import one_line
from tidelog.config import ConfigError
from tidelog.config.properties import read_properties

TABLES = ("consumer", "producer", "errors", "queue", "topics")
ERRORS = ("retries", "backoff_ms", "backoff_max_ms", "dead_letter_topic")
QUEUE = ("records", "slow_handler_ms")
TOPIC = ("streams", "handler", "function", "options", *ERRORS)


def load(path: str | Path, **overrides: object) -> HandlerConsumer:
    """The consumer of a file, not started; `overrides` are settings that override the file.

    Raises ConfigError with the place of a mistake in the file.
    """
    path = Path(path)
    declared = read_toml(path)
    check_names(declared, TABLES, "")
    queue = table(declared, "queue")
    check_names(queue, QUEUE, "queue.")
    settings = {**client_settings(declared, "consumer", path), **dotted(overrides)}
    consumer = HandlerConsumer(
        settings,
        errors=error_policy(table(declared, "errors"), ErrorPolicy(), "errors."),
        producer=client_settings(declared, "producer", path),
        queue_records=count(queue, "records", "queue.", 1_000),
        slow_handler_ms=count(queue, "slow_handler_ms", "queue.", 30_000),
    )
    topics = table(declared, "topics")
    if not topics:
        raise ConfigError("topics", None, "needed: a table [topics.NAME] for at least one topic")
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    for name in topics:
        add_topic(consumer, name, table(topics, name, "topics."))
    return consumer


def add_topic(consumer: HandlerConsumer, name: str, declared: Mapping[str, object]) -> None:
    prefix = f"topics.{name}."
    for key, value in declared.items():
        if isinstance(value, dict) and key not in TOPIC:
            raise ConfigError(
                f"{prefix}{key}",
                None,
                f'not known; a topic with dots stands in quotes: [topics."{name}.{key}"]',
            )
    check_names(declared, TOPIC, prefix)
    if ("handler" in declared) == ("function" in declared):
        raise ConfigError(
            f"topics.{name}",
            None,
            "expected one of handler, which builds handlers, and function, which is one",
        )
    kind = "handler" if "handler" in declared else "function"
    found = imported(f"{prefix}{kind}", declared[kind])
    if kind == "function" and isinstance(found, type):
        raise ConfigError(
            f"{prefix}function", str(declared[kind]), "expected a function of a record; handler names a class"
        )
    check_declared(f"{prefix}{kind}", found)
    consumer.add(
        name,
        cast(Builder, found) if kind == "handler" else shared(found),
        streams=count(declared, "streams", prefix, 1),
        errors=error_policy(
            {key: declared[key] for key in ERRORS if key in declared}, consumer.errors, prefix
        ),
        options=table(declared, "options", prefix),
    )


def shared(function: Callable[..., object]) -> Builder:
    """A builder that returns the same function for all streams."""

    def builder(stream: Stream) -> Callable[..., object]:
        return function

    return builder


def imported(name: str, spec: object) -> Callable[..., object]:
    """The object that `package.module:name` names."""
    if not isinstance(spec, str) or spec.count(":") != 1 or not all(spec.split(":")):
        raise ConfigError(name, str(spec), "expected package.module:name")
    module, _, attribute = spec.partition(":")
    try:
        found: object = importlib.import_module(module)
    except (Exception, SystemExit) as error:
        raise ConfigError(name, spec, f"{module} cannot be imported: {one_line(error)}") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ConfigError(name, spec, f"{module} has no {attribute}")
        found = getattr(found, part)
    if not callable(found):
        raise ConfigError(name, spec, f"expected something to call, not {type(found).__name__}")
    return found


# The parts of the file


def read_toml(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(str(path), None, f"cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(str(path), None, f"is no TOML: {error}") from None


def client_settings(declared: Mapping[str, object], name: str, path: Path) -> dict[str, object]:
    """The settings of a client, over those of its properties file."""
    settings = dotted(table(declared, name))
    file = settings.pop("properties", None)
    if file is None:
        return settings
    if not isinstance(file, str):
        raise ConfigError(f"{name}.properties", str(file), "expected the path of a file")
    return {**read_properties(path.parent / file), **settings}


def dotted(settings: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Settings under Kafka's names: TOML reads the dots of `group.id = "g"` as tables."""
    found: dict[str, object] = {}
    for name, value in settings.items():
        full = prefix + name.replace("_", ".")
        if isinstance(value, dict):
            found |= dotted(value, f"{full}.")
        else:
            found[full] = value
    return found


def error_policy(declared: Mapping[str, object], default: ErrorPolicy, prefix: str) -> ErrorPolicy:
    check_names(declared, ERRORS, prefix)
    values = {name: getattr(default, name) for name in ERRORS} | dict(declared)
    try:
        return ErrorPolicy(**values)
    except ConfigError as error:
        raise ConfigError(f"{prefix}{error.name}", error.value, error.problem) from None


def table(declared: Mapping[str, object], name: str, prefix: str = "") -> dict[str, object]:
    value = declared.get(name, {})
    if not isinstance(value, dict):
        raise ConfigError(f"{prefix}{name}", str(value), f"expected a table [{prefix}{name}]")
    return value


def count(declared: Mapping[str, object], name: str, prefix: str, default: int) -> int:
    value = declared.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{prefix}{name}", repr(value), "expected a whole number, 1 or more")
    return value


def check_names(declared: Iterable[str], known: Iterable[str], prefix: str) -> None:
    for name in declared:
        if name not in known:
            near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
            hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(known)}"
            raise ConfigError(f"{prefix}{name}", None, f"not known; {hint}")
