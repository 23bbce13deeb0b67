"""The endpoints of ACLs, quotas and SCRAM users."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from msgspec import Meta, Struct

from tidelog.clients.admin.users import (
    QuotaEntity,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from tidelog.console.api import Call, Done, Endpoint
from tidelog.console.clusters import Cluster
from tidelog.console.errors import ApiError, check_confirmed, not_found
from tidelog.console.formats import they_are
from tidelog.errors import SecurityDisabled
from tidelog.security.acl import (
    OPERATION_OF_TITLE,
    RESOURCE_TYPE_OF_TITLE,
    AclBinding,
    AclBindingFilter,
    AclPermissionType,
    PatternType,
)
from tidelog.security.acl_templates import CONSUMER_OPERATIONS, PRODUCER_OPERATIONS
from tidelog.security.operations import CLUSTER_NAME, OPERATIONS_OF, AclOperation, AclResourceType, title

Text = Annotated[str, Meta(max_length=1000)]
Name = Annotated[str, Meta(min_length=1, max_length=1000)]
Pattern = Literal["literal", "prefixed"]
QUOTA_KEYS = ("producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate")
IP_KEY = "connection_creation_rate"
LEAST_PASSWORD = 8


# ACLs


class AclsQuery(Struct):
    """`search` is a part of a principal or of the name of a resource."""

    search: Text = ""


class AclItem(Struct):
    principal: str
    permission: str
    operation: str
    resource: str
    name: str
    pattern: str
    host: str


class AclList(Struct):
    """The rules, by principal. `disabled` says that the cluster has no authorizer."""

    disabled: bool
    rules: list[AclItem]


async def list_acls(call: Call[AclsQuery, None]) -> AclList:
    """The ACLs of the cluster, by principal."""
    return await acl_list(call.cluster, call.query.search)


async def acl_list(cluster: Cluster, search: str) -> AclList:
    try:
        found = await cluster.admin.describe_acls()
    except SecurityDisabled:
        return AclList(True, [])
    words = search.lower().split()
    items = [_acl_item(binding) for binding in found]
    chosen = [
        item for item in items if all(word in f"{item.principal} {item.name}".lower() for word in words)
    ]
    chosen.sort(key=lambda item: (item.principal, item.resource, item.name, item.operation))
    return AclList(False, chosen)


def _acl_item(binding: AclBinding) -> AclItem:
    return AclItem(
        binding.principal,
        title(binding.permission),
        title(binding.operation),
        title(binding.resource_type),
        binding.name,
        binding.pattern_type.name.lower(),
        binding.host,
    )


class NewAcls(Struct):
    """Rules for a principal: what a producer or a consumer needs, or one rule.

    A producer needs `topic` and may have `transactional_id`, a consumer `topic` and `group`; one rule has
    `resource`, `name` and `operation`.
    """

    principal: Name
    template: Literal["producer", "consumer", "rule"] = "rule"
    pattern: Pattern = "literal"
    host: Name = "*"
    topic: Text = ""
    group: Text = ""
    transactional_id: Text = ""
    resource: Text = "Topic"
    name: Text = ""
    operation: Text = "Read"
    permission: Literal["Allow", "Deny"] = "Allow"


class CreatedAcls(AclList):
    """The rules that were added."""

    @property
    def message(self) -> str:
        return f"{they_are(len(self.rules), 'rule')} added."


async def create_acls(call: Call[None, NewAcls]) -> CreatedAcls:
    """Add the rules of a template, or one rule."""
    bindings = list(new_bindings(call.body))
    await call.cluster.admin.create_acls(bindings)
    return CreatedAcls(False, [_acl_item(binding) for binding in bindings])


def new_bindings(body: NewAcls) -> Iterator[AclBinding]:
    """The rules of a request. Raises ApiError 400 that names the missing field."""
    kind, _, who = body.principal.partition(":")
    if not kind or not who:
        raise _bad(f"The principal {body.principal} has no type: write User:{body.principal}.")
    pattern = PatternType[body.pattern.upper()]
    if body.template == "rule":
        yield _binding(body, pattern)
        return
    templates = {
        "producer": (PRODUCER_OPERATIONS, {"topic": body.topic, "transactional id": body.transactional_id}),
        "consumer": (CONSUMER_OPERATIONS, {"topic": body.topic, "group": body.group}),
    }
    operations, names = templates[body.template]
    needed = ("topic",) if body.template == "producer" else ("topic", "group")
    for word in needed:
        if not names[word]:
            raise _bad(f"A {body.template} needs a {word}.")
    of_word = {
        "topic": AclResourceType.TOPIC,
        "group": AclResourceType.GROUP,
        "transactional id": AclResourceType.TRANSACTIONAL_ID,
    }
    for word, name in names.items():
        for operation in operations[of_word[word]] if name else ():
            yield AclBinding(
                of_word[word],
                name,
                body.principal,
                operation,
                AclPermissionType.ALLOW,
                body.host,
                PatternType.LITERAL if name == "*" else pattern,
            )


def _binding(body: NewAcls, pattern: PatternType) -> AclBinding:
    resource = RESOURCE_TYPE_OF_TITLE.get(body.resource)
    if resource is None:
        raise _bad(f"The resource is one of {', '.join(RESOURCE_TYPE_OF_TITLE)}.")
    operation = OPERATION_OF_TITLE.get(body.operation)
    allowed = (*OPERATIONS_OF[resource], AclOperation.ALL)
    if operation not in allowed:
        raise _bad(f"{body.resource} has the operations {', '.join(map(title, allowed))}.")
    name = CLUSTER_NAME if resource is AclResourceType.CLUSTER else body.name
    if not name:
        raise _bad("A rule needs the name of a resource, or * for all.")
    if name == "*" or resource is AclResourceType.CLUSTER:
        pattern = PatternType.LITERAL
    permission = AclPermissionType[body.permission.upper()]
    return AclBinding(resource, name, body.principal, operation, permission, body.host, pattern)


class AclRule(Struct):
    """Exactly one rule, as the list shows it."""

    principal: Name
    permission: Literal["Allow", "Deny"]
    operation: Text
    resource: Text
    name: Name
    pattern: Pattern
    host: Name


async def delete_acl(call: Call[None, AclRule]) -> Done:
    """Delete one rule."""
    body = call.body
    resource, operation = RESOURCE_TYPE_OF_TITLE.get(body.resource), OPERATION_OF_TITLE.get(body.operation)
    if resource is None or operation is None:
        raise _bad("The rule has an unknown resource or operation.")
    wanted = AclBindingFilter(
        resource,
        body.name,
        body.principal,
        operation,
        AclPermissionType[body.permission.upper()],
        body.host,
        PatternType[body.pattern.upper()],
    )
    deleted = await call.cluster.admin.delete_acls([wanted])
    if not deleted[wanted]:
        raise not_found("The rule")
    return Done("The rule is deleted.")


# Quotas


class QuotaItem(Struct):
    """The quotas of an entity; a name of "" is the default of all."""

    user: str | None
    client_id: str | None
    ip: str | None
    values: dict[str, float]


class QuotaList(Struct):
    quotas: list[QuotaItem]


async def list_quotas(call: Call[None, None]) -> QuotaList:
    """The quotas of users, clients and addresses."""
    return await quota_list(call.cluster)


async def quota_list(cluster: Cluster) -> QuotaList:
    found = await cluster.admin.describe_client_quotas()
    items = []
    for entity, values in found.items():
        named = {kind: "" if name is None else name for kind, name in entity}
        items.append(QuotaItem(named.get("user"), named.get("client-id"), named.get("ip"), values))
    return QuotaList(sorted(items, key=lambda item: (item.user or "", item.client_id or "", item.ip or "")))


class QuotaBody(Struct):
    """Quotas of an entity. `default` takes "" as the default of all; a value of -1 removes a quota."""

    user: Text = ""
    client_id: Text = ""
    ip: Text = ""
    default: Literal["", "user", "client-id", "ip"] = ""
    producer_byte_rate: float | None = None
    consumer_byte_rate: float | None = None
    request_percentage: float | None = None
    controller_mutation_rate: float | None = None
    connection_creation_rate: float | None = None


async def set_quota(call: Call[None, QuotaBody]) -> Done:
    """Set or remove quotas of a user, a client, both together, or an address."""
    entity, changes = quota_change(call.body)
    await call.cluster.admin.alter_client_quotas({entity: changes})
    return Done("The quotas are set.")


def quota_change(body: QuotaBody) -> tuple[QuotaEntity, dict[str, float | None]]:
    """The entity and its values. Raises ApiError 400 that names the missing field or the wrong value."""
    given: dict[str, str | None] = {"user": body.user, "client-id": body.client_id, "ip": body.ip}
    entity: dict[str, str | None] = {kind: name for kind, name in given.items() if name}
    if body.default:
        entity[body.default] = None
    if not entity:
        raise _bad("A quota needs a user, a client id, an address or a default.")
    if "ip" in entity and len(entity) > 1:
        raise _bad("The quota of an address has neither a user nor a client id.")
    keys = (IP_KEY,) if "ip" in entity else QUOTA_KEYS
    values = {key: getattr(body, key) for key in (*QUOTA_KEYS, IP_KEY) if getattr(body, key) is not None}
    wrong = [key for key in values if key not in keys]
    if wrong:
        raise _bad(f"{wrong[0]} is no quota of this entity.")
    if not values:
        raise _bad("A quota needs a value.")
    changes = {key: None if value == -1 else value for key, value in values.items()}
    for key, value in changes.items():
        if value is not None and not value > 0:
            raise _bad(f"{key} is {value:g}: a quota is a number above 0, or -1 to remove it.")
    return tuple(entity.items()), changes


# SCRAM users


class ScramUser(Struct):
    user: str
    mechanisms: list[str]
    iterations: list[int]


class UserList(Struct):
    users: list[ScramUser]


async def list_users(call: Call[None, None]) -> UserList:
    """The SCRAM users and their mechanisms; never a password or its hash."""
    return await user_list(call.cluster)


async def user_list(cluster: Cluster) -> UserList:
    found = await cluster.admin.describe_user_scram_credentials(partial=True)
    return UserList(
        [
            ScramUser(
                user,
                [each.mechanism.name.replace("_", "-") for each in infos],
                [each.iterations for each in infos],
            )
            for user, infos in sorted(found.items())
        ]
    )


class UserBody(Struct):
    """A password to set. It leaves this process only as a salted hash."""

    user: Name
    password: Annotated[str, Meta(max_length=1000)]
    mechanism: Literal["SCRAM-SHA-512", "SCRAM-SHA-256"] = "SCRAM-SHA-512"
    iterations: Annotated[int, Meta(ge=4096, le=16384)] = 8192


async def set_user(call: Call[None, UserBody]) -> Done:
    """Make a SCRAM user, or set the password of one."""
    body = call.body
    if len(body.password) < LEAST_PASSWORD:
        raise _bad(f"A password has at least {LEAST_PASSWORD} characters.")
    if not body.user.isprintable():
        raise _bad("The name of a user has only printable characters.")
    mechanism = ScramMechanism[body.mechanism.replace("-", "_")]
    change = UserScramCredentialUpsertion(body.user, body.password, mechanism, body.iterations)
    await call.cluster.admin.alter_user_scram_credentials([change])
    return Done(f"The password of {body.user} is set.")


class UserDeletion(Struct):
    """A user, and the name once more, as it was typed."""

    user: Name
    confirm: Text


async def delete_user(call: Call[None, UserDeletion]) -> Done:
    """Delete all SCRAM passwords of a user."""
    body = call.body
    check_confirmed(body.confirm, body.user, "name of the user")
    found = await call.cluster.admin.describe_user_scram_credentials([body.user], partial=True)
    if body.user not in found:
        raise not_found(f"The user {body.user}")
    await call.cluster.admin.alter_user_scram_credentials(
        [UserScramCredentialDeletion(body.user, info.mechanism) for info in found[body.user]]
    )
    return Done(f"The user {body.user} is deleted.")


def _bad(message: str) -> ApiError:
    return ApiError(400, "BAD_REQUEST", message)


ENDPOINTS = (
    Endpoint("GET", "/acls", list_acls, query=AclsQuery, answer=AclList, action="acl.view"),
    Endpoint("POST", "/acls", create_acls, body=NewAcls, answer=CreatedAcls, action="acl.edit", changes=True),
    Endpoint("DELETE", "/acls", delete_acl, body=AclRule, action="acl.edit", changes=True),
    Endpoint("GET", "/quotas", list_quotas, answer=QuotaList, action="quota.view"),
    Endpoint("PUT", "/quotas", set_quota, body=QuotaBody, action="quota.edit", changes=True),
    Endpoint("GET", "/users", list_users, answer=UserList, action="user.view"),
    Endpoint("PUT", "/users", set_user, body=UserBody, action="user.edit", changes=True),
    Endpoint("DELETE", "/users", delete_user, body=UserDeletion, action="user.edit", changes=True),
)
