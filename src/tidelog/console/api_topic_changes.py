"""The endpoints that change topics: create, clone, settings, partitions, truncate, delete."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from tidelog.clients.admin.configs import AlterConfigOp, ConfigResource, OpType, ResourceType
from tidelog.clients.admin.topics import NewPartitions, NewTopic
from tidelog.console.api import Call, ConfirmBody, Done, Endpoint
from tidelog.console.api_topics import find_topic
from tidelog.console.configs import ConfigItem, own_topic_configs, parse_settings, topic_configs
from tidelog.console.errors import ApiError, check_confirmed
from tidelog.console.formats import plural

TopicName = Annotated[str, Meta(min_length=1, max_length=249)]
MOST_PARTITIONS = 10_000
MAX_SHORT = 32_767


class NewTopicBody(Struct):
    """A topic to create. -1 takes the broker's default; `settings` has lines name=value beside `configs`."""

    name: TopicName
    partitions: Annotated[int, Meta(ge=-1, le=MOST_PARTITIONS)] = -1
    replication_factor: Annotated[int, Meta(ge=-1, le=MAX_SHORT)] = -1
    configs: dict[str, str] = {}
    settings: Annotated[str, Meta(max_length=20_000)] = ""
    validate_only: bool = False


class CloneBody(Struct):
    """The name of a topic with the partitions and settings of another; records are not copied."""

    name: TopicName


class PartitionsBody(Struct):
    """The new number of partitions of a topic."""

    total: Annotated[int, Meta(ge=1, le=MOST_PARTITIONS)]


class TruncateBody(Struct):
    """The name typed again; one partition, or all; the offset below which records go, or all records."""

    confirm: str
    partition: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    before: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None


class ValueBody(Struct):
    value: Annotated[str, Meta(max_length=20_000)] = ""


class ConfigList(Struct):
    configs: list[ConfigItem]


async def create_topic(call: Call[None, NewTopicBody]) -> Done:
    """Create a topic, or only check whether it could be created."""
    body = call.body
    try:
        configs = body.configs | parse_settings(body.settings)
    except ValueError as error:
        raise ApiError(400, "BAD_REQUEST", str(error)) from None
    topic = NewTopic(body.name, body.partitions, body.replication_factor, configs=configs)
    await call.cluster.admin.create_topics([topic], validate_only=body.validate_only)
    return Done(f"The topic {body.name} {'can be' if body.validate_only else 'is'} created.")


async def clone_topic(call: Call[None, CloneBody]) -> Done:
    """Create a topic with the partitions, replication factor and settings of another one."""
    source = await find_topic(call)
    name = call.body.name
    if not call.access.may(call.principal, "topic.create", f"topic:{name}", call.cluster.name):
        raise ApiError(403, "FORBIDDEN", f"You may not create topic {name}.")
    configs = await own_topic_configs(call.cluster, source.name)
    copy = NewTopic(call.body.name, len(source.partitions), source.replication_factor, configs=configs)
    await call.cluster.admin.create_topics([copy])
    partitions, settings = plural(len(source.partitions), "partition"), plural(len(configs), "setting")
    return Done(f"The topic {copy.name} is created with {partitions} and {settings} of {source.name}.")


async def list_topic_configs(call: Call[None, None]) -> ConfigList:
    """The settings of a topic with their defaults and sources."""
    return ConfigList(await topic_configs(call.cluster, call.path["topic"]))


async def set_topic_config(call: Call[None, ValueBody]) -> Done:
    """Set a setting of a topic."""
    return await _alter(call, AlterConfigOp(call.path["name"], call.body.value))


async def reset_topic_config(call: Call[None, None]) -> Done:
    """Remove a setting of a topic: the broker's value applies again."""
    return await _alter(call, AlterConfigOp(call.path["name"], None, OpType.DELETE))


async def add_partitions(call: Call[None, PartitionsBody]) -> Done:
    """Add partitions to a topic. Records of a key may go to another partition from then on."""
    await call.cluster.admin.create_partitions({call.path["topic"]: NewPartitions(call.body.total)})
    return Done(f"The topic {call.path['topic']} has {plural(call.body.total, 'partition')}.")


async def truncate_topic(call: Call[None, TruncateBody]) -> Done:
    """Delete records: all, or those below an offset; of one partition, or of all."""
    topic = await find_topic(call)
    check_confirmed(call.body.confirm, topic.name, "name of the topic")
    wanted = call.body.partition
    if wanted is not None and wanted >= len(topic.partitions):
        raise ApiError(404, "NOT_FOUND", f"The topic has no partition {wanted}.")
    indexes = range(len(topic.partitions)) if wanted is None else [wanted]
    before = -1 if call.body.before is None else call.body.before
    starts = await call.cluster.admin.delete_records({(topic.name, index): before for index in indexes})
    return Done(f"Records of {plural(len(starts), 'partition')} are deleted.")


async def delete_topic(call: Call[None, ConfirmBody]) -> Done:
    """Delete a topic with its records."""
    name = call.path["topic"]
    check_confirmed(call.body.confirm, name, "name of the topic")
    await call.cluster.admin.delete_topics([name])
    return Done(f"The topic {name} is deleted.")


async def _alter(call: Call[None, ValueBody] | Call[None, None], change: AlterConfigOp) -> Done:
    resource = ConfigResource(ResourceType.TOPIC, call.path["topic"])
    await call.cluster.admin.incremental_alter_configs({resource: [change]})
    value = "has its default again" if change.value is None else f"is {change.value}"
    return Done(f"The setting {change.name} {value}.")


TOPIC = "/topics/{topic}"
ENDPOINTS = (
    Endpoint("POST", "/topics", create_topic, body=NewTopicBody, action="topic.create", changes=True),
    Endpoint("POST", f"{TOPIC}/clone", clone_topic, body=CloneBody, action="topic.create", changes=True),
    Endpoint("GET", f"{TOPIC}/configs", list_topic_configs, answer=ConfigList, action="topic.view"),
    Endpoint(
        "PUT",
        f"{TOPIC}/configs/{{name}}",
        set_topic_config,
        body=ValueBody,
        action="topic.edit",
        changes=True,
    ),
    Endpoint("DELETE", f"{TOPIC}/configs/{{name}}", reset_topic_config, action="topic.edit", changes=True),
    Endpoint(
        "POST", f"{TOPIC}/partitions", add_partitions, body=PartitionsBody, action="topic.edit", changes=True
    ),
    Endpoint(
        "POST", f"{TOPIC}/truncate", truncate_topic, body=TruncateBody, action="topic.truncate", changes=True
    ),
    Endpoint("DELETE", TOPIC, delete_topic, body=ConfirmBody, action="topic.delete", changes=True),
)
