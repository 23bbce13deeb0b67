# A produced batch: the rules of its header and of its records, in one pass, before a broker stores it.

cdef int next_length(const uint8_t *p, Py_ssize_t size, int32_t *length) noexcept nogil:
    if size < LENGTH_OVERHEAD:
        return NO_BATCH
    length[0] = <int32_t>tl_get32(p + 8)
    if length[0] < 14:
        return BAD_LENGTH
    if size < 17:
        return NO_BATCH
    if p[16] > 2:
        return UNKNOWN_MAGIC
    return OK if length[0] <= size - LENGTH_OVERHEAD else NO_BATCH


cdef int framing(const uint8_t *p, Py_ssize_t size, int32_t *length) noexcept nogil:
    """OK, or what is wrong with the first batch; whether there is a second one is not looked at here."""
    cdef int found = next_length(p, size, length)
    if found != OK:
        return found
    if p[16] != 2:
        return OLD_MAGIC
    return BAD_LENGTH if length[0] < HEADER_SIZE - LENGTH_OVERHEAD else OK


cdef int second_batch(const uint8_t *p, Py_ssize_t size) noexcept nogil:
    cdef int32_t length
    cdef int found = next_length(p, size, &length)
    if found == NO_BATCH:
        return OK
    return SECOND_BATCH if found == OK else found


cdef int header_rules(const uint8_t *p, Py_ssize_t total, int64_t max_bytes, bint from_client) noexcept nogil:
    cdef uint16_t attributes = tl_get16(p + 21)
    cdef int32_t last_delta = <int32_t>tl_get32(p + 23)
    cdef int32_t count = <int32_t>tl_get32(p + 57)
    if from_client and tl_get64(p) != 0:
        return BASE_OFFSET
    if total > max_bytes:
        return TOO_LARGE
    if (attributes & 7) > 4:
        return UNKNOWN_CODEC
    if from_client:
        if last_delta < 0:
            return BAD_OFFSET_RANGE
        if count <= 0:
            return BAD_COUNT
        if <int64_t>count != <int64_t>last_delta + 1:
            return COUNT_MISMATCH
        if attributes & 0x20:
            return CONTROL_BATCH
        if <int64_t>tl_get64(p + 43) >= 0 and <int32_t>tl_get32(p + 53) < 0:
            return BAD_SEQUENCE
    if attributes & 0x08:
        return APPEND_TIME
    return COMPRESSED if attributes & 7 else OK


cdef tuple header_fields(const uint8_t *p):
    return (
        <int64_t>tl_get64(p),
        <int32_t>tl_get32(p + 8),
        <int32_t>tl_get32(p + 12),
        <int>(<signed char>p[16]),
        tl_get32(p + 17),
        <int16_t>tl_get16(p + 21),
        <int32_t>tl_get32(p + 23),
        <int64_t>tl_get64(p + 27),
        <int64_t>tl_get64(p + 35),
        <int64_t>tl_get64(p + 43),
        <int16_t>tl_get16(p + 51),
        <int32_t>tl_get32(p + 53),
        <int32_t>tl_get32(p + 57),
    )


def check_batch(
    buf, Py_ssize_t start, Py_ssize_t end, int64_t max_bytes, bint from_client,
    bint need_key, int64_t low, int64_t high,
):
    cdef Py_buffer view
    cdef const uint8_t *p
    cdef int32_t length
    cdef Py_ssize_t total
    cdef int found
    cdef Walked w
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
    try:
        require(&view, start, end)
        p = <const uint8_t *>view.buf + start
        found = framing(p, end - start, &length)
        if found != OK:
            return found, None, 0, 0
        total = <Py_ssize_t>length + LENGTH_OVERHEAD
        found = second_batch(p + total, end - start - total)
        if found == OK:
            found = header_rules(p, total, max_bytes, from_client)
            if found != BASE_OFFSET and found != TOO_LARGE:
                if crc_of(buf, <const uint8_t *>view.buf, start + CRC_START, start + total) != tl_get32(p + 17):
                    found = BAD_CRC
        if found != OK:
            return found, header_fields(p), 0, 0
        walk_range(
            p, HEADER_SIZE, total, <int32_t>tl_get32(p + 57), <int64_t>tl_get64(p + 27), need_key, low, high, &w
        )
        return w.status, header_fields(p), w.greatest if w.status == OK else w.index, w.delta_of_greatest
    finally:
        PyBuffer_Release(&view)
