"""FollowerReplication: the replica fetchers of a broker in a cluster, with their settings and connections."""

from __future__ import annotations

from collections.abc import Callable

from tidelog.clock import Scheduler
from tidelog.cluster.follower_quota import FollowerQuota
from tidelog.cluster.metadata_cache import MetadataCache
from tidelog.cluster.replica_fetcher_manager import ReplicaFetcherManager
from tidelog.cluster.replica_fetcher_settings import ReplicaFetcherSettings
from tidelog.cluster.replication_quota import ReplicationQuota
from tidelog.cluster.transport import Transport
from tidelog.endpoints import Endpoint
from tidelog.server.broker_transport import transport_to
from tidelog.server.config.broker import BrokerConfig

FOLLOWER_RATE = "follower.replication.throttled.rate"
RECEIVE_BUFFER = "replica.socket.receive.buffer.bytes"


def _number(config: BrokerConfig, name: str) -> int:
    value = config[name]
    assert isinstance(value, int)
    return value


def fetcher_settings(config: BrokerConfig) -> ReplicaFetcherSettings:
    def number(name: str) -> int:
        return _number(config, name)

    return ReplicaFetcherSettings(
        fetchers=number("num.replica.fetchers"),
        backoff_ms=number("replica.fetch.backoff.ms"),
        max_bytes=number("replica.fetch.max.bytes"),
        min_bytes=number("replica.fetch.min.bytes"),
        response_max_bytes=number("replica.fetch.response.max.bytes"),
        wait_max_ms=number("replica.fetch.wait.max.ms"),
        socket_timeout_ms=number("replica.socket.timeout.ms"),
    )


class FollowerReplication:
    def __init__(
        self,
        config: BrokerConfig,
        broker_id: int,
        metadata: MetadataCache,
        scheduler: Scheduler,
        broker_epoch: Callable[[], int],
    ) -> None:
        self._config = config
        self._broker_id = broker_id
        self._metadata = metadata
        self._rate = ReplicationQuota(scheduler.clock)
        self._set_rate()
        self.fetchers = ReplicaFetcherManager(
            broker_id,
            scheduler,
            self._transport,
            self._endpoint,
            broker_epoch,
            fetcher_settings(config),
            FollowerQuota(self._rate),
        )
        metadata.hidden_leaders = self.fetchers.lost_leaders.hidden

    def _set_rate(self) -> None:
        limit, config = self._config[FOLLOWER_RATE], self._config
        self._rate.configure(
            limit if isinstance(limit, int) else None,
            _number(config, "replication.quota.window.num"),
            _number(config, "replication.quota.window.size.seconds"),
        )

    def _transport(self, number: int) -> Transport:
        client_id = f"broker-{self._broker_id}-fetcher-{number}"
        listener = self._config.inter_broker_listener
        return transport_to(self._config, listener, client_id, receive_buffer=RECEIVE_BUFFER)

    def _endpoint(self, broker_id: int) -> Endpoint | None:
        broker = self._metadata.snapshot.brokers.get(broker_id)
        return None if broker is None else broker.endpoint(self._config.inter_broker_listener)

    def settings_changed(self) -> None:
        self._set_rate()
        self.fetchers.update_settings(fetcher_settings(self._config))

    def leave(self) -> None:
        """Ignore new partitions, because the broker is about to stop."""
        self.fetchers.add_no_more()

    def disconnect(self) -> None:
        """Stop fetching."""
        self.fetchers.close()

    async def close(self) -> None:
        """Wait until no append and no truncation of a follower is under way."""
        await self.fetchers.wait_closed()
