"""`tidelog delete-records` prints what kafka-delete-records prints and ends with the same codes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.kafka.jars import run_tool
from tests.support.contents import offset_at, produce
from tests.support.routing import routed_connection
from tests.support.wait import eventually
from tidelog.cli.main import main
from tidelog.clients.admin import Admin, NewTopic
from tidelog.protocol.offset_specs import EARLIEST

NewName = Callable[[str], str]
TOOL = "org.apache.kafka.tools.DeleteRecordsCommand"
HEAD = "Executing records delete operation\nRecords delete operation completed:\n"


@pytest.fixture
def delete(bootstrap: str, tmp_path: Path) -> Callable[[object], Result]:
    def run(asked: object) -> Result:
        file = tmp_path / "offsets.json"
        file.write_text(asked if isinstance(asked, str) else json.dumps(asked))
        arguments = ["--bootstrap-server", bootstrap, "--offset-json-file", str(file)]
        return CliRunner().invoke(main, ["delete-records", *arguments])

    return run


Delete = Callable[[object], Result]


def asked(*entries: tuple[str, int, int]) -> dict[str, object]:
    partitions = [{"topic": t, "partition": p, "offset": o} for t, p, o in entries]
    return {"partitions": partitions, "version": 1}


def make(bootstrap: str, name: str, partitions: int = 1, **configs: str) -> None:
    with Admin(bootstrap_servers=bootstrap) as admin:
        settings = {key.replace("_", "."): value for key, value in configs.items()}
        admin.create_topics([NewTopic(name, partitions, 1, configs=settings)])
        eventually(lambda: name in admin.list_topics(), f"{name} is listed")
    produce(bootstrap, {(name, index): [b"value"] * 10 for index in range(partitions)})


def start_of(bootstrap: str, name: str, partition: int = 0) -> int:
    with routed_connection(bootstrap) as connection:
        return offset_at(connection, (name, partition), EARLIEST)


def test_records_below_the_offsets_are_gone(bootstrap: str, new_name: NewName, delete: Delete) -> None:
    name = new_name("shorter")
    make(bootstrap, name, 3)
    done = delete(asked((name, 1, -1), (name, 0, 4)))
    assert done.exit_code == 0
    assert done.stdout == (
        f"{HEAD}partition: {name}-0\tlow_watermark: 4\npartition: {name}-1\tlow_watermark: 10\n"
    )
    assert [start_of(bootstrap, name, index) for index in range(3)] == [4, 10, 0]


def test_each_partition_has_its_own_error(bootstrap: str, new_name: NewName, delete: Delete) -> None:
    name, compacted = new_name("beyond"), new_name("compacted")
    make(bootstrap, name)
    make(bootstrap, compacted, cleanup_policy="compact")
    missing = new_name("missing")
    done = delete(asked((name, 0, 99), (name, 7, 1), (compacted, 0, 1), (missing, 0, 1)))
    assert done.exit_code == 0
    errors = dict(
        re.findall(
            r"^partition: (\S+)\terror: org\.apache\.kafka\.common\.errors\.(\w+): ", done.stdout, re.M
        )
    )
    assert errors == {
        f"{name}-0": "OffsetOutOfRangeException",
        f"{name}-7": "UnknownTopicOrPartitionException",
        f"{compacted}-0": "PolicyViolationException",
        f"{missing}-0": "UnknownTopicOrPartitionException",
    }
    assert start_of(bootstrap, name) == 0
    with Admin(bootstrap_servers=bootstrap) as admin:
        assert missing not in admin.list_topics()


def test_nothing_asked_is_nothing_done(delete: Delete) -> None:
    for nothing in ({"partitions": []}, {"partitions": [], "version": 1, "more": 1}):
        done = delete(nothing)
        assert (done.exit_code, done.stdout) == (0, HEAD)


BAD = {
    "not json": "not JSON",
    "": "not JSON",
    "[]": "expected an object",
    '{"version": 1}': "no field `partitions`",
    '{"partitions": {"a": 1}}': '`partitions` of the file of offsets is {"a": 1}; expected a list',
    '{"version": 2, "partitions": []}': "has version 2; expected 1",
    '{"version": "1", "partitions": []}': 'has version "1"; expected 1',
    '{"partitions": [{"topic": "t", "partition": 0}]}': "expected an object with topic, partition and offset",
    '{"partitions": [{"topic": "t", "partition": "0", "offset": 1}]}': "expected an object with",
    '{"partitions": [{"topic": "t", "partition": true, "offset": 1}]}': "expected an object with",
    '{"partitions": [{"topic": "t", "partition": 0, "offset": 9223372036854775808}]}': "expected an object",
    '{"partitions": ["t-0"]}': "expected an object with topic, partition and offset",
    json.dumps(asked(("t", 0, 1), ("t", 0, 2))): "names t-0 twice",
}


@pytest.mark.parametrize("text", BAD)
def test_a_file_that_makes_no_sense(delete: Delete, text: str) -> None:
    done = delete(text)
    assert (done.exit_code, done.stdout) == (1, "")
    assert BAD[text] in done.stderr


def test_wrong_flags(bootstrap: str, tmp_path: Path) -> None:
    def run(*arguments: str) -> Result:
        return CliRunner().invoke(main, ["delete-records", *arguments])

    for done, reason in (
        (run("--bootstrap-server", bootstrap), "--offset-json-file must be specified"),
        (run("--bootstrap-server", bootstrap, "--offset-json-file", str(tmp_path / "none")), "No such file"),
    ):
        assert (done.exit_code, done.stdout) == (1, "")
        assert reason in done.stderr


@pytest.mark.kafka
def test_kafkas_tool_prints_the_same(
    bootstrap: str, new_name: NewName, delete: Delete, tmp_path: Path
) -> None:
    name, compacted = new_name("compared"), new_name("compacted")
    make(bootstrap, name, 2)
    make(bootstrap, compacted, cleanup_policy="compact")
    file = tmp_path / "offsets.json"
    for text in (
        json.dumps(asked((name, 0, 3), (name, 1, -1))),
        json.dumps(asked((name, 0, 99), (name, 1, -2), (compacted, 0, 1))),
        '{"partitions": []}',
        *BAD,
    ):
        file.write_text(text)
        flags = ("--bootstrap-server", bootstrap, "--offset-json-file", str(file))
        theirs = run_tool("kafka4", TOOL, *flags)
        ours = delete(text)
        assert ours.exit_code == theirs.returncode, text
        assert words(ours.stdout) == words(theirs.stdout), text


def words(printed: str) -> list[str]:
    """Its lines; the explanation behind the name of an error is each tool's own."""
    return sorted(re.sub(r"(errors\.\w+): .*", r"\1", line) for line in printed.splitlines())
