"""The table of APIs: names, versions and where their messages are. Loading it loads no message."""

from __future__ import annotations

from enum import IntEnum
from importlib import import_module

from tidelog.protocol.message import Message


class ApiKey(IntEnum):
    """The API keys that stand in request headers, by Kafka's names."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    LEADER_AND_ISR = 4
    STOP_REPLICA = 5
    UPDATE_METADATA = 6
    CONTROLLED_SHUTDOWN = 7
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    DESCRIBE_QUORUM = 55
    ALTER_PARTITION = 56
    UPDATE_FEATURES = 57
    ENVELOPE = 58
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    ALLOCATE_PRODUCER_IDS = 67
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    GET_TELEMETRY_SUBSCRIPTIONS = 71
    PUSH_TELEMETRY = 72
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76
    SHARE_GROUP_DESCRIBE = 77
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79
    ADD_RAFT_VOTER = 80
    REMOVE_RAFT_VOTER = 81
    INITIALIZE_SHARE_GROUP_STATE = 83
    READ_SHARE_GROUP_STATE = 84
    WRITE_SHARE_GROUP_STATE = 85
    DELETE_SHARE_GROUP_STATE = 86
    READ_SHARE_GROUP_STATE_SUMMARY = 87
    STREAMS_GROUP_HEARTBEAT = 88
    STREAMS_GROUP_DESCRIBE = 89
    DESCRIBE_SHARE_GROUP_OFFSETS = 90
    ALTER_SHARE_GROUP_OFFSETS = 91
    DELETE_SHARE_GROUP_OFFSETS = 92


class ApiInfo:
    """One API and its versions in Kafka 4.3 (in 3.9 for the APIs between brokers on ZooKeeper)."""

    __slots__ = (
        "flexible_from", "key", "latest_unstable", "max_version", "min_version", "module", "name",
        "zookeeper_only",
    )  # fmt: skip

    def __init__(
        self, key: ApiKey, name: str, module: str, min_version: int, max_version: int, flexible_from: int
    ) -> None:
        self.key = key
        self.name = name
        self.module = module
        self.min_version = min_version
        self.max_version = max_version
        self.flexible_from = flexible_from
        # The highest version is announced only if unstable versions are enabled.
        self.latest_unstable = key in LATEST_UNSTABLE
        # Only brokers and controllers send these to each other, up to Kafka 3.9.
        self.zookeeper_only = key in ZOOKEEPER_ONLY

    @property
    def announced_min_version(self) -> int:
        """The lowest version in the response to ApiVersions.

        Produce is announced from 0, though 0 to 2 are not served: older librdkafka takes their absence to
        mean that the broker knows no compression.
        """
        return 0 if self.key is ApiKey.PRODUCE else self.min_version

    @property
    def stable_max_version(self) -> int:
        """The highest version that is announced if unstable versions are not enabled."""
        return self.max_version - self.latest_unstable

    @property
    def request(self) -> type[Message]:
        """The class of the request. Loads its module."""
        return self._load("Request")

    @property
    def response(self) -> type[Message]:
        """The class of the response. Loads its module."""
        return self._load("Response")

    def is_flexible(self, version: int) -> bool:
        return version >= self.flexible_from

    def _load(self, suffix: str) -> type[Message]:
        module = import_module(f"tidelog.protocol.messages.{self.module}")
        found = getattr(module, self.name + suffix)
        if not (isinstance(found, type) and issubclass(found, Message)):
            raise TypeError(f"{self.name}{suffix} of {module.__name__} is no message")
        return found

    def __repr__(self) -> str:
        return f"{self.name}({self.key:d}) v{self.min_version}-{self.max_version}"


NEVER = 0x7FFF  # no version of the API is flexible

LATEST_UNSTABLE = frozenset({ApiKey.INIT_PRODUCER_ID})
ZOOKEEPER_ONLY = frozenset(
    {ApiKey.LEADER_AND_ISR, ApiKey.STOP_REPLICA, ApiKey.UPDATE_METADATA, ApiKey.CONTROLLED_SHUTDOWN}
)

# name, lowest and highest version, first flexible version; in the order of ApiKey
_TABLE = (
    ("Produce", 3, 13, 9),
    ("Fetch", 4, 18, 12),
    ("ListOffsets", 1, 11, 6),
    ("Metadata", 0, 13, 9),
    ("LeaderAndIsr", 0, 7, 4),
    ("StopReplica", 0, 4, 2),
    ("UpdateMetadata", 0, 8, 6),
    ("ControlledShutdown", 0, 3, 3),
    ("OffsetCommit", 2, 10, 8),
    ("OffsetFetch", 1, 10, 6),
    ("FindCoordinator", 0, 6, 3),
    ("JoinGroup", 0, 9, 6),
    ("Heartbeat", 0, 4, 4),
    ("LeaveGroup", 0, 5, 4),
    ("SyncGroup", 0, 5, 4),
    ("DescribeGroups", 0, 6, 5),
    ("ListGroups", 0, 5, 3),
    ("SaslHandshake", 0, 1, NEVER),
    ("ApiVersions", 0, 4, 3),
    ("CreateTopics", 2, 7, 5),
    ("DeleteTopics", 1, 6, 4),
    ("DeleteRecords", 0, 2, 2),
    ("InitProducerId", 0, 6, 2),
    ("OffsetForLeaderEpoch", 2, 4, 4),
    ("AddPartitionsToTxn", 0, 5, 3),
    ("AddOffsetsToTxn", 0, 4, 3),
    ("EndTxn", 0, 5, 3),
    ("WriteTxnMarkers", 1, 2, 1),
    ("TxnOffsetCommit", 0, 5, 3),
    ("DescribeAcls", 1, 3, 2),
    ("CreateAcls", 1, 3, 2),
    ("DeleteAcls", 1, 3, 2),
    ("DescribeConfigs", 1, 4, 4),
    ("AlterConfigs", 0, 2, 2),
    ("AlterReplicaLogDirs", 1, 2, 2),
    ("DescribeLogDirs", 1, 5, 2),
    ("SaslAuthenticate", 0, 2, 2),
    ("CreatePartitions", 0, 3, 2),
    ("CreateDelegationToken", 1, 3, 2),
    ("RenewDelegationToken", 1, 2, 2),
    ("ExpireDelegationToken", 1, 2, 2),
    ("DescribeDelegationToken", 1, 3, 2),
    ("DeleteGroups", 0, 2, 2),
    ("ElectLeaders", 0, 2, 2),
    ("IncrementalAlterConfigs", 0, 1, 1),
    ("AlterPartitionReassignments", 0, 1, 0),
    ("ListPartitionReassignments", 0, 0, 0),
    ("OffsetDelete", 0, 0, NEVER),
    ("DescribeClientQuotas", 0, 1, 1),
    ("AlterClientQuotas", 0, 1, 1),
    ("DescribeUserScramCredentials", 0, 0, 0),
    ("AlterUserScramCredentials", 0, 0, 0),
    ("DescribeQuorum", 0, 2, 0),
    ("AlterPartition", 0, 3, 0),
    ("UpdateFeatures", 0, 2, 0),
    ("Envelope", 0, 0, 0),
    ("DescribeCluster", 0, 2, 0),
    ("DescribeProducers", 0, 0, 0),
    ("UnregisterBroker", 0, 0, 0),
    ("DescribeTransactions", 0, 0, 0),
    ("ListTransactions", 0, 2, 0),
    ("AllocateProducerIds", 0, 0, 0),
    ("ConsumerGroupHeartbeat", 0, 1, 0),
    ("ConsumerGroupDescribe", 0, 1, 0),
    ("GetTelemetrySubscriptions", 0, 0, 0),
    ("PushTelemetry", 0, 0, 0),
    ("ListConfigResources", 0, 1, 0),
    ("DescribeTopicPartitions", 0, 0, 0),
    ("ShareGroupHeartbeat", 1, 1, 0),
    ("ShareGroupDescribe", 1, 1, 0),
    ("ShareFetch", 1, 2, 0),
    ("ShareAcknowledge", 1, 2, 0),
    ("AddRaftVoter", 0, 1, 0),
    ("RemoveRaftVoter", 0, 0, 0),
    ("InitializeShareGroupState", 0, 0, 0),
    ("ReadShareGroupState", 0, 0, 0),
    ("WriteShareGroupState", 0, 1, 0),
    ("DeleteShareGroupState", 0, 0, 0),
    ("ReadShareGroupStateSummary", 0, 1, 0),
    ("StreamsGroupHeartbeat", 0, 0, 0),
    ("StreamsGroupDescribe", 0, 0, 0),
    ("DescribeShareGroupOffsets", 0, 1, 0),
    ("AlterShareGroupOffsets", 0, 0, 0),
    ("DeleteShareGroupOffsets", 0, 0, 0),
)

API: dict[int, ApiInfo] = {
    key: ApiInfo(key, name, key.name.lower(), low, high, flexible)
    for key, (name, low, high, flexible) in zip(ApiKey, _TABLE, strict=True)
}


def api_name(key: int) -> str:
    """The name of an API, or its key if there is no such API."""
    info = API.get(key)
    return info.name if info is not None else f"API key {key}"
