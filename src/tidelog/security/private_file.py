"""Gives a secret to a library that reads only files, without leaving it on a disk."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def private_file(content: bytes) -> Iterator[str]:
    """The path of a file in memory with this content, for this process and for the time of the block.

    A system without such files gets a temporary file that only its owner can read, removed after the block.
    """
    if hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd"):
        descriptor = os.memfd_create("tidelog", os.MFD_CLOEXEC)
        try:
            _write(descriptor, content)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
        return
    descriptor, path = tempfile.mkstemp()
    try:
        try:
            _write(descriptor, content)
        finally:
            os.close(descriptor)
        yield path
    finally:
        os.unlink(path)


def is_in_memory() -> bool:
    """Whether private_file keeps its content off the disk."""
    return hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd")


def _write(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
