"""The network client: connections, versions, time-outs, metadata, and brokers that come and go."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from tests.clients.fake_broker import SILENCE, Answer, FakeBroker
from tests.clients.peers import Peer, hang_up, raw, silence, versions
from tidelog.clients import links
from tidelog.clients.async_connection import AsyncConnection
from tidelog.clients.blocking import LoopThread
from tidelog.clients.errors import (
    ClientClosedException,
    IllegalStateException,
    NoBrokersAvailableException,
    TimeoutException,
)
from tidelog.clients.metadata import BrokerNode, ClusterView
from tidelog.clients.network import Backoff, NetworkClient
from tidelog.clients.security import Security
from tidelog.clients.settings import producer_settings
from tidelog.clients.streams import FrameReader
from tidelog.errors import (
    InvalidTopic,
    NetworkException,
    RebootstrapRequired,
    RequestTimedOut,
    UnsupportedVersion,
)
from tidelog.protocol.messages.create_topics import CreateTopicsRequest
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataResponse

NewName = Callable[[str], str]
QUICK = {
    "retry_backoff_ms": 5,
    "retry_backoff_max_ms": 20,
    "reconnect_backoff_ms": 5,
    "reconnect_backoff_max_ms": 20,
}


@asynccontextmanager
async def client(bootstrap: str, **settings: object) -> AsyncIterator[NetworkClient]:
    made = NetworkClient(
        producer_settings(bootstrap_servers=bootstrap, **{**QUICK, **settings}), allow_auto_create=True
    )
    await made.start()
    try:
        yield made
    finally:
        await made.close()


async def connect(port: int, **settings: object) -> AsyncConnection:
    checked = producer_settings(bootstrap_servers="localhost:1", **settings)
    return await AsyncConnection.open(
        BrokerNode(0, "127.0.0.1", port), checked, Security(checked), timeout=2.0
    )


def test_a_topic_is_found_with_its_leader(bootstrap: str, new_name: NewName) -> None:
    topic = new_name("found")

    async def main() -> None:
        async with client(bootstrap) as network:
            view = await network.topic(topic, timeout=20)
            assert view.name == topic
            await network.wait_for(lambda: network.view.leader(topic, 0) is not None, 20, "no leader")
            assert network.view.leader(topic, 0) in network.view.nodes
            assert network.view.cluster_id
            with pytest.raises(InvalidTopic):
                await network.topic("no/such topic", timeout=5)

    asyncio.run(main())


def test_requests_in_a_row_are_answered_each(bootstrap: str) -> None:
    async def main() -> None:
        async with client(bootstrap) as network:
            connection = await network.any_connection()
            request = MetadataRequest(topics=[])
            answers = await asyncio.gather(*(connection.call(request, MetadataResponse) for _ in range(50)))
            assert all(answer.brokers for answer in answers)
            assert connection.in_flight == 0
            await network.refresh(timeout=5)
            node = answers[0].brokers[0].node_id
            assert (await network.call(node, request, MetadataResponse)).brokers

    asyncio.run(main())


def test_a_peer_that_does_not_know_our_version_is_asked_in_its_oldest() -> None:
    async def main(port: int) -> None:
        connection = await connect(port)
        assert connection.version_for(MetadataRequest) == 5
        assert connection.version_for(MetadataRequest, at_most=3) == 3
        assert not connection.serves(CreateTopicsRequest)
        with pytest.raises(UnsupportedVersion, match="does not serve CreateTopics"):
            connection.version_for(CreateTopicsRequest)
        connection.close()

    with Peer([versions({}, 0, UnsupportedVersion.code), versions({3: (0, 5), 18: (0, 0)}, 0)]) as peer:
        asyncio.run(main(peer.port))


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (raw(b"HTTP/1.1 400 Bad Request"), "so no Kafka broker is speaking"),
        (hang_up, r"the broker closed it; a listener with TLS does so to a client without it"),
        (raw(struct.pack(">ii", 4, 999)), "answer 999 came where 1 was due"),
    ],
)
def test_a_peer_that_is_no_broker_is_told_apart(answer: Callable[[bytes], bytes | None], reason: str) -> None:
    with Peer([answer]) as peer, pytest.raises(NetworkException, match=reason):
        asyncio.run(connect(peer.port))


def test_silence_ends_the_connection_and_everything_on_it() -> None:
    async def main(port: int) -> None:
        connection = await connect(port)
        first = asyncio.create_task(
            connection.call(MetadataRequest(topics=[]), MetadataResponse, timeout=0.1)
        )
        second = asyncio.create_task(connection.call(MetadataRequest(topics=[]), MetadataResponse, timeout=9))
        begun = time.monotonic()
        with pytest.raises(RequestTimedOut, match="Metadata: no answer from"):
            await first
        with pytest.raises(NetworkException, match="was not answered in time"):
            await second
        assert time.monotonic() - begun < 8
        assert connection.closed
        with pytest.raises(NetworkException, match="is closed"):
            await connection.call(MetadataRequest(topics=[]), MetadataResponse)

    with Peer([versions({3: (0, 12), 18: (0, 4)}), silence, silence]) as peer:
        asyncio.run(main(peer.port))


def test_where_nobody_can_be_reached_every_address_is_named() -> None:
    async def main() -> None:
        async with client("127.0.0.1:1,localhost:2") as network:
            with pytest.raises(
                NoBrokersAvailableException, match=r"no broker can be reached at .*:\d, .*:\d: cannot connect"
            ):
                await network.any_connection()
            with pytest.raises(
                TimeoutException, match="'t' is not in the metadata after 1000 ms: no broker can be reached"
            ):
                await network.topic("t", timeout=1.0)

    asyncio.run(main())


def test_what_kept_a_client_from_connecting_is_told_where_there_is_no_time_to_try_again() -> None:
    async def main() -> None:
        async with client(
            "127.0.0.1:1", reconnect_backoff_ms=30_000, reconnect_backoff_max_ms=30_000
        ) as network:
            for timeout in (5.0, 0.01):
                with pytest.raises(NoBrokersAvailableException, match=r":1: Connection refused"):
                    await network.any_connection(timeout=timeout)

    asyncio.run(main())


def test_the_second_bootstrap_server_serves_where_the_first_does_not() -> None:
    async def main(bootstrap: str) -> None:
        async with client(f"127.0.0.1:1,{bootstrap}") as network:
            assert (await network.topic("t", timeout=5)).name == "t"

    with FakeBroker() as broker:
        asyncio.run(main(broker.bootstrap))


def test_a_cluster_that_moved_is_found_again_by_its_bootstrap_servers() -> None:
    """Every broker that was known is gone; what the bootstrap address leads to now is asked."""

    async def main(bootstrap: str) -> None:
        async with client(bootstrap) as network:
            await network.topic("t", timeout=5)
            network.view.nodes = {7: BrokerNode(7, "127.0.0.1", 1)}
            for link in network.links():
                if link.connection is not None:
                    link.connection.close()
            await network.refresh(timeout=5)
            assert list(network.view.nodes) == [1]

    with FakeBroker() as broker:
        asyncio.run(main(broker.bootstrap))


async def moved_to(network: NetworkClient, broker: FakeBroker) -> None:
    """Let a client hold a broker for the only one of its cluster."""
    network.view.nodes = {7: BrokerNode(7, "127.0.0.1", broker.port)}
    for link in network.links():
        if link.connection is not None:
            link.connection.close()
    await network.connection(7)
    network.request_refresh()


def asked(broker: FakeBroker, times: int) -> Callable[[], bool]:
    return lambda: broker.metadata_requests >= times


@pytest.mark.parametrize("request_timeout_ms", [100, 30_000])
def test_a_client_starts_again_where_its_brokers_give_no_metadata_for_so_long(
    request_timeout_ms: int,
) -> None:
    """Whether requests time out meanwhile or one of them lasts."""

    async def main(bootstrap: FakeBroker, silent: FakeBroker) -> None:
        silent.metadata_answer = SILENCE
        async with client(
            bootstrap.bootstrap,
            request_timeout_ms=request_timeout_ms,
            metadata_recovery_rebootstrap_trigger_ms=200,
        ) as network:
            await network.topic("t", timeout=5)
            before = bootstrap.metadata_requests
            begun = time.monotonic()
            await moved_to(network, silent)
            await network.wait_for(lambda: list(network.view.nodes) == [1], 5, "not started again")
            assert time.monotonic() - begun >= 0.2
            assert silent.metadata_requests >= 1
            assert bootstrap.metadata_requests > before
            # From there on all is as it was.
            assert (await network.topic("another", timeout=5)).partitions[0].leader == 1

    with FakeBroker() as bootstrap, FakeBroker() as silent:
        asyncio.run(main(bootstrap, silent))


@pytest.mark.parametrize(
    "settings",
    [
        {"metadata_recovery_strategy": "none", "metadata_recovery_rebootstrap_trigger_ms": 50},
        {"metadata_recovery_rebootstrap_trigger_ms": 60_000},
    ],
    ids=["never", "later"],
)
def test_a_client_does_not_start_again_before_its_time(settings: dict[str, object]) -> None:
    async def main(bootstrap: FakeBroker, silent: FakeBroker) -> None:
        silent.metadata_answer = SILENCE
        async with client(bootstrap.bootstrap, request_timeout_ms=100, **settings) as network:
            await network.topic("t", timeout=5)
            await moved_to(network, silent)
            before = bootstrap.metadata_requests
            await network.wait_for(asked(silent, 5), 10, "not asked again")
            assert bootstrap.metadata_requests == before
            assert list(network.view.nodes) == [7]
            # What the broker says in the end is taken over, and the time begins anew with the next failure.
            silent.metadata_answer = None
            await network.wait_for(lambda: list(network.view.nodes) == [1], 5, "no metadata")
            assert network.view.nodes[1].port == silent.port

    with FakeBroker() as bootstrap, FakeBroker() as silent:
        asyncio.run(main(bootstrap, silent))


@pytest.mark.parametrize("strategy", ["rebootstrap", "none"])
def test_a_cluster_may_ask_its_clients_to_start_again(strategy: str) -> None:
    async def main(bootstrap: FakeBroker, leaving: FakeBroker) -> None:
        leaving.metadata_answer = Answer(RebootstrapRequired.code)
        async with client(bootstrap.bootstrap, metadata_recovery_strategy=strategy) as network:
            await network.topic("t", timeout=5)
            await moved_to(network, leaving)
            before = bootstrap.metadata_requests
            if strategy == "rebootstrap":
                await network.wait_for(lambda: list(network.view.nodes) == [1], 5, "not started again")
                assert bootstrap.metadata_requests > before
            else:
                await network.wait_for(asked(leaving, 3), 5, "not asked again")
                assert bootstrap.metadata_requests == before

    with FakeBroker() as bootstrap, FakeBroker() as leaving:
        asyncio.run(main(bootstrap, leaving))


def test_bootstrap_servers_are_not_asked_where_that_is_ruled_out() -> None:
    async def main(broker: FakeBroker) -> None:
        async with client(broker.bootstrap, metadata_recovery_strategy="none") as network:
            await network.topic("t", timeout=5)
            network.view.nodes = {7: BrokerNode(7, "127.0.0.1", 1)}
            for link in network.links():
                if link.connection is not None:
                    link.connection.close()
            with pytest.raises(TimeoutException, match=r"127\.0\.0\.1:1"):
                await network.refresh(timeout=0.3)
            assert list(network.view.nodes) == [7]

    with FakeBroker() as broker:
        asyncio.run(main(broker))


def test_the_metadata_is_refreshed_when_it_is_old() -> None:
    async def main(broker: FakeBroker) -> None:
        async with client(broker.bootstrap, metadata_max_age_ms=20) as network:
            await network.topic("t", timeout=5)
            version = network.view.version
            await network.wait_for(lambda: network.view.version >= version + 3, 5, "not refreshed")

    with FakeBroker() as broker:
        asyncio.run(main(broker))


def test_a_lost_connection_is_made_again() -> None:
    async def main(broker: FakeBroker) -> None:
        async with client(broker.bootstrap) as network:
            await network.topic("t", timeout=5)
            await network.connection(1)
            broker.hang_up()
            version = network.view.version
            await network.wait_for(lambda: network.view.version > version, 5, "not refreshed")
            assert (await network.call(1, MetadataRequest(topics=[]), MetadataResponse)).brokers
            assert broker.connections >= 2

    with FakeBroker() as broker:
        asyncio.run(main(broker))


def test_the_metadata_is_refreshed_when_a_known_broker_cannot_be_reached() -> None:
    """The metadata came before the cluster noticed the death of a leader: nothing else asks for newer."""

    async def main(broker: FakeBroker) -> None:
        async with client(broker.bootstrap) as network:
            await network.topic("t", timeout=5)
            await network.refresh(timeout=5)
            network.view.nodes = {**network.view.nodes, 7: BrokerNode(7, "127.0.0.1", 1)}
            assert network.connection_if_ready(7) is None
            await network.wait_for(lambda: 7 not in network.view.nodes, 5, "not refreshed")

    with FakeBroker() as broker:
        asyncio.run(main(broker))


@pytest.mark.parametrize("hangs_up", [True, False], ids=["after-an-attempt", "during-an-attempt"])
def test_metadata_come_from_other_brokers_than_one_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, hangs_up: bool
) -> None:
    """A paused broker accepts connections and says nothing: chance must not choose it again and again."""
    monkeypatch.setattr(links.random, "shuffle", lambda nodes: nodes.sort(key=lambda node: node.id))
    connections: list[asyncio.StreamWriter] = []

    def connected(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        if hangs_up:
            writer.close()

    async def main(broker: FakeBroker) -> None:
        patient = {"socket_connection_setup_timeout_ms": 60_000}
        async with (
            await asyncio.start_server(connected, "127.0.0.1", 0) as server,
            client(broker.bootstrap, **patient) as network,
        ):
            port = server.sockets[0].getsockname()[1]
            network.view.nodes = {
                0: BrokerNode(0, "127.0.0.1", port),
                7: BrokerNode(7, "127.0.0.1", broker.port),
            }
            waiting = asyncio.create_task(network.connection(0))
            if hangs_up:
                with pytest.raises(NetworkException):
                    await waiting
            else:
                await asyncio.sleep(0)
            async with asyncio.timeout(20):
                assert (await network.any_connection()).node.port == broker.port
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            for writer in connections:
                writer.close()
        assert len(connections) == 1

    with FakeBroker() as broker:
        asyncio.run(main(broker))


def test_an_idle_connection_is_closed() -> None:
    async def main(broker: FakeBroker) -> None:
        async with client(broker.bootstrap, connections_max_idle_ms=100) as network:
            await network.topic("t", timeout=5)
            deadline = time.monotonic() + 5
            while any(link.connection is not None for link in network.links()):
                assert time.monotonic() < deadline
                await asyncio.sleep(0.05)

    with FakeBroker() as broker:
        asyncio.run(main(broker))


def test_a_topic_that_somebody_waits_for_is_in_use() -> None:
    """Also where the cluster gives no metadata for longer than a topic may be idle."""

    async def main(broker: FakeBroker) -> None:
        broker.metadata_answer = SILENCE
        async with client(broker.bootstrap, request_timeout_ms=100, metadata_max_age_ms=20) as network:
            network.topic_idle_ms = 50
            waiting = asyncio.create_task(network.topic("late", timeout=10))
            await network.wait_for(asked(broker, 5), 20, "not asked again")
            broker.metadata_answer = None
            assert (await waiting).partitions
            assert "late" in network.topics

    with FakeBroker() as broker:
        asyncio.run(main(broker))


def test_topics_that_nobody_uses_are_forgotten() -> None:
    async def main(broker: FakeBroker) -> None:
        async with client(broker.bootstrap, metadata_max_age_ms=20) as network:
            await network.topic("old", timeout=5)
            network.topic_idle_ms = 100  # earlier, a slow machine would forget the topic before its answer
            await network.wait_for(lambda: "old" not in network.view.topics, 5, "still there")
            assert "old" not in network.topics

    with FakeBroker() as broker:
        asyncio.run(main(broker))


def test_a_broker_that_asked_for_a_pause_is_left_alone() -> None:
    async def main(broker: FakeBroker) -> None:
        async with client(broker.bootstrap) as network:
            connection = await network.connection((await network.topic("t", timeout=5)).partitions[0].leader)
            assert network.connection_if_ready(1) is connection
            begun = time.monotonic()
            connection.throttle(500)
            assert network.connection_if_ready(1) is None
            assert await network.connection(1) is connection
            assert time.monotonic() - begun >= 0.499

    with FakeBroker(lambda batch: SILENCE) as broker:
        asyncio.run(main(broker))


def test_closing_lets_everybody_go() -> None:
    async def main() -> None:
        async with client("127.0.0.1:1") as network:
            waiting = asyncio.create_task(network.topic("t", timeout=60))
            while "t" not in network.topics:
                await asyncio.sleep(0)
        with pytest.raises(ClientClosedException):
            await waiting
        with pytest.raises(ClientClosedException):
            await network.connection(-1)

    asyncio.run(main())


def test_pauses_grow_and_differ() -> None:
    backoff = Backoff(100, 1000)
    for attempt, expected in enumerate((0.1, 0.2, 0.4, 0.8, 1.0, 1.0)):
        delays = {backoff.delay(attempt) for _ in range(50)}
        assert all(0.8 * expected <= delay <= min(1.2 * expected, 1.0) for delay in delays)
        assert len(delays) > 1
    assert Backoff(5000, 1000).delay(0) <= 1.0


def test_frames_are_cut_out_however_they_arrive() -> None:
    sizes = [4, 10, 70_000, 4, 65_532, 65_533, 200_000, 5]
    stream = b"".join(struct.pack(">i", size) + bytes([index]) * size for index, size in enumerate(sizes))
    for step in (1, 3, 1000, 65_536, len(stream)):
        frames: list[bytes] = []
        reader = FrameReader(lambda frame, frames=frames: frames.append(bytes(frame)))  # type: ignore[misc]
        position = 0
        chunk = stream if step > 1 else stream[:100]
        while position < len(chunk):
            room = reader.get_buffer(-1)
            count = min(len(room), step, len(chunk) - position)
            room[:count] = chunk[position : position + count]
            reader.buffer_updated(count)
            position += count
        if step > 1:
            assert [(len(frame), frame[0]) for frame in frames] == [(size, i) for i, size in enumerate(sizes)]
        else:
            assert frames == [bytes(4), b"\x01" * 10]


def test_an_older_leader_epoch_does_not_replace_a_newer_one() -> None:
    def answer(leader: int, epoch: int) -> MetadataResponse:
        partition = MetadataResponse.MetadataResponsePartition(
            partition_index=0, leader_id=leader, leader_epoch=epoch, replica_nodes=[1, 2], isr_nodes=[1, 2]
        )
        return MetadataResponse(
            brokers=[MetadataResponse.MetadataResponseBroker(node_id=n, host="h", port=1) for n in (1, 2)],
            topics=[
                MetadataResponse.MetadataResponseTopic(name="t", topic_id=bytes(16), partitions=[partition])
            ],
        )

    view = ClusterView()
    view.update(answer(1, 5), asked=["t"])
    view.update(answer(2, 4), asked=["t"])
    assert view.leader("t", 0) == 1
    assert view.update_leader("t", 0, 2, 6)
    assert not view.update_leader("t", 0, 1, 6)
    assert (view.leader("t", 0), view.leader_epoch("t", 0)) == (2, 6)


def test_the_thread_behind_a_blocking_client() -> None:
    thread = LoopThread("test")

    async def slow() -> None:
        await asyncio.Event().wait()

    async def answer() -> int:
        return 7

    assert thread.run(answer()) == 7
    with pytest.raises(TimeoutException, match=r"test: not done within 0\.05 s"):
        thread.run(slow(), 0.05)
    left = thread.submit(slow())
    thread.close()
    thread.close()
    assert left.cancelled()
    with pytest.raises(ClientClosedException):
        thread.run(answer())


def test_a_blocking_call_from_the_thread_itself_is_refused() -> None:
    thread = LoopThread("test")

    async def answer() -> int:
        return 7

    async def inside() -> int:
        return thread.run(answer())

    with pytest.raises(IllegalStateException, match="would wait for ever"):
        thread.run(inside())
    thread.close()
