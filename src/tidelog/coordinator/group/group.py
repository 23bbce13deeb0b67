"""What every kind of group answers to those who keep its offsets, list it or delete it.

The methods that validate raise the KafkaError of the rule that is broken, and change nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

from tidelog.coordinator.runtime import NewRecord

GroupKind = Literal["classic", "consumer"]

CONSUMER_PROTOCOL_TYPE = "consumer"
"""The protocol type of consumers; Connect workers, Schema Registry and others bring their own."""

CommitCheck = Callable[[bytes, int], None]
"""Called with topic id and partition; raises where this partition may not be committed. One that raises
refuses the whole commit."""


class Group(Protocol):
    @property
    def group_id(self) -> str: ...

    @property
    def kind(self) -> GroupKind: ...

    @property
    def protocol_type(self) -> str | None:
        """None for a group that only has offsets: nobody ever joined it."""

    @property
    def state_name(self) -> str:
        """The state in Kafka's spelling, as ListGroups and DescribeGroups tell it."""

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
        """Whether this member may commit now: everything, or what passes the check that comes back."""

    def validate_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Whether this member may fetch now; members of classic groups always may."""

    def validate_offset_delete(self) -> None:
        """Whether offsets may be deleted by hand; those of subscribed topics are another question."""

    def validate_delete(self) -> None:
        """Whether the group may be deleted as a whole."""

    def is_subscribed_to(self, topic: str) -> bool: ...

    def offset_expiry_base(self, commit_timestamp: int) -> int | None:
        """The time from which the retention of an offset counts; None where it cannot expire now."""

    def tombstones(self) -> list[NewRecord]:
        """The records that delete the group, without those of its offsets."""
