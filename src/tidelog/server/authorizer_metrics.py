"""The metrics of authorization, under Kafka's names."""

from __future__ import annotations

from collections.abc import Iterator

from tidelog.metrics.registry import Family, MetricName
from tidelog.security.authorizer import Authorizer
from tidelog.server.audit import AuditLog

GROUP = ("kafka.server", "authorizer-metrics")


class AuthorizerMetrics:
    def __init__(self, authorizer: Authorizer, audit: AuditLog) -> None:
        self._authorizer = authorizer
        self._audit = audit

    def families(self) -> Iterator[Family]:
        allowed, denied = self._audit.allowed, self._audit.denied
        yield _family("acls-total-count", "gauge", self._authorizer.acl_count)
        yield _family("authorization-request", "counter", allowed + denied)
        yield _family("authorization-allowed", "counter", allowed)
        yield _family("authorization-denied", "counter", denied)


def _family(name: str, kind: str, value: int) -> Family:
    return Family(MetricName(*GROUP, name), kind, [((), value)])
