"""A leader whose answers a test gives, and a follower that fetches from it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import TypeVar

from tests.cluster.world import SELF, World
from tidelog.cluster.follower_quota import FollowerQuota
from tidelog.cluster.partition import Partition
from tidelog.cluster.replica_fetcher_manager import ReplicaFetcherManager
from tidelog.cluster.replica_fetcher_settings import ReplicaFetcherSettings
from tidelog.cluster.worker import Worker
from tidelog.endpoints import Endpoint
from tidelog.errors import KafkaError, NetworkException
from tidelog.metadata.state import PartitionState
from tidelog.protocol.message import Message, decode
from tidelog.protocol.messages.fetch import FetchRequest, FetchResponse
from tidelog.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from tidelog.protocol.wire import Buffer
from tidelog.storage.config import LogConfig

R = TypeVar("R", bound=Message)
LEADER = 1
TOPIC_ID = b"t".ljust(16, b"-")
PartitionData = FetchResponse.PartitionData
SESSION = 77


class ScriptedLeader:
    """Implements Transport and BrokerConnection. `fetches` has the requests, `answer` completes the last."""

    def __init__(self) -> None:
        self.fetches: list[FetchRequest] = []
        self.connections = 0
        self.refuses = False
        self.offsets = {-1: 0, -2: 0}
        self.closed = True
        self.version = 17
        self._asked_version = 0
        self._done: Callable[[Buffer | None, KafkaError | None], None] | None = None

    @property
    def correlation_id(self) -> int:
        return len(self.fetches)

    async def connect(self, broker_id: int, endpoint: Endpoint, *, timeout: float) -> ScriptedLeader:
        self.connections += 1
        if self.refuses:
            raise NetworkException("refused")
        self.closed = False
        return self

    def version_for(self, request: type[Message], *, at_most: int | None = None) -> int:
        return self.version if at_most is None else min(self.version, at_most)

    async def call(
        self, request: Message, answer: type[R], *, version: int | None = None, timeout: float | None = None
    ) -> R:
        assert isinstance(request, ListOffsetsRequest)
        found = self._offset(request)
        assert isinstance(found, answer)
        return found

    def send(
        self,
        key: int,
        version: int,
        body: Sequence[Buffer],
        done: Callable[[Buffer | None, KafkaError | None], None],
        *,
        timeout: float | None = None,
    ) -> None:
        assert key == FetchRequest.KEY
        assert version <= self.version
        self._asked_version = version
        request, _ = decode(FetchRequest, version, b"".join(body))
        self.fetches.append(request)
        self._done = done

    def _offset(self, request: ListOffsetsRequest) -> Message:
        (topic,) = request.topics
        (wanted,) = topic.partitions
        assert request.replica_id == SELF
        found = ListOffsetsResponse.ListOffsetsPartitionResponse(
            partition_index=wanted.partition_index, offset=self.offsets[wanted.timestamp]
        )
        return ListOffsetsResponse(
            topics=[ListOffsetsResponse.ListOffsetsTopicResponse(name=topic.name, partitions=[found])]
        )

    @property
    def is_asked(self) -> bool:
        return self._done is not None

    def _end(self, answer: FetchResponse | None, error: KafkaError | None) -> None:
        """As a connection does: in a later turn of the loop."""
        done, self._done = self._done, None
        assert done is not None
        body = None if answer is None else answer.encode(self._asked_version)
        asyncio.get_running_loop().call_soon(done, body, error)

    def answer(self, *partitions: PartitionData, error: int = 0, session: int = SESSION) -> None:
        assert self.is_asked
        topics = [FetchResponse.FetchableTopicResponse(topic_id=TOPIC_ID, partitions=list(partitions))]
        self._end(
            FetchResponse(error_code=error, session_id=session, responses=topics if partitions else []), None
        )

    def close(self, reason: str = "") -> None:
        self.closed = True
        if self.is_asked:
            self._end(None, NetworkException("closed"))


def data(
    records: bytes = b"", index: int = 0, *, hw: int = 0, start: int = 0, error: int = 0
) -> PartitionData:
    return PartitionData(
        partition_index=index,
        error_code=error,
        high_watermark=hw,
        log_start_offset=start,
        records=memoryview(records),
    )


def wanted(request: FetchRequest) -> list[tuple[int, int, int]]:
    """Partition, fetch offset and last fetched epoch of each partition in a request."""
    return [
        (partition.partition, partition.fetch_offset, partition.last_fetched_epoch)
        for topic in request.topics
        for partition in topic.partitions
    ]


def forgotten(request: FetchRequest) -> list[int]:
    return [index for topic in request.forgotten_topics_data for index in topic.partitions]


class Follower:
    """Broker 0 follows partitions of topic t, which broker 1 leads."""

    def __init__(
        self,
        folder: Path,
        *,
        worker: Worker | None = None,
        quota: FollowerQuota | None = None,
        fetchers: int = 1,
    ) -> None:
        self.world = World(folder, worker=worker)
        self.leader = ScriptedLeader()
        self.manager = ReplicaFetcherManager(
            SELF,
            self.world.scheduler,
            lambda _: self.leader,
            lambda broker: (
                Endpoint("PLAINTEXT", "PLAINTEXT", "localhost", 9092) if broker == LEADER else None
            ),
            lambda: 5,
            ReplicaFetcherSettings(backoff_ms=20, fetchers=fetchers),
            quota,
        )

    def follow(self, index: int = 0, *, epoch: int = 0, **settings: object) -> Partition:
        """Become a follower, as LeaderAndIsr would have this broker do; nothing is fetched yet."""
        state = PartitionState([LEADER, SELF], LEADER, epoch, [LEADER, SELF])
        config = LogConfig(**settings)  # type: ignore[arg-type]
        return self.world.replicas.become_follower("t", TOPIC_ID, index, state, config)

    async def until(self, condition: Callable[[], object], what: str = "") -> None:
        """Let virtual time pass until something is so."""
        for _ in range(2000):
            if condition():
                return
            self.world.advance(0.001)
            await asyncio.sleep(0)
        raise AssertionError(f"it never came: {what}")

    async def asked(self, count: int | None = None) -> FetchRequest:
        """The newest fetch, which waits for its answer."""
        await self.until(
            lambda: self.leader.is_asked and (count is None or len(self.leader.fetches) >= count), "a fetch"
        )
        return self.leader.fetches[-1]

    async def answered(
        self, *partitions: PartitionData, error: int = 0, session: int = SESSION
    ) -> FetchRequest:
        """Answer the waiting fetch, and return the next one."""
        await self.asked()
        count = len(self.leader.fetches)
        self.leader.answer(*partitions, error=error, session=session)
        return await self.asked(count + 1)

    def run(self, test: Coroutine[None, None, None]) -> None:
        async def whole() -> None:
            try:
                await test
            finally:
                self.manager.close()
                await self.manager.wait_closed()

        try:
            asyncio.run(whole())
        finally:
            self.world.close()


def batches(*ranges: Sequence[int]) -> bytes:
    """Batches with these base offsets, counts and leader epochs."""
    from tidelog.records.batch import Record, build_batch

    return b"".join(
        build_batch(
            [Record(base + at, 1_700_000_000_000, None, b"v") for at in range(count)],
            base_offset=base,
            leader_epoch=epoch,
        )
        for base, count, epoch in ranges
    )
