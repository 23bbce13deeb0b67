"""Our tools on our clients and Kafka's own print the same, about our broker as about Kafka 4.3.

Both ask the same broker. What a run makes anew (times, rates) is masked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from click.testing import CliRunner, Result

from tests.kafka.jars import run_tool
from tests.kafka.servers import Kafka4
from tests.support.broker import Broker
from tests.support.fixtures import new_name
from tests.support.topics import PatientAdmin
from tidelog.cli.main import main
from tidelog.clients.admin import NewTopic
from tidelog.errors import UnsupportedVersion

__all__ = ["new_name"]

NewName = Callable[[str], str]
TOOLS = "org.apache.kafka.tools."
JAVA = {
    "get-offsets": TOOLS + "GetOffsetShell",
    "configs": "kafka.admin.ConfigCommand",
    "broker-api-versions": TOOLS + "BrokerApiVersionsCommand",
    "console-producer": TOOLS + "ConsoleProducer",
    "console-consumer": TOOLS + "consumer.ConsoleConsumer",
    "producer-perf-test": TOOLS + "ProducerPerformance",
    "consumer-perf-test": TOOLS + "ConsumerPerformance",
    "end-to-end-latency": TOOLS + "EndToEndLatency",
    "verifiable-producer": TOOLS + "VerifiableProducer",
    "verifiable-consumer": TOOLS + "VerifiableConsumer",
}
NUMBERS = re.compile(r"-?\d+(\.\d+)?([eE]-?\d+)?")


class Both:
    """One broker and both tools."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.admin = PatientAdmin(bootstrap_servers=bootstrap)

    def ours(self, tool: str, *arguments: str, given: str | None = None) -> Result:
        return CliRunner().invoke(main, [tool, "--bootstrap-server", self.bootstrap, *arguments], input=given)

    def run(self, tool: str, *arguments: str, given: str | None = None) -> tuple[list[str], list[str]]:
        """The lines of ours and of Kafka's, which end with the same code."""
        with ThreadPoolExecutor(1) as pool:
            where = ("--bootstrap-server", self.bootstrap)
            running = pool.submit(run_tool, "kafka4", JAVA[tool], *where, *arguments, given=given)
            ours = self.ours(tool, *arguments, given=given)
            theirs = running.result()
        assert ours.exit_code == theirs.returncode, ours.output + theirs.stdout + theirs.stderr
        return ours.stdout.splitlines(), theirs.stdout.splitlines()

    def same(self, tool: str, *arguments: str) -> list[str]:
        ours, theirs = self.run(tool, *arguments)
        assert ours == theirs
        return ours

    def topic(self, name: str, partitions: int = 1, **configs: str) -> str:
        settings = {key.replace("_", "."): value for key, value in configs.items()}
        self.admin.create_topics([NewTopic(name, partitions, 1, configs=settings)])
        return name


@pytest.fixture(scope="module", params=["tidelog", "kafka"])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    target = tmp_path_factory.mktemp("client-tools")
    with ExitStack() as stack:
        if request.param == "kafka":
            kafka = Kafka4(target / "kafka", target / "data", {"group.initial.rebalance.delay.ms": "0"})
            kafka.format()
            found = Both(stack.enter_context(kafka).bootstrap)
        else:
            broker = Broker(target / "broker", {"broker.id": "1", "group.initial.rebalance.delay.ms": "0"})
            found = Both(stack.enter_context(broker).bootstrap)
        yield found
        found.admin.close()


def test_offsets_are_printed_alike(both: Both, new_name: NewName) -> None:
    topic = both.topic(new_name("t"), 12)
    both.ours("console-producer", "--topic", topic, given="a\nb\nc\n")
    assert len(both.same("get-offsets", "--topic", topic)) == 12
    assert (
        len(both.same("get-offsets", "--topic-partitions", f"{topic}:3-5,{topic}:9", "--time", "earliest"))
        == 3
    )
    assert len(both.same("get-offsets", "--topic", topic, "--time", "max-timestamp")) == 1
    assert both.same("get-offsets", "--topic", "no-such-topic") == []
    both.same("get-offsets", "--topic", topic, "--time", "soon")


def test_settings_are_changed_and_printed_alike(both: Both, new_name: NewName) -> None:
    topic = both.topic(new_name("t"), retention_ms="60000")
    both.same("configs", "--describe", "--topic", topic)
    both.same("configs", "--describe", "--entity-type", "topics", "--entity-name", topic, "--all")
    change = (
        "--add-config",
        "segment.ms=70000,cleanup.policy=[compact,delete]",
        "--delete-config",
        "retention.ms",
    )
    both.same("configs", "--alter", "--topic", topic, *change)
    assert len(both.same("configs", "--describe", "--topic", topic)) == 3
    both.same("configs", "--describe", "--broker-defaults")
    both.same("configs", "--alter", "--broker", "1", "--add-config", "log.cleaner.backoff.ms=14000")
    assert len(both.same("configs", "--describe", "--broker", "1")) == 2
    both.same("configs", "--alter", "--broker", "1", "--delete-config", "log.cleaner.backoff.ms")
    for missing in (("--topic", "nope"), ("--broker", "99"), ("--group", "nope")):
        both.same("configs", "--describe", *missing)
    both.same("configs", "--alter", "--topic", topic, "--add-config", "retention.ms=soon")
    both.same("configs", "--alter", "--topic", topic)
    both.same("configs", "--describe", "--topic", topic, "--broker", "1")


def test_quotas_and_passwords_are_changed_and_printed_alike(both: Both, new_name: NewName) -> None:
    try:
        both.admin.describe_client_quotas()
    except UnsupportedVersion as error:
        pytest.skip(str(error))
    user = new_name("u")
    both.same(
        "configs", "--alter", "--user", user, "--add-config", "SCRAM-SHA-256=[iterations=4096,password=x]"
    )
    both.same(
        "configs", "--alter", "--user", user, "--client", "c", "--add-config", "producer_byte_rate=1000"
    )
    both.same("configs", "--alter", "--user-defaults", "--add-config", "request_percentage=12.5")
    both.same("configs", "--alter", "--ip-defaults", "--add-config", "connection_creation_rate=10")
    assert len(both.same("configs", "--describe", "--user", user)) == 1
    assert len(both.same("configs", "--describe", "--user", user, "--client", "c")) == 1
    assert len(both.same("configs", "--describe", "--entity-type", "users")) == 2
    assert len(both.same("configs", "--describe", "--entity-type", "ips")) == 1
    both.same("configs", "--describe", "--entity-type", "users", "--entity-type", "clients")


def test_versions_are_printed_alike(both: Both) -> None:
    assert len(both.same("broker-api-versions")) > 40


def test_lines_become_the_same_records(both: Both, new_name: NewName) -> None:
    """Each writes to a topic of its own; what both print of both topics is the same."""
    ours, theirs = both.topic(new_name("ours")), both.topic(new_name("theirs"))
    lines = "a:1,b:2\tk1\tvälue\nNULL\tk2\tNULL\nx:NULL\tNULL\t\n"
    flags = ("--reader-property", "parse.key=true", "--reader-property", "parse.headers=true")
    flags += ("--reader-property", "null.marker=NULL")
    assert both.ours("console-producer", "--topic", ours, *flags, given=lines).exit_code == 0
    where = ("--bootstrap-server", both.bootstrap)
    assert (
        run_tool(
            "kafka4", JAVA["console-producer"], *where, "--topic", theirs, *flags, given=lines
        ).returncode
        == 0
    )
    columns = ("key", "headers", "offset", "partition")
    shown = [text for column in columns for text in ("--formatter-property", f"print.{column}=true")]
    ending = ("--from-beginning", "--max-messages", "3")
    assert both.same("console-consumer", "--topic", ours, *ending, *shown) == both.same(
        "console-consumer", "--topic", theirs, *ending, *shown
    )
    separated = ("--formatter-property", "key.separator=|", "--formatter-property", "null.literal=-")
    both.same("console-consumer", "--topic", theirs, *ending, *shown, *separated)
    both.same("console-consumer", "--topic", ours, *ending, "--formatter-property", "print.timestamp=true")
    both.same("console-consumer", "--topic", ours, "--partition", "0", "--offset", "1", "--max-messages", "2")
    logging = ("--formatter", "org.apache.kafka.tools.consumer.NoOpMessageFormatter")
    assert both.same("console-consumer", "--topic", ours, *ending, *logging) == []


def shape(line: str) -> object:
    """A line of JSON without what differs from run to run."""
    event = json.loads(line)
    for name in ("timestamp", "avg_throughput", "topic", "message"):
        if name in event:
            event[name] = None
    return list(event.items())


def test_the_verifiable_tools_tell_the_same(both: Both, new_name: NewName) -> None:
    ours, theirs = both.topic(new_name("ours")), both.topic(new_name("theirs"))
    flags = ("--max-messages", "3", "--value-prefix", "7", "--repeating-keys", "2")
    where = ("--bootstrap-server", both.bootstrap)
    wrote = both.ours("verifiable-producer", "--topic", ours, *flags)
    expected = run_tool("kafka4", JAVA["verifiable-producer"], *where, "--topic", theirs, *flags)
    assert [*map(shape, wrote.stdout.splitlines())] == [*map(shape, expected.stdout.splitlines())]

    flags = ("--topic", ours, "--max-messages", "3", "--verbose")
    read = both.ours("verifiable-consumer", *flags, "--group-id", new_name("g"))
    expected = run_tool("kafka4", JAVA["verifiable-consumer"], *where, *flags, "--group-id", new_name("g"))
    told = [line for line in expected.stdout.splitlines() if "shutdown_requested" not in line]
    assert [*map(shape, read.stdout.splitlines())] == [*map(shape, told)]


def masked(lines: list[str]) -> list[str]:
    return [NUMBERS.sub("N", line) for line in lines]


def test_figures_are_printed_in_the_same_form(both: Both, new_name: NewName) -> None:
    topic = both.topic(new_name("t"))
    flags = ("--topic", topic, "--num-records", "1000", "--record-size", "50", "--throughput", "-1")
    ours, theirs = both.run("producer-perf-test", *flags, "--warmup-records", "100")
    assert masked(ours) == masked(theirs)
    ours, theirs = both.run("consumer-perf-test", "--topic", topic, "--num-records", "1000")
    assert masked(ours) == masked(theirs)
    # Both write to their topic, so they have one each.
    lines = []
    for run in (
        both.ours,
        lambda tool, *given: run_tool("kafka4", JAVA[tool], "--bootstrap-server", both.bootstrap, *given),
    ):
        flags = ("--topic", both.topic(new_name("t")), "--num-records", "5", "--producer-acks", "1")
        lines.append(run("end-to-end-latency", *flags, "--record-size", "20").stdout.splitlines())
    assert masked(lines[0]) == masked(lines[1])
