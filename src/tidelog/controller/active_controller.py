"""ActiveController: the events of an elected controller, from its election to its resignation."""

from __future__ import annotations

import logging

from tidelog.controller.broker_changes import BrokerChanges
from tidelog.controller.event_manager import ControllerState
from tidelog.controller.leader_elections import LeaderElections
from tidelog.controller.partition_changes import PartitionChanges
from tidelog.controller.partition_reassignments import PartitionReassignments
from tidelog.controller.parts import ControllerParts
from tidelog.controller.request_batch import (
    LeaderAndIsrResponseReceived,
    ResponseEvent,
    UpdateMetadataResponseReceived,
)
from tidelog.controller.returned_brokers import remove_returned_brokers
from tidelog.controller.suspected_brokers import SuspectedBrokers
from tidelog.controller.term import ControllerTerm, PutEvent
from tidelog.controller.topic_admin import TopicAdmin
from tidelog.controller.topic_changes import TopicChanges
from tidelog.errors import BrokerIdNotRegistered, ErrorCode, StaleBrokerEpoch
from tidelog.metadata.operations import ControllerEpoch

_log = logging.getLogger("tidelog.controller")


class ActiveController:
    def __init__(self, parts: ControllerParts, epoch: ControllerEpoch, put: PutEvent) -> None:
        self.term = ControllerTerm(parts, epoch, put, self._answered)
        self.reassignments = PartitionReassignments(self.term)
        self.brokers = BrokerChanges(self.term, self.reassignments)
        self.suspected = SuspectedBrokers(self.term, self.brokers)
        self.topics = TopicChanges(self.term)
        self.partitions = PartitionChanges(self.term, self.reassignments.isr_changed)
        self.elections = LeaderElections(self.term)
        self.admin = TopicAdmin(self.term, self.topics)

    async def fail_over(self) -> None:
        """Take over the cluster: read the tree, send metadata to brokers, elect leaders, resume unfinished
        work.
        """
        term = self.term
        await self.brokers.load()
        await self.partitions.load()
        await self.topics.load()
        _log.info(
            "controller %d with epoch %d: brokers %s, %d topics, %d partitions, %d topics to delete",
            term.parts.broker_id,
            term.context.epoch,
            list(term.context.live_or_shutting_down_brokers),
            len(term.context.topics),
            len(term.context.partitions),
            len(term.context.topics_to_be_deleted),
        )
        await remove_returned_brokers(term)
        # Before any LeaderAndIsr, so that brokers know each other's addresses when they become followers. It
        # has all topics, because a broker may have missed deletions while there was no controller.
        await term.send_full_metadata()
        # Partitions without a leader first: their clients wait.
        await term.partitions.startup()
        await term.replicas.startup()
        await self.reassignments.resume()
        await term.deletion.try_deletion()
        await self.elections.preferred_replica_leader_election()
        self.elections.schedule_rebalance()

    def resign(self) -> None:
        """End the term: close its watches, its timer and its channels. The owner drops later events."""
        for part in (
            self.brokers,
            self.suspected,
            self.topics,
            self.partitions,
            self.elections,
            self.reassignments,
        ):
            part.close()
        self.term.channels.close()

    async def allocate_producer_ids(self, broker_id: int, broker_epoch: int) -> range:
        """A block of producer ids. Raises BrokerIdNotRegistered or StaleBrokerEpoch for an unknown broker."""
        registered = self.term.context.broker_epoch(broker_id)
        if registered == -1:
            raise BrokerIdNotRegistered(f"Broker {broker_id} is not registered.")
        if registered != broker_epoch:
            raise StaleBrokerEpoch(f"The epoch of broker {broker_id} is {registered}, not {broker_epoch}.")
        return await self.term.cluster.allocate_producer_ids(broker_id)

    # --- answers of brokers

    def _answered(self, event: ResponseEvent) -> None:
        if isinstance(event, UpdateMetadataResponseReceived):
            _update_metadata_answered(event)
            return

        async def process() -> None:
            # If the broker has left or restarted since, it gets new requests anyway.
            if self.term.context.broker_epoch(event.broker_id) != event.broker_epoch:
                return
            if isinstance(event, LeaderAndIsrResponseReceived):
                await self.brokers.leader_and_isr_response_received(event)
            else:
                await self.term.deletion.handle_stop_replica_response(event)

        if isinstance(event, LeaderAndIsrResponseReceived):
            state = ControllerState.LEADER_AND_ISR_RESPONSE_RECEIVED
            self.term.put(state, "LeaderAndIsrResponseReceived", process)
        else:
            state = ControllerState.TOPIC_DELETION
            self.term.put(state, "TopicDeletionStopReplicaResponseReceived", process)


def _update_metadata_answered(event: UpdateMetadataResponseReceived) -> None:
    if event.error_code != ErrorCode.NONE:
        _log.error("broker %d refused UpdateMetadata with error %d", event.broker_id, event.error_code)
