"""The metrics of a broker's controller, under Kafka's names. A controller that is not active shows zeros."""

from __future__ import annotations

from collections.abc import Iterator

from tidelog.controller.cluster_controller import ClusterController
from tidelog.metrics.registry import Family, Meter, MetricName, Registry

GROUP, KIND = "kafka.controller", "KafkaController"


def register_controller_metrics(registry: Registry, controller: ClusterController) -> None:
    """Replaces the gauges that a broker alone has under these names."""

    def gauge(name: str) -> None:
        registry.gauge(GROUP, KIND, name, lambda: controller.context.summary()[name])

    for name in controller.context.summary():
        gauge(name)
    registry.gauge(GROUP, KIND, "ActiveControllerCount", lambda: int(controller.is_active))
    registry.gauge(GROUP, KIND, "ActiveBrokerCount", lambda: len(controller.context.live_broker_ids))
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
    registry.collect(lambda: _families(controller, unclean))


def _families(controller: ClusterController, unclean: Meter) -> Iterator[Family]:
    unclean.count = controller.stats.unclean_elections
    sizes = controller.queue_sizes()
    if sizes:
        samples: list[tuple[tuple[tuple[str, str], ...], float]] = [
            ((("broker-id", str(broker_id)),), size) for broker_id, size in sizes.items()
        ]
        yield Family(MetricName(GROUP, "ControllerChannelManager", "QueueSize"), "gauge", samples)
