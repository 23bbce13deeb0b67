"""Records that the console reads from the broker's files are those that a fetch returns."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tidelog import Admin, Producer
from tidelog.clients.admin.client import AsyncAdmin
from tidelog.console.broker_link import (
    Ask,
    LogRow,
    Message,
    Row,
    SnapshotPart,
    TopicGoneRow,
    TopicRow,
    frame,
    from_broker,
)
from tidelog.console.clusters import Cluster
from tidelog.console.principal_cluster import PrincipalCluster
from tidelog.console.records.log_files import LeaderLog, LogFiles, LogMoved, TopicLogs
from tidelog.console.records.log_record import LogRecord, TransactionState
from tidelog.console.records.timeline import read_timeline
from tidelog.console.records.topic_reader import OffsetRange, TopicReader
from tidelog.console.remote_broker import ClusterRows, RemoteBroker
from tidelog.errors import OffsetOutOfRange, UnknownTopicOrPartition
from tidelog.records.batch import Record, build_batch
from tidelog.server.broker import Broker as ServerBroker
from tidelog.server.config.broker import BrokerConfig
from tidelog.server.console import console_settings
from tidelog.server.console_changes import SnapshotChanges
from tidelog.server.services import Services
from tidelog.testing import Broker

SEGMENT_BYTES = 2000
SIZES = (1, 700, 1 << 20)


class OpenBroker(Broker):
    """A broker whose memory and loop tests may use."""

    async def _live(self, broker: ServerBroker, ready: threading.Event) -> None:
        self.server = broker
        await super()._live(broker, ready)

    def run(self, work: Callable[[], Awaitable[object] | object]) -> None:
        async def run() -> None:
            done = work()
            if isinstance(done, Awaitable):
                await done

        assert self._loop is not None
        asyncio.run_coroutine_threadsafe(run(), self._loop).result(30)


class HereLogs:
    """The logs of a broker in this process; rows go through the encoding of the link."""

    def __init__(self, broker: OpenBroker) -> None:
        self._broker = broker
        router = broker.server._router
        assert router is not None
        self._changes = SnapshotChanges(router._services)
        self._rows = ClusterRows()
        self.files = LogFiles()
        self.looks = 0

    async def logs(self, topic: str, max_age: float = 0.0) -> TopicLogs | None:
        self.looks += 1
        found: list[Row] = []
        take = lambda: found.extend(row for row in self._changes.rows_of_topic(topic) if row)  # noqa: E731
        await asyncio.to_thread(self._broker.run, take)
        part = from_broker.decode(frame(SnapshotPart(1, found, True))[4:])
        assert isinstance(part, SnapshotPart)
        for row in part.rows:
            self._rows.take(row)
        return self._rows.topic_logs(topic)

    async def read(self, log: LeaderLog, offset: int, limit: int, max_bytes: int) -> bytes:
        return self.files.read(log, offset, limit, max_bytes)


class FileReader(TopicReader):
    """A reader that fetches nothing unless the test says so."""

    may_fetch = False

    async def _fetch_all(self, *arguments: object) -> dict[int, object]:  # type: ignore[override]
        assert self.may_fetch, "records were fetched"
        return await super()._fetch_all(*arguments)  # type: ignore[arg-type, return-value]


@pytest.fixture(scope="module")
def broker() -> Iterator[OpenBroker]:
    with OpenBroker(
        log_retention_ms=-1, log_retention_check_interval_ms=24 * 3600 * 1000, log_cleaner_enable=False
    ) as broker:
        yield broker


async def read_all(reader: TopicReader, found: OffsetRange, begin: int, size: int) -> list[LogRecord]:
    records: list[LogRecord] = []
    while begin < found.end:
        chunk = (await reader.fetch({0: begin}, size))[0]
        assert chunk.next_offset > begin
        records += chunk.records(control=True)
        begin = chunk.next_offset
    return records


def produce(broker: Broker, topic: str, state: str, count: int, codec: str = "none") -> Producer:
    """Produce records in a transaction, which the caller closes if it stays open."""
    producer = Producer(
        bootstrap_servers=broker.bootstrap_servers,
        transactional_id=f"t-{topic}-{state}",
        compression_type=codec,
        batch_size=300,
        linger_ms=5,
    )
    producer.init_transactions()
    producer.begin_transaction()
    for number in range(count):
        producer.send(topic, f"{state} {number}".encode() * 5, partition=0)
    producer.flush()
    if state == "abort":
        producer.abort_transaction()
    elif state == "commit":
        producer.commit_transaction()
    return producer


def test_files_and_fetches_have_the_same_records_of_transactions(broker: OpenBroker) -> None:
    broker.create_topic("told", 1, {"internal.segment.bytes": SEGMENT_BYTES})
    broker.produce("told", *(f"plain {number}" for number in range(40)), partition=0)
    for state in ("abort", "commit"):
        produce(broker, "told", state, 25, "gzip" if state == "commit" else "none").close()
    broker.produce("told", *(f"more {number}" for number in range(20)), partition=0)
    is_open = produce(broker, "told", "open", 10)

    async def compare() -> None:
        async with AsyncAdmin(bootstrap_servers=broker.bootstrap_servers) as admin:
            logs = HereLogs(broker)
            by_fetch, by_file = TopicReader(admin, "told"), FileReader(admin, "told", logs)
            assert await by_file.partitions() == [0]
            found = (await by_file.ranges())[0]
            assert (await by_fetch.ranges())[0] == found
            topic = await logs.logs("told")
            assert topic is not None
            assert len(topic.logs[0].segments) > 2
            assert topic.logs[0].last_stable_offset < found.end
            expected = await read_all(by_fetch, found, 0, 1 << 20)
            assert {record.transaction for record in expected} >= {
                TransactionState.ABORTED, TransactionState.COMMITTED, TransactionState.OPEN,
            }  # fmt: skip
            for size in SIZES:
                for begin in range(0, found.end, 13):
                    seen = await read_all(by_file, found, begin, size)
                    assert [(r.offset, r.value, r.control) for r in seen] == [
                        (r.offset, r.value, r.control) for r in expected if r.offset >= begin
                    ]
            assert await read_all(by_file, found, 0, 1 << 20) == expected
            now, most = 0, 0
            ask = by_file.list_offsets

            async def count(partitions: Iterable[int], timestamp: int) -> dict[int, tuple[int, int]]:
                nonlocal now, most
                now += 1
                most = max(most, now)
                try:
                    return await ask(partitions, timestamp)
                finally:
                    now -= 1

            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(by_file, "list_offsets", count)
                timeline = await read_timeline(by_file, {0: found}, buckets=3)
            # A broker on this host has the look-ups of a timeline one after the other.
            assert (sum(bucket.count for bucket in timeline.buckets), most) == (found.end, 1)
            # Nothing new: one look, and the end of the wait.
            chunk = (await by_file.fetch({0: found.end}, 1000, wait_ms=1))[0]
            assert (chunk.size, chunk.next_offset) == (0, found.end)

    asyncio.run(compare())
    is_open.abort_transaction()
    is_open.close()


def test_deleted_and_moved_files_are_noticed(broker: OpenBroker) -> None:
    broker.create_topic("going", 1, {"internal.segment.bytes": SEGMENT_BYTES})
    for number in range(0, 60, 6):
        broker.produce("going", *(f"value {number + each}" * 20 for each in range(6)), partition=0)

    async def read() -> None:
        async with AsyncAdmin(bootstrap_servers=broker.bootstrap_servers) as admin:
            logs = HereLogs(broker)
            reader = FileReader(admin, "going", logs)
            whole = (await reader.ranges())[0]
            before = await read_all(reader, whole, 0, 500)
            assert len(before) == 60
            topic = await logs.logs("going")
            assert topic is not None
            log = topic.logs[0]
            second = log.segments[1][0]
            await admin.delete_records({("going", 0): second + 1})
            looks = logs.looks
            # The reader does not know yet, and reads what the files still have.
            assert await read_all(reader, whole, second + 1, 500) == before[second + 1 :]
            assert logs.looks == looks
            assert (await reader.ranges())[0] == OffsetRange(second + 1, 60)
            reader.may_fetch = True
            with pytest.raises(OffsetOutOfRange):
                await reader.fetch({0: 0}, 500)
            # A file that is not there is left to the broker, which has it open.
            path = Path(log.directory) / f"{second:020d}.log"
            await reader.fetch({0: second + 1}, 500)
            away = path.with_suffix(".away")
            os.rename(path, away)
            try:
                with pytest.raises(LogMoved):
                    logs.files.read(log, second + 1, 60, 500)
            finally:
                os.rename(away, path)
            assert await read_all(reader, whole, second + 1, 500) == before[second + 1 :]
            with pytest.raises(UnknownTopicOrPartition):
                await TopicReader(admin, "nowhere", logs).partitions()

    asyncio.run(read())


def test_a_topic_that_was_made_again_is_read_from_its_new_files(broker: OpenBroker) -> None:
    async def read() -> None:
        async with AsyncAdmin(bootstrap_servers=broker.bootstrap_servers) as admin:
            logs = HereLogs(broker)
            for values in (("old", "older"), ("new",)):
                await asyncio.to_thread(broker.create_topic, "again", 1)
                await asyncio.to_thread(broker.produce, "again", *values, partition=0)
                reader = FileReader(admin, "again", logs)
                found = (await reader.ranges())[0]
                records = await read_all(reader, found, 0, 1000)
                assert [record.value for record in records] == [value.encode() for value in values]
                with Admin(bootstrap_servers=broker.bootstrap_servers) as blocking:
                    await asyncio.to_thread(blocking.delete_topics, ["again"])
            assert await logs.logs("again") is None

    asyncio.run(read())


@pytest.mark.parametrize("kind", ["stale index", "old format", "cut file"])
def test_files_that_are_not_as_told_are_refused_or_read_right(tmp_path: Path, kind: str) -> None:
    batches = [
        bytes(build_batch([Record(offset, 0, b"k", b"v" * 50)], base_offset=offset)) for offset in range(20)
    ]
    data = b"".join(batches)
    path = tmp_path / f"{0:020d}.log"
    path.write_bytes(data)
    log = LeaderLog(str(tmp_path), 0, 0, 20, 20, ((0, len(data)),), index=((5, 3), (9, len(batches[0]) * 12)))
    files = LogFiles()
    if kind == "stale index":
        for offset in (4, 6, 9, 10, 12, 19):
            assert files.read(log, offset, 20, 1) == batches[offset]
        return
    if kind == "old format":
        path.write_bytes(data[:16] + b"\x01" + data[17:])
    else:
        path.write_bytes(data[:-10])
    with pytest.raises(LogMoved):
        files.read(log, 0 if kind == "old format" else 19, 20, 1)


def test_tails_share_a_question_and_a_page_has_its_own() -> None:
    async def ask() -> None:
        asked: list[Message] = []
        broker = RemoteBroker(0, asked.append, reads_files=True)
        row = LogRow("t", 0, 0, 7, 10, "/data/t-0", 0, [(0, 10)], 6, [], [])

        def answer(*rows: Row) -> None:
            last = asked[-1]
            assert isinstance(last, Ask)
            assert (last.question, last.topic) == ("topic", "t")
            broker.take(SnapshotPart(last.number, list(rows), True))

        tails = [asyncio.create_task(broker.logs("t", 100.0)) for _ in range(5)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(asked) == 1
        answer(TopicRow("t", "id", False, "delete", [(0, 0, [0], [0], [], [], [])]), row)
        for found in await asyncio.gather(*tails):
            assert found is not None
            assert (found.partitions, found.logs[0].high_watermark) == ((0,), 7)
        assert await broker.logs("t", 100.0) is not None
        assert len(asked) == 1
        page = asyncio.create_task(broker.logs("t"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(asked) == 2
        answer(TopicGoneRow("t"))
        assert await page is None

    asyncio.run(ask())


def test_only_a_console_that_acts_as_itself_reads_files_and_only_without_access_rules() -> None:
    broker = RemoteBroker(0, lambda _: None, reads_files=True)
    cluster = Cluster("local", {}, local=broker)
    assert cluster.local_logs is broker
    assert PrincipalCluster(cluster, {}, None).local_logs is broker
    assert PrincipalCluster(cluster, {"sasl.mechanism": "PLAIN"}, None).local_logs is None
    assert Cluster("local", {}, local=RemoteBroker(0, lambda _: None)).local_logs is None
    assert Cluster("other", {}).local_logs is None
    config = BrokerConfig.load(None, {})
    for authorizer in (None, object()):
        services = cast("Services", SimpleNamespace(broker_id=0, authorizer=authorizer))
        assert console_settings(config, services, "localhost:9092").reads_files is (authorizer is None)
