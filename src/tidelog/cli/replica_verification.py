"""`tidelog replica-verification`: compares the replicas of partitions, as kafka-replica-verification.

It fetches each partition from every broker with a replica, as a debugging consumer (replica id -2), which a
follower answers, too. The checksums of batches are compared up to the high watermark.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import click

from tidelog.cli.flags import (
    FlagDefault,
    KafkaStyleCommand,
    WrongUsage,
    bootstrap_server,
    switch,
    valued,
)
from tidelog.cli.output import failing, settings_from
from tidelog.cli.replica_comparison import FetchedReplica, ReplicaBuffer, batch_sums, lag_words
from tidelog.errors import CorruptMessage, KafkaError, error_name
from tidelog.partitions import PartitionKey
from tidelog.protocol.messages.fetch import FetchRequest, FetchResponse
from tidelog.protocol.wire import uuid_from_text

if TYPE_CHECKING:
    from tidelog.clients.admin import AsyncAdmin, TopicDescription

DEBUGGING_CONSUMER = -2
LAST_VERSION_WITH_REPLICA_ID = 14
LATEST, EARLIEST = -1, -2
FETCH_SIZE = 1 << 20
MAX_WAIT_MS = 1000
REPORT_INTERVAL_MS = 30_000
ANSWER_SECONDS = 30.0
RETRY_SECONDS = 1.0
IDLE_SECONDS = 0.1  # a broker answers at once if all it has are errors
IDLE_ROUNDS = 5  # a follower learns the high watermark with a later fetch


@dataclass(slots=True, frozen=True)
class Options:
    topics: re.Pattern[str]
    fetch_size: int
    max_wait_ms: int
    time: int
    report_interval: float
    once: bool


@click.command(cls=KafkaStyleCommand, context_settings={"help_option_names": ["-h", "--help"]})
@bootstrap_server
@valued("--broker-list", "HOST:PORT[,...]", "The same as --bootstrap-server, as Kafka's tool names it.")
@valued("--command-config", "FILE", "A properties file with settings of the connections.")
@valued("--topics-include", "REGEX", "Only topics whose whole name matches; by default all.")
@valued("--topic-white-list", "REGEX", "The older name of --topics-include.")
@valued("--fetch-size", "BYTES", f"The bytes of a partition in one fetch (default {FETCH_SIZE}).", int)
@valued("--max-wait-ms", "MS", f"How long a broker waits for records (default {MAX_WAIT_MS}).", int)
@valued(
    "--time",
    "MS",
    "The timestamp to begin at; -1 is the end of the logs, -2 their start (default -1, with --once -2).",
    int,
)
@valued("--report-interval-ms", "MS", f"The time between two reports (default {REPORT_INTERVAL_MS}).", int)
@switch("--once", "Compare what the logs have, report, and end: with 1 if replicas differ or lack records.")
@click.version_option(package_name="tidelog", message="%(version)s")
@click.pass_context
def replica_verification(
    ctx: click.Context,
    bootstrap_server: str,
    broker_list: str | None,
    command_config: str | None,
    topics_include: str | None,
    topic_white_list: str | None,
    fetch_size: int | None,
    max_wait_ms: int | None,
    time: int | None,
    report_interval_ms: int | None,
    once: bool,
) -> None:
    """Compare the replicas of partitions, and print the largest lag again and again until Ctrl-C."""
    if broker_list is not None and not isinstance(bootstrap_server, FlagDefault):
        raise WrongUsage("--broker-list and --bootstrap-server are the same; give one of them", ctx)
    options = Options(
        pattern(topics_include or topic_white_list or ".*", ctx),
        FETCH_SIZE if fetch_size is None else fetch_size,
        MAX_WAIT_MS if max_wait_ms is None else max_wait_ms,
        (EARLIEST if once else LATEST) if time is None else time,
        (REPORT_INTERVAL_MS if report_interval_ms is None else report_interval_ms) / 1000,
        once,
    )
    same = False
    with failing(""):
        settings = settings_from(command_config, bootstrap_servers=broker_list or bootstrap_server)
        same = asyncio.run(verify(settings, options))
    if not same:
        ctx.exit(1)


def pattern(text: str, ctx: click.Context) -> re.Pattern[str]:
    """The pattern of whole topic names; commas separate alternatives."""
    try:
        return re.compile(text.strip().strip("\"'").replace(",", "|").replace(" ", ""))
    except re.error as error:
        raise WrongUsage(f"--topics-include {text} is not a regular expression: {error}", ctx) from None


async def verify(settings: Mapping[str, object], options: Options) -> bool:
    """Compare until Ctrl-C, with --once until no replica has more. Whether the replicas were the same."""
    from tidelog.clients.admin.client import AsyncAdmin

    async with AsyncAdmin(settings) as admin:
        await admin.connect()
        verification = await start_verification(admin, options)
        say("verification process is started")
        return await verification.run()


async def start_verification(admin: AsyncAdmin, options: Options) -> ReplicaVerification:
    names = [name for name in await admin.list_topics(list_internal=True) if options.topics.fullmatch(name)]
    if not names:
        raise ValueError(f"no topic matches {options.topics.pattern}")
    topics = dict(await admin.describe_topics(names))
    wanted: dict[PartitionKey, int] = {
        (name, partition.partition): options.time
        for name, topic in sorted(topics.items())
        for partition in topic.partitions
    }
    offsets = {key: info.offset for key, info in (await admin.list_offsets(wanted)).items()}
    # A timestamp after the last record has no offset: begin at the end.
    unknown = [key for key, offset in offsets.items() if offset < 0]
    if unknown:
        ends = await admin.list_offsets(dict.fromkeys(unknown, LATEST))
        offsets |= {key: info.offset for key, info in ends.items()}
    buffers = {
        (name, partition.partition): ReplicaBuffer(
            (name, partition.partition), partition.replicas, offsets[name, partition.partition]
        )
        for name, topic in topics.items()
        for partition in topic.partitions
    }
    return ReplicaVerification(admin, options, topics, dict(sorted(buffers.items())))


class ReplicaVerification:
    """Fetches all partitions from all their replicas, round by round, and reports."""

    def __init__(
        self,
        admin: AsyncAdmin,
        options: Options,
        topics: Mapping[str, TopicDescription],
        buffers: Mapping[PartitionKey, ReplicaBuffer],
    ) -> None:
        self._admin = admin
        self._options = options
        self._buffers = buffers
        self._ids = {name: uuid_from_text(topic.topic_id) for name, topic in topics.items()}
        self._names = {topic_id: name for name, topic_id in self._ids.items()}
        self._complaints: dict[str, str] = {}

    async def run(self) -> bool:
        loop = asyncio.get_running_loop()
        next_report = loop.time() + self._options.report_interval
        same = True
        idle = 0
        while True:
            if await self._round():
                idle = 0
            else:
                idle += 1
                await asyncio.sleep(IDLE_SECONDS)
            for buffer in self._buffers.values():
                for difference in buffer.take_differences():
                    same = False
                    say(difference)
            broken = any(buffer.broken for buffer in self._buffers.values())
            behind = any(buffer.lag for buffer in self._buffers.values())
            done = broken or (self._options.once and idle >= (IDLE_ROUNDS if behind else 1))
            if done or loop.time() >= next_report:
                say(lag_words(self._buffers.values()))
                next_report = loop.time() + self._options.report_interval
            if done:
                return same and not behind

    async def _round(self) -> bool:
        """Fetch once from every broker, and compare. Whether any partition moved on."""
        brokers = sorted({broker for buffer in self._buffers.values() for broker in buffer.replicas})
        answers = await asyncio.gather(*(self._fetch(broker) for broker in brokers))
        by_broker = dict(zip(brokers, answers, strict=True))
        moved = False
        for key, buffer in self._buffers.items():
            fetched = {broker: found[key] for broker, found in by_broker.items() if key in found}
            moved |= buffer.compare(fetched)
        return moved

    async def _fetch(self, broker: int) -> dict[PartitionKey, FetchedReplica]:
        """The batches of the replicas of a broker; nothing if it does not answer."""
        wanted = [key for key, buffer in self._buffers.items() if broker in buffer.replicas]
        try:
            connection = await self._admin.driver.client.connection(broker, timeout=ANSWER_SECONDS)
            version = connection.version_for(FetchRequest)
            answer = await connection.call(
                self._request(wanted, version),
                FetchResponse,
                version=version,
                timeout=ANSWER_SECONDS + self._options.max_wait_ms / 1000,
            )
        except KafkaError as error:
            self._complain(f"broker {broker}", str(error))
            await asyncio.sleep(RETRY_SECONDS)
            return {}
        self._complain(f"broker {broker}", "")
        return self._read(broker, answer)

    def _request(self, wanted: Sequence[PartitionKey], version: int) -> FetchRequest:
        request = FetchRequest(max_wait_ms=self._options.max_wait_ms, min_bytes=1)
        if version > LAST_VERSION_WITH_REPLICA_ID:
            request.replica_state = FetchRequest.ReplicaState(replica_id=DEBUGGING_CONSUMER)
        else:
            request.replica_id = DEBUGGING_CONSUMER
        by_topic: dict[str, list[int]] = {}
        for topic, index in wanted:
            by_topic.setdefault(topic, []).append(index)
        request.topics = [
            FetchRequest.FetchTopic(
                topic=topic,
                topic_id=self._ids[topic],
                partitions=[
                    FetchRequest.FetchPartition(
                        partition=index,
                        fetch_offset=self._buffers[topic, index].offset,
                        partition_max_bytes=self._options.fetch_size,
                    )
                    for index in indexes
                ],
            )
            for topic, indexes in by_topic.items()
        ]
        return request

    def _read(self, broker: int, answer: FetchResponse) -> dict[PartitionKey, FetchedReplica]:
        if answer.error_code:
            self._complain(f"broker {broker}", error_name(answer.error_code))
            return {}
        found: dict[PartitionKey, FetchedReplica] = {}
        for topic in answer.responses:
            name = topic.topic or self._names.get(topic.topic_id, "")
            for partition in topic.partitions:
                key = (name, partition.partition_index)
                what = f"partition {name}-{partition.partition_index}, replica {broker}"
                if partition.error_code:
                    self._complain(what, error_name(partition.error_code))
                    continue
                try:
                    records = memoryview(partition.records or b"")  # type: ignore[arg-type]  # no FilePart
                    sums = batch_sums(records, self._buffers[key].offset)
                except CorruptMessage as error:
                    self._complain(what, str(error))
                    continue
                self._complain(what, "")
                found[key] = FetchedReplica(partition.high_watermark, sums)
        return found

    def _complain(self, what: str, words: str) -> None:
        """Print a failure once, until it is over or another."""
        if words and self._complaints.get(what) != words:
            say(f"{what}: {words}", err=True)
        self._complaints[what] = words


def say(text: str, *, err: bool = False) -> None:
    now = datetime.now()
    click.echo(f"{now:%Y-%m-%d %H:%M:%S},{now.microsecond // 1000:03d}: {text}", err=err)
