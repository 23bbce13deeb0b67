"""AuditLog: a log of allowed and denied operations, and of changes.

The logger `tidelog.authorizer` has a line for each denied operation and each change at INFO, and for each
allowed operation at DEBUG. `on_event` gets the same as a dict, for the topic of `tidelog.audit.topic`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from tidelog.partitions import PartitionKey
from tidelog.security.operations import AclOperation, AclResourceType, title

if TYPE_CHECKING:
    from tidelog.network.request import Request

log = logging.getLogger("tidelog.authorizer")

AuditEvent = dict[str, str | int | bool | None]


class AuditLog:
    """Counts decisions since the start, and writes them to the audit while it `is_on`."""

    __slots__ = ("allowed", "denied", "is_on", "on_event")

    def __init__(self) -> None:
        self.allowed = 0
        self.denied = 0
        self.is_on = False
        self.on_event: Callable[[AuditEvent], None] | None = None

    @property
    def tells_allowed(self) -> bool:
        """Whether every allowed operation is logged, so that no decision may be cached."""
        return self.is_on and log.isEnabledFor(logging.DEBUG)

    def decided(
        self,
        request: Request,
        operation: AclOperation,
        resource_type: AclResourceType,
        name: str,
        allowed: bool,
        *,
        tell: bool = True,
    ) -> None:
        """Count a decision, and log it unless `tell` is False: for one of many that only filter an answer."""
        if allowed:
            self.allowed += 1
        else:
            self.denied += 1
        level = logging.DEBUG if allowed else logging.INFO
        if not tell or not self.is_on:
            return
        if not log.isEnabledFor(level) and (allowed or self.on_event is None):
            return
        event: AuditEvent = {
            "event": "allowed" if allowed else "denied",
            **_source(request),
            "operation": title(operation),
            "resource": f"{title(resource_type)}:{name}",
        }
        log.log(level, "%s", "allowed" if allowed else "denied", extra={"fields": event})
        if self.on_event is not None:
            self.on_event(event)

    def changed(self, request: Request, what: str, name: str, change: str) -> None:
        """Log a change of a topic, a setting or an access rule, without values and secrets."""
        if not self.is_on:
            return
        resource = f"{what}:{name}"
        event: AuditEvent = {"event": "changed", **_source(request), "resource": resource, "change": change}
        log.info("changed", extra={"fields": event})
        if self.on_event is not None:
            self.on_event(event)

    def changed_partitions(self, request: Request, partitions: Iterable[PartitionKey], change: str) -> None:
        """Note a change of partitions, with one event for each topic."""
        if not self.is_on:
            return
        by_topic: dict[str, list[str]] = {}
        for topic, index in partitions:
            by_topic.setdefault(topic, []).append(str(index))
        for topic, indexes in by_topic.items():
            self.changed(request, "Topic", topic, f"{change}: partitions {', '.join(indexes)}")


def _source(request: Request) -> AuditEvent:
    return {
        "principal": request.principal,
        "host": request.client_address,
        "api": request.entry.name,
        "client_id": request.client_id,
        "listener": request.listener,
    }
