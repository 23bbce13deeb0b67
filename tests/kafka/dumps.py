"""Kafka's DumpLogSegments over every file of a log folder, and what it says."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tests.kafka.jars import run_tool

TOOLS = {"kafka3": "kafka.tools.DumpLogSegments", "kafka4": "org.apache.kafka.tools.DumpLogSegments"}
SUFFIXES = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")

_RECORD = re.compile(
    r"\| offset: (?P<offset>\d+) (?:CreateTime|LogAppendTime): (?P<timestamp>-?\d+) "
    r"keySize: (?P<key>-?\d+) valueSize: (?P<value>-?\d+)"
)
COMPLAINTS = (
    "mismatch",
    "out of order",
    "Non-consecutive",
    "isvalid: false",
    "corrupt",
    "Exception",
    "not found",
    "bytes are invalid",
    "Could not",
)


@dataclass(slots=True, frozen=True)
class DumpedRecord:
    offset: int
    timestamp: int
    key_size: int
    value_size: int


def partition_files(folder: Path, *suffixes: str) -> list[Path]:
    """The files of every partition, sorted so that what is dumped comes in the order of offsets."""
    return sorted(path for path in folder.glob("*-*/*") if path.suffix in (suffixes or SUFFIXES))


def dump(kind: str, files: list[Path], *flags: str) -> str:
    """One run over all the files; it fails where the tool fails."""
    done = run_tool(kind, TOOLS[kind], "--files", ",".join(map(str, files)), *flags)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def complaints(printed: str) -> list[str]:
    return [line for line in printed.splitlines() if any(word in line for word in COMPLAINTS)]


def dumped_records(printed: str) -> dict[str, list[DumpedRecord]]:
    """The records of each partition's folder, in the order of the files; without transaction markers."""
    found: dict[str, list[DumpedRecord]] = {}
    folder = ""
    for line in printed.splitlines():
        if line.startswith("Dumping "):
            folder = Path(line.removeprefix("Dumping ")).parent.name
            found.setdefault(folder, [])
        match = _RECORD.match(line)
        if match and "endTxnMarker" not in line:
            found[folder].append(
                DumpedRecord(*(int(match[n]) for n in ("offset", "timestamp", "key", "value")))
            )
    return found
