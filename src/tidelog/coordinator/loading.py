"""Loading: replays the log of a partition into a new shard."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

from tidelog.clock import Scheduler
from tidelog.coordinator.shard import HostedShard, Shard
from tidelog.errors import KafkaError
from tidelog.records.batch import iter_batches, read_control_record, read_records
from tidelog.storage.log import Log
from tidelog.storage.reads import CACHED, CachedReads, NotCached, bring_in

log = logging.getLogger("tidelog.coordinator")

# The longest time in one turn of the loop for the replay of a chunk.
SECONDS_A_TURN = 0.003

PASSED_OVER_LINES = 5
"""So many unreadable records of a load have a line of their own; the others are counted."""

S = TypeVar("S", bound=Shard)


class LoadingRuntime(Protocol[S]):
    """The part of runtime.CoordinatorRuntime that a load uses."""

    @property
    def scheduler(self) -> Scheduler: ...

    def is_hosted(self, hosted: HostedShard[S]) -> bool: ...

    def schedule(self, callback: Callable[[], None]) -> None: ...

    def resigned(self, partition: int) -> None: ...

    def load_ended(self, seconds: float | None = None) -> None: ...


class Loading(Generic[S]):
    """Loads a partition: reads chunks off the loop, and replays them on the loop in turns of a few ms."""

    def __init__(self, runtime: LoadingRuntime[S], hosted: HostedShard[S], source: Log, chunk: int) -> None:
        self._runtime = runtime
        self._hosted = hosted
        self._log = source
        self._chunk = chunk
        self._offset = source.log_start_offset
        self._end = hosted.loads_up_to
        self._began = runtime.scheduler.clock.monotonic()
        self._records = 0
        self._passed_over = 0

    def go_on(self, reads: CachedReads = CACHED) -> None:
        if not self._runtime.is_hosted(self._hosted):
            self._runtime.load_ended()
            return
        if self._offset >= self._end:
            self._finish()
            return
        try:
            found = self._log.read(self._offset, self._chunk, max_offset=self._end, reads=reads)
        except NotCached as cold:
            bring_in(self._runtime.scheduler, cold, reads, self.go_on)
            return
        except (KafkaError, OSError) as error:
            self._failed(error)
            return
        if found.slice is None:
            self._finish()  # the records up to the end were removed by the cleaner
            return
        self._runtime.scheduler.run_blocking(found.slice.read, self._read)

    def _read(self, data: bytes | None, error: BaseException | None) -> None:
        if data is None:
            self._failed(error)
            return
        self._replay(self._batches(data))

    def _replay(self, steps: Iterator[None]) -> None:
        if not self._runtime.is_hosted(self._hosted):
            self._runtime.load_ended()
            return
        clock = self._runtime.scheduler.clock
        until = clock.monotonic() + SECONDS_A_TURN
        try:
            for _ in steps:
                if clock.monotonic() >= until:
                    self._runtime.schedule(lambda: self._replay(steps))
                    return
        except Exception as error:
            self._failed(error)
            return
        self.go_on()

    def _batches(self, data: bytes) -> Iterator[None]:
        """Replay whole batches, at most a hundred records in a step."""
        shard = self._hosted.shard
        journal = shard.journal
        before = self._offset
        for position, header in iter_batches(data):
            records = read_records(data, position, header=header)
            is_committed = header.next_offset <= self._log.high_watermark
            journal.end = 0 if is_committed else header.next_offset
            producer_id = header.producer_id if header.is_transactional else -1
            if header.is_control:
                for record in records:
                    marker = read_control_record(record)
                    if marker is not None:
                        shard.end_transaction(header.producer_id, header.producer_epoch, commit=marker.commit)
            else:
                for at, record in enumerate(records):
                    if record.offset >= self._offset and record.key is not None:
                        try:
                            shard.replay(
                                record.key,
                                record.value,
                                offset=record.offset,
                                timestamp=record.timestamp,
                                producer_id=producer_id,
                                producer_epoch=header.producer_epoch,
                            )
                        except Exception as error:
                            self._pass_over(record.offset, error)
                    if at % 100 == 99:
                        yield
            journal.end = 0
            self._records += len(records)
            self._offset = header.next_offset
            yield
        if self._offset == before:
            self._offset = self._end  # no whole batch was read: the log ends here

    def _pass_over(self, offset: int, error: Exception) -> None:
        """Skip a record that no coordinator wrote: with an error, all groups of the partition would be
        unavailable.
        """
        self._passed_over += 1
        if self._passed_over <= PASSED_OVER_LINES:
            log.warning(
                "the record at offset %d of %s is passed over, because it cannot be read: %s",
                offset,
                self._hosted.partition.name,
                f"{type(error).__name__}: {error}",
            )

    def _finish(self) -> None:
        hosted = self._hosted
        hosted.is_loaded = True
        hosted.shard.journal.loaded_end = self._end
        try:
            hosted.shard.loaded()
        except Exception as error:  # it concerns this partition alone
            self._failed(error)
            return
        if self._passed_over > PASSED_OVER_LINES:
            log.warning(
                "%d records of %s are passed over, because they cannot be read",
                self._passed_over,
                hosted.partition.name,
            )
        seconds = self._runtime.scheduler.clock.monotonic() - self._began
        level = logging.INFO if self._records else logging.DEBUG
        log.log(
            level,
            "loaded",
            extra={
                "fields": {
                    "partition": hosted.partition.name,
                    "records": self._records,
                    "ms": round(seconds * 1000),
                }
            },
        )
        self._runtime.load_ended(seconds)

    def _failed(self, error: BaseException | None) -> None:
        """Log the failure of the load, and answer no requests for this partition."""
        if self._runtime.is_hosted(self._hosted):
            log.error("%s cannot be loaded", self._hosted.partition.name, exc_info=error)
            self._runtime.resigned(self._hosted.partition.index)
        self._runtime.load_ended()
