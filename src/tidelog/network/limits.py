"""How many connections there may be: altogether, on a listener, from an address, and made in a second.

Pure counting; the acceptors ask before they accept and tell what they did.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

UNLIMITED: Final = 2**31 - 1


@dataclass(slots=True)
class ListenerLimits:
    """The settings that a `listener.name.<name>.` prefix gives to one listener."""

    max_connections: int = UNLIMITED
    max_connection_creation_rate: int = UNLIMITED


@dataclass(slots=True)
class NetworkLimits:
    """The settings of the network part, named as in server.properties with underscores."""

    socket_request_max_bytes: int = 104_857_600
    queued_max_requests: int = 500
    queued_max_request_bytes: int = -1
    max_connections: int = UNLIMITED
    max_connections_per_ip: int = UNLIMITED
    max_connections_per_ip_overrides: dict[str, int] = field(default_factory=dict)
    max_connection_creation_rate: int = UNLIMITED
    connections_max_idle_ms: int = 600_000
    socket_send_buffer_bytes: int = -1
    socket_receive_buffer_bytes: int = -1
    socket_listen_backlog_size: int = 50
    inter_broker_listener_name: str | None = None
    listeners: dict[str, ListenerLimits] = field(default_factory=dict)


class RateLimit:
    """At most `rate` events a second, with a second's worth at once; says how long the next has to wait."""

    __slots__ = ("_at", "_tokens", "rate")

    def __init__(self, rate: int, now: float) -> None:
        self.rate = rate
        self._tokens = float(rate)
        self._at = now

    def delay(self, now: float) -> float:
        """Seconds until one more is allowed; 0 when it is."""
        if self.rate >= UNLIMITED:
            return 0.0
        self._tokens = min(float(self.rate), self._tokens + (now - self._at) * self.rate)
        self._at = now
        return 0.0 if self._tokens >= 1.0 else (1.0 - self._tokens) / self.rate

    def take(self) -> None:
        self._tokens -= 1.0


class ConnectionLimits:
    """The connections there are, counted against the limits.

    At the broker's limit a listener waits for one to close. Only the inter-broker listener, where there are
    others beside it, goes on; the connection that has been idle longest elsewhere makes room then.
    """

    def __init__(self, limits: NetworkLimits, listeners: list[str], now: float) -> None:
        self._listeners = listeners
        self.total = 0
        self.by_listener: Counter[str] = Counter()
        self._by_address: Counter[str] = Counter()
        self._rates: dict[str, RateLimit] = {}
        self.update(limits, now)

    def update(self, limits: NetworkLimits, now: float) -> None:
        """Take over changed settings; connections over a lowered limit are for the caller to close."""
        self._limits = limits
        self._rate = RateLimit(limits.max_connection_creation_rate, now)
        for name in self._listeners:
            of_listener = limits.listeners.get(name, ListenerLimits())
            self._rates[name] = RateLimit(of_listener.max_connection_creation_rate, now)

    def is_protected(self, listener: str) -> bool:
        return listener == self._limits.inter_broker_listener_name and len(self._listeners) > 1

    def has_room(self, listener: str) -> bool:
        of_listener = self._limits.listeners.get(listener)
        if of_listener is not None and self.by_listener[listener] >= of_listener.max_connections:
            return False
        return self.is_protected(listener) or self.total < self._limits.max_connections

    @property
    def excess(self) -> int:
        """How many connections there are above the broker's limit."""
        return max(0, self.total - self._limits.max_connections)

    def delay(self, listener: str, now: float) -> float:
        """Seconds to wait before the next connection is accepted, so that none is made too quickly."""
        broker_delay = 0.0 if self.is_protected(listener) else self._rate.delay(now)
        return max(broker_delay, self._rates[listener].delay(now))

    def limit_of(self, address: str) -> int:
        return self._limits.max_connections_per_ip_overrides.get(address, self._limits.max_connections_per_ip)

    def admit(self, listener: str, address: str) -> bool:
        """Count a new connection; False where its address has as many as it may have."""
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
