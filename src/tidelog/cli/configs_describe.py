"""Settings as kafka-configs prints them, or as JSON."""

from __future__ import annotations

from decimal import Decimal
from math import floor, isfinite, log10
from typing import TYPE_CHECKING

import click

from tidelog.cli.output import print_json
from tidelog.errors import NetworkException, ResourceNotFound, UnknownTopicOrPartition, UnsupportedVersion

if TYPE_CHECKING:
    from tidelog.clients.admin import Admin, ConfigEntry, ConfigResource, QuotaComponent

RESOURCES = {
    "topics": "TOPIC",
    "brokers": "BROKER",
    "broker-loggers": "BROKER_LOGGER",
    "client-metrics": "CLIENT_METRICS",
    "groups": "GROUP",
}
# The source of changed settings for each type; log levels are shown from every source.
DYNAMIC = {
    "topics": "DYNAMIC_TOPIC_CONFIG",
    "brokers": "DYNAMIC_BROKER_CONFIG",
    "client-metrics": "DYNAMIC_CLIENT_METRICS_CONFIG",
    "groups": "DYNAMIC_GROUP_CONFIG",
}
QUOTA_TYPES = {"users": "user", "clients": "client-id", "ips": "ip"}
QUOTA_WORDS = {"user": "user-principal", "client-id": "client-id", "ip": "ip"}

Named = tuple[str, str | None]


def describe(admin: Admin, entities: list[Named], everything: bool, output: str) -> None:
    kind, name = entities[0]
    if kind in QUOTA_TYPES:
        describe_quotas(admin, entities, output)
    else:
        describe_resources(admin, kind, name, everything, output)


def describe_resources(admin: Admin, kind: str, name: str | None, everything: bool, output: str) -> None:
    shown: list[dict[str, object]] = []
    for found in all_names(admin, kind) if name is None else [name]:
        try:
            if name and kind != "topics" and found not in all_names(admin, kind):
                raise ResourceNotFound(found)
            entries = chosen_entries(admin, kind, found, everything)
        except (UnknownTopicOrPartition, ResourceNotFound):
            entries = None
        if output == "json":
            if entries is not None:
                shown.append(as_json(kind, found, entries))
        elif entries is None:
            click.echo(f"The {singular(kind)} '{found}' doesn't exist and doesn't have dynamic config.")
        else:
            print_entries(kind, found, everything, entries)
    if output == "json":
        print_json(shown)


def all_names(admin: Admin, kind: str) -> list[str]:
    from tidelog.clients.admin import ResourceType

    if kind == "topics":
        return list(admin.list_topics(list_internal=True))
    if kind in ("brokers", "broker-loggers"):
        ids = [str(node.id) for node in admin.describe_cluster().nodes]
        return [*ids, ""] if kind == "brokers" else ids
    listed = {found.name for found in admin.list_config_resources([ResourceType[RESOURCES[kind]]])}
    if kind == "groups":
        listed |= {group.group_id for group in admin.list_groups()}
    return sorted(listed)


def chosen_entries(admin: Admin, kind: str, name: str, everything: bool) -> list[ConfigEntry]:
    from tidelog.clients.admin import ConfigResource, ConfigSource, ResourceType

    resource = ConfigResource(ResourceType[RESOURCES[kind]], name)
    found = described(admin, resource)
    wanted = DYNAMIC.get(kind)
    if kind == "brokers" and not name:
        wanted = "DYNAMIC_DEFAULT_BROKER_CONFIG"
    if wanted is not None and not everything:
        found = [entry for entry in found if entry.source is ConfigSource[wanted]]
    return sorted(found, key=lambda entry: entry.name)


def described(admin: Admin, resource: ConfigResource) -> list[ConfigEntry]:
    try:
        return list(admin.describe_configs([resource], include_synonyms=True)[resource].values())
    except NetworkException as error:
        if "is not in the cluster" in str(error):
            raise ResourceNotFound(resource.name) from None
        raise


def print_entries(kind: str, name: str, everything: bool, entries: list[ConfigEntry]) -> None:
    if name:
        click.echo(f"{'All' if everything else 'Dynamic'} configs for {singular(kind)} {name} are:")
    else:
        click.echo(f"Default configs for {kind} in the cluster are:")
    for entry in entries:
        synonyms = ", ".join(f"{s.source.name}:{s.name}={_text(s.value)}" for s in entry.synonyms)
        click.echo(
            f"  {entry.name}={_text(entry.value)} sensitive={str(entry.is_sensitive).lower()} "
            f"synonyms={{{synonyms}}}"
        )


def as_json(kind: str, name: str, entries: list[ConfigEntry]) -> dict[str, object]:
    return {
        "type": kind,
        "name": name,
        "configs": [
            {
                "name": entry.name,
                "value": entry.value,
                "source": entry.source.name,
                "sensitive": entry.is_sensitive,
                "read_only": entry.is_read_only,
                "synonyms": [
                    {"name": s.name, "value": s.value, "source": s.source.name} for s in entry.synonyms
                ],
            }
            for entry in entries
        ],
    }


def describe_quotas(admin: Admin, entities: list[Named], output: str) -> None:
    quotas = admin.describe_client_quotas([component(*entity) for entity in entities], strict=True)
    passwords: dict[str, list[tuple[str, int]]] = {}
    kind, name = entities[0]
    if len(entities) == 1 and kind == "users" and name != "":
        passwords = scram(admin, name)
    if output == "json":
        shown: list[dict[str, object]] = [
            {"entity": dict(entity), "quotas": values} for entity, values in quotas.items()
        ]
        shown += [{"entity": {"user": user}, "scram": dict(found)} for user, found in passwords.items()]
        print_json(shown)
        return
    for entity, values in sorted(quotas.items(), key=lambda item: str(item[0])):
        # The user comes before the client, in whatever order the broker sends them.
        ordered = sorted(entity, key=lambda part: list(QUOTA_WORDS).index(part[0]))
        words = ", ".join(
            f"the default {QUOTA_WORDS[part]}" if named is None else f"{QUOTA_WORDS[part]} '{named}'"
            for part, named in ordered
        )
        listed = ", ".join(f"{key}={java_double(value)}" for key, value in sorted(values.items()))
        click.echo(f"Quota configs for {words} are {listed}")
    for user, found in sorted(passwords.items()):
        listed = ", ".join(f"{mechanism}=iterations={count}" for mechanism, count in found)
        click.echo(f"SCRAM credential configs for user-principal '{user}' are {listed}")


def java_double(value: float) -> str:
    """A number as Java prints it: from ten million on, and below a thousandth, with an exponent."""
    if value == 0 or 1e-3 <= abs(value) < 1e7 or not isfinite(value):
        return str(value)
    exponent = floor(log10(abs(value)))
    digits = Decimal(repr(value)).scaleb(-exponent).normalize()
    return f"{digits:f}{'' if digits % 1 else '.0'}E{exponent}"


def component(kind: str, name: str | None) -> QuotaComponent:
    from tidelog.clients.admin import QuotaComponent

    return QuotaComponent(QUOTA_TYPES[kind], name or None, any_name=name is None)


def scram(admin: Admin, user: str | None) -> dict[str, list[tuple[str, int]]]:
    """The SCRAM mechanisms and iterations of users; empty if the broker does not serve SCRAM."""
    try:
        found = admin.describe_user_scram_credentials(None if user is None else [user], partial=True)
    except UnsupportedVersion:
        return {}
    for error in found.errors.values():
        if not isinstance(error, ResourceNotFound):
            raise error
    return {
        name: [(info.mechanism.name.replace("_", "-"), info.iterations) for info in infos]
        for name, infos in found.items()
    }


def singular(kind: str) -> str:
    return kind[:-1]


def _text(value: str | None) -> str:
    return "null" if value is None else value
