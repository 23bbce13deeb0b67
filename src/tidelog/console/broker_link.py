"""The link between a broker and the process of its console: a socket pair with messages in MessagePack.

Each frame is a length of four bytes and a message. The first message has the settings, so that no secret is
in arguments or environment. Then the console asks, and the broker answers. A snapshot has only the rows that
changed since the previous one, in parts that take a fraction of a millisecond each.
"""

from __future__ import annotations

import asyncio
import socket
from struct import Struct as Packing
from typing import Final, Literal, TypeVar

import msgspec

from tidelog.console.local_broker import BrokerFigures, ConnectionFigures
from tidelog.console.snapshot import BrokerSnapshot

T = TypeVar("T")
LENGTH: Final = Packing(">I")
Replicas = list[int]
PartitionShape = tuple[int, int, Replicas, Replicas, Replicas, Replicas, Replicas]
"""Index, leader, replicas, in-sync replicas, offline replicas, adding and removing replicas."""

Question = Literal["snapshot", "topic", "figures", "connections"]


class Message(msgspec.Struct, array_like=True, tag=True, gc=False):
    """Something that is sent; its class is its tag."""


# -- rows of a snapshot ------------------------------------------------------------------------------


class ClusterRow(Message):
    """The cluster itself, once in each snapshot."""

    cluster_id: str
    controller: int | None
    brokers: list[BrokerSnapshot]
    taken_ms: int


class TopicRow(Message):
    """A new topic, or one whose replicas or cleanup policy changed."""

    name: str
    topic_id: str
    is_internal: bool
    cleanup_policy: str
    partitions: list[PartitionShape]


class RatesRow(Message):
    """The rates of a topic with partitions on the broker."""

    topic: str
    records_per_s: float
    bytes_in_per_s: float
    bytes_out_per_s: float


class LogRow(Message):
    """The log of a partition that the broker leads, as base offset and size of each segment.

    `end` is the high watermark. `aborted` has producer id, first and last offset of each aborted transaction;
    it is None if the console has to fetch the records. `index` has some entries of the offset index of the
    active segment.
    """

    topic: str
    partition: int
    start: int
    end: int
    size: int
    directory: str
    generation: int
    segments: list[tuple[int, int]]
    last_stable_offset: int
    aborted: list[tuple[int, int, int]] | None
    index: list[tuple[int, int]]


class LogGoneRow(Message):
    """A partition that the broker does not lead any more."""

    topic: str
    partition: int


class TopicGoneRow(Message):
    name: str


class GroupRow(Message):
    """A new group, or one whose state or members changed."""

    group_id: str
    protocol: str
    state: str
    members: int | None


class OffsetsRow(Message):
    """Committed offsets of a group that changed: topic, partition, offset."""

    group_id: str
    offsets: list[tuple[str, int, int]]


class OffsetsGoneRow(Message):
    group_id: str
    partitions: list[tuple[str, int]]


class GroupGoneRow(Message):
    group_id: str


Row = (
    ClusterRow
    | TopicRow
    | RatesRow
    | LogRow
    | LogGoneRow
    | TopicGoneRow
    | GroupRow
    | OffsetsRow
    | OffsetsGoneRow
    | GroupGoneRow
)


# -- from the broker ---------------------------------------------------------------------------------


class ConsoleSettings(Message):
    """What the console needs to start. `client` are the settings of its Kafka clients."""

    broker_id: int
    cluster_name: str
    client: dict[str, str]
    pipelines: list[str]
    read_only: bool
    access_file: str
    rules_file: str
    levels: dict[str, int]
    reads_files: bool = False
    """Whether the console may read the broker's segment files. Not if access rules limit who reads a
    topic."""

    scheduling_policy: str = "batch"
    allowed_hosts: list[str] = []

    def __repr__(self) -> str:
        return f"ConsoleSettings({self.cluster_name!r})"  # the client's settings have passwords


class Levels(Message):
    """The levels of loggers, after a change."""

    levels: dict[str, int]


class SnapshotPart(Message):
    number: int
    rows: list[Row]
    is_last: bool


class FiguresAnswer(Message):
    number: int
    figures: BrokerFigures


class ConnectionsPart(Message):
    number: int
    connections: list[ConnectionFigures]
    is_last: bool


class QuestionFailed(Message):
    number: int
    reason: str


class Stop(Message):
    """The broker stops: answer what is under way, and end."""


Answer = SnapshotPart | FiguresAnswer | ConnectionsPart | QuestionFailed
FromBroker = ConsoleSettings | Levels | SnapshotPart | FiguresAnswer | ConnectionsPart | QuestionFailed | Stop


# -- from the console --------------------------------------------------------------------------------


class Ask(Message):
    """A question of the console.

    "snapshot" asks for the changed rows of all topics and groups, "topic" for the changed rows of one topic.
    """

    number: int
    question: Question
    topic: str = ""


class Ready(Message):
    """The console answers requests."""


class Failed(Message):
    """The console cannot start or go on; `trace` is empty if the reason says everything."""

    reason: str
    trace: str = ""


class LogLine(Message):
    """A line for the broker's log."""

    logger: str
    level: int
    text: str
    fields: dict[str, str]


FromConsole = Ask | Ready | Failed | LogLine

_encoder = msgspec.msgpack.Encoder()
from_broker: Final[msgspec.msgpack.Decoder[FromBroker]] = msgspec.msgpack.Decoder(FromBroker)
from_console: Final[msgspec.msgpack.Decoder[FromConsole]] = msgspec.msgpack.Decoder(FromConsole)


def frame(message: Message) -> bytes:
    """A message as it is sent."""
    data = _encoder.encode(message)
    return LENGTH.pack(len(data)) + data


async def read_message(reader: asyncio.StreamReader, decoder: msgspec.msgpack.Decoder[T]) -> T | None:
    """The next message; None when the other process is gone."""
    try:
        size = LENGTH.unpack(await reader.readexactly(LENGTH.size))[0]
        return decoder.decode(await reader.readexactly(size))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def receive_settings(link: socket.socket) -> ConsoleSettings | None:
    """The first message of the broker; None if the broker is gone."""
    head = _receive(link, LENGTH.size)
    data = head and _receive(link, LENGTH.unpack(head)[0])
    found = from_broker.decode(data) if data else None
    return found if isinstance(found, ConsoleSettings) else None


def _receive(link: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = link.recv(size - len(data))
        if not more:
            return b""
        data += more
    return data
