"""`tidelog verifiable-consumer`: a member that prints its events as JSON, as kafka-verifiable-consumer."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from tidelog.cli.flags import WrongUsage, bootstrap_server, not_both, switch, valued
from tidelog.cli.output import Signals, failing, merged, print_json, settings_from, tool_command
from tidelog.errors import KafkaError

if TYPE_CHECKING:
    from tidelog.clients.consumer.blocking import Consumer
    from tidelog.partitions import TopicPartition
    from tidelog.records.loops import ConsumerRecord

BATCH = 500


@tool_command("verifiable-consumer")
@bootstrap_server
@valued("--topic", "NAME", "The topic to read; required.")
@valued("--group-id", "ID", "The group; required.")
@valued("--group-protocol", "PROTOCOL", "classic (default) or consumer.")
@valued("--group-remote-assignor", "NAME", "The broker's assignor, with --group-protocol consumer.")
@valued("--group-instance-id", "ID", "The name of a static member.")
@click.option(
    "--max-messages", metavar="N", type=int, default=-1, help="How many records; -1 until a signal."
)
@valued("--session-timeout", "MS", "session.timeout.ms of the consumer, with the classic protocol.", int)
@switch("--verbose", "Print a line for each record, too.")
@switch("--enable-autocommit", "Commit in the background, not after each batch.")
@valued("--reset-policy", "POLICY", "earliest (default), latest or none.")
@valued("--assignment-strategy", "CLASS", "The assignor of the classic protocol.")
@valued("--consumer.config", "FILE", "As --command-config.")
@valued("--command-config", "FILE", "A properties file with settings of the consumer.")
@click.pass_context
def verifiable_consumer(
    ctx: click.Context,
    bootstrap_server: str,
    topic: str | None,
    group_id: str | None,
    group_protocol: str | None,
    group_remote_assignor: str | None,
    group_instance_id: str | None,
    max_messages: int,
    session_timeout: int | None,
    verbose: bool,
    enable_autocommit: bool,
    reset_policy: str | None,
    assignment_strategy: str | None,
    consumer_config: str | None,
    command_config: str | None,
) -> None:
    """Read a topic as a member of a group, and print each event as a line of JSON."""
    for name, value in (("--topic", topic), ("--group-id", group_id)):
        if value is None:
            raise WrongUsage(f"{name} must be specified", ctx)
    not_both(ctx, "--command-config", command_config, "--consumer.config", consumer_config)
    with failing():
        settings = merged(
            settings_from(command_config or consumer_config),
            bootstrap_servers=bootstrap_server,
            group_id=group_id,
            group_protocol=group_protocol,
            group_remote_assignor=group_remote_assignor,
            group_instance_id=group_instance_id,
            enable_auto_commit=enable_autocommit,
            auto_offset_reset=reset_policy or "earliest",
            session_timeout_ms=None if group_protocol == "consumer" else session_timeout,
            partition_assignment_strategy=assignment_strategy,
        )
        code = Run(topic or "", max_messages, not enable_autocommit, verbose).run(settings)
    ctx.exit(code)


class Run:
    def __init__(self, topic: str, max_messages: int, commits: bool, verbose: bool) -> None:
        self.topic = topic
        self.max_messages = max_messages
        self.commits = commits
        self.verbose = verbose
        self.consumed = 0

    def run(self, settings: dict[str, object]) -> int:
        """Read until a signal or the last record; returns the exit code."""
        from tidelog.clients.consumer.blocking import Consumer
        from tidelog.clients.consumer.listener import ConsumerRebalanceListener
        from tidelog.clients.errors import WakeupException

        run = self

        class RebalanceEvents(ConsumerRebalanceListener):
            def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
                run.emit("partitions_assigned", partitions=listed(partitions))

            def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
                run.emit("partitions_revoked", partitions=listed(partitions))

        with Consumer(settings) as consumer, Signals(consumer.wakeup) as signals:
            self.emit("startup_complete")
            consumer.subscribe([self.topic], listener=RebalanceEvents())
            try:
                while self.max_messages < 0 or self.consumed < self.max_messages:
                    self.take(consumer)
            except WakeupException:
                self.emit("shutdown_requested")
            consumer.close()
        self.emit("shutdown_complete")
        return signals.exit_code

    def take(self, consumer: Consumer) -> None:
        left = BATCH if self.max_messages < 0 else min(BATCH, self.max_messages - self.consumed)
        records = consumer.poll(1.0, max_records=left)
        if not records:
            return
        by_partition: dict[tuple[str, int], list[ConsumerRecord]] = {}
        for record in records:
            by_partition.setdefault((record.topic, record.partition), []).append(record)
            if self.verbose:
                self.emit_record(record)
        self.consumed += len(records)
        self.emit(
            "records_consumed",
            count=len(records),
            partitions=[
                {
                    "topic": topic,
                    "partition": index,
                    "count": len(found),
                    "minOffset": found[0].offset,
                    "maxOffset": found[-1].offset,
                }
                for (topic, index), found in by_partition.items()
            ],
        )
        if self.commits:
            self.commit(consumer, {key: found[-1].offset + 1 for key, found in by_partition.items()})

    def commit(self, consumer: Consumer, offsets: dict[tuple[str, int], int]) -> None:
        shown = [
            {"topic": topic, "partition": index, "offset": offset}
            for (topic, index), offset in offsets.items()
        ]
        try:
            consumer.commit(offsets)
        except KafkaError as error:
            self.emit("offsets_committed", offsets=shown, error=str(error), success=False)
        else:
            self.emit("offsets_committed", offsets=shown, success=True)

    def emit_record(self, record: ConsumerRecord) -> None:
        self.emit(
            "record_data",
            key=text(record.key),
            value=text(record.value),
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
        )

    def emit(self, name: str, **fields: object) -> None:
        print_json({"timestamp": round(time.time() * 1000), "name": name, **fields})


def listed(partitions: list[TopicPartition]) -> list[dict[str, object]]:
    return [{"topic": topic, "partition": index} for topic, index in sorted(partitions)]


def text(data: bytes | None) -> str | None:
    return None if data is None else bytes(data).decode(errors="replace")
