"""ElasticCluster: a replicated cluster that brokers join and leave while partitions move between them."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from click.testing import CliRunner, Result

from tests.chaos.faulty_cluster import EXPLAINED
from tests.faults.client import surprises
from tests.replication.replicas import differences, partition_folders
from tests.support.broker import Broker
from tests.support.cluster import ClusterOfBrokers
from tests.support.wait import eventually, patience
from tidelog import Admin, NewTopic
from tidelog.cli.main import main
from tidelog.clients.admin import ElectionType, TopicPartitionInfo
from tidelog.errors import KafkaError, UnknownTopicOrPartition

T = TypeVar("T")
PartitionKey = tuple[str, int]
Replicas = Mapping[PartitionKey, Sequence[int]]

SETTINGS = {
    "zookeeper.session.timeout.ms": "3000",
    "offsets.topic.num.partitions": "3",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.num.partitions": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "replica.lag.time.max.ms": "2000",
    "group.min.session.timeout.ms": "500",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "300",
    "auto.create.topics.enable": "false",
    "auto.leader.rebalance.enable": "false",
    "log.segment.delete.delay.ms": "200",
    "transaction.two.phase.commit.enable": "true",
}
COMPACTED = ("__consumer_offsets", "__transaction_state")
"""Topics whose replicas differ, as each broker cleans its own."""

ENDED = "The partition is not being reassigned."
"""The tool's error of a move that it wanted to cancel."""


class ElasticCluster(ClusterOfBrokers):
    """Each broker has two log dirs. Implements `Running` of the stories of groups and transactions."""

    has_two_phase = True

    def __init__(self, folder: Path, brokers: int = 3, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(folder, brokers, {**SETTINGS, **(settings or {})})
        self.explained: tuple[str, ...] = EXPLAINED

    def add(self, broker_id: int, settings: Mapping[str, str] | None = None) -> Broker:
        log_dirs = ",".join(map(str, self.log_dirs(broker_id)))
        return super().add(broker_id, {"log.dirs": log_dirs, **(settings or {})})

    def log_dirs(self, broker_id: int) -> tuple[Path, Path]:
        folder = self.folder / f"broker-{broker_id}"
        return folder / "a", folder / "b"

    # --- Running

    def kill(self) -> None:
        self.restart(kill=True)

    def restart(self, *, kill: bool) -> None:
        self[self.controller].restart(kill=kill)

    def pause(self) -> None:
        self.running[0].process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.running[0].process.send_signal(signal.SIGCONT)

    def surprises(self) -> list[str]:
        """Errors in the logs that no fault explains."""
        return [
            f"{file.parent.name}: {line}"
            for file in sorted(self.folder.glob("broker-*/broker-*.log"))
            for line in surprises(file.read_text(errors="replace"), self.explained)
        ]

    # --- topics

    def create(self, topic: str, *replicas: Sequence[int], **configs: str) -> None:
        named = {name.replace("_", "."): value for name, value in configs.items()}
        new = NewTopic(topic, replica_assignments=dict(enumerate(replicas)), configs=named)
        self.ask(lambda admin: admin.create_topics([new]))
        self.await_in_sync([topic])

    def ask(self, question: Callable[[Admin], T]) -> T:
        with Admin(bootstrap_servers=self.bootstrap, client_id="elastic") as admin:
            return question(admin)

    def partitions(self, topics: Collection[str] | None = None) -> dict[PartitionKey, TopicPartitionInfo]:
        """What brokers say of all partitions, or of those of these topics."""

        def described(admin: Admin) -> dict[PartitionKey, TopicPartitionInfo]:
            found = admin.describe_topics(admin.list_topics(list_internal=True) if topics is None else topics)
            return {(name, one.partition): one for name, topic in found.items() for one in topic.partitions}

        return self.ask(described)

    def leader(self, topic: str, partition: int = 0) -> int | None:
        return self.partitions([topic])[topic, partition].leader

    def await_leader(self, leader: int | None, topic: str, partition: int = 0) -> None:
        """Wait until brokers name the leader. One that has just started may not know the topic yet."""

        def is_led() -> bool:
            try:
                return self.leader(topic, partition) == leader
            except UnknownTopicOrPartition:
                return False

        eventually(
            is_led,
            f"broker {leader} leads {topic}-{partition}",
            patience(30.0),
            0.05,
        )

    def isr(self, topic: str, partition: int = 0) -> list[int]:
        return sorted(self.partitions([topic])[topic, partition].isr)

    def await_isr(self, isr: Collection[int], topic: str, partition: int = 0) -> None:
        eventually(
            lambda: self.isr(topic, partition) == sorted(isr),
            f"the ISR of {topic}-{partition} is {sorted(isr)}",
            patience(30.0),
            0.05,
        )

    def await_in_sync(self, topics: Collection[str] | None = None) -> None:
        def lagging() -> list[str]:
            try:
                found = self.partitions(topics)
            except KafkaError as error:
                return [str(error)]
            return [
                f"{name}-{index}: {one.isr} of {one.replicas}, led by {one.leader}"
                for (name, index), one in found.items()
                if set(one.isr) != set(one.replicas) or one.leader is None
            ]

        try:
            eventually(lambda: not lagging(), "every replica is in sync", patience(60.0), 0.1)
        except AssertionError as error:
            error.add_note(str(lagging()))
            raise

    # --- moves and elections

    def tool(self, name: str, *arguments: str) -> Result:
        return CliRunner().invoke(main, [name, "--bootstrap-server", self.bootstrap, *arguments])

    def replaced(self, old: int, new: int) -> Replicas:
        """The replicas of every partition, with a new broker in the place of an old one."""
        return {
            key: [new if replica == old else replica for replica in one.replicas]
            for key, one in self.partitions().items()
            if old in one.replicas
        }

    def plan(self, wanted: Replicas, log_dirs: Mapping[int, Path] | None = None) -> str:
        """The file of a reassignment; `log_dirs` has the folders of the replicas on some brokers."""
        entries = [
            {
                "topic": topic,
                "partition": index,
                "replicas": list(replicas),
                "log_dirs": [str((log_dirs or {}).get(broker_id, "any")) for broker_id in replicas],
            }
            for (topic, index), replicas in wanted.items()
        ]
        file = self.folder / "plan.json"
        file.write_text(json.dumps({"version": 1, "partitions": entries}))
        return str(file)

    def reassign(self, plan: str, *flags: str, step: str = "--execute") -> str:
        done = self.tool("reassign-partitions", step, "--reassignment-json-file", plan, *flags)
        assert done.exit_code == 0, done.output
        return done.output

    def cancel(self, plan: str) -> None:
        """Cancel the moves of a plan. As in Kafka's tool, a move that ends after its look is an error."""

        def is_cancelled() -> bool:
            done = self.tool("reassign-partitions", "--cancel", "--reassignment-json-file", plan)
            assert done.exit_code == 0 or ENDED in done.output, done.output
            return done.exit_code == 0

        eventually(is_cancelled, "the moves are cancelled", patience(20.0))

    def moving(self) -> set[PartitionKey]:
        return set(self.ask(lambda admin: admin.list_partition_reassignments()))

    def await_moved(self, wanted: Replicas) -> None:
        eventually(lambda: not self.moving(), "all partitions are moved", patience(90.0), 0.1)
        expected = {key: [*one] for key, one in wanted.items()}

        def differences() -> dict[PartitionKey, list[int]]:
            found = self.partitions()
            return {key: found[key].replicas for key, one in expected.items() if found[key].replicas != one}

        # The controller knows of the end of a move before the broker does whose metadata is read here.
        eventually(lambda: not differences(), f"replicas are {expected}", patience(10.0))

    def elect(self, election: ElectionType, *partitions: PartitionKey) -> Mapping[PartitionKey, bool]:
        return self.ask(lambda admin: admin.elect_leaders(election, partitions))

    # --- what is on disk

    def folder_of(self, broker_id: int, partition: str) -> Path | None:
        """The log dir of a broker that has a partition, if one has."""
        return next((one for one in self.log_dirs(broker_id) if (one / partition).is_dir()), None)

    def left_folders(self, broker_id: int) -> list[str]:
        """The folders of partitions, also deleted ones, that a broker has."""
        return sorted(
            one.name for log_dir in self.log_dirs(broker_id) for one in log_dir.iterdir() if one.is_dir()
        )

    def await_empty(self, broker_id: int) -> None:
        eventually(
            lambda: self.left_folders(broker_id) == [], f"broker {broker_id} has no partition", patience(20.0)
        )

    def differences(self) -> list[str]:
        """What differs between replicas, of topics that are not compacted, when nobody writes."""
        found: dict[str, dict[int, Path]] = {}
        for broker_id in self.brokers:
            for log_dir in self.log_dirs(broker_id):
                if log_dir.is_dir():
                    for name, folders in partition_folders({broker_id: log_dir}).items():
                        found.setdefault(name, {}).update(folders)
        problems: list[str] = []
        for (topic, index), one in self.partitions().items():
            folders = found.pop(f"{topic}-{index}", {})
            if set(folders) != set(one.replicas):
                problems.append(f"{topic}-{index} is on brokers {sorted(folders)}, not on {one.replicas}")
            elif topic not in COMPACTED:
                problems += differences(folders, below=1 << 62)
        return [*problems, *(f"{name} is nobody's" for name in found)]
