"""Kafka's paths in the tree, and the encoding of names in them."""

from __future__ import annotations

import re

from tidelog.metadata.state import DEFAULT_ENTITY

CLUSTER_ID = "/cluster/id"
BROKER_IDS = "/brokers/ids"
BROKER_SEQUENCE = "/brokers/seqid"
TOPICS = "/brokers/topics"
CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
CONFIG = "/config"
CONFIG_CHANGES = "/config/changes"
CONFIG_CHANGE_PREFIX = "/config/changes/config_change_"
DELETE_TOPICS = "/admin/delete_topics"
REASSIGN_PARTITIONS = "/admin/reassign_partitions"
PREFERRED_ELECTION = "/admin/preferred_replica_election"
ISR_CHANGES = "/isr_change_notification"
ISR_CHANGE_PREFIX = "/isr_change_notification/isr_change_"
LOG_DIR_EVENTS = "/log_dir_event_notification"
LOG_DIR_EVENT_PREFIX = "/log_dir_event_notification/log_dir_event_"
PRODUCER_IDS = "/latest_producer_id_block"
CONSUMERS = "/consumers"
FEATURE = "/feature"
ACLS = "/kafka-acl"
PREFIXED_ACLS = "/kafka-acl-extended/prefixed"
ACL_CHANGE_PREFIX = "/kafka-acl-changes/acl_changes_"
EXTENDED_ACL_CHANGE_PREFIX = "/kafka-acl-extended-changes/acl_changes_"
TOKENS = "/delegation_token/tokens"
TOKEN_CHANGE_PREFIX = "/delegation_token/token_changes/token_change_"

ENTITY_TYPES = ("topics", "clients", "users", "brokers", "ips")
"""The kinds of entities with settings. Nodes of others (groups, client-metrics) are created when needed."""

PARENTS = (
    CONSUMERS,
    BROKER_IDS,
    TOPICS,
    BROKER_SEQUENCE,
    *(f"{CONFIG}/{kind}" for kind in ENTITY_TYPES),
    CONFIG_CHANGES,
    DELETE_TOPICS,
    ISR_CHANGES,
    PRODUCER_IDS,
    LOG_DIR_EVENTS,
)
"""Created without data at the first start."""


_UNSAFE = re.compile(r"[^a-zA-Z0-9._-]")


def broker(broker_id: int) -> str:
    return f"{BROKER_IDS}/{broker_id}"


def topic(name: str) -> str:
    return f"{TOPICS}/{name}"


def partitions(topic_name: str) -> str:
    return f"{TOPICS}/{topic_name}/partitions"


def partition(topic_name: str, index: int) -> str:
    return f"{TOPICS}/{topic_name}/partitions/{index}"


def partition_state(topic_name: str, index: int) -> str:
    return f"{TOPICS}/{topic_name}/partitions/{index}/state"


def deleted_topic(name: str) -> str:
    return f"{DELETE_TOPICS}/{name}"


def entity_config(entity_path: str) -> str:
    """The node of an entity's settings; `entity_path` is the result of the function with that name."""
    return f"{CONFIG}/{entity_path}"


def consumer_id(group: str, consumer: str) -> str:
    return f"{CONSUMERS}/{group}/ids/{consumer}"


def consumer_owner(group: str, topic_name: str, index: int) -> str:
    return f"{CONSUMERS}/{group}/owners/{topic_name}/{index}"


def consumer_offset(group: str, topic_name: str, index: int) -> str:
    return f"{CONSUMERS}/{group}/offsets/{topic_name}/{index}"


def encode_name(name: str) -> str:
    """An entity's name in a path: URL-encoded, except the default entity."""
    if name == DEFAULT_ENTITY or not _UNSAFE.search(name):
        return name
    from urllib.parse import quote  # few names need it, and importing it would delay each start

    # Java's encoder, which Kafka uses, also encodes the tilde.
    return quote(name, safe="").replace("~", "%7E")


def is_node_name(name: str) -> bool:
    """Whether an entity of this name can have a node. ZooKeeper takes `.` and `..` for steps of a path."""
    return name not in (".", "..")


def decode_name(name: str) -> str:
    if "%" not in name:
        return name
    from urllib.parse import unquote

    return unquote(name)


def entity_path(*parts: str) -> str:
    """The path below /config, from alternating kinds and names: ("users", "alice", "clients", "app")."""
    return "/".join(encode_name(part) if i % 2 else part for i, part in enumerate(parts))
