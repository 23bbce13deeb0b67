"""An API as the router sees it: its key, the served versions and the handler."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass

from tidelog.protocol.message import Message
from tidelog.slices import Slices

# A handler returns its answer, a generator that makes the answer in slices, or a coroutine of either. It
# returns None if it answers through the request itself.
Answer = Message | Slices[Message | None] | Coroutine[None, None, Message | Slices[Message]] | None
Handler = Callable[..., Answer]


NOT_CHECKED: tuple[str, ...] = ()
"""The access of an API that every client may use, as in Kafka."""


@dataclass(slots=True, frozen=True)
class Api:
    key: int
    min_version: int
    max_version: int
    # Called with (services, request, body). A raw handler gets (services, request) and reads the body itself;
    # it returns None or a generator that answers the request in slices.
    handle: Handler
    raw: bool = False
    # Called with (services, request) before a small request is decoded. It answers the usual request without
    # a message object; False leaves the request to `handle`.
    quick: Callable[..., bool] | None = None
    # The lowest version in ApiVersions, if it differs from the lowest served version.
    announced_min_version: int | None = None
    # Only the controller of a cluster can answer: other brokers pass the request on to it.
    forwarded: bool = False
    # Listed in ApiVersions only if somebody can read the metrics that clients push.
    for_collectors: bool = False
    # Only brokers may send it, over their own listeners.
    from_brokers: bool = False
    # The operations that its handler has authorized, such as "TOPIC WRITE", or NOT_CHECKED.
    access: tuple[str, ...] | None = None

    def serves(self, version: int) -> bool:
        return self.min_version <= version <= self.max_version
