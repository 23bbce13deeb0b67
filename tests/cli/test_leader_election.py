"""`tidelog leader-election` prints what kafka-leader-election prints and ends with the same codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tidelog.cli.leader_election import parse_partitions
from tidelog.cli.main import main
from tidelog.clients.admin import Admin, NewTopic

NewName = Callable[[str], str]


def elect(bootstrap: str, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["leader-election", "--bootstrap-server", bootstrap, *arguments])


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--election-type", "preferred"),
        ("--election-type", "other", "--all-topic-partitions"),
        ("--election-type", "preferred", "--topic", "t"),
        ("--election-type", "preferred", "--partition", "0"),
        ("--topic", "t", "--partition", "0"),
        ("--election-type", "preferred", "--topic", "t", "--partition", "0", "--all-topic-partitions"),
        ("--election-type", "preferred", "--all-topic-partitions", "--path-to-json-file", "f"),
    ],
)
def test_flags_that_do_not_go_together_end_with_1(arguments: tuple[str, ...]) -> None:
    done = elect("127.0.0.1:1", *arguments)
    assert (done.exit_code, done.stdout) == (1, "")
    assert "Usage:" in done.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("hello", "is not JSON"),
        ("{}", "no field `partitions`"),
        ('{"partitions": [{"topic": "t"}]}', "expected an object with topic and partition"),
        ('{"partitions": [{"topic": "t", "partition": 0}, {"topic": "t", "partition": 0}]}', "t-0 twice"),
    ],
)
def test_a_file_that_cannot_be_read(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_partitions(text)


def test_leaders_that_are_elected_already_and_partitions_that_do_not_exist(
    bootstrap: str, tmp_path: Path, new_name: NewName
) -> None:
    topic = new_name("led")
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 2, 1)])
    done = elect(bootstrap, "--election-type", "PREFERRED", "--topic", topic, "--partition", "1")
    assert (done.exit_code, done.stdout) == (0, f"Valid replica already elected for partitions {topic}-1\n")

    file = tmp_path / "partitions"
    wanted = [{"topic": topic, "partition": index} for index in (1, 0, 9)]
    file.write_text(json.dumps({"partitions": wanted}))
    done = elect(bootstrap, "--election-type", "preferred", "--path-to-json-file", str(file))
    elected, refused = done.stdout.splitlines()
    assert elected == f"Valid replica already elected for partitions {topic}-0, {topic}-1"
    assert refused.startswith(
        f"Error completing leader election (PREFERRED) for partition: {topic}-9: "
        "org.apache.kafka.common.errors.UnknownTopicOrPartitionException: "
    )
    assert (done.exit_code, done.stderr) == (1, "1 replica(s) could not be elected\n")


def test_all_partitions_and_none(bootstrap: str, tmp_path: Path) -> None:
    for kind in ("preferred", "unclean"):
        done = elect(bootstrap, "--election-type", kind, "--all-topic-partitions")
        assert (done.exit_code, done.stdout) == (0, "")
    file = tmp_path / "partitions"
    file.write_text('{"partitions": []}')
    done = elect(bootstrap, "--election-type", "preferred", "--path-to-json-file", str(file))
    assert (done.exit_code, done.stdout) == (0, "")
    done = elect(bootstrap, "--election-type", "preferred", "--path-to-json-file", str(tmp_path / "none"))
    assert done.exit_code == 1
