"""SuspectedBrokers: brokers whose process seems to be gone while their session is still alive.

The controller suspects a broker on its own host whose address refuses connections twice: nobody listens there
any more. Its leaderships move as in a controlled shutdown, and it stays out of the ISR until it answers
again, registers anew, or its session ends. Its registration stays. A wrong suspicion costs a change of
leaders and no record: only in-sync replicas are elected. At most one broker is suspected at a time.

A time-out is no refusal: a paused or cut off broker waits for the end of its session. On another host a proxy
may refuse for a live broker, so nobody is suspected there.
"""

from __future__ import annotations

import logging

from tidelog.controller.broker_changes import BrokerChanges
from tidelog.controller.event_manager import ControllerState
from tidelog.controller.term import ControllerTerm

REFUSALS = 2
"""The refused connections in a row after which a broker is suspected."""

_log = logging.getLogger("tidelog.controller")


class SuspectedBrokers:
    def __init__(self, term: ControllerTerm, brokers: BrokerChanges) -> None:
        self._term = term
        self._context = term.context
        self._brokers = brokers
        term.channels.on_refused = self.refused
        term.channels.on_answered = self.answered

    def refused(self, broker_id: int, times: int) -> None:
        """The address of a broker refused connections, so many in a row."""
        if times >= REFUSALS and self._may_suspect(broker_id):
            epoch = self._context.broker_epoch(broker_id)
            self._term.put(
                ControllerState.BROKER_CHANGE, "BrokerSuspicion", lambda: self._suspect(broker_id, epoch)
            )

    def answered(self, broker_id: int) -> None:
        """A broker answered a request in the epoch of its registration, after connections were refused."""
        if broker_id in self._context.suspected_broker_ids:
            self._term.put(ControllerState.BROKER_CHANGE, "BrokerAnswers", lambda: self._clear(broker_id))

    def _may_suspect(self, broker_id: int) -> bool:
        return (
            self._term.parts.settings.broker_suspicion_enable
            and not self._context.suspected_broker_ids
            and broker_id in self._context.live_broker_ids
            and broker_id != self._term.parts.broker_id
            and self._is_on_this_host(broker_id)
        )

    def _is_on_this_host(self, broker_id: int) -> bool:
        listener = self._term.parts.channels.listener
        brokers = self._context.live_or_shutting_down_brokers
        own = brokers.get(self._term.parts.broker_id)
        here = None if own is None else own.endpoint(listener)
        there = brokers[broker_id].endpoint(listener)
        return here is not None and there is not None and here.host == there.host

    async def _suspect(self, broker_id: int, epoch: int) -> None:
        if not self._may_suspect(broker_id) or self._context.broker_epoch(broker_id) != epoch:
            return
        _log.warning("broker %d refuses connections: its leaderships move to others", broker_id)
        self._context.begin_suspicion(broker_id)
        await self._brokers.move_leaders(broker_id)
        # Also without partitions: its answer to this says that it is back.
        await self._term.send_update_metadata()

    async def _clear(self, broker_id: int) -> None:
        if broker_id in self._context.suspected_broker_ids:
            _log.info("broker %d answers again", broker_id)
            self._context.end_suspicion(broker_id)
            await self._brokers.bring_online([broker_id])
