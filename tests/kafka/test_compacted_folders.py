"""Logs that Kafka 3.9 compacted are served and compacted further by us, and handed back to Kafka 3.9.

Each side reads the same of what the other left: records, tombstones, transactions, over several segments.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.kafka.compacted import TOPICS, fill, is_cleaned, log_files, set_configs, set_ratio
from tests.kafka.servers import Kafka3, ZooKeeper
from tests.support.broker import Broker
from tests.support.contents import Contents, Partition, read_with_client, read_with_fetch
from tests.support.wait import eventually
from tidelog import Admin, NewTopic
from tidelog.metadata.embedded_tree import FILE_NAME

PARTITIONS: list[Partition] = [(topic, 0) for topic in TOPICS]
CLEANING = {"broker.id": "4", "log.cleaner.backoff.ms": "50", "log.retention.ms": "-1"}
NOT_CLEANING = {"broker.id": "4", "log.cleaner.enable": "false", "log.retention.ms": "-1"}

Values = dict[bytes | None, bytes | None]


def tidelog(*arguments: object) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tidelog", *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@dataclass(slots=True)
class Seen:
    """What a broker serves, all of it and what is committed."""

    everything: dict[Partition, Contents]
    committed: dict[Partition, Contents]

    @classmethod
    def of(cls, bootstrap: str) -> Seen:
        return cls(
            read_with_client(bootstrap, PARTITIONS), read_with_client(bootstrap, PARTITIONS, committed=True)
        )

    def last_values(self, topic: str) -> Values:
        """By key; one whose last value is a tombstone may be gone altogether."""
        last = {record.key: record.value for record in self.committed[topic, 0].records}
        return {key: value for key, value in last.items() if value is not None}

    def count(self, topic: str) -> int:
        return len(self.everything[topic, 0].records)


class Story:
    """Theirs, ours on their folder, theirs on ours, ours again: what each served as it went on."""

    def __init__(self, target: Path, *, kill: bool) -> None:
        self.target, self.data, self.kill = target, target / "broker" / "data", kill
        self.seen: dict[str, Seen] = {}
        self.segments: dict[str, list[str]] = {}
        self.warnings: list[str] = []
        self.broker = Broker(target / "broker", NOT_CLEANING)

    def run(self) -> None:
        self.by_kafka()
        tidelog("adopt", self.data)
        self.by_us()
        self.by_kafka_on_ours()
        (self.data / FILE_NAME).unlink()
        tidelog("adopt", self.data)
        with self.broker:
            self.see("we adopted it again", self.broker.bootstrap)

    def see(self, when: str, bootstrap: str) -> None:
        self.seen[when] = Seen.of(bootstrap)

    def end(self, server: Kafka3 | Broker) -> None:
        """Killed it is by leaving its `with`."""
        if not self.kill:
            server.terminate() if isinstance(server, Broker) else server.stop()

    def clean(self, bootstrap: str) -> None:
        set_ratio(bootstrap, "0.0")
        eventually(lambda: is_cleaned(self.data), "the logs are cleaned", 60.0, 0.2)
        set_ratio(bootstrap, "1.0")

    def by_kafka(self) -> None:
        zookeeper = ZooKeeper(self.target / "zookeeper-1")
        with zookeeper, Kafka3(self.target / "kafka-1", self.data, zookeeper, CLEANING) as kafka:
            with Admin(bootstrap_servers=kafka.bootstrap) as admin:
                for topic, configs in TOPICS.items():
                    admin.create_topics([NewTopic(topic, num_partitions=1, configs=configs)])
            fill(kafka.bootstrap, 0)
            self.see("Kafka filled it", kafka.bootstrap)
            self.clean(kafka.bootstrap)
            self.see("Kafka cleaned it", kafka.bootstrap)
            fill(kafka.bootstrap, 1)
            self.see("Kafka filled it again", kafka.bootstrap)
            self.end(kafka)

    def by_us(self) -> None:
        with self.broker:
            self.see("we adopted it", self.broker.bootstrap)
            set_configs(self.broker.bootstrap, TOPICS)  # no log folder tells of them
            self.broker.terminate()
        self.broker.settings |= {**CLEANING, "log.cleaner.enable": "true"}
        with self.broker:
            fill(self.broker.bootstrap, 2, in_transactions=False)
            self.see("we filled it", self.broker.bootstrap)
            self.clean(self.broker.bootstrap)
            self.see("we cleaned it", self.broker.bootstrap)
            self.segments = {topic: [path.name for path in log_files(self.data, topic)] for topic in TOPICS}
            self.end(self.broker)
        self.broker.settings |= NOT_CLEANING

    def by_kafka_on_ours(self) -> None:
        with ZooKeeper(self.target / "zookeeper-2") as zookeeper:
            tidelog("tree", "export", self.data, "--zookeeper", zookeeper.bootstrap)
            kafka = Kafka3(self.target / "kafka-2", self.data, zookeeper, CLEANING)
            kafka.awaited = frozenset(TOPICS)
            with kafka:
                self.see("Kafka took it over", kafka.bootstrap)
                fill(kafka.bootstrap, 3)
                self.see("Kafka filled ours", kafka.bootstrap)
                # Its cleaner joins segments whose indexes fit together, then needs an entry more for each.
                set_configs(kafka.bootstrap, {topic: {"segment.index.bytes": "4096"} for topic in TOPICS})
                self.clean(kafka.bootstrap)
                self.see("Kafka cleaned ours", kafka.bootstrap)
                self.end(kafka)
            self.warnings = kafka.warnings()


@pytest.fixture(scope="module", params=["stopped", "killed"])
def story(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    told = Story(tmp_path_factory.mktemp(request.param), kill=request.param == "killed")
    told.run()
    with told.broker:
        yield told


@pytest.mark.parametrize(
    ("left", "taken"),
    [
        ("Kafka filled it again", "we adopted it"),
        ("we cleaned it", "Kafka took it over"),
        ("Kafka cleaned ours", "we adopted it again"),
    ],
)
def test_the_next_broker_serves_what_the_last_one_did(story: Story, left: str, taken: str) -> None:
    assert story.seen[taken].everything == story.seen[left].everything
    assert story.seen[taken].committed == story.seen[left].committed


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize(
    ("filled", "cleaned"),
    [
        ("Kafka filled it", "Kafka cleaned it"),
        ("we filled it", "we cleaned it"),
        ("Kafka filled ours", "Kafka cleaned ours"),
    ],
)
def test_cleaning_leaves_the_last_value_of_every_key(
    story: Story, filled: str, cleaned: str, topic: str
) -> None:
    before, after = story.seen[filled], story.seen[cleaned]
    assert after.last_values(topic) == before.last_values(topic)
    assert after.count(topic) < before.count(topic) - 20
    assert after.everything[topic, 0].high == before.everything[topic, 0].high
    kept = set(after.everything[topic, 0].records)
    assert kept <= set(before.everything[topic, 0].records)


def test_there_was_more_than_one_segment_of_each(story: Story) -> None:
    assert all(len(names) > 1 for names in story.segments.values())


def test_aborted_records_are_hidden_from_readers_of_committed_ones(story: Story) -> None:
    adopted = story.seen["we adopted it"]
    assert len(adopted.committed["txn", 0].records) < adopted.count("txn")


def test_bare_fetches_show_the_same_as_the_client(story: Story) -> None:
    for partition, contents in story.seen["we adopted it again"].committed.items():
        assert read_with_fetch(story.broker.bootstrap, partition, committed=True).records == contents.records


def test_kafka_has_nothing_to_say_about_our_files(story: Story) -> None:
    of_logs = re.compile(r"kafka\.log\.|storage\.internals|LogLoader|Index|Snapshot|Cleaner", re.IGNORECASE)
    assert [line for line in story.warnings if of_logs.search(line)] == []
