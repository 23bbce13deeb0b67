"""Positions: finds missing positions, by committed offset, reset policy or time, and validates them after
elections.

One background task does this. The next poll raises an error that no retry resolves.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping

from tidelog.clients.consumer.errors import LogTruncationException, NoOffsetForPartitionException
from tidelog.clients.consumer.offset_fetcher import OffsetFetcher
from tidelog.clients.consumer.partitions import PartitionState, SubscriptionState
from tidelog.clients.errors import ConfigError
from tidelog.clients.network import NetworkClient
from tidelog.clients.offsets import NO_EPOCH, OffsetAndMetadata, epoch_number
from tidelog.errors import KafkaError
from tidelog.partitions import TopicPartition
from tidelog.protocol.offset_specs import EARLIEST, LATEST

log = logging.getLogger("tidelog.clients")

Committed = Callable[[Iterable[TopicPartition]], Awaitable[Mapping[TopicPartition, OffsetAndMetadata | None]]]

_DURATION = re.compile(
    r"P(?=.)(?:(\d+)D)?(?:T(?=.)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", re.IGNORECASE
)
# The time limit of one round of lookups.
ROUND_SECONDS = 30.0


def reset_policy(text: str) -> Callable[[], int] | None:
    """The policy of auto.offset.reset: a function that returns the timestamp to look up, None for none.

    >>> reset_policy("earliest")()
    -2
    >>> reset_policy("none") is None
    True
    """
    word = text.lower()
    if word == "none":
        return None
    if word in ("earliest", "latest"):
        return lambda: EARLIEST if word == "earliest" else LATEST
    if word.startswith("by_duration:"):
        match = _DURATION.fullmatch(text[len("by_duration:") :])
        if match is not None:
            days, hours, minutes = (int(part or 0) for part in match.groups()[:3])
            seconds = ((days * 24 + hours) * 60 + minutes) * 60 + float(match[4] or 0)
            return lambda: max(0, round((time.time() - seconds) * 1000))
    raise ConfigError(
        "auto.offset.reset", text, "expected earliest, latest, none or by_duration:P1DT2H30M with a duration"
    )


class Positions:
    """`look` starts the task if a position is missing. Calls `found` after each change."""

    def __init__(
        self,
        client: NetworkClient,
        subscription: SubscriptionState,
        offset_fetcher: OffsetFetcher,
        policy: Callable[[], int] | None,
        committed: Committed | None,
        found: Callable[[], None],
    ) -> None:
        self.errors: list[KafkaError] = []
        """Errors for the next polls to raise."""
        self._client = client
        self._subscription = subscription
        self._offset_fetcher = offset_fetcher
        self._policy = policy
        self._committed = committed
        self._found = found
        self._task: asyncio.Task[None] | None = None
        self._again = False

    def look(self) -> None:
        """Start the task, unless it runs or every position is known."""
        if self._task is not None:
            self._again = True
        elif any(self._lacks(state) for state in self._subscription.states.values()):
            self._task = asyncio.get_running_loop().create_task(self._run(), name="positions")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _lacks(self, state: PartitionState) -> bool:
        return (state.position is None or state.validating) and not state.revoking

    async def _run(self) -> None:
        try:
            while True:
                self._again = False
                states = [state for state in self._subscription.states.values() if self._lacks(state)]
                if not states or self.errors:
                    break
                try:
                    await self._search(states)
                except KafkaError as error:
                    if not error.retriable:
                        self.errors.append(error)
                        break
                    log.warning("%s", error)
                    await asyncio.sleep(self._client.retry_backoff.delay(0))
                self._found()
                if not self._again and not any(self._lacks(s) for s in self._subscription.states.values()):
                    break
                await asyncio.sleep(0)
        finally:
            self._task = None
            self._found()

    async def _search(self, states: list[PartitionState]) -> None:
        fresh = [state for state in states if state.position is None and state.reset_to is None]
        if fresh:
            await self._from_committed(fresh)
        resets = {
            state.name: state.reset_to
            for state in states
            if state.position is None and state.reset_to is not None
        }
        if resets:
            await self._by_time(resets)
        checked = [state for state in states if state.validating and state.position is not None]
        if checked:
            await self._check(checked)

    async def _from_committed(self, states: list[PartitionState]) -> None:
        turns = {state.name: (state, state.turn) for state in states}
        found: Mapping[TopicPartition, OffsetAndMetadata | None] = {}
        if self._committed is not None:
            found = await self._committed(turns)
        missing: list[TopicPartition] = []
        for name, (state, turn) in turns.items():
            if state.turn != turn or self._subscription.states.get(name) is not state:
                continue  # the position was set meanwhile
            entry = found.get(name)
            if entry is not None:
                state.seek(entry.offset, epoch_number(entry.leader_epoch))
            elif self._policy is not None:
                state.seek_time(self._policy())
            else:
                missing.append(name)
        if missing:
            names = ", ".join(str(name) for name in missing)
            raise NoOffsetForPartitionException(
                f"{names}: no offset is committed, and auto.offset.reset=none forbids to choose one"
            )

    async def _by_time(self, resets: Mapping[TopicPartition, int]) -> None:
        states = self._subscription.states
        turns = {name: states[name].turn for name in resets if name in states}
        found = await self._offset_fetcher.offsets({name: resets[name] for name in turns}, ROUND_SECONDS)
        late = {
            name
            for name in turns
            if found.get(name) is None and name in states and states[name].turn == turns[name]
        }
        ends = await self._offset_fetcher.offsets(dict.fromkeys(late, LATEST), ROUND_SECONDS) if late else {}
        for name, turn in turns.items():
            state = states.get(name)
            entry = found.get(name) or ends.get(name)
            if state is not None and state.turn == turn and entry is not None:
                log.debug("%s starts at offset %d", name, entry.offset)
                state.seek(entry.offset, epoch_number(entry.leader_epoch))

    async def _check(self, states: list[PartitionState]) -> None:
        """Validate positions against the logs of new leaders."""
        for state in states:
            if state.position_epoch < 0:
                state.validating = False
        requests = {state.name: (state, state.turn, state.position) for state in states if state.validating}
        if not requests:
            return
        view = self._client.view
        epochs = {name: view.leader_epoch(*name) for name in requests}
        ends = await self._offset_fetcher.epoch_ends(
            {name: state.position_epoch for name, (state, _, _) in requests.items()}, ROUND_SECONDS
        )
        lost: dict[TopicPartition, int | None] = {}
        for name, (state, turn, position) in requests.items():
            if state.turn != turn or position is None or state.position is None:
                continue
            epoch, end = ends[name]
            state.leader_epoch = epochs[name]
            if 0 <= end < position or (end < 0 and epoch != NO_EPOCH):
                self._truncated(state, end, lost)
            else:
                state.validating = False
        if lost:
            text = ", ".join(f"{name} at {at}" for name, at in lost.items())
            raise LogTruncationException(
                f"records that were read are not in the log of the new leader: {text}; seek to go on",
                lost,
            )

    def _truncated(self, state: PartitionState, end: int, lost: dict[TopicPartition, int | None]) -> None:
        position = state.position
        log.warning(
            "%s: offset %s was read, but the log of the new leader ends at %d", state.name, position, end
        )
        if self._policy is not None and end >= 0:
            state.seek(end)
        elif self._policy is not None:
            state.seek_time(self._policy())
        else:
            state.validating = False
            lost[state.name] = end if end >= 0 else None
