"""RequestTracer: each request as a span of OpenTelemetry, sent to a collector over HTTP.

Needs the extra otel. A thread of the SDK sends the spans in batches. If they come too fast, spans are
dropped: no request waits for the collector.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import TraceIdRatioBased
from opentelemetry.trace import SpanKind, Status, StatusCode

from tidelog import __version__
from tidelog.errors import error_name
from tidelog.network.request import Request
from tidelog.security.https import ask

log = logging.getLogger("tidelog.server.tracing")

SEND_SECONDS: Final = 5.0
MAX_ANSWER_BYTES: Final = 1 << 20


class RequestTracer:
    """Implements network.request_channel.Tracer. `close` sends the spans that wait."""

    def __init__(self, exporter: SpanExporter, ratio: float, broker_id: int, cluster_id: str) -> None:
        resource = Resource(
            {
                "service.name": "tidelog",
                "service.version": __version__,
                "service.instance.id": str(broker_id),
                "kafka.cluster.id": cluster_id,
            }
        )
        self._provider = TracerProvider(TraceIdRatioBased(ratio), resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("tidelog", __version__)

    def completed(
        self, request: Request, response_bytes: int, responded_ns: int, send_start_ns: int, sent_ns: int
    ) -> None:
        epoch_ns = time.time_ns() - time.perf_counter_ns()
        span = self._tracer.start_span(
            request.metrics.name, kind=SpanKind.SERVER, start_time=epoch_ns + request.received_ns
        )
        if span.is_recording():
            channel = request.channel
            local_end = request.local_end_ns or responded_ns
            span.set_attributes(
                {
                    "messaging.system": "kafka",
                    "messaging.client.id": request.client_id or "",
                    "client.address": channel.peer,
                    "user.name": channel.principal,
                    "kafka.listener": channel.listener,
                    "kafka.api.version": request.api_version,
                    "kafka.correlation_id": request.correlation_id,
                    "kafka.request.bytes": request.size,
                    "kafka.response.bytes": response_bytes,
                    "kafka.queue_ms": (request.started_ns - request.received_ns) / 1e6,
                    "kafka.local_ms": (local_end - request.started_ns) / 1e6,
                    "kafka.remote_ms": (responded_ns - local_end) / 1e6,
                    "kafka.throttle_ms": request.throttle_ns / 1e6,
                    "kafka.send_ms": (sent_ns - send_start_ns) / 1e6,
                }
            )
            if request.errors:
                names = ",".join(error_name(code) for code in request.errors)
                span.set_status(Status(StatusCode.ERROR, names))
        span.end(epoch_ns + sent_ns)

    def close(self) -> None:
        """Send the remaining spans, for a few seconds at most.

        Call this on another thread than the loop's.
        """
        self._provider.shutdown()


class OtlpJsonExporter(SpanExporter):
    """Sends spans as OTLP in JSON: the SDK's own exporter would need protobuf and requests."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        data = json.dumps(_otlp(spans)).encode()
        headers = {"Content-Type": "application/json"}
        try:
            ask(
                self._endpoint,
                seconds=SEND_SECONDS,
                max_bytes=MAX_ANSWER_BYTES,
                data=data,
                headers=headers,
            )
            return SpanExportResult.SUCCESS
        except (OSError, ValueError) as error:
            log.warning("%d spans are lost: %s does not take them: %s", len(spans), self._endpoint, error)
            return SpanExportResult.FAILURE


def _otlp(spans: Sequence[ReadableSpan]) -> dict[str, object]:
    resource = spans[0].resource if spans else Resource({})
    scope = {"name": "tidelog", "version": __version__}
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": _attributes(resource.attributes)},
                "scopeSpans": [{"scope": scope, "spans": [_span(span) for span in spans]}],
            }
        ]
    }


def _span(span: ReadableSpan) -> dict[str, object]:
    context = span.get_span_context()
    status = span.status
    return {
        "traceId": f"{context.trace_id:032x}" if context is not None else "",
        "spanId": f"{context.span_id:016x}" if context is not None else "",
        "name": span.name,
        "kind": 2,  # a server
        "startTimeUnixNano": str(span.start_time),
        "endTimeUnixNano": str(span.end_time),
        "attributes": _attributes(span.attributes or {}),
        "status": {"code": status.status_code.value, "message": status.description or ""},
    }


def _attributes(values: Mapping[str, object]) -> list[dict[str, object]]:
    return [{"key": key, "value": _value(value)} for key, value in values.items()]


def _value(value: object) -> dict[str, object]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    return {"stringValue": str(value)}
