"""The listeners of the broker and the addresses that it advertises to clients."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from tidelog.config.values import ConfigError
from tidelog.endpoints import Endpoint

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_LISTENER = re.compile(r"([^:/]+)://(?:\[([0-9a-zA-Z%._:-]*)\]|([0-9a-zA-Z%._:-]*)):(-?[0-9]{1,6})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Listeners:
    bound: tuple[Endpoint, ...]
    advertised: tuple[Endpoint, ...]
    inter_broker: str
    left_out: tuple[str, ...]  # listeners of a KRaft controller


def parse_protocol_map(text: str) -> dict[str, str]:
    protocols: dict[str, str] = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        name, colon, protocol = (part.strip() for part in pair.rpartition(":"))
        name = name.upper()
        if not colon or protocol not in PROTOCOLS or not name:
            raise _map_error(text, f"expected NAME:PROTOCOL (one of {', '.join(PROTOCOLS)}), not {pair}")
        if name in protocols:
            raise _map_error(text, f"{name} occurs twice")
        protocols[name] = protocol
    return protocols


def _map_error(text: str, problem: str) -> ConfigError:
    return ConfigError("listener.security.protocol.map", text, problem)


def parse_endpoints(setting: str, items: Sequence[str], protocols: Mapping[str, str]) -> list[Endpoint]:
    endpoints = []
    for item in items:
        match = _LISTENER.fullmatch(item)
        if match is None or not -1 <= int(match[4]) <= 65535:
            raise ConfigError(setting, ",".join(items), f"expected NAME://host:port, not {item!r}")
        name = match[1].upper()
        if name not in protocols:
            problem = f"{name} has no protocol; add {name}:PLAINTEXT to listener.security.protocol.map"
            raise ConfigError(setting, item, problem)
        endpoints.append(Endpoint(name, protocols[name], match[2] or match[3] or "", int(match[4])))
    return endpoints


def _is_ipv6(host: str) -> bool:
    return ":" in host


def _check_distinct(setting: str, endpoints: Sequence[Endpoint], *, ports: bool) -> None:
    names: set[str] = set()
    taken: dict[int, Endpoint] = {}
    for endpoint in endpoints:
        if endpoint.listener in names:
            raise ConfigError(setting, str(endpoint), f"the name {endpoint.listener} occurs twice")
        names.add(endpoint.listener)
        if not ports or endpoint.port <= 0:
            continue
        other = taken.setdefault(endpoint.port, endpoint)
        # IPv4 and IPv6 may share a port, with a socket each.
        if other is not endpoint and _is_ipv6(other.host) == _is_ipv6(endpoint.host):
            raise ConfigError(setting, str(endpoint), f"listener {other.listener} has that port")


def resolve_listeners(
    *,
    listeners: Sequence[str],
    advertised: Sequence[str] | None,
    protocol_map: str,
    controller_names: Sequence[str],
    inter_broker_name: str | None,
    inter_broker_protocol: str,
) -> Listeners:
    """Read and check all settings of listeners together. Raises ConfigError."""
    protocols = parse_protocol_map(protocol_map)
    controllers = {name.upper() for name in controller_names}
    # The listener of a KRaft controller need not be in the map.
    known = dict.fromkeys(controllers, "PLAINTEXT") | protocols
    every = parse_endpoints("listeners", listeners, known)
    _check_distinct("listeners", every, ports=True)
    bound = [endpoint for endpoint in every if endpoint.listener not in controllers]
    if not bound:
        problem = "no listener is left for clients" if every else "at least one listener is needed"
        raise ConfigError("listeners", ",".join(listeners), problem)
    told = _advertised(bound, advertised, known, controllers)
    inter_broker = _inter_broker(told, inter_broker_name, inter_broker_protocol)
    left_out = tuple(str(endpoint) for endpoint in every if endpoint.listener in controllers)
    return Listeners(tuple(bound), tuple(told), inter_broker, left_out)


def _advertised(
    bound: list[Endpoint],
    advertised: Sequence[str] | None,
    protocols: Mapping[str, str],
    controllers: set[str],
) -> list[Endpoint]:
    setting = "advertised.listeners" if advertised else "listeners"
    told = parse_endpoints(setting, advertised, protocols) if advertised else list(bound)
    told = [endpoint for endpoint in told if endpoint.listener not in controllers]
    _check_distinct(setting, told, ports=False)
    names = {endpoint.listener for endpoint in bound}
    for position, endpoint in enumerate(told):
        if endpoint.listener not in names:
            raise ConfigError(setting, str(endpoint), f"listeners has no {endpoint.listener}")
        if endpoint.host in ("0.0.0.0", "::"):
            problem = "clients cannot connect to that; name an address they can reach in advertised.listeners"
            raise ConfigError(setting, str(endpoint), problem)
        if not endpoint.host:
            told[position] = Endpoint(
                endpoint.listener, endpoint.security_protocol, _machine_name(), endpoint.port
            )
    return told


@cache
def _machine_name() -> str:
    """The name of this machine, cached: the lookup may ask a name server while requests wait."""
    return socket.getfqdn()


def _inter_broker(told: list[Endpoint], name: str | None, protocol: str) -> str:
    wanted = (name or protocol).upper()
    names = [endpoint.listener for endpoint in told]
    if wanted not in names:
        setting = "inter.broker.listener.name" if name else "security.inter.broker.protocol"
        problem = f"not an advertised listener; inter.broker.listener.name can be {', '.join(names)}"
        raise ConfigError(setting, wanted, problem)
    return wanted
