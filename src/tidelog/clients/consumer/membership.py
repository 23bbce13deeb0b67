"""What both kinds of group membership share: who they are told by, and what they tell.

Heartbeats go out in the background. Whatever changes the assignment happens inside `poll`, so that nothing
is taken away while somebody works with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass

from tidelog.clients.consumer.commits import Coordinator, Membership
from tidelog.clients.consumer.metrics import ConsumerMetrics
from tidelog.clients.consumer.partitions import Subscription
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
    """What a member works with."""

    client: NetworkClient
    coordinator: Coordinator
    settings: ConsumerSettings
    subscription: Subscription
    metrics: ConsumerMetrics
    wake: Callable[[], None]
    """Ends the wait of a poll, which then looks at everything anew."""
    tell: Callable[[str, list[TopicPartition]], Awaitable[None]]
    """Tells the rebalance listener."""
    commit_owned: Callable[[], Awaitable[None]]
    """Commits the positions, where that is done automatically."""
    reassigned: Callable[[], None]
    """The assignment has changed."""


class GroupMembership:
    """Base of the two protocols. `poll` is called by whoever polls, on the loop."""

    def __init__(self, around: MembershipContext) -> None:
        self.around = around
        self.group_id = around.coordinator.group_id
        self.error: KafkaError | None = None
        """Why this consumer cannot be a member any more."""
        self.last_poll = 0.0
        self.polling = 0
        self._tasks: set[asyncio.Task[None]] = set()

    # What the protocols do

    @property
    def quiet(self) -> bool:
        """Whether a poll has nothing to do for the group."""
        raise NotImplementedError

    async def poll(self, deadline: float | None) -> None:
        """Do what there is to do, as far as time allows."""
        raise NotImplementedError

    def identity(self) -> Membership:
        raise NotImplementedError

    def refused(self, error: KafkaError, member: Membership) -> None:
        """A commit of that member was refused."""
        raise NotImplementedError

    def check_commit(self) -> None:
        """Raises where this consumer is no member and so must not commit."""
        raise NotImplementedError

    def subscription_changed(self, reason: str) -> None:
        raise NotImplementedError

    def metadata_changed(self) -> None:
        """The cluster's topics may have changed."""

    async def leave(self, reason: str) -> None:
        """Give up the partitions and leave, where this member is known."""
        raise NotImplementedError

    # What they share

    @property
    def owned(self) -> set[TopicPartition]:
        return set(self.around.subscription.states)

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def start(self, work: Coroutine[object, object, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """End what runs in the background, without leaving."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def polls_too_seldom(self) -> bool:
        limit = self.around.settings.max_poll_interval_ms / 1000
        return not self.polling and self.now() - self.last_poll > limit

    async def give_up(self, partitions: set[TopicPartition], kind: str) -> None:
        """Tell that partitions go, and let them go."""
        if not partitions:
            return
        subscription = self.around.subscription
        for name in partitions:
            subscription.states[name].revoking = True
        try:
            if kind == REVOKED:
                await self.around.commit_owned()
            await self.around.tell(kind, sorted(partitions))
        finally:
            subscription.assign(self.owned - partitions)
            self.around.reassigned()

    async def take_over(self, partitions: set[TopicPartition], added: set[TopicPartition]) -> None:
        """Have these partitions, and tell which are new."""
        self.around.subscription.assign(partitions)
        try:
            await self.around.tell(ASSIGNED, sorted(added))
        finally:
            self.around.reassigned()

    async def sleep(self, seconds: float, event: asyncio.Event) -> None:
        """Wait, unless the event says that something is to be done at once."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(seconds, 0.0)):
                await event.wait()

    def say_too_seldom(self) -> None:
        log.warning(
            "group %r: poll was not called for max.poll.interval.ms=%d, so this consumer leaves the group; "
            "handle records faster, raise it, or lower max.poll.records",
            self.group_id,
            self.around.settings.max_poll_interval_ms,
        )
