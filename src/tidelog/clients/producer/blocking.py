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
from typing import TYPE_CHECKING, Self, TypeVar

from tidelog.clients.blocking import LoopThread
from tidelog.clients.errors import Closed, InvalidState
from tidelog.clients.producer.core import (
    Delivered,
    Headers,
    MemoryWait,
    ProducerCore,
    RecordFailed,
    TurnEnd,
    Wait,
    patience,
)
from tidelog.clients.producer.interceptors import ProducerRecord
from tidelog.clients.producer.producer import Offsets, offsets_of
from tidelog.clients.producer.transaction_values import GroupMember, PreparedTransaction
from tidelog.clients.producer.transactions import Transactions
from tidelog.clients.settings import producer_settings
from tidelog.records.loops import RecordFuture

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelog.clients.producer.columns import SentColumns

T = TypeVar("T")


class _OpenBatchesOfThreads:
    """The producers of this process whose open batches a forked child forgets: nobody sends them there.

    The `send` of a child then takes the way that says so. Functions that are registered for forks stay for
    good, so there is one for all producers.
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


class Producer:
    """Sends records; may be used by several threads. Settings are Kafka's, with underscores or as a dict.

    `send` gives a future at once, unless it has to wait for metadata or for room in the buffer, at most
    max.block.ms. `with Producer(...) as producer:` closes it, and so writes what waits.
    """

    def __init__(self, config: Mapping[str, object] | None = None, /, **settings: object) -> None:
        checked = producer_settings(config, **settings)
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
        self.close(patience(kind))

    def send(
        self,
        topic: str,
        value: object = None,
        key: object = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        callback: Delivered | None = None,
    ) -> RecordFuture:
        """The future of a record. Raises what is wrong with the call; the rest is in the future.

        `callback(metadata, error)` is called on the producer's thread when the record is written or given up.
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
                    future = batches.append(key, value)
            if future is not None:
                return future
        self._thread.check_process()
        record = ProducerRecord(topic, value, key, headers or (), partition, timestamp_ms)
        return self._drive(self._core.steps(record, callback))

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
        """Take the steps, and wait in this thread where they do."""
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
            return  # threads take turns by themselves
        if isinstance(wait, RecordFailed):
            self._thread.apply(lambda: self._core.note_failed(wait.error))
            return
        self._thread.check()
        if isinstance(wait, MemoryWait):
            self._core.accumulator.memory.wait(wait.size, wait.timeout)
        else:
            self._thread.run(self._core.wait(wait))

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every record that was sent before is written or has failed."""
        self._thread.run(self._core.flush(), timeout)

    def partitions_for(self, topic: str) -> int:
        """The number of partitions of a topic."""
        return self._thread.run(self._core.partitions_for(topic))

    def metrics(self) -> dict[str, float]:
        """Numbers under Kafka's names, such as record-send-total; times in milliseconds."""
        return self._core.numbers()

    def client_instance_id(self, timeout: float | None = None) -> str:
        """The id under which the broker knows this client, as Kafka writes ids.

        UnsupportedVersion where the broker does not collect metrics of clients.
        """
        seconds = self._core.settings.max_block_ms / 1000 if timeout is None else timeout
        return self._thread.run(self._core.telemetry.client_instance_id(seconds))

    def close(self, timeout: float | None = None) -> None:
        """Write what waits and end; after `timeout` seconds the rest fails. Aborts an open transaction.

        Ctrl-C while it waits ends it at once.
        """
        if self._thread.closed or self._thread.is_inherited:
            return  # what a child process inherited is the parent's to close
        if self._thread.is_current:
            # From a callback nothing can be waited for: what was not written fails.
            self._thread.loop.create_task(self._close_from_within())
            return
        try:
            self._thread.run(self._core.close(timeout))
        except Closed:
            pass
        except CancelledError:
            if not self._thread.closed:  # by another thread, which has ended everything
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
        """Take over the transactional id: who had it before is fenced, what he left open is ended."""
        self._thread.run(self._transactions.init())

    def begin_transaction(self) -> None:
        self._thread.apply(self._transactions.begin)

    def send_offsets_to_transaction(self, offsets: Offsets, group: GroupMember | str) -> None:
        """Commit a consumer's offsets together with what is sent; `group` is its id, or its membership."""
        member = group if isinstance(group, GroupMember) else GroupMember(group)
        self._thread.run(self._transactions.send_offsets(offsets_of(offsets), member))

    def commit_transaction(self) -> None:
        self._thread.run(self._transactions.commit())

    def abort_transaction(self) -> None:
        self._thread.run(self._transactions.abort())

    def prepare(self) -> PreparedTransaction:
        """Write everything, and give a handle with which any process can end the transaction."""
        return self._thread.run(self._transactions.prepare())

    def complete(self, handle: PreparedTransaction, *, commit: bool) -> None:
        """End a prepared transaction: this producer's own, or, before `init_transactions`, anybody's."""
        self._thread.run(self._transactions.complete(handle, commit=commit))

    @contextmanager
    def transaction(self) -> Iterator[Self]:
        """`with producer.transaction():` commits at the end, or aborts where it is left by an error.

        The first one initializes the transactional id, where that was not done.
        """
        transactions = self._transactions
        if transactions.needs_init:
            self.init_transactions()
        self.begin_transaction()
        try:
            yield self
        except BaseException as error:
            self._thread.run(transactions.abort_if_possible(patience(type(error))))
            raise
        try:
            self.commit_transaction()
        except Exception:
            self._thread.run(transactions.abort_if_possible())
            raise

    @property
    def _transactions(self) -> Transactions:
        if self._core.transactions is None:
            raise InvalidState("transactions need the setting transactional.id")
        self._core.check_not_closed()
        return self._core.transactions
