"""A broker that must not start says why, ends with status 1, and leaves the folder as it was."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
from pathlib import Path

import pytest

from tests.faults.client import Client, batch_of
from tests.support.broker import Broker

# The lock is taken and the tree counts its sessions; everything else stays byte for byte.
IGNORED = {".lock", "__tree.sqlite"}


def contents(folder: Path) -> dict[str, str]:
    """Every file below a folder with a digest of its bytes."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in IGNORED
    }


def refused(broker: Broker) -> str:
    """What a broker prints that does not start."""
    broker.launch()
    try:
        assert broker.wait() == 1
    finally:
        broker.close()
    assert "Traceback" not in broker.log()
    lines = [line for line in broker.log().splitlines() if line.startswith("tidelog: ")]
    assert len(lines) == 1, broker.log()
    return lines[0]


def used_folder(folder: Path) -> Broker:
    """A broker that had a life and was stopped."""
    broker = Broker(folder, {"broker.id": "7"}, keep_port=False)
    with broker, Client(broker.address) as client:
        assert client.create_topic("t", 2) == 0
        assert client.produce("t", 0, batch_of(b"precious")) == (0, 0)
        broker.terminate()
    return broker


@pytest.mark.parametrize(
    ("name", "wrong", "words"),
    [
        ("cluster.id", "AAAAAAAAAAAAAAAAAAAAAA", ["AAAAAAAAAAAAAAAAAAAAAA", "cluster.id", "meta.properties"]),
        ("broker.id", "8", ["broker.id 8", "broker.id 7", "meta.properties"]),
        ("version", "9", ["version", "9"]),
    ],
)
def test_a_folder_of_another_cluster_or_broker_is_refused(
    tmp_path: Path, name: str, wrong: str, words: list[str]
) -> None:
    broker = used_folder(tmp_path)
    meta = broker.data / "meta.properties"
    lines = meta.read_text().splitlines()
    meta.write_text("\n".join(f"{name}={wrong}" if line.startswith(name + "=") else line for line in lines))
    before = contents(broker.data)
    reason = refused(broker)
    assert all(word in reason for word in words), reason
    assert str(broker.data) in reason
    assert contents(broker.data) == before


@pytest.mark.parametrize("garbage", [b"\xff\xfe\0\0garbage", b"broker.id=many\nversion=1\n", b"version=x\n"])
def test_a_folder_whose_owner_cannot_be_read_is_refused(tmp_path: Path, garbage: bytes) -> None:
    broker = used_folder(tmp_path)
    (broker.data / "meta.properties").write_bytes(garbage)
    before = contents(broker.data)
    assert "meta.properties" in refused(broker)
    assert contents(broker.data) == before


def test_a_second_broker_on_the_same_folder_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    with Broker(tmp_path / "first") as first, Client(first.address) as client:
        assert client.create_topic("t") == 0
        assert client.produce("t", 0, batch_of(b"x")) == (0, 0)
        before = contents(first.data)
        second = Broker(tmp_path / "second", {"log.dirs": str(first.data)})
        reason = refused(second)
        assert str(first.data) in reason
        assert "in use by another broker" in reason
        assert {name: before[name] for name in before if name.endswith(".log")} == {
            name: digest for name, digest in contents(first.data).items() if name.endswith(".log")
        }
        assert client.produce("t", 0, batch_of(b"y")) == (0, 1)


def test_a_port_in_use_is_refused_before_the_folder_is_touched(tmp_path: Path) -> None:
    broker = used_folder(tmp_path)
    before = contents(broker.data)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        broker.settings["listeners"] = f"PLAINTEXT://127.0.0.1:{port}"
        reason = refused(broker)
    assert f"127.0.0.1:{port}" in reason
    assert "in use" in reason
    assert contents(broker.data) == before
    # The clean stop is still one: the next start need not recover.
    assert ".kafka_cleanshutdown" in before
    del broker.settings["listeners"]
    with broker, Client(broker.address) as client:
        assert [stored.values for stored in client.read_all("t", 0)] == [[b"precious"]]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("num.partitions=many\n", ["num.partitions", "many"]),
        ("num.partitions=0\n", ["num.partitions", "0"]),
        ("log.retention.hours=1.5\n", ["log.retention.hours", "1.5"]),
        ("listeners=PLAINTEXT//127.0.0.1\n", ["listeners", "PLAINTEXT//127.0.0.1"]),
        ("listeners=PLAINTEXT://127.0.0.1:0,PLAINTEXT://127.0.0.1:0\n", ["listeners", "PLAINTEXT"]),
        ("listeners=SSL://127.0.0.1:0\n", ["SSL"]),
        ("listeners=PLAINTEXT://127.0.0.1:99999\n", ["listeners", "99999"]),
        (
            "zookeeper.connect=localhost:2181\ninter.broker.protocol.version=3.3\n",
            ["inter.broker.protocol.version", "3.3", "3.4"],
        ),
        ("compression.type=rar\n", ["compression.type", "rar"]),
        ("offsets.topic.replication.factor=3\n", ["offsets.topic.replication.factor", "3"]),
        ("broker.id=-5\n", ["broker.id", "-5"]),
        ("log.cleanup.policy=burn\n", ["log.cleanup.policy", "burn"]),
        ("a\\u00zz=1\n", ["\\u00zz"]),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name_and_value(
    tmp_path: Path, text: str, words: list[str]
) -> None:
    properties = tmp_path / "server.properties"
    properties.write_text(text)
    broker = Broker(tmp_path, properties=properties)
    if text.startswith("listeners="):
        broker.settings["listeners"] = text.strip().removeprefix("listeners=")
    reason = refused(broker)
    assert all(word in reason for word in words), reason
    assert not broker.data.exists() or contents(broker.data) == {}


def test_log_dirs_that_cannot_be_made_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    broker = Broker(tmp_path, {"log.dirs": str(tmp_path / "file" / "data")})
    assert str(tmp_path / "file") in refused(broker)


def test_a_damaged_tree_is_refused_and_left_alone(tmp_path: Path) -> None:
    broker = used_folder(tmp_path)
    (tree,) = broker.data.glob("*.sqlite")
    tree.write_bytes(b"this is no database, " * 1000)
    before = contents(broker.data)
    damaged = tree.read_bytes()
    assert tree.name in refused(broker)
    assert contents(broker.data) == before
    assert tree.read_bytes() == damaged


def test_a_partition_that_is_in_two_folders_is_refused(tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    broker = Broker(tmp_path, {"log.dirs": ",".join(map(str, folders))})
    with broker, Client(broker.address) as client:
        assert client.create_topic("t") == 0
        broker.terminate()
    home, other = folders if (folders[0] / "t-0").exists() else reversed(folders)
    (other / "t-0").mkdir()
    for file in (home / "t-0").iterdir():
        (other / "t-0" / file.name).write_bytes(file.read_bytes())
    reason = refused(broker)
    assert "t-0" in reason
    assert all(str(folder) in reason for folder in folders)


def another_stopped(data: Path) -> None:
    """What Kafka leaves when it stops cleanly."""
    (data / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":4294967337}')


OTHER_ID = "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ"
NEWER_EPOCH = "0\n2\n0 0\n3 1\n"


@pytest.mark.parametrize("case", ["new topic", "other id", "newer epoch"])
def test_a_tree_that_is_older_than_the_folder_is_refused(tmp_path: Path, case: str) -> None:
    broker = used_folder(tmp_path)
    first = broker.data / "t-0"
    if case == "new topic":
        words = [str(shutil.copytree(first, broker.data / "new-0")), "does not know"]
    elif case == "other id":
        (first / "partition.metadata").write_text(OTHER_ID)
        words = [str(first), "AAAAAAAAAAAAAAAAAAAAAQ"]
    else:
        (first / "leader-epoch-checkpoint").write_text(NEWER_EPOCH)
        words = [str(first), "epoch 3"]
    another_stopped(broker.data)
    before = contents(broker.data)
    line = refused(broker)
    assert all(word in line for word in [*words, "another broker", "__tree.sqlite", "`tidelog adopt`"])
    assert contents(broker.data) == before
    assert refused(broker) == line, "and stays refused"


@pytest.mark.parametrize("case", ["other id", "newer epoch"])
def test_it_is_found_out_also_where_the_other_broker_crashed(tmp_path: Path, case: str) -> None:
    broker = used_folder(tmp_path)
    first = broker.data / "t-0"
    if case == "other id":
        (first / "partition.metadata").write_text(OTHER_ID)
    else:
        (first / "leader-epoch-checkpoint").write_text(NEWER_EPOCH)
    (broker.data / ".kafka_cleanshutdown").unlink()
    assert "another broker used the log folders" in refused(broker)


def test_a_folder_that_another_broker_only_wrote_to_is_served_with_a_warning(tmp_path: Path) -> None:
    broker = used_folder(tmp_path)
    another_stopped(broker.data)
    with broker.start(), Client(broker.address) as client:
        assert "was used by another broker" in broker.log()
        assert len(client.read_all("t", 0)) == 1
        broker.terminate()
    with broker.start():
        assert "was used by another broker" not in broker.log()


def test_a_folder_that_belongs_to_no_topic_is_left_alone_where_nobody_else_was(tmp_path: Path) -> None:
    broker = used_folder(tmp_path)
    shutil.copytree(broker.data / "t-0", broker.data / "stray-0")
    with broker.start():
        assert "stray-0 belongs to no topic" in broker.log()


def test_a_metrics_port_in_use_is_refused_before_the_folder_is_touched(tmp_path: Path) -> None:
    broker = used_folder(tmp_path)
    before = contents(broker.data)
    assert ".kafka_cleanshutdown" in before
    with socket.create_server(("127.0.0.1", 0)) as taken:
        broker.settings["metrics.listener"] = f"127.0.0.1:{taken.getsockname()[1]}"
        assert broker.settings["metrics.listener"] in refused(broker)
    assert contents(broker.data) == before


def test_a_ready_file_that_cannot_be_written_is_refused_before_the_start(tmp_path: Path) -> None:
    broker = used_folder(tmp_path)
    before = contents(broker.data)
    broker.ready_file = tmp_path / "missing" / "ready"
    reason = refused(broker)
    assert f"--ready-file {broker.ready_file}" in reason
    assert f"there is no folder {tmp_path / 'missing'}" in reason
    assert contents(broker.data) == before


def test_a_start_that_fails_after_the_logs_were_opened_stops_cleanly(tmp_path: Path) -> None:
    broker = used_folder(tmp_path)
    broker.ready_file = tmp_path / "link"
    broker.ready_file.symlink_to(tmp_path / "missing" / "ready")  # only the write itself shows it
    reason = refused(broker)
    assert f"--ready-file {broker.ready_file} cannot be written" in reason
    assert ".kafka_cleanshutdown" in contents(broker.data)
    broker.ready_file = tmp_path / "ready"
    with broker, Client(broker.address) as client:
        assert [stored.values for stored in client.read_all("t", 0)] == [[b"precious"]]
        assert "recovered" not in broker.log()
        assert "used by another broker" not in broker.log()


def test_a_broker_whose_standard_output_is_closed_serves_all_the_same(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    reader, writer = os.pipe()
    os.close(reader)
    broker.launch(stdout=writer)
    os.close(writer)
    with broker.await_ready(), Client(broker.address) as client:
        assert client.create_topic("t") == 0
        assert broker.terminate() == 0


def two_folders(tmp_path: Path) -> tuple[Broker, Path, Path]:
    """A broker that was stopped, and its log folders, which hold two partitions each."""
    first, second = tmp_path / "first", tmp_path / "second"
    broker = Broker(tmp_path, {"log.dirs": f"{first},{second}"})
    with broker, Client(broker.address) as client:
        assert client.create_topic("t", 4) == 0
        broker.terminate()
    return broker, first, second


def test_a_missing_first_folder_is_taken_for_a_disk_that_is_not_mounted(tmp_path: Path) -> None:
    broker, first, second = two_folders(tmp_path)
    first.rename(tmp_path / "unmounted")
    first.mkdir()
    reason = refused(broker)
    assert f"{second} has 2 partitions" in reason
    assert f"if {first} is a disk that is not mounted, mount it" in reason
    assert reason.index("mount it") < reason.index("tidelog adopt")


def test_partitions_that_begin_empty_because_a_folder_is_new_are_named(tmp_path: Path) -> None:
    broker, _, second = two_folders(tmp_path)
    second.rename(tmp_path / "unmounted")
    with broker, Client(broker.address):
        (line,) = [line for line in broker.log().splitlines() if "level=error" in line]
        assert "2 partitions have no log in any folder and begin empty" in line
        assert f"{second} was not used before: if its disk is not mounted" in line


def test_a_new_folder_beside_complete_ones_is_nothing_to_tell(tmp_path: Path) -> None:
    broker, first, second = two_folders(tmp_path)
    broker.settings["log.dirs"] = f"{first},{second},{tmp_path / 'third'}"
    with broker, Client(broker.address):
        assert "level=error" not in broker.log()
