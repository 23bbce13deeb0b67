"""GroupCoordinator: the groups whose partitions of `__consumer_offsets` this broker leads.

It combines the services for classic groups, consumer groups and offsets, which use the same shards, and
serves requests about groups of every kind.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from tidelog.clock import Scheduler
from tidelog.cluster.metadata_cache import MetadataCache
from tidelog.cluster.replica_manager import ReplicaManager
from tidelog.coordinator.group.classic import ClassicGroup
from tidelog.coordinator.group.classic_service import ClassicGroups
from tidelog.coordinator.group.classic_state import GroupState
from tidelog.coordinator.group.consumer_service import ConsumerGroups
from tidelog.coordinator.group.group import Group
from tidelog.coordinator.group.members import Member
from tidelog.coordinator.group.offsets_service import GroupOffsets
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.coordinator.group.shard import GroupShard
from tidelog.coordinator.runtime import CoordinatorRuntime
from tidelog.errors import (
    CoordinatorLoadInProgress,
    GroupIdNotFound,
    KafkaError,
)
from tidelog.protocol.messages.describe_groups import DescribeGroupsResponse
from tidelog.protocol.messages.list_groups import ListGroupsResponse
from tidelog.slices import Slices

OFFSETS_TOPIC = "__consumer_offsets"

# The most offsets of a deleted group that are removed in one turn of the loop.
OFFSETS_A_TURN = 1000

Deleted = Callable[[KafkaError | None], None]


class GroupCoordinator:
    def __init__(
        self,
        replicas: ReplicaManager,
        metadata: MetadataCache,
        scheduler: Scheduler,
        settings: GroupSettings,
    ) -> None:
        self.settings = settings
        self.runtime: CoordinatorRuntime[GroupShard] = CoordinatorRuntime(
            OFFSETS_TOPIC,
            replicas,
            metadata,
            scheduler,
            self._make_shard,
            append_timeout_ms=lambda: settings.offsets_commit_timeout_ms,
            load_buffer_size=settings.offsets_load_buffer_size,
        )
        self.consumer = ConsumerGroups(self.runtime, settings, metadata)
        self.classic = ClassicGroups(self.runtime, settings, lambda: self.consumer.classic_members)
        self.offsets = GroupOffsets(self.runtime, metadata, settings, self._heard_from)
        metadata.topics_deleted = self.offsets.topics_deleted

    def _make_shard(self, partition: int, leader_epoch: int) -> GroupShard:
        return GroupShard(partition, leader_epoch, self.classic, self.consumer.store)

    def start(self) -> None:
        """Start to remove expired offsets."""
        self.offsets.start()

    def close(self) -> None:
        """Stop: answer all waiting members."""
        self.offsets.close()
        self.runtime.close()

    def _heard_from(self, shard: GroupShard, group: Group, member_id: str) -> None:
        if isinstance(group, ClassicGroup):
            group.heard_from(member_id)

    # -- groups of every kind ----------------------------------------------------------------------

    def groups(self) -> Iterator[Group]:
        """The committed groups."""
        for shard in self.runtime.shards():
            yield from shard.all_committed_groups()

    def list_groups(
        self, states: Collection[str] = (), kinds: Collection[str] = ()
    ) -> Slices[list[ListGroupsResponse.ListedGroup]]:
        """The groups with one of these states and one of these types, ignoring case, in slices.

        Raises CoordinatorLoadInProgress.
        """
        if self.runtime.is_loading:
            raise CoordinatorLoadInProgress("groups are being loaded")
        wanted_states = {state.lower() for state in states}
        wanted_kinds = {kind.lower() for kind in kinds}
        listed = []
        for group in self.groups():
            if (not wanted_states or group.state_name.lower() in wanted_states) and (
                not wanted_kinds or group.kind in wanted_kinds
            ):
                listed.append(
                    ListGroupsResponse.ListedGroup(
                        group_id=group.group_id,
                        protocol_type=group.protocol_type or "",
                        group_state=group.state_name,
                        group_type=group.kind,
                    )
                )
            yield
        return listed

    def describe_classic(self, group_id: str) -> DescribeGroupsResponse.DescribedGroup:
        """Describe a classic group. Raises GroupIdNotFound if it does not exist or is of another kind."""
        group = self.runtime.committed_for(group_id).committed_group(group_id)
        if group is None:
            raise GroupIdNotFound(f"Group {group_id} not found.")
        if not isinstance(group, ClassicGroup):
            raise GroupIdNotFound(f"Group {group_id} is not a classic group.")
        # Protocol metadata is shown only while the group is stable.
        is_stable = group.state is GroupState.STABLE
        protocol = group.protocol if is_stable else None
        return DescribeGroupsResponse.DescribedGroup(
            group_id=group_id,
            group_state=group.state_name,
            protocol_type=group.protocol_type or "",
            protocol_data=protocol or "",
            members=[_described(member, protocol) for member in group.members.by_id.values()],
        )

    def delete_group(self, group_id: str, done: Deleted) -> None:
        """Delete a group without members: first its offsets, in turns of the loop, then the group."""
        is_begun = False

        def operation(shard: GroupShard) -> None:
            nonlocal is_begun
            group = shard.groups.get(group_id)
            if group is None and is_begun:
                self.runtime.when_committed(shard.partition, done)
                return
            try:
                if group is None:
                    raise GroupIdNotFound(f"Group {group_id} not found.")
                group.validate_delete()
            except KafkaError as error:
                done(error)
                return
            records = shard.offsets.tombstones(group_id, OFFSETS_A_TURN)
            is_last = len(records) < OFFSETS_A_TURN
            if is_last:
                records += group.tombstones()
            is_begun = True
            self.runtime.append_parts(shard.partition, records, done if is_last else go_on)

        def go_on(error: KafkaError | None) -> None:
            if error is not None:
                done(error)
            else:
                self.runtime.schedule(begin)

        def begin() -> None:
            try:
                partition = self.runtime.partition_for(group_id)
            except KafkaError as error:
                done(error)
                return
            self.runtime.run(partition, operation, done)

        begin()


def _described(member: Member, protocol: str | None) -> DescribeGroupsResponse.DescribedGroupMember:
    described = DescribeGroupsResponse.DescribedGroupMember(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_assignment=member.assignment,
    )
    if protocol is not None:
        described.member_metadata = member.metadata(protocol)
    return described
