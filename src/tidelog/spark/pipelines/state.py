"""The status of a running pipeline for other programs: a status file, a lease, and requests to stop.

All of them are in `<data>/status`, wherever the data is, so they serve every host that reaches the data. Only
Spark's log is on the host of the driver: in the same folder if it is local, else in the user's state folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tidelog.config import ConfigError
from tidelog.spark.pipelines.lease import AlreadyRunning, Lease, LeaseLost, Leases, Times, this_holder
from tidelog.spark.pipelines.run_files import run_files
from tidelog.spark.tables.store import Store, s3_options

__all__ = ["AlreadyRunning", "LeaseLost"]

STARTING, RUNNING, STOPPING, STOPPED, FAILED = "starting", "running", "stopping", "stopped", "failed"
ENDED = (STOPPED, FAILED)
KILLED = "killed"
"""The state of a pipeline whose file says that it runs, but whose process is gone."""


@dataclass(slots=True)
class FlowStatus:
    """The progress of one flow. `lag` is None until the end of the log is known.

    `batch` is the last micro-batch that has ended, `running_batch` the one that is being written.
    """

    state: str = STARTING
    batch: int | None = None
    rows: int = 0
    rows_per_second: float = 0.0
    batch_ms: int = 0
    lag: int | None = None
    late_rows_dropped: int = 0
    updated_at: float = 0.0
    running_batch: int | None = None
    running_since: float = 0.0
    running_rows: int | None = None


@dataclass(slots=True)
class PipelineStatus:
    pipeline: str
    state: str = STARTING
    pid: int = 0
    host: str = ""
    machine: str = ""
    jvm_pid: int = 0
    bootstrap: str = ""
    data: str = ""
    checkpoints: str = ""
    """The address of the folder of checkpoints, if it is not below the data."""
    trigger: str = ""
    started_at: float = 0.0
    updated_at: float = 0.0
    error: str | None = None
    flows: dict[str, FlowStatus] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return sum(flow.rows for flow in self.flows.values())

    @property
    def lag(self) -> int | None:
        known = [flow.lag for flow in self.flows.values() if flow.lag is not None]
        return sum(known) if known else None


def local_path(data: str) -> Path | None:
    """The local folder of data; None for other file systems."""
    if data.startswith("file:"):
        return Path(re.sub(r"^file:(//)?(?=/)", "", data))
    return None if re.match(r"^[A-Za-z][A-Za-z0-9+.-]+:", data) else Path(data)


def store_of(data: str, spark_conf: Mapping[str, str]) -> Store:
    """The store of data before there is a session: credentials of `spark_conf` or of the environment."""
    found = Store.of(None, data)
    if not found.is_s3:
        return found
    bucket = found.uri.removeprefix("s3://").partition("/")[0]
    setting = lambda name: spark_conf.get(f"spark.hadoop.{name}")  # noqa: E731
    return Store(found.uri, s3_options(bucket, setting, os.environ))


def check_same_place(folder: StateFolder, qualified: str) -> None:
    """Raise ConfigError if Spark takes the data to be on another file system than the lease."""
    if folder.files.store.is_local and local_path(qualified) is None:
        raise ConfigError(
            "data", qualified, "a path without a scheme is not on this host's disk: give the whole address"
        )


def status_folder(data: str) -> Path:
    """The folder of Spark's log on this host."""
    local = local_path(data)
    if local is not None:
        return local / "status"
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "tidelog" / "pipelines" / hashlib.sha256(data.rstrip("/").encode()).hexdigest()[:16]


class StateFolder:
    """The status files, leases and stop requests of the pipelines on one data folder."""

    def __init__(self, data: str, store: Store | None = None, times: Times | None = None) -> None:
        """`store` is that of the data; by default the environment has its credentials."""
        self.files = run_files((store or Store.of(None, data)).below("status"))
        self.leases = Leases(self.files, times)

    @property
    def poll_seconds(self) -> float:
        """How often status and requests may be read or written."""
        return self.files.poll_seconds

    def names(self) -> list[str]:
        return [name.removesuffix(".json") for name in self.files.names() if name.endswith(".json")]

    def read(self, pipeline: str) -> PipelineStatus | None:
        """The last written status; `killed` if the process died without writing its end."""
        try:
            values = json.loads(self.files.read(f"{pipeline}.json") or "")
            flows = {name: FlowStatus(**flow) for name, flow in values.pop("flows").items()}
            status = PipelineStatus(**values, flows=flows)
        except (ValueError, TypeError, KeyError, AttributeError):
            return None  # there is none, or it was written by another version of this program
        if status.state not in ENDED and not self.runs(pipeline):
            status.state = KILLED
        return status

    def write(self, status: PipelineStatus) -> None:
        status.updated_at = time.time()
        self.files.write(f"{status.pipeline}.json", json.dumps(asdict(status), indent=1))

    def runs(self, pipeline: str) -> bool:
        """Whether a driver, on this host or another one, holds the pipeline's lease."""
        return self.leases.holder(pipeline) is not None

    def claim(self, pipeline: str) -> Claim:
        """Take the pipeline on this data folder, until the claim is closed or the process ends."""
        lease = self.leases.acquire(pipeline)
        try:
            before = self.read(pipeline)
            if before is not None and before.state not in ENDED:
                before.state = KILLED
            self.forget_request(pipeline)
        except BaseException:
            lease.close()
            raise
        return Claim(lease, before)

    def request_stop(self, pipeline: str) -> None:
        """Ask the driver, wherever it runs, to stop the pipeline after its micro-batch."""
        me = this_holder()  # an empty object cannot be written to every store
        self.files.write(f"{pipeline}.stop", json.dumps({"host": me.host, "pid": me.pid, "at": me.at}))

    def stop_requested(self, pipeline: str) -> bool:
        return self.files.read(f"{pipeline}.stop") is not None

    def forget_request(self, pipeline: str) -> None:
        self.files.delete(f"{pipeline}.stop")


@dataclass(slots=True)
class Claim:
    """A pipeline that this driver runs, and its status from the run before."""

    lease: Lease
    before: PipelineStatus | None

    @property
    def lost(self) -> LeaseLost | None:
        """Set when another driver has taken the pipeline over."""
        return self.lease.lost

    def check(self) -> None:
        """Raise LeaseLost if another driver has taken the pipeline over."""
        self.lease.check()

    def close(self) -> None:
        self.lease.close()


def this_process(pipeline: str) -> PipelineStatus:
    me = this_holder()
    return PipelineStatus(pipeline, pid=me.pid, host=me.host, machine=me.machine, started_at=me.since)


def process_is_java(pid: int) -> bool:
    """Whether a process with this id lives and is a JVM."""
    if pid <= 0:
        return False
    try:
        return b"java" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]
    except OSError:
        return False
