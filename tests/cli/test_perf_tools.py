"""The tools that measure: their counts are right and their lines are Kafka's."""

from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path

import pytest

from tests.cli.client_tools import NewName, Tool, make_topic, tool
from tidelog.cli.consumer_perf_test import Shown
from tidelog.cli.output import spread
from tidelog.cli.producer_perf_test import Stats, payloads

__all__ = ["tool"]

NUMBER = r"\d+\.\d+"
TOTAL = re.compile(
    rf"(\d+) (?:steady state )?records sent, {NUMBER} records/sec \({NUMBER} MB/sec\), {NUMBER} ms avg "
    rf"latency, {NUMBER} ms max latency, \d+ ms 50th, \d+ ms 95th, \d+ ms 99th, \d+ ms 99.9th\."
)


def test_records_are_written_and_read_and_counted(tool: Tool, new_name: NewName) -> None:
    topic = make_topic(tool, new_name("t"), 2)
    wrote = tool(
        *("producer-perf-test", "--topic", topic, "--num-records", "3000", "--record-size", "100"),
        *("--throughput", "-1", "--producer-props", "acks=1", "linger.ms=1", "--warmup-records", "1000"),
    )
    assert wrote.exit_code == 0, wrote.output
    warmup, total, steady = wrote.stdout.splitlines()
    assert warmup.startswith("Warmup first 1000 records.")
    matches = [TOTAL.fullmatch(line) for line in (total, steady)]
    assert [match and match[1] for match in matches] == ["3000", "2000"]
    offsets = tool("get-offsets", "--topic", topic, "--output", "json")
    assert sum(entry["offset"] for entry in json.loads(offsets.stdout)) == 3000

    read = tool("consumer-perf-test", "--topic", topic, "--num-records", "3000", "--timeout", "20000")
    header, line = read.stdout.splitlines()
    columns = dict(zip(header.split(", "), line.split(", "), strict=True))
    assert columns["data.consumed.in.nMsg"] == "3000"
    assert columns["data.consumed.in.MB"] == f"{300_000 / 1024 / 1024:.4f}"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d:\d{3}", columns["start.time"])


def test_figures_are_json_where_they_are_asked_for(tool: Tool, new_name: NewName) -> None:
    topic = make_topic(tool, new_name("t"))
    wrote = tool(
        *("producer-perf-test", "--topic", topic, "--num-records", "200", "--payload-monotonic"),
        *("--throughput", "5000", "--transaction-duration-ms", "20", "--print-metrics", "--output", "json"),
    )
    assert wrote.exit_code == 0, wrote.output
    figures = json.loads(wrote.stdout)
    assert (figures["records"], figures["failed"]) == (200, 0)
    assert figures["metrics"]["record-send-total"] == 200
    read = tool(
        "consumer-perf-test", "--topic", topic, "--messages", "200", "--output", "json", "--print-metrics"
    )
    assert json.loads(read.stdout)["records"] == 200


def test_a_throughput_is_kept(tool: Tool, new_name: NewName) -> None:
    topic = make_topic(tool, new_name("t"))
    wrote = tool(
        *("producer-perf-test", "--topic", topic, "--num-records", "100", "--record-size", "10"),
        *("--throughput", "200", "--output", "json"),
    )
    assert json.loads(wrote.stdout)["records_per_sec"] <= 220


def test_records_that_are_refused_end_it_with_1(tool: Tool, new_name: NewName) -> None:
    topic = make_topic(tool, new_name("t"), 1, "cleanup.policy=compact")
    wrote = tool(
        *("producer-perf-test", "--topic", topic, "--num-records", "5", "--record-size", "10"),
        *("--throughput", "-1", "--output", "json"),
    )
    assert wrote.exit_code == 1
    assert json.loads(wrote.stdout)["failed"] == 5
    assert "5 records were not written. First error: " in wrote.stderr


def test_too_few_records_are_warned_of(tool: Tool, new_name: NewName) -> None:
    topic = make_topic(tool, new_name("t"))
    read = tool(
        "consumer-perf-test", "--topic", topic, "--num-records", "5", "--timeout", "200", "--hide-header"
    )
    warning, line = read.stdout.splitlines()
    assert warning.startswith(
        "WARNING: Exiting before consuming the expected number of records: timeout (200 ms)"
    )
    assert line.split(", ")[4] == "0"


def test_detailed_stats_have_a_line_for_each_interval(tool: Tool, new_name: NewName) -> None:
    topic = make_topic(tool, new_name("t"))
    tool(
        *("producer-perf-test", "--topic", topic, "--num-records", "2000"),
        *("--record-size", "10", "--throughput", "-1"),
    )
    read = tool(
        *("consumer-perf-test", "--topic", topic, "--num-records", "2000", "--show-detailed-stats"),
        *("--reporting-interval", "1", "--date-format", "HH:mm"),
    )
    header, *lines = read.stdout.splitlines()
    assert header.startswith("time, threadId, data.consumed.in.MB")
    assert lines
    assert all(re.match(r"\d\d:\d\d, 0, ", line) for line in lines)


def test_records_are_timed_from_end_to_end(tool: Tool, bootstrap: str, new_name: NewName) -> None:
    topic = new_name("t")
    result = tool(
        *("end-to-end-latency", "--topic", topic, "--num-records", "10", "--producer-acks", "all"),
        *("--record-size", "20", "--record-key-size", "5", "--num-headers", "2"),
        *("--record-header-key-size", "3", "--record-header-size", "4"),
    )
    assert result.exit_code == 0, result.output
    made, first, average, percentiles = result.stdout.splitlines()
    assert made.startswith(f'Topic "{topic}" does not exist.')
    assert re.fullmatch(rf"0\t{NUMBER}", first)
    assert re.fullmatch(rf"Avg latency: {NUMBER} ms", average)
    assert re.fullmatch(r"Percentiles: 50th = \d+, 99th = \d+, 99.9th = \d+", percentiles)


RECORD = ("--topic", "t", "--num-records", "1", "--throughput", "-1", "--record-size", "1")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("producer-perf-test", "--num-records", "1"), "--topic must be specified"),
        (
            ("producer-perf-test", "--topic", "t", "--num-records", "1", "--throughput", "-1"),
            "expected one of --record-size",
        ),
        (
            ("producer-perf-test", *RECORD, "--reporting-interval", "0"),
            "--reporting-interval is 0; it must be greater than 0",
        ),
        (
            ("producer-perf-test", *RECORD, "--command-property", "acks=1", "--producer-props", "acks=1"),
            "--command-property and --producer-props cannot be specified together",
        ),
        (
            ("producer-perf-test", *RECORD, "--command-config", "a", "--producer.config", "b"),
            "--command-config and --producer.config cannot be specified together",
        ),
        (("consumer-perf-test", "--topic", "t"), "--num-records must be specified"),
        (
            ("consumer-perf-test", "--topic", "t", "--num-records", "1", "--messages", "1"),
            "--num-records and --messages cannot be specified together",
        ),
        (
            ("consumer-perf-test", "--include", "[", "--num-records", "1"),
            "--include [ is not a regular expression",
        ),
        (
            ("consumer-perf-test", "--topic", "t", "--num-records", "1", "--date-format", "tt"),
            "--date-format: 'tt' is not a date pattern",
        ),
        (
            *((("end-to-end-latency", "--topic", "t", "--num-records", "1", "--producer-acks", "0"),)),
            "--record-size must be specified",
        ),
    ],
)
def test_wrong_flags_end_with_1(tool: Tool, arguments: tuple[str, ...], words: str) -> None:
    result = tool(*arguments)
    assert result.exit_code == 1
    assert words in result.stderr


def test_nobody_there_is_said_in_one_line() -> None:
    from tests.cli.client_tools import runner

    result = runner("127.0.0.1:1")(
        *("producer-perf-test", "--topic", "t", "--num-records", "1", "--record-size", "1"),
        *("--throughput", "-1", "--producer-props", "max.block.ms=300"),
    )
    assert result.exit_code == 1
    assert "127.0.0.1:1" in result.stderr
    assert "Traceback" not in result.output


def test_a_greedy_flag_takes_every_value_up_to_the_next() -> None:
    assert spread(["--a", "1", "--p", "x=1", "y=2", "--b"], frozenset({"--p"})) == [
        *("--a", "1", "--p", "x=1", "--p", "y=2", "--b")
    ]


def test_payloads_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "values"
    file.write_text("one\n\ntwo\n\n")
    value = payloads(None, str(file), None)
    assert {value(at) for at in range(100)} == {b"one", b"", b"two"}
    assert len(payloads(100, None, None)(1)) == 100
    file.write_text("")
    with pytest.raises(ValueError, match="it is empty"):
        payloads(None, str(file), None)


def test_percentiles_are_those_of_the_samples() -> None:
    stats = Stats(1000)
    for latency in range(1000):
        stats.record(latency, 10)
    figures = stats.summary()
    assert (figures["p50_ms"], figures["p95_ms"], figures["p999_ms"]) == (500, 950, 999)
    assert figures["avg_latency_ms"] == 499.5


def test_dates_are_written_in_javas_letters() -> None:
    noon = datetime(2026, 3, 5, 12, 7, 9, 45_000).timestamp()

    def written(pattern: str) -> str:
        return Shown(False, pattern, "text").time(noon)

    assert written("yyyy-MM-dd HH:mm:ss:SSS") == "2026-03-05 12:07:09:045"
    assert written("yy/M/d H:m:s S") == "26/3/5 12:7:9 45"
    assert written("EEE, d MMM yyyy h 'o''clock' a") == "Thu, 5 Mar 2026 12 o'clock PM"
    with pytest.raises(ValueError, match="--date-format: 'tt' is not a date pattern"):
        written("yyyy tt")
