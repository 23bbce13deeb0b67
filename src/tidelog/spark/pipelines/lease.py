"""The lease of a pipeline on its data: one driver at a time, on whatever host.

Each acquisition is an epoch. It is a commit to a Delta table beside the data with the pipeline's epoch as a
transaction, so the store itself decides a race: of two commits of one epoch one fails. The holder then
renews a file of its epoch. Another driver may commit the next epoch when the file says that the lease was
released, when the holder was a process of this machine that is gone, or when the file has not changed for
`Times.lease` seconds by the other driver's own clock. No clocks are compared between hosts.

A holder whose epoch was succeeded must not write: `Lease.check` raises LeaseLost. Expiry alone ends nothing.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tidelog.spark.pipelines.run_files import RunFiles

if TYPE_CHECKING:
    from deltalake import DeltaTable

log = logging.getLogger("tidelog.spark")

TABLE = "leases"
ENDED, STOPPED, UNKNOWN = ("Z", "X"), ("T", "t"), ""
"""States of processes: ended ones, ones that a signal or a debugger holds, and one that cannot be seen."""
ATTEMPTS = 20
HISTORY = 100
# The table has one commit for each start of a pipeline, and never a row.
CONFIGURATION = {"delta.checkpointInterval": "10", "delta.logRetentionDuration": "interval 7 days"}


class AlreadyRunning(ValueError):
    """The pipeline is already running on this data folder."""


class LeaseLost(RuntimeError):
    """Another driver has taken the pipeline over, and this one must not write any more."""


@dataclass(frozen=True, slots=True)
class Times:
    """The seconds between renewals, and the seconds without one after which a lease may be taken."""

    renew: float = 3.0
    lease: float = 12.0


@dataclass(frozen=True, slots=True)
class Holder:
    """The driver that holds a lease."""

    host: str
    pid: int
    since: float
    machine: str = ""
    process_start: str = ""
    """With the process id it identifies a process; the id alone may have been given to another one."""
    beat: int = 0
    at: float = 0.0
    """The time of the last renewal by the holder's clock."""
    released: bool = False

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self.since))
        return f"process {self.pid} on {self.host} since {since}"

    @property
    def is_here(self) -> bool:
        """Whether the holder is, or was, a process that this one could see."""
        return bool(self.machine) and self.machine == this_machine()

    @property
    def gone(self) -> bool:
        """Whether the holder certainly runs no more. A process of another machine may always run."""
        if self.released or not self.is_here:
            return self.released
        state, start = process(self.pid)
        return state in ENDED or start not in (self.process_start, UNKNOWN)

    @property
    def at_work(self) -> bool:
        """Whether the holder is a process of this machine that runs, and is not merely stopped."""
        state, start = process(self.pid) if self.is_here else (UNKNOWN, UNKNOWN)
        return start == self.process_start and state not in (*ENDED, *STOPPED)


def this_machine() -> str:
    """The running kernel and the namespace of process ids: containers of one host do not see each other."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    return ""  # without /proc: a killed run can be restarted when its lease has expired


def process(pid: int) -> tuple[str, str]:
    """The state of a process as the kernel names it, and its start in ticks since the kernel's."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0], fields[19]
    except OSError:
        pass
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return "X", UNKNOWN
    except PermissionError:  # a process of another user, which this system hides
        pass
    return UNKNOWN, UNKNOWN


def this_holder() -> Holder:
    now, pid = time.time(), os.getpid()
    return Holder(socket.gethostname(), pid, now, this_machine(), process(pid)[1], at=now)


class Leases:
    """The leases of the pipelines on one data folder."""

    def __init__(self, files: RunFiles, times: Times | None = None) -> None:
        self.files = files
        self.times = times or Times()
        self._store = files.store.below(TABLE)

    def acquire(self, pipeline: str) -> Lease:
        """Take the lease. Raises AlreadyRunning, with the name of the holder, if a driver holds it.

        A holder on another machine that does not renew its lease is waited for as long as the lease lasts.
        """
        self.files.store.check_commits()
        with self.files.store.remote_errors():
            return self._acquired(pipeline)

    def _acquired(self, pipeline: str) -> Lease:
        for _ in range(ATTEMPTS):
            # The commit is made from this snapshot: it fails if any driver commits an epoch in between.
            table = self._table()
            epoch = table.transaction_version(pipeline) or 0
            holder = self._holder(table, pipeline, epoch)
            if holder is not None and self.holds(pipeline, epoch, holder):
                raise AlreadyRunning(
                    f"{pipeline} already runs on this data folder ({holder}); "
                    f"stop it with `tidelog pipeline stop {pipeline}`, or choose another --data"
                )
            mine = this_holder()
            if _commit(table, pipeline, epoch + 1, mine):
                return Lease(self, table, pipeline, epoch + 1, mine)
        raise AlreadyRunning(f"{pipeline} is being started by several drivers at once on this data folder")

    def holder(self, pipeline: str) -> Holder | None:
        """The driver that holds the lease; None if nobody does."""
        with self.files.store.remote_errors():
            return self._found(pipeline)

    def _found(self, pipeline: str) -> Holder | None:
        table = self._existing()
        if table is None:
            return None
        epoch = table.transaction_version(pipeline) or 0
        found = self._holder(table, pipeline, epoch)
        if found is None or found.gone:
            return None
        # For a status it does no harm to compare clocks.
        if abs(time.time() - found.at) < self.times.lease or self.holds(pipeline, epoch, found):
            return found
        return None

    def holds(self, pipeline: str, epoch: int, holder: Holder) -> bool:
        """Whether the holder still has its lease. The answer may take as long as a lease lasts."""
        if holder.gone:
            return False
        if holder.at_work:
            return True  # however busy this machine is
        deadline = time.monotonic() + self.times.lease
        while time.monotonic() < deadline:
            now = self._beat(pipeline, epoch) or holder
            if now.gone:
                return False
            if now.beat != holder.beat:
                return True
            time.sleep(min(self.files.poll_seconds, self.times.renew / 4))
        return False

    def _holder(self, table: DeltaTable, pipeline: str, epoch: int) -> Holder | None:
        if not epoch:
            return None
        return self._beat(pipeline, epoch) or _committed(table, pipeline, epoch)

    def _beat(self, pipeline: str, epoch: int) -> Holder | None:
        text = self.files.read(file_name(pipeline, epoch))
        return None if text is None else _parsed(text)

    def _existing(self) -> DeltaTable | None:
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        try:
            return DeltaTable(self._store.uri, storage_options=dict(self._store.options))
        except TableNotFoundError:
            return None

    def _table(self) -> DeltaTable:
        from deltalake import DeltaTable, Field, Schema
        from deltalake.exceptions import DeltaError
        from deltalake.schema import PrimitiveType

        found = self._existing()
        if found is not None:
            return found
        schema = Schema([Field("pipeline", PrimitiveType("string"))])
        with suppress(DeltaError):  # another driver creates it at the same moment
            DeltaTable.create(
                self._store.uri,
                schema,
                mode="ignore",
                configuration=CONFIGURATION,
                storage_options=dict(self._store.options),
            )
        return self._store.delta()


def file_name(pipeline: str, epoch: int) -> str:
    """The file that the holder of an epoch renews. No other driver ever writes it."""
    return f"{pipeline}.{epoch}.lease"


def _commit(table: DeltaTable, pipeline: str, epoch: int, holder: Holder) -> bool:
    """Commit an epoch; False if another driver has committed it since the table was read.

    A store may take a commit although its answer is lost: the holder in the log says whose commit it is.
    """
    from deltalake import CommitProperties, Transaction
    from deltalake.exceptions import CommitFailedError, DeltaError

    properties = CommitProperties(
        app_transactions=[Transaction(pipeline, epoch)],
        custom_metadata={"pipeline": pipeline, "epoch": str(epoch), "holder": json.dumps(asdict(holder))},
    )
    try:
        table.create_write_transaction([], "append", table.schema(), [], commit_properties=properties)
    except DeltaError as error:
        table.update_incremental()
        if _committed(table, pipeline, epoch) == holder:
            return True
        if isinstance(error, CommitFailedError):
            return False
        raise
    return True


def _committed(table: DeltaTable, pipeline: str, epoch: int) -> Holder | None:
    """The holder of an epoch as its commit has it; None if the commit is long gone."""
    for commit in table.history(HISTORY):
        if (commit.get("pipeline"), commit.get("epoch")) == (pipeline, str(epoch)):
            return _parsed(str(commit.get("holder")))
    return None


def _parsed(text: str) -> Holder | None:
    try:
        return Holder(**json.loads(text))
    except (ValueError, TypeError):
        return None  # written by another version of this program


@dataclass(slots=True)
class Lease:
    """A held lease, renewed by a thread of its own until it is closed or the process ends."""

    leases: Leases
    table: DeltaTable
    pipeline: str
    epoch: int
    holder: Holder
    lost: LeaseLost | None = None
    """The reason why this driver must not write any more."""
    _closed: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _thread: threading.Thread | None = None

    def __post_init__(self) -> None:
        self._renew()
        self._forget_older()
        self._thread = threading.Thread(
            target=self._keep, name=f"lease of {self.pipeline}", daemon=True
        )  # the interpreter does not wait for it
        self._thread.start()

    def check(self) -> None:
        """Raise LeaseLost if another driver has taken the lease. It asks the store each time."""
        with self._lock:
            if self.lost is None:
                with self.leases.files.store.remote_errors():
                    self.table.update_incremental()
                epoch = self.table.transaction_version(self.pipeline) or 0
                if epoch > self.epoch:
                    self.lost = LeaseLost(self._sentence(epoch))
            if self.lost is not None:
                raise self.lost

    def _sentence(self, epoch: int) -> str:
        other = self.leases._holder(self.table, self.pipeline, epoch)
        silent = time.time() - self.holder.at
        return (
            f"{self.pipeline} was taken over by {other or 'another driver'}, as this driver had not renewed"
            f" its lease for {silent:.0f} s; this driver stops and writes nothing more"
        )

    def _keep(self) -> None:
        while not self._closed.wait(self.leases.times.renew):
            try:
                self.check()
                self._renew()
            except LeaseLost as lost:
                log.error("%s", lost)
                return
            except Exception as error:  # the store may answer again
                log.warning("the lease of %s could not be renewed: %s", self.pipeline, self._plain(error))

    def _plain(self, error: Exception) -> str:
        return self.leases.files.store.without_secrets(str(error))

    def _renew(self, *, released: bool = False) -> None:
        self.holder = replace(self.holder, beat=self.holder.beat + 1, at=time.time(), released=released)
        name = file_name(self.pipeline, self.epoch)
        self.leases.files.write(name, json.dumps(asdict(self.holder)))

    def _forget_older(self) -> None:
        for name in self.leases.files.names():
            found = name.removesuffix(".lease").rpartition(".")
            older = name.endswith(".lease") and found[0] == self.pipeline and found[2].isdecimal()
            if older and int(found[2]) < self.epoch:
                self.leases.files.delete(name)

    def close(self) -> None:
        """Release the lease, so that another driver can have it at once."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()
        if self.lost is None and not self.holder.released:
            try:
                self._renew(released=True)
            except Exception as error:  # nobody waits longer than for a killed driver
                log.warning("the lease of %s could not be released: %s", self.pipeline, self._plain(error))
