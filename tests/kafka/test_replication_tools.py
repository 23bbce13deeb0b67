"""Our tools for replicated partitions and Kafka's print and do the same, on brokers of Kafka 3.9 and on ours.

Each cycle of commands runs twice from the same state, with Kafka's tool and with ours. Lines and exit
codes are compared, and the settings that the tools leave behind are checked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner

from tests.kafka.jars import run_tool
from tests.kafka.servers import Kafka3, ZooKeeper
from tests.support.broker import Broker
from tests.support.cluster import ClusterOfBrokers
from tests.support.contents import produce
from tests.support.wait import eventually
from tidelog import Admin, NewTopic
from tidelog.cli.main import main
from tidelog.clients.admin import AlterConfigOp, ConfigResource, ConfigSource, ResourceType
from tidelog.clients.admin.cluster import PartitionReassignment
from tidelog.partitions import PartitionKey

TOOLS = "org.apache.kafka.tools."
KAFKAS = {
    "reassign-partitions": TOOLS + "reassign.ReassignPartitionsCommand",
    "leader-election": TOOLS + "LeaderElectionCommand",
    "topics": TOOLS + "TopicCommand",
    "log-dirs": TOOLS + "LogDirsCommand",
}
BROKERS = (1, 2, 3)
OWN_SETTINGS = (
    ConfigSource.DYNAMIC_TOPIC_CONFIG,
    ConfigSource.DYNAMIC_BROKER_CONFIG,
)


class Done(NamedTuple):
    exit_code: int
    stdout: str

    @property
    def lines(self) -> list[str]:
        """Standard output; after `Error: ` the words differ and Kafka's tool prints the stack."""
        # Kafka's tool leaves out the end of this line.
        text = re.sub(r"(moves are active\.)\n?", r"\1\n", self.stdout)
        return text.partition("Error: ")[0].splitlines()


Run = Callable[..., Done]
Settings = Mapping[ConfigResource, Mapping[str, str]]


class Cluster:
    def __init__(self, folder: Path, brokers: Mapping[int, Kafka3 | Broker]) -> None:
        self.folder = folder
        self.brokers = brokers
        self.admin = Admin(bootstrap_servers=self.bootstrap)

    @property
    def bootstrap(self) -> str:
        return self.brokers[1].bootstrap

    def data(self, broker_id: int) -> Path:
        return self.folder / f"data-{broker_id}"

    def stop(self, broker_id: int) -> None:
        broker = self.brokers[broker_id]
        _ = broker.terminate() if isinstance(broker, Broker) else broker.stop()

    def theirs(self, tool: str, *arguments: str) -> Done:
        done = run_tool("kafka3", KAFKAS[tool], "--bootstrap-server", self.bootstrap, *arguments)
        return Done(done.returncode, done.stdout)

    def ours(self, tool: str, *arguments: str) -> Done:
        done = CliRunner().invoke(main, [tool, "--bootstrap-server", self.bootstrap, *arguments])
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exc_info
        return Done(done.exit_code, done.stdout)

    def same(self, tool: str, *arguments: str) -> list[str]:
        """The lines of both tools, which change nothing."""
        ours, theirs = self.ours(tool, *arguments), self.theirs(tool, *arguments)
        assert (ours.exit_code, sorted(ours.lines)) == (theirs.exit_code, sorted(theirs.lines))
        return ours.lines

    def await_settings(self, expected: Settings) -> None:
        """Wait until these are the settings that somebody set. A broker applies a change a moment later."""

        def found() -> bool:
            return {
                resource: {
                    name: entry.value for name, entry in entries.items() if entry.source in OWN_SETTINGS
                }
                for resource, entries in self.admin.describe_configs(expected).items()
            } == expected

        eventually(found, f"the settings are {expected}")

    def create(self, topic: str, *replicas: Sequence[int]) -> None:
        self.admin.create_topics([NewTopic(topic, replica_assignments=dict(enumerate(replicas)))])
        eventually(lambda: topic in self.admin.list_topics(), f"{topic} is listed")

    def place(self, replicas: dict[PartitionKey, Sequence[int]]) -> None:
        """Move partitions and wait until they are there."""
        self.admin.alter_partition_reassignments(replicas)
        eventually(lambda: not self.moving(), "nothing moves", 60.0)

    def moving(self) -> dict[PartitionKey, PartitionReassignment]:
        return self.admin.list_partition_reassignments()

    def plan(self, *partitions: dict[str, object]) -> str:
        file = self.folder / "plan.json"
        file.write_text(json.dumps({"version": 1, "partitions": partitions}))
        return str(file)


SETTINGS = {"auto.leader.rebalance.enable": "false"}


@contextmanager
def of_kafka(folder: Path) -> Iterator[Cluster]:
    with ExitStack() as stack:
        zookeeper = stack.enter_context(ZooKeeper(folder / "zookeeper"))
        brokers = {}
        for broker_id in BROKERS:
            own = {"broker.id": str(broker_id), "log.dirs": log_dirs(folder, broker_id)}
            kafka = Kafka3(folder / f"kafka-{broker_id}", folder, zookeeper, SETTINGS | own)
            brokers[broker_id] = stack.enter_context(kafka)
        yield Cluster(folder, brokers)


@contextmanager
def of_tidelog(folder: Path) -> Iterator[Cluster]:
    with ExitStack() as stack:
        cluster = stack.enter_context(ClusterOfBrokers(folder, 0, SETTINGS))
        for broker_id in BROKERS:
            cluster.add(broker_id, {"log.dirs": log_dirs(folder, broker_id)}).start()
        yield Cluster(folder, cluster.brokers)


def log_dirs(folder: Path, broker_id: int) -> str:
    data = folder / f"data-{broker_id}"
    return f"{data / 'a'},{data / 'b'}"


@pytest.fixture(scope="module", params=[of_kafka, of_tidelog])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with request.param(tmp_path_factory.mktemp("cluster")) as made:
        eventually(lambda: len(made.admin.describe_cluster().nodes) == 3, "all brokers are there", 60.0)
        yield made
        made.admin.close()


def throttled(
    topic: str, leaders: str = "", followers: str = "", **rates: Mapping[int, int]
) -> dict[ConfigResource, dict[str, str]]:
    """The settings of a topic and of all brokers; without arguments nothing is throttled."""
    replicas = {"leader": leaders, "follower": followers} if leaders else {}
    expected = {
        ConfigResource(ResourceType.TOPIC, topic): {
            f"{role}.replication.throttled.replicas": text for role, text in replicas.items()
        }
    }
    for broker in BROKERS:
        names = {
            "between": ("leader.replication.throttled.rate", "follower.replication.throttled.rate"),
            "inside": ("replica.alter.log.dirs.io.max.bytes.per.second",),
        }
        expected[ConfigResource(ResourceType.BROKER, str(broker))] = {
            name: str(of_brokers[broker])
            for kind, of_brokers in rates.items()
            if broker in of_brokers
            for name in names[kind]
        }
    return expected


def entry(topic: str, partition: int, *replicas: int, **more: object) -> dict[str, object]:
    return {"topic": topic, "partition": partition, "replicas": list(replicas), **more}


def test_partitions_move_between_brokers(cluster: Cluster) -> None:
    cluster.create("moved", (3, 2), (1, 3), (2, 1))
    produce(cluster.bootstrap, {("moved", index): [bytes(1000)] * 20_000 for index in range(3)})
    plan = cluster.plan(entry("moved", 0, 1, 2), entry("moved", 1, 2, 1), entry("moved", 2, 2, 1))
    file = ("--reassignment-json-file", plan)

    def at(rate: int) -> Settings:
        leaders, followers = "0:2,0:3,1:1,1:3,2:1,2:2", "0:1,1:2"
        return throttled("moved", leaders, followers, between=dict.fromkeys(BROKERS, rate))

    free = throttled("moved")
    steps: tuple[tuple[Settings, tuple[str, ...]], ...] = (
        (free, ("--list",)),
        (free, ("--verify", *file)),
        (at(1000), ("--execute", *file, "--throttle", "1000")),
        (at(1000), ("--list",)),
        (at(1000), ("--verify", *file)),
        (at(1000), ("--execute", *file)),  # needs --additional
        (at(2000), ("--execute", *file, "--additional", "--throttle", "2000")),
        (at(2000), ("--cancel", *file, "--preserve-throttles")),
        (free, ("--cancel", *file)),
        (free, ("--verify", *file)),
        (at(10**9), ("--execute", *file, "--throttle", str(10**9))),
        (at(10**9), ()),
        (free, ("--verify", *file)),
    )

    def cycle(run: Run) -> list[tuple[tuple[str, ...], int, list[str]]]:
        cluster.place({("moved", 0): [3, 2], ("moved", 1): [1, 3], ("moved", 2): [2, 1]})
        found = []
        for settings, step in steps:
            if not step:
                eventually(lambda: not cluster.moving(), "nothing moves", 60.0)
                continue
            done = run("reassign-partitions", *step)
            found.append((step, done.exit_code, done.lines if done.exit_code == 0 else []))
            cluster.await_settings(settings)
        return found

    theirs, ours = cycle(cluster.theirs), cycle(cluster.ours)
    for expected, step in zip(theirs, ours, strict=True):
        assert step == expected
    assert ours[3][2] == [
        "Current partition reassignments:",
        "moved-0: replicas: 1,2,3. adding: 1. removing: 3.",
        "moved-1: replicas: 2,1,3. adding: 2. removing: 3.",
    ]
    assert ours[-1][2][1:4] == [f"Reassignment of partition moved-{n} is completed." for n in range(3)]


def test_replicas_move_between_folders(cluster: Cluster) -> None:
    cluster.create("folders", (2, 1))
    produce(cluster.bootstrap, {("folders", 0): [bytes(1000)] * 20_000})
    data = cluster.data(2)

    def other_folder() -> str:
        return str(data / ("b" if (data / "a" / "folders-0").exists() else "a"))

    free = throttled("folders")
    inside = throttled("folders", inside={2: 1000})
    slow = throttled("folders", "0:1,0:2", between={1: 1500, 2: 1500}, inside={2: 1000})

    def slow_down() -> None:
        """A broker that applies the throttle of the tool late has copied everything before."""
        broker = ConfigResource(ResourceType.BROKER, "2")
        ops = [AlterConfigOp(name, value) for name, value in inside[broker].items()]
        cluster.admin.incremental_alter_configs({broker: ops})
        cluster.await_settings(inside)

    def cycle(run: Run) -> list[tuple[int, list[str]]]:
        wanted = other_folder()
        names = {str(data / "a"): "OLD", str(data / "b"): "OLD", wanted: "WANTED"}
        plan = cluster.plan(entry("folders", 0, 2, 1, log_dirs=[wanted, "any"]))
        file = ("--reassignment-json-file", plan)
        throttles = ("--throttle", "1500", "--replica-alter-log-dirs-throttle", "1000")
        steps: tuple[tuple[Settings, tuple[str, ...]], ...] = (
            (free, ("--verify", *file)),
            (slow, ("--execute", *file, *throttles)),
            (slow, ("--verify", *file)),
            (free, ("--cancel", *file)),
            (free, ("--verify", *file)),
            (free, ("--execute", *file, "--timeout", "20000")),
            (free, ()),
            (free, ("--verify", *file)),
        )
        found = []
        for settings, step in steps:
            if not step:
                eventually(lambda: wanted != other_folder(), "the replica moves", 60.0)
                continue
            if "--throttle" in step:
                slow_down()
            done = run("reassign-partitions", *step)
            lines = [re.sub("|".join(names), lambda name: names[name[0]], line) for line in done.lines]
            found.append((done.exit_code, lines))
            cluster.await_settings(settings)
        return found

    theirs, ours = cycle(cluster.theirs), cycle(cluster.ours)
    for expected, step in zip(theirs, ours, strict=True):
        assert step == expected


def test_leaders_are_elected(cluster: Cluster) -> None:
    cluster.create("elected", (1, 2), (2, 3), (3, 1))
    file = cluster.folder / "partitions.json"
    wanted = [{"topic": topic, "partition": n} for topic, n in (("elected", 0), ("elected", 1), ("none", 0))]
    file.write_text(json.dumps({"partitions": wanted}))

    def cycle(run: Run) -> list[tuple[int, list[str]]]:
        # The leaders stay when the order of the replicas changes.
        cluster.place({("elected", 0): [1, 2], ("elected", 1): [2, 3], ("elected", 2): [3, 1]})
        run("leader-election", "--election-type", "preferred", "--all-topic-partitions")
        cluster.place({("elected", 0): [2, 1], ("elected", 1): [3, 2], ("elected", 2): [1, 3]})
        found = []
        for step in (
            ("preferred", "--topic", "elected", "--partition", "2"),
            ("preferred", "--topic", "elected", "--partition", "2"),
            ("PREFERRED", "--topic", "elected", "--partition", "9"),
            ("unclean", "--topic", "elected", "--partition", "1"),
            ("preferred", "--all-topic-partitions"),
            ("preferred", "--path-to-json-file", str(file)),
            ("unclean", "--all-topic-partitions"),
            ("preferred",),
            ("other", "--all-topic-partitions"),
        ):
            done = run("leader-election", "--election-type", *step)
            found.append((done.exit_code, sorted(with_sorted_partitions(line) for line in done.lines)))
        return found

    theirs, ours = cycle(cluster.theirs), cycle(cluster.ours)
    assert ours == theirs
    assert ours[0] == (0, ["Successfully completed leader election (PREFERRED) for partitions elected-2"])


def with_sorted_partitions(line: str) -> str:
    """Kafka's tool prints partitions in the order of a hash map."""
    words, found, names = line.rpartition(" for partitions ")
    return f"{words}{found}{', '.join(sorted(names.split(', ')))}" if found else line


def test_a_proposal_is_printed_as_kafkas(cluster: Cluster) -> None:
    cluster.create("proposed", *([(1, 2)] * 6))
    file = cluster.folder / "topics.json"
    file.write_text(json.dumps({"topics": [{"topic": "proposed"}], "version": 1}))
    asked = ("--generate", "--topics-to-move-json-file", str(file), "--broker-list")
    for more in (("1,2,3",), ("1,2", "--disable-rack-aware")):
        ours, theirs = (run("reassign-partitions", *asked, *more) for run in (cluster.ours, cluster.theirs))
        assert (ours.exit_code, ours.lines[:4]) == (theirs.exit_code, theirs.lines[:4])
        proposals = [json.loads(done.lines[4])["partitions"] for done in (ours, theirs)]
        # The first broker is drawn by chance: each broker leads as many partitions, and has as many.
        spread = [
            (
                sorted(found["replicas"][0] for found in proposal),
                sorted(broker for found in proposal for broker in found["replicas"]),
            )
            for proposal in proposals
        ]
        assert spread[0] == spread[1]
    for wrong in ("1", "1,1", "1,x"):
        ours, theirs = (run("reassign-partitions", *asked, wrong) for run in (cluster.ours, cluster.theirs))
        assert ours.exit_code == theirs.exit_code == 1


@pytest.mark.parametrize(
    "partitions",
    [
        [],
        [entry("wrong", 9, 2, 1)],
        [entry("missing", 0, 2, 1)],
        [entry("wrong", 0, 2, 9)],
        [entry("wrong", 0, 2, 2)],
        [entry("wrong", 0)],
        [entry("wrong", 0, 1, 2), entry("wrong", 0, 2, 1)],
        [entry("wrong", 0, 1, 2, log_dirs=["any"])],
        [entry("wrong", 0, 1, log_dirs=["/nowhere"])],
    ],
)
def test_plans_that_are_refused(cluster: Cluster, partitions: list[dict[str, object]]) -> None:
    if "wrong" not in cluster.admin.list_topics():
        cluster.create("wrong", (1,))
    plan = cluster.plan(*partitions)
    ours, theirs = (
        run("reassign-partitions", "--execute", "--reassignment-json-file", plan)
        for run in (cluster.ours, cluster.theirs)
    )
    assert (ours.exit_code, ours.lines) == (theirs.exit_code, theirs.lines)
    assert ours.exit_code == 1


def test_a_replica_that_differs_is_found(cluster: Cluster) -> None:
    cluster.create("tampered", (1, 3))
    produce(cluster.bootstrap, {("tampered", 0): [b"some value"] * 10})
    flags = ("--once", "--topics-include", "tampered", "--max-wait-ms", "200")
    done = cluster.ours("replica-verification", *flags)
    assert (done.exit_code, len(done.lines)) == (0, 2)
    assert done.lines[-1].endswith("max lag is 0 for partition tampered-0 at offset 10 among 1 partitions")
    cluster.stop(3)
    (log,) = cluster.data(3).glob("*/tampered-0/00000000000000000000.log")
    with log.open("r+b") as file:
        file.seek(17)  # the checksum of the first batch
        file.write(b"\x01\x02\x03\x04")
    cluster.brokers[3].start()
    eventually(lambda: in_sync(cluster, "tampered") == [[1, 3]], "the replica is in sync", 60.0)
    done = cluster.ours("replica-verification", *flags)
    assert done.exit_code == 1
    assert re.search(
        r": partition tampered-0 has unmatched checksum at offset \d+; replica 1's checksum \d+; "
        r"replica 3's checksum 16909060\n",
        done.stdout,
    )


def in_sync(cluster: Cluster, topic: str) -> list[list[int]]:
    return [sorted(found.isr) for found in cluster.admin.describe_topics([topic])[topic].partitions]


def test_partitions_of_a_broker_that_is_away(cluster: Cluster) -> None:
    """The last test: broker 3 does not come back."""
    cluster.create("alone", (3,), (1,))
    cluster.create("together", (3, 1, 2), (1, 2, 3), (2, 3, 1))
    for topic in ("alone", "together"):
        resource = ConfigResource(ResourceType.TOPIC, topic)
        cluster.admin.incremental_alter_configs({resource: [AlterConfigOp("min.insync.replicas", "2")]})
    cluster.stop(3)
    eventually(lambda: in_sync(cluster, "together") == [[1, 2]] * 3, "broker 3 is gone", 60.0)
    for filters in (
        (),
        ("--under-replicated-partitions",),
        ("--unavailable-partitions",),
        ("--under-min-isr-partitions",),
        ("--at-min-isr-partitions",),
        ("--at-min-isr-partitions", "--unavailable-partitions"),
    ):
        assert cluster.same("topics", "--describe", *filters)
    for kind in ("preferred", "unclean"):
        lines = cluster.same("leader-election", "--election-type", kind, "--all-topic-partitions")
        assert any("for partition: alone-0: org.apache.kafka.common.errors." in line for line in lines)
    ours, theirs = (run("log-dirs", "--describe") for run in (cluster.ours, cluster.theirs))
    assert ours.lines[:2] == theirs.lines[:2]
    assert folders(ours) == folders(theirs)
    cluster.same("log-dirs", "--describe", "--broker-list", "1,3")
    plan = cluster.plan(entry("together", 0, 2, 3))
    flags = ("--execute", "--reassignment-json-file", plan)
    ours, theirs = (run("reassign-partitions", *flags) for run in (cluster.ours, cluster.theirs))
    assert (ours.exit_code, ours.lines) == (theirs.exit_code, theirs.lines) == (1, [])


def folders(done: Done) -> object:
    return {
        (broker["broker"], folder["logDir"], partition["partition"]): partition
        for broker in json.loads(done.lines[2])["brokers"]
        for folder in broker["logDirs"]
        for partition in folder["partitions"]
    }
