"""`tidelog transactions` prints what kafka-transactions prints and ends with the same codes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from tests.support.fixtures import given_broker
from tests.support.group_members import Members
from tests.support.own_cluster import any_broker
from tests.support.routing import routed_connection
from tests.support.wait import eventually
from tests.transactions.by_hand import hanging_transaction
from tests.transactions.reading import read
from tidelog.cli.main import main
from tidelog.clients.admin import ProducerState, Results, TransactionDescription, TransactionListing
from tidelog.clients.admin.transactions import find_hanging_transactions
from tidelog.errors import TransactionalIdNotFound

NewName = Callable[[str], str]
Tool = Callable[..., Result]


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    given = given_broker()
    if given:
        yield given
        return
    settings = {"transaction.state.log.num.partitions": "5", "offsets.topic.num.partitions": "5"}
    with any_broker(tmp_path_factory.mktemp("broker"), settings) as broker:
        yield broker.bootstrap


@pytest.fixture
def tool(bootstrap: str) -> Tool:
    def run(*arguments: str) -> Result:
        return CliRunner().invoke(main, ["transactions", "--bootstrap-server", bootstrap, *arguments])

    return run


@pytest.fixture
def members(bootstrap: str) -> Members:
    return Members(bootstrap)


def table(printed: str) -> list[dict[str, str]]:
    """The lines by the names of their columns."""
    head, *lines = [[cell.strip() for cell in line.split("\t")[:-1]] for line in printed.splitlines()]
    return [dict(zip(head, line, strict=True)) for line in lines]


@contextmanager
def transaction(bootstrap: str, transactional_id: str, topics: Sequence[str]) -> Iterator[Producer]:
    """A producer with an open transaction that has a record in partition 0 of each topic."""
    settings = {"bootstrap.servers": bootstrap, "transactional.id": transactional_id}
    producer = Producer({**settings, "transaction.timeout.ms": 300_000})
    producer.init_transactions(30)
    producer.begin_transaction()
    for topic in topics:
        producer.produce(topic, b"record", partition=0)
    assert producer.flush(30) == 0
    yield producer


def test_transactions_are_listed_and_described(
    tool: Tool, bootstrap: str, members: Members, new_name: NewName
) -> None:
    one, two, name = members.topic(new_name("one"), 1), members.topic(new_name("two"), 1), new_name("txn")
    with transaction(bootstrap, name, [one, two]) as producer:
        (listed,) = [row for row in table(tool("list").stdout) if row["TransactionalId"] == name]
        assert list(listed) == ["TransactionalId", "Coordinator", "ProducerId", "TransactionState"]
        assert listed["TransactionState"] == "Ongoing"
        described = tool("describe", "--transactional-id", name)
        assert described.exit_code == 0
        (row,) = table(described.stdout)
        partitions = ",".join(sorted([f"{one}-0", f"{two}-0"]))
        assert (row["TransactionState"], row["TopicPartitions"]) == ("Ongoing", partitions)
        assert row["TransactionTimeoutMs"] == "300000"
        assert (row["ProducerId"], row["CoordinatorId"]) == (listed["ProducerId"], listed["Coordinator"])
        assert abs(int(row["CurrentTransactionStartTimeMs"]) - time.time() * 1000) < 60_000
        assert 0 <= int(row["TransactionDurationMs"]) < 60_000
        producer.commit_transaction(30)

    def complete() -> bool:
        (row,) = table(tool("describe", "--transactional-id", name).stdout)
        return (row["TransactionState"], row["TopicPartitions"]) == ("CompleteCommit", "")

    eventually(complete, "the transaction is complete")


@pytest.mark.needs("ListTransactions v2")
def test_transactions_are_chosen_by_duration_and_pattern(
    tool: Tool, bootstrap: str, members: Members, new_name: NewName
) -> None:
    topic, prefix = members.topic(new_name("chosen"), 1), new_name("txn")
    with (
        transaction(bootstrap, f"{prefix}-a", [topic]) as one,
        transaction(bootstrap, f"{prefix}-b", [topic]) as two,
    ):

        def names(*arguments: str) -> list[str]:
            rows = table(tool("list", *arguments).stdout)
            return [row["TransactionalId"] for row in rows if row["TransactionalId"].startswith(prefix)]

        assert names("--transactional-id-pattern", f"{prefix}-.*") == [f"{prefix}-a", f"{prefix}-b"]
        assert names("--transactional-id-pattern", f"{prefix}-[ax]") == [f"{prefix}-a"]
        assert names("--transactional-id-pattern", prefix) == []
        assert names("--duration-filter", "3600000") == []
        assert names("--duration-filter", "-1") == [f"{prefix}-a", f"{prefix}-b"]
        assert tool("list", "--transactional-id-pattern", "(").exit_code == 1
        one.abort_transaction(30)
        two.abort_transaction(30)


def test_the_producers_of_a_partition_are_described(
    tool: Tool, bootstrap: str, members: Members, new_name: NewName
) -> None:
    topic = members.topic(new_name("producers"), 1, records=0)
    with transaction(bootstrap, new_name("txn"), [topic]) as producer:
        where = ("describe-producers", "--topic", topic, "--partition", "0")
        (row,) = table(tool(*where).stdout)
        assert list(row) == [
            "ProducerId",
            "ProducerEpoch",
            "LatestCoordinatorEpoch",
            "LastSequence",
            "LastTimestamp",
            "CurrentTransactionStartOffset",
        ]
        assert (row["LatestCoordinatorEpoch"], row["CurrentTransactionStartOffset"]) == ("-1", "0")
        assert row["LastSequence"] == "0"
        producer.commit_transaction(30)
        eventually(
            lambda: table(tool(*where).stdout)[0]["CurrentTransactionStartOffset"] == "None",
            "the transaction has ended in the partition",
        )
    missing = tool("describe-producers", "--topic", topic, "--partition", "7")
    assert (missing.exit_code, missing.stdout) == (1, "")
    assert f"Failed to describe producers for partition {topic}-7 on leader: " in missing.stderr


def committed_records(bootstrap: str, topic: str) -> int:
    """How far readers of committed records get."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "unused", "isolation.level": "read_committed"}
    )
    try:
        # The end that the broker gives such readers is the last stable offset.
        return consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)[1]
    finally:
        consumer.close()


def test_a_transaction_is_aborted_in_one_partition_by_its_start(
    tool: Tool, bootstrap: str, members: Members, new_name: NewName
) -> None:
    topic = members.topic(new_name("aborted"), 1, records=3)
    with transaction(bootstrap, new_name("txn"), [topic]):
        assert committed_records(bootstrap, topic) == 3
        where = ("abort", "--topic", topic, "--partition", "0")
        wrong = tool(*where, "--start-offset", "2")
        assert (wrong.exit_code, wrong.stdout) == (1, "")
        assert f"any open transactions starting at offset 2 on partition {topic}-0" in wrong.stderr
        done = tool(*where, "--start-offset", "3")
        assert (done.exit_code, done.stdout, done.stderr) == (0, "", "")
        assert committed_records(bootstrap, topic) == 5


def test_a_transaction_is_aborted_by_its_producer(
    tool: Tool, bootstrap: str, members: Members, new_name: NewName
) -> None:
    topic = members.topic(new_name("aborted"), 1)
    with transaction(bootstrap, new_name("txn"), [topic]):
        (row,) = table(tool("describe-producers", "--topic", topic, "--partition", "0").stdout)
        producer = ("--producer-id", row["ProducerId"], "--producer-epoch", row["ProducerEpoch"])
        where = ("abort", "--topic", topic, "--partition", "0")
        assert tool(*where, *producer, "--coordinator-epoch", "-1").exit_code == 0
        assert committed_records(bootstrap, topic) == 2


def test_a_transactional_id_is_terminated_and_its_producer_fenced(
    tool: Tool, bootstrap: str, members: Members, new_name: NewName
) -> None:
    topic, name = members.topic(new_name("fenced"), 1), new_name("txn")
    with transaction(bootstrap, name, [topic]) as producer:
        done = tool("forceTerminateTransaction", "--transactionalId", name)
        assert (done.exit_code, done.stdout, done.stderr) == (0, "", "")
        eventually(lambda: committed_records(bootstrap, topic) == 2, "the transaction has ended")
        with pytest.raises(KafkaException) as fenced:
            producer.commit_transaction(30)
        assert fenced.value.args[0].fatal()


def test_open_transactions_with_a_coordinator_do_not_hang(
    tool: Tool, bootstrap: str, members: Members, new_name: NewName
) -> None:
    topic = members.topic(new_name("open"), 2)
    with transaction(bootstrap, new_name("txn"), [topic]) as producer:
        for scope in (("--topic", topic), ("--topic", topic, "--partition", "0")):
            found = tool("find-hanging", *scope, "--max-transaction-timeout", "0")
            assert found.exit_code == 0
            assert found.stdout.split() == [
                "Topic",
                "Partition",
                "ProducerId",
                "ProducerEpoch",
                "CoordinatorEpoch",
                "StartOffset",
                "LastTimestamp",
                "Duration(min)",
            ]
        producer.abort_transaction(30)


class Producers:
    """What a cluster says about the producers 1 to 4 of partition t-0, without one."""

    async def describe_producers(self, partitions: list[tuple[str, int]], **_: object) -> object:
        states = [ProducerState(number, 0, 5, 1000 * number, 0, 10 * number) for number in (1, 2, 3, 4)]
        return {partition: [*states, ProducerState(5, 0, 5, 0, 0, None)] for partition in partitions}

    async def list_transactions(
        self, *, producer_ids: Sequence[int], timeout: float | None
    ) -> list[TransactionListing]:
        assert list(producer_ids) == [1, 2, 3]
        return [TransactionListing(f"txn-{number}", number, "Ongoing", 0) for number in (1, 2)]

    async def describe_transactions(
        self, ids: Sequence[str], *, partial: bool, timeout: float | None
    ) -> object:
        assert partial
        known = TransactionDescription("txn-1", 0, "Ongoing", 1, 0, 60_000, 0, [("t", 0)])
        return Results({"txn-1": known, "txn-2": TransactionalIdNotFound()})


def test_a_transaction_hangs_where_no_coordinator_has_its_partition() -> None:
    admin: Any = Producers()
    found = asyncio.run(find_hanging_transactions(admin, [("t", 0)], before_ms=4000))
    assert [each.producer.producer_id for each in found] == [2, 3]


def test_a_hanging_transaction_is_found_and_aborted(
    tool: Tool, bootstrap: str, members: Members, new_name: NewName
) -> None:
    """A record that came after the end of its transaction stops read_committed consumers until the abort."""
    topic = members.topic(new_name("late"), 1)
    with routed_connection(bootstrap) as connection:
        start = hanging_transaction(connection, bootstrap, topic, new_name("hangs"))
    after = Producer({"bootstrap.servers": bootstrap})
    after.produce(topic, b"after", partition=0)
    assert after.flush(30) == 0
    assert read(bootstrap, topic) == [[]]
    (row,) = table(tool("find-hanging", "--topic", topic).stdout)
    assert (row["Topic"], row["Partition"], row["StartOffset"]) == (topic, "0", str(start))
    aborted = tool("abort", "--topic", topic, "--partition", "0", "--start-offset", row["StartOffset"])
    assert (aborted.exit_code, aborted.stderr) == (0, "")
    assert table(tool("find-hanging", "--topic", topic).stdout) == []
    eventually(lambda: read(bootstrap, topic) == [[b"after"]], "consumers go on")


def test_an_id_that_is_not_there_is_told(tool: Tool, new_name: NewName) -> None:
    missing = tool("describe", "--transactional-id", new_name("nowhere"))
    assert (missing.exit_code, missing.stdout) == (1, "")
    assert "Failed to describe transaction state of transactional-id `nowhere-" in missing.stderr


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "Missing command"),
        (["bogus"], "bogus"),
        (["describe"], "--transactional-id"),
        (["describe-producers", "--topic", "t"], "--partition"),
        (["describe-producers", "--topic", "t", "--partition", "x"], "'x'"),
        (["abort", "--topic", "t", "--partition", "0"], "expected --start-offset, or --producer-id"),
        (["abort", "--topic", "t", "--partition", "0", "--producer-id", "1"], "needs --producer-epoch"),
        (["find-hanging"], "needs --topic or --broker-id"),
        (["find-hanging", "--broker-id", "1", "--partition", "0"], "--partition needs --topic"),
        (["forceTerminateTransaction"], "--transactionalId"),
    ],
)
def test_wrong_flags_end_with_1_and_a_reason_before_anything_is_asked(
    arguments: list[str], reason: str
) -> None:
    refused = CliRunner().invoke(main, ["transactions", "--bootstrap-server", "nowhere:1", *arguments])
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert reason in refused.stderr


def test_the_broker_must_be_there() -> None:
    nobody = CliRunner().invoke(main, ["transactions", "--bootstrap-server", "127.0.0.1:1", "list"])
    assert (nobody.exit_code, nobody.stdout) == (1, "")
    assert "Failed to list transactions: cannot connect to 127.0.0.1:1" in nobody.stderr
