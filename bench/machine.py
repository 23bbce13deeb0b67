"""CPU time and memory of a process and its children, and the basic costs of the machine."""

from __future__ import annotations

import os
import platform
import resource
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MEGABYTE = 1_000_000
GIGABYTE = 1_000_000_000
_CHUNK = 1 << 20


def process_tree(pid: int) -> list[int]:
    """The process and all its running descendants."""
    tree = [pid]
    for parent in tree:
        try:
            tasks = os.listdir(f"/proc/{parent}/task")
        except FileNotFoundError:
            continue
        for task in tasks:
            try:
                children = Path(f"/proc/{parent}/task/{task}/children").read_text()
            except OSError:
                continue
            tree.extend(int(child) for child in children.split())
    return tree


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """Keep this thread, and the processes that it starts meanwhile, on one core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def cpu_seconds(pid: int) -> float:
    """User and system time of the process tree, with all threads, also ended ones.

    The process clock has nanoseconds, /proc/PID/stat only hundredths of a second.
    """
    total = 0.0
    for member in process_tree(pid):
        try:
            total += own_cpu_seconds(member)
        except OSError:
            if member == pid:
                raise
    return total + _reaped_children_seconds(pid)


def own_cpu_seconds(pid: int) -> float:
    """User and system time of one process, without its children."""
    return time.clock_gettime((~pid << 3) | 2)


def main_thread_delay_seconds(pid: int) -> float:
    """The time in which the main thread of a process could have run, but had no core."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[1]) / 1e9


def _reaped_children_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")


def main_thread_seconds(pid: int) -> float:
    """User and system time of the main thread of a process; a broker's loop runs there."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9


def resident_bytes(pid: int) -> int:
    """Resident memory of the process tree."""
    total = 0
    for member in process_tree(pid):
        try:
            total += own_resident_bytes(member)
        except OSError:
            if member == pid:
                raise
    return total


def own_resident_bytes(pid: int) -> int:
    """Resident memory of one process, without its children."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class PeakMemory:
    """Samples the resident memory of a process until it is closed; `peak` is the largest sample."""

    def __init__(self, pid: int, interval: float = 0.05) -> None:
        self.peak = resident_bytes(pid)
        self._pid = pid
        self._interval = interval
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._stop.wait(self._interval):
            try:
                self.peak = max(self.peak, resident_bytes(self._pid))
            except OSError:
                return


def raise_file_limit(wanted: int = 60_000) -> int:
    """Let this process and its children open many files; returns the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for limit in (max(hard, wanted), hard):
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
            return limit
        except (ValueError, OSError):
            continue
    return soft


def warm_memory(folder: Path, size: int) -> None:
    """Make sure that the next `size` bytes of page cache are memory that the machine already holds.

    A virtual machine may return free memory to its host after some seconds, and then pays for every page
    again: writes took up to five times as much. A file that is written and removed just before fills the free
    list with pages that were touched already.
    """
    path = folder / f"warm-memory-{os.getpid()}"
    try:
        _write_file(path, size + size // 8)
    finally:
        path.unlink(missing_ok=True)


def append_cost(folder: Path, size: int) -> float:
    """CPU seconds to append `size` bytes to a new file in steps of 1 MiB, which every broker pays."""
    warm_memory(folder, size)
    path = folder / f"append-cost-{os.getpid()}"
    before = time.process_time()
    try:
        _write_file(path, size)
        return time.process_time() - before
    finally:
        path.unlink(missing_ok=True)


def _write_file(path: Path, size: int) -> None:
    piece = os.urandom(_CHUNK)
    with path.open("wb", buffering=0) as file:
        for _ in range(size // _CHUNK):
            file.write(piece)


def describe() -> dict[str, str | int | float]:
    """The facts to judge a figure by: cores, kernel, memory, and the load of the machine."""
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return {
        "processor": model,
        "cores": os.cpu_count() or 0,
        "memory_gb": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GIGABYTE, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average": os.getloadavg()[0],
    }
