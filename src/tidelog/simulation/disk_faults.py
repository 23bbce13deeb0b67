"""Faults of a disk: which operations on which files fail, and with what number."""

from __future__ import annotations

import os
from dataclasses import dataclass

from tidelog.storage.disk import SyncFailed

CHANGES = ("create", "write", "sync", "rename", "unlink")
"""What changes a disk; `open` and `read` are the others that may fail."""

ALL = (*CHANGES, "open", "read")


@dataclass(slots=True)
class Fault:
    """Operations on files in a folder whose names end so."""

    number: int
    operations: tuple[str, ...] = CHANGES
    suffix: str = ""
    folder: str = ""
    left: int | None = None
    """How often it still happens; None is for ever."""

    def concerns(self, operation: str, path: str) -> bool:
        return (
            operation in self.operations
            and self.left != 0
            and path.startswith(self.folder)
            and path.removesuffix(".tmp").endswith(self.suffix)
        )


class Faults:
    def __init__(self) -> None:
        self._faults: list[Fault] = []
        self.refused = 0
        self.is_suspended = False
        """Nothing fails meanwhile: a checker reads."""

    def add(self, fault: Fault) -> None:
        self._faults.append(fault)

    def clear(self, folder: str = "") -> None:
        self._faults = [fault for fault in self._faults if not fault.folder.startswith(folder)]

    def check(self, operation: str, path: str) -> None:
        for fault in self._faults:
            if not self.is_suspended and fault.concerns(operation, path):
                self.refused += 1
                if fault.left is not None:
                    fault.left -= 1
                kind = SyncFailed if operation == "sync" else OSError
                raise kind(fault.number, os.strerror(fault.number), path)
