"""The metrics of a broker's ZooKeeper session, under Kafka's names."""

from __future__ import annotations

from tidelog.metadata.async_tree import AsyncTree, SessionEvent
from tidelog.metrics.registry import Registry

GROUP = "kafka.server"
EVENTS = {
    SessionEvent.CONNECTED: "ZooKeeperSyncConnectsPerSec",
    SessionEvent.DISCONNECTED: "ZooKeeperDisconnectsPerSec",
    SessionEvent.EXPIRED: "ZooKeeperExpiresPerSec",
    SessionEvent.AUTHENTICATION_FAILED: "ZooKeeperAuthFailuresPerSec",
}


def register_session_metrics(registry: Registry, tree: AsyncTree) -> None:
    """Count the session events of `tree`, which is connected, and measure its requests."""
    meters = {event: registry.meter(GROUP, "SessionExpireListener", name) for event, name in EVENTS.items()}
    meters[SessionEvent.CONNECTED].mark()
    tree.listen(lambda event: meters[event].mark())
    from tidelog.metadata.zookeeper import ZooKeeperTree

    if isinstance(tree, ZooKeeperTree):
        times = registry.histogram(GROUP, "ZooKeeperClientMetrics", "ZooKeeperRequestLatencyMs", unit=0.001)
        tree.measure(lambda seconds: times.record(round(seconds * 1e6)))
