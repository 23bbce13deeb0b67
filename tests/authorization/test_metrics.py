"""The metrics of authorization count rules and decisions."""

from __future__ import annotations

from tests.authorization.test_acl_cache import allow
from tidelog.metrics.registry import MetricName
from tidelog.security.acl import ResourcePattern
from tidelog.security.acl_authorizer import AclAuthorizer
from tidelog.security.operations import AclOperation, AclResourceType
from tidelog.server.audit import AuditLog
from tidelog.server.authorizer_metrics import AuthorizerMetrics


def test_rules_and_decisions_are_counted() -> None:
    authorizer, audit = AclAuthorizer(), AuditLog()
    topic = ResourcePattern(AclResourceType.TOPIC, "t")
    authorizer.cache.replace(topic, [allow(AclOperation.READ), allow(AclOperation.WRITE)])
    audit.allowed, audit.denied = 5, 2
    found = {}
    for family in AuthorizerMetrics(authorizer, audit).families():
        assert isinstance(family.name, MetricName)
        assert (family.name.group, family.name.type) == ("kafka.server", "authorizer-metrics")
        found[family.name.name] = family.samples[0][1]
    assert found == {
        "acls-total-count": 2,
        "authorization-request": 7,
        "authorization-allowed": 5,
        "authorization-denied": 2,
    }
