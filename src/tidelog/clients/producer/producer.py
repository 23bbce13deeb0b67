"""The producer for coroutines.

>>> import asyncio
>>> from tidelog.clients.producer.producer import AsyncProducer
>>> async def main(bootstrap: str) -> str:
...     async with AsyncProducer(bootstrap_servers=bootstrap) as producer:
...         future = await producer.send("greetings", b"hello", key=b"world")
...         metadata = await future
...         return metadata.topic
>>> asyncio.run(main(bootstrap))
'greetings'
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Generic, Self, TypeVar, Unpack

from tidelog.clients.errors import IllegalStateException
from tidelog.clients.offsets import ConsumerGroupMetadata, OffsetAndMetadata, checked_offset
from tidelog.clients.partition_info import PartitionInfo
from tidelog.clients.producer.core import DeliveryCallback, Headers, ProducerCore, Wait, close_timeout
from tidelog.clients.producer.interceptors import ProducerRecord
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

Offsets = Mapping[tuple[str, int], "OffsetAndMetadata | int"]


class AsyncProducer(Generic[K_contra, V_contra]):
    """Sends records from coroutines. Settings are Kafka's, as keywords with underscores or as a dict.

    `await producer.send(...)` waits until the record is in a batch, at most max.block.ms for metadata and for
    room in the buffer, and returns a future. `await future` waits until the record is written.
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
        self._core = ProducerCore(producer_settings(config, **settings, **serializers))
        self._fast = self._core.fast
        self._keyed = self._core.keyed
        self._looks = self._core.turns.looks
        self._started = False

    async def start(self) -> None:
        """Connect; `async with` and the first `send` do it."""
        if not self._started:
            self._started = True
            await self._core.start()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(close_timeout(kind))

    async def send(
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
        error is in the future. `callback(metadata, error)` is called on the loop when the record is written
        or given up.
        """
        if next(self._looks):
            await self._core.turns.pass_on()  # before the record is in a batch, so that cancelling loses none
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
        if not self._started:
            await self.start()
        record = ProducerRecord(topic, value, key, headers or (), partition, timestamp_ms)
        return await self._drive(self._core.steps(record, callback))

    async def send_and_wait(
        self,
        topic: str,
        value: V_contra | None = None,
        key: K_contra | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordMetadata:
        """Send a record and wait until it is written. Raises the error of the record."""
        return await (await self.send(topic, value, key, headers, partition, timestamp_ms))

    async def send_arrow(
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

        sources = RowSources(topic, partition, headers, key_column, value_column, timestamp_column)
        steps = ColumnSender(self._core, sources).steps(data)
        await self.start()
        return await self._drive(steps)

    async def _drive(self, steps: Generator[Wait, None, T]) -> T:
        """Run the steps, and await each wait."""
        try:
            wait = next(steps)
            while True:
                try:
                    await self._core.wait(wait)
                except Exception as error:
                    wait = steps.throw(error)
                else:
                    wait = next(steps)
        except StopIteration as stop:
            result: T = stop.value
            return result

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until every record that was sent before is written or has failed.

        Raises TimeoutException after `timeout` seconds.
        """
        await self._core.flush(timeout)

    async def partitions_for(self, topic: str) -> list[PartitionInfo]:
        """The partitions of a topic. Raises TimeoutException after max.block.ms."""
        await self.start()
        return await self._core.partitions_for(topic)

    def metrics(self) -> dict[str, float]:
        """Numbers under Kafka's names, such as record-send-total; times in milliseconds."""
        return self._core.numbers()

    async def client_instance_id(self, timeout: float | None = None) -> str:
        """The id that the broker gave this client for its metrics.

        Raises UnsupportedVersion when the broker does not collect metrics of clients.
        """
        await self.start()
        seconds = self._core.settings.max_block_ms / 1000 if timeout is None else timeout
        return await self._core.telemetry.client_instance_id(seconds)

    async def close(self, timeout: float | None = None) -> None:
        """Write waiting records and end. Aborts an open transaction.

        After `timeout` seconds records that are not written fail.
        """
        await self._core.close(timeout)

    # Transactions

    async def init_transactions(self) -> None:
        """Register the transactional id. Fences the producer that had it, and ends its open transaction."""
        await self.start()
        await self._transactions.init()

    def begin_transaction(self) -> None:
        """Begin a transaction: every record sent from now on belongs to it."""
        self._transactions.begin()

    async def send_offsets_to_transaction(
        self, offsets: Offsets, group_metadata: ConsumerGroupMetadata | str
    ) -> None:
        """Commit a consumer's offsets with the transaction.

        `group_metadata` is that of the consumer, or the id of its group: the broker then does not check that
        the consumer is still a member.
        """
        await self._transactions.send_offsets(offsets_of(offsets), member_of(group_metadata))

    async def commit_transaction(self) -> None:
        """Write every record of the transaction, and commit it."""
        await self._transactions.commit()

    async def abort_transaction(self) -> None:
        """Abort the transaction. Its records that were not sent fail with TransactionAbortedException."""
        await self._transactions.abort()

    async def prepare_transaction(self) -> PreparedTxnState:
        """Write every record, and return the state with which any process can end the transaction."""
        return await self._transactions.prepare()

    async def complete_transaction(self, state: PreparedTxnState, *, commit: bool) -> None:
        """Commit or abort a prepared transaction.

        It is this producer's own. Before `init_transactions` it may be one that another process prepared.
        """
        await self.start()
        await self._transactions.complete(state, commit=commit)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Self]:
        """`async with producer.transaction():` commits at the end of the block, and aborts on an error.

        Calls `init_transactions` where that was not done before.
        """
        transactions = self._transactions
        if transactions.needs_init:
            await self.init_transactions()
        transactions.begin()
        try:
            yield self
        except BaseException as error:
            await transactions.abort_if_possible(close_timeout(type(error)))
            raise
        try:
            await transactions.commit()
        except Exception:
            await transactions.abort_if_possible()
            raise

    @property
    def _transactions(self) -> TransactionManager:
        if self._core.transactions is None:
            raise IllegalStateException("transactions need the setting transactional.id")
        self._core.check_not_closed()
        return self._core.transactions


def member_of(group: ConsumerGroupMetadata | str) -> ConsumerGroupMetadata:
    return group if isinstance(group, ConsumerGroupMetadata) else ConsumerGroupMetadata(group)


def offsets_of(offsets: Offsets) -> dict[tuple[str, int], OffsetAndMetadata]:
    return {partition: checked_offset(partition, entry) for partition, entry in offsets.items()}
