"""Plain numbers that the broker counts on its loop; text is made only when somebody asks."""

from tidelog.metrics.registry import Counter, Family, Gauge, Histogram, Meter, MetricName, Registry

__all__ = ["Counter", "Family", "Gauge", "Histogram", "Meter", "MetricName", "Registry"]
