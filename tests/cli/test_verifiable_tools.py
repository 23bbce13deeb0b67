"""`verifiable-producer` and `verifiable-consumer` tell what they do in Kafka's lines of JSON."""

from __future__ import annotations

import signal

import pytest

from tests.cli.client_tools import NewName, Tool, events, make_topic, start, tool

__all__ = ["tool"]


def test_every_record_is_told_of(tool: Tool, new_name: NewName) -> None:
    topic = make_topic(tool, new_name("t"))
    wrote = tool(
        *("verifiable-producer", "--topic", topic, "--max-messages", "3", "--value-prefix", "7"),
        *("--repeating-keys", "2", "--message-create-time", "1000"),
    )
    assert wrote.exit_code == 0, wrote.output
    first, *sent, closed, summary = events(wrote)
    assert (first["name"], closed["name"]) == ("startup_complete", "shutdown_complete")
    assert [list(event) for event in sent] == [
        ["timestamp", "name", "key", "value", "offset", "topic", "partition"]
    ] * 3
    assert [(event["key"], event["value"], event["offset"]) for event in sent] == [
        ("0", "7.0", 0),
        ("1", "7.1", 1),
        ("0", "7.2", 2),
    ]
    assert summary["name"] == "tool_data"
    assert (summary["sent"], summary["acked"], summary["target_throughput"]) == (3, 3, -1)


def test_a_record_that_is_refused_is_told_of(tool: Tool, new_name: NewName) -> None:
    topic = make_topic(tool, new_name("t"), 1, "cleanup.policy=compact")
    wrote = tool("verifiable-producer", "--topic", topic, "--max-messages", "1")
    _, failed, _, summary = events(wrote)
    assert (failed["name"], failed["value"]) == ("producer_send_error", "0")
    assert str(failed["exception"]).startswith("class org.apache.kafka.common.errors.")
    assert (summary["sent"], summary["acked"]) == (1, 0)
    assert wrote.exit_code == 1


@pytest.mark.parametrize(
    "protocol", ["classic", pytest.param("consumer", marks=pytest.mark.needs("group.version"))]
)
def test_a_member_tells_what_it_gets_reads_and_commits(tool: Tool, new_name: NewName, protocol: str) -> None:
    topic, group = make_topic(tool, new_name("t")), new_name("g")
    tool("verifiable-producer", "--topic", topic, "--max-messages", "5")
    read = tool(
        *("verifiable-consumer", "--topic", topic, "--group-id", group, "--max-messages", "3", "--verbose"),
        *("--group-protocol", protocol),
    )
    assert read.exit_code == 0, read.output
    found = events(read)
    assert [event["name"] for event in found] == [
        "startup_complete",
        "partitions_assigned",
        *["record_data"] * 3,
        "records_consumed",
        "offsets_committed",
        "partitions_revoked",
        "shutdown_complete",
    ]
    partitions = [{"topic": topic, "partition": 0}]
    assert found[1]["partitions"] == found[-2]["partitions"] == partitions
    assert found[5]["count"] == 3
    assert found[5]["partitions"] == [{**partitions[0], "count": 3, "minOffset": 0, "maxOffset": 2}]
    assert found[6]["offsets"] == [{**partitions[0], "offset": 3}]
    assert found[6]["success"] is True


def test_signals_end_both_with_a_summary(bootstrap: str, tool: Tool, new_name: NewName) -> None:
    topic = make_topic(tool, new_name("t"))
    producer = start(bootstrap, "verifiable-producer", "--topic", topic, "--throughput", "100")
    consumer = start(bootstrap, "verifiable-consumer", "--topic", topic, "--group-id", new_name("g"))
    assert producer.stdout is not None
    assert consumer.stdout is not None
    while "records_consumed" not in consumer.stdout.readline():
        assert consumer.poll() is None
    producer.send_signal(signal.SIGTERM)
    consumer.send_signal(signal.SIGINT)
    wrote, read = producer.communicate(timeout=20)[0], consumer.communicate(timeout=20)[0]
    summary = events(wrote)[-1]
    assert summary["sent"] == summary["acked"]
    assert [event["name"] for event in events(read)][-3:] == [
        "shutdown_requested",
        "partitions_revoked",
        "shutdown_complete",
    ]
    assert (producer.returncode, consumer.returncode) == (143, 130)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("reachable", [True, False])
def test_a_signal_ends_a_producer_that_waits(
    bootstrap: str, tool: Tool, new_name: NewName, reachable: bool, number: signal.Signals
) -> None:
    """For a broker that is away, or because no throughput at all is wanted."""
    topic = make_topic(tool, new_name("t"))
    command = ("verifiable-producer", "--topic", topic, "--throughput", "0")
    process = start(bootstrap if reachable else "127.0.0.1:1", *command)
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        if reachable:
            while "producer_send_success" not in process.stdout.readline():
                assert process.poll() is None
        else:
            assert "no broker can be reached" in process.stderr.readline()
        process.send_signal(number)
        told, problems = process.communicate(timeout=20)
    finally:
        process.kill()
    assert [event["name"] for event in events(told)][-2:] == ["shutdown_complete", "tool_data"]
    assert (events(told)[-1]["sent"], events(told)[-1]["acked"]) == ((1, 1) if reachable else (0, 0))
    assert (process.returncode, problems) == (128 + number, "")


def test_wrong_flags_end_with_1(tool: Tool) -> None:
    assert tool("verifiable-producer").exit_code == 1
    assert "--group-id must be specified" in tool("verifiable-consumer", "--topic", "t").stderr
    no_keys = tool("verifiable-producer", "--topic", "t", "--repeating-keys", "0")
    assert no_keys.exit_code == 1
    assert "--repeating-keys is 0; it must be greater than 0" in no_keys.stderr
    files = ("--command-config", "a", "--producer.config", "b")
    assert "cannot be specified together" in tool("verifiable-producer", "--topic", "t", *files).stderr


@pytest.mark.parametrize(
    "command",
    [
        ("verifiable-producer",),
        ("verifiable-consumer", "--group-id", "unread"),
        (
            *(
                "producer-perf-test",
                "--num-records",
                "100000000",
                "--record-size",
                "10",
                "--throughput",
                "-1",
            ),
            *("--reporting-interval", "1"),
        ),
    ],
)
def test_a_reader_that_goes_away_ends_it_quietly(
    bootstrap: str, tool: Tool, new_name: NewName, command: tuple[str, ...]
) -> None:
    topic = make_topic(tool, new_name("t"))
    tool("verifiable-producer", "--topic", topic, "--max-messages", "3")
    process = start(bootstrap, *command, "--topic", topic)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    try:
        assert process.wait(30) == 0
    finally:
        process.kill()
    assert process.stderr.read() == ""
