"""Brokers that lead and follow one partition as a test says: for what a real cluster does seldom."""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from tidelog.errors import FetchSessionIdNotFound, NotLeaderOrFollower, OffsetOutOfRange
from tidelog.protocol.headers import read_request_header, response_header
from tidelog.protocol.message import Message
from tidelog.protocol.messages.api_versions import ApiVersionsResponse
from tidelog.protocol.messages.fetch import FetchRequest, FetchResponse
from tidelog.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tidelog.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from tidelog.records.batch import Record, build_batch

VERSIONS = {1: (4, 12), 2: (1, 7), 3: (0, 12), 18: (0, 4), 23: (2, 4)}
FIRST_SESSION = 100

Script = Callable[[int, FetchRequest], FetchResponse | None]


class FakeCluster:
    """Partition 0 of any topic, with a log that a test may cut; `asked` holds every fetch and its broker."""

    def __init__(self, nodes: int = 2) -> None:
        self.nodes = nodes
        self.leader = 0
        self.epoch = 0
        self.log: list[tuple[int, Record]] = []  # with the epoch that each was written in
        self.preferred: int | None = None
        self.script: Script | None = None
        self.asked: list[tuple[int, FetchRequest]] = []
        self.epoch_questions: list[int] = []
        self.sessions: dict[int, int] = {}  # session id and the epoch that is due
        self.ports: list[int] = []
        self._partitions: dict[int, FetchRequest.FetchPartition] = {}
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._main, daemon=True)

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.ports[0]}"

    def write(self, *values: bytes) -> None:
        for value in values:
            self.log.append((self.epoch, Record(len(self.log), 1000 + len(self.log), None, value)))

    def elect(self, leader: int) -> None:
        self.leader, self.epoch = leader, self.epoch + 1

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _main(self) -> None:
        async def listen() -> None:
            for node in range(self.nodes):
                server = await asyncio.start_server(
                    lambda reader, writer, node=node: self._serve(node, reader, writer),  # type: ignore[misc]
                    "127.0.0.1",
                    0,
                )
                self.ports.append(server.sockets[0].getsockname()[1])
            self._ready.set()

        self._loop.create_task(listen())
        self._loop.run_forever()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    async def _serve(self, node: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                request = await reader.readexactly(size)
                key, version, correlation_id, _, start = read_request_header(request)
                answer = await self._answer(node, key, version, request[start:])
                body = answer.encode(version, response_header(key, version, correlation_id))
                writer.write(struct.pack(">i", len(body)) + body)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, node: int, key: int, version: int, body: bytes) -> Message:
        if key == 18:
            keys = [
                ApiVersionsResponse.ApiVersion(api_key=api, min_version=low, max_version=high)
                for api, (low, high) in VERSIONS.items()
            ]
            return ApiVersionsResponse(api_keys=keys)
        if key == 3:
            return self._metadata(MetadataRequest.decode(body, version))
        if key == 2:
            return self._offsets(ListOffsetsRequest.decode(body, version))
        if key == 23:
            return self._epochs(OffsetForLeaderEpochRequest.decode(body, version))
        request = FetchRequest.decode(body, version)
        self.asked.append((node, request))
        answer = self.script(node, request) if self.script is not None else None
        if answer is None:
            answer = self._fetch(node, request)
        if not any(len(p.records or b"") or p.error_code for t in answer.responses for p in t.partitions):  # type: ignore[arg-type]
            await asyncio.sleep(0.02)
        return answer

    def _metadata(self, request: MetadataRequest) -> MetadataResponse:
        partition = MetadataResponse.MetadataResponsePartition(
            partition_index=0,
            leader_id=self.leader,
            leader_epoch=self.epoch,
            replica_nodes=list(range(self.nodes)),
            isr_nodes=list(range(self.nodes)),
        )
        return MetadataResponse(
            brokers=[
                MetadataResponse.MetadataResponseBroker(node_id=node, host="127.0.0.1", port=port)
                for node, port in enumerate(self.ports)
            ],
            cluster_id="fake",
            controller_id=0,
            topics=[
                MetadataResponse.MetadataResponseTopic(name=topic.name, partitions=[partition])
                for topic in request.topics or ()
            ],
        )

    def _offsets(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        wanted = request.topics[0].partitions[0].timestamp
        found = ListOffsetsResponse.ListOffsetsPartitionResponse(
            partition_index=0, offset=len(self.log) if wanted == -1 else 0, leader_epoch=self.epoch
        )
        topic = ListOffsetsResponse.ListOffsetsTopicResponse(name=request.topics[0].name, partitions=[found])
        return ListOffsetsResponse(topics=[topic])

    def _epochs(self, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
        asked = request.topics[0].partitions[0].leader_epoch
        self.epoch_questions.append(asked)
        inside = [index for index, (epoch, _) in enumerate(self.log) if epoch <= asked]
        found = OffsetForLeaderEpochResponse.EpochEndOffset(
            partition=0,
            leader_epoch=self.log[inside[-1]][0] if inside else -1,
            end_offset=inside[-1] + 1 if inside else 0,
        )
        topic = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult(
            topic=request.topics[0].topic, partitions=[found]
        )
        return OffsetForLeaderEpochResponse(topics=[topic])

    def _fetch(self, node: int, request: FetchRequest) -> FetchResponse:
        session = request.session_id
        if request.session_epoch == 0:
            session = FIRST_SESSION + len(self.sessions)
            self.sessions[session] = 1
        elif request.session_epoch > 0:
            if self.sessions.get(session) != request.session_epoch:
                return FetchResponse(error_code=FetchSessionIdNotFound.code)
            self.sessions[session] += 1
        topic = "t"
        if request.topics:
            topic = request.topics[0].topic
            self._partitions[session] = request.topics[0].partitions[0]
        if session not in self._partitions:
            return FetchResponse(session_id=session)
        data = self._partition(node, self._partitions[session].fetch_offset)
        response = FetchResponse.FetchableTopicResponse(topic=topic, partitions=[data])
        return FetchResponse(session_id=session, responses=[response])

    def _partition(self, node: int, offset: int) -> FetchResponse.PartitionData:
        end = len(self.log)
        data = FetchResponse.PartitionData(
            partition_index=0, high_watermark=end, last_stable_offset=end, log_start_offset=0, records=b""
        )
        if node not in (self.leader, self.preferred):
            data.error_code = NotLeaderOrFollower.code
        elif node == self.leader and self.preferred is not None and self.preferred != node:
            data.preferred_read_replica = self.preferred
        elif not 0 <= offset <= end:
            data.error_code = OffsetOutOfRange.code
        elif offset < end:
            epoch, first = self.log[offset]
            data.records = build_batch([first], base_offset=offset, leader_epoch=epoch)
        return data
