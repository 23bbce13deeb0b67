"""IsrManager: lets followers of this broker's partitions join the ISR, and takes out followers that lag.

A follower joins when it has reached the high watermark and the first offset of the leader's epoch. A member
leaves when it has not been caught up for replica.lag.time.max.ms; the check runs every half of this time. A
change takes effect when the controller has accepted it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Protocol

from tidelog.clock import TimerHandle
from tidelog.cluster.alter_partition_manager import AlteredPartition, IsrChange
from tidelog.cluster.followers import NO_BROKER_EPOCH, PendingIsr, Replica
from tidelog.cluster.partition import Partition
from tidelog.cluster.replica_manager import ReplicaManager
from tidelog.errors import ErrorCode, error_name
from tidelog.metrics.registry import Meter, Registry

log = logging.getLogger("tidelog.cluster")

PARTITIONS_PER_TURN: Final = 200
"""The check of many partitions lets other work run in between."""

REFUSED: Final = frozenset((ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INELIGIBLE_REPLICA))
"""The change was not made, and may be asked for again later."""

OUTDATED: Final = frozenset(
    (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NEW_LEADER_ELECTED,
    )
)
"""The controller has a newer state of the partition. No other change until a LeaderAndIsr brings it."""


class AlterPartitions(Protocol):
    """The part of AlterPartitionManager that is used here."""

    def submit(self, change: IsrChange) -> None: ...


class IsrMeters:
    def __init__(self, registry: Registry) -> None:
        def meter(name: str) -> Meter:
            return registry.meter("kafka.server", "ReplicaManager", name)

        self.expands = meter("IsrExpandsPerSec")
        self.shrinks = meter("IsrShrinksPerSec")
        self.failed_updates = meter("FailedIsrUpdatesPerSec")


class IsrManager:
    def __init__(
        self,
        replicas: ReplicaManager,
        alter_partitions: AlterPartitions,
        meters: IsrMeters,
        own_broker_epoch: Callable[[], int],
    ) -> None:
        self._replicas = replicas
        self._alter_partitions = alter_partitions
        self._meters = meters
        self._own_broker_epoch = own_broker_epoch
        self._scheduler = replicas.scheduler
        self._rules = replicas.isr_rules
        self._timer: TimerHandle | None = None
        self._is_closed = False

    def start(self) -> None:
        self._check_later()

    def close(self) -> None:
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()

    # -- expand

    def maybe_expand(self, partition: Partition, replica: Replica) -> None:
        """Ask the controller to add a follower to the ISR, if the follower's last fetch shows that it caught
        up.
        """
        followers, leader_log = partition.followers, partition.log
        if (
            self._is_closed
            or followers.pending is not None
            or replica.broker_id in followers.isr
            or leader_log is None
            or replica.log_end_offset < leader_log.high_watermark
            or replica.log_end_offset < partition.leader_epoch_start_offset
            or not self._rules.is_alive(replica.broker_id)
        ):
            return
        log.info(
            "broker %d has caught up with %s at offset %d: asking for it to join the in-sync replicas %s",
            replica.broker_id,
            partition.name,
            replica.log_end_offset,
            followers.isr,
        )
        self._ask(partition, [*followers.isr, replica.broker_id], is_expansion=True)

    # -- shrink

    def _check_later(self) -> None:
        self._timer = self._scheduler.schedule(self._rules.max_lag_seconds / 2, self._check)

    def _check(self) -> None:
        self._check_some(list(self._replicas.partitions()))

    def _check_some(self, partitions: list[Partition]) -> None:
        """Check some partitions, from the end of the list, and the rest in a later turn of the loop."""
        if self._is_closed:
            return
        for _ in range(min(PARTITIONS_PER_TURN, len(partitions))):
            partition = partitions.pop()
            try:
                self.maybe_shrink(partition)
            except Exception:
                log.exception("the in-sync replicas of %s could not be checked", partition.name)
        if partitions:
            self._timer = self._scheduler.schedule(0.0, lambda: self._check_some(partitions))
        else:
            self._check_later()

    def maybe_shrink(self, partition: Partition) -> None:
        """Ask the controller to remove the followers that lag from the ISR."""
        followers, leader_log = partition.followers, partition.log
        if (
            not followers.replicas
            or followers.pending is not None
            or not partition.is_leader
            or partition.offline
            or leader_log is None
        ):
            return
        now = self._rules.clock.monotonic()
        end = leader_log.log_end_offset
        lagging = followers.out_of_sync(end, now, self._rules.max_lag_seconds)
        if not lagging:
            return
        ends = ", ".join(f"{broker}: {followers.replicas[broker].log_end_offset}" for broker in lagging)
        log.info(
            "the log of %s ends at %d, followers lag with logs that end at (%s): "
            "asking for them to leave the in-sync replicas %s",
            partition.name,
            end,
            ends,
            followers.isr,
        )
        isr = [broker for broker in followers.isr if broker not in lagging]
        self._ask(partition, isr, is_expansion=False)

    # -- live brokers

    def brokers_changed(self) -> None:
        """Advance high watermarks: a broker that has gone may have been about to join an ISR, which held them
        back.
        """
        self._advance_some(
            [
                partition
                for partition in self._replicas.partitions()
                if partition.is_leader and len(partition.followers.isr) < len(partition.replicas)
            ]
        )

    def _advance_some(self, partitions: list[Partition]) -> None:
        for _ in range(min(PARTITIONS_PER_TURN, len(partitions))):
            partition = partitions.pop()
            if partition.is_leader and partition.log is not None and not partition.offline:
                partition.advance_high_watermark()
        if partitions and not self._is_closed:
            self._scheduler.schedule(0.0, lambda: self._advance_some(partitions))

    # -- asking the controller

    def _ask(self, partition: Partition, isr: list[int], *, is_expansion: bool) -> None:
        pending = PendingIsr(isr, is_expansion, partition.leader_epoch, partition.partition_epoch)
        partition.followers.ask_for(pending)
        self._submit(partition, pending)

    def _submit(self, partition: Partition, pending: PendingIsr) -> None:
        self._alter_partitions.submit(
            IsrChange(
                (partition.topic, partition.index),
                partition.topic_id,
                pending.leader_epoch,
                pending.partition_epoch,
                [(broker, self._broker_epoch(partition, broker)) for broker in pending.isr],
                lambda state, code: self._answered(partition, pending, state, code),
            )
        )

    def _broker_epoch(self, partition: Partition, broker_id: int) -> int:
        """The broker epoch of a member. With it, the controller refuses a follower that restarted since."""
        if broker_id == partition.broker_id:
            return self._own_broker_epoch()
        replica = partition.followers.replicas.get(broker_id)
        return NO_BROKER_EPOCH if replica is None else replica.broker_epoch

    def _answered(
        self, partition: Partition, pending: PendingIsr, state: AlteredPartition | None, code: int
    ) -> None:
        if partition.followers.pending is not pending:
            log.debug("%s has a newer state than an answer of the controller", partition.name)
        elif state is not None:
            self._committed(partition, pending, state)
        else:
            self._failed(partition, pending, code)

    def _failed(self, partition: Partition, pending: PendingIsr, code: int) -> None:
        self._meters.failed_updates.count += 1
        reason = error_name(code)
        if code in REFUSED:
            log.info("the in-sync replicas of %s stay %s: %s", partition.name, partition.isr, reason)
            partition.followers.give_up()
            self._replicas.isr_changed(partition)
        elif code in OUTDATED:
            log.info("%s: the controller has a newer state (%s)", partition.name, reason)
        else:
            log.warning("the in-sync replicas of %s are asked for again: %s", partition.name, reason)
            self._submit(partition, pending)

    def _committed(self, partition: Partition, pending: PendingIsr, state: AlteredPartition) -> None:
        if (
            state.leader_epoch != partition.leader_epoch
            or state.leader != partition.broker_id
            or state.partition_epoch < partition.partition_epoch
        ):
            log.info("%s: an answer of the controller with an older state is ignored", partition.name)
            return
        partition.followers.commit_isr(state.isr)
        partition.partition_epoch = state.partition_epoch
        meter = self._meters.expands if pending.is_expansion else self._meters.shrinks
        meter.count += 1
        log.info(
            "the in-sync replicas of %s are %s, partition epoch %d",
            partition.name,
            state.isr,
            state.partition_epoch,
        )
        self._replicas.isr_changed(partition)
