"""The status of a running pipeline for other programs: a status file, a lock, and requests to stop.

The lock is the kernel's, so it ends with the process in any case. A process id in a status file may belong to
another process by now. The folder is `<data>/status`, or a folder in the user's state folder if data is not
on a local disk.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import socket
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

STARTING, RUNNING, STOPPING, STOPPED, FAILED = "starting", "running", "stopping", "stopped", "failed"
ENDED = (STOPPED, FAILED)
KILLED = "killed"
"""The state of a pipeline whose file says that it runs, but whose process is gone."""


class AlreadyRunning(ValueError):
    """The pipeline is already running on this data folder."""


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
    jvm_pid: int = 0
    bootstrap: str = ""
    data: str = ""
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


def status_folder(data: str) -> Path:
    local = local_path(data)
    if local is not None:
        return local / "status"
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "tidelog" / "pipelines" / hashlib.sha256(data.rstrip("/").encode()).hexdigest()[:16]


class StateFolder:
    """The status files, locks and stop requests of the pipelines on one data folder."""

    def __init__(self, data: str) -> None:
        self.path = status_folder(data)

    def names(self) -> list[str]:
        return sorted(file.stem for file in self.path.glob("*.json"))

    def read(self, pipeline: str) -> PipelineStatus | None:
        """The last written status; `killed` if the process died without writing its end."""
        try:
            values = json.loads((self.path / f"{pipeline}.json").read_text())
            flows = {name: FlowStatus(**flow) for name, flow in values.pop("flows").items()}
            status = PipelineStatus(**values, flows=flows)
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError, AttributeError):
            return None  # written by another version of this program
        if status.state not in ENDED and not self.runs(pipeline):
            status.state = KILLED
        return status

    def write(self, status: PipelineStatus) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        status.updated_at = time.time()
        target = self.path / f"{status.pipeline}.json"
        scratch = self.path / f".{status.pipeline}.{os.getpid()}"
        scratch.write_text(json.dumps(asdict(status), indent=1))
        scratch.replace(target)

    def runs(self, pipeline: str) -> bool:
        """Whether a process on this machine holds the pipeline's lock."""
        try:
            with (self.path / f"{pipeline}.lock").open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    def claim(self, pipeline: str) -> Claim:
        """Lock the pipeline on this data folder, until the claim is closed or the process ends."""
        return Claim(self, pipeline)

    def request_stop(self, pipeline: str) -> None:
        (self.path / f"{pipeline}.stop").touch()

    def stop_requested(self, pipeline: str) -> bool:
        return (self.path / f"{pipeline}.stop").exists()

    def forget_request(self, pipeline: str) -> None:
        (self.path / f"{pipeline}.stop").unlink(missing_ok=True)


class Claim:
    """A held lock. Spark's processes do not inherit the file, so the lock ends with this process."""

    def __init__(self, folder: StateFolder, pipeline: str) -> None:
        folder.path.mkdir(parents=True, exist_ok=True)
        self._file = (folder.path / f"{pipeline}.lock").open("ab")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise AlreadyRunning(
                f"{pipeline} already runs on this data folder{_who(folder, pipeline)}; "
                f"stop it with `tidelog pipeline stop {pipeline}`, or choose another --data"
            ) from None
        self.before = folder.read(pipeline)
        folder.forget_request(pipeline)

    def close(self) -> None:
        self._file.close()


def _who(folder: StateFolder, pipeline: str) -> str:
    status = folder.read(pipeline)
    return f" (process {status.pid})" if status is not None and status.pid else ""


def this_process(pipeline: str) -> PipelineStatus:
    return PipelineStatus(pipeline, pid=os.getpid(), host=socket.gethostname(), started_at=time.time())


def process_is_java(pid: int) -> bool:
    """Whether a process with this id lives and is a JVM."""
    if pid <= 0:
        return False
    try:
        return b"java" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]
    except OSError:
        return False
