"""ClusterHealth: the reasons why a cluster is unhealthy, with names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.cli.cluster_status import ClusterStatus, cluster_status
from tidelog.cli.terminal import visible
from tidelog.clients.admin.health import Problem, cluster_problems, log_dir_problem
from tidelog.errors import KafkaError

if TYPE_CHECKING:
    from tidelog.clients.admin import Admin
    from tidelog.clients.admin.cluster import LogDirDescription

NAMES_SHOWN = 10
WORDS = {
    Problem.NO_CONTROLLER: "no broker is the controller",
    Problem.BROKERS_DOWN: "{} brokers are down",
    Problem.OFFLINE_PARTITIONS: "{} partitions are offline",
    Problem.UNDER_REPLICATED: "{} partitions are under-replicated",
    Problem.FAILED_LOG_DIR: "the log folder failed",
    Problem.DISK_NEARLY_FULL: "the disk of a log folder is nearly full",
}


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
    down = [broker.broker_id for broker in status.brokers if broker.address is None]
    for found in cluster_problems(status.controller, down, status.without_leader, status.out_of_sync):
        yield Reason(found.kind.value, WORDS[found.kind].format(len(found.where)), found.where)


def folder_reasons(
    broker: int, folders: Iterable[LogDirDescription], disk_free_percent: float
) -> Iterable[Reason]:
    """What is wrong with the log folders of a broker."""
    for folder in folders:
        has_failed = isinstance(folder.error, KafkaError)
        least_free = disk_free_percent / 100
        found = log_dir_problem(has_failed, folder.total_bytes, folder.usable_bytes, least_free)
        if found is not None:
            yield Reason(found.value, f"broker {broker}: {WORDS[found]}", (folder.path,))
