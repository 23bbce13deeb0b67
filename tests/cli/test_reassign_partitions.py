"""`tidelog reassign-partitions` moves partitions, shows how far they are, and throttles them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.support.broker import Broker
from tests.support.contents import produce
from tests.support.wait import eventually
from tidelog.cli.main import main
from tidelog.cli.reassign_partitions import propose
from tidelog.cli.reassignment_file import Reassignment, as_text, check_executable, parse_reassignment
from tidelog.cli.reassignment_progress import progress_of
from tidelog.cli.reassignment_states import (
    LogDirMoveState,
    PartitionReassignmentState,
    ReassignmentStates,
)
from tidelog.cli.reassignment_throttles import brokers_of, moves_of, topic_throttles
from tidelog.clients.admin import Admin, NewTopic, PartitionReassignment, Replica
from tidelog.errors import InvalidReplicationFactor

NewName = Callable[[str], str]


def reassign(bootstrap: str, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["reassign-partitions", "--bootstrap-server", bootstrap, *arguments])


def plan(file: Path, *partitions: dict[str, object]) -> str:
    file.write_text(json.dumps({"version": 1, "partitions": partitions}))
    return str(file)


def entry(topic: str, partition: int, *replicas: int, **more: object) -> dict[str, object]:
    return {"topic": topic, "partition": partition, "replicas": list(replicas), **more}


# --- the file


def test_a_file_names_replicas_and_log_folders() -> None:
    text = json.dumps({"partitions": [entry("t", 1, 2, 3), entry("t", 0, 1, 2, log_dirs=["any", "/data/b"])]})
    found = parse_reassignment(text)
    assert found.replicas == {("t", 0): [1, 2], ("t", 1): [2, 3]}
    assert found.log_dirs == {Replica("t", 0, 2): "/data/b"}
    assert (found.topics, found.brokers) == (["t"], {1, 2, 3})


def test_an_assignment_is_written_as_kafka_writes_it() -> None:
    assert as_text({("t", 1): [2], ("t", 0): [1, 2]}) == (
        '{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[1,2],"log_dirs":["any","any"]},'
        '{"topic":"t","partition":1,"replicas":[2],"log_dirs":["any"]}]}'
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("hello", "is not JSON"),
        ("[]", "expected an object"),
        ('{"version": 2, "partitions": []}', "has version 2; expected 1"),
        ('{"partitions": {}}', "expected a list"),
        ('{"partitions": [{"topic": "t", "partition": true, "replicas": [1]}]}', "expected an object with"),
        ('{"partitions": [{"topic": "t", "partition": 0, "replicas": ["1"]}]}', "expected an object with"),
        (json.dumps({"partitions": [entry("t", 0, 1), entry("t", 0, 2)]}), "names partition t-0 twice"),
        (json.dumps({"partitions": [entry("t", 0, 1, 2, log_dirs=["any"])]}), "1 log_dirs for 2 replicas"),
        (json.dumps({"partitions": [entry("t", 0, 1, log_dirs=[7])]}), "expected texts in log_dirs"),
    ],
)
def test_a_file_that_cannot_be_read(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_reassignment(text)


@pytest.mark.parametrize(
    ("replicas", "words"),
    [
        ({}, "has no partitions"),
        ({("t", 0): []}, "no replicas for partition t-0"),
        ({("t", 0): [1, 1]}, "name broker 1 twice"),
        ({("t", 0): [1, 9]}, "not alive: 9. Alive are 1,2"),
    ],
)
def test_a_reassignment_that_cannot_be_executed(replicas: dict[Any, list[int]], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_executable(Reassignment(replicas, {}), [2, 1])


# --- the proposal


def test_a_proposal_keeps_the_replication_factor_and_uses_all_brokers() -> None:
    current = {("t", index): [1, 2] for index in range(6)} | {("u", 0): [1]}
    proposed = propose(current, {1: None, 2: None, 3: None}, rack_aware=True)
    assert {len(proposed["t", index]) for index in range(6)} == {2}
    assert len(proposed["u", 0]) == 1
    assert sorted(proposed["t", index][0] for index in range(6)) == [1, 1, 2, 2, 3, 3]


def test_a_proposal_has_the_replicas_that_are_asked_for() -> None:
    current = {("t", index): [1] for index in range(3)} | {("u", 0): [1, 2]}
    proposed = propose(current, {1: None, 2: None, 3: None}, rack_aware=True, replication_factor=3)
    assert [sorted(replicas) for replicas in proposed.values()] == [[1, 2, 3]] * 4


def test_a_proposal_uses_racks() -> None:
    current = {("t", index): [1, 2] for index in range(8)}
    racks = {1: "a", 2: "a", 3: "b", 4: "b"}
    proposed = propose(current, racks, rack_aware=True)
    assert {frozenset(racks[broker] for broker in replicas) for replicas in proposed.values()} == {
        frozenset("ab")
    }
    with pytest.raises(ValueError, match="brokers without a rack: 2"):
        propose(current, {1: "a", 2: None}, rack_aware=True)
    assert propose(current, {1: "a", 2: None}, rack_aware=False).keys() == current.keys()


def test_a_proposal_needs_enough_brokers() -> None:
    with pytest.raises(InvalidReplicationFactor):
        propose({("t", 0): [1, 2]}, {1: None}, rack_aware=True)


# --- throttles


def test_present_replicas_are_throttled_as_leaders_and_new_ones_as_followers() -> None:
    moves = moves_of({}, {("t", 0): [1, 2], ("t", 2): [2, 1]}, {("t", 0): [3, 2], ("t", 2): [2, 1]})
    assert topic_throttles(moves) == {"t": ("0:2,0:3,2:1,2:2", "0:1")}
    assert brokers_of(moves) == [1, 2, 3]


def test_an_additional_move_starts_from_the_replicas_before_the_running_one() -> None:
    running = {
        ("t", 0): PartitionReassignment([1, 2, 3], [1], [3]),
        ("u", 0): PartitionReassignment([5, 6], [6], [5]),
    }
    moves = moves_of(running, {("t", 0): [4, 2]}, {("t", 0): [1, 2, 3]})
    assert topic_throttles(moves) == {"t": ("0:2,0:3", "0:4"), "u": ("0:5", "0:6")}


# --- states


def test_the_line_of_each_state_of_a_partition() -> None:
    partition = ("t", 0)
    assert PartitionReassignmentState([1, 2], [1, 2], True).line(partition) == (
        "Reassignment of partition t-0 is completed."
    )
    assert PartitionReassignmentState([1, 2, 3], [1, 2], False).line(partition) == (
        "Reassignment of partition t-0 is still in progress."
    )
    assert PartitionReassignmentState([2, 1], [1, 2], True).line(partition) == (
        "There is no active reassignment of partition t-0, but replica set is 2,1 rather than 1,2."
    )


@pytest.mark.parametrize(
    ("current", "future", "done", "line"),
    [
        ("/b", None, True, "Reassignment of replica t-0-1 completed successfully."),
        ("/a", "/b", False, "Reassignment of replica t-0-1 is still in progress."),
        ("/a", "/c", False, "Partition t-0 on broker 1 is being moved to log dir /c instead of /b."),
        ("/a", None, True, "Partition t-0 on broker 1 is not being moved from log dir /a to /b."),
        (
            None,
            None,
            False,
            "Partition t-0 is not found in any live log dir on broker 1. "
            "There is likely an offline log directory on the broker.",
        ),
    ],
)
def test_the_line_of_each_state_of_a_log_folder(
    current: str | None, future: str | None, done: bool, line: str
) -> None:
    state = LogDirMoveState(current, future, "/b")
    assert (state.done, state.line(Replica("t", 0, 1))) == (done, line)


def test_throttles_are_needed_while_anything_moves() -> None:
    arrived = {("t", 0): PartitionReassignmentState([1], [1], True)}
    assert not ReassignmentStates(arrived, {}, False).ongoing
    other_moves = ReassignmentStates(arrived, {}, True)
    assert (other_moves.ongoing, other_moves.own_ongoing) == (True, False)
    copying = {Replica("t", 0, 1): LogDirMoveState("/a", "/b", "/b")}
    folder_moves = ReassignmentStates(arrived, copying, False)
    assert (folder_moves.ongoing, folder_moves.own_ongoing) == (True, True)


def test_progress_counts_the_bytes_of_added_replicas() -> None:
    states = ReassignmentStates(
        {
            ("t", 0): PartitionReassignmentState([1, 2], [1, 2], True),
            ("t", 1): PartitionReassignmentState([2, 3, 1], [2, 3], False),
        },
        {},
        True,
    )
    running = {
        ("t", 1): PartitionReassignment([2, 3, 1], [2, 3], [1]),
        ("other", 0): PartitionReassignment([1, 2], [2], [1]),
    }
    sizes = {("t", 1): {1: 4_000_000, 2: 1_000_000}, ("other", 0): {1: 9}}
    progress = progress_of(states, running, sizes)
    assert (progress.copied, progress.total) == (1_000_000, 8_000_000)
    assert progress.line() == "1 of 2 partitions done, 1.0 MB of 8.0 MB copied for the others"


# --- flags


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--list", "--verify"),
        ("--generate",),
        ("--generate", "--broker-list", "1"),
        ("--execute",),
        ("--verify",),
        ("--cancel",),
        ("--list", "--throttle", "5"),
        ("--verify", "--reassignment-json-file", "f", "--throttle", "5"),
        ("--verify", "--reassignment-json-file", "f", "--additional"),
        ("--execute", "--reassignment-json-file", "f", "--preserve-throttles"),
        ("--execute", "--reassignment-json-file", "f", "--replication-factor", "3"),
        ("--execute", "--reassignment-json-file", "f", "--output", "json"),
        ("--cancel", "--reassignment-json-file", "f", "--wait"),
    ],
)
def test_flags_that_do_not_go_together_end_with_1(arguments: tuple[str, ...]) -> None:
    done = reassign("127.0.0.1:1", *arguments)
    assert (done.exit_code, done.stdout) == (1, "")
    assert "Usage:" in done.stderr


# --- on a broker


def test_nothing_is_reassigned(bootstrap: str) -> None:
    done = reassign(bootstrap, "--list")
    assert (done.exit_code, done.stdout) == (0, "No partition reassignments found.\n")
    assert reassign(bootstrap, "--list", "--output", "json").stdout == "[]\n"


def test_partitions_and_topics_that_do_not_exist(bootstrap: str, tmp_path: Path, new_name: NewName) -> None:
    topic = new_name("small")
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 1, 1)])
        broker = admin.describe_topics([topic])[topic].partitions[0].leader
    for name, index, words in ((topic, 9, f"{topic}-9"), ("missing", 0, "missing")):
        done = reassign(
            bootstrap,
            *("--execute", "--reassignment-json-file"),
            plan(tmp_path / "plan", entry(name, index, broker)),
        )
        assert done.exit_code == 1
        assert done.stdout.startswith("Error: ")
        assert words in done.stdout


def test_a_replica_moves_to_another_folder(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    with Broker(tmp_path / "broker", {"log.dirs": f"{a},{b}", "broker.id": "1"}) as broker:
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            admin.create_topics([NewTopic("t", 1, 1)])
        produce(broker.bootstrap, {("t", 0): [b"x" * 1000] * 100})
        other = b if (a / "t-0").exists() else a
        file = plan(tmp_path / "plan", entry("t", 0, 1, log_dirs=[str(other)]))
        where = ("--reassignment-json-file", file)

        done = reassign(broker.bootstrap, "--verify", *where, "--preserve-throttles")
        assert done.exit_code == 0
        assert done.stdout.splitlines()[1:] == [
            "Reassignment of partition t-0 is completed.",
            f"Partition t-0 on broker 1 is not being moved from log dir {a if other == b else b} to {other}.",
        ]
        done = reassign(broker.bootstrap, "--execute", *where, "--timeout", "5000", "--wait")
        assert done.exit_code == 0, done.stdout
        lines = done.stdout.splitlines()
        assert "Successfully started partition reassignment for t-0" in lines
        assert f"Successfully started moving log directory to {other} for replica t-0 with broker 1 " in lines
        assert lines[-3:] == [
            "Reassignment of replica t-0-1 completed successfully.",
            "Clearing broker-level throttles on broker 1",
            "Clearing topic-level throttles on topic t",
        ]
        eventually((other / "t-0").exists, "the replica is in the other folder")
        told = json.loads(reassign(broker.bootstrap, "--verify", *where, "--output", "json").stdout)
        assert [found["state"] for found in told["partitions"]] == ["completed"]
        assert [found["state"] for found in told["logDirs"]] == ["completed"]

        nowhere = plan(tmp_path / "plan", entry("t", 0, 1, log_dirs=["/nowhere"]))
        done = reassign(broker.bootstrap, "--execute", "--reassignment-json-file", nowhere)
        assert done.exit_code == 1
        assert done.stdout.splitlines()[-1].startswith("Error: Failed to alter dir for t-0-1")


def test_nothing_is_there_to_cancel(bootstrap: str, tmp_path: Path, new_name: NewName) -> None:
    topic = new_name("still")
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 1, 1)])
        eventually(lambda: topic in admin.list_topics(), "the topic is listed")
        broker = admin.describe_topics([topic])[topic].partitions[0].leader
    file = plan(tmp_path / "plan", entry(topic, 0, broker))
    done = reassign(bootstrap, "--cancel", "--reassignment-json-file", file, "--preserve-throttles")
    assert (done.exit_code, done.stdout.splitlines()) == (
        0,
        [
            "None of the specified partition reassignments are active.",
            "None of the specified partition moves are active.",
        ],
    )


def test_a_proposal_for_one_broker(bootstrap: str, tmp_path: Path, new_name: NewName) -> None:
    topic = new_name("proposed")
    with Admin(bootstrap_servers=bootstrap) as admin:
        broker = admin.describe_cluster().nodes[0]
        admin.create_topics([NewTopic(topic, replica_assignments={0: [broker.id], 1: [broker.id]})])
    file = tmp_path / "topics"
    file.write_text(json.dumps({"topics": [{"topic": topic}], "version": 1}))
    asked = ("--generate", "--topics-to-move-json-file", str(file), "--broker-list")
    done = reassign(bootstrap, *asked, str(broker.id))
    wanted = as_text({(topic, 0): [broker.id], (topic, 1): [broker.id]})
    assert (done.exit_code, done.stdout.splitlines()) == (
        0,
        [
            "Current partition replica assignment",
            wanted,
            "",
            "Proposed partition reassignment configuration",
            wanted,
        ],
    )
    for brokers in ("x", f"{broker.id},{broker.id}", "77"):
        assert reassign(bootstrap, *asked, brokers).exit_code == 1
