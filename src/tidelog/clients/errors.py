"""What can go wrong on the client's side alone, beside the error codes of `tidelog.errors`.

Each has `retriable` as those have: whether the same call may succeed later.
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
    "BufferExhausted",
    "ClientError",
    "Closed",
    "CommitFailed",
    "ConfigError",
    "Interrupted",
    "InvalidState",
    "NoBroker",
    "RecordTooLarge",
    "SerializationError",
    "Timeout",
    "TlsFailed",
    "TransactionAborted",
    "UnknownTopic",
]


class ClientError(KafkaError):
    """An error that no broker sent: its code is that of an unknown error, its message says what happened."""

    retriable: ClassVar[bool] = False


class Timeout(ClientError, TimeoutError):
    """What was asked for did not happen in time."""

    retriable = True


class BufferExhausted(Timeout):
    """The producer's buffer stayed full for max.block.ms: records come faster than brokers take them."""


class NoBroker(Timeout):
    """None of the brokers that are known can be reached."""


class UnknownTopic(Timeout):
    """The cluster says that a topic does not exist, and nobody made it in time."""


class SerializationError(ClientError):
    """A key or value could not be made into bytes, or bytes into a value."""


class RecordTooLarge(ClientError):
    """A record beyond max.request.size or buffer.memory, which no retry makes smaller."""


class Closed(ClientError):
    """The client was closed before or while it was used."""


class InvalidState(ClientError):
    """A call that does not fit what was called before, such as a commit without a transaction."""


class Interrupted(ClientError):
    """A wait was ended by a signal or by `wakeup`."""


class CommitFailed(ClientError):
    """A commit came too late: the group has given the partitions to other members."""


class TransactionAborted(ClientError):
    """A record was dropped because its transaction was aborted before it was sent."""


class TlsFailed(ClientError):
    """The two sides could not agree on a safe connection; trying again will not help."""


# Errors that no other broker and no later attempt will answer differently.
REFUSED = (
    SaslAuthenticationFailed,
    UnsupportedSaslMechanism,
    TlsFailed,
    MismatchedEndpointType,
    UnsupportedVersion,
)
