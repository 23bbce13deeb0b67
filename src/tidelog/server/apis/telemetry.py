"""GetTelemetrySubscriptions (71) v0 and PushTelemetry (72) v0: clients push their metrics (KIP-714).

- Subscriptions are entities of the type client-metrics (DescribeConfigs, IncrementalAlterConfigs). A client
  gets the metrics of all that match it, and the shortest interval.
- A client that asks or pushes too soon gets THROTTLING_QUOTA_EXCEEDED, one with another subscription
  UNKNOWN_SUBSCRIPTION_ID. A push has at most telemetry.max.bytes, compressed and uncompressed.
- ApiVersions lists both only if metrics.listener shows the metrics to somebody, as Kafka does only with a
  reporter that takes metrics of clients.
"""

from __future__ import annotations

from tidelog.network.request import Request
from tidelog.protocol.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)
from tidelog.protocol.messages.push_telemetry import PushTelemetryRequest, PushTelemetryResponse
from tidelog.server.services import Services
from tidelog.server.telemetry.client_metrics import ACCEPTED_CODECS, ClientFacts


def get_telemetry_subscriptions(
    services: Services, request: Request, body: GetTelemetrySubscriptionsRequest
) -> GetTelemetrySubscriptionsResponse:
    telemetry = services.telemetry.manager
    instance = telemetry.subscribe(body.client_instance_id, _facts(request))
    return GetTelemetrySubscriptionsResponse(
        client_instance_id=instance.instance_id,
        subscription_id=instance.subscription_id,
        accepted_compression_types=[int(codec) for codec in ACCEPTED_CODECS],
        push_interval_ms=instance.interval_ms,
        telemetry_max_bytes=telemetry.max_bytes,
        delta_temporality=True,
        requested_metrics=sorted(instance.metrics),
    )


def push_telemetry(services: Services, request: Request, body: PushTelemetryRequest) -> PushTelemetryResponse:
    services.telemetry.manager.push(
        body.client_instance_id,
        _facts(request),
        body.subscription_id,
        body.compression_type,
        body.metrics,
        terminating=body.terminating,
    )
    return PushTelemetryResponse()


def _facts(request: Request) -> ClientFacts:
    channel = request.channel
    name, version = channel.client_software
    address, _, port = channel.peer.rpartition(":")
    return ClientFacts(request.client_id or "", name, version, address.strip("[]"), port)
