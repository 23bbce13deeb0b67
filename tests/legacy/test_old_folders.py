"""Folders with old message formats, written by Kafka 2.8 and 0.10, are adopted and served as Kafka did it.

tests/data/logdir-old.tar.gz holds two of 2.8, stopped cleanly and killed, with topics whose
message.format.version is 0.9.0 (`v0-`) and 0.10.2 (`v1-`) and one that went through both to 2.8 (`mixed`);
expected.json is what librdkafka read from that Kafka. The third is of 0.10.2, with what its consumer printed.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Consumer, TopicPartition

from tests.kafka.dumps import complaints, dump, dumped_records, partition_files
from tests.legacy.old import message
from tests.support.broker import Broker
from tests.support.contents import Contents, Partition, SeenRecord, produce, read_with_client, read_with_fetch
from tests.support.golden import DATA
from tests.support.scale import scale
from tidelog.cli.adopt import adopt as command
from tidelog.metadata.embedded_tree import FILE_NAME
from tidelog.records.batch import Record, iter_batches
from tidelog.records.legacy import iter_entries
from tidelog.server.adopt import CannotAdopt, adopt, survey

KINDS = ("clean", "crashed")
NO_TIME = 0  # how the client says that a record of format 0 has no timestamp


def unpack(kind: str, target: Path) -> Path:
    with tarfile.open(DATA / "logdir-old.tar.gz") as archive:
        members = [member for member in archive.getmembers() if member.name.startswith(f"old/{kind}")]
        archive.extractall(target, members, filter="data")
    return target / "old" / kind


@cache
def expected(name: str = "expected.json") -> dict[Partition, Contents]:
    """What Kafka's reader saw; the formats differ only in that 2 says -1 where 0 says nothing."""
    with tarfile.open(DATA / "logdir-old.tar.gz") as archive:
        file = archive.extractfile(f"old/{name}")
        assert file is not None
        found = json.load(file)
    contents: dict[Partition, Contents] = {}
    for topic, seen in found.items():
        records = [
            SeenRecord(
                offset,
                1 if kind == NO_TIME else kind,
                -1 if kind == NO_TIME else timestamp,
                None if key is None else key.encode(),
                None if value is None else value.encode(),
            )
            for offset, kind, timestamp, key, value in seen["records"]
        ]
        contents[topic, 0] = Contents(seen["low"], seen["high"], records)
    return contents


PARTITIONS = sorted(expected())
NAMES = [topic for topic, _ in PARTITIONS]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def digest(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


def magics(folder: Path) -> set[int]:
    return {
        entry.magic
        for path in folder.glob("*/*.log")
        for entry in iter_entries(path.read_bytes())
        if not path.parent.name.startswith("__")
    }


def adopted(kind: str, target: Path) -> Broker:
    broker = Broker(target / "broker")
    shutil.move(unpack(kind, target), broker.data)
    done = run(broker.data)
    assert done.exit_code == 0, done.output
    return broker


# --- what clients see


@pytest.fixture(scope="module", params=KINDS)
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with adopted(request.param, tmp_path_factory.mktemp(request.param)) as running:
        yield running


@pytest.fixture(scope="module")
def seen(broker: Broker) -> dict[Partition, Contents]:
    return read_with_client(broker.bootstrap, PARTITIONS)


@pytest.mark.parametrize("partition", PARTITIONS, ids=NAMES)
def test_a_client_reads_every_record(seen: dict[Partition, Contents], partition: Partition) -> None:
    assert seen[partition] == expected()[partition]


def test_a_folder_of_kafka_0_10(tmp_path: Path) -> None:
    """It knows no topic ids, no producers and no epochs yet, and formats changed while it was written."""
    wanted = expected("expected010.json")
    with adopted("kafka010", tmp_path) as running:
        assert read_with_client(running.bootstrap, sorted(wanted)) == wanted
        produce(running.bootstrap, {partition: [b"more"] for partition in wanted})
        running.restart(kill=True)
        for partition, before in wanted.items():
            now = read_with_fetch(running.bootstrap, partition)
            assert now.records[:-1] == before.records
            assert (now.records[-1].offset, now.records[-1].value) == (before.high, b"more")


def test_records_are_found_by_their_time(broker: Broker) -> None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "unused"})
    records = expected()["v1-rolled", 0].records
    for wanted in records[::17]:
        (found,) = consumer.offsets_for_times([TopicPartition("v1-rolled", 0, wanted.timestamp)], timeout=10)
        assert found.offset == next(r.offset for r in records if r.timestamp >= wanted.timestamp)
    consumer.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
def test_production_goes_on_where_kafka_ended(tmp_path: Path, kind: str, kill: bool) -> None:
    with adopted(kind, tmp_path) as running:
        produce(running.bootstrap, {partition: [b"one", b"two"] for partition in PARTITIONS})
        running.restart(kill=kill)
        for partition in PARTITIONS:
            before, now = expected()[partition], read_with_fetch(running.bootstrap, partition)
            assert now.records[:-2] == before.records
            assert [(r.offset, r.value) for r in now.records[-2:]] == [
                (before.high, b"one"),
                (before.high + 1, b"two"),
            ]


# --- what adopt says and does


@pytest.mark.parametrize("kind", KINDS)
def test_a_dry_run_tells_what_would_be_converted_and_changes_nothing(tmp_path: Path, kind: str) -> None:
    folder = unpack(kind, tmp_path)
    before = digest(folder)
    told = run("--dry-run", folder).output
    assert digest(folder) == before
    size = (folder / "mixed-0" / f"{0:020d}.log").stat().st_size
    assert f"message format 0 or 1, to be converted to 2: 1 segments, {size} bytes" in told
    assert told.count("to be converted") == len(PARTITIONS)


@pytest.mark.parametrize("kind", KINDS)
def test_only_format_2_is_left(tmp_path: Path, kind: str) -> None:
    folder = unpack(kind, tmp_path)
    assert magics(folder) == {0, 1, 2}
    told = run(folder).output
    assert magics(folder) == {2}
    assert "Converted " in told
    assert told.count("converted to 2") == len(PARTITIONS)
    assert not [path for path in folder.rglob("*") if path.suffix in (".cleaned", ".swap")]
    batches = list(iter_batches((folder / "v0-lz4-0" / f"{0:020d}.log").read_bytes()))
    assert {header.codec.name for _, header in batches} == {"LZ4"}


def test_what_can_be_seen_of_settings_is_set(tmp_path: Path) -> None:
    topics = survey([unpack("clean", tmp_path)]).topics
    assert topics["v1-appendtime"].settings["message.timestamp.type"] == "LogAppendTime"
    assert "message.timestamp.type" not in topics["v1-gzip"].settings
    assert topics["v0-compact"].settings["cleanup.policy"] == "compact"


def test_producers_behind_old_messages_are_seen(tmp_path: Path) -> None:
    folder = unpack("crashed", tmp_path)
    for path in folder.glob("*/*.snapshot"):
        path.unlink()
    assert survey([folder]).highest_producer_id == 3


def test_progress_counts_the_bytes(tmp_path: Path) -> None:
    folder = unpack("clean", tmp_path)
    found = survey([folder])
    told: list[int] = []
    done = adopt(found, converting=told.append)
    assert sum(told) == found.old_bytes == done.old_bytes
    assert done.records == sum(len(contents.records) for contents in expected().values()) - 56  # format 2


def test_damage_is_named_and_the_folder_stays_kafkas(tmp_path: Path) -> None:
    folder = unpack("clean", tmp_path)
    path = folder / "v1-none-0" / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)
    with pytest.raises(CannotAdopt, match=r"v1-none-0/0{20}.log: the message at position \d+ cannot be kept"):
        adopt(survey([folder]))
    assert not (folder / FILE_NAME).exists()
    assert path.read_bytes() == data


def test_a_torn_tail_is_named_and_cut_by_the_first_start(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "broker")
    shutil.move(unpack("crashed", tmp_path), broker.data)
    with (broker.data / "v1-none-0" / f"{0:020d}.log").open("ab") as file:
        file.write(message(1, Record(40, 1, None, b"torn" * 9))[:-5])
    output = run(broker.data).output
    assert "v1-none-0" in output.partition("of an incomplete message")[0].rpartition("Conv")[2]
    with broker:
        assert read_with_fetch(broker.bootstrap, ("v1-none", 0)) == expected()["v1-none", 0]


@pytest.mark.kafka
def test_kafkas_own_tool_reads_what_was_converted(tmp_path: Path) -> None:
    folder = unpack("clean", tmp_path)
    assert run(folder).exit_code == 0
    printed = dump("kafka4", partition_files(folder), "--print-data-log")
    assert complaints(printed) == []
    found = dumped_records(printed)
    for (topic, index), contents in expected().items():
        assert [(record.offset, record.timestamp) for record in found[f"{topic}-{index}"]] == [
            (record.offset, record.timestamp) for record in contents.records
        ]


# --- killed


def test_killed_at_any_moment_nothing_is_lost(tmp_path: Path) -> None:
    """Adopt is killed again and again, and goes on each time; what it ends with is what Kafka served."""
    rng = random.Random(4)
    killed = 0
    for turn in range(scale(2, 12)):
        target = tmp_path / str(turn)
        broker = Broker(target / "broker")
        shutil.move(unpack(rng.choice(KINDS), target), broker.data)
        kills = 0
        while kills < scale(6, 40) and not killed_run(broker.data, rng):
            kills += 1
        killed += kills
        if not (broker.data / FILE_NAME).exists():
            assert run(broker.data).exit_code == 0
        assert magics(broker.data) == {2}
        with broker:
            for partition in PARTITIONS:
                assert read_with_fetch(broker.bootstrap, partition) == expected()[partition]
    assert killed > 1


# The process kills itself before one of its about 400 writes, syncs, renames and deletions, so that a seed
# hits the same one each time.
KILLED = """
import os, signal, sys
from pathlib import Path
left = int(sys.argv[2])
for name in ("pwrite", "fsync", "fdatasync", "rename", "replace", "unlink"):
    def counted(*arguments, real=getattr(os, name), **named):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **named)
    setattr(os, name, counted)
from tidelog.server.adopt import adopt, survey
adopt(survey([Path(sys.argv[1])]))
"""


def killed_run(folder: Path, rng: random.Random) -> bool:
    """Whether adopt came to its end before it was killed."""
    process = subprocess.run([sys.executable, "-c", KILLED, str(folder), str(rng.randint(1, 200))])
    assert process.returncode in (0, -signal.SIGKILL)
    return process.returncode == 0
