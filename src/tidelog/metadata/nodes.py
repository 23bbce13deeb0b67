"""The JSON of the tree's nodes: written like Kafka 3.9 (its ZkData), read in every version since 1.

Keys have the order in which Kafka writes them, so that trees can be compared as text. Data that cannot be
decoded raises BadNode, whose message names the expected data.
"""

from __future__ import annotations

import base64
import json
import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from tidelog.endpoints import Endpoint
from tidelog.metadata.state import BrokerRegistration

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"


class BadNode(ValueError):
    """The data of a node cannot be decoded."""


def topic_id_text(topic_id: bytes | bytearray) -> str:
    """A UUID of 16 bytes as the 22 characters that Kafka shows."""
    return base64.urlsafe_b64encode(topic_id).rstrip(b"=").decode()


def topic_id_from_text(text: str) -> bytes:
    try:
        topic_id = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except ValueError as error:
        raise BadNode(f"{text!r} is not an id: 22 characters of base64url are expected") from error
    if len(topic_id) != 16:
        raise BadNode(f"{text!r} is not an id: it has {len(topic_id)} bytes instead of 16")
    return topic_id


def random_id(rng: random.Random | None = None) -> bytes:
    """A random id for a topic or cluster; never with a leading dash, which command lines take for a flag."""
    while True:
        made = bytearray(os.urandom(16) if rng is None else rng.randbytes(16))
        made[6] = made[6] & 0x0F | 0x40  # a random UUID, version 4
        made[8] = made[8] & 0x3F | 0x80
        if not topic_id_text(made).startswith("-"):
            return bytes(made)


# --- reading JSON with types


class Fields:
    """Reads the members of a JSON object with their expected types."""

    __slots__ = ("_values",)

    def __init__(self, data: bytes | dict[str, Json]) -> None:
        values: Json = load_json(data) if isinstance(data, bytes) else data
        if not isinstance(values, dict):
            raise BadNode(f"a JSON object is expected, not {values!r}")
        self._values = values

    def __contains__(self, name: str) -> bool:
        return self._values.get(name) is not None

    def others(self, known: frozenset[str]) -> dict[str, Json] | None:
        """The members with other names than the known ones; None if there are none."""
        if self._values.keys() <= known:
            return None
        return {name: value for name, value in self._values.items() if name not in known}

    def integer(self, name: str, default: int | None = None) -> int:
        value = self._values.get(name)
        if isinstance(value, str):
            # Times and bounds of blocks are written as strings.
            try:
                value = int(value)
            except ValueError:
                pass
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        if value is None and default is not None:
            return default
        raise BadNode(f"{name} has to be an integer, not {value!r}")

    def text(self, name: str, default: str | None = None) -> str:
        value = self._values.get(name)
        if isinstance(value, str):
            return value
        if value is None and default is not None:
            return default
        raise BadNode(f"{name} has to be text, not {value!r}")

    def object(self, name: str) -> dict[str, Json]:
        """The object under a name; empty if there is none."""
        value = self._values.get(name)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise BadNode(f"{name} has to be an object, not {value!r}")
        return value

    def items(self, name: str) -> list[Json]:
        value = self._values.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise BadNode(f"{name} has to be a list, not {value!r}")
        return value

    def objects(self, name: str) -> list[Fields]:
        return [Fields(_as_object(item)) for item in self.items(name)]

    def integers(self, name: str) -> list[int]:
        return _integers(name, self.items(name))

    def texts(self, name: str) -> list[str]:
        return [_as_text(name, item) for item in self.items(name)]

    def text_map(self, name: str) -> dict[str, str]:
        return {key: _as_text(f"{name}.{key}", value) for key, value in self.object(name).items()}

    def replica_map(self, name: str) -> dict[int, list[int]]:
        """{"0":[1,2]}: the replicas of each partition, ordered by partition."""
        found = {_as_partition(key): _integers(name, value) for key, value in self.object(name).items()}
        return dict(sorted(found.items()))


def load_json(data: bytes) -> Json:
    try:
        value: Json = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadNode(f"not JSON: {error}") from error
    return value


def dump_json(value: Mapping[str, object]) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def _as_object(value: Json) -> dict[str, Json]:
    if not isinstance(value, dict):
        raise BadNode(f"an object is expected, not {value!r}")
    return value


def _as_text(name: str, value: Json) -> str:
    if not isinstance(value, str):
        raise BadNode(f"{name} has to be text, not {value!r}")
    return value


def _as_partition(text: str) -> int:
    if not text.isdecimal():
        raise BadNode(f"{text!r} is not the number of a partition")
    return int(text)


def _integers(name: str, value: Json) -> list[int]:
    numbers = [item for item in value if isinstance(item, int)] if isinstance(value, list) else []
    if not isinstance(value, list) or len(numbers) != len(value):
        raise BadNode(f"{name} has to be a list of integers, not {value!r}")
    return numbers


# --- the cluster and its brokers


def encode_cluster_id(cluster_id: str) -> bytes:
    return dump_json({"version": "1", "id": cluster_id})


def decode_cluster_id(data: bytes) -> str:
    return Fields(data).text("id")


@dataclass(slots=True)
class BrokerNode:
    """/brokers/ids/<id>: the addresses of a live broker."""

    endpoints: list[Endpoint]
    timestamp: int
    rack: str | None = None
    jmx_port: int = -1
    version: int = 5
    features: dict[str, tuple[int, int]] = field(default_factory=dict)
    """The lowest and highest version of each supported feature."""

    def encode(self) -> bytes:
        # Host and port, of the plaintext listener if any, are for readers older than listeners.
        plain = next((point for point in self.endpoints if point.security_protocol == "PLAINTEXT"), None)
        protocols = {point.listener: point.security_protocol for point in self.endpoints}
        urls = [f"{point.listener}://{bracketed(point.host)}:{point.port}" for point in self.endpoints]
        value: dict[str, object] = {
            "features": {
                name: {"min_version": low, "max_version": high} for name, (low, high) in self.features.items()
            },
            "listener_security_protocol_map": protocols,
            "endpoints": urls,
        }
        if self.rack is not None:
            value["rack"] = self.rack
        value["jmx_port"] = self.jmx_port
        value["port"] = plain.port if plain else -1
        value["host"] = plain.host if plain else None
        value["version"] = self.version
        value["timestamp"] = str(self.timestamp)
        return dump_json(value)

    @classmethod
    def decode(cls, data: bytes) -> BrokerNode:
        fields = Fields(data)
        version = fields.integer("version")
        protocols = fields.text_map("listener_security_protocol_map")
        if version >= 2 and "endpoints" in fields:
            endpoints = [parse_endpoint(url, protocols) for url in fields.texts("endpoints")]
        else:
            endpoints = [Endpoint("PLAINTEXT", "PLAINTEXT", fields.text("host"), fields.integer("port"))]
        rack = fields.text("rack") if "rack" in fields else None
        jmx_port = fields.integer("jmx_port", -1)
        features = {}
        for name, range_of in fields.object("features").items():
            versions = Fields(_as_object(range_of))
            features[name] = (versions.integer("min_version"), versions.integer("max_version"))
        return cls(endpoints, fields.integer("timestamp", -1), rack, jmx_port, version, features)

    def state(self, broker_id: int, epoch: int) -> BrokerRegistration:
        return BrokerRegistration(broker_id, self.endpoints, self.rack, epoch, self.features)


def bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def parse_endpoint(url: str, protocols: Mapping[str, str]) -> Endpoint:
    listener, separator, address = url.partition("://")
    host, colon, port = address.rpartition(":")
    if not separator or not colon or not port.isdecimal():
        raise BadNode(f"{url!r} is not an endpoint: it has to look like NAME://host:port")
    return Endpoint(listener, protocols.get(listener, listener), host.strip("[]"), int(port))


@dataclass(slots=True)
class ControllerNode:
    """/controller: the broker that is the controller, and the time of its election.

    `kraft_epoch` is -1, unless the cluster is being migrated to KRaft and a KRaft controller has the node.
    """

    broker_id: int
    timestamp: int
    kraft_epoch: int = -1

    def encode(self) -> bytes:
        value = {"version": 2, "brokerid": self.broker_id, "timestamp": str(self.timestamp)}
        return dump_json(value | {"kraftControllerEpoch": self.kraft_epoch})

    @classmethod
    def decode(cls, data: bytes) -> ControllerNode:
        fields = Fields(data)
        kraft_epoch = fields.integer("kraftControllerEpoch", -1)
        return cls(fields.integer("brokerid"), fields.integer("timestamp", -1), kraft_epoch)


def encode_number(number: int) -> bytes:
    """A node with a number as text, such as /controller_epoch or a consumer's offset."""
    return str(number).encode()


def decode_number(data: bytes) -> int:
    try:
        return int(data)
    except ValueError as error:
        raise BadNode(f"an integer is expected, not {data[:40]!r}") from error


def encode_feature() -> bytes:
    return dump_json({"features": {}, "version": 2, "status": 1})


@dataclass(slots=True)
class ProducerIdBlock:
    """/latest_producer_id_block: the last allocated producer ids, both ends included."""

    broker_id: int
    first: int
    last: int

    def encode(self) -> bytes:
        first, last = str(self.first), str(self.last)
        return dump_json({"version": 1, "broker": self.broker_id, "block_start": first, "block_end": last})

    @classmethod
    def decode(cls, data: bytes) -> ProducerIdBlock:
        fields = Fields(data)
        return cls(fields.integer("broker"), fields.integer("block_start"), fields.integer("block_end"))


# --- topics and partitions


@dataclass(slots=True)
class TopicNode:
    """/brokers/topics/<topic>: the replicas of each partition. Versions below 3 have no topic id.

    `other_fields` are unknown fields. They stay when the node is written again.
    """

    partitions: dict[int, list[int]]
    topic_id: bytes | None = None
    adding: dict[int, list[int]] = field(default_factory=dict)
    removing: dict[int, list[int]] = field(default_factory=dict)
    other_fields: Mapping[str, object] | None = None

    def encode(self) -> bytes:
        value: dict[str, object] = {"partitions": _replica_json(self.partitions)}
        if self.topic_id is not None:
            value["topic_id"] = topic_id_text(self.topic_id)
        value["adding_replicas"] = _replica_json(self.adding)
        value["removing_replicas"] = _replica_json(self.removing)
        value["version"] = 2 if self.topic_id is None else 3
        value.update(self.other_fields or ())
        return dump_json(value)

    @classmethod
    def decode(cls, data: bytes) -> TopicNode:
        fields = Fields(data)
        topic_id = topic_id_from_text(fields.text("topic_id")) if "topic_id" in fields else None
        adding, removing = fields.replica_map("adding_replicas"), fields.replica_map("removing_replicas")
        others = fields.others(_TOPIC_FIELDS)
        return cls(fields.replica_map("partitions"), topic_id, adding, removing, others)


_TOPIC_FIELDS = frozenset(("partitions", "topic_id", "adding_replicas", "removing_replicas", "version"))


def _replica_json(partitions: Mapping[int, Sequence[int]]) -> dict[str, list[int]]:
    return {str(partition): list(replicas) for partition, replicas in sorted(partitions.items())}


@dataclass(slots=True)
class PartitionNode:
    """/brokers/topics/<topic>/partitions/<n>/state: leader and in-sync replicas."""

    leader: int
    leader_epoch: int
    isr: list[int]
    controller_epoch: int
    leader_recovery_state: int = 0
    other_fields: Mapping[str, object] | None = None

    def encode(self) -> bytes:
        value: dict[str, object] = {
            "controller_epoch": self.controller_epoch,
            "leader": self.leader,
            "version": 1,
            "leader_epoch": self.leader_epoch,
            "isr": self.isr,
        }
        if self.leader_recovery_state:  # Kafka leaves it out of recovered partitions
            value["leader_recovery_state"] = self.leader_recovery_state
        value.update(self.other_fields or ())
        return dump_json(value)

    @classmethod
    def decode(cls, data: bytes) -> PartitionNode:
        fields = Fields(data)
        return cls(
            fields.integer("leader"),
            fields.integer("leader_epoch"),
            fields.integers("isr"),
            fields.integer("controller_epoch"),
            fields.integer("leader_recovery_state", 0),
            fields.others(_PARTITION_FIELDS),
        )


_PARTITION_FIELDS = frozenset(
    ("controller_epoch", "leader", "version", "leader_epoch", "isr", "leader_recovery_state")
)


def encode_partitions(partitions: Sequence[tuple[str, int]]) -> bytes:
    """A list of partitions: /admin/preferred_replica_election and /isr_change_notification."""
    return dump_json({"version": 1, "partitions": [{"topic": t, "partition": p} for t, p in partitions]})


def decode_partitions(data: bytes) -> list[tuple[str, int]]:
    return [(item.text("topic"), item.integer("partition")) for item in Fields(data).objects("partitions")]


def encode_reassignment(assignment: Mapping[tuple[str, int], Sequence[int]]) -> bytes:
    """/admin/reassign_partitions: the new replicas of partitions."""
    items = [
        {"topic": topic, "partition": partition, "replicas": list(replicas)}
        for (topic, partition), replicas in assignment.items()
    ]
    return dump_json({"version": 1, "partitions": items})


def decode_reassignment(data: bytes) -> dict[tuple[str, int], list[int]]:
    return {
        (item.text("topic"), item.integer("partition")): item.integers("replicas")
        for item in Fields(data).objects("partitions")
    }


def encode_log_dir_event(broker_id: int) -> bytes:
    """/log_dir_event_notification: a broker lost a log folder (event 1 is the only kind)."""
    return dump_json({"version": 1, "broker": broker_id, "event": 1})


def decode_log_dir_event(data: bytes) -> int:
    return Fields(data).integer("broker")


# --- settings


def encode_config(configs: Mapping[str, str]) -> bytes:
    """/config/<kind>/<entity>: the settings that an entity overrides."""
    return dump_json({"version": 1, "config": dict(configs)})


def decode_config(data: bytes) -> dict[str, str]:
    """No data means no settings, as for a user node that only has client nodes below it."""
    return Fields(data).text_map("config") if data else {}


def encode_config_change(encoded_entity_path: str) -> bytes:
    """/config/changes/config_change_<seq>: the entity whose settings changed, such as topics/demo."""
    return dump_json({"version": 2, "entity_path": encoded_entity_path})


def decode_config_change(data: bytes) -> str:
    """The entity's path below /config; version 1 has kind and entity separately."""
    fields = Fields(data)
    if fields.integer("version") == 1:
        return f"{fields.text('entity_type')}/{fields.text('entity_name')}"
    return fields.text("entity_path")


# --- consumers that keep their place in the tree


@dataclass(slots=True)
class ConsumerNode:
    """/consumers/<group>/ids/<consumer>: the topics of a consumer, with the number of streams of each."""

    subscription: dict[str, int]
    pattern: str
    timestamp: int

    def encode(self) -> bytes:
        head = {"version": 1, "subscription": self.subscription, "pattern": self.pattern}
        return dump_json(head | {"timestamp": str(self.timestamp)})

    @classmethod
    def decode(cls, data: bytes) -> ConsumerNode:
        fields = Fields(data)
        streams = Fields(fields.object("subscription"))
        subscription = {topic: streams.integer(topic) for topic in fields.object("subscription")}
        return cls(subscription, fields.text("pattern", "static"), fields.integer("timestamp", -1))
