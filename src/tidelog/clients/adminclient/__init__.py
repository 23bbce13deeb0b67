"""The administrator's client: `Admin` blocks, `AsyncAdmin` awaits; both do the same.

The values that calls take and give are here too: `from tidelog.clients.adminclient import NewTopic`.
"""

from __future__ import annotations

from tidelog.clients.adminclient.acls import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AclResourceType,
    PatternType,
)
from tidelog.clients.adminclient.blocking import Admin
from tidelog.clients.adminclient.client import AsyncAdmin
from tidelog.clients.adminclient.cluster import (
    ClusterDescription,
    ElectionType,
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
from tidelog.clients.adminclient.configs import (
    AlterConfigOp,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ConfigSynonym,
    OpType,
    ResourceType,
)
from tidelog.clients.adminclient.group_offsets import OffsetAndMetadata, SharePartitionOffset
from tidelog.clients.adminclient.groups import (
    ClassicGroupDescription,
    ClassicMember,
    ConsumerGroupDescription,
    GroupListing,
    MemberDescription,
)
from tidelog.clients.adminclient.other_groups import (
    ShareGroupDescription,
    ShareMemberDescription,
    StreamsGroupDescription,
    StreamsMemberDescription,
)
from tidelog.clients.adminclient.results import Results
from tidelog.clients.adminclient.topics import (
    CreatedTopic,
    NewPartitions,
    NewTopic,
    OffsetInfo,
    OffsetSpec,
    PartitionInfo,
    TopicDescription,
    TopicListing,
)
from tidelog.clients.adminclient.transactions import (
    AbortTransactionSpec,
    FencedProducer,
    ProducerState,
    TransactionDescription,
    TransactionListing,
)
from tidelog.clients.adminclient.users import (
    DelegationToken,
    Principal,
    QuotaComponent,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from tidelog.config import ConfigType

__all__ = [
    "AbortTransactionSpec",
    "AclBinding",
    "AclBindingFilter",
    "AclOperation",
    "AclPermissionType",
    "AclResourceType",
    "Admin",
    "AlterConfigOp",
    "AsyncAdmin",
    "ClassicGroupDescription",
    "ClassicMember",
    "ClusterDescription",
    "ConfigEntry",
    "ConfigResource",
    "ConfigSource",
    "ConfigSynonym",
    "ConfigType",
    "ConsumerGroupDescription",
    "CreatedTopic",
    "DelegationToken",
    "ElectionType",
    "FeatureMetadata",
    "FeatureUpdate",
    "FencedProducer",
    "GroupListing",
    "LogDirDescription",
    "MemberDescription",
    "NewPartitions",
    "NewTopic",
    "OffsetAndMetadata",
    "OffsetInfo",
    "OffsetSpec",
    "OpType",
    "PartitionInfo",
    "PartitionReassignment",
    "PatternType",
    "Principal",
    "ProducerState",
    "QuorumInfo",
    "QuorumReplica",
    "QuotaComponent",
    "Replica",
    "ReplicaInfo",
    "ReplicaLogDirInfo",
    "ResourceType",
    "Results",
    "ScramCredentialInfo",
    "ScramMechanism",
    "ShareGroupDescription",
    "ShareMemberDescription",
    "SharePartitionOffset",
    "StreamsGroupDescription",
    "StreamsMemberDescription",
    "TopicDescription",
    "TopicListing",
    "TransactionDescription",
    "TransactionListing",
    "UpgradeType",
    "UserScramCredentialDeletion",
    "UserScramCredentialUpsertion",
    "VersionRange",
]
