"""What this broker serves, for tests of parts that a build may lack."""

from __future__ import annotations

from tidelog.config import ConfigError
from tidelog.server.config.broker import BrokerConfig


def serves_protocol(protocol: str) -> bool:
    """Whether a listener may have this security protocol."""
    settings = {
        "listeners": f"PLAINTEXT://127.0.0.1:0,{protocol}://127.0.0.1:0",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
    }
    try:
        BrokerConfig.load(None, settings)
    except ConfigError as error:
        return "is not served" not in str(error)
    return True
