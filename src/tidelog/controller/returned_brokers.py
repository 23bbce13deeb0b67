"""Removes brokers from ISRs if they restarted while there was no controller.

Such a broker may have lost unflushed records. Normally the controller sees it leave, and removes it from the
ISR. If the broker was the controller itself, or there was no controller, the next controller finds it
registered again, and in ISRs that were written before. Kafka lets such a broker lead with the rest of its
log.
"""

from __future__ import annotations

import logging

from tidelog.controller import election
from tidelog.controller.term import ControllerTerm
from tidelog.metadata.state import PartitionState
from tidelog.partitions import TopicPartition

_log = logging.getLogger("tidelog.controller")


async def remove_returned_brokers(term: ControllerTerm) -> None:
    """Remove brokers from the ISRs that are older than their registration.

    An ISR keeps such brokers if it has no other live member. So the ISRs stay unchanged after a restart of
    the whole cluster.
    """
    context = term.context
    wanted: dict[TopicPartition, PartitionState] = {}
    for partition in context.partitions_with_leadership():
        changed = _without_returned(term, context.partitions[partition])
        if changed is not None:
            wanted[partition] = changed
    if not wanted:
        return
    outcome = await term.store.update_partition_states(wanted)
    for partition, state in outcome.updated.items():
        context.put_partition(partition, state)
        _log.info("%s: the leader is %d, in-sync replicas %s", partition, state.leader, state.isr)
    for partition, error in outcome.failed.items():
        _log.error("returned brokers stay in the ISR of %s: %s", partition, error)


def _without_returned(term: ControllerTerm, state: PartitionState) -> PartitionState | None:
    epochs = {member: term.context.broker_epoch(member) for member in state.isr}
    stayed = [member for member, epoch in epochs.items() if -1 < epoch < state.written_at]
    returned = [member for member, epoch in epochs.items() if epoch > state.written_at]
    leaders = [replica for replica in state.replicas if replica in stayed]
    if not returned or not leaders:
        return None
    leader = state.leader if state.leader not in returned else leaders[0]
    isr = [member for member in state.isr if member not in returned]
    return election.led_by(state, leader, isr, term.context.epoch)
