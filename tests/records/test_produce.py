"""Produce requests are taken apart, and ordinary answers written, as the message declarations say."""

from __future__ import annotations

import base64
import gzip
import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.records.test_loops import agree, mutated
from tests.support.scale import scale
from tidelog.protocol.headers import response_header
from tidelog.protocol.messages.produce import ProduceRequest, ProduceResponse
from tidelog.protocol.wire import write_uvarint

LINES = gzip.decompress((Path(__file__).parents[1] / "data" / "wire.jsonl.gz").read_bytes()).splitlines()
REQUESTS = [row for row in map(json.loads, LINES) if row["name"] == "ProduceRequest"]


def expected(values: dict[str, Any], body: bytes, got: Any) -> None:
    transactional_id, acks, timeout_ms, topics = got
    assert (transactional_id, acks, timeout_ms) == (
        values["transactionalId"],
        values["acks"],
        values["timeoutMs"],
    )
    assert len(topics) == len(values["topicData"])
    for (topic, partitions), want in zip(topics, values["topicData"], strict=True):
        assert topic == (want["name"] if "name" in want else base64.urlsafe_b64decode(want["topicId"] + "=="))
        records = [(partition, body[start:end]) for partition, start, end in partitions]
        assert records == [(p["index"], base64.b64decode(p["records"])) for p in want["partitionData"]]


@pytest.mark.parametrize("row", REQUESTS, ids=lambda row: f"v{row['version']}")
def test_kafkas_requests_are_understood(twin: SimpleNamespace, row: dict[str, Any]) -> None:
    body = b"head" + bytes.fromhex(row["hex"])
    expected(row["json"], body, twin.parse_produce(memoryview(body), 4, row["version"]))
    for cut in range(4, len(body)):
        with pytest.raises(ValueError):
            twin.parse_produce(body[:cut], 4, row["version"])
    with pytest.raises(ValueError):
        twin.parse_produce(body + b"\0", 4, row["version"])


@pytest.mark.parametrize("row", REQUESTS, ids=lambda row: f"v{row['version']}")
def test_one_batch_is_read_and_nothing_else_is(twin: SimpleNamespace, row: dict[str, Any]) -> None:
    body, version = b"head" + bytes.fromhex(row["hex"]), row["version"]
    transactional_id, acks, _, topics = twin.parse_produce(body, 4, version)
    batches = [(topic, *partition) for topic, partitions in topics for partition in partitions]
    one = twin.parse_one_batch(memoryview(body), 4, version)
    if len(topics) == len(batches) == 1 and batches[0][2] >= 0:
        assert one == (transactional_id, acks, *batches[0])
    else:
        assert one is None
    for cut in range(4, len(body)):
        assert twin.parse_one_batch(body[:cut], 4, version) is None
    assert twin.parse_one_batch(body + b"\0", 4, version) is None


def test_one_batch_of_every_version(twin: SimpleNamespace) -> None:
    for version in range(3, 14):
        topic = bytes(range(16)) if version >= 13 else "topic"
        of_topic = ProduceRequest.TopicProduceData(
            partition_data=[ProduceRequest.PartitionProduceData(index=5, records=b"batch")]
        )
        if isinstance(topic, bytes):
            of_topic.topic_id = topic
        else:
            of_topic.name = topic
        request = ProduceRequest(transactional_id="id", acks=-1, timeout_ms=9, topic_data=[of_topic])
        body = request.encode(version)
        found = twin.parse_one_batch(body, 0, version)
        assert found[:4] == ("id", -1, topic, 5)
        assert body[found[4] : found[5]] == b"batch"
    assert twin.parse_one_batch(body, 0, 2) is None
    assert twin.parse_one_batch(body, 0, 14) is None


def test_null_records_and_unknown_tags(twin: SimpleNamespace) -> None:
    tags = b"\x01\x05\x02zz"
    body = b"\0" + b"\0\x01" + b"\0\0\0\x09" + b"\x02\x02t\x02" + b"\0\0\0\x03\0" + tags + tags + tags
    assert twin.parse_produce(body, 0, 9) == (None, 1, 9, [("t", [(3, -1, -1)])])
    plain = (
        b"\xff\xff" + b"\0\x01" + b"\0\0\0\x09" + b"\0\0\0\x01\0\x01t" + b"\0\0\0\x01\0\0\0\x03" + b"\xff" * 4
    )
    assert twin.parse_produce(plain, 0, 8) == (None, 1, 9, [("t", [(3, -1, -1)])])


@pytest.mark.parametrize("version", [2, 14, -1])
def test_versions_that_are_not_served_are_refused(twin: SimpleNamespace, version: int) -> None:
    with pytest.raises(ValueError):
        twin.parse_produce(bytes(20), 0, version)
    with pytest.raises(ValueError):
        twin.produce_response(version, 1, "t", 0, 0, 0, -1, 0)


def test_counts_beyond_the_bytes_are_refused(twin: SimpleNamespace) -> None:
    head = b"\xff\xff" + b"\0\x01" + b"\0\0\0\x09"
    for count in (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\0\0\0\x02"):
        with pytest.raises(ValueError):
            twin.parse_produce(head + count + b"\0\x01t\0\0\0\0", 0, 3)
    flexible = b"\0" + b"\0\x01" + b"\0\0\0\x09"
    for tail in (b"\xff\xff\xff\xff\x0f", b"\xff" * 6, b"\x00", b"\x02\x00\x01\x00", b"\x02\x02\xff\x01\0\0"):
        with pytest.raises(ValueError):
            twin.parse_produce(flexible + tail, 0, 9)


def test_more_elements_than_a_request_may_have_are_refused(twin: SimpleNamespace) -> None:
    head = b"\0" + b"\0\x01" + b"\0\0\0\x09" + b"\x02\x02t"
    partition = b"\0\0\0\x03\0\0"
    most = head + write_uvarint(100_000) + partition * 99_999 + b"\0\0"
    assert len(twin.parse_produce(most, 0, 9)[3][0][1]) == 99_999
    for more in (
        head + write_uvarint(100_001) + partition * 100_000 + b"\0\0",
        head + write_uvarint(100_000) + partition * 99_999 + b"\x01\x05\0" + b"\0",
        head[:-3] + b"\x01" + write_uvarint(100_001) + b"\x05\0" * 100_001,
    ):
        with pytest.raises(ValueError, match="more than 100000 topics, partitions and tagged fields"):
            twin.parse_produce(more, 0, 9)


def test_twins_agree_on_mutated_requests() -> None:
    rng = random.Random(5)
    for _ in range(scale(4000, 100_000)):
        row = rng.choice(REQUESTS)
        body = mutated(rng, bytes.fromhex(row["hex"]))
        start = rng.choice((0, 0, 0, 1, -1))
        agree("parse_produce", body, start, row["version"])
        agree("parse_one_batch", body, start, row["version"])


@pytest.mark.parametrize("version", range(3, 14))
@pytest.mark.parametrize("name", ["t", "é" * 100, "x" * 249])
def test_the_ordinary_answer_is_the_encoded_message(twin: SimpleNamespace, version: int, name: str) -> None:
    topic: str | bytes = bytes(range(16)) if version >= 13 else name
    partition = ProduceResponse.PartitionProduceResponse(
        index=7, error_code=3, base_offset=2**40, log_append_time_ms=-1, log_start_offset=12
    )
    of_topic = ProduceResponse.TopicProduceResponse(partition_responses=[partition])
    if isinstance(topic, bytes):
        of_topic.topic_id = topic
    else:
        of_topic.name = topic
    message = ProduceResponse(responses=[of_topic])
    answer = response_header(0, version, 99) + message.encode(version)
    framed = len(answer).to_bytes(4, "big") + answer
    assert twin.produce_response(version, 99, topic, 7, 3, 2**40, -1, 12) == framed
    with pytest.raises(ValueError):
        twin.produce_response(version, 99, "t" if version >= 13 else b"0" * 16, 0, 0, 0, -1, 0)
