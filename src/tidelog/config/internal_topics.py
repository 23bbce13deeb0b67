"""The settings of internal topics that fit the number of brokers of a new cluster."""

from __future__ import annotations

REPLICAS = 3
MIN_ISR = 2
"""Kafka's defaults for internal topics. Fewer brokers hold fewer replicas."""


def internal_topic_settings(brokers: int) -> dict[str, str]:
    """As many replicas as the brokers can hold, at most Kafka's defaults."""
    replicas = min(REPLICAS, brokers)
    return {
        "offsets.topic.replication.factor": str(replicas),
        "transaction.state.log.replication.factor": str(replicas),
        "transaction.state.log.min.isr": str(min(MIN_ISR, replicas)),
    }
