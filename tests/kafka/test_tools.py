"""Kafka's own command line tools print about our broker what they print about Kafka 4.3.

Each command runs against both, beside each other; what must differ (addresses, ids, folders) is masked.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.kafka.jars import run_tool
from tests.kafka.servers import Kafka4
from tests.support.broker import Broker

TOOLS = "org.apache.kafka.tools."
CONFIGS = "kafka.admin.ConfigCommand"
CONSUMER = "consumer.ConsoleConsumer"
Done = subprocess.CompletedProcess[str]
NewName = Callable[[str], str]

_BASE64_ID = re.compile(r"\b[A-Za-z0-9_-]{22}(?![A-Za-z0-9_-])")
_SETTINGS = re.compile(r"(?<=Configs: )\S+|(?<=\{)[^{}]*(?=\})")


class Both:
    """Kafka and our broker, with the same broker id, asked the same things in the same order."""

    def __init__(self, kafka: Kafka4, ours: Broker) -> None:
        self.kafka = kafka
        self.ours = ours

    def run(
        self, tool: str, *arguments: str, given: str | None = None, kind: str = "kafka4"
    ) -> tuple[Done, Done]:
        """What the tool did with our broker, and what with Kafka."""
        name = tool if tool.startswith("kafka.") else TOOLS + tool

        def ask(bootstrap: str) -> Done:
            placed = ["--bootstrap-server", bootstrap]
            # The subcommands of these come first.
            at = 1 if tool in ("ClusterTool",) else 0
            return run_tool(kind, name, *arguments[:at], *placed, *arguments[at:], given=given)

        with ThreadPoolExecutor(2) as pool:
            ours, theirs = pool.map(ask, [self.ours.bootstrap, self.kafka.bootstrap])
        return ours, theirs

    def same(self, tool: str, *arguments: str, given: str | None = None, kind: str = "kafka4") -> list[str]:
        """The lines that the tool printed, after they were found to be the same for both."""
        ours, theirs = self.run(tool, *arguments, given=given, kind=kind)
        assert theirs.returncode == 0, theirs.stdout + theirs.stderr
        found, expected = self.lines(ours.stdout), self.lines(theirs.stdout)
        assert (ours.returncode, found) == (theirs.returncode, expected), ours.stderr + theirs.stderr
        return found

    def lines(self, printed: str) -> list[str]:
        """Lines in any order, settings in any order, without what belongs to one of the two."""
        for mine in (self.ours.bootstrap, self.kafka.bootstrap):
            printed = printed.replace(mine, "HOST:PORT").replace(mine.partition(":")[2], "PORT")
        for folder in (self.ours.data, self.kafka.data):
            printed = printed.replace(str(folder), "FOLDER")
        printed = _SETTINGS.sub(lambda match: ",".join(sorted(re.split(r", ?", match[0]))), printed)
        return sorted(_BASE64_ID.sub("ID", line).rstrip() for line in printed.splitlines())


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    target = tmp_path_factory.mktemp("tools")
    kafka = Kafka4(target / "kafka", target / "kafka-data")
    kafka.format()
    with kafka, Broker(target / "broker", {"broker.id": "1"}) as ours:
        # A new cluster of Kafka's has this setting from the start, to keep eligible leaders.
        change = ("--broker-defaults", "--alter", "--add-config", "min.insync.replicas=1")
        done = run_tool("kafka4", CONFIGS, "--bootstrap-server", ours.bootstrap, *change)
        assert done.returncode == 0, done.stderr
        yield Both(kafka, ours)


def create(both: Both, topic: str, *arguments: str) -> None:
    assert both.same("TopicCommand", "--create", "--topic", topic, *arguments) == [f"Created topic {topic}."]


def produce(both: Both, topic: str, count: int = 20) -> None:
    lines = "".join(f"key{number}\tvalue{number}\n" for number in range(count))
    both.same("ConsoleProducer", "--topic", topic, "--reader-property", "parse.key=true", given=lines)


# --- topics


def test_a_topic_is_made_described_grown_and_deleted(both: Both) -> None:
    create(
        both,
        "life",
        "--partitions",
        "3",
        "--config",
        "retention.ms=5000",
        "--config",
        "cleanup.policy=compact",
    )
    described = both.same("TopicCommand", "--describe", "--topic", "life")
    assert len(described) == 4
    assert "PartitionCount: 3" in described[-1] + described[0]
    both.same("TopicCommand", "--alter", "--topic", "life", "--partitions", "5")
    assert len(both.same("TopicCommand", "--describe", "--topic", "life")) == 6
    assert "life" in both.same("TopicCommand", "--list")
    both.same("TopicCommand", "--delete", "--topic", "life")
    assert "life" not in both.same("TopicCommand", "--list")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--create", "--topic", "taken"],
        ["--create", "--topic", "taken", "--if-not-exists"],
        ["--create", "--topic", "wrong", "--config", "retention.ms=much"],
        ["--create", "--topic", "wrong", "--config", "no.such.setting=1"],
        ["--create", "--topic", "wrong", "--replication-factor", "3"],
        ["--create", "--topic", "wrong", "--partitions", "0"],
        ["--create", "--topic", "bad name"],
        ["--create", "--topic", "placed", "--replica-assignment", "1,1"],
        ["--create", "--topic", "misplaced", "--replica-assignment", "7"],
        ["--alter", "--topic", "taken", "--partitions", "1"],
        ["--alter", "--topic", "absent", "--partitions", "2"],
        ["--alter", "--topic", "absent", "--partitions", "2", "--if-exists"],
        ["--delete", "--topic", "absent"],
        ["--delete", "--topic", "absent", "--if-exists"],
        ["--describe", "--topic", "absent"],
        ["--describe", "--under-replicated-partitions"],
        ["--describe", "--unavailable-partitions"],
        ["--describe", "--topic", "taken", "--at-min-isr-partitions"],
        ["--describe", "--topic", "taken", "--partition-size-limit-per-response", "1"],
    ],
    ids=" ".join,
)
def test_topic_commands_end_alike(both: Both, arguments: list[str]) -> None:
    """The first lines of errors are Kafka's words to a person, and ours are our own: codes have to agree."""
    both.run("TopicCommand", "--create", "--topic", "taken", "--partitions", "2", "--if-not-exists")
    ours, theirs = both.run("TopicCommand", *arguments)
    assert ours.returncode == theirs.returncode
    assert exceptions(ours.stderr + ours.stdout) == exceptions(theirs.stderr + theirs.stdout)
    if ours.returncode == 0:
        assert both.lines(ours.stdout) == both.lines(theirs.stdout)


def exceptions(printed: str) -> list[str]:
    """The classes of Java's exceptions: one for each of Kafka's error codes."""
    return re.findall(r"org\.apache\.kafka\.common\.errors\.(\w+)", printed)


def test_our_topics_tool_prints_what_kafkas_prints(both: Both) -> None:
    create(both, "twin", "--partitions", "2", "--config", "retention.ms=7000")
    for arguments in (
        ["--list"],
        ["--describe", "--topic", "twin"],
        ["--describe", "--topics-with-overrides"],
    ):
        own = subprocess.run(
            [
                sys.executable,
                "-m",
                "tidelog",
                "topics",
                "--bootstrap-server",
                both.ours.bootstrap,
                *arguments,
            ],
            capture_output=True,
            text=True,
            check=True,
        )
        theirs = run_tool(
            "kafka4", TOOLS + "TopicCommand", "--bootstrap-server", both.ours.bootstrap, *arguments
        )
        assert both.lines(own.stdout) == both.lines(theirs.stdout)


# --- settings


def configs(both: Both, *arguments: str) -> list[str]:
    return both.same(CONFIGS, *arguments)


def test_settings_of_a_topic(both: Both) -> None:
    create(both, "settings")
    topic = ("--entity-type", "topics", "--entity-name", "settings")
    configs(both, *topic, "--alter", "--add-config", "retention.ms=9000,cleanup.policy=[compact,delete]")
    described = configs(both, *topic, "--describe")
    assert any("retention.ms=9000" in line for line in described)
    configs(both, *topic, "--alter", "--delete-config", "cleanup.policy")
    assert not any("cleanup.policy=" in line for line in configs(both, *topic, "--describe"))
    configs(both, *topic, "--describe", "--all")


@pytest.mark.parametrize(
    "change",
    ["retention.ms=much", "no.such.setting=1", "min.insync.replicas=0", "cleanup.policy=keep"],
)
def test_settings_that_are_refused(both: Both, change: str) -> None:
    both.run("TopicCommand", "--create", "--topic", "refusing", "--if-not-exists")
    ours, theirs = both.run(
        CONFIGS,
        *("--entity-type", "topics", "--entity-name", "refusing", "--alter", "--add-config", change),
    )
    assert ours.returncode == theirs.returncode == 1
    assert exceptions(ours.stderr + ours.stdout) == exceptions(theirs.stderr + theirs.stdout) != []


def test_settings_of_a_broker(both: Both) -> None:
    one, every = ("--broker", "1"), ("--broker-defaults",)
    for entity, change in ((one, "log.retention.ms=86400000"), (every, "message.max.bytes=2000000")):
        configs(both, *entity, "--alter", "--add-config", change)
        assert any(change in line for line in configs(both, *entity, "--describe"))
        configs(both, *entity, "--alter", "--delete-config", change.partition("=")[0])
        assert not any(change in line for line in configs(both, *entity, "--describe"))


def test_levels_of_the_brokers_log(both: Both) -> None:
    """The names of the parts are each broker's own, so only ours is asked."""
    asked = ("--bootstrap-server", both.ours.bootstrap, "--broker-logger", "1")
    listed = run_tool("kafka4", CONFIGS, *asked, "--describe")
    assert listed.returncode == 0, listed.stdout + listed.stderr
    names = re.findall(r"^  (\S+)=\w+ ", listed.stdout, re.MULTILINE)
    assert "tidelog.server" in names
    done = run_tool("kafka4", CONFIGS, *asked, "--alter", "--add-config", "tidelog.server=DEBUG")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "tidelog.server=DEBUG" in run_tool("kafka4", CONFIGS, *asked, "--describe").stdout


# --- records and offsets


def test_lines_are_produced_and_consumed(both: Both) -> None:
    create(both, "lines")
    produce(both, "lines")
    wanted = ("--topic", "lines", "--partition", "0", "--max-messages", "15", "--timeout-ms", "20000")
    shown = ("--formatter-property", "print.key=true", "--formatter-property", "print.offset=true")
    read = both.same(CONSUMER, *wanted, "--offset", "5", *shown)
    assert [line for line in read if line] == sorted(f"Offset:{n}\tkey{n}\tvalue{n}" for n in range(5, 20))
    both.same(CONSUMER, *wanted, "--offset", "earliest", "--isolation-level", "read_committed")


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_of_the_java_client(both: Both, codec: str) -> None:
    topic = f"codec-{codec}"
    both.run("TopicCommand", "--create", "--topic", topic)
    given = "".join(f"{'text ' * 20}{number}\n" for number in range(100))
    both.same("ConsoleProducer", "--topic", topic, f"--compression-codec={codec}", given=given)
    read = both.same(
        CONSUMER,
        *("--topic", topic, "--partition", "0", "--offset", "earliest", "--max-messages", "100"),
    )
    assert read == sorted(given.splitlines())


def test_offsets(both: Both) -> None:
    create(both, "offsets", "--partitions", "2")
    produce(both, "offsets", 50)
    # The offset of the largest timestamp depends on when each line was sent, so it is not among these.
    for time in ("-1", "-2", "latest", "earliest", "0", "1893456000000"):
        both.same("GetOffsetShell", "--topic", "offsets", "--time", time)
    both.same("GetOffsetShell", "--topic-partitions", "offsets:0")


def test_records_are_deleted(both: Both, tmp_path: Path) -> None:
    create(both, "shorter")
    produce(both, "shorter", 30)
    file = tmp_path / "offsets.json"
    for offset in (10, -1, 1000):
        wanted = [{"topic": "shorter", "partition": 0, "offset": offset}]
        file.write_text(json.dumps({"version": 1, "partitions": wanted}))
        ours, theirs = both.run("DeleteRecordsCommand", "--offset-json-file", str(file))
        assert ours.returncode == theirs.returncode
        assert exceptions(ours.stdout + ours.stderr) == exceptions(theirs.stdout + theirs.stderr)
        both.same("GetOffsetShell", "--topic", "shorter", "--time", "earliest")


def test_the_perf_test_writes_what_it_says(both: Both) -> None:
    create(both, "perf", "--partitions", "2")
    load = ("--num-records", "20000", "--record-size", "200", "--throughput", "-1")
    done = run_tool(
        "kafka4",
        TOOLS + "ProducerPerformance",
        *("--bootstrap-server", both.ours.bootstrap, "--topic", "perf", *load),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.match(r"20000 records sent, [\d.]+ records/sec", done.stdout.splitlines()[-1])
    offsets = run_tool(
        "kafka4", TOOLS + "GetOffsetShell", "--bootstrap-server", both.ours.bootstrap, "--topic", "perf"
    )
    assert sum(int(line.rpartition(":")[2]) for line in offsets.stdout.split()) == 20000


def test_the_producers_of_a_partition(both: Both) -> None:
    create(both, "producers")
    produce(both, "producers", 5)
    asked = ("describe-producers", "--topic", "producers", "--partition", "0")
    printed = []
    for bootstrap in (both.ours.bootstrap, both.kafka.bootstrap):
        done = run_tool("kafka4", TOOLS + "TransactionsCommand", "--bootstrap-server", bootstrap, *asked)
        assert done.returncode == 0, done.stderr
        heading, *rows = [line.split("\t") for line in done.stdout.splitlines()]
        printed.append((heading, [[*row[1:4], *row[5:]] for row in ([c.strip() for c in r] for r in rows)]))
    assert printed[0] == printed[1]


# --- the broker and its cluster


def test_the_cluster_and_its_brokers(both: Both) -> None:
    ours, theirs = both.run("ClusterTool", "cluster-id")
    assert re.fullmatch(r"Cluster ID: [A-Za-z0-9_-]{22}\s+", ours.stdout)
    assert both.lines(ours.stdout) == both.lines(theirs.stdout)
    both.same("ClusterTool", "list-endpoints")


def test_the_versions_that_are_told(both: Both) -> None:
    """What we serve, we serve in the versions of Kafka 4.3."""
    ours, theirs = both.run("BrokerApiVersionsCommand")
    assert ours.returncode == theirs.returncode == 0
    found, expected = api_versions(ours.stdout), api_versions(theirs.stdout)
    assert {"Produce(0)", "Fetch(1)", "DescribeTopicPartitions(75)"} <= found.keys()
    assert found == {name: expected[name] for name in found}


def api_versions(printed: str) -> dict[str, str]:
    return dict(re.findall(r"^\s+(\w+\(\d+\)): (\d+(?: to \d+)?) ", printed, re.MULTILINE))


def test_log_folders(both: Both) -> None:
    # One record for each partition: of more, a slow machine makes more than one batch.
    create(both, "sized", "--partitions", "4")
    produce(both, "sized", 4)
    ours, theirs = both.run("LogDirsCommand", "--describe", "--topic-list", "sized")
    assert ours.returncode == theirs.returncode == 0
    found, expected = log_dirs(ours.stdout), log_dirs(theirs.stdout)
    assert found == expected
    assert all(p["size"] > 0 for p in found["brokers"][0]["logDirs"][0]["partitions"])


def log_dirs(printed: str) -> dict[str, list[dict[str, list[dict[str, list[dict[str, int]]]]]]]:
    found = json.loads(next(line for line in printed.splitlines() if line.startswith("{")))
    for broker in found["brokers"]:
        for folder in broker["logDirs"]:
            folder["logDir"] = "FOLDER"
            folder["partitions"].sort(key=lambda partition: partition["partition"])
    return dict(found)


def test_the_tools_of_kafka_3(both: Both) -> None:
    """An older Java client beside the newest."""
    # One partition: with more, each producer sticks to one of them by chance.
    both.run("TopicCommand", "--create", "--topic", "older", "--partitions", "1", kind="kafka3")
    both.same("TopicCommand", "--describe", "--topic", "older", kind="kafka3")
    both.same("kafka.tools.ConsoleProducer", "--topic", "older", given="a\nb\nc\n", kind="kafka3")
    both.same("GetOffsetShell", "--topic-partitions", "older", kind="kafka4")
    configs(both, "--entity-type", "topics", "--entity-name", "older", "--describe", "--all")
