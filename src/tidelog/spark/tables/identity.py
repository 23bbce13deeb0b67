"""The identity of a batch, and of the driver that writes it, as a table's commits record them."""

from __future__ import annotations

import hashlib
import os
import socket
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache

METADATA = "tidelog"
"""The key of our entry in the custom metadata of a commit."""
ASIDE_FILES = "aside"
_APP = "tidelog:"
_CHECKPOINT, _OFFSETS = ":checkpoint", ":offsets"


@dataclass(frozen=True, slots=True)
class Driver:
    """One run of one process."""

    host: str
    pid: int
    started: str
    run: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, which began to write at {self.started}"


def this_driver() -> Driver:
    """This process. A forked child is another driver."""
    return _driver(os.getpid())


@lru_cache(maxsize=1)
def _driver(pid: int) -> Driver:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return Driver(socket.gethostname(), pid, now, uuid.uuid4().hex)


@dataclass(frozen=True, slots=True)
class Batch:
    """A micro-batch of a writer. An empty `checkpoint` or `offsets` is not compared with the table's."""

    writer: str
    number: int
    checkpoint: str = ""
    """The id of the streaming query, which lives in its checkpoint."""
    offsets: str = ""
    """The range of offsets that the batch was planned with, as JSON."""

    @property
    def transactions(self) -> dict[str, int]:
        """The versions of the application transactions that record this batch, by application id.

        They outlive the commit's metadata, which the retention of the log deletes. So the checkpoint and the
        offsets are there as well, as digests.
        """
        found = {batch_app(self.writer): self.number}
        if self.checkpoint:
            found[checkpoint_app(self.writer)] = digest(self.checkpoint)
        if self.offsets:
            found[offsets_app(self.writer)] = digest(self.offsets)
        return found


@dataclass(frozen=True, slots=True)
class Commit:
    """The batch, the driver and the attempt of a commit of the table, and the version that it made."""

    version: int
    batch: Batch
    driver: Driver
    attempt: str
    aside: tuple[str, ...] | None = None
    """The files of the rows that the batch put aside; None if the commit does not say."""


def batch_app(writer: str) -> str:
    return f"{_APP}{writer}"


def checkpoint_app(writer: str) -> str:
    return f"{_APP}{writer}{_CHECKPOINT}"


def offsets_app(writer: str) -> str:
    return f"{_APP}{writer}{_OFFSETS}"


def writer_of_app(app: str) -> str | None:
    """The writer whose batches an application id counts; None for any other application id."""
    if not app.startswith(_APP) or app.endswith((_CHECKPOINT, _OFFSETS)):
        return None
    return app.removeprefix(_APP)


def digest(text: str) -> int:
    """A text as the version of an application transaction: 63 bits of its hash."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) >> 1


def metadata_of(
    batch: Batch, driver: Driver, attempt: str, aside: Sequence[str] | None = None
) -> dict[str, object]:
    """Our entry in the custom metadata of a commit."""
    return {
        **({} if aside is None else {ASIDE_FILES: list(aside)}),
        "writer": batch.writer,
        "batch": batch.number,
        "checkpoint": batch.checkpoint,
        "offsets": batch.offsets,
        "host": driver.host,
        "pid": driver.pid,
        "started": driver.started,
        "run": driver.run,
        "attempt": attempt,
    }


def commit_from(version: int, held: Mapping[str, object]) -> Commit | None:
    """The commit that our entry in the metadata describes; None if it is not the commit of a batch."""
    if "writer" not in held or "batch" not in held:
        return None

    def text(name: str) -> str:
        return str(held.get(name, ""))

    aside = held.get(ASIDE_FILES)
    assert aside is None or isinstance(aside, list), "it is a list of paths"

    return Commit(
        version,
        Batch(text("writer"), int(text("batch")), text("checkpoint"), text("offsets")),
        Driver(text("host"), int(text("pid") or 0), text("started"), text("run")),
        text("attempt"),
        None if aside is None else tuple(str(path) for path in aside),
    )
