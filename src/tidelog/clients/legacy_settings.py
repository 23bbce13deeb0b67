"""Translates settings of Kafka 0.8's producers and consumers to today's, with a line about each of them.

>>> old = {"group.id": "loggers", "zookeeper.sync.time.ms": "2000", "auto.commit.enable": "true"}
>>> settings, lines = translate(old)
>>> settings
{'group.id': 'loggers', 'enable.auto.commit': 'true'}
>>> print(*lines, sep="\\n")
zookeeper.sync.time.ms=2000 has no meaning any more: consumers do not look into ZooKeeper
auto.commit.enable=true is enable.auto.commit=true today
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal, TypeAlias

from tidelog.config import ConfigError

Side: TypeAlias = Literal["consumer", "producer"]

FOREVER = str(2**63 - 1)

# The limits of brokers by default: group.min.session.timeout.ms and group.max.session.timeout.ms.
SESSION_TIMEOUT = range(6_000, 1_800_001)


def same(value: str) -> str | None:
    return value


@dataclass(slots=True, frozen=True)
class OldName:
    """A setting of Kafka 0.8. `value` returns today's value, or None if there is none."""

    side: Side
    today: tuple[str, ...] = ()
    why: str = ""
    """Why the setting, or a value without a successor, has no meaning any more."""
    value: Callable[[str], str | None] = same


def translate(
    properties: Mapping[str, object], side: Side | None = None
) -> tuple[dict[str, object], list[str]]:
    """Today's settings, and a line for each old name. Other names are kept.

    Settings of the other kind of client are left out, with a line about each. Without `side` the names of
    the settings decide the kind of client. If an old name and its successor are both given, the successor
    wins.
    """
    given = {name.replace("_", "."): value for name, value in properties.items()}
    known = old_names()
    side = side or side_of(given)
    settings = {name: value for name, value in given.items() if name not in known}
    lines: list[str] = []
    for name, value in given.items():
        if name in known:
            lines.append(_translate_one(name, str(value), side, given, settings))
    _translate_values(settings, lines)
    return settings, lines


def side_of(properties: Mapping[str, object]) -> Side:
    """The kind of client that these settings are for, by the names that only one kind has."""
    if "group.id" in properties:
        return "consumer"
    known = old_names()
    sides = [known[name].side for name in properties if name in known]
    return "consumer" if sides.count("consumer") > sides.count("producer") else "producer"


def _translate_one(
    name: str, text: str, side: Side, given: Mapping[str, object], settings: dict[str, object]
) -> str:
    """Put the successor into `settings`; returns the line about it."""
    old = old_names()[name]
    today = old.today
    if name == "serializer.class" and "key.serializer.class" in given:
        today = ("value.serializer",)
    shown = f"{name}={text}"
    names = " and ".join(today)
    if old.side != side:
        successor = f", {names} today" if names else ""
        return f"{shown} is a setting of {old.side}s{successor}: it means nothing to a {side}"
    value = old.value(text) if today else None
    if value is None:
        return f"{shown} has no meaning any more: {old.why}" + (f"; see {names}" if names else "")
    for successor in today:
        settings.setdefault(successor, value)
    taken = [successor for successor in today if successor in given]
    if taken:
        return f"{shown} gives way to {taken[0]}={given[taken[0]]}, which is given beside it"
    return f"{shown} is {' and '.join(f'{successor}={value}' for successor in today)} today"


OFFSET_RESETS = {"smallest": "earliest", "largest": "latest"}


def _translate_values(settings: dict[str, object], lines: list[str]) -> None:
    """Translate settings that kept their names but changed their values."""
    reset = str(settings.get("auto.offset.reset"))
    if reset in OFFSET_RESETS:
        settings["auto.offset.reset"] = OFFSET_RESETS[reset]
        lines.append(f"auto.offset.reset={reset} is auto.offset.reset={OFFSET_RESETS[reset]} today")
    partitioner = str(settings.get("partitioner.class"))
    if partitioner.startswith("kafka.producer."):
        del settings["partitioner.class"]
        lines.append(
            f"partitioner.class={partitioner} has no meaning any more: keys decide as in Kafka unless "
            "partitioner.class is a Python function or object"
        )


# Values


def _acks(text: str) -> str:
    if text.lstrip("-").isdigit():
        number = int(text)
        # Today acks cannot ask for more than one replica and fewer than all.
        return "all" if number < 0 or number > 1 else str(number)
    raise ConfigError("request.required.acks", text, "expected -1, 0 or 1")


def _codec(text: str) -> str:
    names = {"0": "none", "1": "gzip", "2": "snappy"}
    return names.get(text, text.lower())


def _encoder(text: str) -> str | None:
    kinds = {
        "StringEncoder": "String",
        "DefaultEncoder": "ByteArray",
        "NullEncoder": "Void",
        "IntegerEncoder": "Integer",
        "LongEncoder": "Long",
    }
    package, _, kind = text.rpartition(".")
    if package != "kafka.serializer" or kind not in kinds:
        return None
    return f"org.apache.kafka.common.serialization.{kinds[kind]}Serializer"


def _session_timeout(text: str) -> str | None:
    return text if text.isdigit() and int(text) in SESSION_TIMEOUT else None


def _above_zero(text: str) -> str | None:
    return text if text.isdigit() and int(text) > 0 else None


def _block(text: str) -> str:
    """-1 waited without a limit."""
    return FOREVER if text == "-1" else text


def _block_on_full(text: str) -> str | None:
    return FOREVER if text.lower() == "true" else None


@cache
def old_names() -> Mapping[str, OldName]:
    """Every setting of 0.8 whose name is not used any more."""
    return {name: OldName("consumer", *rest) for name, rest in _CONSUMER.items()} | {
        name: OldName("producer", *rest) for name, rest in _PRODUCER.items()
    }


_Value: TypeAlias = Callable[[str], str | None]
_Names: TypeAlias = tuple[str, ...]
_Rest: TypeAlias = tuple[_Names] | tuple[_Names, str] | tuple[_Names, str, _Value]

_NO_ZOOKEEPER = "consumers do not look into ZooKeeper"
_ZOOKEEPER_OFFSETS = "offsets are kept by the brokers alone"
_COORDINATED = "a broker coordinates the group"
_JAVA_CLASS = "it names a Java class; give a Python function or object"

_CONSUMER: dict[str, _Rest] = {
    "zookeeper.connect": ((), f"{_NO_ZOOKEEPER}; bootstrap.servers names the brokers to ask"),
    "zookeeper.session.timeout.ms": (
        ("session.timeout.ms",),
        f"brokers take {SESSION_TIMEOUT[0]} to {SESSION_TIMEOUT[-1]} ms unless they are told otherwise",
        _session_timeout,
    ),
    "zookeeper.connection.timeout.ms": ((), f"{_NO_ZOOKEEPER}; see socket.connection.setup.timeout.ms"),
    "zookeeper.sync.time.ms": ((), _NO_ZOOKEEPER),
    "consumer.id": ((), f"{_COORDINATED} and names its members; see group.instance.id and client.id"),
    "socket.timeout.ms": (("request.timeout.ms",),),
    "socket.receive.buffer.bytes": (("receive.buffer.bytes",),),
    "fetch.message.max.bytes": (("max.partition.fetch.bytes",),),
    "fetch.wait.max.ms": (("fetch.max.wait.ms",),),
    "num.consumer.fetchers": ((), "one connection to each broker fetches"),
    "auto.commit.enable": (("enable.auto.commit",),),
    "queued.max.message.chunks": ((), "what waits is bounded in bytes; see fetch.max.bytes"),
    "rebalance.max.retries": ((), _COORDINATED),
    "rebalance.backoff.ms": ((), _COORDINATED),
    "refresh.leader.backoff.ms": (("retry.backoff.ms",),),
    "consumer.timeout.ms": ((), "a poll says how long it waits"),
    "offsets.storage": ((), f"{_ZOOKEEPER_OFFSETS}, and what was committed to ZooKeeper is not read"),
    "offsets.channel.backoff.ms": ((), f"{_ZOOKEEPER_OFFSETS}; see retry.backoff.ms"),
    "offsets.channel.socket.timeout.ms": ((), f"{_ZOOKEEPER_OFFSETS}; see request.timeout.ms"),
    "offsets.commit.max.retries": ((), "commits are tried again for default.api.timeout.ms"),
    "dual.commit.enabled": ((), _ZOOKEEPER_OFFSETS),
}

_PRODUCER: dict[str, _Rest] = {
    "metadata.broker.list": (("bootstrap.servers",),),
    "request.required.acks": (("acks",), "", _acks),
    "producer.type": ((), "every send is asynchronous, and its future tells when it is written"),
    # It applies to keys, too, unless they have their own setting.
    "serializer.class": (("value.serializer", "key.serializer"), _JAVA_CLASS, _encoder),
    "key.serializer.class": (("key.serializer",), _JAVA_CLASS, _encoder),
    "compression.codec": (("compression.type",), "", _codec),
    "compressed.topics": ((), "compression.type holds for all topics of a producer"),
    "message.send.max.retries": (("retries",),),
    "topic.metadata.refresh.interval.ms": (
        ("metadata.max.age.ms",),
        "metadata has an age, and errors refresh it",
        _above_zero,
    ),
    "queue.buffering.max.ms": (("linger.ms",),),
    "queue.buffering.max.messages": ((), "the buffer is bounded in bytes; see buffer.memory"),
    "queue.enqueue.timeout.ms": (("max.block.ms",), "", _block),
    "batch.num.messages": ((), "batches are bounded in bytes and time; see batch.size and linger.ms"),
    "timeout.ms": (("request.timeout.ms",),),
    "metadata.fetch.timeout.ms": (("max.block.ms",),),
    "block.on.buffer.full": (("max.block.ms",), "a full buffer is waited for so long", _block_on_full),
}
