"""StateChangeLog: the log of every change of partitions, replicas and brokers' requests.

Lines go to the logger `tidelog.state.change` with the controller's id and epoch, and with the correlation id
of the request if there is one. Partitions' changes are at the level INFO, replicas' changes and the
partitions inside requests at DEBUG, which costs nothing while it is off.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from tidelog.controller.context import ControllerContext
from tidelog.controller.states import PartitionAndReplica, PartitionStatus, ReplicaStatus
from tidelog.metadata.state import PartitionState
from tidelog.partitions import TopicPartition

MAX_NAMES: Final = 20
"""How many partitions a line names."""

_log = logging.getLogger("tidelog.state.change")


class StateChangeLog:
    def __init__(self, controller_id: int, context: ControllerContext) -> None:
        self._controller_id = controller_id
        self._context = context

    @property
    def is_debug_enabled(self) -> bool:
        return _log.isEnabledFor(logging.DEBUG)

    def _fields(self, correlation_id: int | None = None) -> dict[str, dict[str, object]]:
        fields: dict[str, object] = {"controller": self._controller_id, "epoch": self._context.epoch}
        if correlation_id is not None:
            fields["correlation_id"] = correlation_id
        return {"fields": fields}

    def info(self, message: str, *values: object, correlation_id: int | None = None) -> None:
        if _log.isEnabledFor(logging.INFO):
            _log.info(message, *values, extra=self._fields(correlation_id))

    def debug(self, message: str, *values: object, correlation_id: int | None = None) -> None:
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug(message, *values, extra=self._fields(correlation_id))

    def error(self, message: str, *values: object, correlation_id: int | None = None) -> None:
        _log.error(message, *values, extra=self._fields(correlation_id))

    # --- partitions

    def partition_changed(
        self,
        partition: TopicPartition,
        before: PartitionStatus,
        after: PartitionStatus,
        state: PartitionState | None = None,
    ) -> None:
        if not _log.isEnabledFor(logging.INFO):
            return
        if state is None:
            self.info("partition %s: %s to %s", partition, before.value, after.value)
        else:
            self.info(
                "partition %s: %s to %s with %s", partition, before.value, after.value, leadership_text(state)
            )

    def partition_refused(
        self, partition: TopicPartition, before: PartitionStatus, after: PartitionStatus
    ) -> None:
        """Log a change that the present status of the partition does not allow."""
        self.error("partition %s cannot move from %s to %s", partition, before.value, after.value)

    def partitions_failed(self, errors: Mapping[TopicPartition, Exception], target: PartitionStatus) -> None:
        """Log partitions that could not be moved, with one line for each reason, because there may be
        thousands.
        """
        by_reason: dict[str, list[str]] = {}
        for partition, error in errors.items():
            by_reason.setdefault(str(error), []).append(str(partition))
        for reason, names in by_reason.items():
            more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
            self.error(
                "partitions cannot move to %s: %s: %s%s",
                target.value,
                reason,
                ", ".join(names[:MAX_NAMES]),
                more,
            )

    # --- replicas

    def replica_changed(
        self, replica: PartitionAndReplica, before: ReplicaStatus, after: ReplicaStatus
    ) -> None:
        self.debug("replica %s: %s to %s", replica, before.value, after.value)

    def replica_refused(
        self, replica: PartitionAndReplica, before: ReplicaStatus, after: ReplicaStatus
    ) -> None:
        self.error("replica %s cannot move from %s to %s", replica, before.value, after.value)

    def replica_failed(
        self, replica: PartitionAndReplica, before: ReplicaStatus, after: ReplicaStatus, error: Exception
    ) -> None:
        self.error("replica %s failed to move from %s to %s: %s", replica, before.value, after.value, error)


def leadership_text(state: PartitionState) -> str:
    text = f"leader {state.leader} epoch {state.leader_epoch} isr {state.isr} version {state.partition_epoch}"
    return f"{text} recovering" if state.leader_recovery_state else text
