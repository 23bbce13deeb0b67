"""Our tool for transactions and Kafka's own print the same, about our broker as about Kafka 4.3."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer

from tests.kafka.jars import run_tool
from tests.kafka.servers import Kafka4
from tests.support.broker import Broker
from tests.support.fixtures import new_name
from tests.support.group_members import Members
from tidelog.cli.main import main

__all__ = ["new_name"]

NewName = Callable[[str], str]
THEIRS = "org.apache.kafka.tools.TransactionsCommand"
# How long a transaction is open is another time for whoever asks second.
_DURATION = re.compile(r"(?<=\t)\d{1,6} *(?=\t[^\t]*\t$)")


class Both:
    """One broker and both tools."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.members = Members(bootstrap)

    def transaction(self, name: str, *topics: str) -> Producer:
        """A producer with an open transaction."""
        settings = {"bootstrap.servers": self.bootstrap, "transactional.id": name}
        # Some are left in the middle of their transaction; what they say when the broker is gone is noise.
        producer = Producer({**settings, "log_level": 0})
        producer.init_transactions(30)
        producer.begin_transaction()
        for topic in topics:
            producer.produce(topic, b"record", partition=0)
        assert producer.flush(30) == 0
        return producer

    def same(self, *arguments: str) -> list[str]:
        """The lines that ours printed, after Kafka's were found to be the same but for durations."""
        where = ("--bootstrap-server", self.bootstrap)
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(run_tool, "kafka4", THEIRS, *where, *arguments)
            ours = CliRunner().invoke(main, ["transactions", *where, *arguments])
            theirs = running.result()
        assert comparable(ours.stdout) == comparable(theirs.stdout), theirs.stderr
        assert ours.exit_code == theirs.returncode
        return ours.stdout.splitlines()


def comparable(printed: str) -> list[str]:
    """Lines and lists of partitions in any order: Kafka's are those of a hash map."""
    lines = [_DURATION.sub("DURATION", line) for line in printed.splitlines()]
    return sorted(
        re.sub(r"\S+,\S+", lambda match: ",".join(sorted(match[0].split(","))), line) for line in lines
    )


@pytest.fixture(scope="module", params=["tidelog", "kafka"])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    target = tmp_path_factory.mktemp("transaction-tools")
    with ExitStack() as stack:
        if request.param == "kafka":
            kafka = Kafka4(target / "kafka", target / "data")
            kafka.format()
            yield Both(stack.enter_context(kafka).bootstrap)
        else:
            yield Both(stack.enter_context(Broker(target / "broker", {"broker.id": "1"})).bootstrap)


def test_transactions_and_producers_are_described_alike(both: Both, new_name: NewName) -> None:
    topic, other = both.members.topic(new_name("orders"), 1), both.members.topic(new_name("audit"), 1)
    done = both.transaction("done", topic)
    done.commit_transaction(30)
    both.transaction("open", topic, other)
    assert len(both.same("list")) == 3
    assert len(both.same("list", "--transactional-id-pattern", "op.*")) == 2
    assert len(both.same("list", "--duration-filter", "3600000")) == 1
    assert both.same("list", "--transactional-id-pattern", "(") == []
    assert len(both.same("describe", "--transactional-id", "open")) == 2
    both.same("describe", "--transactional-id", "done")
    assert both.same("describe", "--transactional-id", "nowhere") == []
    where = ("--topic", topic, "--partition", "0")
    assert len(both.same("describe-producers", *where)) == 3
    both.same("describe-producers", *where, "--broker-id", "1")
    assert len(both.same("find-hanging", "--topic", topic, "--max-transaction-timeout", "0")) == 1
    both.same("find-hanging", "--broker-id", "1")
    for wrong in (
        ["find-hanging"],
        ["abort", *where],
        ["abort", *where, "--start-offset", "99"],
        ["describe"],
    ):
        assert both.same(*wrong) == []


def test_kafkas_tool_ends_transactions_as_ours_does(both: Both, new_name: NewName) -> None:
    topic = both.members.topic(new_name("ended"), 1)
    where = ("--bootstrap-server", both.bootstrap)
    for name in (new_name("txn"), new_name("txn")):
        both.transaction(name, topic)
        done = run_tool("kafka4", THEIRS, *where, "forceTerminateTransaction", "--transactionalId", name)
        assert done.returncode == 0, done.stderr
    both.transaction(new_name("txn"), topic)
    (start,) = [
        line.split()[-1]
        for line in both.same("describe-producers", "--topic", topic, "--partition", "0")
        if line.split()[-1].isdigit()
    ]
    abort = ("abort", "--topic", topic, "--partition", "0", "--start-offset", start)
    done = run_tool("kafka4", THEIRS, *where, *abort)
    assert done.returncode == 0, done.stderr
    left = both.same("describe-producers", "--topic", topic, "--partition", "0")
    assert not any(line.split()[-1].isdigit() for line in left)
