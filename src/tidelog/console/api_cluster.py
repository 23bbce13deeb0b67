"""The endpoints of the cluster: brokers, log folders, settings side by side, connections, elections."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from tidelog.console.api import Call, Done, Endpoint
from tidelog.console.api_overview import FRESH_SECONDS
from tidelog.console.configs import BrokerConfigRow, broker_configs, compare
from tidelog.console.errors import ApiError, not_found
from tidelog.console.formats import plural
from tidelog.console.snapshot import ClusterSnapshot
from tidelog.protocol.election_type import ElectionType


class BrokerItem(Struct):
    """A broker: what it leads and holds. A skew is the difference to the mean of all brokers, in percent."""

    broker: int
    host: str
    port: int
    rack: str | None
    is_controller: bool
    leaders: int
    replicas: int
    not_in_sync: int
    leader_skew: float
    replica_skew: float
    leader_bytes: int


class BrokerList(Struct):
    brokers: list[BrokerItem]
    not_preferred: int


class LogDirItem(Struct):
    """A log folder of a broker; its disk's bytes are None if the broker does not report them."""

    broker: int
    path: str
    error: str | None
    partitions: int
    bytes: int
    total_bytes: int | None
    free_bytes: int | None


class LogDirList(Struct):
    """The log folders, and the sentences of brokers that did not answer."""

    log_dirs: list[LogDirItem]
    failures: list[str]


class BrokerConfigList(Struct):
    """The settings of all brokers side by side."""

    brokers: list[int]
    rows: list[BrokerConfigRow]


class ConnectionItem(Struct):
    address: str
    listener: str
    principal: str
    client_id: str | None
    software: str
    version: str
    idle_seconds: float
    tls: str | None


class ConnectionList(Struct):
    """The open connections of the broker that serves this console."""

    connections: list[ConnectionItem]


class ElectionBody(Struct):
    """Which leaders to elect: of one partition, of one topic, or of all partitions.

    `unclean` may choose a replica that lacks records: they are lost then. It needs a topic.
    """

    kind: Literal["preferred", "unclean"] = "preferred"
    topic: Annotated[str, Meta(max_length=249)] | None = None
    partition: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    confirm: str = ""


def broker_items(snapshot: ClusterSnapshot) -> list[BrokerItem]:
    """What each broker leads and holds."""
    items = {
        broker.broker_id: BrokerItem(
            broker.broker_id,
            broker.host,
            broker.port,
            broker.rack,
            broker.broker_id == snapshot.controller,
            *(0, 0, 0, 0.0, 0.0, 0),
        )
        for broker in snapshot.brokers
    }
    for topic in snapshot.topics.values():
        for partition in topic.partitions:
            for replica in partition.replicas:
                if replica in items:
                    items[replica].replicas += 1
                    items[replica].not_in_sync += replica not in partition.isr
            if partition.leader in items:
                items[partition.leader].leaders += 1
                items[partition.leader].leader_bytes += partition.size or 0
    leaders = sum(item.leaders for item in items.values()) / max(len(items), 1)
    replicas = sum(item.replicas for item in items.values()) / max(len(items), 1)
    for item in items.values():
        item.leader_skew = round((item.leaders / leaders - 1) * 100, 1) if leaders else 0.0
        item.replica_skew = round((item.replicas / replicas - 1) * 100, 1) if replicas else 0.0
    return list(items.values())


async def list_brokers(call: Call[None, None]) -> BrokerList:
    """The brokers with leaders, replicas and skew."""
    snapshot = await call.cluster.snapshot()
    not_preferred = sum(
        not partition.is_led_by_preferred
        for topic in snapshot.topics.values()
        for partition in topic.partitions
    )
    return BrokerList(broker_items(snapshot), not_preferred)


async def list_log_dirs(call: Call[None, None]) -> LogDirList:
    """The log folders of all brokers with the bytes of their disks."""
    local = call.cluster.local
    items: list[LogDirItem] = []
    others: list[int] | None = None
    if local is not None:
        figures = await local.figures(FRESH_SECONDS)
        items = [
            LogDirItem(
                figures.broker_id,
                own.path,
                own.error,
                own.partitions,
                own.bytes,
                own.total_bytes,
                own.free_bytes,
            )
            for own in figures.log_dirs
        ]
        brokers = (await call.cluster.snapshot()).brokers
        others = [broker.broker_id for broker in brokers if broker.broker_id != local.broker_id]
        if not others:
            return LogDirList(items, [])
    found = await call.cluster.admin.describe_log_dirs(others, partial=True)
    items += [
        LogDirItem(
            broker,
            log_dir.path,
            None if log_dir.error is None else str(log_dir.error),
            len(log_dir.replicas),
            sum(replica.size for replica in log_dir.replicas.values()),
            log_dir.total_bytes,
            log_dir.usable_bytes,
        )
        for broker, log_dirs in found.items()
        for log_dir in log_dirs.values()
    ]
    items.sort(key=lambda item: (item.broker, item.path))
    return LogDirList(items, [f"Broker {broker}: {error}" for broker, error in found.errors.items()])


async def list_broker_configs(call: Call[None, None]) -> BrokerConfigList:
    """The settings of all brokers side by side. Differences are marked."""
    snapshot = await call.cluster.snapshot()
    brokers = [broker.broker_id for broker in snapshot.brokers]
    return BrokerConfigList(
        brokers, compare({broker: await broker_configs(call.cluster, broker) for broker in brokers})
    )


async def list_connections(call: Call[None, None]) -> ConnectionList:
    """The open connections and the client software of each; only a broker of tidelog lists them."""
    if call.cluster.local is None:
        raise ApiError(501, "NOT_SUPPORTED", "Only the console in a broker knows its connections.")
    return ConnectionList(
        [
            ConnectionItem(
                found.address,
                found.listener,
                found.principal,
                found.client_id,
                found.software,
                found.software_version,
                round(found.idle_seconds, 3),
                found.tls,
            )
            for found in await call.cluster.local.connections()
        ]
    )


async def elect_leaders(call: Call[None, ElectionBody]) -> Done:
    """Elect leaders: the first replicas, or any replica where no replica in sync is left."""
    body = call.body
    kind = ElectionType.UNCLEAN if body.kind == "unclean" else ElectionType.PREFERRED
    snapshot = await call.cluster.snapshot(fresh=True)
    if body.topic is not None and body.topic not in snapshot.topics:
        raise ApiError(404, "NOT_FOUND", f"The topic {body.topic} does not exist.")
    if kind is ElectionType.UNCLEAN and (body.topic is None or body.confirm != body.topic):
        raise ApiError(
            400, "NOT_CONFIRMED", "An unclean election may lose records: name the topic, and type it again."
        )
    keys = [
        (topic.name, partition.index)
        for topic in snapshot.topics.values()
        for partition in topic.partitions
        if body.topic in (None, topic.name) and body.partition in (None, partition.index)
    ]
    if not keys:
        raise not_found(
            "The partition" if body.topic is None else f"The partition {body.topic}-{body.partition}"
        )
    found = await call.cluster.admin.elect_leaders(kind, keys, partial=True)
    if found.errors and not any(dict(found).values()):
        raise next(iter(found.errors.values()))
    elected = sum(dict(found).values())
    failed = f" {plural(len(found.errors), 'election')} failed." if found.errors else ""
    return Done(f"{plural(elected, 'leader')} {'was' if elected == 1 else 'were'} elected.{failed}")


ENDPOINTS = (
    Endpoint("GET", "/brokers", list_brokers, answer=BrokerList, action="cluster.view"),
    Endpoint("GET", "/log-dirs", list_log_dirs, answer=LogDirList, action="cluster.view"),
    Endpoint("GET", "/broker-configs", list_broker_configs, answer=BrokerConfigList, action="cluster.view"),
    Endpoint("GET", "/connections", list_connections, answer=ConnectionList, action="connection.view"),
    Endpoint("POST", "/elections", elect_leaders, body=ElectionBody, action="cluster.elect", changes=True),
)
