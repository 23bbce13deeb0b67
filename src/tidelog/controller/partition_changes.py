"""PartitionChanges: in-sync replicas that leaders change, by AlterPartition or in the tree."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from tidelog.controller.election import RECOVERED
from tidelog.controller.event_manager import ControllerState
from tidelog.controller.term import ControllerTerm
from tidelog.controller.watches import ChangeWatch
from tidelog.errors import ErrorCode, StaleBrokerEpoch
from tidelog.metadata.state import PartitionState
from tidelog.metadata.tree import WatchEvent
from tidelog.partitions import TopicPartition
from tidelog.protocol.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse

TOPIC_IDS_SINCE_VERSION = 2
"""The version of AlterPartition from which on topics have ids instead of names."""

EPOCHS_SINCE_VERSION = 3
"""The version of AlterPartition from which on the new ISR has the epochs of its brokers."""

_log = logging.getLogger("tidelog.controller")


@dataclass(slots=True)
class _Change:
    """A partition in an AlterPartition request: its answer, and the state to write."""

    answer: AlterPartitionResponse.PartitionData
    partition: TopicPartition
    state: PartitionState


class PartitionChanges:
    def __init__(
        self, term: ControllerTerm, on_isr_change: Callable[[Iterable[TopicPartition]], None]
    ) -> None:
        """`on_isr_change` is called with partitions whose ISR a leader has changed."""
        self._term = term
        self._on_isr_change = on_isr_change
        self._context = term.context
        self._isr_changes = ChangeWatch(self._isr_changed)

    def close(self) -> None:
        self._isr_changes.close()

    def _isr_changed(self, _event: WatchEvent) -> None:
        self._term.put(ControllerState.ISR_CHANGE, "IsrChangeNotification", self.isr_change_notification)

    # --- the beginning of the term

    async def load(self) -> None:
        """Set the watch on notifications, and delete those before the states of partitions were read."""
        changes = await self._term.cluster.read_isr_changes(self._isr_changes.set())
        await self._term.store.delete_nodes(changes.paths)

    # --- notifications in the tree

    async def isr_change_notification(self) -> None:
        """Handle changes of the ISR that leaders wrote to the tree, like brokers before AlterPartition."""
        changes = await self._term.cluster.read_isr_changes(self._isr_changes.set())
        try:
            known = [partition for partition in changes.subjects if partition in self._context.partitions]
            await self._read_again(known)
        finally:
            await self._term.store.delete_nodes(changes.paths)

    async def _read_again(self, partitions: Sequence[TopicPartition]) -> None:
        """Read states that others have written into the context, and send them to the brokers."""
        found = await self._term.store.read_partition_states(
            {partition: self._context.partitions[partition] for partition in partitions}
        )
        for partition, state in found.items():
            self._context.put_partition(partition, state)
        if found:
            await self._term.send_update_metadata(partitions=found)
            self._on_isr_change(found)

    # --- AlterPartition

    async def alter_partition(self, request: AlterPartitionRequest, version: int) -> AlterPartitionResponse:
        """Write the ISR that a leader asks for, tell the brokers, and answer each partition.

        Raises StaleBrokerEpoch if the leader registered anew since.
        """
        epoch = self._context.broker_epoch(request.broker_id)
        if epoch != request.broker_epoch:
            raise StaleBrokerEpoch(
                f"The epoch of broker {request.broker_id} is {epoch}, not {request.broker_epoch}."
            )
        changes: list[_Change] = []
        response = AlterPartitionResponse()
        for topic in request.topics:
            name: str | None = topic.topic_name
            if version >= TOPIC_IDS_SINCE_VERSION:
                name = self._context.topic_names.get(topic.topic_id)
            answers = [self._check(name, change, request, version, changes) for change in topic.partitions]
            response.topics.append(
                AlterPartitionResponse.TopicData(
                    topic_name=topic.topic_name, topic_id=topic.topic_id, partitions=answers
                )
            )
        await self._write(changes)
        return response

    def _check(
        self,
        name: str | None,
        change: AlterPartitionRequest.PartitionData,
        request: AlterPartitionRequest,
        version: int,
        changes: list[_Change],
    ) -> AlterPartitionResponse.PartitionData:
        """Check a change; returns its answer, and adds an acceptable change to `changes`.

        The answer has an error, or the present state if the change was made already. `name` is None if no
        topic has the id of the request.
        """
        answer = AlterPartitionResponse.PartitionData(partition_index=change.partition_index)
        if name is None:
            answer.error_code = ErrorCode.UNKNOWN_TOPIC_ID
            return answer
        partition = TopicPartition(name, change.partition_index)
        state = self._context.leadership(partition)
        if state is None:
            answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return answer
        isr = [member.broker_id for member in change.new_isr_with_epochs]
        if version < EPOCHS_SINCE_VERSION:
            isr = change.new_isr
        if (
            change.leader_epoch == state.leader_epoch
            and change.partition_epoch <= state.partition_epoch
            and set(isr) == set(state.isr)
            and change.leader_recovery_state == state.leader_recovery_state
        ):
            _fill(answer, state)  # the change was made already, and its answer was lost
            return answer
        answer.error_code = self._refusal(change, request, state, isr)
        if answer.error_code == ErrorCode.INELIGIBLE_REPLICA and version < TOPIC_IDS_SINCE_VERSION:
            answer.error_code = ErrorCode.OPERATION_NOT_ATTEMPTED
        if not answer.error_code:
            new_state = replace(
                state,
                isr=isr,
                controller_epoch=self._context.epoch,
                leader_recovery_state=change.leader_recovery_state,
            )
            changes.append(_Change(answer, partition, new_state))
        return answer

    def _refusal(
        self,
        change: AlterPartitionRequest.PartitionData,
        request: AlterPartitionRequest,
        state: PartitionState,
        isr: Sequence[int],
    ) -> int:
        if change.partition_epoch > state.partition_epoch or change.leader_epoch > state.leader_epoch:
            return ErrorCode.NOT_CONTROLLER  # the leader knows a newer controller than this one
        if change.leader_epoch < state.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if request.broker_id != state.leader or request.broker_id not in isr:
            return ErrorCode.INVALID_REQUEST
        if change.partition_epoch < state.partition_epoch:
            return ErrorCode.INVALID_UPDATE_VERSION
        if change.leader_recovery_state != RECOVERED and (
            len(isr) > 1 or state.leader_recovery_state == RECOVERED
        ):
            return ErrorCode.INVALID_REQUEST
        epochs = {member.broker_id: member.broker_epoch for member in change.new_isr_with_epochs}
        if any(not self._is_eligible(member, epochs.get(member, -1)) for member in isr):
            return ErrorCode.INELIGIBLE_REPLICA
        if any(member not in state.replicas for member in isr):
            return ErrorCode.INVALID_REQUEST
        return ErrorCode.NONE

    def _is_eligible(self, broker_id: int, broker_epoch: int) -> bool:
        """Whether a member of the ISR is live and has not restarted since the leader saw its broker epoch."""
        if broker_id not in self._context.live_broker_ids:
            return False
        return broker_epoch in (-1, self._context.broker_epoch(broker_id))

    async def _write(self, changes: Sequence[_Change]) -> None:
        if not changes:
            return
        outcome = await self._term.store.update_partition_states(
            {change.partition: change.state for change in changes}
        )
        for change in changes:
            new_state = outcome.updated.get(change.partition)
            if new_state is not None:
                self._context.put_partition(change.partition, new_state)
                _fill(change.answer, new_state)
            elif change.partition in outcome.failed:
                _log.error(
                    "the ISR of %s is not written: %s", change.partition, outcome.failed[change.partition]
                )
                change.answer.error_code = ErrorCode.UNKNOWN_SERVER_ERROR
            else:
                change.answer.error_code = ErrorCode.INVALID_UPDATE_VERSION
        if outcome.updated:
            await self._term.send_update_metadata(partitions=outcome.updated)
            self._on_isr_change(outcome.updated)
        if outcome.retriable:
            await self._read_again(outcome.retriable)


def _fill(answer: AlterPartitionResponse.PartitionData, state: PartitionState) -> None:
    answer.leader_id = state.leader
    answer.leader_epoch = state.leader_epoch
    answer.isr = list(state.isr)
    answer.leader_recovery_state = state.leader_recovery_state
    answer.partition_epoch = state.partition_epoch
