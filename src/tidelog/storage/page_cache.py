"""Asks the kernel whether a file range is in the page cache: read and sendfile do not wait for the disk then.

`cachestat` counts the cached pages of a range in one call. It counts a page as soon as its read from the disk
begins. So a read that must not wait (RWF_NOWAIT) checks that the last page has arrived; pages nearly always
arrive in the order of the requests. Kernels before 6.5 have no `cachestat`; there, RWF_NOWAIT reads check one
byte in every 64 KB. On file systems without support (overlayfs, ZFS) nothing counts as cached.
"""

from __future__ import annotations

import errno
import mmap
import os
import threading
from functools import cache
from typing import Final

NOWAIT: Final[int] = getattr(os, "RWF_NOWAIT", 0)  # an old C library has none
STRIDE: Final = 64 * 1024

_CACHESTAT: Final = 451  # the number of the system call, the same on all architectures
_PAGE_SHIFT: Final = mmap.PAGESIZE.bit_length() - 1


def is_cached(fd: int, size: int, position: int) -> bool:
    last = position + size - 1
    counted = _count_pages(fd, size, position)
    if counted is None:
        return all(_has_arrived(fd, at) is True for at in (*range(position, last, STRIDE), last))
    if counted <= (last >> _PAGE_SHIFT) - (position >> _PAGE_SHIFT):
        return False
    return _has_arrived(fd, last) is not False


def _has_arrived(fd: int, position: int) -> bool | None:
    """Whether a byte can be read without waiting; None if the file system does not support RWF_NOWAIT."""
    try:
        return not NOWAIT or os.preadv(fd, (bytearray(1),), position, NOWAIT) == 1
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            return None
        return True  # the read itself gets the error


def _count_pages(fd: int, size: int, position: int) -> int | None:
    """How many pages of a range are cached; None if the kernel has no `cachestat`."""
    call = _cachestat()
    return None if call is None else call.count(fd, size, position)


class _Cachestat(threading.local):
    """The system call and its arguments, which each thread allocates once."""

    def __init__(self) -> None:
        import ctypes  # takes 5 ms, which would delay each start

        # PyDLL keeps the GIL: the call does not block, and releasing the GIL costs more than the call.
        self._syscall = ctypes.PyDLL(None).syscall
        self._syscall.restype = ctypes.c_long
        self._syscall.argtypes = (
            ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint,
        )  # fmt: skip
        self._range = (ctypes.c_uint64 * 2)()
        self._result = (ctypes.c_uint64 * 5)()
        self._range_at = ctypes.addressof(self._range)
        self._result_at = ctypes.addressof(self._result)

    def count(self, fd: int, size: int, position: int) -> int | None:
        wanted = self._range
        wanted[0] = position
        wanted[1] = size
        if self._syscall(_CACHESTAT, fd, self._range_at, self._result_at, 0):
            return None
        return self._result[0]


@cache
def _cachestat() -> _Cachestat | None:
    call = _Cachestat()
    with open(__file__, "rb") as file:
        return None if call.count(file.fileno(), 1, 0) is None else call
