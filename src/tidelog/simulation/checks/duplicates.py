"""Whether each record of an idempotent producer is once in its log, as the members of a group read it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from tidelog.simulation.checks.group_history import Line


def check(lines: Iterable[Line]) -> list[str]:
    """The records that were read at several offsets. All values that the producer writes differ."""
    offsets: defaultdict[tuple[str, int, str], set[int]] = defaultdict(set)
    for line in lines:
        if line.what == "read":
            offsets[line.topic, line.partition, line.detail].add(line.offset)
    return [
        f"{value} is in {topic}-{partition} at {', '.join(map(str, sorted(found)))}"
        for (topic, partition, value), found in offsets.items()
        if len(found) > 1
    ]
