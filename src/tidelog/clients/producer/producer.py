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
from typing import TYPE_CHECKING, Self, TypeVar

from tidelog.clients.errors import InvalidState
from tidelog.clients.producer.core import Delivered, Headers, ProducerCore, Wait, patience
from tidelog.clients.producer.interceptors import ProducerRecord
from tidelog.clients.producer.transaction_values import (
    GroupMember,
    OffsetToCommit,
    PreparedTransaction,
    checked_offset,
)
from tidelog.clients.producer.transactions import Transactions
from tidelog.clients.settings import producer_settings
from tidelog.records.loops import RecordFuture

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelog.clients.producer.columns import SentColumns

T = TypeVar("T")

Offsets = Mapping[tuple[str, int], "OffsetToCommit | int"]


class AsyncProducer:
    """Sends records from coroutines; settings are Kafka's, with underscores or as a dict.

    `await producer.send(...)` waits until the record is in a batch (for metadata, or for room in the buffer)
    and gives a future; `await future` waits until it is written.
    """

    def __init__(self, config: Mapping[str, object] | None = None, /, **settings: object) -> None:
        self._core = ProducerCore(producer_settings(config, **settings))
        self._fast = self._core.fast
        self._keyed = self._core.keyed
        self._looks = self._core.turns.looks
        self._started = False

    async def start(self) -> None:
        """Begin; `async with` does it."""
        if not self._started:
            self._started = True
            await self._core.start()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(patience(kind))

    async def send(
        self,
        topic: str,
        value: object = None,
        *,
        key: object = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        callback: Delivered | None = None,
    ) -> RecordFuture:
        """The future of a record. Raises what is wrong with the call; the rest is in the future."""
        if next(self._looks):
            await self._core.turns.pass_on()  # before the record is taken: here it may be cancelled
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
                    future = batches.append(key, value)
            if future is not None:
                return future
        if not self._started:
            await self.start()
        record = ProducerRecord(topic, value, key, headers or (), partition, timestamp_ms)
        return await self._drive(self._core.steps(record, callback))

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
        """Take the steps, and wait on the loop where they do."""
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

    async def flush(self) -> None:
        """Wait until every record that was sent before is written or has failed."""
        await self._core.flush()

    async def partitions_for(self, topic: str) -> int:
        """The number of partitions of a topic."""
        await self.start()
        return await self._core.partitions_for(topic)

    def metrics(self) -> dict[str, float]:
        """Numbers under Kafka's names, such as record-send-total; times in milliseconds."""
        return self._core.numbers()

    async def client_instance_id(self, timeout: float | None = None) -> str:
        """The id under which the broker knows this client, as Kafka writes ids.

        UnsupportedVersion where the broker does not collect metrics of clients.
        """
        await self.start()
        seconds = self._core.settings.max_block_ms / 1000 if timeout is None else timeout
        return await self._core.telemetry.client_instance_id(seconds)

    async def close(self, timeout: float | None = None) -> None:
        """Write what waits and end; after `timeout` seconds the rest fails. Aborts an open transaction."""
        await self._core.close(timeout)

    # Transactions

    async def init_transactions(self) -> None:
        """Take over the transactional id: who had it before is fenced, what he left open is ended."""
        await self.start()
        await self._transactions.init()

    def begin_transaction(self) -> None:
        self._transactions.begin()

    async def send_offsets_to_transaction(self, offsets: Offsets, group: GroupMember | str) -> None:
        """Commit a consumer's offsets together with what is sent; `group` is its id, or its membership."""
        member = group if isinstance(group, GroupMember) else GroupMember(group)
        await self._transactions.send_offsets(offsets_of(offsets), member)

    async def commit_transaction(self) -> None:
        await self._transactions.commit()

    async def abort_transaction(self) -> None:
        await self._transactions.abort()

    async def prepare(self) -> PreparedTransaction:
        """Write everything, and give a handle with which any process can end the transaction."""
        return await self._transactions.prepare()

    async def complete(self, handle: PreparedTransaction, *, commit: bool) -> None:
        """End a prepared transaction: this producer's own, or, before `init_transactions`, anybody's."""
        await self.start()
        await self._transactions.complete(handle, commit=commit)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Self]:
        """`async with producer.transaction():` commits at the end, or aborts where it is left by an error."""
        transactions = self._transactions
        if transactions.needs_init:
            await self.init_transactions()
        transactions.begin()
        try:
            yield self
        except BaseException as error:
            await transactions.abort_if_possible(patience(type(error)))
            raise
        try:
            await transactions.commit()
        except Exception:
            await transactions.abort_if_possible()
            raise

    @property
    def _transactions(self) -> Transactions:
        if self._core.transactions is None:
            raise InvalidState("transactions need the setting transactional.id")
        self._core.check_not_closed()
        return self._core.transactions


def offsets_of(offsets: Offsets) -> dict[tuple[str, int], OffsetToCommit]:
    return {partition: checked_offset(partition, entry) for partition, entry in offsets.items()}
