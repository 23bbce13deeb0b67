"""Reassignment: the JSON of kafka-reassign-partitions, read from files and written as text.

`{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[1,2],"log_dirs":["any","any"]}]}`. The list
`log_dirs` has a folder for each replica; "any" leaves the folder to the broker.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tidelog.cli.partition_file import FILE_VERSION, is_id, list_field, parse_object, shortened
from tidelog.clients.admin.cluster import Replica
from tidelog.partitions import PartitionKey

ANY_LOG_DIR = "any"


@dataclass(slots=True, frozen=True)
class Reassignment:
    """The wanted replicas of partitions in order, and the wanted log folders of some of the replicas."""

    replicas: dict[PartitionKey, list[int]]
    log_dirs: dict[Replica, str]

    @property
    def partitions(self) -> list[PartitionKey]:
        return list(self.replicas)

    @property
    def topics(self) -> list[str]:
        return sorted({topic for topic, _ in self.replicas})

    @property
    def brokers(self) -> set[int]:
        return {broker for replicas in self.replicas.values() for broker in replicas}


def parse_reassignment(text: str) -> Reassignment:
    """The reassignment of a file. Raises ValueError."""
    found = parse_object(text, "reassignment")
    replicas: dict[PartitionKey, list[int]] = {}
    log_dirs: dict[Replica, str] = {}
    for entry in list_field(found, "partitions", "reassignment"):
        (topic, index), brokers = _parse_entry(entry)
        if (topic, index) in replicas:
            raise ValueError(f"the reassignment names partition {topic}-{index} twice")
        replicas[topic, index] = brokers
        for broker, folder in zip(brokers, _parse_log_dirs(entry, brokers), strict=True):
            if folder != ANY_LOG_DIR:
                log_dirs[Replica(topic, index, broker)] = folder
    return Reassignment(dict(sorted(replicas.items())), dict(sorted(log_dirs.items())))


def check_executable(reassignment: Reassignment, live: Iterable[int]) -> None:
    """Raise ValueError if a partition has no replicas or a broker twice, or a broker is not alive."""
    if not reassignment.replicas:
        raise ValueError("the reassignment has no partitions")
    for (topic, index), replicas in reassignment.replicas.items():
        if not replicas:
            raise ValueError(f"the reassignment has no replicas for partition {topic}-{index}")
        twice = sorted({broker for broker in replicas if replicas.count(broker) > 1})
        if twice:
            raise ValueError(f"the replicas of partition {topic}-{index} name broker {twice[0]} twice")
    known = sorted(live)
    unknown = sorted(reassignment.brokers.difference(known))
    if unknown:
        raise ValueError(
            f"the reassignment names brokers that are not alive: {joined(unknown)}. Alive are {joined(known)}"
        )


def parse_topics(text: str) -> list[str]:
    """The topics of `{"topics": [{"topic": "t"}], "version": 1}`. Raises ValueError."""
    found = parse_object(text, "list of topics")
    topics: list[str] = []
    for entry in list_field(found, "topics", "list of topics"):
        name = entry.get("topic") if isinstance(entry, Mapping) else None
        if not isinstance(name, str):
            raise ValueError(f"{shortened(entry)}: expected an object with a topic")
        if name in topics:
            raise ValueError(f"the list of topics names {name} twice")
        topics.append(name)
    return topics


def _parse_entry(entry: object) -> tuple[PartitionKey, list[int]]:
    if isinstance(entry, Mapping):
        topic, partition, replicas = (entry.get(name) for name in ("topic", "partition", "replicas"))
        if isinstance(topic, str) and is_id(partition) and isinstance(replicas, list):
            brokers = [broker for broker in replicas if is_id(broker)]
            if len(brokers) == len(replicas):
                return (topic, partition), brokers
    raise ValueError(f"{shortened(entry)}: expected an object with topic, partition and replicas")


def _parse_log_dirs(entry: object, brokers: Sequence[int]) -> list[str]:
    """A folder for each replica."""
    assert isinstance(entry, Mapping)
    folders = entry.get("log_dirs")
    if folders is None:
        return [ANY_LOG_DIR] * len(brokers)
    if not isinstance(folders, list) or not all(isinstance(folder, str) for folder in folders):
        raise ValueError(f"{shortened(entry)}: expected texts in log_dirs")
    if len(folders) != len(brokers):
        raise ValueError(
            f"{shortened(entry)}: {len(folders)} log_dirs for {len(brokers)} replicas; "
            f"expected one for each, {ANY_LOG_DIR!r} if the folder does not matter"
        )
    return folders


def as_text(replicas: Mapping[PartitionKey, Sequence[int]]) -> str:
    """The JSON text of an assignment, sorted by topic and partition, in any log folders."""
    partitions = [
        {
            "topic": topic,
            "partition": index,
            "replicas": list(brokers),
            "log_dirs": [ANY_LOG_DIR] * len(brokers),
        }
        for (topic, index), brokers in sorted(replicas.items())
    ]
    return json.dumps(
        {"version": FILE_VERSION, "partitions": partitions}, ensure_ascii=False, separators=(",", ":")
    )


def joined(values: Iterable[object], separator: str = ",") -> str:
    return separator.join(map(str, values))


def partition_names(partitions: Iterable[PartitionKey], separator: str = ",") -> str:
    """`t-0,t-1`, sorted by topic and partition."""
    return joined((f"{topic}-{index}" for topic, index in sorted(partitions)), separator)
