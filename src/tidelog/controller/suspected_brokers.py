"""SuspectedBrokers: brokers whose process seems to be gone while their session is still alive.

The controller suspects a broker whose address refuses its connections twice: no process listens there any
more. On another host, a proxy may refuse the controller alone, so the address has to refuse another broker,
too. The leaderships of a suspected broker move as in a controlled shutdown. It stays out of the ISR until it
answers again, registers anew, or its session ends. Its registration stays. A wrong suspicion costs a change
of leaders and no record, because only in-sync replicas are elected. At most one broker is suspected at a
time.

A time-out does not count as a refusal. A paused or disconnected broker keeps its leaderships until its
session ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import NamedTuple

from tidelog.controller.broker_changes import BrokerChanges
from tidelog.controller.event_manager import ControllerState
from tidelog.controller.request_batch import STOP_REPLICA_VERSION
from tidelog.controller.term import ControllerTerm
from tidelog.errors import KafkaError
from tidelog.protocol.messages.stop_replica import StopReplicaRequest, StopReplicaResponse

REFUSALS = 2
"""The refused connections in a row after which a broker is suspected."""

WITNESSES = 3
"""How many other brokers are asked at once whether they are refused, too."""

ANSWER_SECONDS = 2.0
"""How long another broker has for its answer; it tries to connect meanwhile."""

ASK_AGAIN_SECONDS = 1.0

_log = logging.getLogger("tidelog.controller")


class _Refusal(NamedTuple):
    """A broker that refuses connections: its epoch, and the number of answers after earlier refusals."""

    broker_id: int
    epoch: int
    answers: int


class SuspectedBrokers:
    def __init__(self, term: ControllerTerm, brokers: BrokerChanges) -> None:
        self._term = term
        self._context = term.context
        self._brokers = brokers
        self._inquiries: dict[int, asyncio.Task[None]] = {}
        self._answers: Counter[int] = Counter()
        term.channels.on_refused = self.refused
        term.channels.on_answered = self.answered

    def close(self) -> None:
        for inquiry in self._inquiries.values():
            inquiry.cancel()

    def refused(self, broker_id: int, times: int) -> None:
        """Note that the address of a broker has refused `times` connections in a row."""
        if times < REFUSALS or not self._may_suspect(broker_id):
            return
        refusal = _Refusal(broker_id, self._context.broker_epoch(broker_id), self._answers[broker_id])
        if self._is_on_this_host(broker_id):
            self._put_suspicion(refusal)
        elif broker_id not in self._inquiries:
            inquiry = asyncio.get_running_loop().create_task(
                self._inquire(refusal), name=f"is-broker-{broker_id}-gone"
            )
            self._inquiries[broker_id] = inquiry
            inquiry.add_done_callback(lambda _: self._inquiries.pop(broker_id))

    def answered(self, broker_id: int) -> None:
        """Note an answer after refused connections, in the epoch of the broker's registration."""
        self._answers[broker_id] += 1
        if broker_id in self._context.suspected_broker_ids:
            self._term.put(ControllerState.BROKER_CHANGE, "BrokerAnswers", lambda: self._clear(broker_id))

    def _may_suspect(self, broker_id: int) -> bool:
        return (
            self._term.parts.settings.broker_suspicion_enable
            and not self._context.suspected_broker_ids
            and broker_id in self._context.live_broker_ids
            and broker_id != self._term.parts.broker_id
        )

    def _is_on_this_host(self, broker_id: int) -> bool:
        listener = self._term.parts.channels.listener
        brokers = self._context.live_or_shutting_down_brokers
        own = brokers.get(self._term.parts.broker_id)
        own_endpoint = None if own is None else own.endpoint(listener)
        other_endpoint = brokers[broker_id].endpoint(listener)
        return (
            own_endpoint is not None
            and other_endpoint is not None
            and own_endpoint.host == other_endpoint.host
        )

    # --- other brokers

    async def _inquire(self, refusal: _Refusal) -> None:
        """Ask other brokers. Suspect the broker as soon as its address refuses one of them, too."""
        broker_id = refusal.broker_id
        others = self._context.live_broker_ids - {broker_id, self._term.parts.broker_id}
        witnesses = self._term.parts.rng.sample(sorted(others), min(len(others), WITNESSES))
        questions = [asyncio.ensure_future(self._is_refused_too(other, broker_id)) for other in witnesses]
        try:
            for question in asyncio.as_completed(questions):
                if await question:
                    self._put_suspicion(refusal)
                    return
            await asyncio.sleep(ASK_AGAIN_SECONDS)
        finally:
            for question in questions:
                question.cancel()

    async def _is_refused_too(self, other: int, broker_id: int) -> bool:
        """Ask a broker over a separate connection, so that its other requests do not wait for the answer."""
        parts = self._term.parts
        registration = self._context.live_or_shutting_down_brokers.get(other)
        endpoint = None if registration is None else registration.endpoint(parts.channels.listener)
        if endpoint is None:
            return False
        question = StopReplicaRequest(
            controller_id=parts.broker_id,
            controller_epoch=self._context.epoch,
            broker_epoch=self._context.broker_epoch(other),
            refusing_broker_id=broker_id,
        )
        try:
            connection = await parts.transport.connect(other, endpoint, timeout=ANSWER_SECONDS)
            try:
                answer = await connection.call(
                    question, StopReplicaResponse, version=STOP_REPLICA_VERSION, timeout=ANSWER_SECONDS
                )
            finally:
                connection.close("the question is answered")
        except KafkaError as error:
            _log.info("broker %d does not say whether broker %d refuses it: %s", other, broker_id, error)
            return False
        return answer.is_refused

    # --- events

    def _put_suspicion(self, refusal: _Refusal) -> None:
        self._term.put(ControllerState.BROKER_CHANGE, "BrokerSuspicion", lambda: self._suspect(refusal))

    async def _suspect(self, refusal: _Refusal) -> None:
        broker_id, epoch, answers = refusal
        if not self._may_suspect(broker_id) or self._context.broker_epoch(broker_id) != epoch:
            return
        if self._answers[broker_id] != answers:
            return  # the broker is back, and no later answer would end the suspicion
        _log.warning("broker %d refuses connections: its leaderships move to others", broker_id)
        self._context.begin_suspicion(broker_id)
        await self._brokers.move_leaders(broker_id, stops=False)
        # Also without partitions: an answer of the broker ends the suspicion.
        await self._term.send_update_metadata()

    async def _clear(self, broker_id: int) -> None:
        if broker_id in self._context.suspected_broker_ids:
            _log.info("broker %d answers again", broker_id)
            self._context.end_suspicion(broker_id)
            await self._brokers.bring_online([broker_id])
