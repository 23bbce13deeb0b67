# The records of a batch, one after the other: the positions of their fields, and whether they are valid.

cdef struct Layout:
    int64_t timestamp_delta
    int32_t offset_delta
    int32_t key_length
    int32_t value_length
    int32_t header_count
    const uint8_t *key
    const uint8_t *value
    const uint8_t *headers
    const uint8_t *stop


cdef int skip_headers(const uint8_t **at, const uint8_t *stop, int32_t count) noexcept nogil:
    cdef int32_t length
    while count > 0:
        if tl_varint32(at, stop, &length) or length < 0 or length > stop - at[0]:
            return MALFORMED
        at[0] += length
        if tl_varint32(at, stop, &length) or length > stop - at[0]:
            return MALFORMED
        if length > 0:
            at[0] += length
        count -= 1
    return OK


cdef int read_record(const uint8_t **at, const uint8_t *end, Layout *r) noexcept nogil:
    cdef int32_t size
    cdef const uint8_t *p
    cdef const uint8_t *stop
    cdef int bad = tl_varint32(at, end, &size)
    if bad:
        return CUT_SHORT if bad == 1 else MALFORMED
    p = at[0]
    if size <= 0 or size > end - p:
        return MALFORMED
    stop = p + size
    p += 1  # attributes, which are not used
    if tl_varint64(&p, stop, &r.timestamp_delta) or tl_varint32(&p, stop, &r.offset_delta):
        return MALFORMED
    if tl_varint32(&p, stop, &r.key_length) or r.key_length > stop - p:
        return MALFORMED
    r.key = p
    if r.key_length > 0:
        p += r.key_length
    if tl_varint32(&p, stop, &r.value_length) or r.value_length > stop - p:
        return MALFORMED
    r.value = p
    if r.value_length > 0:
        p += r.value_length
    if tl_varint32(&p, stop, &r.header_count) or r.header_count < 0 or r.header_count > stop - p:
        return MALFORMED
    r.headers = p
    r.stop = stop
    if r.header_count and skip_headers(&p, stop, r.header_count):
        return MALFORMED
    if p != stop:
        return MALFORMED
    at[0] = stop
    return OK


cdef struct Walked:
    int status
    int64_t index
    int64_t greatest
    int64_t delta_of_greatest


cdef void walk_records(
    const uint8_t *p, const uint8_t *end, int64_t count, int64_t base_timestamp,
    bint need_key, int64_t low, int64_t high, Walked *out,
) noexcept nogil:
    cdef Layout r
    cdef int64_t index, timestamp
    cdef int64_t wrong_delta = -1
    cdef int64_t first_error = -1
    out.greatest = -1
    out.delta_of_greatest = 0
    for index in range(count):
        out.status = read_record(&p, end, &r)
        if out.status != OK:
            out.index = index
            return
        timestamp = tl_add64(base_timestamp, r.timestamp_delta)
        if r.offset_delta != index and wrong_delta < 0:
            wrong_delta = index
        if (need_key and r.key_length < 0) or (timestamp != -1 and (timestamp < low or timestamp > high)):
            if first_error < 0:
                first_error = index
        if timestamp > out.greatest:
            out.greatest = timestamp
            out.delta_of_greatest = r.offset_delta
    out.status = OK
    out.index = count if count > 0 else 0
    if p != end:
        out.status = BYTES_LEFT
    elif wrong_delta >= 0:
        out.status = OFFSET_DELTA
        out.index = wrong_delta
    elif first_error >= 0:
        out.status = RECORD_ERRORS
        out.index = first_error


cdef void walk_range(
    const uint8_t *base, Py_ssize_t start, Py_ssize_t end, int64_t count, int64_t base_timestamp,
    bint need_key, int64_t low, int64_t high, Walked *out,
) noexcept:
    if end - start < LONG_WALK:
        walk_records(base + start, base + end, count, base_timestamp, need_key, low, high, out)
        return
    with nogil:
        walk_records(base + start, base + end, count, base_timestamp, need_key, low, high, out)


def walk(
    buf, Py_ssize_t start, Py_ssize_t end, int64_t count, int64_t base_timestamp,
    bint need_key, int64_t low, int64_t high,
):
    cdef Py_buffer view
    cdef Walked w
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
    try:
        require(&view, start, end)
        walk_range(<const uint8_t *>view.buf, start, end, count, base_timestamp, need_key, low, high, &w)
    finally:
        PyBuffer_Release(&view)
    return w.status, w.index, w.greatest, w.delta_of_greatest
