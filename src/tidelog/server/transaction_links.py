"""TransactionLinks: the connections of transactions to partitions and coordinators on other brokers."""

from __future__ import annotations

from tidelog.clock import Scheduler
from tidelog.cluster.metadata_cache import MetadataCache
from tidelog.coordinator.transaction.markers import MarkerChannel
from tidelog.coordinator.transaction.remote_markers import RemoteMarkers
from tidelog.coordinator.transaction.remote_verification import RemoteVerification
from tidelog.endpoints import Endpoint
from tidelog.server.broker_transport import transport_to
from tidelog.server.config.broker import BrokerConfig


class TransactionLinks:
    def __init__(self, config: BrokerConfig, broker_id: int, metadata: MetadataCache) -> None:
        assert config.cluster is not None
        self._config = config
        self._broker_id = broker_id
        self._metadata = metadata
        self._timeout_ms = config.cluster.request_timeout_ms
        self._markers: RemoteMarkers | None = None
        self.verification = RemoteVerification(
            metadata,
            transport_to(config, config.inter_broker_listener, f"broker-{broker_id}-add-partitions-to-txn"),
            self._endpoint_of,
            lambda: self._timeout_ms,
        )

    def markers(self, local: MarkerChannel, scheduler: Scheduler) -> MarkerChannel:
        """Writes markers on any broker; `local` writes the markers of this broker's partitions."""
        listener, client_id = (
            self._config.inter_broker_listener,
            f"broker-{self._broker_id}-txn-marker-sender",
        )
        self._markers = RemoteMarkers(
            self._broker_id,
            local,
            self._metadata,
            scheduler,
            transport_to(self._config, listener, client_id),
            self._endpoint_of,
            lambda: self._timeout_ms,
        )
        return self._markers

    def _endpoint_of(self, broker_id: int) -> Endpoint | None:
        broker = self._metadata.snapshot.brokers.get(broker_id)
        return None if broker is None else broker.endpoint(self._config.inter_broker_listener)

    def close(self) -> None:
        self.verification.close()
        if self._markers is not None:
            self._markers.close()
