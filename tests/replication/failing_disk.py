"""A broker process whose disk fails on demand."""

from __future__ import annotations

import errno
import sys
from pathlib import Path

from tests.faults.faulty_disk import FaultyDisk
from tests.support.broker import Broker
from tests.support.faults import Fault, Faults

PROJECT = Path(__file__).parent.parent.parent
START = (
    f"import sys; sys.path.insert(0, {str(PROJECT)!r}); import tests.replication.failing_disk as f; f.main()"
)


class FailingDiskBroker(Broker):
    """`fail(log_dir)` makes every change in a log dir fail with EIO until the next start after `heal`."""

    @property
    def _flag(self) -> Path:
        return self.folder / "failing"

    def command(self, ready_file: Path) -> list[str]:
        python, _, _, *rest = super().command(ready_file)
        return [python, "-c", START, str(self._flag), *rest]

    def fail(self, log_dir: Path) -> None:
        written = self._flag.with_suffix(".new")
        written.write_text(str(log_dir))
        written.rename(self._flag)

    def heal(self) -> None:
        self._flag.unlink()


class FlaggedFaults(Faults):
    """A fault in the folder that a file names, once that file exists."""

    def __init__(self, flag: Path) -> None:
        super().__init__()
        self._flag = flag
        self._has_failed = False

    def check(self, operation: str, path: str) -> None:
        if not self._has_failed and self._flag.exists():
            self._has_failed = True
            self.add(Fault(errno.EIO, folder=self._flag.read_text()))
        super().check(operation, path)


class FlaggedDisk(FaultyDisk):
    def __init__(self, flag: Path) -> None:
        super().__init__()
        self.faults = FlaggedFaults(flag)


def main() -> None:
    """Start a broker whose disk is a FlaggedDisk: the arguments are the flag and those of `tidelog`."""
    from tidelog.cli.main import main as run
    from tidelog.server import platform

    disk = FlaggedDisk(Path(sys.argv[1]))
    vars(platform)["RealDisk"] = lambda: disk
    sys.argv = ["tidelog", *sys.argv[2:]]
    run()
