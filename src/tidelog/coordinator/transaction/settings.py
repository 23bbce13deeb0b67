"""TransactionSettings: the settings of transactions.

They are read at each use, so that a change has an effect at once.
"""

from __future__ import annotations

from collections.abc import Callable

from tidelog.config.values import ConfigValue


class TransactionSettings:
    """Typed access to the broker's settings. `value_of` returns the present value of a setting.

    `transaction_version` is the finalized version of that feature: 0 in a cluster with Kafka 3.9, which
    reads records without tagged fields.
    """

    __slots__ = ("_value_of", "transaction_version")

    def __init__(self, value_of: Callable[[str], ConfigValue], transaction_version: int = 2) -> None:
        self._value_of = value_of
        self.transaction_version = transaction_version

    @property
    def value_version(self) -> int:
        """The version of TransactionLogValue."""
        return min(self.transaction_version, 1)

    def _int(self, name: str) -> int:
        value = self._value_of(name)
        assert isinstance(value, int)
        return value

    @property
    def max_timeout_ms(self) -> int:
        return self._int("transaction.max.timeout.ms")

    @property
    def two_phase_commit_enable(self) -> bool:
        return bool(self._value_of("transaction.two.phase.commit.enable"))

    @property
    def partition_verification_enable(self) -> bool:
        return bool(self._value_of("transaction.partition.verification.enable"))

    @property
    def id_expiration_ms(self) -> int:
        return self._int("transactional.id.expiration.ms")

    @property
    def abort_interval_ms(self) -> int:
        return self._int("transaction.abort.timed.out.transaction.cleanup.interval.ms")

    @property
    def remove_expired_interval_ms(self) -> int:
        return self._int("transaction.remove.expired.transaction.cleanup.interval.ms")

    @property
    def add_partitions_retry_ms(self) -> int:
        return self._int("add.partitions.to.txn.retry.backoff.ms")

    @property
    def add_partitions_retry_max_ms(self) -> int:
        return self._int("add.partitions.to.txn.retry.backoff.max.ms")

    @property
    def append_timeout_ms(self) -> int:
        return self._int("request.timeout.ms")

    @property
    def load_buffer_size(self) -> int:
        return self._int("transaction.state.log.load.buffer.size")
