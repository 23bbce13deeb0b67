"""One exception class for each of Kafka's error codes.

The response to a client has the `code` and `message` of the exception. Names and numbers are Kafka's, so that
users find the error that their client shows.
"""

from __future__ import annotations

from typing import ClassVar

from tidelog.error_codes import ErrorCode as ErrorCode
from tidelog.error_codes import error_name as error_name

# Messages may quote long strings of a client; this limit keeps answers small.
MAX_MESSAGE = 2000


class KafkaError(Exception):
    """An error with a Kafka error code, and a `message` for people."""

    code: ClassVar[int] = -1
    retriable: ClassVar[bool] = False

    def __init__(self, message: str | None = None) -> None:
        if message is not None and len(message) > MAX_MESSAGE:
            message = f"{message[: MAX_MESSAGE // 2]} ... {message[-MAX_MESSAGE // 2 :]}"
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        return self.message if self.message is not None else error_name(self.code)


class RetriableError(KafkaError):
    """An error after which the same request can succeed later."""

    retriable = True


class RecordLevelError(KafkaError):
    """An error of single records of a batch; `record_errors` has their indexes in the batch, and reasons."""

    def __init__(
        self, message: str | None = None, record_errors: list[tuple[int, str | None]] | None = None
    ) -> None:
        super().__init__(message)
        self.record_errors: list[tuple[int, str | None]] = record_errors if record_errors is not None else []


class UnknownServerError(KafkaError):
    code = -1


class OffsetOutOfRange(KafkaError):
    code = 1


class CorruptMessage(RetriableError):
    code = 2


class UnknownTopicOrPartition(RetriableError):
    code = 3


class InvalidFetchSize(KafkaError):
    code = 4


class LeaderNotAvailable(RetriableError):
    code = 5


class NotLeaderOrFollower(RetriableError):
    code = 6


class RequestTimedOut(RetriableError):
    code = 7


class BrokerNotAvailable(KafkaError):
    code = 8


class ReplicaNotAvailable(RetriableError):
    code = 9


class MessageTooLarge(KafkaError):
    code = 10


class StaleControllerEpoch(KafkaError):
    code = 11


class OffsetMetadataTooLarge(KafkaError):
    code = 12


class NetworkException(RetriableError):
    code = 13


class CoordinatorLoadInProgress(RetriableError):
    code = 14


class CoordinatorNotAvailable(RetriableError):
    code = 15


class NotCoordinator(RetriableError):
    code = 16


class InvalidTopic(KafkaError):
    code = 17


class RecordListTooLarge(KafkaError):
    code = 18


class NotEnoughReplicas(RetriableError):
    code = 19


class NotEnoughReplicasAfterAppend(RetriableError):
    code = 20


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


class NotController(RetriableError):
    code = 41


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


class ConcurrentTransactions(RetriableError):
    code = 51


class TransactionCoordinatorFenced(KafkaError):
    code = 52


class TransactionalIdAuthorizationFailed(KafkaError):
    code = 53


class SecurityDisabled(KafkaError):
    code = 54


class OperationNotAttempted(KafkaError):
    code = 55


class KafkaStorageError(RetriableError):
    code = 56


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


class FetchSessionIdNotFound(RetriableError):
    code = 70


class InvalidFetchSessionEpoch(RetriableError):
    code = 71


class ListenerNotFound(RetriableError):
    code = 72


class TopicDeletionDisabled(KafkaError):
    code = 73


class FencedLeaderEpoch(RetriableError):
    code = 74


class UnknownLeaderEpoch(RetriableError):
    code = 75


class UnsupportedCompressionType(KafkaError):
    code = 76


class StaleBrokerEpoch(KafkaError):
    code = 77


class OffsetNotAvailable(RetriableError):
    code = 78


class MemberIdRequired(KafkaError):
    code = 79


class PreferredLeaderNotAvailable(RetriableError):
    code = 80


class GroupMaxSizeReached(KafkaError):
    code = 81


class FencedInstanceId(KafkaError):
    code = 82


class EligibleLeadersNotAvailable(RetriableError):
    code = 83


class ElectionNotNeeded(RetriableError):
    code = 84


class NoReassignmentInProgress(KafkaError):
    code = 85


class GroupSubscribedToTopic(KafkaError):
    code = 86


class InvalidRecord(RecordLevelError):
    code = 87


class UnstableOffsetCommit(RetriableError):
    code = 88


class ThrottlingQuotaExceeded(RetriableError):
    code = 89


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


class UnknownTopicId(RetriableError):
    code = 100


class DuplicateBrokerRegistration(KafkaError):
    code = 101


class BrokerIdNotRegistered(KafkaError):
    code = 102


class InconsistentTopicId(RetriableError):
    code = 103


class InconsistentClusterId(KafkaError):
    code = 104


class TransactionalIdNotFound(KafkaError):
    code = 105


class FetchSessionTopicIdError(RetriableError):
    code = 106


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


class ShareSessionNotFound(RetriableError):
    code = 122


class InvalidShareSessionEpoch(RetriableError):
    code = 123


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


class ShareSessionLimitReached(RetriableError):
    code = 133


# The exception classes by their codes.
_CLASSES: dict[int, type[KafkaError]] = {
    error.code: error
    for base in (KafkaError, RetriableError, RecordLevelError)
    for error in base.__subclasses__()
    if error not in (RetriableError, RecordLevelError)
}


def error_class(code: int) -> type[KafkaError]:
    """The exception class of a code; as in Kafka, UnknownServerError for an unknown code."""
    return _CLASSES.get(code, UnknownServerError)
