"""Observability: shows the state of a broker to people and monitoring, apart from logs.

It owns the listener of `/metrics` and `/health`, the metrics and the lag of groups and, if they are switched
on, the canary and the traces of requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from tidelog.endpoints import Endpoint
from tidelog.metrics.registry import Registry
from tidelog.network.server import SocketServer
from tidelog.server.config.broker import BrokerConfig
from tidelog.server.group_lag import GroupLag
from tidelog.server.group_metrics import GroupMetrics
from tidelog.server.run import StartFailed
from tidelog.server.services import Services
from tidelog.server.transaction_metrics import TransactionMetrics

if TYPE_CHECKING:
    from tidelog.metrics.http import Health, MetricsServer
    from tidelog.server.broker_security import BrokerSecurity
    from tidelog.server.leader_offsets import LeaderOffsets
    from tidelog.server.tracing import RequestTracer

MS_PER_SECOND = 1000
CANARY_SECONDS = 2.0
"""How long a stop waits for the canary's clients to close."""


class Observability:
    """`bind` serves `/health`. `start` also serves the metrics, when every part of the broker runs."""

    def __init__(self, config: BrokerConfig, registry: Registry) -> None:
        self._config = config
        self._registry = registry
        self._server: MetricsServer | None = None
        self._cluster_id = ""
        self._canary: asyncio.Task[None] | None = None
        self._tracer: RequestTracer | None = None
        self.group_lag: GroupLag | None = None

    async def bind(self, health: Callable[[], Health], security: BrokerSecurity | None) -> None:
        """Bind metrics.listener, if it is set. Raises StartFailed if the port is in use."""
        listener = self._config.metrics_listener
        if listener is None:
            return
        from tidelog.metrics.http import MetricsServer

        host, _, port = listener.removeprefix("https://").rpartition(":")
        tls = None if security is None else security.metrics_tls
        server = MetricsServer(
            self._registry,
            host.strip("[]") or "127.0.0.1",
            int(port),
            health,
            None if tls is None else lambda: tls.context,
            partitions=lambda: self._config.tidelog_metrics_partitions_enable,
            cluster=lambda: self._cluster_id,
        )
        try:
            await server.bind()
        except OSError as error:
            raise StartFailed(f"metrics.listener={listener}: {error}") from error
        self._server = server

    def start(self, services: Services) -> None:
        self._cluster_id = services.metadata.snapshot.cluster_id
        self.group_lag = GroupLag(services.groups, services.replicas, self._leader_offsets(services))
        self._registry.collect(GroupMetrics(services.groups, self.group_lag).families)
        self._registry.collect(TransactionMetrics(services.transactions, services.replicas).families)
        if self._server is not None:
            self.group_lag.start()
            self._server.start()

    def _leader_offsets(self, services: Services) -> LeaderOffsets | None:
        """Asks the other brokers of the cluster; None for a broker alone."""
        if self._config.cluster is None:
            return None
        from tidelog.server.broker_transport import transport_to
        from tidelog.server.leader_offsets import LeaderOffsets

        listener = self._config.inter_broker_listener

        def endpoint_of(broker_id: int) -> Endpoint | None:
            broker = services.metadata.snapshot.brokers.get(broker_id)
            return None if broker is None else broker.endpoint(listener)

        transport = transport_to(self._config, listener, f"broker-{services.broker_id}-group-lag")
        return LeaderOffsets(services.metadata, transport, endpoint_of)

    def start_canary(self, services: Services, addresses: Mapping[str, str]) -> None:
        """Start the canary of the settings, if there is one. `addresses` are those of the listeners.

        Raises StartFailed without a listener that takes clients as they are.
        """
        interval_ms = self._config.tidelog_canary_interval_ms
        if not interval_ms:
            return
        plain = [end.listener for end in self._config.endpoints if end.security_protocol == "PLAINTEXT"]
        if not plain:
            raise StartFailed(
                f"tidelog.canary.interval.ms={interval_ms}: the canary needs a listener with PLAINTEXT"
            )
        from tidelog.server.canary import Canary

        topic = self._config.tidelog_canary_topic
        canary = Canary(services, addresses[plain[0]], topic, interval_ms / MS_PER_SECOND)
        self._registry.collect(canary.families)
        self._canary = asyncio.get_running_loop().create_task(canary.run())

    def start_tracing(self, server: SocketServer, broker_id: int) -> None:
        """Trace the requests of `server`, if the settings ask for it. StartFailed without the extra otel."""
        endpoint = self._config.tidelog_tracing_endpoint
        if not endpoint:
            return
        if not endpoint.startswith(("http://", "https://")):
            raise StartFailed(f"tidelog.tracing.endpoint={endpoint}: expected a URL with http or https")
        try:
            from tidelog.server.tracing import OtlpJsonExporter, RequestTracer
        except ImportError as error:
            raise StartFailed(
                f"tidelog.tracing.endpoint needs the extra otel: pip install 'tidelog[otel]' ({error})"
            ) from error
        ratio = self._config.tidelog_tracing_sample_ratio
        self._tracer = RequestTracer(OtlpJsonExporter(endpoint), ratio, broker_id, self._cluster_id)
        server.trace(self._tracer)

    @property
    def url(self) -> str | None:
        """The address of the metrics; None without metrics.listener."""
        return None if self._server is None else self._server.url

    async def stop_canary(self) -> None:
        """Stop the canary. Call this before the broker ends its connections."""
        if self._canary is not None:
            self._canary.cancel()
            await asyncio.wait([self._canary], timeout=CANARY_SECONDS)

    async def close(self) -> None:
        if self._tracer is not None:
            await asyncio.to_thread(self._tracer.close)
        if self.group_lag is not None:
            self.group_lag.close()
        if self._server is not None:
            await self._server.close()
