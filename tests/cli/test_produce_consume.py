"""`tidelog produce` and `tidelog consume` against a broker: formats, ranges, groups, envelopes."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cli.client_tools import NewName, Tool, assert_content_without_reader, make_topic, start, tool
from tidelog.clients.producer.blocking import Producer

__all__ = ["tool"]

KCAT = shutil.which("kcat")


@pytest.fixture
def topic(bootstrap: str, tool: Tool, new_name: NewName) -> str:
    """Ten records in each of two partitions, a millisecond apart; some have no value, and some are binary."""
    name = make_topic(tool, new_name("t"), 2)
    with Producer(bootstrap_servers=bootstrap) as producer:
        for index in range(10):
            for partition in (0, 1):
                value = None if index == 3 else b"\xff\x00" if index == 4 else f'{{"n": {index}}}'.encode()
                headers = [("h", b"1"), ("h", None)] if index == 5 else []
                producer.send(
                    name, value, f"k{index}".encode(), headers, partition, 1_600_000_000_000 + index
                )
    return name


def offsets(result_text: str) -> list[str]:
    return sorted(result_text.split())


def test_ranges(tool: Tool, topic: str) -> None:
    def read(offset: str, *more: str) -> list[str]:
        result = tool("consume", topic, "-o", offset, "-f", r"%p:%o\n", *more)
        assert result.exit_code == 0, result.output
        return offsets(result.stdout)

    assert len(read(":end")) == 20
    assert read("-1:end") == ["0:9", "1:9"]
    assert read("2:4", "-p", "1") == ["1:2", "1:3"]
    assert read("@1600000000003:1600000000005", "-p", "0") == ["0:3", "0:4"]
    assert read("@2020-09-13T12:26:40.008Z:end") == ["0:8", "0:9", "1:8", "1:9"]
    assert read("@2030-01-01:end") == []
    assert read("start", "-n", "1", "-p", "0") == ["0:0"]
    assert read("+8", "-n", "2", "-p", "0") == ["0:8", "0:9"]


def test_formats(tool: Tool, topic: str) -> None:
    layout = r"%t %p %o %k %v{json} %h{%k=%v;} %a{compression} %x %| %i\n"
    found = tool("consume", topic, "-p", "0", "-o", "2:6", "-f", layout).stdout.splitlines()
    names = [line.split(" ", 5) for line in found]
    assert [name[3] for name in names] == ["k2", "k3", "k4", "k5"]
    assert [name[4] for name in names] == ['{"n":2}', "null", '{"base64":"/wA="}', '{"n":5}']
    assert found[3].split(" ")[5] == "h=1;h=;"
    assert found[0].endswith("10 1")
    raw = tool("consume", topic, "-p", "0", "-o", "4:5", "-f", "%v").stdout_bytes
    assert raw == b"\xff\x00"


def test_objects(tool: Tool, topic: str) -> None:
    lines = tool("consume", topic, "-p", "0", "-o", "3:6").stdout.splitlines()
    found = [json.loads(line) for line in lines]
    assert [each["value"] for each in found] == [None, {"base64": "/wA="}, '{"n": 5}']
    assert found[2]["headers"] == [{"key": "h", "value": "1"}, {"key": "h", "value": None}]
    meta = tool("consume", topic, "-p", "0", "-o", "4:5", "--meta-only", "--pretty-print").stdout
    assert json.loads(meta)["value_size"] == 2
    assert "value" not in json.loads(meta)
    assert len(meta.splitlines()) > 5


def _without_brokers(envelopes: bytes) -> list[bytes]:
    """Each partition of a cluster has a broker of its own."""
    return sorted(re.sub(rb'"broker":\d+', b'"broker":', line) for line in envelopes.splitlines())


def test_envelopes_come_back_byte_for_byte(tool: Tool, topic: str, new_name: NewName) -> None:
    copy = make_topic(tool, new_name("t"), 2)
    first = tool("consume", topic, "-o", ":end", "-J").stdout_bytes
    written = tool("produce", copy, "-J", "-o", "", given=first)
    assert (written.exit_code, written.stdout) == (0, ""), written.output
    second = tool("consume", copy, "-o", ":end", "-J").stdout_bytes
    again = second.replace(copy.encode(), topic.encode())
    assert _without_brokers(again) == _without_brokers(first)
    third = tool("produce", "-J", "-o", "%t", given=first[: first.index(b"\n") + 1])
    assert third.stdout == topic, "without a topic, the envelope names it"


@pytest.mark.skipif(KCAT is None, reason="kcat is not installed")
def test_kcat_prints_the_same_envelopes(bootstrap: str, tool: Tool, topic: str) -> None:
    command = [str(KCAT), "-b", bootstrap, "-C", "-t", topic, "-p", "0", "-J", "-e", "-q", "-o", "5"]
    theirs = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    ours = tool("consume", topic, "-p", "0", "-o", "5:end", "-J").stdout
    assert ours == theirs


def test_patterns_and_groups(tool: Tool, topic: str, new_name: NewName) -> None:
    group = new_name("g")
    pattern = topic[:-3] + "..."
    read = tool("consume", pattern, "-r", "-g", group, "-n", "20", "-f", r"%o\n")
    assert len(read.stdout.splitlines()) == 20
    assert group in tool("consumer-groups", "--list").stdout
    again = tool("consume", pattern, "-r", "-o", "8:end", "-f", r"%o\n")
    assert offsets(again.stdout) == ["8", "8", "9", "9"]


def test_input_in_many_forms(tool: Tool, new_name: NewName) -> None:
    name = make_topic(tool, new_name("t"))
    out = tool("produce", name, "-f", r"%k %v{json}\n", "-o", r"%p %o %k %i\n", given='a {"x": 1}\nb [2]\n')
    assert out.stdout == "0 0 a 1\n0 1 b 2\n"
    tool("produce", name, "-f", "%K{big16}%k%V{byte}%v", given=b"\0\1c\2hi")
    tool(
        "produce", name, "-k", "d", "-H", "one:1", "-H", "two:x:y", "-Z", "-z", "gzip", "-p", "0", given="\n"
    )
    tool("produce", "-f", r"%t %v\n", given=f"{name} e")
    layout = r"%k=%v %a{compression} %h{%k:%v,}\n"
    found = tool("consume", name, "-o", ":end", "-f", layout).stdout.splitlines()
    assert found == ['a={"x":1} none ', "b=[2] none ", "c=hi none ", "d= gzip one:1,two:x:y,", "=e none "]
    (tombstone,) = tool("consume", name, "-o", "3:4", "-f", r"%v{json}\n").stdout.splitlines()
    assert tombstone == "null"


def test_an_input_that_does_not_fit_names_the_record(tool: Tool, new_name: NewName) -> None:
    name = make_topic(tool, new_name("t"))
    result = tool("produce", name, "-f", r"%p %v\n", given="0 a\nx b\n")
    assert result.exit_code == 1
    assert "record 2 of the input" in result.stderr
    assert tool("consume", name, "-o", ":end", "-f", "%v").stdout == "a", "the records before it are written"
    assert "record 1 of the input: it names no topic" in tool("produce", "-J", given="{}").stderr
    late = tool("produce", name, "-f", r"%d %v\n", given=f"{10**30} a\n")
    assert f"record 1 of the input: timestamp {10**30}" in late.stderr
    refused = tool("produce", "no/topic", given="a\n")
    assert refused.exit_code == 1
    assert "1 record was not written: topic 'no/topic': a name has 1 to 249 letters" in refused.stderr


def test_schema_files(tool: Tool, new_name: NewName, tmp_path: Path) -> None:
    pytest.importorskip("fastavro")
    schema = tmp_path / "n.avsc"
    fields = [{"name": "n", "type": "int"}]
    schema.write_text(json.dumps({"type": "record", "name": "N", "fields": fields}))
    name = make_topic(tool, new_name("t"))
    tool("produce", name, "--value-schema", str(schema), given='{"n": 3}\n')
    assert tool("consume", name, "-o", ":end", "-f", "%v{hex}").stdout == "06"
    assert tool("consume", name, "-o", ":end", "-f", "%v", "--value-schema", str(schema)).stdout == '{"n":3}'
    tool("produce", name, given="xyz\n")
    failed = tool("consume", name, "-o", ":end", "-f", "%v", "--value-schema", str(schema))
    assert failed.exit_code == 1
    assert f"{name}-0 at offset 1" in failed.stderr


def test_transactions(bootstrap: str, tool: Tool, new_name: NewName) -> None:
    name = make_topic(tool, new_name("t"))
    with Producer(bootstrap_servers=bootstrap, transactional_id=new_name("x")) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(name, b"gone")
        producer.flush()
        producer.abort_transaction()
        producer.begin_transaction()
        producer.send(name, b"stays")
        producer.commit_transaction()
    layout = r"%v %a{transactional-bit} %a{control-bit;bool}\n"
    assert tool("consume", name, "-o", ":end", "-f", r"%v\n").stdout.split() == ["gone", "stays"]
    assert tool("consume", name, "-o", ":end", "-f", r"%v\n", "--read-committed").stdout == "stays\n"
    shown = tool("consume", name, "-o", ":end", "-f", r"%o %a{control-bit;bool}\n", "--print-control-records")
    assert shown.stdout.splitlines() == ["0 false", "1 true", "2 false", "3 true"]
    assert tool("consume", name, "-o", "2:3", "-f", layout).stdout == "stays 1 false\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-p", "0", "-g", "g"), "--group does not go with --partitions"),
        (("-g", "g", "-o", "5"), "--group goes with"),
        (("-J", "-f", "%v"), "-J does not go with --format"),
        (("-p", "x"), "--partitions is 'x'"),
        (("-o", "nonsense"), "--offset nonsense"),
        (("-f", "%q"), "%q is unknown"),
        (("-r", "("), "is not a regular expression"),
        (("-r", "(?i)x"), "do not go together"),
        (("-p", "²"), "--partitions is '²'"),
        (("--meta-only", "-f", "%v"), "--meta-only goes with -f json"),
        (("--meta-only", "-J"), "--meta-only goes with -f json"),
        (("--value-schema", "x.txt"), "no schema file"),
    ],
)
def test_wrong_calls(tool: Tool, arguments: tuple[str, ...], words: str) -> None:
    result = tool("consume", "t", *arguments)
    assert result.exit_code == 1
    assert words in result.stderr


def test_a_topic_or_partition_that_is_not_there(tool: Tool, topic: str, new_name: NewName) -> None:
    assert "does not exist" in tool("consume", new_name("missing"), "-o", ":end").stderr
    assert "no partition 7" in tool("consume", topic, "-o", ":end", "-p", "7").stderr
    written = tool("produce", topic, "-p", "7", given="x\n")
    assert "has no partition 7: it has partitions 0 to 1" in written.stderr
    unmatched = tool("consume", "-r", new_name("missing") + ".*", "-o", ":end")
    assert (unmatched.exit_code, "no topic matches" in unmatched.stderr) == (1, True)
    other_case = tool("consume", "-r", "(?i)" + topic.upper(), "-o", ":1", "-f", r"%p:%o\n")
    assert offsets(other_case.stdout) == ["0:0", "1:0"]


def test_an_offset_that_no_record_has_yet_is_waited_for(bootstrap: str, topic: str) -> None:
    process = start(bootstrap, "consume", topic, "-o", "11", "-n", "1", "-f", r"%p:%o %v\n")
    try:
        assert process.stderr is not None
        assert process.stderr.readline() == "waiting for offset 11: the log ends at 10\n"
        with Producer(bootstrap_servers=bootstrap) as producer:
            for text in ("ten", "eleven"):
                producer.send(topic, text.encode(), partition=1)
        assert process.communicate(timeout=30)[0] == "1:11 eleven\n"
    finally:
        process.kill()


def test_a_reader_that_has_enough_ends_an_idle_consume(bootstrap: str, topic: str) -> None:
    process = start(bootstrap, "consume", topic, "-f", r"%o\n")
    assert process.stdout is not None
    assert process.stdout.readline() == "0\n"
    assert_content_without_reader(process)


def test_ctrl_c_ends_the_search_for_a_broker() -> None:
    process = start("127.0.0.1:1", "consume", "-r", "t.*")
    try:
        assert process.stderr is not None
        assert "no broker can be reached" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
    finally:
        process.kill()


def test_hostile_json_is_text(tool: Tool, new_name: NewName) -> None:
    name, deep = make_topic(tool, new_name("t")), "[" * 20_000
    assert tool("produce", name, given=f"{deep}\n").exit_code == 0
    assert json.loads(tool("consume", name, "-o", ":end", "-f", "%v{json}").stdout) == deep
    refused = tool("produce", name, "-J", given=f"{deep}\n")
    assert refused.exit_code == 1
    assert "record 1 of the input: a line is no JSON: it is nested too deeply" in refused.stderr


def test_produce_prints_what_it_knows(tool: Tool, new_name: NewName) -> None:
    refused = tool("produce", new_name("t"), "-o", "%[", given="x\n")
    assert (refused.exit_code, "are of consume" in refused.stderr) == (1, True)
    large = tool("produce", new_name("t"), given="x" * 2_000_000)
    assert "1 record was not written: a record of" in large.stderr
