"""Services: the parts of a running broker. Every handler gets them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidelog.clock import Clock
from tidelog.cluster.fetch import Fetcher
from tidelog.cluster.fetch_session import FetchSessionCache
from tidelog.cluster.metadata_cache import MetadataCache
from tidelog.cluster.moves import ReplicaMoves
from tidelog.cluster.replica_manager import ReplicaManager
from tidelog.coordinator.group.coordinator import GroupCoordinator
from tidelog.network.request import Request
from tidelog.protocol.message import Message
from tidelog.server.audit import AuditLog
from tidelog.slices import Slices
from tidelog.storage.log_manager import LogManager

if TYPE_CHECKING:
    from tidelog.controller.interface import Controller, MutationQuota
    from tidelog.coordinator.transaction.coordinator import TransactionCoordinator
    from tidelog.coordinator.transaction.verification import TransactionVerification
    from tidelog.security.authorizer import Authorizer
    from tidelog.security.delegation_tokens import DelegationTokenManager
    from tidelog.server.apis.api import Api
    from tidelog.server.cluster_services import ClusterServices
    from tidelog.server.config.broker import BrokerConfig
    from tidelog.server.dynamic_config import DynamicConfig
    from tidelog.server.internal_topics import InternalTopics
    from tidelog.server.metrics import BrokerMetrics
    from tidelog.server.producer_ids import ProducerIds
    from tidelog.server.quota.quota_managers import QuotaManagers
    from tidelog.server.telemetry.client_telemetry import ClientTelemetry


@dataclass(slots=True)
class Services:
    broker_id: int
    clock: Clock
    config: BrokerConfig
    dynamic_config: DynamicConfig
    logs: LogManager
    replicas: ReplicaManager
    fetcher: Fetcher
    sessions: FetchSessionCache
    metadata: MetadataCache
    controller: Controller
    internal_topics: InternalTopics
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    verification: TransactionVerification
    producer_ids: ProducerIds
    metrics: BrokerMetrics
    quotas: QuotaManagers
    telemetry: ClientTelemetry
    auto_create_topic: Callable[[str, MutationQuota | None, Callable[[], None]], None]
    # Set after the router is created, because the router needs the services.
    respond: Callable[[Request, Message | Slices[Message] | Slices[None]], None] = field(init=False)
    # Decodes a request and calls the handler of its API.
    handle: Callable[[Request], None] = field(init=False)
    # Answers a request after an exception, or closes its connection.
    failed: Callable[[Request, Exception], None] = field(init=False)
    # Set after the logs are loaded, before the first request.
    moves: ReplicaMoves = field(init=False)
    apis: dict[int, Api] = field(default_factory=dict)
    # The lowest and highest supported version of each feature.
    supported_features: dict[str, tuple[int, int]] = field(default_factory=dict)
    # None without delegation.token.secret.key.
    tokens: DelegationTokenManager | None = None
    # None unless this broker belongs to a cluster.
    cluster: ClusterServices | None = None
    # None without authorizer.class.name: every client may do everything.
    authorizer: Authorizer | None = None
    audit: AuditLog = field(default_factory=AuditLog)
