"""What the APIs work with: the parts of a running broker, handed to every handler."""

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
from tidelog.slices import Slices
from tidelog.storage.manager import LogManager

if TYPE_CHECKING:
    from tidelog.controller.interface import Controller
    from tidelog.coordinator.transaction.coordinator import TransactionCoordinator
    from tidelog.coordinator.transaction.verification import TransactionVerification
    from tidelog.server.apis.api import Api
    from tidelog.server.config.broker import BrokerConfig
    from tidelog.server.dynamic_config import DynamicConfig
    from tidelog.server.internal_topics import InternalTopics
    from tidelog.server.metrics import BrokerMetrics
    from tidelog.server.producer_ids import ProducerIds


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
    auto_create_topic: Callable[[str], None]
    # Set when the router is made: it needs the services, and they need its way of answering.
    respond: Callable[[Request, Message | Slices[Message] | Slices[None]], None] = field(init=False)
    # Ends a request whose later answer raised an exception.
    failed: Callable[[Request, Exception], None] = field(init=False)
    # Set when the logs are loaded, before anything is asked of it.
    moves: ReplicaMoves = field(init=False)
    apis: dict[int, Api] = field(default_factory=dict)
    # Features by name with the range of levels that this broker can serve.
    supported_features: dict[str, tuple[int, int]] = field(default_factory=dict)
