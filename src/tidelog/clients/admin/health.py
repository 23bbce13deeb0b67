"""The health of a cluster: the problems of its controller, brokers, partitions and log folders.

`tidelog health` and the console judge by it. Each of them has words of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import Enum


class Problem(Enum):
    """A kind of problem. `tidelog health` shows its value as the code, the console its name."""

    NO_CONTROLLER = "no-controller"
    BROKERS_DOWN = "brokers-down"
    OFFLINE_PARTITIONS = "offline"
    UNDER_REPLICATED = "under-replicated"
    UNDER_MIN_ISR = "under-min-isr"
    FAILED_LOG_DIR = "failed-log-dir"
    DISK_NEARLY_FULL = "disk-nearly-full"

    @property
    def severity(self) -> str:
        """`error` if records cannot be read or written or nothing can be changed, else `warning`."""
        return "warning" if self in _WARNINGS else "error"


_WARNINGS = (Problem.BROKERS_DOWN, Problem.UNDER_REPLICATED, Problem.DISK_NEARLY_FULL)


@dataclass(slots=True, frozen=True)
class FoundProblem:
    """A problem, and the brokers or partitions that have it."""

    kind: Problem
    where: tuple[str, ...] = ()


def cluster_problems(
    controller: int | None,
    down: Collection[int],
    offline: Collection[str],
    under_replicated: Collection[str],
) -> Iterator[FoundProblem]:
    """The problems of the cluster. `down` has the brokers with replicas that are not alive."""
    if controller is None:
        yield FoundProblem(Problem.NO_CONTROLLER)
    if down:
        yield FoundProblem(Problem.BROKERS_DOWN, tuple(map(str, sorted(down))))
    if offline:
        yield FoundProblem(Problem.OFFLINE_PARTITIONS, tuple(offline))
    if under_replicated:
        yield FoundProblem(Problem.UNDER_REPLICATED, tuple(under_replicated))


def log_dir_problem(
    has_failed: bool, total_bytes: int | None, free_bytes: int | None, least_free: float
) -> Problem | None:
    """The problem of a log folder; a disk is nearly full if less than the share `least_free` is free."""
    if has_failed:
        return Problem.FAILED_LOG_DIR
    if total_bytes and free_bytes is not None and free_bytes / total_bytes < least_free:
        return Problem.DISK_NEARLY_FULL
    return None
