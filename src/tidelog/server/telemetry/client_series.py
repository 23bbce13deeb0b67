"""ClientSeries: the latest numbers that clients pushed, shown among the broker's metrics.

Names begin with `kafka_client_`, so no client can write a metric of the broker. Numbers of a client that is
silent for three push intervals disappear; the total is bounded.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidelog.clock import Clock
from tidelog.metrics.registry import Family
from tidelog.protocol.wire import uuid_to_text

if TYPE_CHECKING:
    from tidelog.server.telemetry.otlp import Attributes, Point

MAX_SERIES = 20_000
MAX_SERIES_OF_CLIENT = 1_000
MAX_CLIENT_ID = 128
PREFIX = "kafka_client_"
OWN_LABELS = ("client_instance_id", "client_id")
_HELP = "pushed by clients"


@dataclass(slots=True)
class _Client:
    client_id: str
    silent_after: float
    values: dict[tuple[str, Attributes], float] = field(default_factory=dict)


class ClientSeries:
    """`record` takes the numbers of a push; `families` shows those of all clients."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._clients: OrderedDict[bytes, _Client] = OrderedDict()
        self._total = 0
        self.dropped = 0
        """Numbers that were left out because a client has too many."""

    def __len__(self) -> int:
        return self._total

    def record(self, instance_id: bytes, client_id: str, points: Iterable[Point], seconds: float) -> None:
        """Keep the numbers, and those of earlier pushes, for this many seconds."""
        client = self._clients.get(instance_id)
        if client is None:
            client = self._clients[instance_id] = _Client(client_id[:MAX_CLIENT_ID], 0.0)
        self._clients.move_to_end(instance_id)
        client.silent_after = self._clock.monotonic() + seconds
        values = client.values
        for point in points:
            key = (series_name(point.name), point.attributes)
            before = values.get(key)
            if before is None:
                if len(values) == MAX_SERIES_OF_CLIENT:
                    self.dropped += 1
                    continue
                self._total += 1
            values[key] = point.value + (before or 0.0) if point.delta else point.value
        self._forget_silent()

    def remove(self, instance_id: bytes) -> None:
        client = self._clients.pop(instance_id, None)
        if client is not None:
            self._total -= len(client.values)

    def families(self) -> Iterator[Family]:
        self._forget_silent()
        found: dict[str, Family] = {}
        for instance_id, client in self._clients.items():
            own = ((OWN_LABELS[0], uuid_to_text(instance_id)), (OWN_LABELS[1], client.client_id))
            for (name, attributes), value in client.values.items():
                family = found.get(name)
                if family is None:
                    family = found[name] = Family(name, "gauge", [], _HELP)
                family.samples.append(((*own, *_labels(attributes)), value))
        yield from found.values()

    def _forget_silent(self) -> None:
        """Forget clients that are silent, and the longest silent ones beyond the limit."""
        now = self._clock.monotonic()
        silent = [instance for instance, client in self._clients.items() if client.silent_after < now]
        for instance in silent:
            self.remove(instance)
        while self._total > MAX_SERIES:
            self.remove(next(iter(self._clients)))


def series_name(name: str) -> str:
    """org.apache.kafka.producer.record.send.total is kafka_client_producer_record_send_total."""
    short = name.removeprefix("org.apache.kafka.")
    return PREFIX + _word(short).lower()


def _word(text: str) -> str:
    return "".join(c if c.isascii() and c.isalnum() else "_" for c in text)


def _labels(attributes: Attributes) -> Iterator[tuple[str, str]]:
    """Labels that differ from each other and from the labels of the broker, for any names of the client."""
    names = set(OWN_LABELS)
    for key, value in attributes:
        name = _word(key)
        name = name if name[:1].isalpha() else f"label_{name}"
        if name not in names:
            names.add(name)
            yield name, value
