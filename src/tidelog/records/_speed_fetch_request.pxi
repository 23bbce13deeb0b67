# Fetch requests that name one partition or none: the short way of an incremental fetch.

cdef enum:
    REPLICA_STATE_TAG = 1


cdef int64_t long_number(Reader *r) except? -1:
    cdef int64_t value
    left_less(r, 8)
    value = <int64_t>(<uint64_t>tl_get32(r.p) << 32 | tl_get32(r.p + 4))
    r.p += 8
    return value


cdef tuple read_wanted(Reader *r, int version):
    """The only partition of the only topic; None if there are more."""
    cdef int64_t partition, leader_epoch, offset, last_epoch, log_start, max_bytes
    if version >= 13:
        left_less(r, 16)
        topic = PyBytes_FromStringAndSize(<const char *>r.p, 16)
        r.p += 16
    else:
        topic = string(r)
    if topic is None or length_of(r, 4) != 1:
        return None
    partition = number(r, 4)
    leader_epoch = number(r, 4)
    offset = long_number(r)
    last_epoch = number(r, 4)
    log_start = long_number(r)
    max_bytes = number(r, 4)
    skip_tags(r)
    skip_tags(r)
    return topic, partition, leader_epoch, offset, last_epoch, log_start, max_bytes


cdef tuple read_one_fetch(Reader *r, int version):
    cdef int64_t replica_id = -1, replica_epoch = -1, max_wait_ms, min_bytes, max_bytes, isolation_level
    cdef int64_t session_id, session_epoch, count, size
    cdef tuple wanted = None
    if version < 15:
        replica_id = number(r, 4)
    max_wait_ms = number(r, 4)
    min_bytes = number(r, 4)
    max_bytes = number(r, 4)
    left_less(r, 1)
    isolation_level = <int8_t>r.p[0]
    r.p += 1
    session_id = number(r, 4)
    session_epoch = number(r, 4)
    count = length_of(r, 4)
    if count == 1:
        wanted = read_wanted(r, version)
    if count != (0 if wanted is None else 1) or length_of(r, 4) != 0:
        return None
    rack = string(r)
    if rack is None:
        return None
    count = unsigned_varint(r)
    if count:
        # Of all tags only the state of a follower is read here.
        if count != 1 or version < 15 or unsigned_varint(r) != REPLICA_STATE_TAG:
            return None
        size = unsigned_varint(r)
        if size != 13 or r.end - r.p != 13 or r.p[12]:
            return None
        replica_id = number(r, 4)
        replica_epoch = long_number(r)
        r.p += 1
    if r.p != r.end:
        return None
    return (
        replica_id, replica_epoch, max_wait_ms, min_bytes, max_bytes, isolation_level, session_id,
        session_epoch, rack, wanted,
    )


def parse_one_fetch(buf, Py_ssize_t pos, int version):
    cdef Py_buffer view
    cdef Reader r
    if not 12 <= version <= 18:
        return None
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
    try:
        if not 0 <= pos <= view.len:
            return None
        r.base = <const uint8_t *>view.buf
        r.p = r.base + pos
        r.end = r.base + view.len
        r.flexible = True
        r.elements = MAX_ELEMENTS
        return read_one_fetch(&r, version)
    except ValueError:
        return None
    finally:
        PyBuffer_Release(&view)
