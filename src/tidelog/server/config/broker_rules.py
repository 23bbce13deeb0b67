"""Rules of a broker's settings that one setting alone cannot check."""

from __future__ import annotations

from collections.abc import Mapping

from tidelog.config.values import ConfigError, ConfigValue


def check_dirs(dirs: tuple[str, ...]) -> None:
    """Check `log.dirs`. Raises ConfigError."""
    if not dirs:
        raise ConfigError("log.dirs", "", "at least one folder is needed")
    if len(set(dirs)) != len(dirs):
        raise ConfigError("log.dirs", ",".join(dirs), "a folder occurs twice")


def check_together(values: Mapping[str, ConfigValue]) -> None:
    """Check rules of several settings, and rules of resolved values. Raises ConfigError."""

    def number(attribute: str) -> int:
        value = values[attribute]
        return value if isinstance(value, int) else 0

    if number("log_roll_ms") < 1:
        raise ConfigError("log.roll.ms", str(values["log_roll_ms"]), "expected at least 1")
    if number("log_roll_jitter_ms") < 0:
        raise ConfigError("log.roll.jitter.ms", str(values["log_roll_jitter_ms"]), "expected at least 0")
    if number("log_retention_ms") == 0:
        raise ConfigError("log.retention.ms", "0", "expected at least 1, or -1 to keep everything")
    queued, largest = number("queued_max_request_bytes"), number("socket_request_max_bytes")
    if 0 < queued < largest:
        problem = f"expected at least socket.request.max.bytes, which is {largest}, or -1 for no bound"
        raise ConfigError("queued.max.request.bytes", str(queued), problem)
    bits = number("password_encoder_key_length")
    if bits not in (128, 192, 256):
        raise ConfigError("password.encoder.key.length", str(bits), "expected 128, 192 or 256")
    if number("max_connections_per_ip") == 0 and not values["max_connections_per_ip_overrides"]:
        problem = "nobody could connect; name hosts in max.connections.per.ip.overrides"
        raise ConfigError("max.connections.per.ip", "0", problem)
