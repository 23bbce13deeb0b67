"""Requests of every served API and version: as Kafka wrote them, and with content for our topics."""

from __future__ import annotations

import gzip
import json
import struct
from collections.abc import Iterator
from pathlib import Path

from tests.faults.client import batch_of
from tidelog.clients.connection import request_frame
from tidelog.protocol.api import API
from tidelog.protocol.json import Json, from_json
from tidelog.protocol.message import Message
from tidelog.protocol.wire import ProtocolError
from tidelog.server.apis import served_apis

GOLDEN = Path(__file__).parents[1] / "data" / "wire.jsonl.gz"
TOPIC = "fuzzed"


def served_versions() -> list[tuple[int, int]]:
    return [
        (api.key, version)
        for api in sorted(served_apis().values(), key=lambda api: api.key)
        for version in range(api.min_version, api.max_version + 1)
    ]


def golden_payloads() -> list[bytes]:
    """Headers and bodies, without the length before them."""
    served = set(served_versions())
    payloads = []
    with gzip.open(GOLDEN, "rt") as lines:
        for line in lines:
            case = json.loads(line)
            if case["name"].endswith("Request") and (case["key"], case["version"]) in served:
                header = struct.pack(">hhih", case["key"], case["version"], 7, 4) + b"fuzz"
                tags = b"\0" if case["flexible"] else b""
                payloads.append(header + tags + bytes.fromhex(case["hex"]))
    return payloads


def pointed_requests(topic_id: bytes) -> Iterator[tuple[int, int, Message]]:
    """Requests that name a topic which is there, so that a mutation reaches the work behind the lookup."""
    for key, version in served_versions():
        body = _bodies(key, version, topic_id)
        if body is not None:
            fields = _known_fields(API[key].request, version, body)
            yield key, version, from_json(API[key].request, version, fields)


def pointed_payloads(topic_id: bytes) -> list[bytes]:
    payloads = []
    for _, version, message in pointed_requests(topic_id):
        try:
            payloads.append(request_frame(message, version, 7, "fuzz")[4:])
        except ProtocolError:
            continue
    return payloads


def _known_fields(request: type[Message], version: int, body: dict[str, Json]) -> dict[str, Json]:
    names = {field.json_name for field in request.FIELDS if field.present(version)}
    return {name: value for name, value in body.items() if name in names}


def _bodies(key: int, version: int, topic_id: bytes) -> dict[str, Json] | None:
    from base64 import b64encode

    from tidelog.protocol.wire import uuid_to_text

    by_id: dict[str, Json] = {"topicId": uuid_to_text(topic_id)}
    records = b64encode(batch_of(b"first", b"second")).decode()
    config: list[Json] = [{"name": "retention.ms", "value": "1000000000"}]
    change: list[Json] = [{"name": "retention.ms", "configOperation": 0, "value": "1000000000"}]
    bodies: dict[int, dict[str, Json]] = {
        0: {
            "acks": -1,
            "timeoutMs": 100,
            "topicData": [
                {
                    **(by_id if version >= 13 else {"name": TOPIC}),
                    "partitionData": [{"index": 0, "records": records}],
                }
            ],
        },
        1: {
            "maxWaitMs": 0,
            "minBytes": 0,
            "maxBytes": 1000,
            "topics": [
                {
                    **(by_id if version >= 13 else {"topic": TOPIC}),
                    "partitions": [{"partition": 0, "fetchOffset": 0, "partitionMaxBytes": 1000}],
                }
            ],
        },
        2: {
            "replicaId": -1,
            "topics": [{"name": TOPIC, "partitions": [{"partitionIndex": 0, "timestamp": -1}]}],
        },
        3: {"topics": [{"name": TOPIC}], "allowAutoTopicCreation": False},
        19: {
            "topics": [
                {
                    "name": "made",
                    "numPartitions": 1,
                    "replicationFactor": 1,
                    "assignments": [],
                    "configs": config,
                }
            ],
            "timeoutMs": 100,
        },
        20: (
            {"topics": [{"name": "made"}], "timeoutMs": 100}
            if version >= 6
            else {"topicNames": ["made"], "timeoutMs": 100}
        ),
        21: {
            "topics": [{"name": TOPIC, "partitions": [{"partitionIndex": 0, "offset": 0}]}],
            "timeoutMs": 100,
        },
        23: {
            "replicaId": -1,
            "topics": [{"topic": TOPIC, "partitions": [{"partition": 0, "leaderEpoch": 0}]}],
        },
        32: {"resources": [{"resourceType": 2, "resourceName": TOPIC, "configurationKeys": None}]},
        33: {"resources": [{"resourceType": 2, "resourceName": TOPIC, "configs": config}]},
        35: {"topics": [{"topic": TOPIC, "partitions": [0]}]},
        37: {"topics": [{"name": TOPIC, "count": 2, "assignments": None}], "timeoutMs": 100},
        44: {"resources": [{"resourceType": 2, "resourceName": TOPIC, "configs": change}]},
        61: {"topics": [{"name": TOPIC, "partitionIndexes": [0]}]},
        75: {"topics": [{"name": TOPIC}], "responsePartitionLimit": 10, "cursor": None},
    }
    return bodies.get(key)
