"""The metrics of a broker's controller, under Kafka's names. A controller that is not active shows zeros."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from tidelog.controller.cluster_controller import ClusterController
from tidelog.metrics.registry import Family, Histogram, Meter, MetricName, Registry

GROUP, KIND = "kafka.controller", "KafkaController"
QUEUE_TIME = "RequestRateAndQueueTimeMs"


def register_controller_metrics(registry: Registry, controller: ClusterController) -> None:
    """Replaces the gauges that a broker alone has under these names."""

    def gauge(name: str) -> None:
        registry.gauge(GROUP, KIND, name, lambda: controller.context.summary()[name])

    for name in controller.context.summary():
        gauge(name)
    registry.gauge(GROUP, KIND, "ActiveControllerCount", lambda: int(controller.is_active))
    registry.gauge(GROUP, KIND, "ActiveBrokerCount", lambda: len(controller.context.live_broker_ids))
    # As in Kafka: a broker on ZooKeeper is live or gone.
    registry.gauge(GROUP, KIND, "FencedBrokerCount", lambda: 0)
    registry.gauge(GROUP, KIND, "ControllerState", lambda: int(controller.events.state))
    events = controller.events
    registry.gauge(GROUP, "ControllerEventManager", "EventQueueSize", lambda: events.queue_size)
    registry.attach(GROUP, "ControllerEventManager", {"EventQueueTimeMs": events.metrics.queue_time})
    times = {state.metric_name: histogram for state, histogram in events.metrics.event_times.items()}
    registry.attach(GROUP, "ControllerStats", times)
    registry.gauge(
        GROUP, "ControllerChannelManager", "TotalQueueSize", lambda: sum(controller.queue_sizes().values())
    )
    unclean = registry.meter(GROUP, "ControllerStats", "UncleanLeaderElectionsPerSec")
    queue_times = QueueTimes(registry)
    controller.listen_to_queue_times(queue_times.record)
    registry.collect(lambda: _families(controller, unclean, queue_times))


class QueueTimes:
    """The times that requests to each broker waited at the controller."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._by_broker: dict[int, Histogram] = {}

    def record(self, broker_id: int, seconds: float) -> None:
        histogram = self._by_broker.get(broker_id)
        if histogram is None:
            labels = {"broker-id": str(broker_id)}
            kind = "ControllerChannelManager"
            histogram = self._registry.histogram(GROUP, kind, QUEUE_TIME, unit=1.0, **labels)
            self._by_broker[broker_id] = histogram
        histogram.record(round(seconds * 1000))

    def keep(self, broker_ids: Collection[int]) -> None:
        """Forget all other brokers."""
        for broker_id in [known for known in self._by_broker if known not in broker_ids]:
            del self._by_broker[broker_id]
            labels = {"broker-id": str(broker_id)}
            self._registry.remove(GROUP, "ControllerChannelManager", QUEUE_TIME, **labels)


def _families(controller: ClusterController, unclean: Meter, queue_times: QueueTimes) -> Iterator[Family]:
    unclean.count = controller.stats.unclean_elections
    sizes = controller.queue_sizes()
    queue_times.keep(sizes)
    if sizes:
        samples: list[tuple[tuple[tuple[str, str], ...], float]] = [
            ((("broker-id", str(broker_id)),), size) for broker_id, size in sizes.items()
        ]
        yield Family(MetricName(GROUP, "ControllerChannelManager", "QueueSize"), "gauge", samples)
