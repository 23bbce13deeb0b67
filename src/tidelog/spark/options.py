"""The options of the data source: the options of Spark's Kafka connector and a few more, parsed and checked.

Names are case-insensitive. Options that the connector refuses are refused with the same reason, before any
connection is made. A value that cannot be used raises `OptionError` with the expected value.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from tidelog.clients.producer.partitioners import partitioner_of
from tidelog.clients.settings import consumer_settings, producer_settings
from tidelog.config import ConfigError
from tidelog.partitions import PartitionKey
from tidelog.protocol.offset_specs import EARLIEST, LATEST
from tidelog.spark.client_options import ClientOptions
from tidelog.spark.option_names import unknown_to_sink, unknown_to_source

log = logging.getLogger("tidelog.spark")

Offsets = dict[PartitionKey, int]

LONG_MAX = 2**63 - 1
# Long enough for a busy machine, short enough for a user who mistyped an address.
BOOTSTRAP_TIMEOUT_MS = 8_000

_TIME = re.compile(r"(-?[0-9]+)\s*([a-z]*)")
_MILLISECONDS = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_OFFSETS_EXAMPLE = '{"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}'
_TIMES_EXAMPLE = '{"topicA":{"0":1000,"1":1000},"topicB":{"0":2000}}'
_STRATEGIES = ("subscribe", "subscribePattern", "assign")


class OptionError(ValueError):
    """An option that is missing, not supported, or has a value that cannot be used."""


@dataclass(frozen=True, slots=True)
class Subscribe:
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SubscribePattern:
    pattern: str


@dataclass(frozen=True, slots=True)
class Assign:
    partitions: frozenset[PartitionKey]


Selection = Subscribe | SubscribePattern | Assign


@dataclass(frozen=True, slots=True)
class Everywhere:
    """All partitions at LATEST or EARLIEST."""

    offset: int


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """Each partition at an offset, or at LATEST or EARLIEST."""

    offsets: Offsets


@dataclass(frozen=True, slots=True)
class AtTimes:
    """Each partition at its first record of this time or later, in milliseconds."""

    times: Offsets


@dataclass(frozen=True, slots=True)
class AtTime:
    """All partitions at their first record of this time or later, in milliseconds."""

    time: int


Limit = Everywhere | AtOffsets | AtTimes | AtTime


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of a read. `client` has the settings of the clients, without the prefix `kafka.`."""

    selection: Selection
    client: Mapping[str, str]
    starting: Limit | None
    """None if the option is not set: latest for a stream, earliest for a batch."""
    ending: Limit | None
    when_no_offset: Literal["error", "latest"] = "error"
    fail_on_data_loss: bool = True
    include_headers: bool = False
    max_offsets_per_trigger: int | None = None
    max_offsets_by: Literal["share", "time"] = "share"
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = 15 * 60_000
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    group_id_prefix: str | None = None
    fetch_offset_retries: int = 3
    fetch_offset_retry_interval_ms: int = 1000
    poll_timeout_ms: int = 120_000
    metadata_cache_ms: int = -1
    publish_group: str | None = None
    push_filters: bool = False
    bootstrap_timeout_ms: int = BOOTSTRAP_TIMEOUT_MS
    given: Mapping[str, str] = field(default_factory=dict)
    """Every option as given, with its name in lower case."""

    @property
    def bootstrap_servers(self) -> str:
        return self.client["bootstrap.servers"]

    @property
    def isolation_level(self) -> str:
        return self.client.get("isolation.level", "read_uncommitted")

    @property
    def group_id(self) -> str | None:
        return self.client.get("group.id")


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of a write. `client` has the settings of the producers, without the prefix `kafka.`."""

    client: Mapping[str, str]
    topic: str | None = None
    exactly_once: bool = False
    exactly_once_name: str | None = None
    exactly_once_batch: int | None = None
    transactional_id_prefix: str = "tidelog-spark"
    decision_topic: str = "__spark_decisions"
    bootstrap_timeout_ms: int = BOOTSTRAP_TIMEOUT_MS
    given: Mapping[str, str] = field(default_factory=dict)
    """Every option as given, with its name in lower case."""

    @property
    def bootstrap_servers(self) -> str:
        return self.client["bootstrap.servers"]

    @property
    def has_partitioner(self) -> bool:
        """Whether a partitioner chooses the partition of each row, with or without a key."""
        return bool(self.client.get("partitioner.class", "").strip())


class _Given:
    """Options by case-insensitive name, read one by one."""

    __slots__ = ("options",)

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = ClientOptions({name.lower(): str(value) for name, value in options.items()})

    def refuse(self, unknown: Callable[[Iterable[str]], str | None]) -> None:
        """Raise the error that `unknown` finds in the names, if there is one."""
        wrong = unknown(self.options)
        if wrong is not None:
            raise OptionError(wrong)

    def text(self, name: str) -> str | None:
        value = self.options.get(name.lower())
        return None if value is None else value.strip()

    def number(self, name: str, least: int, default: int | None = None) -> int | None:
        value = self.text(name)
        if value is None:
            return default
        if not re.fullmatch(r"[+-]?[0-9]+", value, re.ASCII):
            raise OptionError(f"{name}={value}: expected a whole number")
        if not least <= int(value) <= LONG_MAX:
            wanted = f"{name} must be positive" if least == 1 else f"{name} must be at least {least}"
            raise OptionError(f"{wanted}, but it is {value}")
        return int(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in ("true", "false"):
            raise OptionError(f"{name}={value}: expected true or false")
        return value.lower() == "true"

    def duration_ms(self, name: str, default: int) -> int:
        value = self.text(name)
        if value is None:
            return default
        match = _TIME.fullmatch(value.lower())
        if match is None or match[2] not in _MILLISECONDS or int(match[1]) < 0:
            raise OptionError(f"{name}={value}: expected a time such as 500ms, 30s, 15m, 2h or 1d")
        return int(match[1]) * _MILLISECONDS[match[2]]

    def bootstrap_timeout_ms(self) -> int:
        return self.number("bootstrapTimeoutMs", 1, BOOTSTRAP_TIMEOUT_MS) or BOOTSTRAP_TIMEOUT_MS

    def client(self) -> ClientOptions:
        return ClientOptions(
            (name.removeprefix("kafka."), value)
            for name, value in self.options.items()
            if name.startswith("kafka.")
        )


def source_options(options: Mapping[str, str]) -> SourceOptions:
    """The options of a read. `stream_options` and `batch_options` check what only one of the two may have."""
    given = _Given(options)
    given.refuse(unknown_to_source)
    client = given.client()
    selection = _selection(given)
    min_partitions = given.number("minPartitions", 1)
    metadata_cache_ms = given.number("partition.metadata.cache.ttl.ms", -1, -1) or 0
    if metadata_cache_ms == 0:
        raise OptionError(
            "partition.metadata.cache.ttl.ms must be a positive number of milliseconds, or -1 for no caching"
        )
    max_records = given.number("maxRecordsPerPartition", 1)
    _refuse_consumer_settings(given, client)
    least, most = given.number("minOffsetsPerTrigger", 0), given.number("maxOffsetsPerTrigger", 0)
    if least is not None and most is not None and least > most:
        raise OptionError(
            f"The value of minOffsetsPerTrigger({least}) is higher than the maxOffsetsPerTrigger({most})."
        )
    return SourceOptions(
        selection=selection,
        client=client,
        starting=_limit(given, "starting"),
        ending=_limit(given, "ending"),
        when_no_offset=_when_no_offset(given),
        fail_on_data_loss=given.flag("failOnDataLoss", True),
        include_headers=given.flag("includeHeaders", False),
        max_offsets_per_trigger=most,
        max_offsets_by=_max_offsets_by(given),
        min_offsets_per_trigger=least,
        max_trigger_delay_ms=given.duration_ms("maxTriggerDelay", 15 * 60_000),
        min_partitions=min_partitions,
        max_records_per_partition=max_records,
        group_id_prefix=given.text("groupIdPrefix"),
        fetch_offset_retries=given.number("fetchOffset.numRetries", 1, 3) or 3,
        fetch_offset_retry_interval_ms=given.number("fetchOffset.retryIntervalMs", 0, 1000) or 0,
        poll_timeout_ms=given.number("kafkaConsumer.pollTimeoutMs", 1, 120_000) or 120_000,
        metadata_cache_ms=metadata_cache_ms,
        publish_group=_publish_group(given, client),
        push_filters=given.flag("pushFilters", False),
        bootstrap_timeout_ms=given.bootstrap_timeout_ms(),
        given=given.options,
    )


def stream_options(options: Mapping[str, str]) -> SourceOptions:
    """The options of a streaming read, which has no end."""
    given = _Given(options)
    if given.text("endingOffsets") is not None:
        raise OptionError("ending offset not valid in streaming queries: remove endingOffsets")
    if given.text("endingOffsetsByTimestamp") is not None:
        raise OptionError("ending timestamp not valid in streaming queries: remove endingOffsetsByTimestamp")
    if given.text("endingTimestamp") is not None:
        log.warning("endingTimestamp option ignored in streaming queries")
    return source_options(options)


def batch_options(options: Mapping[str, str]) -> SourceOptions:
    """The options of a batch read, which has a start and an end."""
    parsed = source_options(options)
    if parsed.starting == Everywhere(LATEST):
        raise OptionError(
            "starting offset can't be latest for batch queries: set startingOffsets to earliest or to offsets"
        )
    if isinstance(parsed.starting, AtOffsets):
        for (topic, index), offset in parsed.starting.offsets.items():
            if offset == LATEST:
                raise OptionError(f"startingOffsets for {topic}-{index} can't be latest for batch queries")
    if parsed.ending == Everywhere(EARLIEST):
        raise OptionError(
            "ending offset can't be earliest for batch queries: set endingOffsets to latest, or to offsets"
        )
    if isinstance(parsed.ending, AtOffsets):
        for (topic, index), offset in parsed.ending.offsets.items():
            if offset == EARLIEST:
                raise OptionError(f"ending offset for {topic}-{index} can't be earliest for batch queries")
    _check_order(parsed.starting, parsed.ending)
    for name in ("maxOffsetsBy", "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"):
        if name.lower() in parsed.given:
            log.warning("%s option ignored in batch queries", name)
    return parsed


def sink_options(options: Mapping[str, str]) -> SinkOptions:
    """The options of a write, batch or streaming."""
    given = _Given(options)
    given.refuse(unknown_to_sink)
    client = given.client()
    for name, what in (("key.serializer", "keys"), ("value.serializer", "values")):
        if name in client:
            raise OptionError(
                f"Kafka option '{name}' is not supported as {what} are serialized with ByteArraySerializer."
                f" Use DataFrame operations to make the {what} bytes or a string."
            )
    if "bootstrap.servers" not in client:
        raise OptionError("Option 'kafka.bootstrap.servers' must be specified for configuring Kafka producer")
    exactly_once = given.flag("exactlyOnce", False)
    if "transactional.id" in client:
        raise OptionError(
            "Kafka option 'transactional.id' is not supported: set exactlyOnce to true for transactions. Each"
            " task then has its own id, which begins with transactionalIdPrefix"
        )
    if client.get("interceptor.classes"):
        raise OptionError(
            "Kafka option 'interceptor.classes' is not supported as it names classes of Java."
            " Use DataFrame operations to change rows."
        )
    try:
        settings = producer_settings(client)
        partitioner_of(settings.partitioner_class)
    except ConfigError as error:
        raise OptionError(f"kafka.{error}") from None
    if exactly_once and not settings.enable_idempotence:
        given_names = [name for name in ("acks", "enable.idempotence", "retries") if name in client]
        raise OptionError(
            "exactlyOnce needs a producer with idempotence, which is switched off by"
            f" {', '.join(f'kafka.{name}={client[name]}' for name in given_names)}: leave it to the sink"
        )
    return SinkOptions(
        client=client,
        topic=given.text("topic"),
        exactly_once=exactly_once,
        exactly_once_name=given.text("exactlyOnceName"),
        exactly_once_batch=given.number("exactlyOnceBatch", 0),
        transactional_id_prefix=given.text("transactionalIdPrefix") or "tidelog-spark",
        decision_topic=given.text("decisionTopic") or "__spark_decisions",
        bootstrap_timeout_ms=given.bootstrap_timeout_ms(),
        given=given.options,
    )


def _selection(given: _Given) -> Selection:
    named = [name for name in _STRATEGIES if given.text(name) is not None]
    if not named:
        raise OptionError(
            f"One of the following options must be specified for the source: {', '.join(_STRATEGIES)}"
        )
    if len(named) > 1:
        raise OptionError(
            f"Only one of the following options can be specified for the source: {', '.join(_STRATEGIES)};"
            f" {' and '.join(named)} are"
        )
    value = given.text(named[0]) or ""
    if named[0] == "assign":
        return Assign(_partitions(value))
    if named[0] == "subscribe":
        topics = tuple(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))
        if not topics:
            raise OptionError(
                f"No topics to subscribe to as specified value for option 'subscribe' is '{value}'"
            )
        return Subscribe(topics)
    if not value:
        raise OptionError(
            f"Pattern to subscribe is empty as specified value for option 'subscribePattern' is '{value}'"
        )
    if "&&" in value:  # no topic name contains it, and Python would read it as two characters
        raise OptionError(
            f"subscribePattern={value}: Python's regular expressions do not have Java's &&: use a lookahead,"
            " (?![3])[0-9] for [0-9&&[^3]]"
        )
    try:
        re.compile(value)
    except re.error as error:
        raise OptionError(f"subscribePattern={value}: not a regular expression: {error}") from None
    return SubscribePattern(value)


def _partitions(text: str) -> frozenset[PartitionKey]:
    if not text.startswith("{"):
        raise OptionError(f"No topicpartitions to assign as specified value for option 'assign' is '{text}'")
    wrong = OptionError(f'assign: expected e.g. {{"topicA":[0,1],"topicB":[0,1]}}, got {text}')
    try:
        topics = json.loads(text)
    except ValueError:
        raise wrong from None
    found: set[PartitionKey] = set()
    for topic, indexes in topics.items():
        if not isinstance(indexes, list):
            raise wrong
        for index in indexes:
            if type(index) is not int or index < 0:
                raise wrong
            found.add((topic, index))
    if not found:
        raise OptionError(f"No topicpartitions to assign as specified value for option 'assign' is '{text}'")
    return frozenset(found)


def _limit(given: _Given, which: str) -> Limit | None:
    """The start or end. A timestamp for all partitions precedes timestamps, and these precede offsets."""
    if (time := given.text(f"{which}Timestamp")) is not None:
        if not re.fullmatch(r"[+-]?[0-9]+", time, re.ASCII):
            raise OptionError(f"{which}Timestamp: Expected a single long value, got {time}")
        return AtTime(int(time))
    if (times := given.text(f"{which}OffsetsByTimestamp")) is not None:
        return AtTimes(_numbers(f"{which}OffsetsByTimestamp", times, _TIMES_EXAMPLE))
    offsets = given.text(f"{which}Offsets")
    if offsets is None:
        return None
    if offsets.lower() in ("latest", "earliest"):
        return Everywhere(LATEST if offsets.lower() == "latest" else EARLIEST)
    return AtOffsets(_numbers(f"{which}Offsets", offsets, _OFFSETS_EXAMPLE, least=EARLIEST))


def _numbers(name: str, text: str, example: str, *, least: int = -LONG_MAX) -> Offsets:
    wrong = OptionError(f"{name}: expected e.g. {example}, got {text}")
    try:
        topics = json.loads(text)
    except ValueError:
        raise wrong from None
    if not isinstance(topics, dict):
        raise wrong
    found: Offsets = {}
    for topic, partitions in topics.items():
        if not isinstance(partitions, dict):
            raise wrong
        for index, number in partitions.items():
            if not re.fullmatch(r"[0-9]+", index, re.ASCII) or type(number) is not int or number < least:
                raise wrong
            found[topic, int(index)] = number
    return found


def _when_no_offset(given: _Given) -> Literal["error", "latest"]:
    value = (given.text("startingOffsetsByTimestampStrategy") or "error").lower()
    if value == "error":
        return "error"
    if value == "latest":
        return "latest"
    raise OptionError(f"startingOffsetsByTimestampStrategy={value}: expected error or latest")


def _max_offsets_by(given: _Given) -> Literal["share", "time"]:
    value = (given.text("maxOffsetsBy") or "share").lower()
    if value == "share":
        return "share"
    if value == "time":
        return "time"
    raise OptionError(f"maxOffsetsBy={value}: expected share or time")


def _publish_group(given: _Given, client: Mapping[str, str]) -> str | None:
    """The group that shows the query's position: publishGroup, or else kafka.group.id."""
    name = given.text("publishGroup")
    if name is None:
        return client.get("group.id") or None
    if name.lower() in ("", "false", "none"):
        return None
    if name.lower() == "true":
        if not client.get("group.id"):
            raise OptionError("publishGroup=true: name the group, or set kafka.group.id beside it")
        return client["group.id"]
    return name


def _refuse_consumer_settings(given: _Given, client: Mapping[str, str]) -> None:
    """Refuse settings that the source manages itself, with the reason, and invalid settings."""
    if "group.id" in client and given.text("groupIdPrefix") is not None:
        log.warning("Option groupIdPrefix will be ignored as option kafka.group.id has been set.")
    if "auto.offset.reset" in client:
        raise OptionError(
            "Kafka option 'auto.offset.reset' is not supported. Instead set the source option"
            " 'startingOffsets' to 'earliest' or 'latest' to specify where to start. Structured Streaming"
            " manages which offsets are consumed, so that no data is missed when topics or partitions are"
            " added; 'startingOffsets' only applies when a new query is started, and a resumed one continues"
            " where it left off."
        )
    for name, what in (("key.deserializer", "keys"), ("value.deserializer", "values")):
        if name in client:
            raise OptionError(
                f"Kafka option '{name}' is not supported as {what} are deserialized as byte arrays."
                f" Use DataFrame operations to explicitly deserialize the {what}."
            )
    for name, why in (
        ("enable.auto.commit", "the checkpoint of the query holds its position"),
        ("interceptor.classes", "interceptors can change the records"),
    ):
        if name in client:
            raise OptionError(f"Kafka option '{name}' is not supported: {why}")
    if not client.get("bootstrap.servers", "").strip():
        raise OptionError("Option 'kafka.bootstrap.servers' must be specified for configuring Kafka consumer")
    try:
        consumer_settings(client)
    except ConfigError as error:
        raise OptionError(f"kafka.{error}") from None


def _check_order(starting: Limit | None, ending: Limit | None) -> None:
    """If both ends are of the same kind, they need the same partitions, and no start after its end."""
    if isinstance(starting, AtOffsets) and isinstance(ending, AtOffsets):
        what, first, last = "offset", starting.offsets, ending.offsets
    elif isinstance(starting, AtTimes) and isinstance(ending, AtTimes):
        what, first, last = "timestamp", starting.times, ending.times
    else:
        return
    if first.keys() != last.keys():
        raise OptionError(
            "The specified start offset and end offset should have the same topic-partitions."
            f" Topic-partitions for start offset: {shown(first)}, for end offset: {shown(last)}."
        )
    for (topic, index), start in first.items():
        end = last[topic, index]
        if start > end and start >= 0 and end >= 0:
            raise OptionError(
                f"The specified start {what} {start} is greater than the end {what} {end}"
                f" for topic {topic} partition {index}."
            )


def shown(partitions: Iterable[PartitionKey]) -> str:
    """Partitions for an error message: orders-0, orders-1."""
    return ", ".join(f"{topic}-{index}" for topic, index in sorted(partitions)) or "none"
