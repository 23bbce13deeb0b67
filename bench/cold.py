"""One-record produces beside a reader of data that is not in the page cache, on a slow disk."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import load
from broker import Broker
from load import Load
from machine import MEGABYTE
from report import Figure
from suite import Bench, Skipped
from targets import figure

READ_BYTES_PER_SECOND = 8 * MEGABYTE
READS_PER_SECOND = 50
INTERVAL_US = 1000
CGROUPS = Path("/sys/fs/cgroup")


def cold(bench: Bench) -> list[Figure]:
    """One-record produces, one every ms, with and without a reader of an evicted topic, in turns."""
    bench.needs_own_broker()
    requests = bench.scaled(8_000)
    amount = 2 * READ_BYTES_PER_SECOND * requests * INTERVAL_US // 1_000_000 + 64 * MEGABYTE
    with bench.source.broker() as broker, slow_disk(broker):
        topic = broker.topic("cold", segment_bytes=str(32 * MEGABYTE), retention_ms="-1")
        hot = broker.topic("hot")
        records = 64
        filled = load.run(broker, "produce", topic=topic, records=records, record_size=1000, bytes=amount)
        end = filled.requests * records

        def produce() -> Load:
            return load.run(
                broker, "latency", topic=hot, requests=requests, interval_us=INTERVAL_US, warmup=500
            )

        alone: list[float] = []
        beside: list[float] = []
        rates: list[float] = []
        for _ in range(bench.rounds):
            alone.append(produce().p99_us)
            evict(broker, topic)
            seconds = requests * INTERVAL_US / 1e6 + 1
            reader = load.start(broker, "fetch", topic=topic, to=end, seconds=seconds)
            beside.append(produce().p99_us)
            read = load.finish(reader)
            rates.append(read.bytes / read.seconds / MEGABYTE)
    base, found, rate = (statistics.median(values) for values in (alone, beside, rates))
    note = f"{found:,.0f} us against {base:,.0f}; the reader gets {rate:.1f} MB/s"
    return [figure("cold", [value / base for value in beside], note)]


def evict(broker: Broker, topic: str) -> None:
    """Drop the files of a topic from the page cache."""
    assert broker.data is not None
    for path in broker.data.glob(f"**/{topic}-*/*"):
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)  # pages that are not on the disk yet cannot be dropped
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


@contextmanager
def slow_disk(broker: Broker) -> Iterator[None]:
    """Limit the broker's reads in the kernel as if its disk were slow (control group blkio or io)."""
    assert broker.data is not None
    device = _disk_of(broker.data)
    try:
        group = _make_group(device)
    except OSError as error:
        raise Skipped(f"a slow disk needs root and the kernel's I/O control group: {error}") from error
    try:
        (group / "cgroup.procs").write_text(str(broker.pid))
        yield
    finally:
        (group.parent / "cgroup.procs").write_text(str(broker.pid))
        group.rmdir()


def _make_group(device: str) -> Path:
    first = CGROUPS / "blkio"
    if (first / "cgroup.procs").exists():
        group = first / f"tidelog-bench-{os.getpid()}"
        group.mkdir()
        (group / "blkio.throttle.read_bps_device").write_text(f"{device} {READ_BYTES_PER_SECOND}")
        (group / "blkio.throttle.read_iops_device").write_text(f"{device} {READS_PER_SECOND}")
        return group
    (CGROUPS / "cgroup.subtree_control").write_text("+io")
    group = CGROUPS / f"tidelog-bench-{os.getpid()}"
    group.mkdir()
    (group / "io.max").write_text(f"{device} rbps={READ_BYTES_PER_SECOND} riops={READS_PER_SECOND}")
    return group


def _disk_of(folder: Path) -> str:
    """MAJOR:MINOR of the whole disk of a folder, since limits do not work on partitions."""
    number = folder.stat().st_dev
    device = f"{os.major(number)}:{os.minor(number)}"
    node = Path(f"/sys/dev/block/{device}")
    if not node.exists():
        raise Skipped(f"{folder} is not on a disk, so its reads cannot be slowed down")
    return (node.resolve().parent / "dev").read_text().strip() if (node / "partition").exists() else device
