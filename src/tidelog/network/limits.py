"""The settings of the network, and Kafka's ConnectionQuotas: limits for the number and the rate of
connections.

ConnectionQuotas only counts. Acceptors ask it before they accept, and report opened and closed connections.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from tidelog.metrics.sampled_stat import Rate, SampleConfig

UNLIMITED: Final = 2**31 - 1

MOST_ADDRESSES: Final = 10_000
"""From so many addresses on, those without a connection in the last windows are forgotten now and then."""


@dataclass(slots=True)
class ListenerLimits:
    """The settings of one listener, with the prefix `listener.name.<name>.`."""

    max_connections: int = UNLIMITED
    max_connection_creation_rate: int = UNLIMITED


@dataclass(slots=True)
class NetworkLimits:
    """The settings of the network, named as in server.properties."""

    socket_request_max_bytes: int = 104_857_600
    queued_max_requests: int = 500
    queued_max_request_bytes: int = -1
    max_connections: int = UNLIMITED
    max_connections_per_ip: int = UNLIMITED
    max_connections_per_ip_overrides: dict[str, int] = field(default_factory=dict)
    max_connection_creation_rate: int = UNLIMITED
    quota_windows: SampleConfig = field(default_factory=SampleConfig)
    connections_max_idle_ms: int = 600_000
    socket_send_buffer_bytes: int = -1
    socket_receive_buffer_bytes: int = -1
    socket_listen_backlog_size: int = 50
    inter_broker_listener_name: str | None = None
    control_plane_listener_name: str | None = None
    listeners: dict[str, ListenerLimits] = field(default_factory=dict)


class RateLimit:
    """A token bucket: `rate` events a second, with a burst of as many."""

    __slots__ = ("_at", "_tokens", "rate")

    def __init__(self, rate: int, now: float) -> None:
        self.rate = rate
        self._tokens = float(rate)
        self._at = now

    def delay(self, now: float) -> float:
        """The seconds until the next event is allowed; 0 if it is allowed now."""
        if self.rate >= UNLIMITED:
            return 0.0
        self._tokens = min(float(self.rate), self._tokens + (now - self._at) * self.rate)
        self._at = now
        return 0.0 if self._tokens >= 1.0 else (1.0 - self._tokens) / self.rate

    def take(self) -> None:
        self._tokens -= 1.0


class AddressRates:
    """connection_creation_rate: the number of connections that each address may open per second."""

    def __init__(self, windows: SampleConfig) -> None:
        self._windows = windows
        self._limits: dict[str, int] = {}
        self._default: int | None = None
        self._rates: dict[str, Rate] = {}
        self._forget_at = MOST_ADDRESSES

    def set(self, addresses: list[str] | None, rate: int | None) -> None:
        """Set the limit of addresses, for None of all others; a rate of None removes it."""
        if addresses is None:
            self._default = rate
        for address in addresses or ():
            self._rates.pop(address, None)
            if rate is None:
                self._limits.pop(address, None)
            else:
                self._limits[address] = rate
        if self._default is None and not self._limits:
            self._rates.clear()

    def throttle(self, address: str, now: float) -> float:
        """Count a connection; returns the seconds after which it is to be closed, 0 if it is allowed."""
        limit = self._limits.get(address, self._default)
        if limit is None:
            return 0.0
        now_ms = int(now * 1000)
        if len(self._rates) >= self._forget_at:
            self._forget_idle(now_ms)
        rate = self._rates.get(address)
        if rate is None:
            rate = self._rates[address] = Rate(self._windows)
        rate.record(1.0, now_ms)
        measured = rate.measure(now_ms)
        if measured <= limit:
            return 0.0
        rate.record(-1.0, now_ms)
        wait_ms = (measured - limit) / limit * rate.window_ms(now_ms) if limit else math.inf
        return min(wait_ms, self._windows.window_ms) / 1000

    def _forget_idle(self, now_ms: int) -> None:
        self._rates = {address: rate for address, rate in self._rates.items() if rate.measure(now_ms) > 0}
        # Seldom: with many busy addresses, a check of all of them for each new connection would take too
        # long.
        self._forget_at = max(MOST_ADDRESSES, 2 * len(self._rates))


class ConnectionQuotas:
    """Counts the open connections of the broker, of each listener and of each address.

    At max.connections a listener waits until a connection closes. The listener of the brokers is protected if
    there are other listeners: it goes on accepting, and the connection of the others that is idle longest is
    closed.
    """

    def __init__(self, limits: NetworkLimits, listeners: list[str], now: float) -> None:
        self._listeners = listeners
        self.total = 0
        self.by_listener: Counter[str] = Counter()
        self._by_address: Counter[str] = Counter()
        self._rates: dict[str, RateLimit] = {}
        self.addresses = AddressRates(limits.quota_windows)
        self.update(limits, now)

    def update(self, limits: NetworkLimits, now: float) -> None:
        """Apply changed settings. The caller closes the connections above a lowered limit (`excess`)."""
        self._limits = limits
        self._rate = RateLimit(limits.max_connection_creation_rate, now)
        for name in self._listeners:
            of_listener = limits.listeners.get(name, ListenerLimits())
            self._rates[name] = RateLimit(of_listener.max_connection_creation_rate, now)

    def is_protected(self, listener: str) -> bool:
        limits = self._limits
        brokers = (limits.inter_broker_listener_name, limits.control_plane_listener_name)
        return listener in brokers and len(self._listeners) > 1

    def has_room(self, listener: str) -> bool:
        of_listener = self._limits.listeners.get(listener)
        if of_listener is not None and self.by_listener[listener] >= of_listener.max_connections:
            return False
        return self.is_protected(listener) or self.total < self._limits.max_connections

    @property
    def excess(self) -> int:
        """The number of open connections above max.connections."""
        return max(0, self.total - self._limits.max_connections)

    def delay(self, listener: str, now: float) -> float:
        """Seconds until the creation rates allow another connection."""
        broker_delay = 0.0 if self.is_protected(listener) else self._rate.delay(now)
        return max(broker_delay, self._rates[listener].delay(now))

    def limit_of(self, address: str) -> int:
        return self._limits.max_connections_per_ip_overrides.get(address, self._limits.max_connections_per_ip)

    def admit(self, listener: str, address: str) -> bool:
        """Count a new connection. Returns False if its address has max.connections.per.ip already."""
        self._rate.take()
        self._rates[listener].take()
        if self._by_address[address] >= self.limit_of(address):
            if not self._by_address[address]:
                del self._by_address[address]
            return False
        self.total += 1
        self.by_listener[listener] += 1
        self._by_address[address] += 1
        return True

    def forget(self, listener: str, address: str) -> None:
        self.total -= 1
        self.by_listener[listener] -= 1
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]
