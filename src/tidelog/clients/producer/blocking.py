"""The blocking producer: the same as the asynchronous one, on a loop in a thread of its own.

>>> from tidelog.clients.producer.blocking import Producer
>>> with Producer(bootstrap_servers=bootstrap) as producer:
...     future = producer.send("orders", b"one apple", key=b"alice", headers=[("shop", b"7")])
...     metadata = future.result(timeout=10)
>>> metadata.topic, metadata.serialized_value_size
('orders', 9)
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Generator, Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import contextmanager
from functools import cache
from types import TracebackType
from typing import TYPE_CHECKING, Generic, Self, TypeVar, Unpack

from tidelog.clients.blocking import LoopThread
from tidelog.clients.errors import ClientClosedException, IllegalStateException
from tidelog.clients.offsets import ConsumerGroupMetadata
from tidelog.clients.partition_info import PartitionInfo
from tidelog.clients.producer.core import (
    DeliveryCallback,
    Headers,
    MemoryWait,
    ProducerCore,
    RecordFailed,
    TurnEnd,
    Wait,
    close_timeout,
)
from tidelog.clients.producer.interceptors import ProducerRecord
from tidelog.clients.producer.producer import Offsets, member_of, offsets_of
from tidelog.clients.producer.transaction_values import PreparedTxnState
from tidelog.clients.producer.transactions import TransactionManager
from tidelog.clients.serialization import given
from tidelog.clients.settings import producer_settings
from tidelog.clients.type_parameters import K_contra, V_contra
from tidelog.records.loops import RecordFuture, RecordMetadata

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelog.clients.producer.columns import SentColumns
    from tidelog.clients.serialization import SerializerSetting
    from tidelog.clients.typed_settings import ProducerConfig

T = TypeVar("T")


class _OpenBatchesOfThreads:
    """The producers of this process, whose open batches a forked child drops.

    A child has no thread that sends them; without open batches its `send` raises. A function registered for
    forks cannot be removed, so one serves all producers.
    """

    def __init__(self) -> None:
        self._cores: weakref.WeakSet[ProducerCore] = weakref.WeakSet()
        os.register_at_fork(after_in_child=self._forget)

    def add(self, core: ProducerCore) -> None:
        self._cores.add(core)

    def discard(self, core: ProducerCore) -> None:
        self._cores.discard(core)

    def _forget(self) -> None:
        for core in list(self._cores):
            core.fast.clear()
            core.keyed.clear()


@cache
def _open_batches() -> _OpenBatchesOfThreads:
    return _OpenBatchesOfThreads()


class Producer(Generic[K_contra, V_contra]):
    """Sends records. Settings are Kafka's, as keywords with underscores or as a dict.

    Several threads may use it. `send` returns a future at once, unless it waits for metadata or for room in
    the buffer, at most max.block.ms. `with Producer(...) as producer:` closes it, which writes every record.
    """

    def __init__(
        self,
        config: Mapping[str, object] | None = None,
        /,
        *,
        key_serializer: SerializerSetting[K_contra] | None = None,
        value_serializer: SerializerSetting[V_contra] | None = None,
        **settings: Unpack[ProducerConfig],
    ) -> None:
        serializers = given(key_serializer=key_serializer, value_serializer=value_serializer)
        checked = producer_settings(config, **settings, **serializers)
        self._core = ProducerCore(checked)
        self._fast = self._core.fast
        self._keyed = self._core.keyed
        self._thread = LoopThread(f"producer {checked.client_id}".strip())
        self._thread.run(self._core.start())
        _open_batches().add(self._core)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(close_timeout(kind))

    def send(
        self,
        topic: str,
        value: V_contra | None = None,
        key: K_contra | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        callback: DeliveryCallback | None = None,
    ) -> RecordFuture:
        """Put a record into a batch and return its future.

        A closed producer, a missing transaction and a value that cannot be serialized raise here. Every other
        error is in the future. `callback(metadata, error)` is called on the producer's thread when the record
        is written or given up.
        """
        if type(value) is bytes and headers is None and partition is None and callback is None:
            future = None
            if timestamp_ms is not None:
                pass
            elif key is None:
                batch = self._fast.get(topic)
                if batch is not None:
                    future = batch.append_value(value)
            elif type(key) is bytes:
                batches = self._keyed.get(topic)
                if batches is not None:
                    future = batches.append(key, value)  # type: ignore[arg-type]  # bytes
            if future is not None:
                return future
        self._thread.check_process()
        record = ProducerRecord(topic, value, key, headers or (), partition, timestamp_ms)
        return self._drive(self._core.steps(record, callback))

    def send_and_wait(
        self,
        topic: str,
        value: V_contra | None = None,
        key: K_contra | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordMetadata:
        """Send a record and wait until it is written. Raises the error of the record."""
        return self.send(topic, value, key, headers, partition, timestamp_ms).result()

    def send_arrow(
        self,
        data: pa.Table | pa.RecordBatch,
        topic: str | None = None,
        *,
        key_column: str | None = None,
        value_column: str | None = None,
        timestamp_column: str | None = None,
        partition: int | None = None,
        headers: Headers | None = None,
    ) -> SentColumns:
        """Send each row of a table as a record, without an object per record.

        The columns have the names that `poll_arrow` gives them: `topic`, `partition`, `timestamp`, `key`,
        `value` and `headers`; `offset` is not sent. `topic`, `partition` and `headers` hold for all rows, and
        over the column; a table of one column has the values alone. ValueError names any other column.
        """
        from tidelog.clients.producer.columns import ColumnSender, RowSources

        self._thread.check_process()
        sources = RowSources(topic, partition, headers, key_column, value_column, timestamp_column)
        steps = ColumnSender(self._core, sources).steps(data)
        return self._drive(steps)

    def _drive(self, steps: Generator[Wait, None, T]) -> T:
        """Run the steps, and block this thread at each wait."""
        try:
            wait = next(steps)
            while True:
                try:
                    self._wait(wait)
                except Exception as error:
                    wait = steps.throw(error)
                else:
                    wait = next(steps)
        except StopIteration as stop:
            result: T = stop.value
            return result

    def _wait(self, wait: Wait) -> None:
        if isinstance(wait, TurnEnd):
            return  # threads need no turns
        if isinstance(wait, RecordFailed):
            self._thread.apply(lambda: self._core.note_failed(wait.error))
            return
        self._thread.check()
        if isinstance(wait, MemoryWait):
            self._core.accumulator.memory.wait(wait.size, wait.timeout)
        else:
            self._thread.run(self._core.wait(wait))

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every record that was sent before is written or has failed.

        Raises TimeoutException after `timeout` seconds.
        """
        self._thread.run(self._core.flush(timeout))

    def partitions_for(self, topic: str) -> list[PartitionInfo]:
        """The partitions of a topic. Raises TimeoutException after max.block.ms."""
        return self._thread.run(self._core.partitions_for(topic))

    def metrics(self) -> dict[str, float]:
        """Numbers under Kafka's names, such as record-send-total; times in milliseconds."""
        return self._core.numbers()

    def client_instance_id(self, timeout: float | None = None) -> str:
        """The id that the broker gave this client for its metrics.

        Raises UnsupportedVersion when the broker does not collect metrics of clients.
        """
        seconds = self._core.settings.max_block_ms / 1000 if timeout is None else timeout
        return self._thread.run(self._core.telemetry.client_instance_id(seconds))

    def close(self, timeout: float | None = None) -> None:
        """Write waiting records and end. Aborts an open transaction.

        After `timeout` seconds, or on Ctrl-C, records that are not written fail.
        """
        if self._thread.closed or self._thread.is_inherited:
            return  # a forked child leaves the client of its parent open
        if self._thread.is_current:
            # A callback cannot wait: records that are not written fail.
            self._thread.loop.create_task(self._close_from_within())
            return
        try:
            self._thread.run(self._core.close(timeout))
        except ClientClosedException:
            pass
        except CancelledError:
            if not self._thread.closed:  # closed by another thread
                raise
        except BaseException:
            self._thread.run(self._core.close(0))
            raise
        finally:
            self._end()

    async def _close_from_within(self) -> None:
        await self._core.close(0)
        self._end()

    def _end(self) -> None:
        self._thread.close()
        _open_batches().discard(self._core)

    # Transactions

    def init_transactions(self) -> None:
        """Register the transactional id. Fences the producer that had it, and ends its open transaction."""
        self._thread.run(self._transactions.init())

    def begin_transaction(self) -> None:
        """Begin a transaction: every record sent from now on belongs to it."""
        self._thread.apply(self._transactions.begin)

    def send_offsets_to_transaction(
        self, offsets: Offsets, group_metadata: ConsumerGroupMetadata | str
    ) -> None:
        """Commit a consumer's offsets with the transaction.

        `group_metadata` is that of the consumer, or the id of its group: the broker then does not check that
        the consumer is still a member.
        """
        self._thread.run(self._transactions.send_offsets(offsets_of(offsets), member_of(group_metadata)))

    def commit_transaction(self) -> None:
        """Write every record of the transaction, and commit it."""
        self._thread.run(self._transactions.commit())

    def abort_transaction(self) -> None:
        """Abort the transaction. Its records that were not sent fail with TransactionAbortedException."""
        self._thread.run(self._transactions.abort())

    def prepare_transaction(self) -> PreparedTxnState:
        """Write every record, and return the state with which any process can end the transaction."""
        return self._thread.run(self._transactions.prepare())

    def complete_transaction(self, state: PreparedTxnState, *, commit: bool) -> None:
        """Commit or abort a prepared transaction.

        It is this producer's own. Before `init_transactions` it may be one that another process prepared.
        """
        self._thread.run(self._transactions.complete(state, commit=commit))

    @contextmanager
    def transaction(self) -> Iterator[Self]:
        """`with producer.transaction():` commits at the end of the block, and aborts on an error.

        Calls `init_transactions` where that was not done before.
        """
        transactions = self._transactions
        if transactions.needs_init:
            self.init_transactions()
        self.begin_transaction()
        try:
            yield self
        except BaseException as error:
            self._thread.run(transactions.abort_if_possible(close_timeout(type(error))))
            raise
        try:
            self.commit_transaction()
        except Exception:
            self._thread.run(transactions.abort_if_possible())
            raise

    @property
    def _transactions(self) -> TransactionManager:
        if self._core.transactions is None:
            raise IllegalStateException("transactions need the setting transactional.id")
        self._core.check_not_closed()
        return self._core.transactions
