"""Log folders that Kafka 3.9 wrote, stopped cleanly and killed, and what a reader must see in both."""

from __future__ import annotations

import gzip
import json
import tarfile
from functools import cache
from pathlib import Path
from typing import Any

from tests.support.contents import Contents, Partition, SeenRecord

DATA = Path(__file__).parent.parent / "data"
KINDS = ("clean", "crashed")


def unpack(kind: str, target: Path) -> Path:
    with tarfile.open(DATA / f"logdir-{kind}.tar.gz") as archive:
        archive.extractall(target, filter="data")
    return target / kind


@cache
def expected() -> dict[str, Any]:
    return dict(json.loads(gzip.decompress((DATA / "expected.json.gz").read_bytes())))


def partitions() -> list[Partition]:
    return sorted(_partition(name) for name in expected()["read_uncommitted"])


def expected_contents(partition: Partition) -> Contents:
    found = expected()["read_uncommitted"]["{}-{}".format(*partition)]
    return Contents(found["low"], found["high"], [_record(*entry) for entry in found["records"]])


def expected_committed(partition: Partition) -> list[int]:
    return list(expected()["read_committed_offsets"]["{}-{}".format(*partition)])


def _partition(name: str) -> Partition:
    topic, _, index = name.rpartition("-")
    return topic, int(index)


def _record(
    offset: int,
    timestamp: tuple[int, int],
    key: str | None,
    value: str | None,
    headers: list[tuple[str, str | None]],
) -> SeenRecord:
    def data(text: str | None) -> bytes | None:
        return None if text is None else text.encode()

    return SeenRecord(
        offset,
        timestamp[0],
        timestamp[1],
        data(key),
        data(value),
        tuple((name, data(content)) for name, content in headers),
    )
