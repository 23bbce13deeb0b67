"""Every request is accounted under its API: phases, bytes, versions, errors; and logged when asked for."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Iterator, Sequence

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.network.harness import Running, all_versions, echo, frame, serving
from tidelog.endpoints import Endpoint
from tidelog.metrics import Registry
from tidelog.metrics.prometheus import render
from tidelog.network.limits import NetworkLimits
from tidelog.network.loop import BrokerLoop
from tidelog.network.request import Part, Request
from tidelog.network.request_channel import TRACE, request_log
from tidelog.network.request_metrics import RequestChannelMetrics, RequestMetrics
from tidelog.network.server import SocketServer
from tidelog.server.logs import LineFormatter

FETCH, METADATA = 1, 3


def answer(request: Request) -> None:
    request.respond([struct.pack(">i", request.correlation_id)])


def kind(running: Running, name: str) -> RequestMetrics:
    return running.server.context.metrics.of(name)


def sample(registry: Registry, name: str, **labels: str) -> float | None:
    for family in text_string_to_metric_families(render(registry)):
        for found in family.samples:
            if found.name == name and found.labels == labels:
                return float(found.value)
    return None


def settled(running: Running, name: str, count: int) -> RequestMetrics:
    found = kind(running, name)
    running.wait_until(lambda: found.total.count == count)
    return found


def test_requests_are_counted_by_api_and_version() -> None:
    with serving() as running:
        client = running.client()
        for version in (1, 1, 9):
            client.ask(1, version=version)
        settled(running, "Metadata", 3)
        name = "kafka_network_requestmetrics_requests_total"
        assert sample(running.metrics, name, request="Metadata", version="1") == 2
        assert sample(running.metrics, name, request="Metadata", version="9") == 1
        errors = "kafka_network_requestmetrics_errors_total"
        assert sample(running.metrics, errors, request="Metadata", error="NONE") == 3


def test_phases_that_a_request_did_not_have_count_as_zero() -> None:
    with serving() as running:
        client = running.client()
        for n in range(20):
            client.ask(n, b"x" * 100)
        metadata = settled(running, "Metadata", 20)
        for name, histogram in metadata.histograms().items():
            assert histogram.count == 20, name
        assert metadata.remote.percentiles([0.999]) == [0]
        assert metadata.throttle.percentiles([0.999]) == [0]
        size = len(frame(0, b"x" * 100)) - 4
        assert metadata.request_bytes.percentiles([0.5])[0] == pytest.approx(size, rel=1 / 16)


def test_time_in_a_purgatory_is_remote_time() -> None:
    held: list[Request] = []

    def wait(request: Request) -> None:
        held.append(request)
        request.waiting()

    with serving(wait) as running:
        client = running.client()
        client.send(1)
        running.wait_until(lambda: bool(held))
        running.on_loop(lambda: running.loop.schedule(0.05, lambda: answer(held[0])) and None)
        client.receive()
        metadata = settled(running, "Metadata", 1)
        assert metadata.remote.percentiles([0.5])[0] >= 45
        assert metadata.local.percentiles([0.5])[0] < 45
        assert metadata.total.percentiles([0.5])[0] >= 45


def test_fetches_of_consumers_and_followers_are_kept_apart_and_together() -> None:
    def fetch(request: Request) -> None:
        if request.client_id == "follower":
            request.set_metrics("FetchFollower")
        answer(request)

    with serving(fetch) as running:
        client = running.client()
        for name in ("consumer", "follower", "consumer"):
            client.ask(1, key=FETCH, version=4, client=name)
        settled(running, "FetchConsumer", 2)
        settled(running, "FetchFollower", 1)
        text = render(running.metrics)
        for name, count in (("FetchConsumer", 2), ("FetchFollower", 1), ("Fetch", 3)):
            assert f'kafka_network_requestmetrics_totaltimems_count{{request="{name}"}} {count}\n' in text
            assert f'kafka_network_requestmetrics_remotetimems_count{{request="{name}"}} {count}\n' in text


def test_errors_are_counted_by_name() -> None:
    def fail(request: Request) -> None:
        if request.correlation_id:
            request.count_error(3, 2)
        answer(request)

    with serving(fail) as running:
        client = running.client()
        for n in range(4):
            client.ask(n)
        settled(running, "Metadata", 4)
        name = "kafka_network_requestmetrics_errors_total"
        assert sample(running.metrics, name, request="Metadata", error="UNKNOWN_TOPIC_OR_PARTITION") == 6
        assert sample(running.metrics, name, request="Metadata", error="NONE") == 1


def test_times_of_any_length_find_their_bucket() -> None:
    accounting = RequestChannelMetrics(Registry())
    entry = accounting.entry(METADATA, 1, "Metadata", False)
    for total_ns in (0, 1, 10**3, 10**6, 10**9, 10**12, 10**18):
        request = Request(None, entry, 1, None, memoryview(b""), 0, 2**31, 0, 0)  # type: ignore[arg-type]
        entry.metrics.record(request, total_ns, total_ns, total_ns)
    assert entry.metrics.total.count == entry.metrics.local.count == entry.metrics.request_bytes.count == 7
    assert entry.metrics.total.percentiles([0.7])[0] == pytest.approx(1000, rel=1 / 16)


def test_connections_and_their_software_are_shown() -> None:
    def greet(request: Request) -> None:
        request.channel.client_software = ("librdkafka", "2.6.0")
        echo(request)

    with serving(greet) as running:
        running.client().ask(1)
        running.client().ask(1)
        prefix = "kafka_server_socket_server_metrics_"
        where = {"listener": "PLAINTEXT", "networkProcessor": "0"}
        software = {"clientSoftwareName": "librdkafka", "clientSoftwareVersion": "2.6.0"}
        assert sample(running.metrics, prefix + "connection_count", **where) == 2
        assert sample(running.metrics, prefix + "connection_creation_total", **where) == 2
        assert sample(running.metrics, prefix + "connections_software", **software, **where) == 2
        name = "kafka_network_socketserver_networkprocessoravgidle_percent"
        idle = sample(running.metrics, name)
        assert idle is not None
        assert 0 <= idle <= 1


@pytest.fixture
def log_level() -> Iterator[None]:
    yield
    request_log.setLevel(logging.NOTSET)


@pytest.mark.usefixtures("log_level")
def test_the_request_log_says_everything_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    with serving() as running:
        client = running.client()
        client.ask(1)
        request_log.setLevel(logging.DEBUG)
        running.on_loop(running.server.refresh_log_level)
        client.ask(77, b"body", client="evil\nclient")
        running.wait_until(lambda: len(caplog.records) > 0)
        (record,) = [record for record in caplog.records if record.name == "tidelog.request"]
        assert record.levelno == logging.DEBUG
        line = LineFormatter().format(record)
        assert "\n" not in line
        for part in (
            "msg=completed",
            "api=Metadata",
            "version=1",
            "correlation_id=77",
            r'client_id="evil\nclient"',
            "listener=PLAINTEXT",
            "principal=User:ANONYMOUS",
            "total_ms=",
            "queue_ms=",
            "local_ms=",
            "remote_ms=0.0",
            "throttle_ms=0.0",
            "send_ms=",
            "request_bytes=25",
            "response_bytes=12",
            f"-127.0.0.1:{client.sock.getsockname()[1]}-",
        ):
            assert part in line


@pytest.mark.usefixtures("log_level")
def test_bodies_are_described_only_at_trace(caplog: pytest.LogCaptureFixture) -> None:
    described: list[str] = []

    def describe(request: Request, parts: Sequence[Part] | None) -> str:
        text = "asked" if parts is None else "answered"
        described.append(text)
        return text

    loop = BrokerLoop()
    server = SocketServer(
        loop,
        [Endpoint("L", "PLAINTEXT", "127.0.0.1", 0)],
        echo,
        NetworkLimits(),
        Registry(),
        versions=all_versions,
        formatter=describe,
    )
    running = Running(loop, server, Registry())
    server.start()

    async def scenario() -> None:
        client = running.client()
        for level in (logging.DEBUG, TRACE):
            request_log.setLevel(level)
            server.refresh_log_level()
            client.send(1)
            before = len(caplog.records)
            while len(caplog.records) == before:
                await asyncio.sleep(0.001)
            client.receive()
            if level == logging.DEBUG:
                assert described == []
        await server.close()

    caplog.set_level(TRACE, logger="tidelog.request")
    loop.run_until_complete(scenario())
    assert described == ["asked", "answered"]
    assert "request=asked response=answered" in LineFormatter().format(caplog.records[-1])
    running.close_clients()
    loop.close()
