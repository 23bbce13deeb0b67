"""GroupMembership: the base class of membership by the classic and by the consumer protocol.

Heartbeats are sent in the background. The assignment changes only inside `poll`: no partition is revoked
while the application works with its records.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass

from tidelog.clients.consumer.commits import Coordinator, Membership
from tidelog.clients.consumer.metrics import ConsumerMetrics
from tidelog.clients.consumer.partitions import SubscriptionState
from tidelog.clients.network import NetworkClient
from tidelog.clients.settings import ConsumerSettings
from tidelog.errors import KafkaError
from tidelog.partitions import TopicPartition

log = logging.getLogger("tidelog.clients")

REVOKED = "revoked"
ASSIGNED = "assigned"
LOST = "lost"


@dataclass(slots=True)
class MembershipContext:
    """The parts of the consumer that a membership uses."""

    client: NetworkClient
    coordinator: Coordinator
    settings: ConsumerSettings
    subscription: SubscriptionState
    metrics: ConsumerMetrics
    wake: Callable[[], None]
    """Wakes up a poll that waits."""
    tell: Callable[[str, list[TopicPartition]], Awaitable[None]]
    """Calls the rebalance listener."""
    commit_owned: Callable[[], Awaitable[None]]
    """Commits the positions if enable.auto.commit is set."""
    reassigned: Callable[[], None]
    """Called after the assignment has changed."""


class GroupMembership:
    """A member of a group. Everything runs on the loop."""

    def __init__(self, context: MembershipContext) -> None:
        self.context = context
        self.group_id = context.coordinator.group_id
        self.error: KafkaError | None = None
        """The error that ended the membership for good."""
        self.failure: KafkaError | None = None
        """The error of a heartbeat that the next poll raises. The heartbeats go on."""
        self.losses = 0
        """How often the coordinator had removed this member. Others had its partitions each time."""
        self.owner: Membership | None = None
        """The member that the group gave the partitions of this consumer to."""
        self.last_poll = 0.0
        self.polling = 0
        self._tasks: set[asyncio.Task[None]] = set()

    # Of each protocol

    @property
    def quiet(self) -> bool:
        """Whether a poll has no work for the group."""
        raise NotImplementedError

    async def poll(self, deadline: float | None) -> None:
        """Rebalance as far as the time allows."""
        raise NotImplementedError

    def identity(self) -> Membership:
        raise NotImplementedError

    def owner_of_offsets(self) -> Membership:
        """The member for the offsets of a transaction.

        After a removal it is still the removed member, until a poll has given up its partitions. The group
        refuses the offsets of that member. It would accept offsets without a member, although others own the
        partitions by now.
        """
        if self.context.subscription.by_hand or self.owner is None:
            return self.identity()
        return self.owner

    def refused(self, error: KafkaError, member: Membership) -> None:
        """Handle the error of a commit by this member, which the coordinator rejected."""
        raise NotImplementedError

    def check_commit(self) -> None:
        """Raises CommitFailedException if this consumer is not a member."""
        raise NotImplementedError

    def subscription_changed(self, reason: str) -> None:
        raise NotImplementedError

    def metadata_changed(self) -> None:
        """The metadata has changed."""

    async def leave(self, reason: str) -> None:
        """Revoke the partitions and leave the group."""
        raise NotImplementedError

    # Of both protocols

    def fail(self, error: KafkaError) -> None:
        """Let the next poll raise the error, such as of a missing right, which may come back."""
        if self.failure is None:
            log.error("%s", error)
            self.failure = error
            self.context.wake()

    def raise_failure(self) -> None:
        """Raise what ended the membership, or what a heartbeat failed with since the last poll."""
        if self.error is not None:
            raise self.error
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure

    @property
    def owned(self) -> set[TopicPartition]:
        return set(self.context.subscription.states)

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def start(self, work: Coroutine[object, object, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """End the background tasks without leaving the group."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def exceeds_poll_interval(self) -> bool:
        limit = self.context.settings.max_poll_interval_ms / 1000
        return not self.polling and self.now() - self.last_poll > limit

    async def give_up(self, partitions: set[TopicPartition], kind: str) -> None:
        """Call the listener, then give up the partitions."""
        if not partitions:
            return
        subscription = self.context.subscription
        for name in partitions:
            subscription.states[name].revoking = True
        try:
            if kind == REVOKED:
                await self.context.commit_owned()
            await self.context.tell(kind, sorted(partitions))
        finally:
            subscription.assign(self.owned - partitions)
            self.context.reassigned()

    async def take_over(self, partitions: set[TopicPartition], added: set[TopicPartition]) -> None:
        """Assign these partitions, and call the listener with the new ones."""
        self.context.subscription.assign(partitions)
        try:
            await self.context.tell(ASSIGNED, sorted(added))
        finally:
            self.context.reassigned()

    async def sleep(self, seconds: float, event: asyncio.Event) -> None:
        """Sleep until the time is over or the event is set."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(seconds, 0.0)):
                await event.wait()

    def warn_of_poll_interval(self) -> None:
        log.warning(
            "group %r: poll was not called for max.poll.interval.ms=%d, so this consumer leaves the group; "
            "handle records faster, raise it, or lower max.poll.records",
            self.group_id,
            self.context.settings.max_poll_interval_ms,
        )
