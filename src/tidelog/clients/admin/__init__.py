"""The admin client: `Admin` blocks, `AsyncAdmin` awaits. Both have the same calls.

The values of the calls are here, too: `from tidelog.clients.admin import NewTopic`. Each is imported on first
use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidelog.clients.admin.acls import AclBinding as AclBinding
    from tidelog.clients.admin.acls import AclBindingFilter as AclBindingFilter
    from tidelog.clients.admin.acls import AclOperation as AclOperation
    from tidelog.clients.admin.acls import AclPermissionType as AclPermissionType
    from tidelog.clients.admin.acls import AclResourceType as AclResourceType
    from tidelog.clients.admin.acls import PatternType as PatternType
    from tidelog.clients.admin.blocking import Admin as Admin
    from tidelog.clients.admin.client import AsyncAdmin as AsyncAdmin
    from tidelog.clients.admin.cluster import ClusterDescription as ClusterDescription
    from tidelog.clients.admin.cluster import FeatureMetadata as FeatureMetadata
    from tidelog.clients.admin.cluster import FeatureUpdate as FeatureUpdate
    from tidelog.clients.admin.cluster import LogDirDescription as LogDirDescription
    from tidelog.clients.admin.cluster import PartitionReassignment as PartitionReassignment
    from tidelog.clients.admin.cluster import QuorumInfo as QuorumInfo
    from tidelog.clients.admin.cluster import QuorumReplica as QuorumReplica
    from tidelog.clients.admin.cluster import Replica as Replica
    from tidelog.clients.admin.cluster import ReplicaInfo as ReplicaInfo
    from tidelog.clients.admin.cluster import ReplicaLogDirInfo as ReplicaLogDirInfo
    from tidelog.clients.admin.cluster import UpgradeType as UpgradeType
    from tidelog.clients.admin.cluster import VersionRange as VersionRange
    from tidelog.clients.admin.configs import AlterConfigOp as AlterConfigOp
    from tidelog.clients.admin.configs import ConfigResource as ConfigResource
    from tidelog.clients.admin.configs import OpType as OpType
    from tidelog.clients.admin.configs import ResourceType as ResourceType
    from tidelog.clients.admin.group_offsets import SharePartitionOffset as SharePartitionOffset
    from tidelog.clients.admin.groups import ClassicGroupDescription as ClassicGroupDescription
    from tidelog.clients.admin.groups import ClassicMember as ClassicMember
    from tidelog.clients.admin.groups import ConsumerGroupDescription as ConsumerGroupDescription
    from tidelog.clients.admin.groups import GroupListing as GroupListing
    from tidelog.clients.admin.groups import MemberDescription as MemberDescription
    from tidelog.clients.admin.other_groups import ShareGroupDescription as ShareGroupDescription
    from tidelog.clients.admin.other_groups import ShareMemberDescription as ShareMemberDescription
    from tidelog.clients.admin.other_groups import StreamsGroupDescription as StreamsGroupDescription
    from tidelog.clients.admin.other_groups import StreamsMemberDescription as StreamsMemberDescription
    from tidelog.clients.admin.results import Results as Results
    from tidelog.clients.admin.topics import CreatedTopic as CreatedTopic
    from tidelog.clients.admin.topics import NewPartitions as NewPartitions
    from tidelog.clients.admin.topics import NewTopic as NewTopic
    from tidelog.clients.admin.topics import OffsetInfo as OffsetInfo
    from tidelog.clients.admin.topics import OffsetSpec as OffsetSpec
    from tidelog.clients.admin.topics import TopicDescription as TopicDescription
    from tidelog.clients.admin.topics import TopicListing as TopicListing
    from tidelog.clients.admin.topics import TopicPartitionInfo as TopicPartitionInfo
    from tidelog.clients.admin.transactions import AbortTransactionSpec as AbortTransactionSpec
    from tidelog.clients.admin.transactions import FencedProducer as FencedProducer
    from tidelog.clients.admin.transactions import HangingTransaction as HangingTransaction
    from tidelog.clients.admin.transactions import ProducerState as ProducerState
    from tidelog.clients.admin.transactions import TransactionDescription as TransactionDescription
    from tidelog.clients.admin.transactions import TransactionListing as TransactionListing
    from tidelog.clients.admin.users import DelegationToken as DelegationToken
    from tidelog.clients.admin.users import Principal as Principal
    from tidelog.clients.admin.users import QuotaComponent as QuotaComponent
    from tidelog.clients.admin.users import ScramCredentialInfo as ScramCredentialInfo
    from tidelog.clients.admin.users import ScramMechanism as ScramMechanism
    from tidelog.clients.admin.users import UserScramCredentialDeletion as UserScramCredentialDeletion
    from tidelog.clients.admin.users import UserScramCredentialUpsertion as UserScramCredentialUpsertion
    from tidelog.clients.offsets import OffsetAndMetadata as OffsetAndMetadata
    from tidelog.config import ConfigType as ConfigType
    from tidelog.config.entries import ConfigEntry as ConfigEntry
    from tidelog.config.entries import ConfigSource as ConfigSource
    from tidelog.config.entries import ConfigSynonym as ConfigSynonym
    from tidelog.protocol.election_type import ElectionType as ElectionType

_NAMES = {
    "tidelog.clients.admin.acls": (
        "AclBinding",
        "AclBindingFilter",
        "AclOperation",
        "AclPermissionType",
        "AclResourceType",
        "PatternType",
    ),
    "tidelog.clients.admin.blocking": ("Admin",),
    "tidelog.clients.admin.client": ("AsyncAdmin",),
    "tidelog.clients.admin.cluster": (
        "ClusterDescription",
        "FeatureMetadata",
        "FeatureUpdate",
        "LogDirDescription",
        "PartitionReassignment",
        "QuorumInfo",
        "QuorumReplica",
        "Replica",
        "ReplicaInfo",
        "ReplicaLogDirInfo",
        "UpgradeType",
        "VersionRange",
    ),
    "tidelog.clients.admin.configs": (
        "AlterConfigOp",
        "ConfigResource",
        "OpType",
        "ResourceType",
    ),
    "tidelog.clients.admin.group_offsets": ("SharePartitionOffset",),
    "tidelog.clients.admin.groups": (
        "ClassicGroupDescription",
        "ClassicMember",
        "ConsumerGroupDescription",
        "GroupListing",
        "MemberDescription",
    ),
    "tidelog.clients.admin.other_groups": (
        "ShareGroupDescription",
        "ShareMemberDescription",
        "StreamsGroupDescription",
        "StreamsMemberDescription",
    ),
    "tidelog.clients.admin.results": ("Results",),
    "tidelog.clients.admin.topics": (
        "CreatedTopic",
        "NewPartitions",
        "NewTopic",
        "OffsetInfo",
        "OffsetSpec",
        "TopicPartitionInfo",
        "TopicDescription",
        "TopicListing",
    ),
    "tidelog.clients.admin.transactions": (
        "AbortTransactionSpec",
        "FencedProducer",
        "HangingTransaction",
        "ProducerState",
        "TransactionDescription",
        "TransactionListing",
    ),
    "tidelog.clients.admin.users": (
        "DelegationToken",
        "Principal",
        "QuotaComponent",
        "ScramCredentialInfo",
        "ScramMechanism",
        "UserScramCredentialDeletion",
        "UserScramCredentialUpsertion",
    ),
    "tidelog.clients.offsets": ("OffsetAndMetadata",),
    "tidelog.config": ("ConfigType",),
    "tidelog.config.entries": ("ConfigEntry", "ConfigSource", "ConfigSynonym"),
    "tidelog.protocol.election_type": ("ElectionType",),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
