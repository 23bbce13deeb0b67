"""The states of a channel and their transitions.

A state is one number with three independent parts, each with a table below: the reasons for a mute (Kafka's
ChannelMuteState, and a full request queue), the mode in which responses are sent, and whether the channel
closes. An event that is impossible in a state raises KeyError with the state; `state_name` gives its name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Final

OPEN: Final = 0
"""Not muted, responses leave at once: the state in which nearly every request comes and goes."""

# The reasons why no request is read (mute state). Several may be set.
REQUEST_IN_PROGRESS: Final = 1  # a request has no response yet: a handler or a purgatory has it
RESPONSE_PENDING: Final = 2  # a response waits until the peer takes more, or until the disk has read it
QUEUE_FULL: Final = 4  # queued.max.requests are in progress, or queued.max.request.bytes are in use

# The mode in which responses are sent: at once if none of these is set.
BATCHED: Final = 8  # more requests of the same read follow: their responses leave together
DEFERRED: Final = 16  # responses come at the end of this turn of the loop; later ones wait for them

# Whether it closes.
CLOSING: Final = 32  # no request is read any more; it is closed when the last response has left
CLOSED: Final = 64

# One more reason why no request is read.
THROTTLED: Final = 128  # the client is over a quota, and waits until its throttle time is over

MUTE_STATES: Final = (
    OPEN,
    REQUEST_IN_PROGRESS,
    RESPONSE_PENDING,
    REQUEST_IN_PROGRESS | RESPONSE_PENDING,
    QUEUE_FULL,
    QUEUE_FULL | RESPONSE_PENDING,
    THROTTLED,
    THROTTLED | REQUEST_IN_PROGRESS,
    THROTTLED | RESPONSE_PENDING,
    THROTTLED | REQUEST_IN_PROGRESS | RESPONSE_PENDING,
)
RESPONSE_STATES: Final = (OPEN, BATCHED, DEFERRED, BATCHED | DEFERRED)
CLOSE_STATES: Final = (OPEN, CLOSING, CLOSED)

MUTED: Final = REQUEST_IN_PROGRESS | RESPONSE_PENDING | QUEUE_FULL | THROTTLED
BUSY: Final = REQUEST_IN_PROGRESS | RESPONSE_PENDING | DEFERRED
GATHERED: Final = BATCHED | DEFERRED
UNREADABLE: Final = MUTED | CLOSING | CLOSED

_NAMES: Final = {
    REQUEST_IN_PROGRESS: "REQUEST_IN_PROGRESS",
    RESPONSE_PENDING: "RESPONSE_PENDING",
    QUEUE_FULL: "QUEUE_FULL",
    BATCHED: "BATCHED",
    DEFERRED: "DEFERRED",
    CLOSING: "CLOSING",
    CLOSED: "CLOSED",
    THROTTLED: "THROTTLED",
}


class ChannelEvent(Enum):
    REQUEST_RECEIVED = "the handler returned without a response: it comes later"
    REQUEST_COMPLETED = "a request has its response, or ends without one"
    RESPONSE_HELD = "a response waits for deferred ones of requests before it"
    SEND_BLOCKED = "a response cannot be sent to its end now"
    SEND_COMPLETED = "the response that was pending is sent"
    QUEUE_FILLED = "the request queue is full: the channel waits for its turn to read"
    QUEUE_DRAINED = "the request queue has room, and it is this channel's turn"
    THROTTLE_STARTED = "a request is over a quota: its response leaves, and no other request is read"
    THROTTLE_ENDED = "the throttle time is over"
    BATCH_STARTED = "another request of the same read follows the present one"
    BATCH_ENDED = "the requests of one read are handled"
    RESPONSE_DEFERRED = "a request gets its response at the end of this turn of the loop"
    DEFERRED_COMPLETED = "the last deferred response is there"
    CLOSE_STARTED = "the channel shall close after the responses that are due"
    CLOSE_COMPLETED = "the channel is closed"


_E = ChannelEvent

# Each table: event -> {part of the state before: part of the state after}. Missing entries are impossible.

MUTE_TABLE: Final[Mapping[ChannelEvent, Mapping[int, int]]] = {
    # One request at a time. A deferred response that is sent meanwhile may already be pending.
    _E.REQUEST_RECEIVED: {
        OPEN: REQUEST_IN_PROGRESS,
        RESPONSE_PENDING: REQUEST_IN_PROGRESS | RESPONSE_PENDING,
    },
    # Most requests are completed before they would mute their channel.
    _E.REQUEST_COMPLETED: {
        OPEN: OPEN,
        REQUEST_IN_PROGRESS: OPEN,
        RESPONSE_PENDING: RESPONSE_PENDING,
        REQUEST_IN_PROGRESS | RESPONSE_PENDING: RESPONSE_PENDING,
        QUEUE_FULL: QUEUE_FULL,
        QUEUE_FULL | RESPONSE_PENDING: QUEUE_FULL | RESPONSE_PENDING,
        THROTTLED: THROTTLED,
        THROTTLED | REQUEST_IN_PROGRESS: THROTTLED,
        THROTTLED | RESPONSE_PENDING: THROTTLED | RESPONSE_PENDING,
        THROTTLED | REQUEST_IN_PROGRESS | RESPONSE_PENDING: THROTTLED | RESPONSE_PENDING,
    },
    # A request with a deferred response counts as in progress, whether it did before or not.
    _E.RESPONSE_HELD: {
        OPEN: REQUEST_IN_PROGRESS,
        REQUEST_IN_PROGRESS: REQUEST_IN_PROGRESS,
        RESPONSE_PENDING: REQUEST_IN_PROGRESS | RESPONSE_PENDING,
        REQUEST_IN_PROGRESS | RESPONSE_PENDING: REQUEST_IN_PROGRESS | RESPONSE_PENDING,
        THROTTLED: THROTTLED | REQUEST_IN_PROGRESS,
        THROTTLED | REQUEST_IN_PROGRESS: THROTTLED | REQUEST_IN_PROGRESS,
        THROTTLED | RESPONSE_PENDING: THROTTLED | REQUEST_IN_PROGRESS | RESPONSE_PENDING,
        THROTTLED | REQUEST_IN_PROGRESS | RESPONSE_PENDING: THROTTLED
        | REQUEST_IN_PROGRESS
        | RESPONSE_PENDING,
    },
    _E.SEND_BLOCKED: {
        OPEN: RESPONSE_PENDING,
        REQUEST_IN_PROGRESS: REQUEST_IN_PROGRESS | RESPONSE_PENDING,
        RESPONSE_PENDING: RESPONSE_PENDING,
        REQUEST_IN_PROGRESS | RESPONSE_PENDING: REQUEST_IN_PROGRESS | RESPONSE_PENDING,
        QUEUE_FULL: QUEUE_FULL | RESPONSE_PENDING,
        QUEUE_FULL | RESPONSE_PENDING: QUEUE_FULL | RESPONSE_PENDING,
        THROTTLED: THROTTLED | RESPONSE_PENDING,
        THROTTLED | REQUEST_IN_PROGRESS: THROTTLED | REQUEST_IN_PROGRESS | RESPONSE_PENDING,
        THROTTLED | RESPONSE_PENDING: THROTTLED | RESPONSE_PENDING,
        THROTTLED | REQUEST_IN_PROGRESS | RESPONSE_PENDING: THROTTLED
        | REQUEST_IN_PROGRESS
        | RESPONSE_PENDING,
    },
    _E.SEND_COMPLETED: {
        RESPONSE_PENDING: OPEN,
        REQUEST_IN_PROGRESS | RESPONSE_PENDING: REQUEST_IN_PROGRESS,
        QUEUE_FULL | RESPONSE_PENDING: QUEUE_FULL,
        THROTTLED | RESPONSE_PENDING: THROTTLED,
        THROTTLED | REQUEST_IN_PROGRESS | RESPONSE_PENDING: THROTTLED | REQUEST_IN_PROGRESS,
    },
    _E.QUEUE_FILLED: {OPEN: QUEUE_FULL},
    _E.QUEUE_DRAINED: {QUEUE_FULL: OPEN, QUEUE_FULL | RESPONSE_PENDING: RESPONSE_PENDING},
    # Before the response of a request. A channel that waits for its turn to read has no such request.
    _E.THROTTLE_STARTED: {
        OPEN: THROTTLED,
        REQUEST_IN_PROGRESS: THROTTLED | REQUEST_IN_PROGRESS,
        RESPONSE_PENDING: THROTTLED | RESPONSE_PENDING,
        REQUEST_IN_PROGRESS | RESPONSE_PENDING: THROTTLED | REQUEST_IN_PROGRESS | RESPONSE_PENDING,
    },
    _E.THROTTLE_ENDED: {
        THROTTLED: OPEN,
        THROTTLED | REQUEST_IN_PROGRESS: REQUEST_IN_PROGRESS,
        THROTTLED | RESPONSE_PENDING: RESPONSE_PENDING,
        THROTTLED | REQUEST_IN_PROGRESS | RESPONSE_PENDING: REQUEST_IN_PROGRESS | RESPONSE_PENDING,
    },
}

RESPONSE_TABLE: Final[Mapping[ChannelEvent, Mapping[int, int]]] = {
    _E.BATCH_STARTED: {OPEN: BATCHED, DEFERRED: BATCHED | DEFERRED},
    _E.BATCH_ENDED: {BATCHED: OPEN, BATCHED | DEFERRED: DEFERRED},
    _E.RESPONSE_DEFERRED: {
        OPEN: DEFERRED,
        BATCHED: BATCHED | DEFERRED,
        DEFERRED: DEFERRED,
        BATCHED | DEFERRED: BATCHED | DEFERRED,
    },
    _E.DEFERRED_COMPLETED: {DEFERRED: OPEN, BATCHED | DEFERRED: BATCHED},
}

CLOSE_TABLE: Final[Mapping[ChannelEvent, Mapping[int, int]]] = {
    _E.CLOSE_STARTED: {OPEN: CLOSING, CLOSING: CLOSING},
    _E.CLOSE_COMPLETED: {OPEN: CLOSED, CLOSING: CLOSED},
}

# The flags of the other parts of the state that exclude an event, and those that it needs (one of them).
EXCLUDED: Final[Mapping[ChannelEvent, int]] = {
    _E.SEND_COMPLETED: BATCHED,
    _E.QUEUE_FILLED: BATCHED | CLOSING,
    _E.QUEUE_DRAINED: BATCHED,
    _E.BATCH_STARTED: MUTED | CLOSING,
    _E.RESPONSE_DEFERRED: REQUEST_IN_PROGRESS | QUEUE_FULL | THROTTLED,
}
REQUIRED: Final[Mapping[ChannelEvent, int]] = {
    _E.RESPONSE_HELD: DEFERRED,
    _E.CLOSE_STARTED: BUSY,
}


def state_name(state: int) -> str:
    return " | ".join(name for bit, name in _NAMES.items() if state & bit) or "OPEN"


def states() -> Iterator[int]:
    """Every state that a channel can be in."""
    for mute in MUTE_STATES:
        for responses in RESPONSE_STATES:
            if mute & QUEUE_FULL and responses & BATCHED:
                continue  # a channel that handles a read is not waiting for its turn to read
            yield mute | responses
            yield mute | responses | CLOSING
    yield CLOSED


def next_state(state: int, event: ChannelEvent) -> int | None:
    """The state after an event; None if the event is impossible in this state."""
    if state == CLOSED:
        return CLOSED  # responses and timers that come too late change nothing
    if state & EXCLUDED.get(event, 0) or (event in REQUIRED and not state & REQUIRED[event]):
        return None
    for table, part in ((MUTE_TABLE, MUTED), (RESPONSE_TABLE, GATHERED), (CLOSE_TABLE, CLOSING)):
        if event in table:
            after = table[event].get(state & part)
            if after is None:
                return None
            return CLOSED if after == CLOSED else state & ~part | after
    raise KeyError(event)


def transitions(event: ChannelEvent) -> dict[int, int]:
    """A dict from the state before an event to the state after it: `state = SEND_BLOCKED[state]`.

    Every small request uses these dicts: a lookup costs little more than to set a bit.
    """
    after = {state: next_state(state, event) for state in states()}
    return {state: following for state, following in after.items() if following is not None}


REQUEST_RECEIVED: Final = transitions(_E.REQUEST_RECEIVED)
REQUEST_COMPLETED: Final = transitions(_E.REQUEST_COMPLETED)
RESPONSE_HELD: Final = transitions(_E.RESPONSE_HELD)
SEND_BLOCKED: Final = transitions(_E.SEND_BLOCKED)
SEND_COMPLETED: Final = transitions(_E.SEND_COMPLETED)
QUEUE_FILLED: Final = transitions(_E.QUEUE_FILLED)
QUEUE_DRAINED: Final = transitions(_E.QUEUE_DRAINED)
THROTTLE_STARTED: Final = transitions(_E.THROTTLE_STARTED)
THROTTLE_ENDED: Final = transitions(_E.THROTTLE_ENDED)
BATCH_STARTED: Final = transitions(_E.BATCH_STARTED)
BATCH_ENDED: Final = transitions(_E.BATCH_ENDED)
RESPONSE_DEFERRED: Final = transitions(_E.RESPONSE_DEFERRED)
DEFERRED_COMPLETED: Final = transitions(_E.DEFERRED_COMPLETED)
CLOSE_STARTED: Final = transitions(_E.CLOSE_STARTED)
CLOSE_COMPLETED: Final = transitions(_E.CLOSE_COMPLETED)
