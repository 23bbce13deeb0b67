"""GroupSettings: the settings of groups.

They are read at each use, so that a change has an effect at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tidelog.config.values import ConfigValue

# The class names in configuration files of Kafka 3.9.
_ASSIGNORS = {
    "org.apache.kafka.coordinator.group.assignor.UniformAssignor": "uniform",
    "org.apache.kafka.coordinator.group.assignor.RangeAssignor": "range",
}


def _no_overrides(group_id: str) -> Mapping[str, str]:
    return {}


class GroupSettings:
    """Typed access to the broker's settings. `value_of` returns the present value of a setting.

    `overrides_of` returns the settings that a group overrides, by their names for groups. `group_version` is
    the finalized version of that feature: 0 in a cluster with Kafka 3.9, which serves classic groups only.
    """

    __slots__ = ("_overrides_of", "_value_of", "group_version")

    def __init__(
        self,
        value_of: Callable[[str], ConfigValue],
        overrides_of: Callable[[str], Mapping[str, str]] = _no_overrides,
        group_version: int = 1,
    ) -> None:
        self.group_version = group_version
        self._value_of = value_of
        self._overrides_of = overrides_of

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

    # -- consumer groups ---------------------------------------------------------------------------

    def _of_group(self, group_id: str, name: str) -> int:
        """The group's setting `name`, by default the broker's setting group.`name`."""
        own = self._overrides_of(group_id).get(name)
        return int(own) if own is not None else self._int(f"group.{name}")

    def consumer_session_timeout_ms(self, group_id: str) -> int:
        return self._of_group(group_id, "consumer.session.timeout.ms")

    def consumer_heartbeat_interval_ms(self, group_id: str) -> int:
        return self._of_group(group_id, "consumer.heartbeat.interval.ms")

    def consumer_assignment_interval_ms(self, group_id: str) -> int:
        return self._of_group(group_id, "consumer.assignment.interval.ms")

    @property
    def consumer_max_size(self) -> int:
        return self._int("group.consumer.max.size")

    @property
    def consumer_assignors(self) -> Sequence[str]:
        """The assignors that members may choose; the first is the default."""
        names = [_ASSIGNORS.get(name, name) for name in self._texts("group.consumer.assignors")]
        return names or list(_ASSIGNORS.values())

    @property
    def consumer_migration_policy(self) -> str:
        policy = self._value_of("group.consumer.migration.policy")
        assert isinstance(policy, str)
        return policy

    @property
    def rebalance_protocols(self) -> Sequence[str]:
        return self._texts("group.coordinator.rebalance.protocols")

    def _texts(self, name: str) -> Sequence[str]:
        values = self._value_of(name)
        assert isinstance(values, list | tuple)
        return values

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

    # -- the topic __consumer_offsets ----------------------------------------------------------------

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
