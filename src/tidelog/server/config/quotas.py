"""The settings of users, clients and addresses: their quotas."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from tidelog.config.values import ConfigType
from tidelog.controller.interface import ConfigKind
from tidelog.errors import InvalidRequest

QUOTA_KINDS: Final = (ConfigKind.USER, ConfigKind.CLIENT, ConfigKind.IP)
CLIENT_QUOTAS: Final = {
    "producer_byte_rate": ConfigType.LONG,
    "consumer_byte_rate": ConfigType.LONG,
    "request_percentage": ConfigType.DOUBLE,
    "controller_mutation_rate": ConfigType.DOUBLE,
}
CONNECTION_QUOTAS: Final = {"connection_creation_rate": ConfigType.INT}
SCRAM: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512")
"""Users have their SCRAM credentials beside their quotas."""

EPSILON: Final = 1e-6
"""How much a number of a request may differ from a whole number."""


def quotas_of(kind: str) -> dict[str, ConfigType]:
    return CONNECTION_QUOTAS if kind == ConfigKind.IP else CLIENT_QUOTAS


def quota_text(kind: str, name: str, value: float) -> str:
    """The value of a quota as the tree has it. Raises InvalidRequest, also for an unknown name."""
    wanted = quotas_of(kind).get(name)
    if wanted is None:
        raise InvalidRequest(f"{name} is not a quota of {kind}: {', '.join(quotas_of(kind))} are")
    if not math.isfinite(value):
        raise InvalidRequest(f"{name}={value}: a finite number is expected")
    if wanted is ConfigType.DOUBLE:
        return str(value)
    whole = int(value + EPSILON)
    if abs(whole - value) > EPSILON:
        raise InvalidRequest(f"{name}={value}: a whole number of at least 0 is expected")
    return str(whole)


def check_quotas(kind: str, configs: Mapping[str, str]) -> None:
    """InvalidRequest unless an entity may have settings of these names."""
    for name in configs:
        if name not in quotas_of(kind) and not (kind == ConfigKind.USER and name in SCRAM):
            raise InvalidRequest(f"{name} is not a quota of {kind}: {', '.join(quotas_of(kind))} are")
