"""The listener of rebalances."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from tidelog.partitions import TopicPartition

RebalanceCallback: TypeAlias = Callable[[list[TopicPartition]], "Awaitable[None] | None"]


class ConsumerRebalanceListener:
    """Base class of listeners; override the methods that you need. `poll` and `close` call them.

    An AsyncConsumer also takes coroutine functions. A Consumer calls them in the polling thread; they may use
    the consumer, for example to commit.
    """

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> Awaitable[None] | None:
        """Called before partitions are revoked. Their offsets can still be committed."""
        return None

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> Awaitable[None] | None:
        """Called after partitions were assigned. `seek` can set their positions."""
        return None

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> Awaitable[None] | None:
        """Called when other members have the partitions already. Commits of them fail.

        Calls `on_partitions_revoked`, unless overridden.
        """
        return self.on_partitions_revoked(partitions)
