# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The compiled twin of the `_pure` modules: the same functions, the same answers, with C types.

Every read is checked against the end of its range first; nothing here trusts a length or a count.
Long walks and checksums run without the GIL. One module, so that its parts call each other as C functions.
"""

from cpython.array cimport array, clone
from cpython.buffer cimport (
    PyBUF_SIMPLE,
    PyBUF_WRITABLE,
    PyBuffer_FillInfo,
    PyBuffer_Release,
    PyObject_GetBuffer,
)
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.tuple cimport PyTuple_Check, PyTuple_GET_ITEM, PyTuple_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from cython cimport no_gc
from libc.stdint cimport (
    INT64_MAX,
    INT64_MIN,
    int8_t,
    int16_t,
    int32_t,
    int64_t,
    uint8_t,
    uint16_t,
    uint32_t,
    uint64_t,
)
from libc.string cimport memcpy, memset
from posix.time cimport CLOCK_REALTIME, clock_gettime, timespec

from tidelog.records._pure import MalformedRecords
from tidelog.records._pure_check import CheckedBatch
from tidelog.records._pure_producer import BatchMetadata

include "_speed_status.pxi"

cdef enum:
    HEADER_SIZE = 61
    LENGTH_OVERHEAD = 12
    CRC_START = 21
    SMALLEST_RECORD = 7
    LONG_WALK = 4096  # from this many bytes on, releasing the GIL pays off
    LONG_CRC = 32768

include "_speed_bytes.pxi"
include "_speed_hashes.pxi"

# Batches on their way through a broker
include "_speed_walk.pxi"
include "_speed_check.pxi"
include "_speed_producer.pxi"
include "_speed_run.pxi"
include "_speed_records.pxi"
include "_speed_copy.pxi"
include "_speed_produce.pxi"
include "_speed_fetch_request.pxi"
include "_speed_follower_fetch.pxi"
include "_speed_cleaner.pxi"

# Batches and records of clients
include "_speed_batches.pxi"
include "_speed_arrow.pxi"
include "_speed_fetch.pxi"
include "_speed_blocks.pxi"
include "_speed_columns.pxi"
include "_speed_rows.pxi"
