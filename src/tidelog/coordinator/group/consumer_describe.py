"""The answer of ConsumerGroupDescribe for a group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tidelog.coordinator.group.consumer import ConsumerGroup
from tidelog.coordinator.group.consumer_events import Member
from tidelog.metadata.state import ClusterState
from tidelog.protocol.messages.consumer_group_describe import ConsumerGroupDescribeResponse

CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1


def described(
    group: ConsumerGroup, default_assignor: str, cluster: ClusterState
) -> ConsumerGroupDescribeResponse.DescribedGroup:
    return ConsumerGroupDescribeResponse.DescribedGroup(
        group_id=group.group_id,
        group_state=group.state_name,
        group_epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=group.preferred_assignor() or default_assignor,
        members=[_member(group, member, cluster) for member in group.members.values()],
    )


def _member(
    group: ConsumerGroup, member: Member, cluster: ClusterState
) -> ConsumerGroupDescribeResponse.Member:
    metadata, current = member.metadata, member.current
    # A member owns the partitions that it has to revoke until it has done so.
    owned = {
        topic_id: {*current.assigned.get(topic_id, ()), *current.revoking.get(topic_id, ())}
        for topic_id in {**current.assigned, **current.revoking}
    }
    return ConsumerGroupDescribeResponse.Member(
        member_id=member.member_id,
        instance_id=metadata.instance_id,
        rack_id=metadata.rack_id,
        member_epoch=current.epoch,
        client_id=metadata.client_id,
        client_host=metadata.client_host,
        subscribed_topic_names=sorted(metadata.topics),
        subscribed_topic_regex=metadata.pattern,
        assignment=_assignment(owned, cluster),
        target_assignment=_assignment(group.targets.get(member.member_id, {}), cluster),
        member_type=CLASSIC_MEMBER if member.is_classic else CONSUMER_MEMBER,
    )


def _assignment(
    partitions_by_id: Mapping[bytes, Iterable[int]], cluster: ClusterState
) -> ConsumerGroupDescribeResponse.Assignment:
    return ConsumerGroupDescribeResponse.Assignment(
        topic_partitions=[
            ConsumerGroupDescribeResponse.TopicPartitions(
                topic_id=topic_id, topic_name=name, partitions=sorted(partitions)
            )
            for topic_id, partitions in partitions_by_id.items()
            if (name := cluster.names_by_id.get(topic_id)) is not None
        ]
    )
