"""Compacted topics of every kind, how they are filled, and whether they are cleaned."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from confluent_kafka import Producer

from tests.support.raw import RawConnection
from tidelog.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from tidelog.storage.checkpoints import CLEANER_OFFSETS, decode_offsets

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
RETENTION_MS = 3_000
COMPACTED = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "1.0",  # not yet
    "delete.retention.ms": str(RETENTION_MS),
    "index.interval.bytes": "0",
    "segment.index.bytes": "96",
    "file.delete.delay.ms": "0",
}
TOPICS: dict[str, dict[str, str]] = {
    **{f"codec-{codec}": COMPACTED for codec in CODECS},
    "appendtime": {**COMPACTED, "message.timestamp.type": "LogAppendTime"},
    "txn": COMPACTED,
}


def fill(bootstrap: str, turn: int, *, in_transactions: bool = True) -> None:
    for topic in TOPICS:
        codec = topic.removeprefix("codec-") if topic.startswith("codec-") else "none"
        settings = {"bootstrap.servers": bootstrap, "compression.type": codec, "batch.num.messages": "5"}
        if topic != "txn" or not in_transactions:
            producer = Producer({**settings, "enable.idempotence": str(topic == "codec-lz4").lower()})
            write(producer, topic, turn, range(100))
            continue
        producer = Producer({**settings, "transactional.id": "compacted"})
        producer.init_transactions(60.0)
        for number in range(12):
            producer.begin_transaction()
            write(producer, topic, turn, range(5 * number, 5 * number + 5))
            (producer.abort_transaction if number % 3 == 1 else producer.commit_transaction)(60.0)


def write(producer: Producer, topic: str, turn: int, numbers: range) -> None:
    for number in numbers:
        key = b"key-%d" % (number * 7 % 23)
        value = None if (number + turn) % 5 == 0 else b"%d of turn %d" % (number, turn) * 3
        producer.produce(topic, value, key, partition=0, headers=[("n", b"%d" % number)])
        if number % 4 == 3:
            producer.flush(30.0)
    producer.flush(30.0)


def set_ratio(bootstrap: str, ratio: str) -> None:
    set_configs(bootstrap, {topic: {"min.cleanable.dirty.ratio": ratio} for topic in TOPICS})


def set_configs(bootstrap: str, wanted: Mapping[str, Mapping[str, str]]) -> None:
    """What is wanted of each topic."""
    resources = [
        IncrementalAlterConfigsRequest.AlterConfigsResource(
            resource_type=2,
            resource_name=topic,
            configs=[
                IncrementalAlterConfigsRequest.AlterableConfig(name=name, config_operation=0, value=value)
                for name, value in configs.items()
            ],
        )
        for topic, configs in wanted.items()
    ]
    with RawConnection(bootstrap) as connection:
        answer = connection.ask(
            IncrementalAlterConfigsRequest(resources=resources), IncrementalAlterConfigsResponse, 1
        )
    assert {result.error_code for result in answer.responses} == {0}


def log_files(folder: Path, topic: str) -> list[Path]:
    return sorted((folder / f"{topic}-0").glob("*.log"))


def is_cleaned(data: Path) -> bool:
    """Whether every log is cleaned up to its active segment."""
    path = data / CLEANER_OFFSETS
    written = path.read_bytes() if path.exists() else b""
    offsets = decode_offsets(str(path), written) if written else {}
    return all(offsets.get((topic, 0)) == int(log_files(data, topic)[-1].stem) for topic in TOPICS)
