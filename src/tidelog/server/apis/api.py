"""What an API is to the router: its key, the versions it serves and the function that answers."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass

from tidelog.protocol.message import Message
from tidelog.slices import Slices

# A handler gives its answer, makes it in slices (a generator), promises it (a coroutine), or has answered
# through the request itself (None).
Answer = Message | Slices[Message | None] | Coroutine[None, None, Message] | None
Handler = Callable[..., Answer]


@dataclass(slots=True, frozen=True)
class Api:
    key: int
    min_version: int
    max_version: int
    # Called with (services, request, body); a raw one with (services, request), the body left undecoded.
    # What a raw one returns is work that answers the request in slices, or None.
    handle: Handler
    raw: bool = False
    # The lowest version to announce, where that is not the lowest that is served.
    announced_min_version: int | None = None

    def serves(self, version: int) -> bool:
        return self.min_version <= version <= self.max_version
