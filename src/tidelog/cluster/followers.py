"""Followers: the other replicas of a partition as its leader knows them, and the replicas in sync (ISR)."""

from __future__ import annotations

from collections.abc import Iterable


class Replica:
    """The state of one follower, from its fetches."""

    __slots__ = ("broker_id", "last_caught_up_ms", "log_end_offset", "log_start_offset")

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self.log_end_offset = -1
        self.log_start_offset = -1
        self.last_caught_up_ms = 0


class Followers:
    """`replicas` is empty unless this broker leads the partition."""

    __slots__ = ("isr", "replicas")

    def __init__(self) -> None:
        self.isr: list[int] = []
        self.replicas: dict[int, Replica] = {}

    def assign(self, brokers: Iterable[int], *, keep: bool) -> None:
        """Set the brokers to keep track of; `keep` the states of those that are known."""
        known = self.replicas if keep else {}
        self.replicas = {broker: known.get(broker) or Replica(broker) for broker in brokers}

    def clear(self) -> None:
        self.replicas = {}

    def in_sync(self) -> list[Replica]:
        return [self.replicas[broker] for broker in self.isr if broker in self.replicas]
