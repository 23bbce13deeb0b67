"""ReplicaFetcher: fetches partitions from the broker that leads them, and appends the records to their logs.

Kafka's counterpart is ReplicaFetcherThread. One request is in flight at a time. The fetch offset is the log
end offset, so each request tells the leader which records this replica has. Truncation is by leader epoch:
the leader's answer names the epoch at which the logs diverge. A partition that fails is delayed, or marked as
failed until the controller sends a new state.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from functools import partial
from typing import cast

from tidelog.clock import Scheduler
from tidelog.cluster.fetch_session_handler import FetchSessionHandler
from tidelog.cluster.fetcher_backoff import FIRST_RETRY_SECONDS, MAX_DOUBLINGS, FetcherBackoff
from tidelog.cluster.follower_append import (
    FollowerAppend,
    append_now,
    truncation_offset,
)
from tidelog.cluster.leader_endpoint import LeaderEndPoint, OneFetched
from tidelog.cluster.log_changes import LogChanges, UnfinishedWork
from tidelog.cluster.partition_fetch_state import AnswerParts, PartitionFetchState
from tidelog.cluster.replica_fetcher_settings import (
    QUIET_ERRORS,
    SESSION_ERRORS,
    FetchListener,
    ReplicaFetcherSettings,
)
from tidelog.cluster.transport import is_refused
from tidelog.errors import (
    CorruptMessage,
    ErrorCode,
    FencedLeaderEpoch,
    InvalidRecord,
    KafkaError,
    KafkaStorageError,
    NetworkException,
    error_class,
)
from tidelog.metadata.state import NO_TOPIC_ID
from tidelog.partitions import PartitionKey
from tidelog.protocol.messages.fetch import FetchRequest, FetchResponse
from tidelog.protocol.wire import Buffer
from tidelog.storage.follower_appender import FetchedRecords

log = logging.getLogger("tidelog.cluster.replica_fetcher")

PartitionData = FetchResponse.PartitionData


class ReplicaFetcher:
    def __init__(
        self,
        name: str,
        leader: LeaderEndPoint,
        scheduler: Scheduler,
        settings: ReplicaFetcherSettings,
        listener: FetchListener,
    ) -> None:
        self.name = name
        self.leader = leader
        self.states: dict[PartitionKey, PartitionFetchState] = {}
        self.answers = 0
        self.bytes_fetched = 0
        self.sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
        self._backoff = FetcherBackoff(leader, settings.backoff_ms)
        self._scheduler = scheduler
        self._clock = scheduler.clock
        self._settings = settings
        self._listener = listener
        self._session = FetchSessionHandler(settings.max_bytes)
        self._limits = settings.wait_max_ms, settings.min_bytes, settings.response_max_bytes
        # Partitions that enter or leave the session, and partitions that wait for a time or a quota.
        self._changed: dict[PartitionFetchState, None] = {}
        self._delayed: dict[PartitionFetchState, None] = {}
        self._unfinished = UnfinishedWork()
        self._log_changes = LogChanges(scheduler, self._unfinished, self._is_current, self._log_changed)
        self._settling = self._log_changes.waiting
        self._end: asyncio.Future[bool] | None = None  # of `_fetch`: whether there was nothing to fetch
        self._is_full_fetch = False  # by the request in flight
        self._parts: AnswerParts | None = None
        self._work = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def is_dead(self) -> bool:
        """Whether the task has ended although there are partitions."""
        return bool(self.states) and self._task is not None and self._task.done()

    # -- partitions

    def add(self, states: Iterable[PartitionFetchState]) -> None:
        """Fetch these partitions. A new state of a partition replaces the present one."""
        for state in states:
            self.remove(state.key)
            self.states[state.key] = state
            (self._settling if state.is_settling else self._changed)[state] = None
        self._work.set()
        if self._task is None and self.states:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def remove(self, key: PartitionKey) -> PartitionFetchState | None:
        """Stop fetching a partition. An append that has begun may still be at the worker."""
        state = self.states.pop(key, None)
        if state is not None:
            for waiting in (self._changed, self._delayed, self._settling):
                waiting.pop(state, None)
            self._session.leave(state)
        return state

    def log_start_moved(self, key: PartitionKey) -> None:
        """Send the new log start offset of a partition to the leader with the next request."""
        state = self.states.get(key)
        if state is not None and state.in_session:
            self._take_log_start(state)

    def _take_log_start(self, state: PartitionFetchState) -> None:
        if state.take_log_start():
            self._changed[state] = None

    def _is_current(self, state: PartitionFetchState) -> bool:
        return self.states.get(state.key) is state and not self._closed

    def _delay(self, state: PartitionFetchState, seconds: float) -> None:
        state.delayed_until = self._clock.monotonic() + seconds
        self._changed[state] = None
        self._delayed[state] = None

    def _fail(self, state: PartitionFetchState, reason: object, level: int = logging.ERROR) -> None:
        log.log(level, "%s is not replicated any more: %s", state.partition.name, reason)
        if self._is_current(state):
            self.remove(state.key)
            self._listener.mark_failed(state.key)

    def close(self) -> None:
        """Stop fetching. Appends and truncations that have begun continue; `wait_closed` waits for them."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
        self.leader.close("the fetcher ends")

    async def wait_closed(self) -> None:
        """Wait until no append and no truncation of this fetcher is under way."""
        if self._task is not None:
            await asyncio.wait([self._task])
        await self._unfinished.wait()

    # -- the loop

    async def _run(self) -> None:
        while not self._closed:
            try:
                if not self.leader.is_connected:
                    self._session.reset()
                    self._changed.update(dict.fromkeys(self.states.values()))
                    await self.leader.connect()
                    self._listener.leader_reached(self.leader.leader_id)
                await self._log_changes.change_waiting_logs()
                await self._fetch()
            except KafkaError as error:
                level = logging.WARNING if self._backoff.is_news else logging.DEBUG
                log.log(
                    level, "%s: the fetch from broker %d failed: %s", self.name, self.leader.leader_id, error
                )
                was_connected = not self._backoff.failures and isinstance(error, NetworkException)
                if (was_connected and self.leader.is_known) or is_refused(error):
                    self._listener.leader_lost(self.leader.leader_id)
                self.leader.close("the fetch failed")
                await self._pause()
            except asyncio.CancelledError:
                raise
            except Exception:
                log.exception("%s failed unexpectedly", self.name)
                self.leader.close("the fetcher failed")
                await self._pause()

    async def _pause(self) -> None:
        seconds = self._backoff.seconds
        self._backoff.failures += 1
        await self.sleep(seconds)

    async def _fetch(self) -> None:
        """Fetch repeatedly, until there is nothing to fetch, an error, or a log to truncate or sync.

        Answers do not wake this task. The callback that receives an answer, or ends the last append, also
        sends the next request.
        """
        self._end = asyncio.get_running_loop().create_future()
        self._send()
        if await self._end:
            await self._wait_for_work()

    def _send(self) -> None:
        """Send the next request, if there is something to fetch."""
        if self._send_next():
            return
        request = self._next_request()
        if request is None:
            self._end_fetch(is_idle=True)
            return
        self._is_full_fetch = self._session.is_full
        self.leader.fetch(request, self, topic_ids=self._session.uses_topic_ids)

    def _send_next(self) -> bool:
        """Send the usual request: of an existing session, with one partition or none.

        Returns False and sends nothing if the next request is another one; `_next_request` builds it.
        """
        session, changed = self._session, self._changed
        if self._delayed or len(changed) > 1 or not session.is_unchanged:
            return False
        partition = None
        for state in changed:
            if not state.is_in_session_at(self._clock):
                return False
            if state.lag != 0 and self._listener.is_throttled(state):
                return False
            partition = session.wanted(state)
        ids = (session.session_id, session.epoch)
        if not self.leader.fetch_next(partition, ids, self._limits, self, topic_ids=session.uses_topic_ids):
            return False
        changed.clear()
        self._is_full_fetch = False
        return True

    def _end_fetch(self, *, is_idle: bool = False, error: BaseException | None = None) -> None:
        if self._end is None or self._end.done():
            return
        if error is not None:
            self._end.set_exception(error)
        else:
            self._end.set_result(is_idle)

    # -- leader_endpoint.FetchAnswers

    def answered(self, answer: FetchResponse | None, error: KafkaError | None) -> None:
        if self._closed:
            return
        try:
            if answer is None:
                assert error is not None
                self._end_fetch(error=error)
            elif self._accept(answer):
                self._process(answer)
        except Exception as failure:
            self._end_fetch(error=failure)

    def answered_one(self, answer: OneFetched, body: Buffer) -> None:
        """Handle the usual answer: without errors, with records of one partition or none."""
        if self._closed:
            return
        try:
            session_id, topic, index, high_watermark, log_start_offset, start, end = answer
            self._accepted(session_id)
            state = None if topic is None else self._state_of(topic, index)
            if state is None:
                self._continue()
            elif start == end:
                self._take_watermarks(state, high_watermark, log_start_offset)
                self._continue()
            else:
                records = memoryview(body)[start:end]
                if not self._append_now(state, records, high_watermark, log_start_offset):
                    self._parts = parts = AnswerParts()
                    self._append(state, records, high_watermark, log_start_offset, parts)
                    self._part_ended(parts)
        except Exception as failure:
            self._end_fetch(error=failure)

    def _accept(self, answer: FetchResponse) -> bool:
        """Check the errors of an answer; returns whether it has partitions. Raises KafkaError.

        Without partitions the session is over: the next request begins a new one.
        """
        if answer.error_code:
            self.answers += 1
            self._backoff.failures = 0
            self._session.reset()
            self._changed.update(dict.fromkeys(self.states.values()))
            if answer.error_code not in SESSION_ERRORS:
                raise error_class(answer.error_code)("the fetch was refused")
            log.info("%s: broker %d begins a new session: %s", self.name, self.leader.leader_id,
                     error_class(answer.error_code).__name__)  # fmt: skip
            self._end_fetch()
            return False
        self._accepted(answer.session_id)
        return True

    def _accepted(self, session_id: int) -> None:
        self.answers += 1
        self._backoff.failures = 0
        self._session.answered(session_id)
        if self._is_full_fetch and session_id == 0:
            self._changed.update(dict.fromkeys(self.states.values()))  # each request names all partitions

    def _continue(self) -> None:
        """Send the next request after an answer is processed, unless a log has to be truncated or synced
        first.
        """
        try:
            if self._settling or self._closed or not self.leader.is_connected:
                self._end_fetch()
            else:
                self._send()
        except Exception as failure:
            self._end_fetch(error=failure)

    def _next_request(self) -> FetchRequest | None:
        now = self._clock.monotonic()
        self._end_delays(now)
        changed = list(self._changed)
        self._changed.clear()
        ready = []
        for state in changed:
            if not state.is_ready(now):
                self._session.leave(state)
            elif not state.has_caught_up() and self._listener.is_throttled(state):
                self._session.leave(state)
                self._delayed[state] = None
            else:
                ready.append(state)
        topics = self._session.topics(ready)
        forgotten = self._session.forgotten()
        if not len(self._session) and not forgotten:
            return None
        settings = self._settings
        return FetchRequest(
            max_wait_ms=self._max_wait_ms(now),
            min_bytes=settings.min_bytes,
            max_bytes=settings.response_max_bytes,
            session_id=self._session.session_id,
            session_epoch=self._session.epoch,
            topics=topics,
            forgotten_topics_data=forgotten,
        )

    def _max_wait_ms(self, now: float) -> int:
        """The max_wait_ms of the next request, at most until the next delay of a partition ends."""
        longest = self._settings.wait_max_ms
        ends = [state.delayed_until for state in self._delayed if state.delayed_until > now]
        return min(longest, max(1, round((min(ends) - now) * 1000))) if ends else longest

    def _end_delays(self, now: float) -> None:
        for state in [state for state in self._delayed if state.delayed_until <= now]:
            del self._delayed[state]
            (self._settling if state.is_settling else self._changed)[state] = None

    async def _wait_for_work(self) -> None:
        """Wait for a partition to fetch: a new one, or the end of a delay."""
        self._work.clear()
        if self._settling or self._changed:
            return
        now = self._clock.monotonic()
        ends = [state.delayed_until - now for state in self._delayed]
        # A throttled partition has no end of its delay: the quota is looked at again.
        seconds = max(0.01, min([*ends, self._settings.wait_max_ms / 1000])) if ends else None
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._work.wait()

    # -- an answer

    def _process(self, answer: FetchResponse) -> None:
        """Append the records of an answer. The last append sends the next fetch."""
        self._parts = parts = AnswerParts()
        for topic in answer.responses:
            for data in topic.partitions:
                named = topic.topic if topic.topic_id == NO_TOPIC_ID else topic.topic_id
                state = self._state_of(named, data.partition_index)
                if state is not None:
                    self._take(state, data, parts)
        self._part_ended(parts)

    def _part_ended(self, parts: AnswerParts) -> None:
        parts.unfinished -= 1
        if parts.unfinished or parts is not self._parts:
            return
        self._parts = None
        self._continue()

    def _part_begins(self, parts: AnswerParts, work: Coroutine[None, None, None]) -> None:
        """Handle a partition in a task. The next fetch waits for the task."""
        parts.unfinished += 1
        asyncio.ensure_future(work).add_done_callback(lambda _: self._part_ended(parts))

    def _state_of(self, topic: str | bytes, index: int) -> PartitionFetchState | None:
        """The state of a partition in an answer; None if it is not fetched any more, or from another offset
        now.
        """
        if isinstance(topic, str):
            state = self.states.get((topic, index))
        else:
            state = self._session.find(topic, index)
        if state is None or not state.in_session or state.session_offset != state.fetch_offset:
            return None
        return state if self.states.get(state.key) is state else None

    def _take(self, state: PartitionFetchState, data: PartitionData, parts: AnswerParts) -> None:
        """Handle the answer for a partition."""
        records = cast("Buffer | None", data.records)  # only answers of a broker have parts of files
        if data.error_code:
            self._refused(state, data.error_code, parts)
        elif data.diverging_epoch is not None and data.diverging_epoch.epoch >= 0:
            self._diverged(state, data.diverging_epoch, parts)
        elif not records:
            self._take_watermarks(state, data.high_watermark, data.log_start_offset)
        else:
            self._append(state, memoryview(records), data.high_watermark, data.log_start_offset, parts)

    def _append_now(
        self, state: PartitionFetchState, records: memoryview, high_watermark: int, log_start_offset: int
    ) -> bool:
        """Append one small batch and send the next fetch. Returns False if `_append` has to do it."""
        try:
            appended = append_now(state.partition, records, state.leader_epoch, self._clock)
        except Exception as error:
            self._append_failed(state, error)
            self._continue()
            return True
        if appended is None:
            return False
        last_offset, state.last_fetched_epoch = appended
        state.fetch_offset = last_offset + 1
        self._changed[state] = None
        state.lag = max(0, high_watermark - state.fetch_offset)
        if state.lag == 0 and log_start_offset <= state.log_start_offset:
            # The next request comes first: the leader commits the batch when it arrives.
            self._continue()
            self._record_fetch(state, len(records), high_watermark, log_start_offset)
        else:
            self._record_fetch(state, len(records), high_watermark, log_start_offset)
            self._continue()
        return True

    def _record_fetch(
        self, state: PartitionFetchState, size: int, high_watermark: int, log_start_offset: int
    ) -> None:
        self.bytes_fetched += size
        self._listener.fetched(state, size)
        self._take_watermarks(state, high_watermark, log_start_offset)

    def _append(
        self,
        state: PartitionFetchState,
        records: memoryview,
        high_watermark: int,
        log_start_offset: int,
        parts: AnswerParts,
    ) -> None:
        """Put records into the append queue of the partition."""
        parts.unfinished += 1
        self._unfinished.count += 1

        def done(appended: FetchedRecords | None, error: BaseException | None) -> None:
            self._unfinished.end()
            try:
                self._appended(state, appended, error)
                if error is None and self._is_current(state):
                    self._record_fetch(state, len(records), high_watermark, log_start_offset)
            finally:
                self._part_ended(parts)

        state.partition.appends.put(
            FollowerAppend(
                state.partition,
                records,
                state.leader_epoch,
                self._clock.ms(),
                done,
                partial(self._is_current, state),
                scheduler=self._scheduler,
            )
        )

    def _appended(
        self, state: PartitionFetchState, appended: FetchedRecords | None, error: BaseException | None
    ) -> None:
        if not self._is_current(state):
            return
        if error is not None:
            state.append_failed()
            self._append_failed(state, error)
        elif appended is not None:
            state.fetch_offset = appended.last_offset + 1
            state.last_fetched_epoch = appended.last_epoch
            self._changed[state] = None

    def _take_watermarks(
        self, state: PartitionFetchState, high_watermark: int, log_start_offset: int
    ) -> None:
        state.refusals = 0
        if state.partition.offline:
            return  # its log folder failed: the controller hears of it
        state.lag = max(0, high_watermark - state.fetch_offset)
        state.partition.follow_watermarks(high_watermark, log_start_offset)
        self._take_log_start(state)

    def _append_failed(self, state: PartitionFetchState, error: BaseException) -> None:
        if isinstance(error, CorruptMessage | InvalidRecord | KafkaStorageError):
            # A retry may succeed: a batch damaged on its way, or a full disk.
            log.error("%s: what broker %d sent is not appended: %s", state.partition.name,
                      self.leader.leader_id, error)  # fmt: skip
            self._delay(state, self._settings.backoff_ms / 1000)
        elif isinstance(error, FencedLeaderEpoch):
            self.remove(state.key)
        else:
            self._fail(state, error)

    # -- errors of a partition

    def _refused(self, state: PartitionFetchState, code: int, parts: AnswerParts) -> None:
        name, leader = state.partition.name, self.leader.leader_id
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._part_begins(parts, self._restart(state))
            return
        if code == ErrorCode.FENCED_LEADER_EPOCH:
            # The controller will send the new epoch to this broker soon.
            reason = f"broker {leader} leads it with a newer epoch than {state.leader_epoch}"
            self._fail(state, reason, logging.WARNING)
            return
        level = logging.DEBUG if code in QUIET_ERRORS else logging.WARNING
        log.log(level, "%s: broker %d answered %s", name, leader, error_class(code).__name__)
        seconds = self._settings.backoff_ms / 1000
        if code in QUIET_ERRORS:
            # The controller tells leader and followers at the same time: the leader knows it soon.
            seconds = min(seconds, FIRST_RETRY_SECONDS * 2**state.refusals)
            state.refusals = min(state.refusals + 1, MAX_DOUBLINGS)
        self._delay(state, seconds)

    def _diverged(
        self, state: PartitionFetchState, diverging: FetchResponse.EpochEndOffset, parts: AnswerParts
    ) -> None:
        found = state.partition.log_or_raise()
        offset = truncation_offset(found, diverging.epoch, diverging.end_offset)
        if offset < found.log_end_offset:  # else only an epoch without records is forgotten
            log.info("%s diverges from its leader in epoch %d: it is truncated to %d", state.partition.name,
                     diverging.epoch, offset)  # fmt: skip
        self._part_begins(parts, self._log_changes.truncate(state, offset))

    async def _restart(self, state: PartitionFetchState) -> None:
        """Continue at an offset that the leader has: it has no records at the fetch offset."""
        try:
            end = await self.leader.latest_offset(state.key, state.leader_epoch)
            mine = state.partition.log_or_raise().log_end_offset
            if end < mine:
                log.warning("%s ends at %d, its leader at %d: records are lost by an unclean election",
                            state.partition.name, mine, end)  # fmt: skip
                await self._log_changes.truncate(state, end)
                return
            start = await self.leader.earliest_offset(state.key, state.leader_epoch)
            mine = state.partition.log_or_raise().log_end_offset
            if start > mine:
                await self._log_changes.truncate(state, start, fully=True)
            elif self._is_current(state):
                state.moved_to(mine)
                self._changed[state] = None
        except KafkaError as error:
            log.warning("%s: the leader's offsets are not known: %s", state.partition.name, error)
            if self._is_current(state):
                self._delay(state, self._settings.backoff_ms / 1000)

    def _log_changed(
        self, state: PartitionFetchState, end: int, is_flushed: bool, error: BaseException | None
    ) -> None:
        if error is not None:
            self._append_failed(state, error)
        else:
            state.moved_to(end, is_flushed=is_flushed)
            self._changed[state] = None
