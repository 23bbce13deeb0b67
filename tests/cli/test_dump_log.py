"""`tidelog dump-log` prints what kafka-dump-log prints of the same files."""

from __future__ import annotations

import gzip
import json
import shutil
import struct
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.cli.client_tools import assert_content_without_reader
from tidelog.cli.main import main
from tidelog.records.batch import Record, build_batch

DATA = Path(__file__).parent.parent / "data"
FIRST = f"{0:020d}"
PRINTED_BY_KAFKA = json.loads(gzip.decompress((DATA / "dump-log.json.gz").read_bytes()))

Dump = Callable[..., Result]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log folders that Kafka wrote, stopped cleanly and crashed."""
    folder = tmp_path_factory.mktemp("logs")
    for name in ("clean", "crashed"):
        with tarfile.open(DATA / f"logdir-{name}.tar.gz") as archive:
            archive.extractall(folder, filter="data")
    return folder


@pytest.fixture
def dump(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Dump:
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(main, ["dump-log", *arguments])


@pytest.fixture
def plain(folder: Path, tmp_path: Path) -> Path:
    """A copy of one partition, to be damaged."""
    return Path(shutil.copytree(folder / "clean" / "plain-1", tmp_path / "plain-1"))


@pytest.mark.parametrize(
    "printed", PRINTED_BY_KAFKA, ids=lambda printed: " ".join(printed["arguments"])[:120]
)
def test_every_line_is_kafkas(
    folder: Path, monkeypatch: pytest.MonkeyPatch, printed: dict[str, list[str] | str]
) -> None:
    monkeypatch.chdir(folder)
    shown = CliRunner().invoke(main, ["dump-log", *printed["arguments"]])
    assert shown.exit_code == 0
    assert shown.stdout == printed["stdout"]
    assert shown.stderr.replace(f"{folder}/", "FOLDER/") == printed["stderr"]


def test_a_torn_end_is_counted(dump: Dump, plain: Path) -> None:
    log = plain / f"{FIRST}.log"
    whole = dump("--files", str(log)).stdout
    with log.open("ab") as file:
        file.write(log.read_bytes()[:70])
    assert dump("--files", str(log)).stdout == f"{whole}Found 70 invalid bytes at the end of {FIRST}.log\n"


def test_a_changed_byte_is_seen_in_its_batch_alone(dump: Dump, plain: Path) -> None:
    log = plain / f"{FIRST}.log"
    data = bytearray(log.read_bytes())
    data[100] ^= 1
    log.write_bytes(data)
    lines = dump("--files", str(log)).stdout.splitlines()[2:]
    assert [line.endswith("isvalid: false") for line in lines] == [True] + [False] * (len(lines) - 1)


def test_garbage_is_told_and_does_not_stop_the_tool(dump: Dump, tmp_path: Path) -> None:
    log = tmp_path / f"{FIRST}.log"
    log.write_bytes(build_batch([Record(0, 1, None, b"good")]) + bytes(200))
    shown = dump("--files", str(log), "--print-data-log")
    assert shown.exit_code == 0
    assert "payload: good" in shown.stdout
    assert "Found 200 invalid bytes" in shown.stdout
    assert "Cannot read on" in shown.stderr


def test_records_that_cannot_be_unpacked_are_told_with_their_position(dump: Dump, tmp_path: Path) -> None:
    log = tmp_path / f"{FIRST}.log"
    batch = bytearray(build_batch([Record(0, 1, None, b"x" * 100)]))
    struct.pack_into(">h", batch, 21, 1)  # says gzip, holds none
    log.write_bytes(bytes(batch) + build_batch([Record(1, 1, None, b"after")], base_offset=1))
    shown = dump("--files", str(log), "--print-data-log")
    assert shown.exit_code == 0
    assert "payload: after" in shown.stdout
    assert "position 0" in shown.stderr


def test_an_index_that_does_not_fit_its_log_is_told(dump: Dump, plain: Path) -> None:
    index, time_index = plain / f"{FIRST}.index", plain / f"{FIRST}.timeindex"
    for file, wrong in ((index, struct.pack(">i", 5)), (time_index, struct.pack(">q", 1 << 40))):
        file.write_bytes(wrong + file.read_bytes()[len(wrong) :])
    assert dump("--files", str(index), "--verify-index-only").stderr == (
        f"Mismatches in :{index}\n  Index offset: 5, log offset: 39\n"
    )
    assert dump("--files", str(time_index)).stderr == (
        f"Found timestamp mismatch in :{time_index}\n"
        "  Index timestamp: 1099511627776, log timestamp: 1767225679000\n"
    )


@pytest.mark.parametrize("name", [f"{FIRST}.index", f"{FIRST}.timeindex"])
def test_an_index_of_a_broken_size_fails_the_sanity_check(dump: Dump, plain: Path, name: str) -> None:
    index = plain / name
    index.write_bytes(index.read_bytes()[:-3])
    refused = dump("--files", str(index), "--index-sanity-check")
    assert refused.exit_code == 1
    assert "are not a multiple of" in refused.stderr


def test_a_crashed_time_index_fails_the_sanity_check(dump: Dump, folder: Path) -> None:
    index = folder / "crashed" / "plain-0" / f"{861:020d}.timeindex"
    refused = dump("--files", str(index), "--index-sanity-check")
    assert refused.exit_code == 1
    assert "the last timestamp, 0, is below the first, 1767227400000" in refused.stderr


def test_numbers_are_shown_by_the_number_decoders(dump: Dump, tmp_path: Path) -> None:
    log = tmp_path / f"{FIRST}.log"
    log.write_bytes(build_batch([Record(0, 1, struct.pack(">i", -7), struct.pack(">q", 1 << 40))]))
    decoders = ("--key-decoder-class", "IntegerDecoder", "--value-decoder-class", "org.example.LongDecoder")
    assert dump("--files", str(log), *decoders).stdout.rstrip().endswith("key: -7 payload: 1099511627776")
    assert (
        "(8 bytes are no integer)"
        in dump("--files", str(log), "--value-decoder-class", "IntegerDecoder").stdout
    )


def test_several_files_are_printed_one_after_the_other(dump: Dump, plain: Path) -> None:
    files = [str(plain / f"{FIRST}.{kind}") for kind in ("log", "index", "timeindex")]
    shown = dump("--files", ",".join(files)).stdout
    assert [line for line in shown.splitlines() if line.startswith("Dumping")] == [
        f"Dumping {f}" for f in files
    ]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((), "--files must be specified"),
        (("--files", "x.log", "--bogus"), "--bogus"),
        (("--files", "x.log"), "expected the first offset as file name"),
        (("--files", f"{FIRST}.log"), f"cannot read {FIRST}.log: No such file"),
        (("--files", "x.log", "--cluster-metadata-decoder"), "not served"),
        (
            ("--files", "x.log", "--key-decoder-class", "MyDecoder"),
            "StringDecoder, IntegerDecoder, LongDecoder",
        ),
    ],
)
def test_what_cannot_be_done_ends_with_1_and_the_reason(
    dump: Dump, arguments: tuple[str, ...], reason: str
) -> None:
    refused = dump(*arguments)
    assert refused.exit_code == 1
    assert reason in refused.stderr


@pytest.mark.parametrize("kind", ["snapshot", "txnindex"])
def test_small_files_that_are_broken_are_refused(dump: Dump, tmp_path: Path, kind: str) -> None:
    file = tmp_path / f"{FIRST}.{kind}"
    file.write_bytes(b"\x00\x01garbage")
    refused = dump("--files", str(file))
    assert refused.exit_code == 1
    assert str(file) in refused.stderr


def test_a_reader_that_went_away_is_no_failure(plain: Path) -> None:
    command = [sys.executable, "-m", "tidelog", "dump-log", "--files", str(plain / f"{FIRST}.log")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert_content_without_reader(process)
