"""Whatever arrays a request has, the others are served meanwhile, and memory stays in proportion."""

from __future__ import annotations

import gc
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.client import resident_bytes
from tests.faults.faulty_disk import InProcess
from tests.support.broker import Broker
from tests.support.hostile import array_paths, empty_elements, request_with
from tests.support.raw import ConnectionClosed, RawConnection
from tests.support.scale import scale
from tests.support.wait import eventually
from tidelog.clients.connection import request_frame
from tidelog.errors import ErrorCode
from tidelog.network.loop import DirectSelector
from tidelog.protocol.api import API
from tidelog.protocol.headers import MAX_TAGGED_FIELDS, request_header
from tidelog.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tidelog.protocol.messages.create_delegation_token import CreateDelegationTokenRequest
from tidelog.protocol.messages.create_topics import CreateTopicsRequest
from tidelog.protocol.messages.describe_delegation_token import (
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)
from tidelog.protocol.messages.fetch import FetchRequest, FetchResponse
from tidelog.protocol.messages.find_coordinator import FindCoordinatorRequest
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tidelog.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from tidelog.protocol.messages.sasl_handshake import SaslHandshakeRequest
from tidelog.protocol.reader import MAX_ELEMENTS
from tidelog.protocol.wire import write_uvarint
from tidelog.server.apis import served_apis

PRODUCE, FETCH, CREATE_TOPICS = 0, 1, 19
# Known partitions are written and read in one go. The settings of 5,000 topics are joined and freed in one:
# that takes 100 ms, and twice as long on a busy machine; without slices the whole would take 1,100 ms.
SLOWER = {PRODUCE: 2, FETCH: 2, CREATE_TOPICS: 8}
ARRAYS = [
    (api.key, path)
    for api in sorted(served_apis().values(), key=lambda api: api.key)
    for path in array_paths(API[api.key].request, api.max_version)
]
WITH_ARRAYS = sorted({key for key, _ in ARRAYS})


def name_of(value: object) -> str:
    return ".".join(value) if isinstance(value, tuple) else API[value].name  # type: ignore[index]


def prepare(connection: RawConnection) -> None:
    topic = CreateTopicsRequest.CreatableTopic(name="t0", num_partitions=3, replication_factor=1)
    connection.call(CreateTopicsRequest(topics=[topic]), 7)
    for kind in (0, 1):
        find = FindCoordinatorRequest(key="t0", key_type=kind)
        eventually(lambda find=find: connection.call(find, 3).error_code == 0, "a coordinator")  # type: ignore[attr-defined, misc]


class LoopWatch:
    """The longest CPU time that the loop's thread spent between two looks at its sockets."""

    def __init__(self, selector: DirectSelector) -> None:
        self.longest = 0.0
        self._since: float | None = None
        self._poll = selector._poll
        selector._poll = self._watched  # type: ignore[assignment, method-assign]

    def _watched(self, timeout: float | None, events: int) -> list[tuple[int, int]]:
        if self._since is not None:
            self.longest = max(self.longest, time.thread_time() - self._since)
        found = self._poll(timeout, events)
        self._since = time.thread_time()
        return found


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[InProcess, LoopWatch]]:
    settings = {"log.dirs": str(tmp_path_factory.mktemp("arrays")), "group.initial.rebalance.delay.ms": "0"}
    running = InProcess(settings)
    running.start()
    assert running.loop is not None
    watch = LoopWatch(running.loop.direct)
    with RawConnection(running.address) as connection:
        prepare(connection)
    # A broker of its own collects garbage rarely, and its heap is small beside that of these tests.
    gc.disable()
    try:
        yield running, watch
    finally:
        gc.enable()
        running.stop()


@pytest.mark.parametrize(("key", "path"), ARRAYS, ids=name_of)
def test_many_elements_hold_the_loop_for_a_moment_only(
    watched: tuple[InProcess, LoopWatch], key: int, path: tuple[str, ...]
) -> None:
    running, watch = watched
    version = served_apis()[key].max_version
    count = scale(5_000, MAX_ELEMENTS - len(path))
    frame = request_frame(request_with(API[key].request, version, path, count), version, 1, "hostile")
    watch.longest = 0.0
    with RawConnection(running.address, timeout=120) as connection:
        connection.send_bytes(frame)
        connection.receive_frame()
    # In one go 5,000 elements of the costliest APIs take 40 to 80 ms, 100,000 up to 1,600 ms.
    assert watch.longest < scale(40, 600) / 1000 * SLOWER.get(key, 1)


def test_a_session_of_many_unknown_partitions_holds_the_loop_for_a_moment_only(
    watched: tuple[InProcess, LoopWatch],
) -> None:
    running, watch = watched
    count = scale(5_000, 60_000)
    partitions = [FetchRequest.FetchPartition(partition=n, partition_max_bytes=1000) for n in range(count)]
    first = FetchRequest(
        max_wait_ms=0,
        session_epoch=0,
        topics=[FetchRequest.FetchTopic(topic="absent", partitions=partitions)],
    )
    with RawConnection(running.address, timeout=120) as connection:
        session = connection.ask(first, FetchResponse, 12).session_id
        assert session
        for epoch in (1, 2):
            watch.longest = 0.0
            again = FetchRequest(max_wait_ms=60_000, min_bytes=1, session_id=session, session_epoch=epoch)
            answer = connection.ask(again, FetchResponse, 12)
            codes = [partition.error_code for topic in answer.responses for partition in topic.partitions]
            assert codes == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * count
            assert watch.longest < scale(40, 600) / 1000


def test_many_owners_of_many_tokens_hold_the_loop_for_a_moment_only(tmp_path: Path) -> None:
    """Who logs in may make any number of tokens, and ask for those of any number of owners."""
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    running = InProcess(
        {
            "log.dirs": str(tmp_path),
            "listeners": "SASL_PLAINTEXT://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{module} required user_a="b";',
            "delegation.token.secret.key": "token-secret",
        }
    )
    running.start()
    assert running.loop is not None
    watch = LoopWatch(running.loop.direct)
    gc.disable()
    try:
        with RawConnection(running.address, timeout=60) as connection:
            connection.call(SaslHandshakeRequest(mechanism="PLAIN"), 1)
            connection.call(SaslAuthenticateRequest(auth_bytes=b"\0a\0b"), 2)
            for _ in range(200):
                connection.call(CreateDelegationTokenRequest(max_lifetime_ms=-1), 3)
            owner = DescribeDelegationTokenRequest.DescribeDelegationTokenOwner
            owners = [owner(principal_type="User", principal_name=f"u{number}") for number in range(20_000)]
            watch.longest = 0.0
            request = DescribeDelegationTokenRequest(owners=owners)
            assert connection.ask(request, DescribeDelegationTokenResponse, 3).tokens == []
            # In one go 200 tokens and 20,000 owners take 250 ms.
            assert watch.longest < 0.04
            request = DescribeDelegationTokenRequest(owners=None)
            assert len(connection.ask(request, DescribeDelegationTokenResponse, 3).tokens) == 200
    finally:
        gc.enable()
        running.stop()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("sizes")) as running:
        with RawConnection(running.address) as connection:
            prepare(connection)
        yield running


class Ordinary:
    """A client that asks all the time; `longest` is how long it waited for an answer at most."""

    def __init__(self, broker: Broker) -> None:
        self._connection = RawConnection(broker.address, timeout=60)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.longest = 0.0

    def __enter__(self) -> Ordinary:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._connection.close()

    def _run(self) -> None:
        request = ApiVersionsRequest(client_software_name="a", client_software_version="1")
        while not self._stop.wait(0.005):
            start = time.monotonic()
            self._connection.ask(request, ApiVersionsResponse, 3)
            self.longest = max(self.longest, time.monotonic() - start)


@pytest.mark.parametrize("key", WITH_ARRAYS, ids=name_of)
def test_a_frame_full_of_the_smallest_elements_takes_little_memory_and_nobody_elses_time(
    broker: Broker, key: int
) -> None:
    api = API[key]
    version = served_apis()[key].max_version
    size = scale(2_000_000, 104_000_000)
    with Ordinary(broker) as ordinary:
        for path in array_paths(api.request, version):
            before = resident_bytes(broker.pid)
            body = empty_elements(api.request, version, path, size)
            with RawConnection(broker.address, timeout=60) as connection:
                try:
                    connection.send_frame(request_header(key, version, 1, "hostile") + body)
                    connection.receive_frame()
                except ConnectionClosed:
                    pass
            assert resident_bytes(broker.pid) - before < 100_000_000 + size, path
    assert ordinary.longest < 5


def test_a_request_above_the_limit_is_named_in_the_log(broker: Broker) -> None:
    topics = [MetadataRequest.MetadataRequestTopic(name="x")] * (MAX_ELEMENTS + 1)
    with RawConnection(broker.address) as connection:
        connection.send(MetadataRequest(topics=topics), 9)
        with pytest.raises(ConnectionClosed):
            connection.receive_frame()
        port = connection.socket.getsockname()[1]
    reason = (
        f"malformed Metadata request: MetadataRequest v9: with {MAX_ELEMENTS + 1} topics its arrays have "
        f"more than {MAX_ELEMENTS} elements together"
    )
    (line,) = [line for line in broker.log().splitlines() if f"127.0.0.1:{port} " in line]
    assert reason in line


@pytest.mark.parametrize("count", [MAX_TAGGED_FIELDS + 1, 20_000_000])
def test_a_header_with_many_tagged_fields_is_refused(broker: Broker, count: int) -> None:
    header = struct.pack(">hhih", 18, 3, 1, -1) + write_uvarint(count)
    fields = b"\x05\x00" * min(count, scale(1_000_000, 20_000_000))
    with Ordinary(broker) as ordinary, RawConnection(broker.address, timeout=60) as connection:
        connection.send_frame(header + fields + b"\x02a\x02a\0")
        with pytest.raises(ConnectionClosed):
            connection.receive_frame()
    assert ordinary.longest < 5
    assert f"{count} tagged fields where at most {MAX_TAGGED_FIELDS} are read" in broker.log()


def test_the_largest_requests_of_real_clients_are_answered(broker: Broker) -> None:
    names = [f"topic-with-an-ordinary-name-{n}" for n in range(10_000)]
    topics = [MetadataRequest.MetadataRequestTopic(name=name) for name in names]
    with RawConnection(broker.address, timeout=60) as connection:
        answer = connection.ask(
            MetadataRequest(topics=topics, allow_auto_topic_creation=False), MetadataResponse, 9
        )
    assert [(topic.name, topic.error_code) for topic in answer.topics] == [(name, 3) for name in names]


def test_a_peer_that_goes_away_takes_its_large_request_with_it(
    watched: tuple[InProcess, LoopWatch],
) -> None:
    running, _ = watched
    assert running.broker is not None
    server = running.broker._server
    assert server is not None
    topics = [MetadataRequest.MetadataRequestTopic(name=f"m{n}") for n in range(50_000)]
    with RawConnection(running.address, timeout=60) as connection:
        connection.send(MetadataRequest(topics=topics, allow_auto_topic_creation=False), 9)
        eventually(lambda: server.context.in_progress == 1, "the request is being worked on", interval=0.0001)
    eventually(lambda: server.context.in_progress == 0, "the request is given up")
    assert server.context.pool.used == 0


def test_a_topic_that_is_named_twice_is_described_once(broker: Broker) -> None:
    topics = [MetadataRequest.MetadataRequestTopic(name="t0")] * 3
    with RawConnection(broker.address) as connection:
        answer = connection.ask(MetadataRequest(topics=topics), MetadataResponse, 9)
    assert [topic.name for topic in answer.topics] == ["t0"]
