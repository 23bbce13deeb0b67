"""Followers: the other replicas of a partition as its leader knows them, and the replicas in sync (ISR).

Times are seconds of the monotonic clock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from tidelog.clock import Clock
from tidelog.cluster.metadata_cache import MetadataCache

NEVER: Final = float("-inf")
UNKNOWN_OFFSET: Final = -1
NO_BROKER_EPOCH: Final = -1


class IsrRules:
    """When a follower is in sync. All partitions of a broker share these rules."""

    __slots__ = ("clock", "max_lag_seconds", "metadata")

    def __init__(self, clock: Clock, max_lag_seconds: float = 30.0) -> None:
        self.clock = clock
        self.max_lag_seconds = max_lag_seconds
        self.metadata: MetadataCache | None = None

    def is_alive(self, broker_id: int) -> bool:
        """Whether the metadata has the broker as live. Only live brokers join an ISR."""
        return self.metadata is None or broker_id in self.metadata.snapshot.brokers


class Replica:
    """The state of one follower, from its fetches."""

    __slots__ = (
        "broker_epoch",
        "broker_id",
        "last_caught_up",
        "last_fetch",
        "leader_end_at_last_fetch",
        "log_end_offset",
        "log_start_offset",
    )

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self.broker_epoch = NO_BROKER_EPOCH
        self.log_end_offset = UNKNOWN_OFFSET
        self.log_start_offset = UNKNOWN_OFFSET
        self.last_caught_up = NEVER
        self.last_fetch = NEVER
        self.leader_end_at_last_fetch = UNKNOWN_OFFSET

    def fetched(self, offset: int, log_start_offset: int, leader_end: int, now: float, epoch: int) -> None:
        """Note a fetch: the follower's log ends at `offset`, the leader's log at `leader_end`.

        A follower with the whole log of the leader is caught up now. A follower that has reached the leader's
        log end of the previous fetch was caught up at the time of that fetch.
        """
        if offset >= leader_end:
            self.last_caught_up = now
        elif offset >= self.leader_end_at_last_fetch and self.last_fetch > self.last_caught_up:
            self.last_caught_up = self.last_fetch
        self.log_end_offset = offset
        self.log_start_offset = log_start_offset
        self.leader_end_at_last_fetch = leader_end
        self.last_fetch = now
        self.broker_epoch = epoch

    def caught_up_at(self, when: float) -> None:
        """Note that the follower had the whole log at this time, the last use of its fetch session."""
        if when > self.last_caught_up:
            self.last_caught_up = when

    def is_caught_up(self, leader_end: int, now: float, max_lag_seconds: float) -> bool:
        return self.log_end_offset == leader_end or now - self.last_caught_up <= max_lag_seconds


@dataclass(slots=True, eq=False)
class PendingIsr:
    """An ISR that the leader asks the controller for."""

    isr: list[int]
    is_expansion: bool
    leader_epoch: int
    partition_epoch: int


class Followers:
    """`replicas` is empty unless this broker leads the partition."""

    __slots__ = ("isr", "maximal_isr", "pending", "replicas")

    def __init__(self) -> None:
        self.isr: list[int] = []  # as the controller has it
        self.pending: PendingIsr | None = None
        # The ISR with the members that a pending change adds and removes: records wait for all of them.
        self.maximal_isr: Collection[int] = ()
        self.replicas: dict[int, Replica] = {}

    def assign(self, brokers: Iterable[int], *, keep: bool, now: float) -> None:
        """Set the followers. With `keep`, followers that are already known keep their states."""
        known = self.replicas if keep else {}
        self.replicas = {broker: known.get(broker) or Replica(broker) for broker in brokers}
        for broker in self.isr:
            # A member of the ISR has the full replica.lag.time.max.ms to fetch from its new leader.
            if broker in self.replicas and broker not in known:
                self.replicas[broker].last_caught_up = now

    def clear(self) -> None:
        self.replicas = {}
        self.pending = None

    def commit_isr(self, isr: Iterable[int]) -> None:
        """Set the ISR of the controller. No change is pending any more."""
        self.isr = list(isr)
        self.maximal_isr = self.isr
        self.pending = None

    def ask_for(self, pending: PendingIsr) -> None:
        self.pending = pending
        self.maximal_isr = {*self.isr, *pending.isr}

    def give_up(self) -> None:
        """Drop the pending change, which the controller refused."""
        self.commit_isr(self.isr)

    def committed_up_to(self, offset: int, leader_end: int, rules: IsrRules) -> int:
        """The new high watermark: the smallest of `offset` and the log end offsets of certain followers.

        These are the maximal ISR, and live followers that have caught up and are about to join it. A follower
        could never reach a high watermark that did not wait for it.
        """
        maximal = self.maximal_isr
        for replica in self.replicas.values():
            if replica.log_end_offset < offset and (
                replica.broker_id in maximal
                or (
                    replica.is_caught_up(leader_end, rules.clock.monotonic(), rules.max_lag_seconds)
                    and rules.is_alive(replica.broker_id)
                )
            ):
                offset = replica.log_end_offset
        return offset

    def out_of_sync(self, leader_end: int, now: float, max_lag_seconds: float) -> list[int]:
        """The members of the ISR that were last caught up more than `max_lag_seconds` ago."""
        members = []
        for broker in self.isr:
            replica = self.replicas.get(broker)
            if replica is not None and not replica.is_caught_up(leader_end, now, max_lag_seconds):
                members.append(broker)
        return members

    def log_start_offset(self, own: int, rules: IsrRules) -> int:
        """The smallest log start offset of this replica (`own`) and of the followers on live brokers."""
        starts = [r.log_start_offset for r in self.replicas.values() if rules.is_alive(r.broker_id)]
        return min([own, *starts])
