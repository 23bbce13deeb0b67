"""`tidelog transactions`: what transactions there are, and an end for those that hang; as kafka-transactions.

A transaction hangs where a partition has it open and its coordinator knows nothing of it: readers of
committed records wait for it for ever.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from tidelog.cli.flags import (
    KafkaStyleCommand,
    KafkaStyleGroup,
    WrongUsage,
    admin_for,
    bootstrap_server,
    error_words,
    valued,
)
from tidelog.cli.output import output_option, print_json
from tidelog.clients.admin import Admin
from tidelog.clients.admin_transactions import (
    ANY_DURATION,
    ProducerState,
    TransactionAdmin,
    TransactionDescription,
)
from tidelog.errors import KafkaError, TransactionalIdNotFound
from tidelog.partitions import PartitionKey

NONE = "None"
BATCH = 500  # partitions asked about at a time
OUTPUT = "tidelog.output"

Open = Callable[[], Admin]


@click.group(
    cls=KafkaStyleGroup, no_args_is_help=False, context_settings={"help_option_names": ["-h", "--help"]}
)
@bootstrap_server
@valued("--command-config", "FILE", "A properties file with settings of the connection.")
@output_option
@click.version_option(None, "-v", "--version", package_name="tidelog", message="%(version)s")
@click.pass_context
def transactions(ctx: click.Context, bootstrap_server: str, command_config: str | None, output: str) -> None:
    """List and describe transactions and producers, and end transactions that hang."""
    ctx.obj = lambda: admin_for(bootstrap_server, command_config)
    ctx.meta[OUTPUT] = output


@contextmanager
def asking(what: str) -> Iterator[TransactionAdmin]:
    """A client of the cluster; where something fails, what it was for is said, and the tool ends with 1."""
    ctx = click.get_current_context()
    open_admin: Open = ctx.obj
    try:
        with open_admin() as admin:
            yield TransactionAdmin(admin)
    except KafkaError as error:
        click.echo(f"{what}: {error_words(error)}", err=True)
        ctx.exit(1)
    except (OSError, ValueError) as error:
        click.echo(f"{what}: {error}", err=True)
        ctx.exit(1)


@transactions.command("list", cls=KafkaStyleCommand)
@valued("--duration-filter", "MS", "Only transactions that are open for longer; all where below 0.", int)
@valued("--transactional-id-pattern", "PATTERN", "Only ids that match a regular expression as a whole.")
def list_transactions(duration_filter: int | None, transactional_id_pattern: str | None) -> None:
    """List transactional ids with their coordinators, producer ids and states."""
    with asking("Failed to list transactions") as admin:
        listed = admin.list_transactions(
            duration_ms=ANY_DURATION if duration_filter is None else duration_filter,
            pattern=transactional_id_pattern,
        )
    print_table(
        ("TransactionalId", "Coordinator", "ProducerId", "TransactionState"),
        [
            (listing.transactional_id, listing.coordinator, listing.producer_id, listing.state)
            for listing in sorted(listed, key=lambda listing: listing.transactional_id)
        ],
    )


@transactions.command("describe", cls=KafkaStyleCommand)
@click.option("--transactional-id", metavar="ID", required=True, help="The transactional id; required.")
def describe(transactional_id: str) -> None:
    """Describe a transactional id: its producer, its state, and the partitions of its open transaction."""
    with asking(f"Failed to describe transaction state of transactional-id `{transactional_id}`") as admin:
        described = admin.describe([transactional_id])[transactional_id]
        if isinstance(described, KafkaError):
            raise described
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
                described.timeout_ms,
                NONE if described.start_ms is None else described.start_ms,
                NONE if described.start_ms is None else now_ms() - described.start_ms,
                ",".join(f"{topic}-{index}" for topic, index in sorted(described.partitions)),
            )
        ],
    )


@transactions.command("describe-producers", cls=KafkaStyleCommand)
@click.option("--topic", metavar="NAME", required=True, help="The topic; required.")
@click.option("--partition", metavar="N", type=int, required=True, help="The partition; required.")
@valued("--broker-id", "ID", "Ask this broker's replica; the leader where it is not given.", int)
def describe_producers(topic: str, partition: int, broker_id: int | None) -> None:
    """Describe the producers that a partition remembers, with the starts of their open transactions."""
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
                NONE if producer.transaction_start is None else producer.transaction_start,
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
    """Abort a transaction in one partition, although no coordinator asks for it."""
    if start_offset is None:
        if producer_id is None:
            raise WrongUsage(
                "expected --start-offset, or --producer-id, --producer-epoch and --coordinator-epoch", ctx
            )
        if producer_epoch is None or coordinator_epoch is None:
            raise WrongUsage("--producer-id needs --producer-epoch and --coordinator-epoch", ctx)
        with asking(f"Failed to abort transaction of producer {producer_id}") as admin:
            admin.abort((topic, partition), producer_id, producer_epoch, max(0, coordinator_epoch))
        return
    with asking(f"Failed to abort transaction at offset {start_offset} of {topic}-{partition}") as admin:
        for producer in producers_of(admin, (topic, partition)):
            if producer.transaction_start == start_offset:
                break
        else:
            raise ValueError(
                f"Could not find any open transactions starting at offset {start_offset} on partition "
                f"{topic}-{partition}"
            )
        epoch = max(0, producer.coordinator_epoch)
        admin.abort((topic, partition), producer.producer_id, producer.producer_epoch, epoch)


@transactions.command("find-hanging", cls=KafkaStyleCommand)
@valued("--broker-id", "ID", "Search the partitions of one broker.", int)
@valued("--max-transaction-timeout", "MIN", "Only what is older than so many minutes; 15.", int)
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
    """Find transactions that partitions have open and no coordinator knows of."""
    if partition is not None and topic is None:
        raise WrongUsage("--partition needs --topic", ctx)
    if topic is None and broker_id is None:
        raise WrongUsage(
            "find-hanging needs --topic or --broker-id, so that it need not search everything", ctx
        )
    minutes = 15 if max_transaction_timeout is None else max_transaction_timeout
    open_admin: Open = ctx.obj
    with asking("Failed to find hanging transactions") as admin:
        with open_admin() as topics:
            partitions = partitions_to_search(topics, topic, partition, broker_id)
        old = open_since(admin, partitions, broker_id, now_ms() - minutes * 60_000)
        known = known_partitions(admin, old) if old else {}
        hanging = [found for found in old if found[0] not in known[found[1].producer_id]]
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
                name,
                index,
                producer.producer_id,
                producer.producer_epoch,
                producer.coordinator_epoch,
                -1 if producer.transaction_start is None else producer.transaction_start,
                producer.last_timestamp,
                (now_ms() - producer.last_timestamp) // 60_000,
            )
            for (name, index), producer in hanging
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
    """Abort the open transaction of a transactional id and fence its producer."""
    with asking(f"Failed to force terminate transactionalId `{transactional_id}`") as admin:
        admin.terminate(transactional_id)


def producers_of(
    admin: TransactionAdmin, partition: PartitionKey, broker: int | None = None
) -> list[ProducerState]:
    found = admin.producers([partition], broker)[partition]
    if isinstance(found, KafkaError):
        raise found
    return sorted(found, key=lambda producer: producer.producer_id)


def partitions_to_search(
    admin: Admin, topic: str | None, partition: int | None, broker: int | None
) -> list[PartitionKey]:
    if topic is not None and partition is not None:
        return [(topic, partition)]
    names = [listing.name for listing in admin.list_topics()] if topic is None else [topic]
    return [
        (description.name, found.index)
        for description in admin.describe_topics(names)
        for found in description.partitions
        if broker is None or broker in found.replicas
    ]


def open_since(
    admin: TransactionAdmin, partitions: list[PartitionKey], broker: int | None, before_ms: int
) -> list[tuple[PartitionKey, ProducerState]]:
    """Open transactions whose producer wrote last before a time."""
    old: list[tuple[PartitionKey, ProducerState]] = []
    for start in range(0, len(partitions), BATCH):
        for partition, producers in sorted(
            admin.producers(partitions[start : start + BATCH], broker).items()
        ):
            if isinstance(producers, KafkaError):
                raise producers
            old += [
                (partition, producer)
                for producer in producers
                if producer.transaction_start is not None and producer.last_timestamp < before_ms
            ]
    return old


def known_partitions(
    admin: TransactionAdmin, transactions: list[tuple[PartitionKey, ProducerState]]
) -> dict[int, list[PartitionKey]]:
    """The partitions that the coordinators have in the open transactions of each of the producers."""
    producer_ids = {producer.producer_id for _, producer in transactions}
    known: dict[int, list[PartitionKey]] = {producer_id: [] for producer_id in producer_ids}
    ids = {
        listing.transactional_id: listing.producer_id
        for listing in admin.list_transactions(producer_ids=sorted(producer_ids))
        if listing.producer_id in producer_ids
    }
    for transactional_id, described in admin.describe(ids).items():
        if isinstance(described, TransactionDescription):
            known[ids[transactional_id]] += described.partitions
        elif not isinstance(described, TransactionalIdNotFound):
            raise described
    return known


def now_ms() -> int:
    return int(time.time() * 1000)


def print_table(header: tuple[str, ...], rows: list[tuple[str | int, ...]]) -> None:
    """Columns as wide as their longest value, each with a tab behind it; or an object for each line."""
    if click.get_current_context().meta.get(OUTPUT) == "json":
        print_json([dict(zip(header, row, strict=True)) for row in rows])
        return
    lines = [header, *([str(value) for value in row] for row in rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(header))]
    for line in lines:
        click.echo("".join(f"{value:<{width}}\t" for value, width in zip(line, widths, strict=True)))
