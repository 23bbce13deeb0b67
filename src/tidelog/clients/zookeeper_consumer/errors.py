"""The errors of the consumer on ZooKeeper, under the names of Kafka 0.8."""

from __future__ import annotations

from tidelog.clients.errors import ClientError, IllegalStateException, TimeoutException


class ConsumerTimeoutException(TimeoutException):
    """A stream had no record for consumer.timeout.ms."""


class ConsumerRebalanceFailedException(ClientError):
    """The consumer could not claim its partitions in rebalance.max.retries attempts."""


class MessageStreamsExistException(IllegalStateException):
    """A connector creates its streams once."""
