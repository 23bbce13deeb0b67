"""ControllerBrokerRequestBatch: the requests to brokers that follow from one event.

    batch.new_batch()
    batch.add_leader_and_isr(...), batch.add_update_metadata(...), batch.add_stop_replica(...)
    await batch.send_requests()

Each broker gets at most one request of a kind, in the order LeaderAndIsr, UpdateMetadata, StopReplica.
Brokers without a channel get nothing. The given listener gets the answers as events.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from tidelog.cluster.metadata_update import FULL_UPDATE, PARTIAL_UPDATE
from tidelog.controller.channel_manager import ControllerChannelManager, Outcome
from tidelog.controller.context import ControllerContext
from tidelog.controller.metadata_request import broker_states, topic_states
from tidelog.controller.state_change_log import StateChangeLog
from tidelog.errors import KafkaError
from tidelog.metadata.state import PartitionState
from tidelog.partitions import TopicPartition
from tidelog.protocol.messages.leader_and_isr import LeaderAndIsrRequest, LeaderAndIsrResponse
from tidelog.protocol.messages.stop_replica import StopReplicaRequest, StopReplicaResponse
from tidelog.protocol.messages.update_metadata import UpdateMetadataRequest, UpdateMetadataResponse
from tidelog.protocol.wire import ZERO_UUID
from tidelog.slices import in_slices

# Kafka's brokers do not negotiate versions with each other. These are the versions of Kafka 3.4 and later.
LEADER_AND_ISR_VERSION: Final = 7
UPDATE_METADATA_VERSION: Final = 8
STOP_REPLICA_VERSION: Final = 4

EPOCH_DURING_DELETE: Final = -2
"""The leader epoch in StopReplica for a topic that is deleted: it overrides every epoch."""

NO_EPOCH: Final = -1

_LeaderAndIsrPartition = LeaderAndIsrRequest.LeaderAndIsrPartitionState
_StopReplicaPartition = StopReplicaRequest.StopReplicaPartitionState


@dataclass(slots=True)
class LeaderAndIsrResponseReceived:
    """`error_code` is the error of the whole request, or the error that ended it without an answer.

    `broker_epoch` is the epoch in the request.
    """

    broker_id: int
    broker_epoch: int
    error_code: int
    partition_errors: dict[TopicPartition, int] = field(default_factory=dict)


@dataclass(slots=True)
class UpdateMetadataResponseReceived:
    broker_id: int
    error_code: int


@dataclass(slots=True)
class TopicDeletionStopReplicaResponseReceived:
    """The outcome of StopReplica with deletions of replicas, for topics that are being deleted.

    If `error_code` is not 0, all deletions failed. `broker_epoch` is the epoch in the request.
    """

    broker_id: int
    broker_epoch: int
    error_code: int
    partition_errors: dict[TopicPartition, int]


ResponseEvent: TypeAlias = (
    LeaderAndIsrResponseReceived | UpdateMetadataResponseReceived | TopicDeletionStopReplicaResponseReceived
)
ResponseListener: TypeAlias = Callable[[ResponseEvent], None]


class BatchNotEmpty(Exception):
    """A batch was begun before the requests of the last batch were sent, which may lose changes."""


class ControllerBrokerRequestBatch:
    """Collects the requests of one event. After an error in the event, `clear` drops the unsent requests."""

    def __init__(
        self,
        controller_id: int,
        context: ControllerContext,
        channels: ControllerChannelManager,
        log: StateChangeLog,
        on_response: ResponseListener,
        *,
        inter_broker_listener: str,
    ) -> None:
        """`inter_broker_listener` is the listener of the leaders' addresses in LeaderAndIsr."""
        self._controller_id = controller_id
        self._context = context
        self._channels = channels
        self._log = log
        self._on_response = on_response
        self._inter_broker_listener = inter_broker_listener
        self.metadata_updates = 0
        """How many batches had an UpdateMetadata."""
        self._leader_and_isr: dict[int, dict[TopicPartition, _LeaderAndIsrPartition]] = {}
        self._stop_replica: dict[int, dict[TopicPartition, _StopReplicaPartition]] = {}
        self._metadata_brokers: dict[int, None] = {}
        self._metadata_partitions: dict[TopicPartition, None] = {}

    def new_batch(self) -> None:
        """Begin the batch of an event. Raises BatchNotEmpty if the last one was not sent."""
        if self._leader_and_isr:
            raise BatchNotEmpty(f"LeaderAndIsr requests to brokers {[*self._leader_and_isr]} may be lost")
        if self._stop_replica:
            raise BatchNotEmpty(f"StopReplica requests to brokers {[*self._stop_replica]} may be lost")
        if self._metadata_brokers:
            raise BatchNotEmpty(f"UpdateMetadata requests to brokers {[*self._metadata_brokers]} may be lost")

    def clear(self) -> None:
        self._leader_and_isr.clear()
        self._stop_replica.clear()
        self._metadata_brokers.clear()
        self._metadata_partitions.clear()

    # --- collecting

    def add_leader_and_isr(
        self, broker_ids: Iterable[int], partition: TopicPartition, state: PartitionState, *, is_new: bool
    ) -> None:
        """Add LeaderAndIsr with a partition for these brokers, and UpdateMetadata with it for all live
        brokers.
        """
        made = _leader_and_isr_partition(partition, state, is_new)
        for broker_id in broker_ids:
            if broker_id < 0:
                continue
            partitions = self._leader_and_isr.setdefault(broker_id, {})
            before = partitions.get(partition)
            if before is not None and before.is_new and not is_new:
                partitions[partition] = _leader_and_isr_partition(partition, state, True)
            else:
                partitions[partition] = made
        self.add_update_metadata(self._context.live_or_shutting_down_brokers, (partition,))

    def add_update_metadata(
        self, broker_ids: Iterable[int], partitions: Iterable[TopicPartition] = ()
    ) -> None:
        """Add UpdateMetadata for these brokers, with the states of partitions when the batch is sent."""
        for broker_id in broker_ids:
            if broker_id >= 0:
                self._metadata_brokers[broker_id] = None
        for partition in partitions:
            self._metadata_partitions[partition] = None

    def add_stop_replica(self, broker_ids: Iterable[int], partition: TopicPartition, *, delete: bool) -> None:
        """Add StopReplica with a partition for these brokers; `delete` also deletes the logs."""
        context = self._context
        if context.is_topic_queued_for_deletion(partition.topic):
            leader_epoch = EPOCH_DURING_DELETE
        else:
            state = context.leadership(partition)
            leader_epoch = NO_EPOCH if state is None else state.leader_epoch
        for broker_id in broker_ids:
            if broker_id < 0:
                continue
            partitions = self._stop_replica.setdefault(broker_id, {})
            before = partitions.get(partition)
            partitions[partition] = _StopReplicaPartition(
                partition_index=partition.partition,
                leader_epoch=leader_epoch,
                delete_partition=delete or (before is not None and before.delete_partition),
            )

    # --- sending

    async def send_requests(self, *, full_metadata: bool = False) -> None:
        """Queue the requests of the batch at the brokers' channels, and empty the batch.

        `full_metadata` says that the batch has all partitions of the cluster.
        """
        await self._send_leader_and_isr()
        await self._send_update_metadata(is_full=full_metadata)
        await self._send_stop_replica()

    async def _send_leader_and_isr(self) -> None:
        for broker_id, partitions in list(self._leader_and_isr.items()):
            if broker_id in self._context.live_or_shutting_down_brokers:
                await self._send_leader_and_isr_to(broker_id, partitions)
            del self._leader_and_isr[broker_id]

    async def _send_leader_and_isr_to(
        self, broker_id: int, partitions: Mapping[TopicPartition, _LeaderAndIsrPartition]
    ) -> None:
        leaders = {state.leader for state in partitions.values()}
        request = LeaderAndIsrRequest(
            controller_id=self._controller_id,
            controller_epoch=self._context.epoch,
            broker_epoch=self._context.broker_epoch(broker_id),
            topic_states=await self._leader_and_isr_topics(partitions),
            live_leaders=self._live_leaders(leaders),
        )
        leading = sum(state.leader == broker_id for state in partitions.values())
        self._log.info(
            "sending LeaderAndIsr to broker %d: it leads %d partitions and follows %d",
            broker_id,
            leading,
            len(partitions) - leading,
        )
        if self._log.is_debug_enabled:
            for partition, state in partitions.items():
                self._log.debug("sending LeaderAndIsr to broker %d: %s: %s", broker_id, partition, state)
        self._channels.send(
            broker_id,
            request,
            LeaderAndIsrResponse,
            LEADER_AND_ISR_VERSION,
            lambda outcome: self._leader_and_isr_answered(broker_id, request.broker_epoch, outcome),
        )

    async def _leader_and_isr_topics(
        self, partitions: Mapping[TopicPartition, _LeaderAndIsrPartition]
    ) -> list[LeaderAndIsrRequest.LeaderAndIsrTopicState]:
        topics: dict[str, LeaderAndIsrRequest.LeaderAndIsrTopicState] = {}
        ids = self._context.topic_ids
        async for some in in_slices(list(partitions.items())):
            for (name, _), state in some:
                topic = topics.get(name)
                if topic is None:
                    topic = topics[name] = LeaderAndIsrRequest.LeaderAndIsrTopicState(
                        topic_name=name, topic_id=ids.get(name, ZERO_UUID)
                    )
                topic.partition_states.append(state)
        return list(topics.values())

    def _live_leaders(self, leaders: Collection[int]) -> list[LeaderAndIsrRequest.LeaderAndIsrLiveLeader]:
        live: list[LeaderAndIsrRequest.LeaderAndIsrLiveLeader] = []
        for broker_id, broker in self._context.live_or_shutting_down_brokers.items():
            endpoint = broker.endpoint(self._inter_broker_listener) if broker_id in leaders else None
            if endpoint is not None:
                live.append(
                    LeaderAndIsrRequest.LeaderAndIsrLiveLeader(
                        broker_id=broker_id, host_name=endpoint.host, port=endpoint.port
                    )
                )
        return live

    async def _send_update_metadata(self, *, is_full: bool) -> None:
        brokers = self._context.live_or_shutting_down_brokers
        targets = [broker_id for broker_id in self._metadata_brokers if broker_id in brokers]
        partitions = list(self._metadata_partitions)
        if targets:
            # All brokers get the same contents: the requests share everything except the broker epoch.
            states = await topic_states(self._context, partitions)
            live = broker_states(brokers.values())
            self.metadata_updates += 1
            self._log.info("sending UpdateMetadata to brokers %s: %d partitions", targets, len(partitions))
        for broker_id in targets:
            request = UpdateMetadataRequest(
                controller_id=self._controller_id,
                controller_epoch=self._context.epoch,
                broker_epoch=self._context.broker_epoch(broker_id),
                type=FULL_UPDATE if is_full else PARTIAL_UPDATE,
                topic_states=states,
                live_brokers=live,
            )
            self._send_metadata_to(broker_id, request)
        self._metadata_brokers.clear()
        self._metadata_partitions.clear()

    def _send_metadata_to(self, broker_id: int, request: UpdateMetadataRequest) -> None:
        self._channels.send(
            broker_id,
            request,
            UpdateMetadataResponse,
            UPDATE_METADATA_VERSION,
            lambda outcome: self._on_response(
                UpdateMetadataResponseReceived(broker_id, _error_code(outcome))
            ),
        )

    async def _send_stop_replica(self) -> None:
        for broker_id, partitions in list(self._stop_replica.items()):
            if broker_id in self._context.live_or_shutting_down_brokers:
                await self._send_stop_replica_to(broker_id, partitions)
            del self._stop_replica[broker_id]

    async def _send_stop_replica_to(
        self, broker_id: int, partitions: dict[TopicPartition, _StopReplicaPartition]
    ) -> None:
        topics: dict[str, StopReplicaRequest.StopReplicaTopicState] = {}
        async for some in in_slices(list(partitions.items())):
            for (name, _), state in some:
                topic = topics.get(name)
                if topic is None:
                    topic = topics[name] = StopReplicaRequest.StopReplicaTopicState(topic_name=name)
                topic.partition_states.append(state)
        request = StopReplicaRequest(
            controller_id=self._controller_id,
            controller_epoch=self._context.epoch,
            broker_epoch=self._context.broker_epoch(broker_id),
            topic_states=list(topics.values()),
        )
        deleted = {partition: None for partition, state in partitions.items() if state.delete_partition}
        self._log.info(
            "sending StopReplica to broker %d: %d partitions, of which it deletes %d",
            broker_id,
            len(partitions),
            len(deleted),
        )
        if self._log.is_debug_enabled:
            for partition, state in partitions.items():
                self._log.debug("sending StopReplica to broker %d: %s: %s", broker_id, partition, state)
        self._channels.send(
            broker_id,
            request,
            StopReplicaResponse,
            STOP_REPLICA_VERSION,
            lambda outcome: self._stop_replica_answered(broker_id, request.broker_epoch, deleted, outcome),
        )

    # --- answers

    def _leader_and_isr_answered(self, broker_id: int, broker_epoch: int, outcome: Outcome) -> None:
        errors: dict[TopicPartition, int] = {}
        if isinstance(outcome, LeaderAndIsrResponse):
            for topic in outcome.topics:
                name = self._context.topic_names.get(topic.topic_id)
                if name is not None:  # deleted since
                    for item in topic.partition_errors:
                        errors[TopicPartition(name, item.partition_index)] = item.error_code
        self._on_response(LeaderAndIsrResponseReceived(broker_id, broker_epoch, _error_code(outcome), errors))

    def _stop_replica_answered(
        self,
        broker_id: int,
        broker_epoch: int,
        deleted: Mapping[TopicPartition, None],
        outcome: Outcome,
    ) -> None:
        """Report the deletions of topics as an event, and note the deletions of replicas that reassignments
        removed.

        A replica that only stopped changes nothing at the controller.
        """
        answered: Mapping[TopicPartition, int]
        if isinstance(outcome, StopReplicaResponse):
            answered = {
                TopicPartition(item.topic_name, item.partition_index): item.error_code
                for item in outcome.partition_errors
            }
        else:
            answered = {}
        error_code = _error_code(outcome)
        context = self._context
        removed = context.removed_replicas.get(broker_id, {})
        for partition in [] if error_code else [p for p in removed if answered.get(p) == 0 and p in deleted]:
            del removed[partition]
        errors = {
            partition: error_code or answered[partition]
            for partition in deleted
            if partition.topic in context.topics_with_deletion_started
            and (error_code or partition in answered)
        }
        if errors:
            self._on_response(
                TopicDeletionStopReplicaResponseReceived(broker_id, broker_epoch, error_code, errors)
            )


def _leader_and_isr_partition(
    partition: TopicPartition, state: PartitionState, is_new: bool
) -> _LeaderAndIsrPartition:
    return _LeaderAndIsrPartition(
        partition_index=partition.partition,
        controller_epoch=state.controller_epoch,
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        isr=state.isr,
        partition_epoch=state.partition_epoch,
        replicas=state.replicas,
        adding_replicas=state.adding,
        removing_replicas=state.removing,
        is_new=is_new,
        leader_recovery_state=state.leader_recovery_state,
    )


def _error_code(outcome: Outcome) -> int:
    if isinstance(outcome, KafkaError):
        return outcome.code
    code: int = getattr(outcome, "error_code", 0)
    return code
