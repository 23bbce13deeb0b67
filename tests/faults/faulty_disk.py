"""A disk that fails on demand beneath chosen folders, and a broker in this process that uses it."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.faults import CHANGES, Fault, Faults
from tidelog.network.loop import BrokerLoop
from tidelog.server import platform as platform_module
from tidelog.server.broker import Broker
from tidelog.server.config.broker import BrokerConfig
from tidelog.storage.disk import Bytes, RealDisk, RealFile


class FaultyDisk(RealDisk):
    """`fail(folder, errno.EIO)` makes every change beneath the folder fail until `heal(folder)`."""

    def __init__(self) -> None:
        self.faults = Faults()
        self.syncs: list[tuple[int, str]] = []  # what was synced, and by which thread
        # Syncing the log files waits until this is set.
        self.may_sync = threading.Event()
        self.may_sync.set()

    def fail(self, folder: Path, number: int, *operations: str, suffix: str = "") -> None:
        """A full disk still renames and syncs; a broken one does nothing."""
        if not operations:
            operations = ("create", "write") if number == errno.ENOSPC else CHANGES
        self.faults.add(Fault(number, operations, suffix, str(folder)))

    def heal(self, folder: Path) -> None:
        self.faults.clear(str(folder))

    def sync(self, path: str) -> None:
        self.syncs.append((threading.get_ident(), path))
        self.faults.check("sync", path)

    def open(self, path: str, *, create: bool = False) -> RealFile:
        self.faults.check("open", path)
        if create:
            self.faults.check("create", path)
        file = FaultyFile(
            path, os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o644)
        )
        file.disk = self
        return file

    def write(self, path: str, data: bytes) -> None:
        self.faults.check("open", path)
        self.faults.check("write", path)
        super().write(path, data)

    def atomic_write(self, path: str, data: bytes) -> None:
        self.faults.check("open", path)
        self.faults.check("write", path)
        self.sync(path)
        super().atomic_write(path, data)

    def fsync(self, path: str) -> None:
        self.sync(path)
        super().fsync(path)

    def fsync_dir(self, path: str) -> None:
        self.sync(path)
        super().fsync_dir(path)

    def rename(self, source: str, target: str) -> None:
        self.faults.check("rename", source)
        super().rename(source, target)

    def unlink(self, path: str) -> None:
        self.faults.check("unlink", path)
        super().unlink(path)

    def make_dir(self, path: str) -> None:
        self.faults.check("create", path)
        super().make_dir(path)


class FaultyFile(RealFile):
    __slots__ = ("disk",)

    disk: FaultyDisk

    def pwrite(self, data: Bytes, position: int) -> None:
        self._check(data, position)
        super().pwrite(data, position)

    def pwritev(self, parts: Sequence[Bytes], position: int) -> None:
        self.disk.faults.check("write", self.path)
        super().pwritev(parts, position)

    def fsync(self) -> None:
        self.disk.may_sync.wait(30)
        self.disk.sync(self.path)
        super().fsync()

    def _check(self, data: Bytes, position: int) -> None:
        try:
            self.disk.faults.check("write", self.path)
        except OSError:
            # The part that still fitted is in the file, as it is when a disk fills up.
            super().pwrite(memoryview(data)[: len(data) // 2], position)
            raise


class InProcess:
    """A broker on a thread of this process."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._settings = {"listeners": "PLAINTEXT://127.0.0.1:0", **settings}
        self._started = threading.Event()
        self._stop: asyncio.Event | None = None
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.loop: BrokerLoop | None = None
        self.broker: Broker | None = None
        self.address = ("", 0)

    def start(self) -> None:
        self._thread.start()
        assert self._started.wait(30)
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        assert self.loop is not None
        assert self._stop is not None
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)
        assert not self._thread.is_alive()
        if self._failure is not None:
            raise self._failure

    @property
    def thread_id(self) -> int:
        """That of the loop."""
        assert self._thread.ident is not None
        return self._thread.ident

    @property
    def has_given_up(self) -> bool:
        assert self.broker is not None
        return self.broker.failed.is_set()

    def _run(self) -> None:
        try:
            self.loop = loop = BrokerLoop(2)
            asyncio.set_event_loop(loop)
            loop.run_until_complete(self._life(loop))
            loop.close()
        except BaseException as error:
            self._failure = error
        finally:
            self._started.set()

    async def _life(self, loop: BrokerLoop) -> None:
        self.broker = broker = Broker(BrokerConfig.load(None, self._settings), loop)
        self._stop = asyncio.Event()
        await broker.start()
        host, _, port = broker.address.rpartition(":")
        self.address = (host, int(port))
        self._started.set()
        await self._stop.wait()
        await broker.stop()


@contextmanager
def faulty_broker(
    monkeypatch: pytest.MonkeyPatch, disk: RealDisk, settings: Mapping[str, str]
) -> Iterator[InProcess]:
    monkeypatch.setattr(platform_module, "RealDisk", lambda: disk)
    running = InProcess(settings)
    running.start()
    try:
        yield running
    finally:
        running.stop()
