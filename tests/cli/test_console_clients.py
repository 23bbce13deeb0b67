"""`tidelog console-producer` and `console-consumer`: lines in, lines out, as Kafka's."""

from __future__ import annotations

import json
import signal
import struct
import subprocess
import sys
import threading
from typing import Any

import pytest

from tests.cli.client_tools import NewName, Tool, make_topic, start, tool
from tests.support.wait import eventually
from tidelog.cli import topic_checks
from tidelog.cli.console_producer import Line, LineReader, ended
from tidelog.cli.record_format import DefaultFormat, as_json, formatter, readable
from tidelog.records.loops import ConsumerRecord

__all__ = ["tool"]

HEADERS_AND_KEY = (
    "--reader-property",
    "parse.key=true",
    "--reader-property",
    "parse.headers=true",
    "--reader-property",
    "null.marker=NULL",
)


# Enough time for a member to join, and an end for a test that fails.
ENDING = ("--timeout-ms", "10000", "--max-messages", "1")


def shown(*columns: str) -> list[str]:
    return [text for column in columns for text in ("--formatter-property", f"print.{column}=true")]


def test_what_one_writes_the_other_prints(tool: Tool, new_name: NewName) -> None:
    topic = make_topic(tool, new_name("t"))
    wrote = tool("console-producer", "--topic", topic, given="one\ntwö\n\nfour")
    assert (wrote.exit_code, wrote.stdout) == (0, "")
    read = tool("console-consumer", "--topic", topic, "--from-beginning", "--max-messages", "4")
    assert read.exit_code == 0
    assert read.stdout == "one\ntwö\n\nfour\n"
    assert read.stderr == "Processed a total of 4 messages\n"


def test_headers_keys_and_nulls_go_both_ways(tool: Tool, new_name: NewName) -> None:
    topic = make_topic(tool, new_name("t"))
    wrote = tool(
        "console-producer", "--topic", topic, *HEADERS_AND_KEY, given="a:1,b:NULL\tk1\tv1\nNULL\tNULL\tNULL\n"
    )
    assert wrote.exit_code == 0, wrote.output
    columns = shown("headers", "key", "offset", "partition")
    read = tool("console-consumer", "--topic", topic, "--from-beginning", "--max-messages", "2", *columns)
    assert read.stdout.splitlines() == [
        "Partition:0\tOffset:0\ta:1,b:null\tk1\tv1",
        "Partition:0\tOffset:1\tNO_HEADERS\tnull\tnull",
    ]
    read = tool(
        "console-consumer", "--topic", topic, "--from-beginning", "--max-messages", "2", "--output", "json"
    )
    first, second = map(json.loads, read.stdout.splitlines())
    assert (first["headers"], first["key"], first["value"]) == ([["a", "1"], ["b", None]], "k1", "v1")
    assert (second["headers"], second["key"], second["value"], second["offset"]) == ([], None, None, 1)


def test_a_partition_is_read_from_an_offset(tool: Tool, new_name: NewName) -> None:
    topic = make_topic(tool, new_name("t"))
    tool("console-producer", "--topic", topic, "--sync", "--compression-codec", "zstd", given="a\nb\nc\n")
    where = ("--topic", topic, "--partition", "0", "--max-messages")
    assert tool("console-consumer", *where, "2", "--offset", "1").stdout == "b\nc\n"
    assert tool("console-consumer", *where, "3", "--offset", "earliest").stdout == "a\nb\nc\n"
    assert tool("console-consumer", *where, "1", "--timeout-ms", "300").stdout == ""


@pytest.mark.parametrize("name", ["console-consumer", "consumer-perf-test"])
def test_a_topic_that_is_not_there_is_told_of_and_not_made(
    tool: Tool, new_name: NewName, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(topic_checks, "UNKNOWN_TOPIC_SECONDS", 0.5)
    topic = new_name("typo")
    flags = {"console-consumer": ("--timeout-ms", "100"), "consumer-perf-test": ("--num-records", "1")}
    result = tool(name, "--topic", topic, *flags[name])
    assert result.exit_code == 1
    assert f"tidelog: topic '{topic}' does not exist\n" in result.stderr
    assert topic not in tool("topics", "--list").stdout.split()


def test_a_topic_is_made_where_the_settings_say_so(tool: Tool, new_name: NewName) -> None:
    topic = new_name("wanted")
    result = tool(
        "console-consumer", "--topic", topic, "--timeout-ms", "100",
        "--command-property", "allow.auto.create.topics=true",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert topic in tool("topics", "--list").stdout.split()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--partition", "9"), "topic '{topic}' has no partition 9: it has partitions 0 to 1"),
        (("--partition", "9", "--offset", "0"), "topic '{topic}' has no partition 9: it has partitions 0"),
        (
            ("--partition", "0", "--offset", "99999"),
            "offset 99999 of {topic}-0 is out of range: its log goes",
        ),
    ],
)
def test_a_partition_or_an_offset_that_is_not_there_is_told_of(
    tool: Tool, new_name: NewName, flags: tuple[str, ...], words: str
) -> None:
    topic = make_topic(tool, new_name("absent"), 2)
    result = tool("console-consumer", "--topic", topic, "--timeout-ms", "100", *flags)
    assert result.exit_code == 1
    assert "tidelog: " + words.format(topic=topic) in result.stderr


def test_the_next_offset_may_be_waited_for(tool: Tool, new_name: NewName) -> None:
    topic = make_topic(tool, new_name("next"))
    flags = ("--topic", topic, "--partition", "0", "--timeout-ms", "100")
    assert tool("console-consumer", *flags, "--offset", "0").exit_code == 0
    # Whoever says what to do with an offset that is not there has it done.
    reset = ("--offset", "99999", "--command-property", "auto.offset.reset=earliest")
    assert tool("console-consumer", *flags, *reset).exit_code == 0


def test_a_group_goes_on_where_it_was(tool: Tool, new_name: NewName) -> None:
    topic = make_topic(tool, new_name("t"))
    tool("console-producer", "--topic", topic, given="a\nb\nc\n")
    group = ("--topic", topic, "--group", new_name("g"), "--from-beginning")
    assert tool("console-consumer", *group, "--max-messages", "2").stdout == "a\nb\n"
    assert tool("console-consumer", *group, "--max-messages", "1").stdout == "c\n"


def test_topics_are_chosen_by_a_pattern(tool: Tool, new_name: NewName) -> None:
    prefix = new_name("p")
    for number in (1, 2):
        tool("console-producer", "--topic", make_topic(tool, f"{prefix}-{number}"), given=f"{number}\n")
    read = tool("console-consumer", "--include", f"{prefix}-.*", "--from-beginning", "--max-messages", "2")
    assert sorted(read.stdout.split()) == ["1", "2"]


def test_ctrl_c_ends_it_with_the_count_and_a_code(bootstrap: str, tool: Tool, new_name: NewName) -> None:
    topic = make_topic(tool, new_name("t"))
    tool("console-producer", "--topic", topic, given="a\n")
    process = start(bootstrap, "console-consumer", "--topic", topic, "--from-beginning")
    assert process.stdout is not None
    assert process.stdout.readline() == "a\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert errors == "Processed a total of 1 messages\n"
    assert process.returncode == 130


def test_what_was_typed_is_written_before_a_signal_ends_it(
    bootstrap: str, tool: Tool, new_name: NewName
) -> None:
    topic = make_topic(tool, new_name("t"))
    process = start(bootstrap, "console-producer", "--topic", topic, "--timeout", "600000")
    assert process.stdin is not None
    # A full batch is sent at once, which shows that the tool has read; the line behind it waits for more.
    process.stdin.write("x" * 20_000 + "\nlast\n")
    process.stdin.flush()

    def first_is_there() -> bool:
        return tool("get-offsets", "--topic", topic).stdout == f"{topic}:0:1\n"

    eventually(first_is_there, "the first line is written", 30)
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 128 + signal.SIGTERM
    assert tool("get-offsets", "--topic", topic).stdout == f"{topic}:0:2\n"


def test_what_was_not_printed_is_not_committed(bootstrap: str, tool: Tool, new_name: NewName) -> None:
    topic, group = make_topic(tool, new_name("t")), new_name("g")
    tool("console-producer", "--topic", topic, given="12345678\nodd\n87654321\n")
    flags = ("--topic", topic, "--group", group, "--from-beginning")
    process = start(bootstrap, "console-consumer", *flags)
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(30) == 0
    number = ("--value-deserializer", "org.apache.kafka.common.serialization.LongDeserializer")
    failed = tool("console-consumer", *flags, *number, "--timeout-ms", "10000")
    assert failed.exit_code == 1
    assert failed.stdout == f"{int.from_bytes(b'12345678')}\n"
    assert f"the record of {topic}-0 at offset 1 cannot be printed" in failed.stderr
    assert tool("console-consumer", *flags, *ENDING).stdout == "87654321\n"


def test_a_group_has_one_name(tool: Tool) -> None:
    flags = ("--topic", "t", "--group", "a", *ENDING)
    result = tool("console-consumer", *flags, "--command-property", "group.id=b")
    assert result.exit_code == 1
    assert "--group is 'a', and group.id among the settings is 'b'" in result.stderr


def test_a_reader_that_goes_away_ends_it_quietly(bootstrap: str, tool: Tool, new_name: NewName) -> None:
    topic = make_topic(tool, new_name("t"))
    tool("console-producer", "--topic", topic, given="a\n")
    process = start(bootstrap, "console-consumer", "--topic", topic, "--from-beginning")
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == "a\n"
    process.stdout.close()
    stop = threading.Event()

    def feed() -> None:
        while not stop.is_set():
            tool("console-producer", "--topic", topic, given="more\n")

    feeder = threading.Thread(target=feed)
    feeder.start()
    try:
        eventually(lambda: process.poll() is not None, "it ended", 20)
    finally:
        stop.set()
        feeder.join()
        process.kill()
    assert "Traceback" not in process.stderr.read()


@pytest.mark.parametrize(
    ("name", "closing", "words"),
    [
        ("console-producer", "<&-", "standard input is closed: there are no lines to write"),
        ("console-consumer", ">&-", "standard output is closed: there is nowhere to print records"),
    ],
)
def test_a_closed_end_is_told_of_in_one_line(name: str, closing: str, words: str) -> None:
    command = [sys.executable, "-m", "tidelog", name, "--bootstrap-server", "127.0.0.1:1", "--topic", "t"]
    closed = ["sh", "-c", f'exec "$@" {closing}', "sh", *command]
    result = subprocess.run(closed, stderr=subprocess.PIPE, text=True, timeout=60)
    assert (result.returncode, result.stderr) == (1, f"tidelog: {words}\n")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ((), "expected one of --topic and --include"),
        (("--topic", "t", "--include", "t"), "expected one of --topic and --include"),
        (("--include", "["), "--include [ is not a regular expression"),
        (("--topic", "t", "--offset", "1"), "--offset needs --partition"),
        (("--topic", "t", "--partition", "0", "--offset", "first"), "The provided offset value 'first'"),
        (("--topic", "t", "--partition", "0", "--group", "g"), "--group does not go with --partition"),
        (("--topic", "t", "--formatter", "x.Y"), "expected one of DefaultMessageFormatter"),
        (("--topic", "t", "--property", "print.key"), "--property 'print.key': expected name=value"),
        (
            ("--topic", "t", "--from-beginning", "--consumer-property", "auto.offset.reset=latest"),
            "--from-beginning",
        ),
    ],
)
def test_wrong_flags_of_the_consumer_end_with_1(tool: Tool, flags: tuple[str, ...], words: str) -> None:
    result = tool("console-consumer", *flags)
    assert result.exit_code == 1
    assert words in result.stderr


def test_what_is_wrong_with_a_line_is_said(tool: Tool, new_name: NewName) -> None:
    topic = make_topic(tool, new_name("t"))
    result = tool("console-producer", "--topic", topic, "--property", "parse.key=true", given="k\tv\nnokey\n")
    assert result.exit_code == 1
    assert "No key separator found on line number 2: 'nokey'" in result.stderr


def test_a_record_that_is_refused_ends_it_with_1(tool: Tool, new_name: NewName) -> None:
    topic = make_topic(tool, new_name("t"), 1, "cleanup.policy=compact")
    result = tool("console-producer", "--topic", topic, given="no key\n")
    assert result.exit_code == 1
    assert f"a record for {topic} was not written" in result.stderr


def test_lines_are_cut_as_kafkas_reader_cuts_them() -> None:
    reader = LineReader.of({"parse.key": "true", "key.separator": "::"})
    assert reader.read(b"a::b::c", 1) == Line(b"a", b"b::c", ())
    lenient = LineReader.of({"parse.key": "true", "parse.headers": "true", "ignore.error": "true"})
    assert lenient.read(b"x", 1) == Line(None, b"x", ())
    assert lenient.read(b"h\tk\tv", 1) == Line(b"k", b"v", (("h", None),))
    with pytest.raises(ValueError, match="may not be equal"):
        LineReader.of({"headers.separator": ":"})
    with pytest.raises(ValueError, match="No header key separator found in pair 'h' on line number 7"):
        LineReader.of({"parse.headers": "true"}).read(b"h\tv", 7)


def test_an_empty_header_is_refused_but_at_the_end() -> None:
    reader = LineReader.of({"parse.headers": "true"})
    assert reader.read(b"a:1,b:2,,\tv", 1) == Line(None, b"v", (("a", b"1"), ("b", b"2")))
    assert reader.read(b",\tv", 1) == Line(None, b"v", ())
    for line in (b"a:1,,b:2\tv", b",a:1\tv", b"\tv"):
        with pytest.raises(ValueError, match="No header key separator found in pair '' on line number 3"):
            reader.read(line, 3)


def test_a_separator_without_a_character_is_refused_by_its_name() -> None:
    with pytest.raises(ValueError, match=r"key\.separator is empty"):
        LineReader.of({"parse.key": "true", "key.separator": ""})
    assert LineReader.of({"null.marker": ""}).read(b"", 1) == Line(None, None, ())


def test_lines_end_as_in_java() -> None:
    assert list(ended([b"a\r\n", b"b\rc\n", b"\n", b"\r\r\n", b"d\r"])) == [
        b"a",
        b"b",
        b"c",
        b"",
        b"",
        b"",
        b"d",
    ]


@pytest.mark.parametrize(
    ("name", "new", "old"),
    [
        ("console-producer", ("--reader-property", "a=b"), ("--property", "a=b")),
        ("console-producer", ("--command-property", "acks=1"), ("--producer-property", "acks=1")),
        ("console-producer", ("--command-config", "a"), ("--producer.config", "b")),
        ("console-consumer", ("--formatter-property", "a=b"), ("--property", "a=b")),
        ("console-consumer", ("--command-property", "a=b"), ("--consumer-property", "a=b")),
        ("console-consumer", ("--command-config", "a"), ("--consumer.config", "b")),
    ],
)
def test_a_flag_does_not_go_with_its_older_name(
    tool: Tool, name: str, new: tuple[str, str], old: tuple[str, str]
) -> None:
    result = tool(name, "--topic", "t", *new, *old, given="")
    assert result.exit_code == 1
    assert f"{new[0]} and {old[0]} cannot be specified together" in result.stderr


@pytest.mark.parametrize(
    ("name", "flag"),
    [
        ("console-producer", "--property"),
        ("console-producer", "--reader-property"),
        ("console-producer", "--producer-property"),
        ("console-producer", "--command-property"),
        ("console-consumer", "--formatter-property"),
        ("console-consumer", "--consumer-property"),
        ("console-consumer", "--command-property"),
        ("producer-perf-test", "--producer-props"),
        ("producer-perf-test", "--command-property"),
    ],
)
def test_a_setting_without_a_value_is_refused_by_the_flag_it_was_given_with(
    tool: Tool, name: str, flag: str
) -> None:
    more = ("--num-records", "1", "--record-size", "1", "--throughput", "-1") if "perf" in name else ()
    refused = tool(name, "--topic", "t", *more, flag, "acks", given="")
    assert refused.exit_code == 1
    assert refused.stderr == f"tidelog: {flag} 'acks': expected name=value\n"


def test_records_are_printed_as_kafkas_formatter_prints_them() -> None:
    record = ConsumerRecord(
        "t", 3, 42, 1700000000000, b"\x00\x00\x00\x07", b"v", (("h", b"1"), ("i", None)), 1, 5
    )
    everything = {
        f"print.{name}": "true" for name in ("timestamp", "partition", "offset", "delivery", "epoch")
    }
    everything |= {"print.key": "true", "print.headers": "TRUE", "key.separator": "|", "null.literal": "-"}
    everything["key.deserializer"] = "org.apache.kafka.common.serialization.IntegerDeserializer"
    line = DefaultFormat.of(everything).line(record)
    assert (
        line
        == b"LogAppendTime:1700000000000|Partition:3|Offset:42|Delivery:NOT_PRESENT|Epoch:5|h:1,i:-|7|v\n"
    )
    assert DefaultFormat.of({"print.value": "false"}).line(record) == b""
    assert formatter("a.b.NoOpMessageFormatter", {})(record) == b""


@pytest.mark.parametrize(
    ("kind", "data", "text"),
    [
        ("Float", struct.pack(">f", 0.1), b"0.1"),
        ("Float", struct.pack(">f", 1e-9), b"1.0E-9"),
        ("Float", struct.pack(">f", 16777216.0), b"1.6777216E7"),
        ("Double", struct.pack(">d", 1e20), b"1.0E20"),
        ("Double", struct.pack(">d", -123456.75), b"-123456.75"),
        ("Double", struct.pack(">d", 100.0), b"100.0"),
        ("Double", struct.pack(">d", -0.0), b"-0.0"),
        ("Double", struct.pack(">d", -1.25e-4), b"-1.25E-4"),
        ("Double", struct.pack(">d", float("nan")), b"NaN"),
        ("Double", struct.pack(">d", float("-inf")), b"-Infinity"),
        ("Boolean", b"\x01", b"true"),
        ("Bytes", b"a\\\xff", rb"a\x5C\xFF"),
        ("String", b"a\xff", "a\ufffd".encode()),
        ("Long", struct.pack(">q", -5), b"-5"),
    ],
)
def test_values_are_printed_as_java_writes_them(kind: str, data: bytes, text: bytes) -> None:
    name = f"org.apache.kafka.common.serialization.{kind}Deserializer"
    assert (
        DefaultFormat.of({"value.deserializer": name}).line(ConsumerRecord("t", 0, 0, 5, None, data))
        == text + b"\n"
    )


def test_records_of_the_coordinators_are_printed_as_kafkas_formatters_print_them(
    tool: Tool, new_name: NewName
) -> None:
    topic, group, transaction = make_topic(tool, new_name("t")), new_name("g"), new_name("x")
    flags = ("--num-records", "2", "--record-size", "1", "--throughput", "-1")
    assert (
        tool("producer-perf-test", "--topic", topic, *flags, "--transactional-id", transaction).exit_code == 0
    )
    tool("console-consumer", "--topic", topic, "--group", group, "--from-beginning", *ENDING)

    def printed(formatter: str, internal: str) -> list[dict[str, Any]]:
        wanted = ("--topic", internal, "--from-beginning", "--timeout-ms", "3000")
        kind = f"org.apache.kafka.tools.consumer.{formatter}"
        found = tool("console-consumer", *wanted, "--formatter", kind)
        assert found.exit_code == 0, found.output
        return [json.loads(line) for line in found.stdout.splitlines()]

    *_, commit = [
        found
        for found in printed("OffsetsMessageFormatter", "__consumer_offsets")
        if found["key"] == {"type": 1, "data": {"group": group, "topic": topic, "partition": 0}}
    ]
    assert list(commit["value"]) == ["version", "data"]
    assert commit["value"]["data"]["offset"] == 1
    groups = printed("GroupMetadataMessageFormatter", "__consumer_offsets")
    assert {found["key"]["type"] for found in groups} == {2}
    assert group in {found["key"]["data"]["group"] for found in groups}
    states = [
        found["value"]["data"]["transactionStatus"]
        for found in printed("TransactionLogMessageFormatter", "__transaction_state")
        if found["key"] == {"type": 0, "data": {"transactionalId": transaction}}
    ]
    assert states == [0, 1, 2, 4]


def test_a_record_of_a_coordinator_that_was_deleted_has_no_value() -> None:
    record = ConsumerRecord("__consumer_offsets", 0, 0, 5, b"\0\x02\0\x01g", None)
    shown = b'{"key":{"type":2,"data":{"group":"g"}},"value":null}\n'
    assert formatter("GroupMetadataMessageFormatter", {})(record) == shown
    assert formatter("OffsetsMessageFormatter", {})(record) == b""
    assert formatter("OffsetsMessageFormatter", {})(ConsumerRecord("t", 0, 0, 5, None, b"v")) == b""


def test_the_logging_formatter_logs_beside_the_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert formatter("LoggingMessageFormatter", {})(ConsumerRecord("t", 0, 0, 5, None, b"v")) == b"v\n"
    assert capsys.readouterr().err == "CreateTime:5, key:null, value:v\n"


def test_what_is_no_text_is_base64_in_json() -> None:
    assert readable(b"\xff\x00") == {"base64": "/wA="}
    assert json.loads(as_json(ConsumerRecord("t", 0, 1, 2, b"\xff", b"ok")))["key"] == {"base64": "/w=="}
