"""Settings of a consumer that must agree with each other."""

from __future__ import annotations

from tidelog.clients.consumer.positions import reset_policy
from tidelog.clients.errors import ConfigError
from tidelog.clients.settings import ConsumerSettings


def check_settings(settings: ConsumerSettings) -> None:
    """Raises ConfigError for settings that contradict each other."""
    reset_policy(settings.auto_offset_reset)
    if settings.group_id == "":
        raise ConfigError("group.id", "", "expected a name")
    if settings.group_protocol.upper() == "CLASSIC":
        if settings.heartbeat_interval_ms >= settings.session_timeout_ms:
            raise ConfigError(
                "heartbeat.interval.ms",
                str(settings.heartbeat_interval_ms),
                f"expected below session.timeout.ms={settings.session_timeout_ms}",
            )
        return
    for name in ("partition.assignment.strategy", "session.timeout.ms", "heartbeat.interval.ms"):
        if name in settings.given:
            raise ConfigError(
                name, None, "expected not to be set with group.protocol=consumer: the broker decides"
            )
