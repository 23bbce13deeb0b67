"""ControllerParts: what a broker gives to its controller for all terms.

It is apart from the term: brokers that are never elected do not import the state machines.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from tidelog.cluster.transport import Transport
from tidelog.controller.channel_manager import ChannelSettings, QueueTimeListener
from tidelog.controller.interface import ConfigRules
from tidelog.controller.planning import ControllerSettings
from tidelog.controller.watches import SharedWatch
from tidelog.metadata.cluster_store import ClusterStore


@dataclass(slots=True)
class ElectionStats:
    """The elected leaders, and those among them that may lack records of the former leader."""

    elections: int = 0
    unclean_elections: int = 0


@dataclass(slots=True)
class ControllerParts:
    """What a broker gives to its controller. It stays the same over all terms."""

    broker_id: int
    cluster: ClusterStore
    transport: Transport
    rules: ConfigRules
    settings: ControllerSettings
    channels: ChannelSettings
    inter_broker_listener: str
    rng: random.Random
    topic_watch: SharedWatch = field(default_factory=SharedWatch)
    broker_watch: SharedWatch = field(default_factory=SharedWatch)
    stats: ElectionStats = field(default_factory=ElectionStats)
    on_queue_time: QueueTimeListener | None = None

    def record_queue_time(self, broker_id: int, seconds: float) -> None:
        if self.on_queue_time is not None:
            self.on_queue_time(broker_id, seconds)
