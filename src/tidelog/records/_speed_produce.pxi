# Produce requests and their usual answer: the fast path only needs the positions of the records.

# The limit of the general reader for large requests (protocol/reader.py).
cdef enum:
    MAX_ELEMENTS = 100000


cdef struct Reader:
    const uint8_t *base
    const uint8_t *p
    const uint8_t *end
    bint flexible
    int64_t elements  # how many elements of arrays and tagged fields may still come


cdef int spend(Reader *r, int64_t count) except -1:
    r.elements -= count
    if r.elements < 0:
        raise ValueError(f"with {count} more it has more than {MAX_ELEMENTS} topics, partitions and tagged fields")
    return 0


cdef int left_less(Reader *r, Py_ssize_t size) except -1:
    if size > r.end - r.p:
        raise ValueError(f"{size} bytes are declared at position {r.p - r.base}, {r.end - r.p} are left")
    return 0


cdef int64_t number(Reader *r, int size) except? -1:
    cdef int64_t value
    left_less(r, size)
    value = <int32_t>tl_get32(r.p) if size == 4 else <int16_t>tl_get16(r.p)
    r.p += size
    return value


cdef int64_t unsigned_varint(Reader *r) except -1:
    cdef uint32_t raw = 0
    cdef int shift = 0
    cdef uint8_t byte
    while True:
        left_less(r, 1)
        byte = r.p[0]
        r.p += 1
        raw |= <uint32_t>(byte & 0x7F) << shift
        if byte < 0x80:
            return raw
        shift += 7
        if shift >= 35:
            raise ValueError(f"no varint before position {r.p - r.base}")


cdef int64_t length_of(Reader *r, int size) except? -2:
    return unsigned_varint(r) - 1 if r.flexible else number(r, size)


cdef object string(Reader *r):
    cdef int64_t length = length_of(r, 2)
    if length < 0:
        return None
    left_less(r, length)
    text = PyUnicode_DecodeUTF8(<const char *>r.p, length, NULL)
    r.p += length
    return text


cdef int64_t count_of(Reader *r, int smallest) except -1:
    cdef int64_t count = length_of(r, 4)
    if count < 0 or count > (r.end - r.p) // smallest:
        raise ValueError(f"{count} elements are declared where {r.end - r.p} bytes are left")
    spend(r, count)
    return count


cdef int skip_tags(Reader *r) except -1:
    cdef int64_t count, size
    if not r.flexible:
        return 0
    count = unsigned_varint(r)
    spend(r, count)
    while count > 0:
        unsigned_varint(r)
        size = unsigned_varint(r)
        if size > r.end - r.p:
            raise ValueError(f"a tag of {size} bytes where {r.end - r.p} are left")
        r.p += size
        count -= 1
    return 0


cdef list read_partitions(Reader *r):
    cdef list partitions = []
    cdef int64_t partition, length
    cdef Py_ssize_t start
    cdef int64_t count = count_of(r, 6 if r.flexible else 8)
    while count > 0:
        partition = number(r, 4)
        length = length_of(r, 4)
        if length < 0:
            partitions.append((partition, -1, -1))
        else:
            left_less(r, length)
            start = r.p - r.base
            r.p += length
            partitions.append((partition, start, start + length))
        skip_tags(r)
        count -= 1
    return partitions


cdef tuple read_produce(Reader *r, int version):
    cdef list topics = []
    cdef int64_t acks, timeout_ms, count
    transactional_id = string(r)
    acks = number(r, 2)
    timeout_ms = number(r, 4)
    count = count_of(r, (18 if version >= 13 else 3) if r.flexible else 6)
    while count > 0:
        if version >= 13:
            left_less(r, 16)
            topic = PyBytes_FromStringAndSize(<const char *>r.p, 16)
            r.p += 16
        else:
            topic = string(r)
            if topic is None:
                raise ValueError("a topic name is null")
        partitions = read_partitions(r)
        skip_tags(r)
        topics.append((topic, partitions))
        count -= 1
    skip_tags(r)
    if r.p != r.end:
        raise ValueError(f"{r.end - r.p} bytes follow after the request")
    return transactional_id, acks, timeout_ms, topics


def parse_produce(buf, Py_ssize_t pos, int version):
    cdef Py_buffer view
    cdef Reader r
    if not 3 <= version <= 13:
        raise ValueError(f"Produce version {version} is not served; 3 to 13 are")
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
    try:
        if not 0 <= pos <= view.len:
            raise ValueError(f"position {pos} is outside of a frame of {view.len} bytes")
        r.base = <const uint8_t *>view.buf
        r.p = r.base + pos
        r.end = r.base + view.len
        r.flexible = version >= 9
        r.elements = MAX_ELEMENTS
        return read_produce(&r, version)
    finally:
        PyBuffer_Release(&view)


cdef tuple read_one_batch(Reader *r, int version):
    cdef int64_t acks, partition, length
    cdef Py_ssize_t start
    transactional_id = string(r)
    acks = number(r, 2)
    number(r, 4)
    if length_of(r, 4) != 1:
        return None
    if version >= 13:
        left_less(r, 16)
        topic = PyBytes_FromStringAndSize(<const char *>r.p, 16)
        r.p += 16
    else:
        topic = string(r)
    if length_of(r, 4) != 1:
        return None
    partition = number(r, 4)
    length = length_of(r, 4)
    if length < 0 or topic is None:
        return None
    left_less(r, length)
    start = r.p - r.base
    r.p += length
    skip_tags(r)
    skip_tags(r)
    skip_tags(r)
    if r.p != r.end:
        return None
    return transactional_id, acks, topic, partition, start, start + length


def parse_one_batch(buf, Py_ssize_t pos, int version):
    cdef Py_buffer view
    cdef Reader r
    if not 3 <= version <= 13:
        return None
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
    try:
        if not 0 <= pos <= view.len:
            return None
        r.base = <const uint8_t *>view.buf
        r.p = r.base + pos
        r.end = r.base + view.len
        r.flexible = version >= 9
        r.elements = MAX_ELEMENTS
        return read_one_batch(&r, version)
    except ValueError:
        return None
    finally:
        PyBuffer_Release(&view)


def produce_response(
    int version, int32_t correlation_id, topic, int32_t partition, int16_t error_code, int64_t base_offset,
    int64_t log_append_time, int64_t log_start_offset,
):
    cdef bytes name
    cdef uint8_t fixed[64]
    cdef uint8_t *p = fixed
    cdef Py_ssize_t before
    cdef bint flexible = version >= 9
    if not 3 <= version <= 13:
        raise ValueError(f"Produce version {version} is not served; 3 to 13 are")
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
    tl_put32(p + 4, <uint32_t>correlation_id)
    p += 8  # the length is written here when it is known
    if flexible:
        tl_put16(p, 2)
        p += 2
        if version < 13:
            p = tl_put_unsigned(p, len(name) + 1)
    else:
        tl_put32(p, 1)
        tl_put16(p + 4, <uint16_t>len(name))
        p += 6
    before = p - fixed
    if flexible:
        p[0] = 2
        p += 1
    else:
        tl_put32(p, 1)
        p += 4
    tl_put32(p, <uint32_t>partition)
    tl_put16(p + 4, <uint16_t>error_code)
    tl_put64(p + 6, <uint64_t>base_offset)
    tl_put64(p + 14, <uint64_t>log_append_time)
    p += 22
    if version >= 5:
        tl_put64(p, <uint64_t>log_start_offset)
        p += 8
    if flexible:
        # no record errors, no text; tags of partition and topic; throttle time; tags
        p[0] = 1
        tl_put64(p + 1, 0)
        p += 9
    else:
        if version == 8:
            tl_put32(p, 0)
            tl_put16(p + 4, 0xFFFF)
            p += 6
        tl_put32(p, 0)
        p += 4
    tl_put32(fixed, <uint32_t>(p - fixed - 4 + PyBytes_GET_SIZE(name)))
    return join_around(fixed, before, name, p - fixed)


cdef bytes join_around(const uint8_t *fixed, Py_ssize_t before, bytes name, Py_ssize_t size):
    """The fixed bytes with the name inserted at `before`."""
    cdef Py_ssize_t length = PyBytes_GET_SIZE(name)
    cdef bytes out = PyBytes_FromStringAndSize(NULL, size + length)
    cdef char *p = PyBytes_AS_STRING(out)
    memcpy(p, fixed, before)
    memcpy(p + before, PyBytes_AS_STRING(name), length)
    memcpy(p + before + length, fixed + before, size - before)
    return out
