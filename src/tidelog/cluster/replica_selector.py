"""Replica selectors (KIP-392): the replica that a consumer should read from, by the rack of the consumer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

LEADER_SELECTOR: Final = "org.apache.kafka.common.replica.LeaderSelector"
RACK_AWARE_SELECTOR: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


class ReplicaView(NamedTuple):
    """A replica with the records at a consumer's fetch offset."""

    broker_id: int
    rack: str | None
    log_end_offset: int
    seconds_behind: float


class ReplicaSelector(Protocol):
    def select(
        self, client_rack: str, leader: ReplicaView, followers: Sequence[ReplicaView]
    ) -> ReplicaView: ...


class RackAwareReplicaSelector:
    """Selects the leader or, if it is in another rack, the best follower in the rack of the client."""

    def select(self, client_rack: str, leader: ReplicaView, followers: Sequence[ReplicaView]) -> ReplicaView:
        if not client_rack or leader.rack == client_rack:
            return leader
        nearby = [follower for follower in followers if follower.rack == client_rack]
        return max(nearby, key=_quality) if nearby else leader


def _quality(replica: ReplicaView) -> tuple[int, float, int]:
    return replica.log_end_offset, -replica.seconds_behind, replica.broker_id


def selector_of(class_name: str | None) -> ReplicaSelector | None:
    """The selector with the name of Kafka's class; None if consumers read from leaders."""
    return RackAwareReplicaSelector() if class_name == RACK_AWARE_SELECTOR else None
