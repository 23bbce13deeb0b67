"""tidelog: a distributed commit log that speaks Kafka's protocol and keeps Kafka's files.

The clients, their values and exceptions are here: `from tidelog import Producer, ProducerFenced`. Each name
is imported on first use, so that `import tidelog` stays fast.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # type checkers assume True; the import of `typing` would take most of the time
if TYPE_CHECKING:
    from tidelog.clients.admin.acls import (
        AclBinding,
        AclBindingFilter,
        AclOperation,
        AclPermissionType,
        AclResourceType,
        PatternType,
    )
    from tidelog.clients.admin.blocking import Admin
    from tidelog.clients.admin.client import AsyncAdmin
    from tidelog.clients.admin.cluster import (
        ClusterDescription,
        FeatureMetadata,
        FeatureUpdate,
        LogDirDescription,
        PartitionReassignment,
        QuorumInfo,
        QuorumReplica,
        Replica,
        ReplicaInfo,
        ReplicaLogDirInfo,
        UpgradeType,
        VersionRange,
    )
    from tidelog.clients.admin.configs import (
        AlterConfigOp,
        ConfigResource,
        OpType,
        ResourceType,
    )
    from tidelog.clients.admin.group_offsets import SharePartitionOffset
    from tidelog.clients.admin.groups import (
        ClassicGroupDescription,
        ClassicMember,
        ConsumerGroupDescription,
        GroupListing,
        MemberDescription,
    )
    from tidelog.clients.admin.other_groups import (
        ShareGroupDescription,
        ShareMemberDescription,
        StreamsGroupDescription,
        StreamsMemberDescription,
    )
    from tidelog.clients.admin.results import Results
    from tidelog.clients.admin.topics import (
        CreatedTopic,
        NewPartitions,
        NewTopic,
        OffsetInfo,
        OffsetSpec,
        TopicDescription,
        TopicListing,
        TopicPartitionInfo,
    )
    from tidelog.clients.admin.transactions import (
        AbortTransactionSpec,
        FencedProducer,
        HangingTransaction,
        ProducerState,
        TransactionDescription,
        TransactionListing,
    )
    from tidelog.clients.admin.users import (
        DelegationToken,
        Principal,
        QuotaComponent,
        ScramCredentialInfo,
        ScramMechanism,
        UserScramCredentialDeletion,
        UserScramCredentialUpsertion,
    )
    from tidelog.clients.consumer.assignors import (
        Assignor,
        CooperativeStickyAssignor,
        RangeAssignor,
        RoundRobinAssignor,
        StickyAssignor,
    )
    from tidelog.clients.consumer.blocking import Consumer
    from tidelog.clients.consumer.consumer import AsyncConsumer
    from tidelog.clients.consumer.errors import LogTruncationException, NoOffsetForPartitionException
    from tidelog.clients.consumer.interceptors import ConsumerInterceptor
    from tidelog.clients.consumer.listener import ConsumerRebalanceListener
    from tidelog.clients.errors import (
        BufferExhaustedException,
        ClientClosedException,
        ClientError,
        CommitFailedException,
        IllegalStateException,
        NoBrokersAvailableException,
        RecordTooLargeException,
        SerializationException,
        SslAuthenticationException,
        TimeoutException,
        TransactionAbortedException,
        UnknownTopicException,
        WakeupException,
    )
    from tidelog.clients.handlers.consumer import HandlerConsumer, Progress
    from tidelog.clients.handlers.plan import ErrorPolicy, HandlerFailed, MessageHandler, Reject, Stream
    from tidelog.clients.offsets import ConsumerGroupMetadata, OffsetAndMetadata, OffsetAndTimestamp
    from tidelog.clients.partition_info import PartitionInfo
    from tidelog.clients.producer.blocking import Producer
    from tidelog.clients.producer.columns import SentColumns
    from tidelog.clients.producer.interceptors import ProducerInterceptor, ProducerRecord
    from tidelog.clients.producer.partitioners import Partitioner, RoundRobinPartitioner
    from tidelog.clients.producer.producer import AsyncProducer
    from tidelog.clients.producer.transaction_values import PreparedTxnState
    from tidelog.clients.serialization import (
        BooleanDeserializer,
        BooleanSerializer,
        Deserializer,
        DoubleDeserializer,
        DoubleSerializer,
        FloatDeserializer,
        FloatSerializer,
        IntegerDeserializer,
        IntegerSerializer,
        JsonDeserializer,
        JsonSerializer,
        LongDeserializer,
        LongSerializer,
        Serializer,
        ShortDeserializer,
        ShortSerializer,
        StringDeserializer,
        StringSerializer,
        UUIDDeserializer,
        UUIDSerializer,
        VoidDeserializer,
        VoidSerializer,
    )
    from tidelog.clients.typed_settings import AdminClientConfig, ConsumerConfig, ProducerConfig
    from tidelog.config import ConfigError, Password
    from tidelog.config.entries import ConfigEntry, ConfigSource, ConfigSynonym
    from tidelog.errors import *
    from tidelog.partitions import TopicPartition
    from tidelog.protocol.election_type import ElectionType
    from tidelog.records.loops import ConsumerRecord, RecordFuture, RecordMetadata

__version__ = "0.1.0"

__all__ = [
    "AbortTransactionSpec", "AclBinding", "AclBindingFilter", "AclOperation", "AclPermissionType",
    "AclResourceType", "Admin", "AdminClientConfig", "AlterConfigOp", "Assignor", "AsyncAdmin",
    "AsyncConsumer", "AsyncProducer", "BooleanDeserializer", "BooleanSerializer", "BrokerIdNotRegistered",
    "BrokerNotAvailable", "BufferExhaustedException", "ClassicGroupDescription", "ClassicMember",
    "ClientClosedException", "ClientError", "ClusterAuthorizationFailed", "ClusterDescription",
    "CommitFailedException", "ConcurrentTransactions", "ConfigEntry", "ConfigError", "ConfigResource",
    "ConfigSource", "ConfigSynonym", "Consumer", "ConsumerConfig", "ConsumerGroupDescription",
    "ConsumerGroupMetadata", "ConsumerInterceptor", "ConsumerRebalanceListener", "ConsumerRecord",
    "CooperativeStickyAssignor", "CoordinatorLoadInProgress", "CoordinatorNotAvailable", "CorruptMessage",
    "CreatedTopic", "DelegationToken", "DelegationTokenAuthDisabled", "DelegationTokenAuthorizationFailed",
    "DelegationTokenExpired", "DelegationTokenNotFound", "DelegationTokenOwnerMismatch",
    "DelegationTokenRequestNotAllowed", "Deserializer", "DoubleDeserializer", "DoubleSerializer",
    "DuplicateBrokerRegistration", "DuplicateResource", "DuplicateSequenceNumber", "DuplicateVoter",
    "ElectionNotNeeded", "ElectionType", "EligibleLeadersNotAvailable", "ErrorCode", "ErrorPolicy",
    "FeatureMetadata", "FeatureUpdate", "FeatureUpdateFailed", "FencedInstanceId", "FencedLeaderEpoch",
    "FencedMemberEpoch", "FencedProducer", "FencedStateEpoch", "FetchSessionIdNotFound",
    "FetchSessionTopicIdError", "FloatDeserializer", "FloatSerializer", "GroupAuthorizationFailed",
    "GroupIdNotFound", "GroupListing", "GroupMaxSizeReached", "GroupSubscribedToTopic", "HandlerConsumer",
    "HandlerFailed", "HangingTransaction", "IllegalGeneration", "IllegalSaslState", "IllegalStateException",
    "InconsistentClusterId", "InconsistentGroupProtocol", "InconsistentTopicId", "InconsistentVoterSet",
    "IneligibleReplica", "IntegerDeserializer", "IntegerSerializer", "InvalidCommitOffsetSize",
    "InvalidConfig", "InvalidFetchSessionEpoch", "InvalidFetchSize", "InvalidGroupId", "InvalidPartitions",
    "InvalidPrincipalType", "InvalidProducerEpoch", "InvalidProducerIdMapping", "InvalidRecord",
    "InvalidRecordState", "InvalidRegistration", "InvalidRegularExpression", "InvalidReplicaAssignment",
    "InvalidReplicationFactor", "InvalidRequest", "InvalidRequiredAcks", "InvalidSessionTimeout",
    "InvalidShareSessionEpoch", "InvalidTimestamp", "InvalidTopic", "InvalidTransactionTimeout",
    "InvalidTxnState", "InvalidUpdateVersion", "InvalidVoterKey", "JsonDeserializer", "JsonSerializer",
    "KafkaError", "KafkaStorageError", "LeaderNotAvailable", "ListenerNotFound", "LogDirDescription",
    "LogDirNotFound", "LogTruncationException", "LongDeserializer", "LongSerializer", "MemberDescription",
    "MemberIdRequired", "MessageHandler", "MessageTooLarge", "MismatchedEndpointType", "NetworkException",
    "NewLeaderElected", "NewPartitions", "NewTopic", "NoBrokersAvailableException",
    "NoOffsetForPartitionException", "NoReassignmentInProgress", "NonEmptyGroup", "NotController",
    "NotCoordinator", "NotEnoughReplicas", "NotEnoughReplicasAfterAppend", "NotLeaderOrFollower",
    "OffsetAndMetadata", "OffsetAndTimestamp", "OffsetInfo", "OffsetMetadataTooLarge",
    "OffsetMovedToTieredStorage", "OffsetNotAvailable", "OffsetOutOfRange", "OffsetSpec", "OpType",
    "OperationNotAttempted", "OutOfOrderSequenceNumber", "PartitionInfo", "PartitionReassignment",
    "Partitioner", "Password", "PatternType", "PolicyViolation", "PositionOutOfRange",
    "PreferredLeaderNotAvailable", "PreparedTxnState", "Principal", "PrincipalDeserializationFailure",
    "Producer", "ProducerConfig", "ProducerFenced", "ProducerInterceptor", "ProducerRecord",
    "ProducerState", "Progress", "QuorumInfo", "QuorumReplica", "QuotaComponent", "RangeAssignor",
    "ReassignmentInProgress", "RebalanceInProgress", "RebootstrapRequired", "RecordFuture",
    "RecordLevelError", "RecordListTooLarge", "RecordMetadata", "RecordTooLargeException", "Reject",
    "Replica", "ReplicaInfo", "ReplicaLogDirInfo", "ReplicaNotAvailable", "RequestTimedOut",
    "ResourceNotFound", "ResourceType", "Results", "RetriableError", "RoundRobinAssignor",
    "RoundRobinPartitioner",
    "SaslAuthenticationFailed", "ScramCredentialInfo", "ScramMechanism", "SecurityDisabled", "SentColumns",
    "SerializationException", "Serializer", "ShareGroupDescription", "ShareMemberDescription",
    "SharePartitionOffset", "ShareSessionLimitReached", "ShareSessionNotFound", "ShortDeserializer",
    "ShortSerializer", "SnapshotNotFound", "SslAuthenticationException", "StaleBrokerEpoch",
    "StaleControllerEpoch", "StaleMemberEpoch", "StickyAssignor", "Stream", "StreamsGroupDescription",
    "StreamsInvalidTopology", "StreamsInvalidTopologyEpoch", "StreamsMemberDescription",
    "StreamsTopologyFenced", "StringDeserializer", "StringSerializer", "TelemetryTooLarge",
    "ThrottlingQuotaExceeded", "TimeoutException", "TopicAlreadyExists", "TopicAuthorizationFailed",
    "TopicDeletionDisabled", "TopicDescription", "TopicListing", "TopicPartition", "TopicPartitionInfo",
    "TransactionAbortable", "TransactionAbortedException", "TransactionCoordinatorFenced",
    "TransactionDescription", "TransactionListing", "TransactionalIdAuthorizationFailed",
    "TransactionalIdNotFound", "UUIDDeserializer", "UUIDSerializer", "UnacceptableCredential",
    "UnknownControllerId", "UnknownLeaderEpoch", "UnknownMemberId", "UnknownProducerId",
    "UnknownServerError", "UnknownSubscriptionId", "UnknownTopicException", "UnknownTopicId",
    "UnknownTopicOrPartition", "UnreleasedInstanceId", "UnstableOffsetCommit", "UnsupportedAssignor",
    "UnsupportedCompressionType", "UnsupportedEndpointType", "UnsupportedForMessageFormat",
    "UnsupportedSaslMechanism", "UnsupportedVersion", "UpgradeType", "UserScramCredentialDeletion",
    "UserScramCredentialUpsertion", "VersionRange", "VoidDeserializer", "VoidSerializer", "VoterNotFound",
    "WakeupException",
]  # fmt: skip

_MODULES = {
    "tidelog.clients.consumer.assignors": (
        "Assignor",
        "CooperativeStickyAssignor",
        "RangeAssignor",
        "RoundRobinAssignor",
        "StickyAssignor",
    ),
    "tidelog.clients.consumer.blocking": ("Consumer",),
    "tidelog.clients.consumer.consumer": ("AsyncConsumer",),
    "tidelog.clients.consumer.errors": (
        "LogTruncationException",
        "NoOffsetForPartitionException",
    ),
    "tidelog.clients.consumer.interceptors": ("ConsumerInterceptor",),
    "tidelog.clients.consumer.listener": ("ConsumerRebalanceListener",),
    "tidelog.clients.errors": (
        "BufferExhaustedException",
        "ClientClosedException",
        "ClientError",
        "CommitFailedException",
        "IllegalStateException",
        "NoBrokersAvailableException",
        "RecordTooLargeException",
        "SerializationException",
        "SslAuthenticationException",
        "TimeoutException",
        "TransactionAbortedException",
        "UnknownTopicException",
        "WakeupException",
    ),
    "tidelog.clients.handlers.consumer": (
        "HandlerConsumer",
        "Progress",
    ),
    "tidelog.clients.handlers.plan": (
        "ErrorPolicy",
        "HandlerFailed",
        "MessageHandler",
        "Reject",
        "Stream",
    ),
    "tidelog.clients.offsets": (
        "ConsumerGroupMetadata",
        "OffsetAndMetadata",
        "OffsetAndTimestamp",
    ),
    "tidelog.clients.partition_info": ("PartitionInfo",),
    "tidelog.clients.producer.blocking": ("Producer",),
    "tidelog.clients.producer.columns": ("SentColumns",),
    "tidelog.clients.producer.interceptors": (
        "ProducerInterceptor",
        "ProducerRecord",
    ),
    "tidelog.clients.producer.partitioners": (
        "Partitioner",
        "RoundRobinPartitioner",
    ),
    "tidelog.clients.producer.producer": ("AsyncProducer",),
    "tidelog.clients.producer.transaction_values": ("PreparedTxnState",),
    "tidelog.clients.serialization": (
        "BooleanDeserializer",
        "BooleanSerializer",
        "Deserializer",
        "DoubleDeserializer",
        "DoubleSerializer",
        "FloatDeserializer",
        "FloatSerializer",
        "IntegerDeserializer",
        "IntegerSerializer",
        "JsonDeserializer",
        "JsonSerializer",
        "LongDeserializer",
        "LongSerializer",
        "Serializer",
        "ShortDeserializer",
        "ShortSerializer",
        "StringDeserializer",
        "StringSerializer",
        "UUIDDeserializer",
        "UUIDSerializer",
        "VoidDeserializer",
        "VoidSerializer",
    ),
    "tidelog.clients.typed_settings": (
        "AdminClientConfig",
        "ConsumerConfig",
        "ProducerConfig",
    ),
    "tidelog.config": (
        "ConfigError",
        "Password",
    ),
    "tidelog.partitions": ("TopicPartition",),
    "tidelog.records.loops": (
        "ConsumerRecord",
        "RecordFuture",
        "RecordMetadata",
    ),
}
_PLACES = {name: module for module, names in _MODULES.items() for name in names}
# One class for each error code of Kafka.
# Names that are not listed above are errors, or names of the admin client, which lists them itself.
_ERRORS = "tidelog.errors"
_ADMIN = "tidelog.clients.admin"


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'tidelog' has no attribute {name!r}")
    place = _PLACES.get(name)
    if place is None:
        place = _ERRORS if hasattr(import_module(_ERRORS), name) else _ADMIN
    return getattr(import_module(place), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
