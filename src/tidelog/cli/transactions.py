"""`tidelog transactions`: lists and describes transactions, and aborts hanging ones, as kafka-transactions.

A transaction hangs if it is open in a partition but unknown to its coordinator: read_committed consumers wait
for its end for ever.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, TypeAlias

import click

from tidelog.cli.flags import (
    KafkaStyleCommand,
    KafkaStyleGroup,
    WrongUsage,
    bootstrap_server,
    brief_words,
    valued,
)
from tidelog.cli.output import FORM, FORMS, connected_admin, output_option, print_json
from tidelog.errors import KafkaError
from tidelog.partitions import PartitionKey

if TYPE_CHECKING:
    from tidelog.clients.admin import Admin, ProducerState

NONE = "None"
OUTPUT = "tidelog.output"

Open: TypeAlias = "Callable[[], AbstractContextManager[Admin]]"


@click.group(
    cls=KafkaStyleGroup, no_args_is_help=False, context_settings={"help_option_names": ["-h", "--help"]}
)
@bootstrap_server
@valued("--command-config", "FILE", "A properties file with settings of the connection.")
@output_option
@click.version_option(None, "-v", "--version", package_name="tidelog", message="%(version)s")
@click.pass_context
def transactions(ctx: click.Context, bootstrap_server: str, command_config: str | None, output: str) -> None:
    """List and describe transactions and producers, and abort hanging transactions."""
    ctx.obj = lambda: connected_admin(bootstrap_server, command_config)
    ctx.meta[OUTPUT] = output


@contextmanager
def asking(what: str) -> Iterator[Admin]:
    """An admin client; after an error the tool prints `what` with the error, and ends with 1."""
    ctx = click.get_current_context()
    open_admin: Open = ctx.obj
    try:
        with open_admin() as admin:
            yield admin
    except KafkaError as error:
        click.echo(f"{what}: {brief_words(error)}", err=True)
        ctx.exit(1)
    except (OSError, ValueError) as error:
        click.echo(f"{what}: {error}", err=True)
        ctx.exit(1)


def output_after(function: Callable[..., None]) -> Callable[..., None]:
    """`--output` behind the name of a command, where people look for it; it wins over one before the name."""

    def chosen(ctx: click.Context, _option: click.Parameter, form: str | None) -> None:
        if form is not None:
            ctx.meta[FORM], ctx.meta[OUTPUT] = form, "text" if form == "text" else "json"

    return click.option(
        "--output",
        type=click.Choice(["text", *FORMS], case_sensitive=False),
        callback=chosen,
        expose_value=False,
        help="Lines for people, or a form for programs.",
    )(function)


@transactions.command("list", cls=KafkaStyleCommand)
@output_after
@valued("--duration-filter", "MS", "Only transactions that are open for longer; all if below 0.", int)
@valued("--transactional-id-pattern", "PATTERN", "Only ids that match a regular expression completely.")
def list_transactions(duration_filter: int | None, transactional_id_pattern: str | None) -> None:
    """List transactional ids.

    Prints the coordinator, the producer id and the state of each.
    """
    with asking("Failed to list transactions") as admin:
        listed = admin.list_transactions(
            duration_ms=duration_filter, transactional_id_pattern=transactional_id_pattern
        )
    print_table(
        ("TransactionalId", "Coordinator", "ProducerId", "TransactionState"),
        [
            (listing.transactional_id, listing.coordinator, listing.producer_id, listing.state)
            for listing in listed
        ],
    )


@transactions.command("describe", cls=KafkaStyleCommand)
@output_after
@click.option("--transactional-id", metavar="ID", required=True, help="The transactional id; required.")
def describe(transactional_id: str) -> None:
    """Describe a transactional id.

    Prints its producer, its state, and the partitions of its open transaction.
    """
    with asking(f"Failed to describe transaction state of transactional-id `{transactional_id}`") as admin:
        described = admin.describe_transactions([transactional_id])[transactional_id]
    start = described.transaction_start_time_ms
    print_table(
        (
            "CoordinatorId",
            "TransactionalId",
            "ProducerId",
            "ProducerEpoch",
            "TransactionState",
            "TransactionTimeoutMs",
            "CurrentTransactionStartTimeMs",
            "TransactionDurationMs",
            "TopicPartitions",
        ),
        [
            (
                described.coordinator,
                described.transactional_id,
                described.producer_id,
                described.producer_epoch,
                described.state,
                described.transaction_timeout_ms,
                NONE if start is None else start,
                NONE if start is None else now_ms() - start,
                ",".join(f"{topic}-{index}" for topic, index in sorted(described.partitions)),
            )
        ],
    )


@transactions.command("describe-producers", cls=KafkaStyleCommand)
@output_after
@click.option("--topic", metavar="NAME", required=True, help="The topic; required.")
@click.option("--partition", metavar="N", type=int, required=True, help="The partition; required.")
@valued("--broker-id", "ID", "Ask this broker's replica; by default the leader.", int)
def describe_producers(topic: str, partition: int, broker_id: int | None) -> None:
    """Describe the producers of a partition.

    Prints the first offsets of their open transactions, too.
    """
    where = "leader" if broker_id is None else f"broker {broker_id}"
    with asking(f"Failed to describe producers for partition {topic}-{partition} on {where}") as admin:
        producers = producers_of(admin, (topic, partition), broker_id)
    print_table(
        (
            "ProducerId",
            "ProducerEpoch",
            "LatestCoordinatorEpoch",
            "LastSequence",
            "LastTimestamp",
            "CurrentTransactionStartOffset",
        ),
        [
            (
                producer.producer_id,
                producer.producer_epoch,
                producer.coordinator_epoch,
                producer.last_sequence,
                producer.last_timestamp,
                NONE
                if producer.current_transaction_start_offset is None
                else producer.current_transaction_start_offset,
            )
            for producer in producers
        ],
    )


@transactions.command("abort", cls=KafkaStyleCommand)
@click.option("--topic", metavar="NAME", required=True, help="The topic; required.")
@click.option("--partition", metavar="N", type=int, required=True, help="The partition; required.")
@valued("--start-offset", "N", "The first offset of the transaction, as find-hanging prints it.", int)
@valued("--producer-id", "ID", "The producer, for brokers that do not describe producers.", int)
@valued("--producer-epoch", "N", "Its epoch; with --producer-id.", int)
@valued("--coordinator-epoch", "N", "The epoch of its coordinator; with --producer-id.", int)
@click.pass_context
def abort(
    ctx: click.Context,
    topic: str,
    partition: int,
    start_offset: int | None,
    producer_id: int | None,
    producer_epoch: int | None,
    coordinator_epoch: int | None,
) -> None:
    """Abort a transaction in one partition.

    Its coordinator is not asked.
    """
    if start_offset is None:
        if producer_id is None:
            raise WrongUsage(
                "expected --start-offset, or --producer-id, --producer-epoch and --coordinator-epoch", ctx
            )
        if producer_epoch is None or coordinator_epoch is None:
            raise WrongUsage("--producer-id needs --producer-epoch and --coordinator-epoch", ctx)
        with asking(f"Failed to abort transaction of producer {producer_id}") as admin:
            abort_open(admin, (topic, partition), producer_id, producer_epoch, coordinator_epoch)
        return
    with asking(f"Failed to abort transaction at offset {start_offset} of {topic}-{partition}") as admin:
        for producer in producers_of(admin, (topic, partition)):
            if producer.current_transaction_start_offset == start_offset:
                break
        else:
            raise ValueError(
                f"Could not find any open transactions starting at offset {start_offset} on partition "
                f"{topic}-{partition}"
            )
        abort_open(
            admin,
            (topic, partition),
            producer.producer_id,
            producer.producer_epoch,
            producer.coordinator_epoch,
        )


@transactions.command("find-hanging", cls=KafkaStyleCommand)
@output_after
@valued("--broker-id", "ID", "Search the partitions of one broker.", int)
@valued("--max-transaction-timeout", "MIN", "Only transactions older than MIN minutes (default 15).", int)
@valued("--topic", "NAME", "Search one topic.")
@valued("--partition", "N", "Search one partition of the topic.", int)
@click.pass_context
def find_hanging(
    ctx: click.Context,
    broker_id: int | None,
    max_transaction_timeout: int | None,
    topic: str | None,
    partition: int | None,
) -> None:
    """Find transactions that no coordinator will end.

    They are open in partitions, but unknown to their coordinators.
    """
    if partition is not None and topic is None:
        raise WrongUsage("--partition needs --topic", ctx)
    if topic is None and broker_id is None:
        raise WrongUsage(
            "find-hanging needs --topic or --broker-id: it does not search the whole cluster", ctx
        )
    minutes = 15 if max_transaction_timeout is None else max_transaction_timeout
    with asking("Failed to find hanging transactions") as admin:
        partitions = partitions_to_search(admin, topic, partition, broker_id)
        hanging = admin.find_hanging_transactions(
            partitions, before_ms=now_ms() - minutes * 60_000, broker_id=broker_id
        )
    print_table(
        (
            "Topic",
            "Partition",
            "ProducerId",
            "ProducerEpoch",
            "CoordinatorEpoch",
            "StartOffset",
            "LastTimestamp",
            "Duration(min)",
        ),
        [
            (
                *each.partition,
                producer.producer_id,
                producer.producer_epoch,
                producer.coordinator_epoch,
                -1
                if producer.current_transaction_start_offset is None
                else producer.current_transaction_start_offset,
                producer.last_timestamp,
                (now_ms() - producer.last_timestamp) // 60_000,
            )
            for each in hanging
            for producer in [each.producer]
        ],
    )


@transactions.command("forceTerminateTransaction", cls=KafkaStyleCommand)
@click.option(
    "--transactionalId",
    "transactional_id",
    metavar="ID",
    required=True,
    help="The transactional id; required.",
)
def force_terminate_transaction(transactional_id: str) -> None:
    """Abort a transaction and fence its producer.

    It is the open transaction of a transactional id.
    """
    with asking(f"Failed to force terminate transactionalId `{transactional_id}`") as admin:
        admin.force_terminate_transaction(transactional_id)


def producers_of(admin: Admin, partition: PartitionKey, broker: int | None = None) -> list[ProducerState]:
    found = admin.describe_producers([partition], broker_id=broker)[partition]
    return sorted(found, key=lambda producer: producer.producer_id)


def abort_open(
    admin: Admin, partition: PartitionKey, producer_id: int, producer_epoch: int, coordinator_epoch: int
) -> None:
    """Abort a producer's open transaction in one partition; a negative coordinator epoch becomes 0."""
    from tidelog.clients.admin.transactions import AbortTransactionSpec

    epoch = max(0, coordinator_epoch)
    admin.abort_transaction(AbortTransactionSpec(partition, producer_id, producer_epoch, epoch))


def partitions_to_search(
    admin: Admin, topic: str | None, partition: int | None, broker: int | None
) -> list[PartitionKey]:
    if topic is not None and partition is not None:
        return [(topic, partition)]
    names = list(admin.list_topics(list_internal=True)) if topic is None else [topic]
    return [
        (description.name, found.partition)
        for description in admin.describe_topics(names).values()
        for found in description.partitions
        if broker is None or broker in found.replicas
    ]


def now_ms() -> int:
    return int(time.time() * 1000)


def print_table(header: tuple[str, ...], rows: list[tuple[str | int, ...]]) -> None:
    """Print columns as wide as their longest value, with a tab after each, or an object for each row."""
    if click.get_current_context().meta.get(OUTPUT) == "json":
        print_json([dict(zip(header, row, strict=True)) for row in rows])
        return
    lines = [header, *([str(value) for value in row] for row in rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(header))]
    for line in lines:
        click.echo("".join(f"{value:<{width}}\t" for value, width in zip(line, widths, strict=True)))
