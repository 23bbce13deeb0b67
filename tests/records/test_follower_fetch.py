"""The fetches of a follower and their answers are made and taken apart as the message declarations say."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.records.test_loops import agree, mutated
from tests.support.scale import scale
from tidelog.protocol.message import decode
from tidelog.protocol.messages.fetch import FetchRequest, FetchResponse

LINES = gzip.decompress((Path(__file__).parents[1] / "data" / "wire.jsonl.gz").read_bytes()).splitlines()
KAFKAS = [row for row in map(json.loads, LINES) if row["name"] == "FetchResponse"]
VERSIONS = range(12, 19)
TOPIC_ID = bytes(range(16))
RECORDS = b"records" * 40


def name_of(version: int) -> str | bytes:
    return TOPIC_ID if version >= 13 else "tüpic" * 40


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("count", [0, 1])
def test_a_request_is_that_of_the_declaration(twin: SimpleNamespace, version: int, count: int) -> None:
    wanted = (name_of(version), 7, 5, 2**40, 4, -1, 1 << 20) if count else None
    made = twin.one_fetch_request(version, 2, 2**33, 500, 1, 10 << 20, 99, 3, wanted)
    partition = FetchRequest.FetchPartition(
        partition=7,
        current_leader_epoch=5,
        fetch_offset=2**40,
        last_fetched_epoch=4,
        log_start_offset=-1,
        partition_max_bytes=1 << 20,
    )
    topic = FetchRequest.FetchTopic(partitions=[partition])
    setattr(topic, "topic_id" if version >= 13 else "topic", name_of(version))
    declared = FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=10 << 20,
        session_id=99,
        session_epoch=3,
        topics=[topic] * count,
    )
    if version >= 15:
        declared.replica_state = FetchRequest.ReplicaState(replica_id=2, replica_epoch=2**33)
    else:
        declared.replica_id = 2
    assert made == declared.encode(version)
    assert twin.parse_one_fetch(made, 0, version)[-1] == wanted


def test_topics_have_names_or_ids(twin: SimpleNamespace) -> None:
    for version, topic in ((12, TOPIC_ID), (13, "name"), (13, b"short"), (12, "n" * 40_000), (11, "n")):
        with pytest.raises(ValueError, match=r"right|long"):
            twin.one_fetch_request(version, 2, 3, 500, 1, 1, 99, 3, (topic, 7, 5, 9, 4, 0, 1))


def answer(version: int, *, partitions: int = 1, topics: int = 1, **more: Any) -> FetchResponse:
    """An answer with these fields of its partitions, or of itself."""
    own = {name: more.pop(name) for name in list(more) if name in ("throttle_time_ms", "error_code")}
    fields = {"high_watermark": 2**40, "last_stable_offset": 2**39, "log_start_offset": 11, **more}
    data = [
        FetchResponse.PartitionData(partition_index=7 + index, **{"records": RECORDS, **fields})
        for index in range(partitions)
    ]
    topic = FetchResponse.FetchableTopicResponse(partitions=data)
    setattr(topic, "topic_id" if version >= 13 else "topic", name_of(version))
    return FetchResponse(session_id=99, responses=[topic] * topics, **own)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("records", [None, b"", RECORDS])
def test_one_partition_is_read(twin: SimpleNamespace, version: int, records: bytes | None) -> None:
    body = b"head" + answer(version, records=records).encode(version)
    session, topic, index, high_watermark, log_start, start, end = twin.parse_one_fetched(body, 4, version)
    assert (session, topic, index) == (99, name_of(version), 7)
    assert (high_watermark, log_start) == (2**40, 11)
    assert body[start:end] == (records or b"")
    for cut in range(4, len(body)):
        assert twin.parse_one_fetched(body[:cut], 4, version) is None
    assert twin.parse_one_fetched(body + b"\0", 4, version) is None


@pytest.mark.parametrize("version", VERSIONS)
def test_an_answer_without_partitions_is_read(twin: SimpleNamespace, version: int) -> None:
    body = answer(version, topics=0).encode(version)
    assert twin.parse_one_fetched(memoryview(body), 0, version) == (99, None, -1, -1, -1, 0, 0)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_other_answer_is_left_to_the_reader_of_all(twin: SimpleNamespace, version: int) -> None:
    aborted = FetchResponse.AbortedTransaction(producer_id=1, first_offset=2)
    leader = FetchResponse.LeaderIdAndEpoch(leader_id=1, leader_epoch=2)
    for other in (
        answer(version, partitions=2),
        answer(version, partitions=0),
        answer(version, topics=2),
        answer(version, throttle_time_ms=1),
        answer(version, topics=0, error_code=70),
        answer(version, error_code=0, aborted_transactions=[aborted]),
        answer(version, diverging_epoch=FetchResponse.EpochEndOffset(epoch=1, end_offset=2)),
        answer(version, current_leader=leader),
    ):
        assert twin.parse_one_fetched(other.encode(version), 0, version) is None
    refused = answer(version)
    refused.responses[0].partitions[0].error_code = 6
    assert twin.parse_one_fetched(refused.encode(version), 0, version) is None
    one = answer(version).encode(version)
    for unknown in (-1, 4, 11, 19):
        assert twin.parse_one_fetched(one, 0, unknown) is None
    for start in (-1, len(one) + 1):
        assert twin.parse_one_fetched(one, start, version) is None


@pytest.mark.parametrize("row", KAFKAS, ids=lambda row: f"v{row['version']}")
def test_kafkas_answers_are_read_alike(twin: SimpleNamespace, row: dict[str, Any]) -> None:
    version, data = row["version"], bytes.fromhex(row["hex"])
    body, _ = decode(FetchResponse, version, data)
    found = twin.parse_one_fetched(data, 0, version)
    if found is None:
        return
    session, topic, index, high_watermark, log_start, start, end = found
    assert (body.throttle_time_ms, body.error_code, body.session_id) == (0, 0, session)
    named = [(entry, one) for entry in body.responses for one in entry.partitions]
    assert [(entry.topic_id if version >= 13 else entry.topic) for entry, _ in named] == (
        [] if topic is None else [topic]
    )
    for _, one in named:
        assert (one.partition_index, one.error_code) == (index, 0)
        assert (one.high_watermark, one.log_start_offset) == (high_watermark, log_start)
        assert bytes(one.records or b"") == data[start:end]


def test_twins_agree_on_mutated_answers() -> None:
    rng = random.Random(7)
    for _ in range(scale(4000, 100_000)):
        version = rng.choice(VERSIONS)
        made = answer(version, topics=rng.choice((0, 1, 1, 1, 2)), records=rng.choice((None, b"", b"abc")))
        agree("parse_one_fetched", mutated(rng, made.encode(version)), rng.choice((0, 0, 0, 1)), version)
