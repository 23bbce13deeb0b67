"""ClusterHealth: the reasons why a cluster is unhealthy, with names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.cli.cluster_status import ClusterStatus, cluster_status
from tidelog.cli.terminal import visible
from tidelog.errors import KafkaError

if TYPE_CHECKING:
    from tidelog.clients.admin import Admin
    from tidelog.clients.admin.cluster import LogDirDescription

NAMES_SHOWN = 10


@dataclass(slots=True, frozen=True)
class Reason:
    """Something that is wrong, and where."""

    code: str
    words: str
    where: tuple[str, ...] = ()

    def text(self) -> str:
        names = ", ".join(self.where[:NAMES_SHOWN])
        more = len(self.where) - NAMES_SHOWN
        return visible(
            self.words + (f": {names}" if names else "") + (f" and {more} more" if more > 0 else "")
        )


@dataclass(slots=True, frozen=True)
class ClusterHealth:
    cluster_id: str
    controller: int | None
    brokers: tuple[int, ...]
    """The brokers that are alive."""
    topics: int
    partitions: int
    reasons: tuple[Reason, ...]

    @property
    def healthy(self) -> bool:
        return not self.reasons

    def summary(self) -> str:
        brokers = ", ".join(map(str, self.brokers)) or "none"
        controller = "none" if self.controller is None else self.controller
        return (
            f"cluster {visible(self.cluster_id)}, brokers {brokers}, controller {controller}, "
            f"{self.topics:,} topics, {self.partitions:,} partitions"
        )

    def as_json(self) -> dict[str, object]:
        return {
            "healthy": self.healthy,
            "cluster": self.cluster_id,
            "controller": self.controller,
            "brokers": list(self.brokers),
            "topics": self.topics,
            "partitions": self.partitions,
            "reasons": [
                {"code": each.code, "message": each.words, "where": list(each.where)} for each in self.reasons
            ],
        }


def ask_health(admin: Admin, disk_free_percent: float) -> ClusterHealth:
    """Ask the cluster. Raises KafkaError if no broker answers."""
    status = cluster_status(admin)
    live = [broker.broker_id for broker in status.brokers if broker.address is not None]
    reasons = list(state_reasons(status))
    folders = admin.describe_log_dirs(live, partial=True)
    for broker, error in sorted(folders.errors.items()):
        reasons.append(Reason("no-answer", f"broker {broker} does not tell its log folders: {error}"))
    for broker, found in sorted(folders.items()):
        reasons += folder_reasons(broker, found.values(), disk_free_percent)
    return ClusterHealth(
        status.cluster_id, status.controller, tuple(live), status.topics, status.partitions, tuple(reasons)
    )


def state_reasons(status: ClusterStatus) -> Iterable[Reason]:
    """What is wrong with brokers and partitions."""
    if status.controller is None:
        yield Reason("no-controller", "no broker is the controller")
    down = tuple(str(broker.broker_id) for broker in status.brokers if broker.address is None)
    if down:
        yield Reason("brokers-down", f"{len(down)} brokers are down", down)
    if status.without_leader:
        count = len(status.without_leader)
        yield Reason("offline", f"{count} partitions are offline", tuple(status.without_leader))
    if status.out_of_sync:
        count = len(status.out_of_sync)
        yield Reason(
            "under-replicated", f"{count} partitions are under-replicated", tuple(status.out_of_sync)
        )


def folder_reasons(
    broker: int, folders: Iterable[LogDirDescription], disk_free_percent: float
) -> Iterable[Reason]:
    """What is wrong with the log folders of a broker."""
    for folder in folders:
        if isinstance(folder.error, KafkaError):
            yield Reason("failed-log-dir", f"broker {broker}: the log folder failed", (folder.path,))
        elif folder.total_bytes and folder.usable_bytes is not None:
            free = 100 * folder.usable_bytes / folder.total_bytes
            if free < disk_free_percent:
                words = f"broker {broker}: the disk of a log folder is nearly full"
                yield Reason("disk-nearly-full", words, (folder.path,))
