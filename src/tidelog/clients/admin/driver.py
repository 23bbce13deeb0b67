"""Routes the requests of the admin client: to any broker, the controller, leaders or coordinators.

Some errors are retried (an election, a coordinator that loads, a broken connection) until
default.api.timeout.ms is over or `retries` are used up. An error of one key does not affect the other keys. A
request that the broker does not support raises UnsupportedVersion with the name of the API.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import TypeVar

from tidelog.clients.admin.results import error_from, names_in, settled
from tidelog.clients.async_connection import AsyncConnection
from tidelog.clients.connection import api_name
from tidelog.clients.errors import ClientClosedException, NoBrokersAvailableException, TimeoutException
from tidelog.clients.metadata import BrokerNode
from tidelog.clients.network import GROUP, NetworkClient
from tidelog.clients.settings import AdminSettings
from tidelog.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    FencedLeaderEpoch,
    KafkaError,
    LeaderNotAvailable,
    NetworkException,
    NotController,
    NotCoordinator,
    NotLeaderOrFollower,
    OffsetNotAvailable,
    ThrottlingQuotaExceeded,
    UnknownLeaderEpoch,
    UnknownServerError,
    UnknownTopicOrPartition,
)
from tidelog.partitions import PartitionKey
from tidelog.protocol.message import Message
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataResponse

T = TypeVar("T")
K = TypeVar("K")
R = TypeVar("R", bound=Message)

Outcomes = dict[K, T | KafkaError]

# After these errors another broker answers, or the same broker a moment later.
RETRIED: tuple[type[KafkaError], ...] = (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    FencedLeaderEpoch,
    LeaderNotAvailable,
    NetworkException,
    NoBrokersAvailableException,
    NotController,
    NotCoordinator,
    NotLeaderOrFollower,
    OffsetNotAvailable,
    ThrottlingQuotaExceeded,
    UnknownLeaderEpoch,
)
# Wait this much longer than the time limit of the request, for the cluster's own time-out error.
GRACE_SECONDS = 5.0
NO_LEADER = -1


class Deadline:
    """The end of a call, and the number of its attempts."""

    __slots__ = ("_loop", "at", "attempts", "seconds")

    def __init__(self, seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self.seconds = seconds
        self.at = self._loop.time() + seconds
        self.attempts = 0

    @property
    def left(self) -> float:
        return max(0.0, self.at - self._loop.time())


class AdminApiDriver:
    """Finds the broker for each request of an admin client, sends the request, and retries it."""

    def __init__(self, settings: AdminSettings) -> None:
        self._settings = settings
        self.client = NetworkClient(settings, controllers=settings.bootstrap_controllers)

    async def start(self) -> None:
        """Start the network client. A second call does nothing."""
        if self.client.closed:
            raise ClientClosedException("the admin client is closed")
        await self.client.start()

    # Time

    def deadline(self, timeout: float | None) -> Deadline:
        return Deadline(self._settings.default_api_timeout_ms / 1000 if timeout is None else timeout)

    def request_timeout(self, deadline: Deadline) -> float:
        return min(deadline.left, self._settings.request_timeout_ms / 1000)

    def timeout_ms(self, deadline: Deadline) -> int:
        """The time limit that a request passes to the cluster."""
        return max(1, round(self.request_timeout(deadline) * 1000))

    async def pause(self, deadline: Deadline, error: KafkaError, what: str) -> None:
        """Wait before the next attempt. Raises if there is none."""
        pause = self.client.retry_backoff.delay(deadline.attempts)
        deadline.attempts += 1
        if deadline.attempts > self._settings.retries:
            raise error
        if pause >= deadline.left:
            raise TimeoutException(
                f"{what}: not within {deadline.seconds:g} s; the last answer was: {error}"
            ) from None
        await asyncio.sleep(pause)

    async def retrying(self, deadline: Deadline, what: str, ask: Callable[[], Awaitable[T]]) -> T:
        """The result of `ask`, which is called again after an error that is retried."""
        while True:
            try:
                return await ask()
            except RETRIED as error:
                await self.pause(deadline, error, what)

    # Routing

    async def any_connection(self, deadline: Deadline, what: str) -> AsyncConnection:
        """A connection to any broker; its versions say what the brokers serve."""
        await self.start()
        return await self.retrying(deadline, what, self.client.any_connection)

    async def call(self, node_id: int, request: Message, answer: type[R], deadline: Deadline) -> R:
        """Send a request to one broker, once."""
        timeout = self.request_timeout(deadline) + GRACE_SECONDS
        return await self.client.call(node_id, request, answer, timeout=timeout)

    async def ask_any(self, request: Message, answer: type[R], deadline: Deadline) -> R:
        """Send a request to any broker, until one answers."""
        await self.start()

        async def ask() -> R:
            timeout = self.request_timeout(deadline)
            if self.client.speaks_with_controllers:
                return await self.client.call_controller(request, answer, timeout=timeout)
            return await self.client.call_any(request, answer, timeout=timeout)

        return await self.retrying(deadline, api_name(type(request)), ask)

    async def ask_node(self, node_id: int, request: Message, answer: type[R], deadline: Deadline) -> R:
        """Send a request to one broker, until it answers."""
        await self.known(node_id, deadline)
        return await self.retrying(
            deadline, api_name(type(request)), lambda: self.call(node_id, request, answer, deadline)
        )

    async def ask_controller(
        self, request: Message, answer: type[R], deadline: Deadline, code_of: Callable[[R], int]
    ) -> R:
        """Send a request to the controller, or to its successor if `code_of` finds NOT_CONTROLLER."""
        await self.start()

        async def ask() -> R:
            timeout = self.request_timeout(deadline) + GRACE_SECONDS
            try:
                found = await self.client.call_controller(request, answer, timeout=timeout)
            except NetworkException:
                # Another broker may be the controller by now.
                with suppress(TimeoutException):
                    await self.client.refresh(timeout=deadline.left)
                raise
            if code_of(found) == NotController.code:
                await self.client.refresh(timeout=deadline.left)
                raise NotController(f"{api_name(type(request))}: the broker is not the controller")
            return found

        return await self.retrying(deadline, api_name(type(request)), ask)

    async def known(self, node_id: int, deadline: Deadline) -> None:
        """Make sure that the address of a broker is known. Raises if the cluster has no such broker."""
        nodes = await self.nodes(deadline)
        if node_id not in nodes:
            raise NetworkException(f"broker {node_id} is not in the cluster, which has {sorted(nodes)}")

    def node(self, node_id: int) -> BrokerNode:
        """A broker of the current view of the cluster."""
        node = self.client.view.nodes.get(node_id)
        if node is None:
            raise NetworkException(f"broker {node_id} is not in the cluster any more")
        return node

    async def nodes(self, deadline: Deadline) -> list[int]:
        """The ids of the live brokers."""
        await self.start()
        if not self.client.view.nodes:
            await self.client.refresh(timeout=deadline.left)
        return sorted(self.client.view.nodes)

    async def metadata(self, topics: Iterable[str] | None, deadline: Deadline) -> MetadataResponse:
        request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
        if topics is not None:
            request.topics = [MetadataRequest.MetadataRequestTopic(name=name) for name in topics]
        answer = await self.ask_any(request, MetadataResponse, deadline)
        # The next requests go to the brokers that this answer names.
        self.client.view.update(answer, asked=())
        return answer

    async def _leaders(
        self, partitions: Iterable[PartitionKey], deadline: Deadline
    ) -> dict[PartitionKey, int | KafkaError]:
        """The leader of each partition, or the reason why it has none."""
        wanted = list(partitions)
        answer = await self.metadata(sorted({topic for topic, _ in wanted}), deadline)
        leaders = {
            (topic.name, partition.partition_index): partition.leader_id
            for topic in answer.topics
            for partition in topic.partitions
        }
        refused = {
            topic.name: error_from(topic.error_code, None, f"topic {topic.name!r}") for topic in answer.topics
        }
        live = {broker.node_id for broker in answer.brokers}
        found: dict[PartitionKey, int | KafkaError] = {}
        for topic, index in wanted:
            leader = leaders.get((topic, index))
            if leader is None:
                found[topic, index] = refused.get(topic) or UnknownTopicOrPartition(
                    f"partition {topic}-{index} does not exist"
                )
            elif leader in live:
                found[topic, index] = leader
            else:
                found[topic, index] = LeaderNotAvailable(
                    f"partition {topic}-{index} has no leader at present"
                )
        return found

    async def by_leader(
        self,
        partitions: Iterable[PartitionKey],
        deadline: Deadline,
        ask: Callable[[int, list[PartitionKey]], Awaitable[Mapping[PartitionKey, T | KafkaError]]],
    ) -> Outcomes[PartitionKey, T]:
        """The answers of the leaders for each partition, with retries after elections."""

        async def look_up(waiting: list[PartitionKey]) -> Mapping[PartitionKey, int | KafkaError]:
            return await self._leaders(waiting, deadline)

        return await self._settle(list(dict.fromkeys(partitions)), deadline, look_up, ask)

    async def by_coordinator(
        self,
        keys: Iterable[str],
        deadline: Deadline,
        ask: Callable[[int, list[str]], Awaitable[Mapping[str, T | KafkaError]]],
        *,
        kind: int = GROUP,
        again: tuple[type[KafkaError], ...] = RETRIED,
    ) -> Outcomes[str, T]:
        """The answers of the coordinators for each group or transactional id."""

        async def look_up(waiting: list[str]) -> Mapping[str, int | KafkaError]:
            found: dict[str, int | KafkaError] = {}
            for key in waiting:
                try:
                    found[key] = await self.client.coordinator(kind, key, timeout=deadline.left)
                except KafkaError as error:
                    found[key] = error
            return found

        async def asked(node_id: int, waiting: list[str]) -> Mapping[str, T | KafkaError]:
            answers = await ask(node_id, waiting)
            for key, outcome in answers.items():
                if isinstance(outcome, RETRIED):
                    self.client.forget_coordinator(kind, key)
            return answers

        return await self._settle(names_in(keys), deadline, look_up, asked, again)

    async def by_one_coordinator(
        self, group_id: str, deadline: Deadline, ask: Callable[[int], Awaitable[T]]
    ) -> T:
        """The answer of the coordinator of one group. `ask` raises the errors of the group."""

        async def asked(node_id: int, _: list[str]) -> Outcomes[str, T]:
            try:
                return {group_id: await ask(node_id)}
            except KafkaError as error:
                return {group_id: error}

        return settled(await self.by_coordinator([group_id], deadline, asked), partial=False)[group_id]

    async def _settle(
        self,
        keys: list[K],
        deadline: Deadline,
        look_up: Callable[[list[K]], Awaitable[Mapping[K, int | KafkaError]]],
        ask: Callable[[int, list[K]], Awaitable[Mapping[K, T | KafkaError]]],
        again: tuple[type[KafkaError], ...] = RETRIED,
    ) -> Outcomes[K, T]:
        await self.start()
        outcomes: Outcomes[K, T] = {}
        waiting = keys
        while waiting:
            outcomes |= await self._ask_once(waiting, look_up, ask)
            waiting = [key for key in keys if isinstance(outcomes[key], again)]
            if waiting:
                first = outcomes[waiting[0]]
                assert isinstance(first, KafkaError)
                try:
                    await self.pause(deadline, first, repr(waiting[0]))
                except KafkaError as error:
                    return outcomes | dict.fromkeys(waiting, error)
        return {key: outcomes[key] for key in keys}

    async def _ask_once(
        self,
        keys: list[K],
        look_up: Callable[[list[K]], Awaitable[Mapping[K, int | KafkaError]]],
        ask: Callable[[int, list[K]], Awaitable[Mapping[K, T | KafkaError]]],
    ) -> Outcomes[K, T]:
        outcomes: Outcomes[K, T] = {}
        by_node: dict[int, list[K]] = {}
        for key, node in (await look_up(keys)).items():
            if isinstance(node, KafkaError):
                outcomes[key] = node
            else:
                by_node.setdefault(node, []).append(key)
        answered = await asyncio.gather(*(self.guarded(ask, node, asked) for node, asked in by_node.items()))
        for (node, asked), answers in zip(by_node.items(), answered, strict=True):
            silent = UnknownServerError(f"broker {node} gave no answer for it")
            outcomes |= {key: answers.get(key, silent) for key in asked}
        return outcomes

    async def guarded(
        self, ask: Callable[[int, list[K]], Awaitable[Mapping[K, T | KafkaError]]], node: int, keys: list[K]
    ) -> Mapping[K, T | KafkaError]:
        """The answer of one broker. If it fails, each of its keys gets the error."""
        try:
            return await ask(node, keys)
        except KafkaError as error:
            return dict.fromkeys(keys, error)


def by_topic(partitions: Iterable[PartitionKey]) -> dict[str, list[int]]:
    """The indexes of the partitions of each topic, in order."""
    topics: dict[str, list[int]] = {}
    for topic, index in sorted(partitions):
        topics.setdefault(topic, []).append(index)
    return topics
