"""Fetch requests that name one partition or none are taken apart as the message declarations say."""

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
from tidelog.protocol.messages.fetch import FetchRequest

LINES = gzip.decompress((Path(__file__).parents[1] / "data" / "wire.jsonl.gz").read_bytes()).splitlines()
KAFKAS = [row for row in map(json.loads, LINES) if row["name"] == "FetchRequest"]
VERSIONS = range(12, 19)
TOPIC_ID = bytes(range(16))


def request(version: int, *, partitions: int = 1, topics: int = 1, **more: Any) -> FetchRequest:
    wanted = [
        FetchRequest.FetchPartition(
            partition=7 + index,
            current_leader_epoch=5,
            fetch_offset=2**40 + index,
            last_fetched_epoch=4,
            log_start_offset=-1,
            partition_max_bytes=1 << 20,
        )
        for index in range(partitions)
    ]
    named = FetchRequest.FetchTopic(partitions=wanted)
    if version >= 13:
        named.topic_id = TOPIC_ID
    else:
        named.topic = "tüpic"
    fields = {
        "max_wait_ms": 500,
        "min_bytes": 1,
        "max_bytes": 50 << 20,
        "isolation_level": 1,
        "session_id": 99,
        "session_epoch": 3,
        "rack_id": "r1",
        "topics": [named] * topics,
    }
    return FetchRequest(**{**fields, **more})


def expected(body: FetchRequest, version: int) -> tuple[Any, ...] | None:
    """What the short way reads of a request, by the reader of all requests."""
    named = [(topic, partition) for topic in body.topics for partition in topic.partitions]
    if len(body.topics) > 1 or len(named) != len(body.topics):
        return None
    if body.forgotten_topics_data or body.cluster_id is not None:
        return None
    state = body.replica_state
    wanted = None
    for topic, one in named:
        name = topic.topic_id if version >= 13 else topic.topic
        wanted = (
            name,
            one.partition,
            one.current_leader_epoch,
            one.fetch_offset,
            one.last_fetched_epoch,
            one.log_start_offset,
            one.partition_max_bytes,
        )
    return (
        body.replica_id if state is None else state.replica_id,
        -1 if state is None else state.replica_epoch,
        body.max_wait_ms,
        body.min_bytes,
        body.max_bytes,
        body.isolation_level,
        body.session_id,
        body.session_epoch,
        body.rack_id,
        wanted,
    )


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("is_follower", [False, True])
def test_one_partition_or_none_is_read(twin: SimpleNamespace, version: int, is_follower: bool) -> None:
    who: dict[str, Any] = {}
    if is_follower and version >= 15:
        who = {"replica_state": FetchRequest.ReplicaState(replica_id=2, replica_epoch=2**33)}
    elif is_follower:
        who = {"replica_id": 2}
    for topics in (0, 1):
        asked = request(version, topics=topics, **who)
        body = b"head" + asked.encode(version)
        found = twin.parse_one_fetch(memoryview(body), 4, version)
        assert found == expected(asked, version)
        assert found[0] == (2 if is_follower else -1)
        for cut in range(4, len(body)):
            assert twin.parse_one_fetch(body[:cut], 4, version) is None
        assert twin.parse_one_fetch(body + b"\0", 4, version) is None


@pytest.mark.parametrize("version", VERSIONS)
def test_every_other_request_is_left_to_the_reader_of_all(twin: SimpleNamespace, version: int) -> None:
    forgotten = FetchRequest.ForgottenTopic(topic="t", topic_id=TOPIC_ID, partitions=[1])
    for asked in (
        request(version, partitions=2),
        request(version, partitions=0),
        request(version, topics=2),
        request(version, forgotten_topics_data=[forgotten]),
        request(version, cluster_id="cluster"),
    ):
        assert twin.parse_one_fetch(asked.encode(version), 0, version) is None
    one = request(version).encode(version)
    for other in (-1, 4, 11, 19):
        assert twin.parse_one_fetch(one, 0, other) is None
    for start in (-1, len(one) + 1):
        assert twin.parse_one_fetch(one, start, version) is None


@pytest.mark.parametrize("row", KAFKAS, ids=lambda row: f"v{row['version']}")
def test_kafkas_requests_are_read_alike(twin: SimpleNamespace, row: dict[str, Any]) -> None:
    version, data = row["version"], bytes.fromhex(row["hex"])
    body, _ = decode(FetchRequest, version, data)
    assert twin.parse_one_fetch(data, 0, version) == (
        expected(body, version) if version in VERSIONS else None
    )


def test_twins_agree_on_mutated_requests() -> None:
    rng = random.Random(7)
    for _ in range(scale(4000, 100_000)):
        version = rng.choice(VERSIONS)
        state = FetchRequest.ReplicaState(replica_id=2, replica_epoch=9)
        who = {"replica_state": state} if version >= 15 and rng.random() < 0.5 else {}
        asked = request(version, topics=rng.choice((0, 1, 1, 1, 2)), **who)
        agree("parse_one_fetch", mutated(rng, asked.encode(version)), rng.choice((0, 0, 0, 1)), version)
