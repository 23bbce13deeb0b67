"""DescribeClientQuotas (48) v0-1 and AlterClientQuotas (49) v0-1.

- An entity is a user, a client id, both, or an address (`ip`); a null name is the default of its kind.
- DescribeClientQuotas: each component matches a name (0), the default (1) or any name (2). Without `strict`,
  entities with further parts match, too. A kind that occurs twice or has no name, and an address beside other
  kinds are INVALID_REQUEST, other kinds UNSUPPORTED_VERSION, and other matches UNKNOWN_SERVER_ERROR.
- AlterClientQuotas: one result for each entity, of its last entry. An unknown kind or quota, an empty name,
  a fraction where a whole number is expected, and a host that cannot be resolved are INVALID_REQUEST. An
  unknown quota can be removed. `validate_only` checks, and changes nothing.
- They need DESCRIBE_CONFIGS and ALTER_CONFIGS on the cluster.
Any broker of a cluster answers both from the tree.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from typing import Final

from tidelog.controller.interface import ConfigChange, ConfigEntity, ConfigKind, ConfigOperation
from tidelog.errors import (
    ClusterAuthorizationFailed,
    InvalidRequest,
    KafkaError,
    UnknownServerError,
    UnsupportedVersion,
)
from tidelog.metadata.paths import is_node_name
from tidelog.metadata.state import DEFAULT_ENTITY
from tidelog.network.request import Request
from tidelog.protocol.messages.alter_client_quotas import AlterClientQuotasRequest, AlterClientQuotasResponse
from tidelog.protocol.messages.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from tidelog.server.apis.authorization import (
    ALTER_CONFIGS,
    CLUSTER,
    DENIED,
    DESCRIBE_CONFIGS,
    check_cluster,
    is_allowed,
)
from tidelog.server.config.quotas import QUOTA_KINDS, SCRAM, quota_text, quotas_of
from tidelog.server.services import Services
from tidelog.slices import Slices

USER, CLIENT_ID, IP = "user", "client-id", "ip"
KINDS: Final = (USER, CLIENT_ID, IP)
EXACT, DEFAULT, ANY = 0, 1, 2

Parts = dict[str, str | None]
"""The names of an entity by kind; None is the default."""


async def describe_client_quotas(
    services: Services, request: Request, body: DescribeClientQuotasRequest
) -> DescribeClientQuotasResponse | Slices[DescribeClientQuotasResponse]:
    try:
        check_cluster(services, request, DESCRIBE_CONFIGS)
        wanted = _filter(body)
        found = await services.controller.entity_configs()
    except KafkaError as error:
        message = None if isinstance(error, UnknownServerError) else error.message
        return DescribeClientQuotasResponse(error_code=error.code, error_message=message, entries=None)
    return _described(found, wanted, body.strict)


def _described(
    found: Mapping[str, Mapping[str, str]],
    wanted: Mapping[str, DescribeClientQuotasRequest.ComponentData],
    strict: bool,
) -> Slices[DescribeClientQuotasResponse]:
    entries = []
    for path in sorted(found):
        yield
        entity = ConfigEntity.at(path)
        if entity.kind not in QUOTA_KINDS:
            continue
        quotas = {name: text for name, text in found[path].items() if name in quotas_of(entity.kind)}
        parts = _parts(entity)
        if quotas and _matches(wanted, parts, strict):
            entries.append(_entry(parts, quotas))
    return DescribeClientQuotasResponse(error_message="", entries=entries)


def _filter(body: DescribeClientQuotasRequest) -> dict[str, DescribeClientQuotasRequest.ComponentData]:
    wanted: dict[str, DescribeClientQuotasRequest.ComponentData] = {}
    for component in body.components:
        kind = component.entity_type
        is_exact = component.match_type == EXACT
        if component.match_type not in (EXACT, DEFAULT, ANY) or (is_exact and component.match is None):
            # Kafka's broker fails here with an unexpected exception, and answers no more than this.
            raise UnknownServerError("a filter has an unknown match, or no name to match")
        if not kind:
            raise InvalidRequest("a filter has no kind of entity")
        if kind not in KINDS:
            raise UnsupportedVersion(f"{kind} is not a kind of entity: {', '.join(KINDS)} are")
        if kind in wanted:
            raise InvalidRequest(f"there are two filters for {kind}")
        wanted[kind] = component
    if IP in wanted and len(wanted) > 1:
        raise InvalidRequest("addresses have no quotas together with users or client ids")
    return wanted


def _parts(entity: ConfigEntity) -> Parts:
    kind = {ConfigKind.USER: USER, ConfigKind.CLIENT: CLIENT_ID, ConfigKind.IP: IP}[entity.kind]
    parts: Parts = {kind: None if entity.name == DEFAULT_ENTITY else entity.name}
    if entity.client is not None:
        parts[CLIENT_ID] = None if entity.client == DEFAULT_ENTITY else entity.client
    return parts


def _matches(
    wanted: Mapping[str, DescribeClientQuotasRequest.ComponentData], parts: Parts, strict: bool
) -> bool:
    for kind, component in wanted.items():
        if kind not in parts:
            return False
        expected = component.match if component.match_type == EXACT else None
        if component.match_type != ANY and parts[kind] != expected:
            return False
    return not strict or len(parts) == len(wanted)


def _entry(parts: Parts, quotas: Mapping[str, str]) -> DescribeClientQuotasResponse.EntryData:
    return DescribeClientQuotasResponse.EntryData(
        entity=[
            DescribeClientQuotasResponse.EntityData(entity_type=kind, entity_name=name)
            for kind, name in parts.items()
        ],
        values=[
            DescribeClientQuotasResponse.ValueData(key=name, value=float(text))
            for name, text in sorted(quotas.items())
        ],
    )


async def alter_client_quotas(
    services: Services, request: Request, body: AlterClientQuotasRequest
) -> AlterClientQuotasResponse:
    entries: dict[tuple[tuple[str, str | None], ...], AlterClientQuotasResponse.EntryData] = {}
    is_denied = not is_allowed(services, request, ALTER_CONFIGS, CLUSTER)
    for entry in body.entries:
        parts: Parts = {part.entity_type: part.entity_name for part in entry.entity}
        result = AlterClientQuotasResponse.EntryData(
            error_message=None,
            entity=[
                AlterClientQuotasResponse.EntityData(entity_type=kind, entity_name=name)
                for kind, name in parts.items()
            ],
        )
        try:
            if is_denied:
                raise ClusterAuthorizationFailed(DENIED)
            entity = await _entity(parts)
            changes = _changes(entity, entry.ops)
            await services.controller.incremental_alter_configs(
                entity, changes, validate_only=body.validate_only
            )
            if not body.validate_only:
                names = ", ".join(change.name for change in changes)
                services.audit.changed(request, "ClientQuota", entity.path, f"settings changed: {names}")
        except KafkaError as error:
            result.error_code = error.code
            result.error_message = None if isinstance(error, UnknownServerError) else error.message
        entries[tuple(sorted(parts.items(), key=lambda part: part[0]))] = result
    return AlterClientQuotasResponse(entries=list(entries.values()))


async def _entity(parts: Parts) -> ConfigEntity:
    for kind, name in parts.items():
        if kind not in KINDS:
            raise InvalidRequest(f"{kind or 'an empty text'} is not a kind of entity: {', '.join(KINDS)} are")
        if name == "":
            raise InvalidRequest(f"the name of a {kind} is empty")
        if name is not None and not is_node_name(name):
            raise InvalidRequest(f"{name!r} cannot be the name of a {kind}")
    names = {kind: DEFAULT_ENTITY if name is None else name for kind, name in parts.items()}
    if not names:
        raise InvalidRequest("the quota has no entity")
    if IP in names:
        if len(names) > 1:
            raise InvalidRequest("addresses have no quotas together with users or client ids")
        if parts[IP] is not None and not await _resolves(names[IP]):
            raise InvalidRequest(f"{names[IP]} is neither an address nor a host that can be resolved")
        return ConfigEntity(ConfigKind.IP, names[IP])
    if USER in names:
        return ConfigEntity(ConfigKind.USER, names[USER], names.get(CLIENT_ID))
    return ConfigEntity(ConfigKind.CLIENT, names[CLIENT_ID])


async def _resolves(host: str) -> bool:
    try:
        return bool(await asyncio.to_thread(socket.getaddrinfo, host, None))
    except (OSError, UnicodeError):
        return False


def _changes(entity: ConfigEntity, ops: list[AlterClientQuotasRequest.OpData]) -> list[ConfigChange]:
    changes: dict[str, ConfigChange] = {}
    for op in ops:
        if op.remove:
            changes[op.key] = ConfigChange(op.key, ConfigOperation.DELETE, None)
            continue
        if entity.kind == ConfigKind.USER and op.key in SCRAM:
            # As in Kafka: a number is no credential.
            raise UnknownServerError(f"{op.key} is not a quota")
        changes[op.key] = ConfigChange(op.key, ConfigOperation.SET, quota_text(entity.kind, op.key, op.value))
    return list(changes.values())
