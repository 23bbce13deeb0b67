"""The errors of the clients themselves, under the names of Kafka's Java client.

Errors that brokers send are in `tidelog.errors`. `retriable` says whether the same call may succeed later.
"""

from __future__ import annotations

from typing import ClassVar

from tidelog.config import ConfigError
from tidelog.errors import (
    KafkaError,
    MismatchedEndpointType,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanism,
    UnsupportedVersion,
)

__all__ = [
    "REFUSED",
    "BufferExhaustedException",
    "ClientClosedException",
    "ClientError",
    "CommitFailedException",
    "ConfigError",
    "IllegalStateException",
    "NoBrokersAvailableException",
    "RecordTooLargeException",
    "SerializationException",
    "SslAuthenticationException",
    "TimeoutException",
    "TransactionAbortedException",
    "UnknownTopicException",
    "WakeupException",
]


class ClientError(KafkaError):
    """An error that no broker sent. Its code is that of UNKNOWN_SERVER_ERROR."""

    retriable: ClassVar[bool] = False


class TimeoutException(ClientError, TimeoutError):
    """A call did not succeed in time."""

    retriable = True


class BufferExhaustedException(TimeoutException):
    """The buffer of the producer was full for max.block.ms: brokers are slower than the application."""


class NoBrokersAvailableException(TimeoutException):
    """None of the known brokers can be reached."""


class UnknownTopicException(TimeoutException):
    """A topic does not exist, and was not created in time."""


class SerializationException(ClientError):
    """A key or value could not be serialized or deserialized."""


class RecordTooLargeException(ClientError):
    """A record is larger than max.request.size or buffer.memory."""


class ClientClosedException(ClientError):
    """The client was closed before or during a call."""


class IllegalStateException(ClientError):
    """A call is not allowed in the state of the client, such as a commit without a transaction."""


class WakeupException(ClientError):
    """`wakeup` ended a poll."""


class CommitFailedException(ClientError):
    """A commit came too late: other members have the partitions."""


class TransactionAbortedException(ClientError):
    """The transaction of a record was aborted before the record was sent."""


class SslAuthenticationException(ClientError):
    """A TLS handshake failed."""


# Errors that no other broker and no later attempt would change.
REFUSED = (
    SaslAuthenticationFailed,
    UnsupportedSaslMechanism,
    SslAuthenticationException,
    MismatchedEndpointType,
    UnsupportedVersion,
)
