"""Group: the interface of all kinds of groups for offsets, ListGroups and DeleteGroups.

The methods that validate raise the KafkaError of the broken rule, and change nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

from tidelog.coordinator.runtime import NewRecord

GroupKind = Literal["classic", "consumer"]

CONSUMER_PROTOCOL_TYPE = "consumer"
"""The protocol type of consumers; Connect workers, Schema Registry and others have their own."""

CommitCheck = Callable[[bytes, int], None]
"""Called with topic id and partition; KafkaError if the member may not commit the partition. Then the whole
commit is refused."""


class Group(Protocol):
    @property
    def group_id(self) -> str: ...

    @property
    def kind(self) -> GroupKind: ...

    @property
    def protocol_type(self) -> str | None:
        """None for a group that only has offsets and never had members."""

    @property
    def state_name(self) -> str:
        """The state in Kafka's spelling, as ListGroups and DescribeGroups show it."""

    @property
    def is_empty(self) -> bool:
        """Whether the group has no members, so that its offsets may expire and it may be deleted."""

    def validate_offset_commit(
        self,
        member_id: str,
        instance_id: str | None,
        generation_or_epoch: int,
        *,
        transactional: bool,
        api_version: int,
    ) -> CommitCheck | None:
        """Check that this member may commit now; returns a check for each partition, or None."""

    def validate_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Check that this member may fetch now. Members of classic groups always may."""

    def validate_offset_delete(self) -> None:
        """Check that offsets may be deleted at all. `is_subscribed_to` then decides for each topic."""

    def validate_delete(self) -> None:
        """Check that the group may be deleted."""

    def is_subscribed_to(self, topic: str) -> bool: ...

    def offset_expiry_base(self, commit_timestamp: int) -> int | None:
        """The time from which the retention of an offset counts; None if it cannot expire now."""

    def tombstones(self) -> list[NewRecord]:
        """The records that delete the group, without its offsets."""
