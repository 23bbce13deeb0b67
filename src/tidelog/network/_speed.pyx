# cython: language_level=3, boundscheck=False, wraparound=False, binding=False
"""The hot functions of the network, compiled; `_pure` has the same functions in Python."""

from cpython.dict cimport PyDict_GetItem
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcmp

cdef enum:
    BUCKETS = 256  # as in metrics/registry.py


cdef inline uint32_t get32(const uint8_t *p) noexcept:
    return <uint32_t>p[0] << 24 | <uint32_t>p[1] << 16 | <uint32_t>p[2] << 8 | p[3]


def known_header(bytearray buffer not None, Py_ssize_t start, Py_ssize_t end, dict entries not None,
                 bytes client not None):
    cdef Py_ssize_t size = len(client), body_start = 8 + size
    cdef const uint8_t *p
    cdef PyObject *found
    if size == 0 or start < 0 or end > len(buffer) or end - start < 12 + size:
        return None
    p = <const uint8_t *><char *>buffer + start
    if <int64_t>get32(p) != end - start - 4 or memcmp(p + 12, <char *>client, size) != 0:
        return None
    found = PyDict_GetItem(entries, get32(p + 4))
    if found == NULL:
        return None
    entry = <object>found
    if entry.flexible:
        if start + 4 + body_start >= end or p[4 + body_start]:
            return None
        body_start += 1
    return entry, <int32_t>get32(p + 8), body_start


cdef inline int bucket_of(int64_t value) noexcept:
    cdef int shift
    if value < 16:
        return 0 if value < 0 else <int>value
    shift = 0
    while value >> shift >= 16:
        shift += 1
    return min((shift << 3) + <int>(value >> shift), BUCKETS - 1)


cdef class RequestTimes:
    cdef list total, local, send, size, queue

    def __init__(self, list total not None, list local not None, list send not None, list size not None,
                 list queue not None):
        for buckets in (total, local, send, size, queue):
            if len(buckets) != BUCKETS:
                raise ValueError(f"{len(buckets)} buckets where {BUCKETS} are right")
        self.total, self.local, self.send, self.size, self.queue = total, local, send, size, queue

    def record(self, int64_t size, int64_t received_ns, int64_t started_ns, int64_t local_end_ns,
               int64_t send_start_ns, int64_t sent_ns):
        cdef int64_t queued = (started_ns - received_ns) >> 10
        count(self.total, (sent_ns - received_ns) >> 10)
        count(self.local, (local_end_ns - started_ns) >> 10)
        count(self.send, (sent_ns - send_start_ns) >> 10)
        count(self.size, size)
        if queued:
            count(self.queue, queued)


cdef int count(list buckets, int64_t value) except -1:
    cdef int bucket = bucket_of(value)
    if bucket >= PyList_GET_SIZE(buckets):
        raise IndexError(f"{PyList_GET_SIZE(buckets)} buckets where {BUCKETS} are right")
    buckets[bucket] = <int64_t><object>PyList_GET_ITEM(buckets, bucket) + 1
    return 0
