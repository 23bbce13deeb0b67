"""The metrics of a broker: counted as plain numbers on its loop, and shown as Prometheus text."""

from tidelog.metrics.registry import Counter, Family, Gauge, Histogram, Meter, MetricName, Registry

__all__ = ["Counter", "Family", "Gauge", "Histogram", "Meter", "MetricName", "Registry"]
