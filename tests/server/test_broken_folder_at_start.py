"""A log folder that breaks while a broker of a cluster starts is taken offline; the broker starts."""

from __future__ import annotations

import errno
from pathlib import Path

from tidelog.clock import ManualClock
from tidelog.server.zookeeper_membership import topics_with_logs
from tidelog.storage.config import LogConfig
from tidelog.storage.disk import RealDisk
from tidelog.storage.log_manager import LogManager


class BreakingDisk(RealDisk):
    broken = ""

    def listdir(self, path: str) -> list[str]:
        if path == self.broken:
            raise OSError(errno.EIO, "Input/output error", path)
        return super().listdir(path)


def test_topics_of_a_folder_that_cannot_be_read_are_left_out(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder, topic in zip(folders, ("here", "there"), strict=True):
        (folder / f"{topic}-0").mkdir(parents=True)
    disk = BreakingDisk()
    logs = LogManager([str(folder) for folder in folders], LogConfig(), disk=disk, clock=ManualClock(0))
    logs.log_dirs.lock()
    assert topics_with_logs(logs) == ["here", "there"]
    disk.broken = str(folders[1])
    assert topics_with_logs(logs) == ["here"]
    logs.load()
    assert [log_dir.path for log_dir in logs.log_dirs.online] == [str(folders[0])]
    logs.shutdown()
