"""The coordinators of groups and transactional ids, looked up once and cached until they are forgotten."""

from __future__ import annotations

import asyncio

from tidelog.clients.backoff import Backoff
from tidelog.clients.errors import REFUSED, TimeoutException
from tidelog.clients.links import Links
from tidelog.clients.metadata import BrokerNode, ClusterView
from tidelog.errors import CoordinatorNotAvailable, KafkaError, error_class
from tidelog.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse

GROUP = 0
TRANSACTION = 1


class KnownCoordinators:
    """The coordinators that were found. Their brokers become part of the view of the cluster."""

    def __init__(self, links: Links, view: ClusterView, backoff: Backoff) -> None:
        self._links = links
        self._view = view
        self._backoff = backoff
        self._known: dict[tuple[int, str], int] = {}

    async def find(self, kind: int, key: str, *, timeout: float | None = None) -> int:
        """The broker that coordinates a group (kind 0) or a transactional id (1), cached until forgotten."""
        known = self._known.get((kind, key))
        if known is not None and known in self._view.nodes:
            return known
        deadline = None if timeout is None else self._links.now() + timeout
        attempt = 0
        while True:
            try:
                node = await self._ask(kind, key)
            except KafkaError as error:
                if not error.retriable or isinstance(error, REFUSED):
                    raise
                pause = self._backoff.delay(attempt)
                attempt += 1
                if deadline is not None and self._links.now() + pause > deadline:
                    raise TimeoutException(
                        f"the coordinator of {key!r} was not found in time: {error}"
                    ) from None
                await asyncio.sleep(pause)
                continue
            self._known[kind, key] = node.id
            self._view.add_nodes((node,))
            return node.id

    def forget(self, kind: int, key: str) -> None:
        self._known.pop((kind, key), None)

    async def _ask(self, kind: int, key: str) -> BrokerNode:
        connection = await self._links.any_connection()
        version = connection.version_for(FindCoordinatorRequest)
        request = FindCoordinatorRequest(key_type=kind)
        if version >= 4:
            request.coordinator_keys = [key]
        else:
            request.key = key
        answer = await connection.call(request, FindCoordinatorResponse, version=version)
        if version < 4:
            code, text = answer.error_code, answer.error_message
            node = BrokerNode(answer.node_id, answer.host, answer.port)
        elif answer.coordinators:
            found = answer.coordinators[0]
            code, text = found.error_code, found.error_message
            node = BrokerNode(found.node_id, found.host, found.port)
        else:
            raise CoordinatorNotAvailable(f"the broker named no coordinator for {key!r}")
        if code:
            raise error_class(code)(text or f"the coordinator of {key!r}: {error_class(code)()}")
        return node
