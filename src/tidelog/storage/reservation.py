"""Reserves the blocks of a large write before it.

ext4 reserves blocks page by page during a write, unless the range has blocks already. With the reservation, a
write of 1 MB takes about 15% less CPU, including the later write-back. The reservation covers exactly the
write and does not change the size of the file, so nothing has to be released when the file is closed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Final

WORTHWHILE: Final = 256 * 1024
"""Reserving the blocks of a smaller write costs more than it saves."""

_KEEP_SIZE: Final = 1


def reserve(fd: int, size: int, position: int) -> None:
    """Reserve the blocks of a range. Errors are ignored: the write itself gets them."""
    _fallocate()(fd, _KEEP_SIZE, position, size)


@cache
def _fallocate() -> Callable[[int, int, int, int], object]:
    import ctypes  # takes 5 ms, which would delay each start

    library = ctypes.CDLL(None)
    # glibc has the 64-bit call under this name on every architecture; musl has only `fallocate`.
    for name in ("fallocate64", "fallocate"):
        if hasattr(library, name):
            function = getattr(library, name)
            function.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
            call: Callable[[int, int, int, int], object] = function
            return call
    return _nothing


def _nothing(*_: int) -> None:
    """For C libraries without the call."""
