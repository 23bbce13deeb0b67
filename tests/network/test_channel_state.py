"""Every state of a channel with every event: the outcome is written down here, apart from the code."""

from __future__ import annotations

import pytest

from tidelog.network import channel_state
from tidelog.network.channel_state import (
    BATCHED,
    CLOSED,
    CLOSING,
    DEFERRED,
    MUTED,
    OPEN,
    QUEUE_FULL,
    REQUEST_IN_PROGRESS,
    RESPONSE_PENDING,
    THROTTLED,
    UNREADABLE,
    ChannelEvent,
    next_state,
    state_name,
    states,
)

# A dash is an event that cannot come. R: REQUEST_IN_PROGRESS, P: RESPONSE_PENDING, Q: QUEUE_FULL,
# T: THROTTLED.
MUTE_GRID = """
                     open   R    P    RP   Q    QP   T    TR   TP   TRP
REQUEST_RECEIVED     R      -    RP   -    -    -    -    -    -    -
REQUEST_COMPLETED    open   open P    P    Q    QP   T    T    TP   TP
RESPONSE_HELD        R      R    RP   RP   -    -    TR   TR   TRP  TRP
SEND_BLOCKED         P      RP   P    RP   QP   QP   TP   TRP  TP   TRP
SEND_COMPLETED       -      -    open R    -    Q    -    -    T    TR
QUEUE_FILLED         Q      -    -    -    -    -    -    -    -    -
QUEUE_DRAINED        -      -    -    -    open P    -    -    -    -
THROTTLE_STARTED     T      TR   TP   TRP  -    -    -    -    -    -
THROTTLE_ENDED       -      -    -    -    -    -    open R    P    RP
"""
# B: BATCHED, D: DEFERRED.
RESPONSE_GRID = """
                     open   B    D    BD
BATCH_STARTED        B      -    BD   -
BATCH_ENDED          -      open -    D
RESPONSE_DEFERRED    D      BD   D    BD
DEFERRED_COMPLETED   -      -    open B
"""
# X: CLOSING, Z: CLOSED.
CLOSE_GRID = """
                     open   X
CLOSE_STARTED        X      X
CLOSE_COMPLETED      Z      Z
"""
# Where the other parts of the state decide: none of the first, one of the second.
CONDITIONS = {
    "RESPONSE_HELD": ("", "D"),
    "SEND_COMPLETED": ("B", ""),
    "QUEUE_FILLED": ("BX", ""),
    "QUEUE_DRAINED": ("B", ""),
    "BATCH_STARTED": ("RPQTX", ""),
    "RESPONSE_DEFERRED": ("RQT", ""),
    "CLOSE_STARTED": ("", "RPD"),
}
LETTERS = {
    "R": REQUEST_IN_PROGRESS,
    "P": RESPONSE_PENDING,
    "Q": QUEUE_FULL,
    "T": THROTTLED,
    "B": BATCHED,
    "D": DEFERRED,
    "X": CLOSING,
    "Z": CLOSED,
}
# Part by part; a channel whose request queue is full has no batch.
OPEN_STATES = (
    *("open", "R", "P", "RP", "Q", "QP", "T", "TR", "TP", "TRP"),
    *("B", "RB", "PB", "RPB", "TB", "TRB", "TPB", "TRPB"),
    *("D", "RD", "PD", "RPD", "QD", "QPD", "TD", "TRD", "TPD", "TRPD"),
    *("BD", "RBD", "PBD", "RPBD", "TBD", "TRBD", "TPBD", "TRPBD"),
)
EVERY_STATE = (*OPEN_STATES, "X", *(state + "X" for state in OPEN_STATES[1:]), "Z")


def bits(letters: str) -> int:
    return OPEN if letters == "open" else sum(LETTERS[letter] for letter in letters)


def parsed(grid: str) -> dict[str, dict[int, int | None]]:
    head, *rows = [line.split() for line in grid.strip().splitlines()]
    return {
        event: {
            bits(before): None if after == "-" else bits(after)
            for before, after in zip(head, row, strict=True)
        }
        for event, *row in rows
    }


GRIDS = {
    event: (row, bits(part))
    for grid, part in ((MUTE_GRID, "RPQT"), (RESPONSE_GRID, "BD"), (CLOSE_GRID, "X"))
    for event, row in parsed(grid).items()
}


def expected(state: int, event: str) -> int | None:
    if state == CLOSED:
        return CLOSED
    row, part = GRIDS[event]
    after = row[state & part]
    none_of, one_of = CONDITIONS.get(event, ("", ""))
    if after is None or state & bits(none_of) or (one_of and not state & bits(one_of)):
        return None
    return CLOSED if after == CLOSED else state & ~part | after


def test_the_states_are_these() -> None:
    assert sorted(states()) == sorted(map(bits, EVERY_STATE))
    assert set(GRIDS) == {event.name for event in ChannelEvent}


@pytest.mark.parametrize("event", ChannelEvent, ids=lambda event: event.name)
def test_every_state_and_event_have_the_outcome_of_the_grid(event: ChannelEvent) -> None:
    transitions = getattr(channel_state, event.name)
    for state in map(bits, EVERY_STATE):
        after = expected(state, event.name)
        assert next_state(state, event) == after, state_name(state)
        if after is not None:
            assert transitions[state] == after
            assert after in set(states())
        else:
            with pytest.raises(KeyError) as raised:
                transitions[state]
            assert raised.value.args == (state,)


def test_numbers_that_are_no_state_have_no_transition() -> None:
    for state in set(range(-1, 2 * THROTTLED)) - set(states()):
        for event in ChannelEvent:
            assert state not in getattr(channel_state, event.name)


def test_every_state_is_reached_from_the_first_and_reaches_the_last() -> None:
    reached, new = {OPEN}, {OPEN}
    while new:
        after = {next_state(state, event) for state in new for event in ChannelEvent}
        new = {state for state in after if state is not None} - reached
        reached |= new
    assert reached == set(states())
    assert all(next_state(state, ChannelEvent.CLOSE_COMPLETED) == CLOSED for state in reached)


def test_a_request_is_read_only_where_nothing_mutes_the_channel() -> None:
    readable = [state for state in states() if not state & UNREADABLE]
    assert sorted(readable) == sorted(map(bits, ("open", "B", "D", "BD")))
    assert all(state & MUTED or state & (CLOSING | CLOSED) for state in states() if state not in readable)


def test_a_state_is_named_by_what_it_says() -> None:
    assert state_name(OPEN) == "OPEN"
    assert state_name(QUEUE_FULL | DEFERRED | CLOSING) == "QUEUE_FULL | DEFERRED | CLOSING"
