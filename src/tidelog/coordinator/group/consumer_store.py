"""ConsumerStore: makes drafts of consumer groups, writes their records and sets their timers.

The requests of both protocols use it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence

from tidelog.cluster.metadata_cache import MetadataCache
from tidelog.coordinator.group.classic import ClassicGroup
from tidelog.coordinator.group.consumer import ConsumerGroup, deletion_of
from tidelog.coordinator.group.consumer_decisions import Draft, Rules, remove_members
from tidelog.coordinator.group.consumer_events import EpochEvent, Member, MemberState
from tidelog.coordinator.group.consumer_records import decode, encode_all
from tidelog.coordinator.group.consumer_timers import Deadlines, Kind, Late
from tidelog.coordinator.group.migration import MigrationPolicy, downgrade, may_downgrade
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.coordinator.group.shard import GroupShard
from tidelog.coordinator.runtime import CoordinatorRuntime, Done, NewRecord
from tidelog.errors import KafkaError
from tidelog.metadata.state import TopicState

log = logging.getLogger("tidelog.coordinator.group")

# The wait before a removal of members that could not be written is retried.
RETRY_MS = 1000


class GroupSoftState:
    """The state of a group that is not in its records; it is new after each load."""

    __slots__ = ("deadlines", "has_resolved", "is_resolving", "seen_topics")

    def __init__(self, deadlines: Deadlines) -> None:
        self.deadlines = deadlines
        # The version of the cluster's topics at the last check of the group.
        self.seen_topics: dict[str, TopicState] | None = None
        self.is_resolving = False
        # Whether this coordinator has resolved the patterns. Versions of another coordinator mean nothing
        # here.
        self.has_resolved = False


class ConsumerStore:
    """Implements coordinator.group.shard.ShardGroups."""

    def __init__(
        self, runtime: CoordinatorRuntime[GroupShard], settings: GroupSettings, metadata: MetadataCache
    ) -> None:
        self.runtime = runtime
        self.settings = settings
        self.metadata = metadata
        self.clock = runtime.scheduler.clock
        self._soft: dict[int, dict[str, GroupSoftState]] = {}

    # -- shards ------------------------------------------------------------------------------------

    def replay(self, shard: GroupShard, record_type: int, key: bytes, value: bytes | None) -> None:
        group_id, event = decode(record_type, key, value)
        group = shard.groups.get(group_id)
        shard.note_group(group_id, group.copy if isinstance(group, ConsumerGroup) else lambda: group)
        if isinstance(event, EpochEvent) and event.epoch is None:
            if isinstance(group, ConsumerGroup):
                del shard.groups[group_id]
                self._forget(shard.partition, group_id)
            return
        if not isinstance(group, ConsumerGroup):
            if value is None:
                return  # of a group that is gone
            group = shard.groups[group_id] = ConsumerGroup(group_id)
        group.apply(event)

    def loaded(self, shard: GroupShard) -> None:
        for group in shard.groups.values():
            if isinstance(group, ConsumerGroup):
                for member in group.members.values():
                    self.heard_from(shard, group, member)
                    if member.current.state is MemberState.UNREVOKED_PARTITIONS and not member.is_classic:
                        self.soft(shard, group.group_id).deadlines.set(
                            Kind.REVOKE, member.member_id, member.metadata.rebalance_timeout_ms
                        )

    def unload(self, shard: GroupShard) -> None:
        for soft in self._soft.pop(shard.partition, {}).values():
            soft.deadlines.close()

    # -- soft state --------------------------------------------------------------------------------

    def soft(self, shard: GroupShard, group_id: str) -> GroupSoftState:
        groups = self._soft.setdefault(shard.partition, {})
        soft = groups.get(group_id)
        if soft is None:
            partition = shard.partition
            deadlines = Deadlines(
                self.runtime.scheduler, lambda late: self._expired(partition, group_id, late)
            )
            soft = groups[group_id] = GroupSoftState(deadlines)
        return soft

    def _forget(self, partition: int, group_id: str) -> None:
        soft = self._soft.get(partition, {}).pop(group_id, None)
        if soft is not None:
            soft.deadlines.close()

    def heard_from(self, shard: GroupShard, group: ConsumerGroup, member: Member) -> None:
        """Restart the session timer of a member."""
        classic = member.metadata.classic
        timeout_ms = (
            self.settings.consumer_session_timeout_ms(group.group_id)
            if classic is None
            else classic.session_timeout_ms
        )
        self.soft(shard, group.group_id).deadlines.set(Kind.SESSION, member.member_id, timeout_ms)

    # -- decisions ---------------------------------------------------------------------------------

    def draft(self, group: ConsumerGroup) -> Draft:
        settings = self.settings
        return Draft(
            group,
            self.metadata.snapshot,
            Rules(
                settings.consumer_assignors[0],
                settings.consumer_assignment_interval_ms(group.group_id),
                settings.consumer_max_size,
            ),
            self.clock.ms(),
        )

    def commit(self, shard: GroupShard, draft: Draft, done: Done, before: Sequence[NewRecord] = ()) -> None:
        """Write the events of a draft, and set its timers when they are committed.

        `done` is called when the state of the draft is committed, even if it has no events.
        """
        group_id = draft.group.group_id

        def written(error: KafkaError | None) -> None:
            if error is None and group_id in shard.groups:
                self._follow(shard, draft)
            done(error)

        if draft.events or before:
            self.runtime.append(shard.partition, [*before, *encode_all(group_id, draft.events)], written)
        else:
            self.runtime.when_committed(shard.partition, done)

    def _follow(self, shard: GroupShard, draft: Draft) -> None:
        deadlines = self.soft(shard, draft.group.group_id).deadlines
        for member_id in draft.gone:
            if member_id not in draft.group.members:
                deadlines.forget(member_id)
        for member_id, must_revoke in draft.must_revoke.items():
            member = draft.group.members.get(member_id)
            if must_revoke and member is not None:
                deadlines.set(Kind.REVOKE, member_id, member.metadata.rebalance_timeout_ms)
            else:
                deadlines.clear(Kind.REVOKE, member_id)

    # -- members that leave ------------------------------------------------------------------------

    def remove(
        self, shard: GroupShard, group: ConsumerGroup, member_ids: Collection[str], done: Done
    ) -> None:
        """Remove members. If all other members are classic, the group becomes a classic one."""
        policy = MigrationPolicy.of(self.settings.consumer_migration_policy)
        if may_downgrade(group, member_ids, policy, self.settings.max_size):
            reason = f"the last members of the consumer protocol left: {', '.join(member_ids)}"
            self.downgrade(shard, self.draft(group), member_ids, reason, done)
            return
        draft = self.draft(group)
        remove_members(draft, member_ids)
        self.commit(shard, draft, done)

    def downgrade(
        self, shard: GroupShard, draft: Draft, leaving: Collection[str], reason: str | None, done: Done
    ) -> None:
        """Convert a draft of a consumer group to a classic group. With a reason, start a rebalance, too."""
        group = draft.group
        conversion = downgrade(group, leaving, draft.cluster, draft.now_ms)
        records = encode_all(group.group_id, [*draft.events, *deletion_of(group)])

        def written(error: KafkaError | None) -> None:
            classic = shard.groups.get(group.group_id)
            if error is None and isinstance(classic, ClassicGroup):
                log.info("group %s: it is a classic group from now on", group.group_id)
                # The record has only the chosen protocol; the members in memory have all.
                for member in conversion.members.by_id.values():
                    restored = classic.members.by_id.get(member.member_id)
                    if restored is not None:
                        classic.members.set_protocols(restored, member.protocols)
                if reason is not None:
                    classic.rebalance(reason)
            done(error)

        self.runtime.append(shard.partition, [*records, conversion.record], written)

    def _expired(self, partition: int, group_id: str, late: list[Late]) -> None:
        def operation(shard: GroupShard) -> None:
            group = shard.groups.get(group_id)
            if not isinstance(group, ConsumerGroup):
                return
            expired = {entry.member_id: entry.kind for entry in late if entry.member_id in group.members}
            for member_id, kind in expired.items():
                log.info("group %s: the member %s is removed: %s", group_id, member_id, kind.value)
            if expired:
                self.remove(shard, group, expired, lambda error: retry(shard, expired, error))

        def retry(shard: GroupShard, expired: Collection[str], error: KafkaError | None) -> None:
            if error is not None and shard.is_loaded and shard.groups.get(group_id) is not None:
                for member_id in expired:
                    self.soft(shard, group_id).deadlines.set(Kind.SESSION, member_id, RETRY_MS)

        self.runtime.run(partition, operation, lambda error: None)


Failed = Callable[[KafkaError], None]
