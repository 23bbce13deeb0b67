"""Log lines: one event a line of key=value pairs, a level for each part, and the request log on demand."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.faults.client import BROKER_LOGGER, Client, batch_of
from tests.support.broker import Broker
from tests.support.wait import eventually
from tidelog.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tidelog.server.logs import LineFormatter, Repeats, quoted

PAIR = re.compile(r'([\w.-]+)=("(?:[^"\\]|\\.)*"|[^\s"]*)(?: |$)')
REQUEST_LOG = "tidelog.request"
# Everything that the request log tells of a request beside its bodies.
FIELDS = {
    "api",
    "version",
    "correlation_id",
    "client_id",
    "connection",
    "listener",
    "principal",
    "software",
    "request_bytes",
    "response_bytes",
    "temporary_bytes",
    "total_ms",
    "queue_ms",
    "local_ms",
    "remote_ms",
    "throttle_ms",
    "response_queue_ms",
    "send_ms",
}


def parse(line: str) -> dict[str, str]:
    """The pairs of a line; every character of it has to belong to one."""
    found: dict[str, str] = {}
    at = 0
    while at < len(line):
        match = PAIR.match(line, at)
        assert match is not None, f"no pair at {line[at:]!r}"
        name, value = match[1], match[2]
        assert name not in found, f"{name} is there twice: {line}"
        found[name] = re.sub(r"\\(.)", r"\1", value[1:-1]) if value.startswith('"') else value
        at = match.end()
    return found


def lines_of(broker: Broker) -> list[dict[str, str]]:
    whole, _, _ = broker.log().rpartition("\n")  # the last line may be on its way
    return [parse(line) for line in whole.splitlines() if line.startswith("ts=")]


def requests_of(broker: Broker, api: str) -> list[dict[str, str]]:
    return [line for line in lines_of(broker) if line["part"] == "request" and line.get("api") == api]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path) as running:
        yield running


def test_every_line_of_a_life_is_of_pairs(broker: Broker) -> None:
    with Client(broker.address) as client:
        client.set_configs(BROKER_LOGGER, client.broker_id(), {"root": "TRACE"})
        client.create_topic("t")
        client.produce("t", 0, batch_of(b"v"))
        client.send_frame(b"\x7f\xff garbage that is no request")
        assert client.is_closed_by_peer()
    broker.terminate()
    lines = lines_of(broker)
    assert {"ts", "level", "part", "msg"} <= set.intersection(*(set(line) for line in lines))
    for line in lines:
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["ts"])
        assert line["level"] in ("trace", "debug", "info", "warn", "error", "critical")
    events = [line["msg"] for line in lines if line["part"] == "server"]
    assert events[-2:] == ["stopping", "stopped"]
    assert "started" in events


def test_the_request_log_is_turned_on_and_off_while_running(broker: Broker) -> None:
    with Client(broker.address, client_id='spy "x=1"') as client:
        broker_id = client.broker_id()
        request = ApiVersionsRequest(client_software_name="spy-lib", client_software_version="0.9")
        client.ask(request, ApiVersionsResponse, 3)
        client.create_topic("t")
        assert requests_of(broker, "CreateTopics") == []

        assert client.set_configs(BROKER_LOGGER, broker_id, {REQUEST_LOG: "DEBUG"}) == 0
        data = batch_of(b"v")
        client.produce("t", 0, data)
        client.produce("missing", 0, data)
        eventually(lambda: len(requests_of(broker, "Produce")) == 2, "two lines of the request log")
        good, failed = requests_of(broker, "Produce")
        assert set(good) - {"ts", "level", "part", "msg"} == FIELDS
        assert (good["version"], good["level"], good["listener"]) == ("9", "debug", "PLAINTEXT")
        assert (good["principal"], good["software"]) == ("User:ANONYMOUS", "spy-lib/0.9")
        assert good["client_id"] == 'spy "x=1"'
        assert int(good["request_bytes"]) > len(data)
        assert re.fullmatch(r"127\.0\.0\.1:\d+-127\.0\.0\.1:\d+-\d+", good["connection"])
        assert int(failed["correlation_id"]) == int(good["correlation_id"]) + 1
        assert failed["errors"] == "UNKNOWN_TOPIC_OR_PARTITION:1"
        times = [float(good[name]) for name in FIELDS if name.endswith("_ms")]
        assert all(time >= 0 for time in times)
        assert float(good["total_ms"]) > 0

        assert client.set_configs(BROKER_LOGGER, broker_id, {REQUEST_LOG: "TRACE"}) == 0
        client.produce("t", 0, data)
        traced = eventually(lambda: requests_of(broker, "Produce")[2:], "a traced request")[0]
        assert traced["level"] == "trace"
        assert "topicData" in traced["request"]
        assert "baseOffset" in traced["response"]

        assert client.set_configs(BROKER_LOGGER, broker_id, {REQUEST_LOG: None}) == 0
        client.produce("t", 0, data)
        client.fetch("t", 0, 0)
        assert len(requests_of(broker, "Produce")) == 3
        assert requests_of(broker, "FetchConsumer") == []


def test_each_part_has_a_level_of_its_own_from_the_start(tmp_path: Path) -> None:
    settings = {"tidelog.log.level": "ERROR", "tidelog.log.levels": "request:DEBUG,network:INFO"}
    with Broker(tmp_path, settings) as broker, Client(broker.address) as client:
        assert client.config(BROKER_LOGGER, client.broker_id(), REQUEST_LOG) == "DEBUG"
        assert client.config(BROKER_LOGGER, client.broker_id(), "tidelog.network") == "INFO"
        assert client.config(BROKER_LOGGER, client.broker_id(), "tidelog.storage") == "ERROR"
        eventually(lambda: requests_of(broker, "Metadata"), "the request log is on")
        assert {line["part"] for line in lines_of(broker)} == {"request"}


@settings(max_examples=200, derandomize=True, deadline=None)
@given(message=st.text(max_size=60), value=st.text(max_size=60))
def test_whatever_is_logged_stays_on_its_line(message: str, value: str) -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LineFormatter())
    record = logging.LogRecord("tidelog.storage", logging.WARNING, "", 0, "%s", (message,), None)
    record.fields = {"key": value}
    handler.emit(record)
    (line,) = stream.getvalue().removesuffix("\n").split("\n")
    assert not re.search(r"[\x00-\x1f\x7f\x85\u2028\u2029]", line)
    pairs = parse(line)
    assert list(pairs) == ["ts", "level", "part", "msg", "key"]
    assert (pairs["level"], pairs["part"]) == ("warn", "storage")
    if message.isprintable():
        assert pairs["msg"] == message


def test_a_word_stands_bare_and_anything_else_is_quoted() -> None:
    assert quoted("word-1.2:3/4") == "word-1.2:3/4"
    assert quoted(17) == "17"
    assert quoted("") == '""'
    assert quoted("two words") == '"two words"'
    assert quoted("a=b") == '"a=b"'
    assert quoted('say "so"\\') == '"say \\"so\\"\\\\"'
    assert quoted("line\nbreak") == '"line\\nbreak"'


def record_at(second: float, text: str, level: int = logging.ERROR) -> logging.LogRecord:
    record = logging.LogRecord("tidelog.storage", level, "", 0, text, (), None)
    record.created = second
    return record


def test_the_same_error_is_printed_once_in_ten_seconds_and_counted() -> None:
    repeats = Repeats()
    printed = [second for second in range(35) if repeats.filter(record_at(second, "no space left"))]
    assert printed == [0, 10, 20, 30]
    later = record_at(50, "no space left")
    assert repeats.filter(later)
    assert parse(LineFormatter().format(later))["repeated"] == "4"


def test_other_texts_and_lines_below_warnings_are_always_printed() -> None:
    repeats = Repeats()
    assert repeats.filter(record_at(0, "one disk is full"))
    assert repeats.filter(record_at(0, "another disk is full"))
    assert all(repeats.filter(record_at(0, "topic created", logging.INFO)) for _ in range(3))


def test_texts_that_are_all_different_take_no_memory_for_ever() -> None:
    repeats = Repeats()
    for number in range(5000):
        assert repeats.filter(record_at(0, f"peer {number} sent garbage"))
    assert len(repeats._last) <= Repeats.MOST_TEXTS
