"""The version of a file: a value that changes when the file is written or replaced."""

from __future__ import annotations

import os

FileVersion = tuple[str, int, int, int] | None
"""The path, the time of the last write, the size and the inode. None stands for no file."""


def file_version(path: str | None) -> FileVersion:
    """The version of a file now. A file that is missing has a version, too."""
    if path is None:
        return None
    try:
        found = os.stat(path)
    except OSError:
        return path, 0, 0, 0
    return path, found.st_mtime_ns, found.st_size, found.st_ino
