"""The lives of consumer groups on a replicated partition: records that are not committed may be lost.

While the followers lag, members get no answers. The next coordinator may not have what was written meanwhile:
members then see the group as it was committed.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.coordinator.consumer_schedules import GROUP, Consumer, Life, MixedLife
from tests.coordinator.consumer_world import NoAnswer
from tidelog.coordinator.group.consumer import ConsumerGroup


class ReplicatedLife(Life):
    def heartbeat(self, consumer: Consumer, *, lost: bool = False) -> None:
        beat = super().heartbeat
        self._unsure_if_unanswered(consumer, lambda: beat(consumer, lost=lost))

    def leave(self) -> None:
        try:
            super().leave()
        except NoAnswer:
            pass

    def _unsure_if_unanswered(self, consumer: Consumer, talk: Callable[[], None]) -> None:
        try:
            talk()
        except NoAnswer:
            consumer.is_unsure = True
            if consumer.unsure_since is None:
                consumer.unsure_since = self.now

    def wait(self) -> None:
        """The followers lag for a while, and then follow, or one of them is elected."""
        runtime = self.world.runtime
        if not runtime.is_stalled:
            runtime.stall()
        elif self.random.random() < 0.5:
            runtime.replicate()
        else:
            self.move_coordinator()
        super().wait()

    def move_coordinator(self) -> None:
        super().move_coordinator()
        # What nobody was told may be gone, even the group.
        group = self.world.shard.groups.get(GROUP)
        if not isinstance(group, ConsumerGroup):
            self._group_epoch = self._assignment_epoch = 0
        else:
            self._group_epoch = min(self._group_epoch, group.group_epoch)
            self._assignment_epoch = min(self._assignment_epoch, group.assignment_epoch)

    def become_quiet(self) -> None:
        if self.world.runtime.is_stalled:
            self.world.runtime.replicate()
        super().become_quiet()


class ReplicatedMixedLife(ReplicatedLife, MixedLife):
    """The same with members of both protocols."""
