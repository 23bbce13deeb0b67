# The fetches of a follower whose session has news of one partition or of none: the request, and its answer.

cdef enum:
    FOLLOWER_FETCH_BYTES = 160  # all but the name of a topic


def one_fetch_request(
    int version, int32_t replica_id, int64_t replica_epoch, int32_t max_wait_ms, int32_t min_bytes,
    int32_t max_bytes, int32_t session_id, int32_t session_epoch, tuple wanted,
):
    cdef uint8_t fixed[FOLLOWER_FETCH_BYTES]
    cdef uint8_t *p = fixed
    cdef Py_ssize_t before
    cdef bytes name = b""
    if not 12 <= version <= 18:
        raise ValueError(f"a version from 12 to 18 is right, not {version}")
    if version < 15:
        tl_put32(p, <uint32_t>replica_id)
        p += 4
    tl_put32(p, <uint32_t>max_wait_ms)
    tl_put32(p + 4, <uint32_t>min_bytes)
    tl_put32(p + 8, <uint32_t>max_bytes)
    p[12] = 0  # reads uncommitted records
    tl_put32(p + 13, <uint32_t>session_id)
    tl_put32(p + 17, <uint32_t>session_epoch)
    p += 21
    p[0] = 1 if wanted is None else 2
    p += 1
    before = p - fixed
    if wanted is not None:
        topic, partition, leader_epoch, offset, last_epoch, log_start, most = wanted
        if version >= 13:
            if not isinstance(topic, bytes) or len(topic) != 16:
                raise ValueError(f"a topic id of 16 bytes is right, not {topic!r}")
            name = topic
        else:
            if not isinstance(topic, str):
                raise ValueError(f"a topic name is right, not {topic!r}")
            name = (<str>topic).encode("utf-8")
            if len(name) > 0x7FFF:
                raise ValueError(f"a topic name of {len(name)} bytes is too long")
            p = tl_put_unsigned(p, len(name) + 1)
            before = p - fixed
        p[0] = 2
        tl_put32(p + 1, <uint32_t><int32_t>partition)
        tl_put32(p + 5, <uint32_t><int32_t>leader_epoch)
        tl_put64(p + 9, <uint64_t><int64_t>offset)
        tl_put32(p + 17, <uint32_t><int32_t>last_epoch)
        tl_put64(p + 21, <uint64_t><int64_t>log_start)
        tl_put32(p + 29, <uint32_t><int32_t>most)
        tl_put16(p + 33, 0)  # the tags of the partition and of the topic
        p += 35
    tl_put16(p, 0x0101)  # no forgotten topics, no rack
    p += 2
    if version < 15:
        p[0] = 0
        p += 1
    else:
        p[0] = 1
        p[1] = REPLICA_STATE_TAG
        p[2] = 13
        tl_put32(p + 3, <uint32_t>replica_id)
        tl_put64(p + 7, <uint64_t>replica_epoch)
        p[15] = 0
        p += 16
    return join_around(fixed, before, name, p - fixed)


cdef tuple read_one_fetched(Reader *r, int version):
    cdef int64_t session_id, count, partition = -1, high_watermark = -1, log_start = -1, size
    cdef Py_ssize_t start = 0
    topic = None
    if number(r, 4) or number(r, 2):
        return None  # a throttle time, or an error
    session_id = number(r, 4)
    count = length_of(r, 4)
    if count != 0:
        if count != 1:
            return None
        if version >= 13:
            left_less(r, 16)
            topic = PyBytes_FromStringAndSize(<const char *>r.p, 16)
            r.p += 16
        else:
            topic = string(r)
        if topic is None or length_of(r, 4) != 1:
            return None
        partition = number(r, 4)
        if number(r, 2):
            return None
        high_watermark = long_number(r)
        long_number(r)  # the last stable offset
        log_start = long_number(r)
        if length_of(r, 4) > 0:  # aborted transactions
            return None
        number(r, 4)  # the preferred replica
        size = length_of(r, 4)
        if size > 0:
            left_less(r, size)
            start = r.p - r.base
            r.p += size
        else:
            size = 0
        left_less(r, 2)
        if r.p[0] or r.p[1]:  # tags of the partition, such as where the logs diverge, or of the topic
            return None
        r.p += 2
    else:
        size = 0
    left_less(r, 1)
    if r.p[0]:
        return None
    r.p += 1
    if r.p != r.end:
        return None
    return session_id, topic, partition, high_watermark, log_start, start, start + size


def parse_one_fetched(buf, Py_ssize_t pos, int version):
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
        return read_one_fetched(&r, version)
    except ValueError:
        return None
    finally:
        PyBuffer_Release(&view)
