"""The settings that groups obey, looked up at each use so that changes hold from then on."""

from __future__ import annotations

from collections.abc import Callable

from tidelog.config.values import ConfigValue


class GroupSettings:
    """Typed names over the broker's settings; `value_of` gives the present value of one."""

    __slots__ = ("_value_of",)

    def __init__(self, value_of: Callable[[str], ConfigValue]) -> None:
        self._value_of = value_of

    def _int(self, name: str) -> int:
        value = self._value_of(name)
        assert isinstance(value, int)
        return value

    # -- classic groups ----------------------------------------------------------------------------

    @property
    def initial_rebalance_delay_ms(self) -> int:
        return self._int("group.initial.rebalance.delay.ms")

    @property
    def max_size(self) -> int:
        return self._int("group.max.size")

    @property
    def min_session_timeout_ms(self) -> int:
        return self._int("group.min.session.timeout.ms")

    @property
    def max_session_timeout_ms(self) -> int:
        return self._int("group.max.session.timeout.ms")

    # -- offsets -----------------------------------------------------------------------------------

    @property
    def offset_metadata_max_bytes(self) -> int:
        return self._int("offset.metadata.max.bytes")

    @property
    def offsets_commit_timeout_ms(self) -> int:
        return self._int("offsets.commit.timeout.ms")

    @property
    def offsets_retention_ms(self) -> int:
        return self._int("offsets.retention.minutes") * 60_000

    @property
    def offsets_retention_check_interval_ms(self) -> int:
        return self._int("offsets.retention.check.interval.ms")

    # -- the topic that keeps it all -----------------------------------------------------------------

    @property
    def offsets_load_buffer_size(self) -> int:
        return self._int("offsets.load.buffer.size")

    @property
    def offsets_topic_num_partitions(self) -> int:
        return self._int("offsets.topic.num.partitions")

    @property
    def offsets_topic_replication_factor(self) -> int:
        return self._int("offsets.topic.replication.factor")

    @property
    def offsets_topic_segment_bytes(self) -> int:
        return self._int("offsets.topic.segment.bytes")
