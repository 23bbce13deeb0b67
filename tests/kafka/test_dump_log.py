"""Kafka's DumpLogSegments reads the files that we write: every batch, index entry and producer."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kafka.dumps import DumpedRecord, complaints, dump, dumped_records, partition_files
from tests.support import golden
from tests.support.broker import Broker
from tests.support.contents import Contents, Partition, produce, read_with_fetch
from tidelog import Admin, NewTopic
from tidelog.server.adopt import adopt, survey
from tidelog.storage.producer_state_manager import decode_snapshot

KAFKAS = ("kafka3", "kafka4")
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PARTITIONS: list[Partition] = [*((f"codec-{codec}", 0) for codec in CODECS), ("appendtime", 0)]
# An entry for every batch and room for a few: many segments, all of their indexes full.
MANY_SEGMENTS = {"index.interval.bytes": "0", "segment.index.bytes": "96"}
DEEP = ("--deep-iteration", "--print-data-log")


class Written:
    """A folder that a broker of ours has left, and what it served before."""

    def __init__(self, folder: Path, served: dict[Partition, Contents]) -> None:
        self.folder = folder
        self.served = served

    def records(self) -> dict[str, list[DumpedRecord]]:
        return {
            f"{topic}-{index}": [
                DumpedRecord(r.offset, r.timestamp, size(r.key), size(r.value)) for r in contents.records
            ]
            for (topic, index), contents in self.served.items()
        }


def size(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def fill(broker: Broker) -> None:
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        for topic, _ in PARTITIONS:
            stamped = {"message.timestamp.type": "LogAppendTime"} if topic == "appendtime" else {}
            admin.create_topics([NewTopic(topic, configs={**MANY_SEGMENTS, **stamped})])
    for codec in CODECS:
        values = [b"%06d " % number * 20 for number in range(1200)]
        produce(
            broker.bootstrap,
            {(f"codec-{codec}", 0): values},
            {"compression.type": codec, "batch.num.messages": "20"},
        )
    produce(broker.bootstrap, {("appendtime", 0): [b"stamped"] * 100}, {"batch.num.messages": "5"})


@pytest.fixture(scope="module", params=["stopped", "killed", "recovered", "adopted"])
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Written]:
    target = tmp_path_factory.mktemp(request.param)
    broker = Broker(target / "broker")
    partitions = PARTITIONS
    if request.param == "adopted":
        shutil.move(golden.unpack("crashed", target), broker.data)
        adopt(survey([broker.data]))
        partitions = golden.partitions()
    with broker:
        if request.param == "adopted":
            produce(broker.bootstrap, {partition: [b"more"] * 10 for partition in partitions})
        else:
            fill(broker)
        served = {partition: read_with_fetch(broker.bootstrap, partition) for partition in partitions}
        if request.param == "recovered":
            broker.restart(kill=True)
        if request.param != "killed":
            broker.terminate()
    yield Written(broker.data, served)
    shutil.rmtree(target)


@pytest.mark.parametrize("kafka", KAFKAS)
def test_every_record_is_read(written: Written, kafka: str) -> None:
    printed = dump(kafka, partition_files(written.folder, ".log"), *DEEP)
    assert complaints(printed) == []
    found = dumped_records(printed)
    assert {name: found[name] for name in written.records()} == written.records()


@pytest.mark.parametrize("kafka", KAFKAS)
def test_indexes_pass_the_sanity_check(written: Written, kafka: str, request: pytest.FixtureRequest) -> None:
    files = partition_files(written.folder, ".index", ".timeindex")
    if "killed" in request.node.name:
        pytest.skip("indexes of a killed broker have their preallocated size until recovery")
    printed = dump(kafka, files, "--index-sanity-check")
    assert complaints(printed) == []
    passed = {line.split()[0] for line in printed.splitlines() if line.endswith("passed sanity check.")}
    assert passed >= {str(path) for path in files if path.stat().st_size > 0}


@pytest.mark.parametrize("kafka", KAFKAS)
def test_indexes_point_at_their_batches(written: Written, kafka: str) -> None:
    """The tool reads the log at each entry of the index and prints what does not agree."""
    files = partition_files(written.folder, ".index", ".timeindex")
    printed = dump(kafka, files, "--verify-index-only")
    assert complaints(printed) == []


@pytest.mark.parametrize("kafka", KAFKAS)
def test_index_entries_are_read(written: Written, kafka: str) -> None:
    """Several segments, each with entries: a check of empty indexes would show nothing."""
    printed = dump(kafka, partition_files(written.folder, ".index", ".timeindex"))
    assert complaints(printed) == []
    assert printed.count("position: ") > 20
    assert printed.count("timestamp: ") > 20


@pytest.mark.parametrize("kafka", KAFKAS)
def test_producer_snapshots_and_aborted_transactions_are_read(written: Written, kafka: str) -> None:
    files = partition_files(written.folder, ".snapshot", ".txnindex")
    printed = dump(kafka, files)
    assert complaints(printed) == []
    producers = sum(len(decode_snapshot(p.read_bytes())) for p in files if p.suffix == ".snapshot")
    assert printed.count("producerId: ") >= producers > 0


def test_our_own_tool_prints_the_same(written: Written) -> None:
    files = partition_files(written.folder)
    ours = subprocess.run(
        [sys.executable, "-m", "tidelog", "dump-log", "--files", ",".join(map(str, files)), *DEEP],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ours.stdout.splitlines() == dump("kafka4", files, *DEEP).splitlines()
