"""ClientTelemetry: the metrics that clients push. Its parts are loaded when the first client asks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tidelog.clock import Clock

if TYPE_CHECKING:
    from tidelog.cluster.metadata_cache import MetadataCache
    from tidelog.metrics.registry import Family
    from tidelog.server.telemetry.client_metrics import ClientMetricsManager
    from tidelog.server.telemetry.client_series import ClientSeries


class ClientTelemetry:
    """`manager` answers clients; `families` shows the numbers that they pushed."""

    def __init__(self, clock: Clock, metadata: MetadataCache, max_bytes: int) -> None:
        self._clock = clock
        self._metadata = metadata
        self._max_bytes = max_bytes
        self._series: ClientSeries | None = None
        self._manager: ClientMetricsManager | None = None

    @property
    def manager(self) -> ClientMetricsManager:
        if self._manager is None:
            from tidelog.server.telemetry.client_metrics import ClientMetricsManager
            from tidelog.server.telemetry.client_series import ClientSeries

            self._series = ClientSeries(self._clock)
            self._manager = ClientMetricsManager(self._clock, self._metadata, self._series, self._max_bytes)
        return self._manager

    def families(self) -> Iterator[Family]:
        if self._series is not None:
            yield from self._series.families()
