"""A broker that answers Produce as a test says, for what a real one does seldom or never."""

from __future__ import annotations

import asyncio
import ssl
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from tidelog.errors import ErrorCode
from tidelog.protocol.headers import read_request_header, response_header
from tidelog.protocol.message import Message
from tidelog.protocol.messages.api_versions import ApiVersionsResponse
from tidelog.protocol.messages.init_producer_id import InitProducerIdResponse
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tidelog.protocol.messages.produce import ProduceRequest, ProduceResponse
from tidelog.protocol.wire import ZERO_UUID
from tidelog.records.batch import BatchHeader, Record, read_header, read_records

UNKNOWN_TOPIC = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
VERSIONS = {0: (3, 12), 3: (0, 13), 18: (0, 4), 22: (0, 5)}


@dataclass(slots=True)
class Produced:
    """A batch that came in."""

    topic: str
    partition: int
    header: BatchHeader
    records: list[Record]
    size: int
    at: float

    @property
    def values(self) -> list[bytes | None]:
        return [record.value for record in self.records]


@dataclass(slots=True)
class Answer:
    error: int = 0
    base_offset: int | None = None
    log_start_offset: int = 0
    record_errors: list[tuple[int, str]] = field(default_factory=list)
    message: str | None = None
    log_append_time: int = -1


SILENCE = Answer(-1000)
HANG_UP = Answer(-1001)

Script = Callable[[Produced], Answer | None]


class FakeBroker:
    """Keeps what was produced; `script` may answer a batch otherwise than with its offset.

    With several `nodes` it listens as that many brokers, which lead the partitions in turn.
    """

    def __init__(
        self,
        script: Script | None = None,
        *,
        partitions: int = 1,
        nodes: int = 1,
        throttle_ms: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.script = script
        self.partitions = partitions
        self.nodes = nodes
        self.throttle_ms = throttle_ms
        self.tls = tls
        self.produced: list[Produced] = []
        self.requests: list[list[Produced]] = []
        self.logs: dict[tuple[str, int], list[Record]] = {}
        self.metadata_requests = 0
        self.metadata_topics: list[list[str] | None] = []
        """The topics that each request for metadata asked for, None for all."""
        self.unknown_topics: set[str] = set()
        self.on_metadata: Callable[[], object] = lambda: None
        """Called after each answer with metadata was made."""
        self.metadata_answer: Answer | None = None
        """Instead of metadata: an error, or SILENCE."""
        self.topic_ids: dict[str, bytes] = {}
        """Topics that have an id, by which they are produced to from version 13 on."""
        self.connections = 0
        self.producer_ids = 0
        self.leaderless: set[int] = set()
        self.leader = 1
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._writers: set[asyncio.StreamWriter] = set()
        self._thread = threading.Thread(target=self._main, daemon=True)
        self.ports: list[int] = []

    @property
    def port(self) -> int:
        return self.ports[0]

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def hang_up(self) -> None:
        """Close every connection."""

        def abort() -> None:
            for writer in self._writers:
                writer.transport.abort()

        self._loop.call_soon_threadsafe(abort)

    def _main(self) -> None:
        async def listen() -> None:
            for _ in range(self.nodes):
                server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 26, ssl=self.tls)
                self.ports.append(server.sockets[0].getsockname()[1])
            self._ready.set()

        self._loop.create_task(listen())
        self._loop.run_forever()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                request = await reader.readexactly(size)
                key, version, correlation_id, _, start = read_request_header(request)
                answer = self._answer(key, version, request[start:])
                if answer is HANG_UP:
                    writer.transport.abort()
                    return
                if isinstance(answer, Message):
                    body = answer.encode(version, response_header(key, version, correlation_id))
                    writer.write(struct.pack(">i", len(body)) + body)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    def _answer(self, key: int, version: int, body: bytes) -> Message | Answer | None:
        if key == 18:
            keys = [
                ApiVersionsResponse.ApiVersion(api_key=api, min_version=low, max_version=high)
                for api, (low, high) in (VERSIONS | ({0: (3, 13)} if self.topic_ids else {})).items()
            ]
            return ApiVersionsResponse(api_keys=keys)
        if key == 3:
            self.metadata_requests += 1
            if self.metadata_answer is SILENCE:
                return None
            request = MetadataRequest.decode(body, version)
            self.metadata_topics.append(
                None if request.topics is None else [topic.name or "" for topic in request.topics]
            )
            answer = self._metadata(request)
            self.on_metadata()
            return answer
        if key == 22:
            self.producer_ids += 1
            return InitProducerIdResponse(producer_id=100 + self.producer_ids, producer_epoch=0)
        return self._produce(ProduceRequest.decode(body, version))

    def _metadata(self, request: MetadataRequest) -> MetadataResponse:
        if self.metadata_answer is not None:
            return MetadataResponse(error_code=self.metadata_answer.error)
        partitions = [
            MetadataResponse.MetadataResponsePartition(
                partition_index=index,
                leader_id=-1 if index in self.leaderless else self.leader + index % self.nodes,
                leader_epoch=0,
                replica_nodes=[1],
                isr_nodes=[1],
            )
            for index in range(self.partitions)
        ]
        return MetadataResponse(
            brokers=[
                MetadataResponse.MetadataResponseBroker(node_id=1 + index, host="127.0.0.1", port=port)
                for index, port in enumerate(self.ports)
            ],
            cluster_id="fake",
            controller_id=1,
            topics=[
                MetadataResponse.MetadataResponseTopic(
                    name=topic.name,
                    topic_id=self.topic_ids.get(topic.name or "", ZERO_UUID),
                    partitions=[] if topic.name in self.unknown_topics else partitions,
                    error_code=UNKNOWN_TOPIC if topic.name in self.unknown_topics else 0,
                )
                for topic in request.topics or ()
            ],
        )

    def _produce(self, request: ProduceRequest) -> Message | Answer | None:
        answer = ProduceResponse(throttle_time_ms=self.throttle_ms)
        came: list[Produced] = []
        results: list[Answer] = []
        names = {topic_id: name for name, topic_id in self.topic_ids.items()}
        for topic in request.topic_data:
            found = ProduceResponse.TopicProduceResponse(name=topic.name, topic_id=topic.topic_id)
            answer.responses.append(found)
            for data in topic.partition_data:
                assert data.records is not None
                raw = bytes(data.records)
                header = read_header(raw)
                batch = Produced(
                    topic.name or names[topic.topic_id],
                    data.index,
                    header,
                    read_records(raw),
                    len(raw),
                    time.monotonic(),
                )
                came.append(batch)
                self.produced.append(batch)
                result = self.script(batch) if self.script is not None else None
                if result is None:
                    result = Answer()
                results.append(result)
                found.partition_responses.append(self._result(batch, result))
        self.requests.append(came)
        for special in (SILENCE, HANG_UP):
            if special in results:
                return None if special is SILENCE else HANG_UP
        return None if request.acks == 0 else answer

    def _result(self, batch: Produced, result: Answer) -> ProduceResponse.PartitionProduceResponse:
        log = self.logs.setdefault((batch.topic, batch.partition), [])
        offset = result.base_offset
        if result.error == 0 and offset is None:
            offset = len(log)
            log += batch.records
        return ProduceResponse.PartitionProduceResponse(
            index=batch.partition,
            error_code=max(result.error, -1),
            base_offset=-1 if offset is None else offset,
            log_append_time_ms=result.log_append_time,
            log_start_offset=result.log_start_offset,
            error_message=result.message,
            record_errors=[
                ProduceResponse.BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=text)
                for index, text in result.record_errors
            ],
        )
