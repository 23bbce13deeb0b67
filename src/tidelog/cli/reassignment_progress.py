"""The progress of a reassignment: a line on standard error while partitions move, until none moves."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from tidelog.cli.reassignment_file import Reassignment
from tidelog.cli.reassignment_states import ReassignmentStates, reassignment_states
from tidelog.partitions import PartitionKey

if TYPE_CHECKING:
    from tidelog.clients.admin import Admin, PartitionReassignment

POLL_SECONDS = 0.5
LINE_SECONDS = 10.0  # between two lines in a file or a pipe; a terminal shows one line that changes
UNITS = ("B", "kB", "MB", "GB", "TB")


@dataclass(slots=True, frozen=True)
class Progress:
    """Counts of partitions, and the bytes of their added replicas."""

    done: int
    partitions: int
    copied: int
    total: int

    def line(self) -> str:
        text = f"{self.done} of {self.partitions} partitions done"
        if not self.total:
            return text
        return f"{text}, {size_text(self.copied)} of {size_text(self.total)} copied for the others"


def size_text(count: float) -> str:
    for unit in UNITS:
        if count < 1000 or unit == UNITS[-1]:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError("the last unit fits everything")


Sizes = Mapping[PartitionKey, Mapping[int, int]]
"""The bytes of each partition by broker."""


def progress_of(
    states: ReassignmentStates, running: Mapping[PartitionKey, PartitionReassignment], sizes: Sizes
) -> Progress:
    """The progress, for an added replica in bytes of the largest replica of its partition."""
    done = sum(state.done for state in states.partitions.values())
    copied = total = 0
    for partition, reassignment in running.items():
        if partition not in states.partitions:
            continue
        by_broker = sizes.get(partition, {})
        whole = max(by_broker.values(), default=0)
        for broker in reassignment.adding_replicas:
            total += whole
            copied += min(whole, by_broker.get(broker, 0))
    return Progress(done, len(states.partitions), copied, total)


def replica_sizes(admin: Admin) -> dict[PartitionKey, dict[int, int]]:
    sizes: dict[PartitionKey, dict[int, int]] = {}
    # A broker that does not answer shows no progress.
    for broker, folders in admin.describe_log_dirs(partial=True).items():
        for folder in folders.values():
            for partition, replica in folder.replicas.items():
                if not replica.is_future:
                    sizes.setdefault(partition, {})[broker] = replica.size
    return sizes


def await_reassignment(admin: Admin, reassignment: Reassignment) -> None:
    """Return when no partition of the reassignment moves. Prints the progress to standard error."""
    terminal = sys.stderr.isatty()
    next_line = 0.0
    pause = threading.Event()
    while True:
        states = reassignment_states(admin, reassignment)
        if not states.own_ongoing:
            break
        running = admin.list_partition_reassignments()
        line = progress_of(states, running, replica_sizes(admin)).line()
        if terminal:
            click.echo(f"\r\x1b[K{line}", nl=False, err=True)
        elif time.monotonic() >= next_line:
            click.echo(line, err=True)
            next_line = time.monotonic() + LINE_SECONDS
        pause.wait(POLL_SECONDS)
    if terminal:
        click.echo("\r\x1b[K", nl=False, err=True)
