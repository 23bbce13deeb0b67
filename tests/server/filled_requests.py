"""A request with content for every API and version that is served, to which the broker has no objection."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import cast

from tests.support.raw import RawConnection
from tests.transactions.by_hand import open_transaction
from tidelog.errors import ErrorCode
from tidelog.protocol.api import API, ApiKey
from tidelog.protocol.message import Message
from tidelog.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatResponse
from tidelog.protocol.messages.describe_log_dirs import DescribeLogDirsResponse
from tidelog.protocol.messages.get_telemetry_subscriptions import GetTelemetrySubscriptionsResponse
from tidelog.protocol.messages.join_group import JoinGroupResponse
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tidelog.protocol.schema import Struct
from tidelog.records.batch import Record, build_batch

Value = object
Fields = Mapping[str, Value]

# Arrays that stay empty on purpose.
EMPTY = {
    (ApiKey.FETCH, "forgotten_topics_data"): "there is no session yet to take partitions out of",
    (ApiKey.OFFSET_FETCH, "topics"): "null asks for all of them, which v8 also does",
    (ApiKey.OFFSET_FETCH, "groups.topics"): "null asks for all of them",
    (ApiKey.SYNC_GROUP, "assignments"): "the only member of the group need not be assigned anything",
    (ApiKey.CONSUMER_GROUP_HEARTBEAT, "topic_partitions"): "one that joins owns nothing",
    (ApiKey.CREATE_TOPICS, "topics.assignments"): "the number of partitions is given instead",
    (ApiKey.CREATE_PARTITIONS, "topics.assignments"): "the broker places them",
    (ApiKey.LIST_TRANSACTIONS, "producer_id_filters"): "the state is filter enough",
}


def build(cls: type[Struct], version: int, fields: Fields) -> Struct:
    """A struct of nested mappings; what a version does not have is left out, an unknown name is an error."""
    struct = cls()
    known = {field.name: field for field in cls.FIELDS}
    for name, value in fields.items():
        field = known[name]
        if not field.present(version):
            continue
        if field.kind == "struct" and value is not None:
            kind = field.struct_type(cls)
            value = (
                [build(kind, version, item) for item in cast("Sequence[Fields]", value)]
                if field.array
                else build(kind, version, cast("Fields", value))
            )
        setattr(struct, name, value)
    return struct


def empty_arrays(struct: Struct, version: int, before: str = "") -> Iterator[str]:
    """The arrays of a request without an element."""
    for field in type(struct).FIELDS:
        if not field.present(version):
            continue
        value, path = getattr(struct, field.name), f"{before}{field.name}"
        if field.array and not value:
            yield path
        elif field.kind == "struct" and value is not None:
            for item in value if field.array else [value]:
                yield from empty_arrays(item, version, f"{path}.")


class FilledRequests:
    """Makes what a request needs to be there (a topic, a member, a transaction), then the request."""

    def __init__(self, connection: RawConnection) -> None:
        self._connection = connection

    def of(self, key: int, version: int) -> Message:
        fields = CASES[ApiKey(key)]
        return self._build(key, version, fields(self, version) if callable(fields) else fields)

    def _build(self, key: int, version: int, fields: Fields) -> Message:
        return cast("Message", build(API[key].request, version, fields))

    def ask(self, key: int, version: int, fields: Fields) -> Message:
        return self._connection.call(self._build(key, version, fields), version)

    def topic_id(self) -> bytes:
        topics = self._metadata().topics
        return next(topic.topic_id for topic in topics if topic.name == "t")

    def broker_id(self) -> int:
        return self._metadata().brokers[0].node_id

    def _metadata(self) -> MetadataResponse:
        return self._connection.ask(MetadataRequest(topics=None), MetadataResponse, 12)

    def log_dir(self) -> str:
        answer = self.ask(ApiKey.DESCRIBE_LOG_DIRS, 4, {"topics": None})
        return cast("DescribeLogDirsResponse", answer).results[0].log_dir

    def new_topic(self, name: str) -> str:
        topic = {"name": name, "num_partitions": 1, "replication_factor": 1}
        self.ask(ApiKey.CREATE_TOPICS, 7, {"topics": [topic], "timeout_ms": 10_000})
        return name

    def member(self, group_id: str) -> str:
        """The only member of a new classic group."""
        joined = cast("JoinGroupResponse", self.ask(ApiKey.JOIN_GROUP, 3, join_group(group_id)))
        assert (joined.error_code, joined.generation_id) == (0, 1)
        return joined.member_id

    def consumer_member(self, group_id: str) -> str:
        answer = self.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, joins_consumer_group(group_id))
        assert cast("ConsumerGroupHeartbeatResponse", answer).error_code == 0
        return group_id

    def committed(self, group_id: str) -> str:
        """A group without members that has an offset."""
        offset = {"name": "t", "partitions": [{"partition_index": 0, "committed_offset": 1}]}
        self.ask(ApiKey.OFFSET_COMMIT, 9, {"group_id": group_id, "topics": [offset]})
        return group_id

    def transaction(self, name: str) -> tuple[int, int]:
        return open_transaction(self._connection, "t", transactional_id=name)


def join_group(group_id: str) -> Fields:
    return {
        "group_id": group_id,
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 10_000,
        "protocol_type": "consumer",
        "protocols": [{"name": "range"}],
    }


def joins_consumer_group(group_id: str) -> Fields:
    return {
        "group_id": group_id,
        "member_id": "a-member",
        "member_epoch": 0,
        "rebalance_timeout_ms": 10_000,
        "subscribed_topic_names": ["t"],
        "topic_partitions": [],
    }


# -- requests that depend on the version or on what is there


def produce(make: FilledRequests, version: int) -> Fields:
    partition = {"index": 0, "records": build_batch([Record(0, 1_700_000_000_000, b"k", b"v")])}
    topic = {"name": "t", "topic_id": make.topic_id(), "partition_data": [partition]}
    return {"acks": -1, "timeout_ms": 1000, "topic_data": [topic]}


def fetch(make: FilledRequests, version: int) -> Fields:
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
    topic = {"topic": "t", "topic_id": make.topic_id(), "partitions": [partition]}
    return {"max_wait_ms": 0, "min_bytes": 0, "topics": [topic]}


def offset_commit(make: FilledRequests, version: int) -> Fields:
    partition = {"partition_index": 0, "committed_offset": 1}
    topic = {"name": "t", "topic_id": make.topic_id(), "partitions": [partition]}
    return {"group_id": "g", "topics": [topic]}


def in_group(name: str) -> Callable[[FilledRequests, int], Fields]:
    def fields(make: FilledRequests, version: int) -> Fields:
        group_id = f"{name}-{version}"
        return {"group_id": group_id, "generation_id": 1, "member_id": make.member(group_id)}

    return fields


def leave_group(make: FilledRequests, version: int) -> Fields:
    group_id = f"leave-{version}"
    member_id = make.member(group_id)
    return {"group_id": group_id, "member_id": member_id, "members": [{"member_id": member_id}]}


def sync_group(make: FilledRequests, version: int) -> Fields:
    return {**in_group("sync")(make, version), "protocol_type": "consumer", "protocol_name": "range"}


def describe_groups(make: FilledRequests, version: int) -> Fields:
    make.member(f"described-{version}")
    return {"groups": [f"described-{version}"], "include_authorized_operations": True}


def push_telemetry(make: FilledRequests, version: int) -> Fields:
    answer = make.ask(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, 0, {"client_instance_id": bytes(16)})
    told = cast("GetTelemetrySubscriptionsResponse", answer)
    return {"client_instance_id": told.client_instance_id, "subscription_id": told.subscription_id}


def create_topics(make: FilledRequests, version: int) -> Fields:
    topic = {
        "name": f"made-{version}",
        "num_partitions": 2,
        "replication_factor": 1,
        "configs": [{"name": "retention.ms", "value": "100000"}],
    }
    return {"topics": [topic], "timeout_ms": 10_000}


def delete_topics(make: FilledRequests, version: int) -> Fields:
    name = make.new_topic(f"deleted-{version}")
    return {"topics": [{"name": name}], "topic_names": [name], "timeout_ms": 10_000}


def create_partitions(make: FilledRequests, version: int) -> Fields:
    name = make.new_topic(f"grown-{version}")
    return {"topics": [{"name": name, "count": 2, "assignments": None}], "timeout_ms": 10_000}


def transactional(name: str, **fields: Value) -> Callable[[FilledRequests, int], Fields]:
    def filled(make: FilledRequests, version: int) -> Fields:
        transactional_id = f"{name}-{version}"
        producer_id, epoch = make.transaction(transactional_id)
        producer = {
            "transactional_id": transactional_id,
            "producer_id": producer_id,
            "producer_epoch": epoch,
        }
        return {**producer, **fields}

    return filled


def add_partitions_to_txn(make: FilledRequests, version: int) -> Fields:
    topics = [{"name": "t", "partitions": [1]}]
    producer = transactional("add", topics=topics)(make, version)
    if version >= 4:
        return {"transactions": [producer]}
    return {f"v3_and_below_{name}": value for name, value in producer.items()}


def write_txn_markers(make: FilledRequests, version: int) -> Fields:
    producer_id, epoch = make.transaction(f"marked-{version}")
    marker = {
        "producer_id": producer_id,
        "producer_epoch": epoch,
        "transaction_result": True,
        "topics": [{"name": "t", "partition_indexes": [0]}],
        "coordinator_epoch": 0,
    }
    return {"markers": [marker]}


def txn_offset_commit(make: FilledRequests, version: int) -> Fields:
    producer = transactional("offsets")(make, version)
    make.ask(ApiKey.ADD_OFFSETS_TO_TXN, 3, {**producer, "group_id": "g"})
    topic = {"name": "t", "partitions": [{"partition_index": 0, "committed_offset": 1}]}
    return {**producer, "group_id": "g", "topics": [topic]}


def alter_replica_log_dirs(make: FilledRequests, version: int) -> Fields:
    topic = {"name": "t", "partitions": [0]}
    return {"dirs": [{"path": make.log_dir(), "topics": [topic]}]}


def alter_partition_reassignments(make: FilledRequests, version: int) -> Fields:
    partition = {"partition_index": 0, "replicas": [make.broker_id()]}
    return {"timeout_ms": 10_000, "topics": [{"name": "t", "partitions": [partition]}]}


def describe_transactions(make: FilledRequests, version: int) -> Fields:
    make.transaction(f"described-{version}")
    return {"transactional_ids": [f"described-{version}"]}


def list_transactions(make: FilledRequests, version: int) -> Fields:
    make.transaction(f"listed-{version}")
    return {"state_filters": ["Ongoing"], "transactional_id_pattern": "listed.*"}


ANY_ACL = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}
SETTING = {"resource_type": 2, "resource_name": "t"}
CASES: dict[ApiKey, Fields | Callable[[FilledRequests, int], Fields]] = {
    ApiKey.PRODUCE: produce,
    ApiKey.FETCH: fetch,
    ApiKey.LIST_OFFSETS: {
        "replica_id": -1,
        "topics": [{"name": "t", "partitions": [{"partition_index": 0, "timestamp": -1}]}],
    },
    ApiKey.METADATA: {"topics": [{"name": "t"}], "allow_auto_topic_creation": False},
    ApiKey.OFFSET_COMMIT: offset_commit,
    ApiKey.OFFSET_FETCH: lambda _, version: {
        "group_id": "g",
        "topics": None if version >= 2 else [{"name": "t", "partition_indexes": [0]}],
        "groups": [{"group_id": "g", "topics": None}],
    },
    ApiKey.FIND_COORDINATOR: {"key": "g", "key_type": 0, "coordinator_keys": ["g"]},
    ApiKey.JOIN_GROUP: lambda _, version: join_group(f"join-{version}"),
    ApiKey.HEARTBEAT: in_group("beat"),
    ApiKey.LEAVE_GROUP: leave_group,
    ApiKey.SYNC_GROUP: sync_group,
    ApiKey.DESCRIBE_GROUPS: describe_groups,
    ApiKey.LIST_GROUPS: {"states_filter": ["Empty"], "types_filter": ["classic"]},
    ApiKey.API_VERSIONS: {"client_software_name": "test", "client_software_version": "test"},
    ApiKey.CREATE_TOPICS: create_topics,
    ApiKey.DELETE_TOPICS: delete_topics,
    ApiKey.DELETE_RECORDS: {
        "topics": [{"name": "t", "partitions": [{"partition_index": 1, "offset": 0}]}],
        "timeout_ms": 1000,
    },
    ApiKey.INIT_PRODUCER_ID: {"transactional_id": None, "transaction_timeout_ms": 1000},
    ApiKey.OFFSET_FOR_LEADER_EPOCH: {
        "topics": [{"topic": "t", "partitions": [{"partition": 0, "leader_epoch": 0}]}]
    },
    ApiKey.ADD_PARTITIONS_TO_TXN: add_partitions_to_txn,
    ApiKey.ADD_OFFSETS_TO_TXN: transactional("add-offsets", group_id="g"),
    ApiKey.END_TXN: transactional("end", committed=True),
    ApiKey.WRITE_TXN_MARKERS: write_txn_markers,
    ApiKey.TXN_OFFSET_COMMIT: txn_offset_commit,
    ApiKey.DESCRIBE_CONFIGS: {"resources": [{**SETTING, "configuration_keys": ["retention.ms"]}]},
    ApiKey.ALTER_CONFIGS: {
        "resources": [{**SETTING, "configs": [{"name": "retention.ms", "value": "1000000"}]}]
    },
    ApiKey.ALTER_REPLICA_LOG_DIRS: alter_replica_log_dirs,
    ApiKey.DESCRIBE_LOG_DIRS: {"topics": [{"topic": "t", "partitions": [0]}]},
    ApiKey.CREATE_PARTITIONS: create_partitions,
    ApiKey.DELETE_GROUPS: lambda make, version: {"groups_names": [make.committed(f"gone-{version}")]},
    ApiKey.ELECT_LEADERS: {
        "election_type": 0,
        "topic_partitions": [{"topic": "t", "partitions": [0]}],
        "timeout_ms": 1000,
    },
    ApiKey.INCREMENTAL_ALTER_CONFIGS: {
        "resources": [
            {**SETTING, "configs": [{"name": "retention.ms", "config_operation": 0, "value": "2000000"}]}
        ]
    },
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: alter_partition_reassignments,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: {
        "timeout_ms": 1000,
        "topics": [{"name": "t", "partition_indexes": [0]}],
    },
    ApiKey.OFFSET_DELETE: lambda make, version: {
        "group_id": make.committed("left"),
        "topics": [{"name": "t", "partitions": [{"partition_index": 0}]}],
    },
    ApiKey.DESCRIBE_CLUSTER: {"endpoint_type": 1, "include_cluster_authorized_operations": True},
    ApiKey.DESCRIBE_PRODUCERS: {"topics": [{"name": "t", "partition_indexes": [0]}]},
    ApiKey.DESCRIBE_TRANSACTIONS: describe_transactions,
    ApiKey.LIST_TRANSACTIONS: list_transactions,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: lambda _, version: {
        **joins_consumer_group(f"consumer-{version}"),
        "member_id": "a-member" if version >= 1 else "",
    },
    ApiKey.CONSUMER_GROUP_DESCRIBE: lambda make, version: {
        "group_ids": [make.consumer_member(f"told-{version}")]
    },
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: {"client_instance_id": bytes(16)},
    ApiKey.PUSH_TELEMETRY: push_telemetry,
    ApiKey.LIST_CONFIG_RESOURCES: {"resource_types": [2]},
    ApiKey.DESCRIBE_ACLS: ANY_ACL,
    ApiKey.CREATE_ACLS: {
        "creations": [
            {
                "resource_type": 2,
                "resource_name": "t",
                "principal": "User:a",
                "host": "*",
                "operation": 3,
                "permission_type": 3,
            }
        ]
    },
    ApiKey.DELETE_ACLS: {"filters": [ANY_ACL]},
    ApiKey.DESCRIBE_CLIENT_QUOTAS: {
        "components": [{"entity_type": "user", "match_type": 0, "match": "filled"}],
        "strict": True,
    },
    ApiKey.ALTER_CLIENT_QUOTAS: {
        "entries": [
            {
                "entity": [{"entity_type": "user", "entity_name": "filled"}],
                "ops": [{"key": "producer_byte_rate", "value": 1e9, "remove": False}],
            }
        ],
        "validate_only": True,
    },
    ApiKey.SASL_HANDSHAKE: {"mechanism": "PLAIN"},
    ApiKey.SASL_AUTHENTICATE: {"auth_bytes": b"\0alice\0secret"},
    ApiKey.CREATE_DELEGATION_TOKEN: lambda _, version: {
        "renewers": [{"principal_type": "User", "principal_name": "alice"}],
        "max_lifetime_ms": 1000,
        **({"owner_principal_type": "User", "owner_principal_name": "bob"} if version >= 3 else {}),
    },
    ApiKey.RENEW_DELEGATION_TOKEN: {"hmac": b"secret", "renew_period_ms": 1000},
    ApiKey.EXPIRE_DELEGATION_TOKEN: {"hmac": b"secret", "expiry_time_period_ms": 1000},
    ApiKey.DESCRIBE_DELEGATION_TOKEN: {"owners": [{"principal_type": "User", "principal_name": "alice"}]},
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: {"users": [{"name": "nobody"}]},
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: {
        "deletions": [{"name": "nobody", "mechanism": 1}],
        "upsertions": [
            {
                "name": "filled",
                "mechanism": 1,
                "iterations": 4096,
                "salt": b"salt",
                "salted_password": bytes(32),
            }
        ]
    },
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: {"topics": [{"name": "t"}], "response_partition_limit": 100},
}


def expected_errors(key: int, version: int) -> list[int]:
    """The error codes of an answer to a request that is as it should be."""
    if key == ApiKey.JOIN_GROUP and version >= 4:
        return [ErrorCode.MEMBER_ID_REQUIRED]
    if key in (ApiKey.DESCRIBE_ACLS, ApiKey.CREATE_ACLS, ApiKey.DELETE_ACLS):
        return [ErrorCode.SECURITY_DISABLED]  # the broker has no authorizer
    if key in (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE):
        return [ErrorCode.ILLEGAL_SASL_STATE]  # its listener has no SASL
    if ApiKey.CREATE_DELEGATION_TOKEN <= key <= ApiKey.DESCRIBE_DELEGATION_TOKEN:
        return [ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED]
    if key in (ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, ApiKey.ALTER_USER_SCRAM_CREDENTIALS):
        return [ErrorCode.RESOURCE_NOT_FOUND]  # there is no user `nobody`
    return [ErrorCode.ELECTION_NOT_NEEDED] if key == ApiKey.ELECT_LEADERS else []


# These say nothing more than that all is well, or that there is nothing to say.
BARE_ANSWERS = {
    ApiKey.HEARTBEAT,
    ApiKey.PUSH_TELEMETRY,
    ApiKey.LIST_PARTITION_REASSIGNMENTS,
    ApiKey.SYNC_GROUP,
    ApiKey.ADD_OFFSETS_TO_TXN,
    ApiKey.END_TXN,
    ApiKey.LEAVE_GROUP,
    ApiKey.LIST_CONFIG_RESOURCES,
    ApiKey.DESCRIBE_CLIENT_QUOTAS,
}
