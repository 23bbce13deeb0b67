"""What adopt takes, what it refuses and why, and that it does all of its work or none."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.support import golden
from tests.support.broker import Broker
from tests.support.contents import produce, read_with_fetch
from tests.support.golden import expected_contents
from tidelog import Admin
from tidelog.cli.adopt import adopt as command
from tidelog.metadata.embedded_tree import FILE_NAME, EmbeddedTree
from tidelog.metadata.store import MetadataStore
from tidelog.protocol.wire import uuid_to_text
from tidelog.records.batch import Record, build_batch
from tidelog.server.adopt import CannotAdopt, adopt, survey
from tidelog.storage.checkpoints import decode_partition_metadata
from tidelog.storage.disk import RealDisk


@pytest.fixture
def clean(tmp_path: Path) -> Path:
    return golden.unpack("clean", tmp_path)


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def run(*arguments: object) -> str:
    result = CliRunner().invoke(command, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.output


def refused(*arguments: object) -> str:
    result = CliRunner().invoke(command, [str(argument) for argument in arguments])
    assert result.exit_code != 0
    return " ".join(result.output.split())


def write_meta(folder: Path, *lines: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "meta.properties").write_text("".join(f"{line}\n" for line in lines))
    return folder


def store_of(folder: Path) -> MetadataStore:
    return MetadataStore(EmbeddedTree(folder / FILE_NAME))


# --- what changes


def test_a_dry_run_changes_nothing(clean: Path) -> None:
    (clean / ".lock").unlink(missing_ok=True)
    before = contents(clean)
    assert "Nothing was changed" in run("--dry-run", clean)
    assert contents(clean) == before


def test_adopting_adds_the_tree_and_touches_no_file_of_kafkas(clean: Path) -> None:
    before = contents(clean)
    run(clean)
    after = contents(clean)
    assert after.keys() - before.keys() <= {FILE_NAME, ".lock"}
    assert {name: after[name] for name in before} == before


@pytest.mark.parametrize("after", [0, 1, 7])
def test_adopting_again_after_a_crash_in_the_middle(clean: Path, after: int) -> None:
    """The process is killed while it writes; nothing looks adopted, and the second time takes it all."""
    script = (
        "import os, signal, sys; from pathlib import Path; from tidelog.server.adopt import adopt, survey\n"
        "left = [int(sys.argv[2])]\n"
        "def progress(topic):\n"
        "    left[0] -= 1\n"
        "    if left[0] < 0: os.kill(os.getpid(), signal.SIGKILL)\n"
        "adopt(survey([Path(sys.argv[1])]), progress=progress)\n"
    )
    ended = subprocess.run([sys.executable, "-c", script, str(clean), str(after)], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert not (clean / FILE_NAME).exists()
    run(clean)
    assert set(store_of(clean).read_topics()) >= {topic for topic, _ in golden.partitions()}
    assert sorted(path.name for path in clean.iterdir() if "adopting" in path.name) == []


def test_a_broker_does_not_start_on_a_folder_that_was_not_adopted(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "broker")
    shutil.move(golden.unpack("clean", tmp_path), broker.data)
    before = contents(broker.data)
    broker.launch()
    assert broker.wait() == 1
    assert f"adopt the folder with `tidelog adopt {broker.data}`" in broker.log()
    assert {name: data for name, data in contents(broker.data).items() if name != ".lock"} == {
        name: data for name, data in before.items() if name != ".lock"
    }


# --- what is refused


def test_a_folder_that_is_ours_already(clean: Path) -> None:
    run(clean)
    assert f"is tidelog's already: it has a {FILE_NAME}" in refused(clean)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    assert "does not exist" in refused(tmp_path / "missing")
    with pytest.raises(CannotAdopt, match="is not a folder"):
        survey([tmp_path / "missing"])


def test_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "is a file" in refused(tmp_path / "file")


def test_a_folder_that_holds_no_logs(tmp_path: Path) -> None:
    assert "not a log folder" in refused(tmp_path)
    assert not (tmp_path / FILE_NAME).exists()


def test_folders_of_two_clusters(clean: Path, tmp_path: Path) -> None:
    other = write_meta(tmp_path / "other", "version=0", "broker.id=0", "cluster.id=another")
    assert "different clusters: Op1KtY-PTVCuIrOzPLsjQA and another" in refused(clean, other)
    assert not (clean / FILE_NAME).exists()


def test_folders_of_two_brokers(clean: Path, tmp_path: Path) -> None:
    other = write_meta(tmp_path / "other", "version=0", "broker.id=1", "cluster.id=Op1KtY-PTVCuIrOzPLsjQA")
    assert "different brokers: 0 and 1" in refused(clean, other)


def test_a_broker_id_that_the_folder_contradicts(clean: Path) -> None:
    assert "the folder is of broker 0, not of 7" in refused("--broker-id", 7, clean)
    assert not (clean / FILE_NAME).exists()


def test_a_folder_without_a_broker_id_needs_one(clean: Path) -> None:
    (clean / "meta.properties").unlink()
    assert "no meta.properties names a broker id: give one" in refused(clean)
    assert "broker 7" in run("--broker-id", 7, clean)


def test_the_same_partition_in_two_folders(clean: Path, tmp_path: Path) -> None:
    shutil.copytree(clean / "plain-0", tmp_path / "second" / "plain-0")
    assert "plain-0 is in two folders" in refused(clean, tmp_path / "second")


def test_partitions_of_a_topic_with_different_ids(clean: Path) -> None:
    shutil.copy(clean / "idem-0" / "partition.metadata", clean / "plain-1" / "partition.metadata")
    assert "has another topic id" in refused(clean)


def test_files_that_make_no_sense(clean: Path) -> None:
    (clean / "plain-0" / "partition.metadata").write_text("version: 0\ntopic_id: short")
    assert "plain-0/partition.metadata" in refused(clean)
    (clean / "meta.properties").write_text("version=9\n")
    assert "meta.properties: version 9" in refused(clean)


def test_a_folder_that_a_running_broker_uses(clean: Path) -> None:
    lock = RealDisk().lock(str(clean / ".lock"))
    assert lock is not None
    try:
        # A lock is the process's own, so another process has to be refused.
        ended = subprocess.run(
            [sys.executable, "-m", "tidelog", "adopt", str(clean)],
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        lock.close()
    assert ended.returncode == 1
    assert "a broker is running on" in ended.stderr
    assert not (clean / FILE_NAME).exists()


# --- what is understood


def as_kraft(folder: Path) -> Path:
    """The folder as a KRaft broker of Kafka 4 would have it: another identity, and the quorum's own log."""
    write_meta(
        folder,
        "version=1",
        "cluster.id=Op1KtY-PTVCuIrOzPLsjQA",
        "directory.id=Zm9vYmFyYmF6cXV4MTIzNA",
        "node.id=3",
    )
    shutil.copytree(folder / "plain-0", folder / "__cluster_metadata-0")
    (folder / "bootstrap.checkpoint").write_bytes(b"")
    return folder


def test_a_folder_of_a_kraft_broker(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "broker")
    shutil.move(as_kraft(golden.unpack("clean", tmp_path)), broker.data)
    told = run(broker.data)
    assert ", broker 3, " in told
    assert "Left unchanged: __cluster_metadata-0" in told
    quorum = contents(broker.data / "__cluster_metadata-0")
    with broker:
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            assert [node.id for node in admin.describe_cluster().nodes] == [3]
            assert "__cluster_metadata" not in admin.list_topics(list_internal=True)
        assert read_with_fetch(broker.bootstrap, ("plain", 0)) == expected_contents(("plain", 0))
        broker.terminate()
    assert contents(broker.data / "__cluster_metadata-0") == quorum
    assert "directory.id=Zm9vYmFyYmF6cXV4MTIzNA" in (broker.data / "meta.properties").read_text()


def test_several_folders_of_one_broker(tmp_path: Path) -> None:
    first, second = golden.unpack("crashed", tmp_path), tmp_path / "second"
    write_meta(second, *(first / "meta.properties").read_text().splitlines())
    for name in ("plain-1", "txn-0", "codec-zstd-0"):
        shutil.move(first / name, second / name)
    told = run(first, second)
    assert f"log.dirs={first},{second}" in told.replace("\n", "")
    broker = Broker(tmp_path / "broker", {"log.dirs": f"{first},{second}"})
    with broker:
        for partition in golden.partitions():
            assert read_with_fetch(broker.bootstrap, partition) == expected_contents(partition)


def test_checkpoints_that_kafka_made_and_never_filled(tmp_path: Path) -> None:
    """As a Kafka leaves them that was killed in its first minute."""
    broker = Broker(tmp_path / "broker")
    shutil.move(golden.unpack("crashed", tmp_path), broker.data)
    for path in broker.data.glob("*-offset-checkpoint"):
        path.write_bytes(b"")
    # Without the cleaner's checkpoint no file says that a topic is compacted: its gaps must not be taken for
    # what a crash lost, or everything behind the first of them would go.
    assert "cleanup.policy=compact" not in run(broker.data).partition("compact:")[2].splitlines()[0]
    with broker:
        for partition in golden.partitions():
            assert read_with_fetch(broker.bootstrap, partition) == expected_contents(partition)
        assert "a checkpoint is not used" not in broker.log()


def test_topics_without_ids_get_one_that_stays(clean: Path) -> None:
    """As Kafka before 2.8 left them; one partition got its id before an adoption that crashed."""
    (clean / "plain-0" / "partition.metadata").unlink()
    (clean / "idem-0" / "partition.metadata").unlink()
    run(clean)
    topics = store_of(clean).read_topics()
    path = clean / "idem-0" / "partition.metadata"
    assert topics["idem"].topic_id == decode_partition_metadata(str(path), path.read_bytes())
    path = clean / "plain-1" / "partition.metadata"
    assert topics["plain"].topic_id == decode_partition_metadata(str(path), path.read_bytes())


def test_partitions_that_other_brokers_kept_start_empty(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "broker")
    shutil.move(golden.unpack("clean", tmp_path), broker.data)
    shutil.rmtree(broker.data / "plain-0")
    told = run(broker.data)
    assert "missing partitions, which will be empty: 0" in told
    with broker:
        assert read_with_fetch(broker.bootstrap, ("plain", 0)).high == 0
        assert read_with_fetch(broker.bootstrap, ("plain", 1)) == expected_contents(("plain", 1))
        produce(broker.bootstrap, {("plain", 0): [b"first"]})
        assert read_with_fetch(broker.bootstrap, ("plain", 0)).records[0].value == b"first"


def test_folders_that_were_being_deleted_or_moved_are_left_alone(clean: Path) -> None:
    doomed = f"plain-0.{'0' * 32}-delete"
    shutil.copytree(clean / "plain-0", clean / doomed)
    shutil.copytree(clean / "plain-0", clean / f"plain-0.{'1' * 32}-future")
    shutil.copytree(clean / "plain-0", clean / f"gone-0.{'2' * 32}-stray")
    told = run(clean)
    assert f"Left unchanged: gone-0.{'2' * 32}-stray, {doomed}, plain-0.{'1' * 32}-future" in told
    assert "gone" not in store_of(clean).read_topics()


# --- leader epochs and producer ids


def bare_partition(folder: Path, *batches: bytes) -> Path:
    """A folder with one topic that was killed before anything but its batches reached the disk."""
    write_meta(folder, "version=0", "broker.id=0", "cluster.id=Op1KtY-PTVCuIrOzPLsjQA")
    (folder / "bare-0").mkdir()
    (folder / "bare-0" / f"{0:020d}.log").write_bytes(b"".join(batches))
    return folder


def batch(offset: int, *, epoch: int = 0, producer: int = -1) -> bytes:
    return build_batch(
        [Record(offset, 1_767_225_600_000, None, b"value")],
        base_offset=offset,
        leader_epoch=epoch,
        producer_id=producer,
        producer_epoch=-1 if producer < 0 else 0,
        base_sequence=-1 if producer < 0 else 0,
    )


def test_leader_epochs_go_on_from_the_batches_where_there_is_no_checkpoint(tmp_path: Path) -> None:
    folder = bare_partition(tmp_path / "bare", batch(0, epoch=3), batch(1, epoch=5))
    run(folder)
    assert store_of(folder).read_topics()["bare"].partitions[0].leader_epoch == 5


def test_producer_ids_go_on_after_those_in_batches(tmp_path: Path) -> None:
    folder = bare_partition(tmp_path / "bare", batch(0, producer=41_234), batch(1, producer=17))
    run(folder)
    assert store_of(folder).allocate_producer_ids(0).start > 41_234


def test_a_made_up_producer_id_does_not_use_up_the_others(tmp_path: Path) -> None:
    """Kafka takes any id from an idempotent producer, the highest number there is among them."""
    folder = bare_partition(tmp_path / "bare", batch(0, producer=(1 << 63) - 1), batch(1, producer=17))
    run(folder)
    assert 17 < store_of(folder).allocate_producer_ids(0).start < 1 << 32


def test_a_torn_batch_is_not_believed(tmp_path: Path) -> None:
    torn = bytearray(batch(1, epoch=99, producer=1 << 60))
    torn[-1] ^= 1
    folder = bare_partition(tmp_path / "bare", batch(0, epoch=2, producer=17), bytes(torn))
    run(folder)
    store = store_of(folder)
    assert store.read_topics()["bare"].partitions[0].leader_epoch == 2
    assert store.allocate_producer_ids(0).start < 1 << 32


def test_producer_ids_of_transactional_ids_are_taken_too(clean: Path) -> None:
    """No log remembers a producer that was quiet for a day, but its transactional id still has the id."""
    for path in clean.glob("*/*.snapshot"):
        path.write_bytes(b"")
    for path in clean.iterdir():
        if path.is_dir() and not path.name.startswith("__transaction_state"):
            shutil.rmtree(path)
    found = survey([clean])
    assert found.highest_producer_id == 2


def test_every_id_of_the_golden_folders_is_seen(tmp_path: Path) -> None:
    found = {kind: survey([golden.unpack(kind, tmp_path)]).highest_producer_id for kind in golden.KINDS}
    assert found["clean"] == found["crashed"] >= 2


def test_the_library_tells_each_topic_as_it_goes(clean: Path) -> None:
    told: list[str] = []
    found = survey([clean])
    adopt(found, progress=told.append)
    assert sorted(told) == sorted(found.topics)
    assert {uuid_to_text(topic.topic_id or b"") for topic in found.topics.values()} == {
        line.removeprefix("topic_id: ")
        for path in clean.glob("*/partition.metadata")
        for line in path.read_text().splitlines()
        if line.startswith("topic_id")
    }
    assert os.listdir(clean).count(FILE_NAME) == 1
