"""Elects the leader of a partition from its state and the live brokers. Pure functions."""

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
    """The state after an election; None if the present leader is alive and nothing changes.

    The leader is the first live in-sync replica in the order of the assignment; another replica only if
    `unclean` allows to lose the records that it has not copied. Without a leader the partition is offline and
    keeps its in-sync replicas, so that one of them leads when it comes back.
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
    """The state after the leader may have lost the end of its log; None if `broker_id` does not lead.

    New records may get the offsets of lost ones: the leader epoch distinguishes them.
    """
    if state.leader != broker_id:
        return None
    return replace(state, leader_epoch=state.leader_epoch + 1, controller_epoch=controller_epoch)


def go_offline(state: PartitionState, broker_id: int, controller_epoch: int) -> PartitionState | None:
    """The state after the only live replica, on `broker_id`, lost its log; None if it did not lead."""
    if state.leader != broker_id:
        return None
    epoch = state.leader_epoch + 1
    return replace(state, leader=NO_LEADER, leader_epoch=epoch, controller_epoch=controller_epoch)
