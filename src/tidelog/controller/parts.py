"""ControllerParts: the parts of a broker that its controller uses in all terms.

This module is separate from the term, so that brokers which are never elected do not import the state
machines.
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
    """The number of elected leaders, and of unclean elections among them."""

    elections: int = 0
    unclean_elections: int = 0


@dataclass(slots=True)
class ControllerParts:
    """The parts of a broker that its controller uses. They stay the same over all terms."""

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
