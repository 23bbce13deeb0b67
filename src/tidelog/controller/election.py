"""Elects the leader of a partition from its state and the live brokers. Pure functions."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from tidelog.metadata.state import NO_LEADER, PartitionState

RECOVERED = 0
RECOVERING = 1
"""The leader recovery state after an unclean election: the leader may lack records of the former leader."""


def first_state(replicas: list[int], live: Set[int], controller_epoch: int) -> PartitionState:
    """The state of a new partition: the first live replica leads, the live ones are in sync."""
    isr = [replica for replica in replicas if replica in live]
    leader = isr[0] if isr else NO_LEADER
    return PartitionState(list(replicas), leader, 0, isr, controller_epoch=controller_epoch)


def elect(
    state: PartitionState, live: Set[int], controller_epoch: int, *, unclean: bool = False
) -> PartitionState | None:
    """The state after an election; None if the present leader is alive and nothing changes.

    The leader is the first live in-sync replica in the order of the assignment. With `unclean`, it may be
    another live replica, which may lack records. A partition without a leader is offline and keeps its
    in-sync replicas, so that one of them leads when it comes back.
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
    """The state with a new leader epoch, after the leader may have lost the end of its log.

    New records may get the offsets of lost ones, and the leader epoch distinguishes them. None if `broker_id`
    does not lead.
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


# --- a cluster of several brokers: `online` are the brokers whose replica of the partition can be used


def elect_for_offline(
    state: PartitionState, online: Set[int], controller_epoch: int, *, unclean: bool
) -> PartitionState | None:
    """Elect a leader for a partition without one; None if no replica may lead.

    The leader is the first in-sync replica in the order of the assignment, with `unclean` also any other
    online replica. Replicas that are not online leave the ISR.
    """
    for replica in state.replicas:
        if replica in online and replica in state.isr:
            isr = [member for member in state.isr if member in online]
            return led_by(state, replica, isr, controller_epoch)
    if unclean:
        for replica in state.replicas:
            if replica in online:
                elected = led_by(state, replica, [replica], controller_epoch)
                return replace(elected, leader_recovery_state=RECOVERING)
    return None


def elect_for_reassignment(
    state: PartitionState, online: Set[int], controller_epoch: int
) -> PartitionState | None:
    """Elect an in-sync replica of the new assignment; None if there is none online."""
    for replica in target_replicas(state):
        if replica in online and replica in state.isr:
            return led_by(state, replica, state.isr, controller_epoch)
    return None


def elect_preferred(state: PartitionState, online: Set[int], controller_epoch: int) -> PartitionState | None:
    """Elect the first replica of the assignment; None if it is not online or not in sync."""
    preferred = state.replicas[0] if state.replicas else NO_LEADER
    if preferred in online and preferred in state.isr:
        return led_by(state, preferred, state.isr, controller_epoch)
    return None


def elect_for_shutdown(
    state: PartitionState, online: Set[int], controller_epoch: int, *, shutting_down: Set[int]
) -> PartitionState | None:
    """Elect an in-sync replica that is not shutting down; None if there is none.

    `online` includes the brokers that are shutting down. They leave the ISR.
    """
    for replica in state.replicas:
        if replica in online and replica in state.isr and replica not in shutting_down:
            isr = [member for member in state.isr if member not in shutting_down]
            return led_by(state, replica, isr, controller_epoch)
    return None


def without_replica(state: PartitionState, broker_id: int, controller_epoch: int) -> PartitionState:
    """The state after an in-sync replica went offline.

    The last in-sync replica stays in the ISR: only it has all committed records.
    """
    leader = NO_LEADER if state.leader == broker_id else state.leader
    isr = state.isr if len(state.isr) == 1 else [member for member in state.isr if member != broker_id]
    return led_by(state, leader, isr, controller_epoch)


def led_by(state: PartitionState, leader: int, isr: list[int], controller_epoch: int) -> PartitionState:
    """The state with another leader and ISR in the next leader epoch."""
    return replace(
        state,
        leader=leader,
        leader_epoch=state.leader_epoch + 1,
        isr=isr,
        controller_epoch=controller_epoch,
    )


def target_replicas(state: PartitionState) -> list[int]:
    """The replicas after the running reassignment; without one all replicas."""
    return [replica for replica in state.replicas if replica not in state.removing]
