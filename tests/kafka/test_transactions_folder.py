"""Transactions of our broker: Kafka decodes their records, and Kafka 3.9 on our folder ends what we
left: what was prepared is committed, what is open is aborted in time. And the other way round."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.kafka.dumps import complaints, dump, partition_files
from tests.kafka.servers import Kafka3, ZooKeeper
from tests.support.broker import Broker
from tests.support.raw import RawConnection
from tests.support.wait import eventually
from tests.transactions.by_hand import described, end, open_transaction, write_prepared
from tests.transactions.reading import read
from tidelog import Admin, NewTopic
from tidelog.coordinator.transaction.state import State
from tidelog.metadata.embedded_tree import FILE_NAME

KAFKAS = ("kafka3", "kafka4")
SOON = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}
# One partition for the ends of other people's producers, one for each transaction that is left.
ENDED, PREPARED, OPEN, THEIRS = range(4)


def tidelog(*arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tidelog", *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def ended(bootstrap: str, name: str) -> None:
    """One transaction that is committed and one that is aborted."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
    producer.init_transactions(60)
    for commit in (True, False):
        producer.begin_transaction()
        producer.produce("t", f"{name} {'committed' if commit else 'aborted'}".encode(), partition=ENDED)
        if commit:
            producer.commit_transaction(60)
        else:
            producer.abort_transaction(60)


def state(bootstrap: str, transactional_id: str) -> str:
    with RawConnection(bootstrap) as connection:
        return described(connection, transactional_id).transaction_state


class Story:
    """Ours, killed in the middle; Kafka 3.9 on our folder; ours again."""

    def __init__(self, target: Path) -> None:
        self.broker = Broker(
            target / "broker", {"broker.id": "4", "transaction.state.log.num.partitions": "3"}
        )
        self.zookeeper = ZooKeeper(target / "zookeeper")
        self.kafka = Kafka3(target / "kafka", self.broker.data, self.zookeeper, SOON)
        self.kafka.awaited = frozenset({"t"})
        with self.broker:
            self._on_ours()
        self.files = [path for path in partition_files(self.broker.data, ".log") if "__trans" in str(path)]
        self.dumped = {kind: dump(kind, self.files, "--transaction-log-decoder") for kind in KAFKAS}
        self.dumped_by_us = tidelog(
            "dump-log", "--files", ",".join(map(str, self.files)), "--transaction-log-decoder"
        )
        with self.zookeeper:
            tidelog("tree", "export", self.broker.data, "--zookeeper", self.zookeeper.bootstrap)
            with self.kafka:
                self._on_theirs()
        (self.broker.data / FILE_NAME).unlink()
        tidelog("adopt", self.broker.data)
        self.broker.settings |= SOON
        with self.broker:
            self.theirs_at_first = eventually(
                lambda: state(self.broker.bootstrap, "theirs"), "the coordinator has loaded its records"
            )
            eventually(
                lambda: state(self.broker.bootstrap, "theirs") == "CompleteAbort", "ours ends it", 60.0
            )
            ended(self.broker.bootstrap, "ours")
            self.ours_again = read(self.broker.bootstrap, "t", 4)

    def _on_ours(self) -> None:
        bootstrap = self.broker.bootstrap
        with Admin(bootstrap_servers=bootstrap) as admin:
            admin.create_topics([NewTopic("t", num_partitions=4)])
        ended(bootstrap, "ours")
        with RawConnection(bootstrap, client_id="__admin_client") as connection:
            # The newer protocol leaves records that Kafka 3.9 does not write itself.
            producer = open_transaction(connection, "t", transactional_id="new", index=ENDED)
            assert end(connection, *producer, commit=True, transactional_id="new").error_code == 0
            open_transaction(connection, "t", transactional_id="prepared", index=PREPARED)
            open_transaction(connection, "t", transactional_id="open", index=OPEN, timeout_ms=20_000)
            write_prepared(connection, "prepared", State.PREPARE_COMMIT)

    def _on_theirs(self) -> None:
        bootstrap = self.kafka.bootstrap
        for name, wanted in (("prepared", "CompleteCommit"), ("open", "CompleteAbort")):
            eventually(lambda name=name, wanted=wanted: state(bootstrap, name) == wanted, name, 60.0)
        ended(bootstrap, "ours")
        self.theirs = read(bootstrap, "t", 4)
        with RawConnection(bootstrap) as connection:
            open_transaction(connection, "t", transactional_id="theirs", index=THEIRS, timeout_ms=30_000)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    told = Story(tmp_path_factory.mktemp("transactions"))
    yield told
    told.broker.close()


def decoded(printed: str) -> list[str]:
    """Key and value of every record of a dump, with partitions in the order of their numbers."""
    return [
        re.sub(r"(?<=partitions=\[)[^\]]*", lambda found: ",".join(sorted(found[0].split(","))), line)
        for line in re.findall(r"key: (.*)$", printed, re.MULTILINE)
    ]


@pytest.mark.parametrize("kind", KAFKAS)
def test_kafka_decodes_our_records(story: Story, kind: str) -> None:
    assert complaints(story.dumped[kind]) == []
    records = decoded(story.dumped[kind])
    assert any("prepared" in record for record in records)
    assert not [record for record in records if "unknown" in record or "unreadable" in record]


def test_our_dump_decodes_what_kafka_4_decodes(story: Story) -> None:
    assert decoded(story.dumped_by_us) == decoded(story.dumped["kafka4"])


def test_kafka_commits_what_was_prepared_and_aborts_what_was_open(story: Story) -> None:
    assert story.theirs == [[b"ours committed", b"v", b"ours committed"], [b"v"], [], []]


def test_kafka_has_nothing_to_say_about_our_records(story: Story) -> None:
    of_transactions = re.compile(r"TransactionState|TransactionCoordinator|transaction_state", re.IGNORECASE)
    found = [line for line in story.kafka.warnings() if of_transactions.search(line)]
    assert found == [], json.dumps(found)


def test_we_take_over_what_kafka_left_open_and_abort_it_in_time(story: Story) -> None:
    assert story.theirs_at_first == "Ongoing"
    assert story.ours_again == [
        [b"ours committed", b"v", b"ours committed", b"ours committed"],
        [b"v"],
        [],
        [],
    ]
