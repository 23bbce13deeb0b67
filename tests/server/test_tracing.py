"""Requests as spans of OpenTelemetry: what a collector gets, and what a broker does without one."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.support.broker import Broker
from tests.support.wait import eventually
from tidelog.clients.producer.blocking import Producer

Spans = list[dict[str, object]]


@contextmanager
def collector() -> Iterator[tuple[str, Spans]]:
    """A receiver of OTLP over HTTP: its URL, and the spans that it has got."""
    spans: Spans = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.headers["Content-Type"] == "application/json"
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            for of_resource in body["resourceSpans"]:
                resource = attributes(of_resource["resource"])
                for scope in of_resource["scopeSpans"]:
                    spans.extend({**span, "resource": resource} for span in scope["spans"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Receiver)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1/traces", spans
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def attributes(holder: dict[str, object]) -> dict[str, object]:
    pairs = holder["attributes"]
    assert isinstance(pairs, list)
    return {pair["key"]: next(iter(pair["value"].values())) for pair in pairs}


def test_each_request_is_a_span_with_its_client_sizes_and_times(tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.sdk")
    with collector() as (url, spans), Broker(tmp_path, {"tidelog.tracing.endpoint": url}) as broker:
        with Producer({"bootstrap.servers": broker.bootstrap, "client.id": "till"}) as producer:
            for _ in range(3):
                producer.send_and_wait("orders", b"x" * 500)
        assert broker.terminate() == 0  # which sends the spans that wait
        produces = eventually(lambda: [s for s in spans if s["name"] == "Produce"], "spans of Produce")
    assert len(produces) == 3
    for span in produces:
        given = attributes(span)
        assert given["messaging.client.id"] == "till"
        assert int(str(given["kafka.request.bytes"])) > 500
        assert int(str(given["kafka.response.bytes"])) > 0
        lasted = int(str(span["endTimeUnixNano"])) - int(str(span["startTimeUnixNano"]))
        assert float(str(given["kafka.local_ms"])) * 1e6 <= lasted
        assert len(str(span["traceId"])) == 32
        assert span["resource"]["service.name"] == "tidelog"  # type: ignore[index]
    assert "Metadata" in {span["name"] for span in spans}


def test_a_collector_that_is_gone_delays_no_request_and_no_stop(tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.sdk")
    with Broker(tmp_path, {"tidelog.tracing.endpoint": "http://127.0.0.1:9/v1/traces"}) as broker:
        with Producer({"bootstrap.servers": broker.bootstrap}) as producer:
            producer.send_and_wait("orders", b"x")
        assert broker.terminate() == 0
        assert "spans are lost" in broker.log()


def refused(broker: Broker) -> str:
    """What a broker prints that does not start."""
    broker.launch()
    try:
        assert broker.wait(120.0) == 1
    finally:
        broker.close()
    assert "Traceback" not in broker.log()
    return broker.log()


def test_an_address_that_is_no_url_is_refused(tmp_path: Path) -> None:
    broker = Broker(tmp_path, {"tidelog.tracing.endpoint": "collector:4318"})
    assert "tidelog.tracing.endpoint=collector:4318: expected a URL" in refused(broker)


def test_without_the_extra_one_line_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "packages" / "opentelemetry"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('it is not installed')\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (package.parent, *filter(None, sys.path)))))
    broker = Broker(tmp_path / "broker", {"tidelog.tracing.endpoint": "http://localhost:4318/v1/traces"})
    assert "pip install 'tidelog[otel]'" in refused(broker)
