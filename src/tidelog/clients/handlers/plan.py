"""What a handler consumer is told: topics, their streams, who handles, and what errors lead to."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, runtime_checkable

from tidelog.clients.errors import ClientError, InvalidState
from tidelog.config import ConfigError
from tidelog.records.loops import Record


class Reject(Exception):
    """Raised by a handler for a record that no retry would help: it goes to the dead letters at once."""


class HandlerFailed(ClientError):
    """A record could not be handled and there is nowhere to put it, so the consumer stopped before it."""


@runtime_checkable
class MessageHandler(Protocol):
    """A handler with state of its own. Where it has `close()`, that is called when its stream ends.

    Both may be coroutine functions.
    """

    def on_message(self, record: Record) -> object: ...


Handle: TypeAlias = Callable[[Record], object]


@dataclass(slots=True, frozen=True)
class Stream:
    """One of the streams of a topic, as a handler builder is told of it."""

    topic: str
    number: int
    """From 0."""
    options: Mapping[str, object] = field(default_factory=dict)
    """What was declared beside the handler, for it alone."""

    def __str__(self) -> str:
        return f"{self.topic}/{self.number}"


Builder: TypeAlias = Callable[[Stream], "Handle | MessageHandler | Awaitable[Handle | MessageHandler]"]
"""Called once for each stream, by the stream's own thread; a coroutine function runs on the stream's loop."""


@dataclass(slots=True, frozen=True, kw_only=True)
class ErrorPolicy:
    """What happens when a handler raises: so many retries with growing pauses, then the dead letters.

    Without a dead-letter topic the consumer stops at a record that cannot be handled: none is ever dropped.
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
    """A topic, its streams and who builds a handler for each."""

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
    """What a function is that would only make a generator of a record; None for one that handles it."""
    if inspect.isgeneratorfunction(function):
        return "a generator function"
    return "an asynchronous generator function" if inspect.isasyncgenfunction(function) else None


def check_declared(name: str, declared: object) -> None:
    """ConfigError for a function or class that could handle no record, before any stream is built."""
    function = getattr(declared, "on_message", None) if isinstance(declared, type) else declared
    if (kind := kind_of_generator(function)) is not None:
        raise ConfigError(name, None, f"is {kind}; {WHAT_HANDLES}")


def handle_of(built: object, stream: Stream) -> Handle:
    """The function that takes the records of a stream, out of what its builder gave."""
    function: object = built
    if isinstance(built, MessageHandler):
        function = built.on_message
    if not callable(function):
        raise InvalidState(
            f"the builder of stream {stream} gave {built!r}: expected a function of a record, "
            "or an object with on_message(record)"
        )
    if (kind := kind_of_generator(function)) is not None:
        raise InvalidState(f"the handler of stream {stream} is {kind}: {WHAT_HANDLES}")
    return function
