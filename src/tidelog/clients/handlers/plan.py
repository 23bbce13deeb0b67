"""The plan of a handler consumer: topics, streams, handlers, and the policy for errors."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, runtime_checkable

from tidelog.clients.errors import ClientError, IllegalStateException
from tidelog.config import ConfigError
from tidelog.records.loops import ConsumerRecord


class Reject(Exception):
    """Raised by a handler to send a record to the dead letters without retries."""


class HandlerFailed(ClientError):
    """A record could not be handled or written to a dead-letter topic: the consumer stopped before it."""


@runtime_checkable
class MessageHandler(Protocol):
    """A handler with state. Its `close()`, if it has one, is called when its stream ends.

    Both may be coroutine functions.
    """

    def on_message(self, record: ConsumerRecord[Any, Any]) -> object: ...


Handle: TypeAlias = Callable[[ConsumerRecord[Any, Any]], object]


@dataclass(slots=True, frozen=True)
class Stream:
    """A stream of a topic, the argument of a handler builder."""

    topic: str
    number: int
    """From 0."""
    options: Mapping[str, object] = field(default_factory=dict)
    """The table `options` of the topic in the TOML file."""

    def __str__(self) -> str:
        return f"{self.topic}/{self.number}"


Builder: TypeAlias = Callable[[Stream], "Handle | MessageHandler | Awaitable[Handle | MessageHandler]"]
"""Called once for each stream, by the stream's own thread; a coroutine function runs on the stream's loop."""


@dataclass(slots=True, frozen=True, kw_only=True)
class ErrorPolicy:
    """The policy after a handler raised: retries with growing pauses, then the dead letters.

    Without a dead-letter topic the consumer stops before the record. No record is dropped.
    """

    retries: int = 3
    backoff_ms: int = 100
    backoff_max_ms: int = 10_000
    dead_letter_topic: str | None = None

    def __post_init__(self) -> None:
        for name in ("retries", "backoff_ms", "backoff_max_ms"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise ConfigError(name, repr(value), "expected a whole number, 0 or more")
        if self.dead_letter_topic is not None and not (
            isinstance(self.dead_letter_topic, str) and self.dead_letter_topic
        ):
            raise ConfigError(
                "dead_letter_topic", repr(self.dead_letter_topic), "expected the name of a topic"
            )


@dataclass(slots=True, frozen=True)
class TopicPlan:
    """A topic, the number of its streams, and the builder of their handlers."""

    topic: str
    builder: Builder
    streams: int
    errors: ErrorPolicy
    options: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.streams, int) or isinstance(self.streams, bool) or self.streams < 1:
            raise ConfigError(
                f"streams of topic {self.topic}", repr(self.streams), "expected a whole number, 1 or more"
            )
        if not callable(self.builder):
            raise ConfigError(
                f"handler of topic {self.topic}",
                repr(self.builder),
                "expected a class or function that builds a handler for a stream",
            )
        if self.errors.dead_letter_topic == self.topic:
            raise ConfigError(
                "dead_letter_topic", self.topic, "expected another topic than the one it is for"
            )

    def all_streams(self) -> list[Stream]:
        return [Stream(self.topic, number, self.options) for number in range(self.streams)]


WHAT_HANDLES = "expected a function, or a coroutine function, of a record"


def kind_of_generator(function: object) -> str | None:
    """The kind of a function that would return a generator; None for a function that handles a record."""
    if inspect.isgeneratorfunction(function):
        return "a generator function"
    return "an asynchronous generator function" if inspect.isasyncgenfunction(function) else None


def check_declared(name: str, declared: object) -> None:
    """Raises ConfigError for a function or class that cannot handle a record."""
    function = getattr(declared, "on_message", None) if isinstance(declared, type) else declared
    if (kind := kind_of_generator(function)) is not None:
        raise ConfigError(name, None, f"is {kind}; {WHAT_HANDLES}")


def handle_of(built: object, stream: Stream) -> Handle:
    """The function for the records of a stream, from the result of its builder."""
    function: object = built
    if isinstance(built, MessageHandler):
        function = built.on_message
    if not callable(function):
        raise IllegalStateException(
            f"the builder of stream {stream} gave {built!r}: expected a function of a record, "
            "or an object with on_message(record)"
        )
    if (kind := kind_of_generator(function)) is not None:
        raise IllegalStateException(f"the handler of stream {stream} is {kind}: {WHAT_HANDLES}")
    return function
