"""Who leads a partition, as a pure rule over its state and the brokers that live."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from tidelog.metadata.state import NO_LEADER, PartitionState


def first_state(replicas: list[int], live: Set[int], controller_epoch: int) -> PartitionState:
    """The state of a new partition: the first live replica leads, the live ones are in sync."""
    isr = [replica for replica in replicas if replica in live]
    leader = isr[0] if isr else NO_LEADER
    return PartitionState(list(replicas), leader, 0, isr, controller_epoch=controller_epoch)


def elect(
    state: PartitionState, live: Set[int], controller_epoch: int, *, unclean: bool = False
) -> PartitionState | None:
    """The state after an election, or None where the present leader lives and nothing changes.

    A leader comes from the in-sync replicas, in the order of the assignment; from the others only
    where `unclean` allows to lose what they have not copied. Without any, the partition is offline:
    it keeps its in-sync replicas, so that one of those leads when it comes back.
    """
    if state.leader in live:
        return None
    in_sync = [replica for replica in state.replicas if replica in live and replica in state.isr]
    if in_sync:
        leader, isr = in_sync[0], in_sync
    else:
        unsafe = [replica for replica in state.replicas if replica in live] if unclean else []
        if not unsafe and state.leader == NO_LEADER:
            return None
        leader, isr = (unsafe[0], unsafe[:1]) if unsafe else (NO_LEADER, list(state.isr))
    epoch = state.leader_epoch + 1
    return replace(state, leader=leader, leader_epoch=epoch, isr=isr, controller_epoch=controller_epoch)


def lead_anew(state: PartitionState, broker_id: int, controller_epoch: int) -> PartitionState | None:
    """The state after the leader may have lost the end of its log; None where `broker_id` does not lead.

    Other records may get the offsets of those that were lost: the epoch tells the ones from the others.
    """
    if state.leader != broker_id:
        return None
    return replace(state, leader_epoch=state.leader_epoch + 1, controller_epoch=controller_epoch)


def go_offline(state: PartitionState, broker_id: int, controller_epoch: int) -> PartitionState | None:
    """The state after the only live replica, on `broker_id`, lost its log; None where it did not lead."""
    if state.leader != broker_id:
        return None
    epoch = state.leader_epoch + 1
    return replace(state, leader=NO_LEADER, leader_epoch=epoch, controller_epoch=controller_epoch)
