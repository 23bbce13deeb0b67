"""Who is told when partitions come and go."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from tidelog.partitions import TopicPartition

RebalanceCallback: TypeAlias = Callable[[list[TopicPartition]], "Awaitable[None] | None"]


class RebalanceListener:
    """Base class: override what is needed. Everything is called from within `poll` or `close`.

    With an AsyncConsumer they may be coroutine functions; with a Consumer they are called by the thread that
    polls and may use the consumer, as in committing what was read.
    """

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> Awaitable[None] | None:
        """These partitions are about to go to others; what was read of them can still be committed."""
        return None

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> Awaitable[None] | None:
        """These partitions are new; their positions can be set by `seek`."""
        return None

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> Awaitable[None] | None:
        """These partitions have gone to others already; commits of them are refused.

        Unless overridden this is the same as having them revoked.
        """
        return self.on_partitions_revoked(partitions)
