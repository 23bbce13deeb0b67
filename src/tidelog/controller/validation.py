"""Validates the topics and partitions of requests. Raises the KafkaError of the first broken rule."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence, Set

from tidelog.controller.interface import NewPartitions, NewTopic
from tidelog.errors import (
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    InvalidTopic,
    PolicyViolation,
    TopicAlreadyExists,
)
from tidelog.metadata.state import TopicState

MAX_NAME_LENGTH = 249
"""A folder name has at most 255 characters: <topic>-<partition>, for deletion with .<32 digits>-delete."""

MAX_PARTITIONS_PER_REQUEST = 10_000
"""As in Kafka: more in one request would block the controller."""

METADATA_TOPIC = "__cluster_metadata"

_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+")


def check_topic_name(name: str) -> None:
    if not name:
        raise InvalidTopic("Topic name is invalid: the empty string is not allowed")
    if name in (".", ".."):
        raise InvalidTopic(f"Topic name is invalid: '{name}' is not allowed")
    if len(name) > MAX_NAME_LENGTH:
        raise InvalidTopic(
            f"Topic name is invalid: it has {len(name)} characters, at most {MAX_NAME_LENGTH} are allowed"
        )
    if not _LEGAL_NAME.fullmatch(name):
        raise InvalidTopic(
            f"Topic name is invalid: '{name}' has characters other than a-z, A-Z, 0-9, '.', '_' and '-'"
        )


def flat_name(name: str) -> str:
    """The name with '.' replaced by '_', as metrics use it."""
    return name.replace(".", "_")


def check_new_name(
    name: str, existing: Mapping[str, TopicState], deleting: Set[str], flat_names: Mapping[str, str]
) -> None:
    """Refuse a new topic that exists, or whose name differs from another one only by '.' and '_'.

    `flat_names` are the existing topics by their flat names.
    """
    if name == METADATA_TOPIC:
        raise InvalidRequest(f"Topic '{name}' cannot be created: the name is kept for Kafka's own metadata.")
    check_topic_name(name)
    if name in existing:
        raise TopicAlreadyExists(f"Topic '{name}' already exists.")
    if name in deleting:
        raise TopicAlreadyExists(f"Topic '{name}' is marked for deletion.")
    other = flat_names.get(flat_name(name))
    if other is not None:
        raise InvalidTopic(f"Topic '{name}' collides with existing topic '{other}': '.' and '_' are the same")


def check_configs(configs: Iterable[tuple[str, str | None]]) -> dict[str, str]:
    """The settings of a new topic by name. Of duplicates the last one counts."""
    checked: dict[str, str] = {}
    for name, value in configs:
        if value is None:
            raise InvalidConfig(f"Null value not supported for topic configs: {name}")
        checked[name] = value
    return checked


def check_counts(topic: NewTopic) -> None:
    """Refuse numbers below 1, except -1 for the default."""
    if topic.replication_factor < -1 or topic.replication_factor == 0:
        raise InvalidReplicationFactor(
            f"Replication factor is {topic.replication_factor}; it has to be above 0, or -1 for the default."
        )
    if topic.num_partitions < -1 or topic.num_partitions == 0:
        raise InvalidPartitions(
            f"Number of partitions is {topic.num_partitions}; it has to be above 0, or -1 for the default."
        )


def check_total(partitions: int) -> None:
    if partitions > MAX_PARTITIONS_PER_REQUEST:
        raise PolicyViolation(
            f"{partitions} partitions in one request; at most {MAX_PARTITIONS_PER_REQUEST} are allowed."
        )


def check_assignments(topic: NewTopic, brokers: Set[int]) -> dict[int, list[int]]:
    """The replicas by partition from the manual assignment of a new topic."""
    if topic.replication_factor != -1:
        raise InvalidRequest("Partitions are assigned by hand, so the replication factor has to be -1.")
    if topic.num_partitions != -1:
        raise InvalidRequest("Partitions are assigned by hand, so the number of partitions has to be -1.")
    placed: dict[int, list[int]] = {}
    for index, replicas in topic.assignments:
        if index in placed:
            raise InvalidReplicaAssignment(f"Partition {index} is assigned more than once.")
        check_replicas(f"partition {index}", replicas, brokers)
        placed[index] = list(replicas)
    if sorted(placed) != list(range(len(placed))):
        raise InvalidReplicaAssignment(f"Partitions have to be numbered from 0 on, not {sorted(placed)}.")
    check_same_factor(placed.values())
    return dict(sorted(placed.items()))


def check_replicas(what: str, replicas: Sequence[int], brokers: Set[int]) -> None:
    if not replicas:
        raise InvalidReplicaAssignment(f"The assignment of {what} names no broker.")
    if len(set(replicas)) != len(replicas):
        raise InvalidReplicaAssignment(f"The assignment of {what} names a broker twice: {list(replicas)}.")
    unknown = [replica for replica in replicas if replica not in brokers]
    if unknown:
        raise InvalidReplicaAssignment(f"The assignment of {what} names unknown broker(s) {unknown}.")


def check_same_factor(assignments: Iterable[Sequence[int]]) -> None:
    sizes = {len(replicas) for replicas in assignments}
    if len(sizes) > 1:
        raise InvalidReplicaAssignment(f"Partitions have different replication factors: {sorted(sizes)}.")


def check_new_partitions(
    request: NewPartitions, topic: TopicState, brokers: Set[int]
) -> list[list[int]] | None:
    """The replicas of the new partitions from a manual assignment; None without one."""
    present = len(topic.partitions)
    if request.count == present:
        raise InvalidPartitions(f"Topic '{topic.name}' already has {present} partition(s).")
    if request.count < present:
        raise InvalidPartitions(
            f"Topic '{topic.name}' has {present} partition(s); {request.count} would not be an increase."
        )
    added = request.count - present
    check_total(added)
    if request.assignments is None:
        return None
    if len(request.assignments) != added:
        raise InvalidReplicaAssignment(
            f"{added} partition(s) are added, but the assignment is for {len(request.assignments)}."
        )
    for index, replicas in enumerate(request.assignments, present):
        check_replicas(f"partition {index}", replicas, brokers)
    check_same_factor([*request.assignments, topic.partitions[0].replicas])
    return [list(replicas) for replicas in request.assignments]
