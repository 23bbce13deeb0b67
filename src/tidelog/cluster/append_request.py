"""AppendRequest: appends the batches of one produce request, and collects the outcome of each partition."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from tidelog.cluster.delayed import DelayedProduce
from tidelog.cluster.leader_append import LeaderAppend
from tidelog.cluster.partition import Partition
from tidelog.cluster.purgatory import OnFailure
from tidelog.errors import KafkaError, KafkaStorageError, UnknownServerError
from tidelog.partitions import PartitionKey
from tidelog.records.check import CheckedBatch
from tidelog.storage.append import AppendOrigin, AppendResult
from tidelog.storage.producer_state_manager import Verification
from tidelog.storage.refused_batches import Sequences

if TYPE_CHECKING:
    from tidelog.cluster.replica_manager import ReplicaManager

log = logging.getLogger("tidelog.cluster")

ACKS_ALL = -1


class AppendOutcome:
    """The result of a produce request for one partition: an AppendResult or an error."""

    __slots__ = ("error", "result")

    def __init__(self, result: AppendResult | None, error: BaseException | None) -> None:
        self.result = result
        self.error = error


class AppendRequest:
    """Collects the outcomes of the partitions of one produce request."""

    __slots__ = (
        "_acks",
        "_done",
        "_manager",
        "_missing",
        "_outcomes",
        "_targets",
        "_timeout_ms",
        "_unhandled",
        "_written",
        "on_failure",
        "release",
    )

    def __init__(
        self,
        manager: ReplicaManager,
        entries: list[tuple[Partition | KafkaError, memoryview]],
        acks: int,
        timeout_ms: int,
        done: Callable[[list[AppendOutcome]], None],
        written: Callable[[AppendResult], None] | None = None,
    ) -> None:
        self._written = written
        self._manager = manager
        # The partitions alone: a request that waits for replicas must not keep its batches in memory.
        self._targets = [target for target, _ in entries]
        self._acks = acks
        self._timeout_ms = timeout_ms
        self._done = done
        self._outcomes: list[AppendOutcome | None] = [None] * len(entries)
        self._missing = self._unhandled = len(entries)
        self.release: Callable[[], None] | None = None
        self.on_failure: OnFailure | None = None

    def start(
        self,
        entries: list[tuple[Partition | KafkaError, memoryview]],
        heavy: bool,
        allow_zstd: bool,
        origin: AppendOrigin,
        guards: Mapping[Partition, Verification] | None = None,
        transaction_version: int = 0,
    ) -> None:
        if not entries:
            self._done([])
            return
        now_ms = self._manager.clock.ms()
        for slot, (partition, data) in enumerate(entries):
            if isinstance(partition, KafkaError):
                self._batch_handled()
                self._completed(slot, None, partition)
                continue
            try:
                partition.leader_log()
                if self._acks == ACKS_ALL:
                    partition.check_in_sync_replicas()
            except KafkaError as error:
                if origin is AppendOrigin.CLIENT:
                    partition.refuse(Sequences.read(data), error)
                self._batch_handled()
                self._completed(slot, None, error)
                continue
            partition.submit(
                LeaderAppend(
                    partition,
                    data,
                    heavy,
                    allow_zstd,
                    origin,
                    now_ms,
                    self._appended(slot, partition),
                    None if guards is None else guards.get(partition),
                    transaction_version,
                    scheduler=self._manager.scheduler,
                )
            )

    def start_checked(self, partition: Partition, batch: CheckedBatch, guard: Verification | None) -> None:
        """Start the append of one small batch of a client. The batch was checked already."""
        manager = self._manager
        append = LeaderAppend(
            partition,
            batch.data,
            False,
            True,
            AppendOrigin.CLIENT,
            manager.clock.ms(),
            self._appended(0, partition),
            guard,
            scheduler=manager.scheduler,
        )
        append.batch = batch
        partition.appends.put(append)

    def _appended(
        self, slot: int, partition: Partition
    ) -> Callable[[AppendResult | None, BaseException | None], None]:
        def appended(result: AppendResult | None, error: BaseException | None) -> None:
            self._batch_handled()
            if result is None:
                self._completed(slot, None, error)
                return
            if self._written is not None:
                self._written(result)
            if result.needs_flush:
                self._manager.flush_then(
                    partition, result.base_offset, lambda failed: flushed(result, failed)
                )
            else:
                partition.advance_high_watermark()
                self._completed(slot, result, None)

        def flushed(result: AppendResult, error: BaseException | None) -> None:
            self._completed(slot, result if error is None else None, error)

        return appended

    def _batch_handled(self) -> None:
        """Count a batch that was written or refused; after the last one, release the request's buffers."""
        self._unhandled -= 1
        if not self._unhandled and self.release is not None:
            self.release()

    def _completed(self, slot: int, result: AppendResult | None, error: BaseException | None) -> None:
        if isinstance(error, OSError):
            error = KafkaStorageError(str(error))
        elif error is not None and not isinstance(error, KafkaError):
            log.error("appending a batch failed unexpectedly", exc_info=error)
            error = UnknownServerError()
        if error is not None:
            # The traceback refers to this request and to the unpacked batch: the error would be part of a
            # cycle, which keeps all of it in memory until the garbage collector runs.
            error.__traceback__ = error.__cause__ = error.__context__ = None
        self._outcomes[slot] = AppendOutcome(result, error)
        self._missing -= 1
        if self._missing:
            return
        outcomes = [outcome for outcome in self._outcomes if outcome is not None]
        if self._acks == ACKS_ALL:
            self._wait_for_replicas(outcomes)
        else:
            self._done(outcomes)

    def _wait_for_replicas(self, outcomes: list[AppendOutcome]) -> None:
        operation = DelayedProduce(outcomes, self._done, self.on_failure)
        keys: list[PartitionKey] = []
        for partition, outcome in zip(self._targets, outcomes, strict=True):
            if outcome.result is not None and isinstance(partition, Partition):
                operation.want(outcome, partition, outcome.result.last_offset + 1)
                keys.append((partition.topic, partition.index))
        self._manager.produce_purgatory.try_complete_else_watch(operation, keys, self._timeout_ms)
