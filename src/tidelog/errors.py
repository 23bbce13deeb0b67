"""Kafka's error codes: one enum for the wire, one exception class per code for the code that breaks a rule.

Raise the class where the rule is broken; whoever writes the answer reads `code` and `message` from it.
Names and numbers are Kafka's, so a client shows its user the error that he can look up.
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar


class ErrorCode(IntEnum):
    """Error codes as they stand in answers."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    INVALID_FETCH_SIZE = 4
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    STALE_CONTROLLER_EPOCH = 11
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    REASSIGNMENT_IN_PROGRESS = 60
    DELEGATION_TOKEN_AUTH_DISABLED = 61
    DELEGATION_TOKEN_NOT_FOUND = 62
    DELEGATION_TOKEN_OWNER_MISMATCH = 63
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65
    DELEGATION_TOKEN_EXPIRED = 66
    INVALID_PRINCIPAL_TYPE = 67
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    LISTENER_NOT_FOUND = 72
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    INCONSISTENT_VOTER_SET = 94
    INVALID_UPDATE_VERSION = 95
    FEATURE_UPDATE_FAILED = 96
    PRINCIPAL_DESERIALIZATION_FAILURE = 97
    SNAPSHOT_NOT_FOUND = 98
    POSITION_OUT_OF_RANGE = 99
    UNKNOWN_TOPIC_ID = 100
    DUPLICATE_BROKER_REGISTRATION = 101
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_TOPIC_ID = 103
    INCONSISTENT_CLUSTER_ID = 104
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    INELIGIBLE_REPLICA = 107
    NEW_LEADER_ELECTED = 108
    OFFSET_MOVED_TO_TIERED_STORAGE = 109
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    UNKNOWN_CONTROLLER_ID = 116
    UNKNOWN_SUBSCRIPTION_ID = 117
    TELEMETRY_TOO_LARGE = 118
    INVALID_REGISTRATION = 119
    TRANSACTION_ABORTABLE = 120
    INVALID_RECORD_STATE = 121
    SHARE_SESSION_NOT_FOUND = 122
    INVALID_SHARE_SESSION_EPOCH = 123
    FENCED_STATE_EPOCH = 124
    INVALID_VOTER_KEY = 125
    DUPLICATE_VOTER = 126
    VOTER_NOT_FOUND = 127
    INVALID_REGULAR_EXPRESSION = 128
    REBOOTSTRAP_REQUIRED = 129
    STREAMS_INVALID_TOPOLOGY = 130
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131
    STREAMS_TOPOLOGY_FENCED = 132
    SHARE_SESSION_LIMIT_REACHED = 133


# A message quotes what a client sent, which may be as long as a string can be: an answer has to carry it.
MAX_MESSAGE = 2000


class KafkaError(Exception):
    """A broken rule that has a Kafka error code; `message` is what a person is told besides the code."""

    code: ClassVar[int] = -1
    retriable: ClassVar[bool] = False

    def __init__(self, message: str | None = None) -> None:
        if message is not None and len(message) > MAX_MESSAGE:
            message = f"{message[: MAX_MESSAGE // 2]} ... {message[-MAX_MESSAGE // 2 :]}"
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        return self.message if self.message is not None else error_name(self.code)


class RecordLevelError(KafkaError):
    """A broken rule that can be pinned to records of a batch: (index in the batch, reason) of each."""

    def __init__(
        self, message: str | None = None, record_errors: list[tuple[int, str | None]] | None = None
    ) -> None:
        super().__init__(message)
        self.record_errors: list[tuple[int, str | None]] = record_errors if record_errors is not None else []


class UnknownServerError(KafkaError):
    code = -1


class OffsetOutOfRange(KafkaError):
    code = 1


class CorruptMessage(KafkaError):
    code = 2
    retriable = True


class UnknownTopicOrPartition(KafkaError):
    code = 3
    retriable = True


class InvalidFetchSize(KafkaError):
    code = 4


class LeaderNotAvailable(KafkaError):
    code = 5
    retriable = True


class NotLeaderOrFollower(KafkaError):
    code = 6
    retriable = True


class RequestTimedOut(KafkaError):
    code = 7
    retriable = True


class BrokerNotAvailable(KafkaError):
    code = 8


class ReplicaNotAvailable(KafkaError):
    code = 9
    retriable = True


class MessageTooLarge(KafkaError):
    code = 10


class StaleControllerEpoch(KafkaError):
    code = 11


class OffsetMetadataTooLarge(KafkaError):
    code = 12


class NetworkException(KafkaError):
    code = 13
    retriable = True


class CoordinatorLoadInProgress(KafkaError):
    code = 14
    retriable = True


class CoordinatorNotAvailable(KafkaError):
    code = 15
    retriable = True


class NotCoordinator(KafkaError):
    code = 16
    retriable = True


class InvalidTopic(KafkaError):
    code = 17


class RecordListTooLarge(KafkaError):
    code = 18


class NotEnoughReplicas(KafkaError):
    code = 19
    retriable = True


class NotEnoughReplicasAfterAppend(KafkaError):
    code = 20
    retriable = True


class InvalidRequiredAcks(KafkaError):
    code = 21


class IllegalGeneration(KafkaError):
    code = 22


class InconsistentGroupProtocol(KafkaError):
    code = 23


class InvalidGroupId(KafkaError):
    code = 24


class UnknownMemberId(KafkaError):
    code = 25


class InvalidSessionTimeout(KafkaError):
    code = 26


class RebalanceInProgress(KafkaError):
    code = 27


class InvalidCommitOffsetSize(KafkaError):
    code = 28


class TopicAuthorizationFailed(KafkaError):
    code = 29


class GroupAuthorizationFailed(KafkaError):
    code = 30


class ClusterAuthorizationFailed(KafkaError):
    code = 31


class InvalidTimestamp(RecordLevelError):
    code = 32


class UnsupportedSaslMechanism(KafkaError):
    code = 33


class IllegalSaslState(KafkaError):
    code = 34


class UnsupportedVersion(KafkaError):
    code = 35


class TopicAlreadyExists(KafkaError):
    code = 36


class InvalidPartitions(KafkaError):
    code = 37


class InvalidReplicationFactor(KafkaError):
    code = 38


class InvalidReplicaAssignment(KafkaError):
    code = 39


class InvalidConfig(KafkaError):
    code = 40


class NotController(KafkaError):
    code = 41
    retriable = True


class InvalidRequest(KafkaError):
    code = 42


class UnsupportedForMessageFormat(KafkaError):
    code = 43


class PolicyViolation(KafkaError):
    code = 44


class OutOfOrderSequenceNumber(KafkaError):
    code = 45


class DuplicateSequenceNumber(KafkaError):
    code = 46


class InvalidProducerEpoch(KafkaError):
    code = 47


class InvalidTxnState(KafkaError):
    code = 48


class InvalidProducerIdMapping(KafkaError):
    code = 49


class InvalidTransactionTimeout(KafkaError):
    code = 50


class ConcurrentTransactions(KafkaError):
    code = 51
    retriable = True


class TransactionCoordinatorFenced(KafkaError):
    code = 52


class TransactionalIdAuthorizationFailed(KafkaError):
    code = 53


class SecurityDisabled(KafkaError):
    code = 54


class OperationNotAttempted(KafkaError):
    code = 55


class KafkaStorageError(KafkaError):
    code = 56
    retriable = True


class LogDirNotFound(KafkaError):
    code = 57


class SaslAuthenticationFailed(KafkaError):
    code = 58


class UnknownProducerId(KafkaError):
    code = 59


class ReassignmentInProgress(KafkaError):
    code = 60


class DelegationTokenAuthDisabled(KafkaError):
    code = 61


class DelegationTokenNotFound(KafkaError):
    code = 62


class DelegationTokenOwnerMismatch(KafkaError):
    code = 63


class DelegationTokenRequestNotAllowed(KafkaError):
    code = 64


class DelegationTokenAuthorizationFailed(KafkaError):
    code = 65


class DelegationTokenExpired(KafkaError):
    code = 66


class InvalidPrincipalType(KafkaError):
    code = 67


class NonEmptyGroup(KafkaError):
    code = 68


class GroupIdNotFound(KafkaError):
    code = 69


class FetchSessionIdNotFound(KafkaError):
    code = 70
    retriable = True


class InvalidFetchSessionEpoch(KafkaError):
    code = 71
    retriable = True


class ListenerNotFound(KafkaError):
    code = 72
    retriable = True


class TopicDeletionDisabled(KafkaError):
    code = 73


class FencedLeaderEpoch(KafkaError):
    code = 74
    retriable = True


class UnknownLeaderEpoch(KafkaError):
    code = 75
    retriable = True


class UnsupportedCompressionType(KafkaError):
    code = 76


class StaleBrokerEpoch(KafkaError):
    code = 77


class OffsetNotAvailable(KafkaError):
    code = 78
    retriable = True


class MemberIdRequired(KafkaError):
    code = 79


class PreferredLeaderNotAvailable(KafkaError):
    code = 80
    retriable = True


class GroupMaxSizeReached(KafkaError):
    code = 81


class FencedInstanceId(KafkaError):
    code = 82


class EligibleLeadersNotAvailable(KafkaError):
    code = 83
    retriable = True


class ElectionNotNeeded(KafkaError):
    code = 84
    retriable = True


class NoReassignmentInProgress(KafkaError):
    code = 85


class GroupSubscribedToTopic(KafkaError):
    code = 86


class InvalidRecord(RecordLevelError):
    code = 87


class UnstableOffsetCommit(KafkaError):
    code = 88
    retriable = True


class ThrottlingQuotaExceeded(KafkaError):
    code = 89
    retriable = True


class ProducerFenced(KafkaError):
    code = 90


class ResourceNotFound(KafkaError):
    code = 91


class DuplicateResource(KafkaError):
    code = 92


class UnacceptableCredential(KafkaError):
    code = 93


class InconsistentVoterSet(KafkaError):
    code = 94


class InvalidUpdateVersion(KafkaError):
    code = 95


class FeatureUpdateFailed(KafkaError):
    code = 96


class PrincipalDeserializationFailure(KafkaError):
    code = 97


class SnapshotNotFound(KafkaError):
    code = 98


class PositionOutOfRange(KafkaError):
    code = 99


class UnknownTopicId(KafkaError):
    code = 100
    retriable = True


class DuplicateBrokerRegistration(KafkaError):
    code = 101


class BrokerIdNotRegistered(KafkaError):
    code = 102


class InconsistentTopicId(KafkaError):
    code = 103
    retriable = True


class InconsistentClusterId(KafkaError):
    code = 104


class TransactionalIdNotFound(KafkaError):
    code = 105


class FetchSessionTopicIdError(KafkaError):
    code = 106
    retriable = True


class IneligibleReplica(KafkaError):
    code = 107


class NewLeaderElected(KafkaError):
    code = 108


class OffsetMovedToTieredStorage(KafkaError):
    code = 109


class FencedMemberEpoch(KafkaError):
    code = 110


class UnreleasedInstanceId(KafkaError):
    code = 111


class UnsupportedAssignor(KafkaError):
    code = 112


class StaleMemberEpoch(KafkaError):
    code = 113


class MismatchedEndpointType(KafkaError):
    code = 114


class UnsupportedEndpointType(KafkaError):
    code = 115


class UnknownControllerId(KafkaError):
    code = 116


class UnknownSubscriptionId(KafkaError):
    code = 117


class TelemetryTooLarge(KafkaError):
    code = 118


class InvalidRegistration(KafkaError):
    code = 119


class TransactionAbortable(KafkaError):
    code = 120


class InvalidRecordState(KafkaError):
    code = 121


class ShareSessionNotFound(KafkaError):
    code = 122
    retriable = True


class InvalidShareSessionEpoch(KafkaError):
    code = 123
    retriable = True


class FencedStateEpoch(KafkaError):
    code = 124


class InvalidVoterKey(KafkaError):
    code = 125


class DuplicateVoter(KafkaError):
    code = 126


class VoterNotFound(KafkaError):
    code = 127


class InvalidRegularExpression(KafkaError):
    code = 128


class RebootstrapRequired(KafkaError):
    code = 129


class StreamsInvalidTopology(KafkaError):
    code = 130


class StreamsInvalidTopologyEpoch(KafkaError):
    code = 131


class StreamsTopologyFenced(KafkaError):
    code = 132


class ShareSessionLimitReached(KafkaError):
    code = 133
    retriable = True


# Built from the classes above, which never change: a lookup table, not state.
_CLASSES: dict[int, type[KafkaError]] = {
    error.code: error
    for base in (KafkaError, RecordLevelError)
    for error in base.__subclasses__()
    if error is not RecordLevelError
}


def error_class(code: int) -> type[KafkaError]:
    """The exception class of a code; one that nobody knows is an unknown server error, as in Kafka."""
    return _CLASSES.get(code, UnknownServerError)


def error_name(code: int) -> str:
    """Kafka's name of a code, or `ERROR_<code>` for one that is not Kafka's."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"ERROR_{code}"
