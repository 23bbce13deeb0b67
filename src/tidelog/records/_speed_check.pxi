# A produced batch: checks its header and its records in one pass before a broker stores it, and returns the
# fields that a log needs.

cdef extern from *:
    """
    /* What `tuple.__new__(type, values)` does, for a subclass of tuple without fields of its own. */
    static PyObject *tl_named_tuple(PyTypeObject *type, PyObject *values) {
        Py_ssize_t n = PyTuple_GET_SIZE(values);
        PyObject *made = type->tp_alloc(type, n);
        if (!made) return NULL;
        for (Py_ssize_t i = 0; i < n; i++) {
            PyObject *value = PyTuple_GET_ITEM(values, i);
            Py_INCREF(value);
            PyTuple_SET_ITEM(made, i, value);
        }
        return made;
    }
    """
    ctypedef struct PyTypeObject
    object tl_named_tuple(PyTypeObject *type, tuple values)


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
    """OK, or the error of the first batch. A second batch is not looked for here."""
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


cdef object checked_batch(object data, const uint8_t *p, Py_ssize_t size):
    """A CheckedBatch, which is a tuple of its fields. It is made here without its constructor."""
    cdef tuple values = (
        data,
        size,
        <int16_t>tl_get16(p + 21),
        <int32_t>tl_get32(p + 23),
        <int64_t>tl_get64(p + 35),
        <int64_t>tl_get64(p + 43),
        <int16_t>tl_get16(p + 51),
        <int32_t>tl_get32(p + 53),
    )
    return tl_named_tuple(<PyTypeObject *>CheckedBatch, values)


cdef class BatchRules:
    cdef int64_t max_bytes, before_max_ms, after_max_ms
    cdef bint from_client, allow_zstd, need_key, log_append_time, keeps_codec

    def __init__(
        self, int64_t max_bytes, bint from_client, bint allow_zstd, bint need_key, int64_t before_max_ms,
        int64_t after_max_ms, bint log_append_time, bint keeps_codec,
    ):
        self.max_bytes = max_bytes
        self.from_client = from_client
        self.allow_zstd = allow_zstd
        self.need_key = need_key
        self.before_max_ms = before_max_ms
        self.after_max_ms = after_max_ms
        self.log_append_time = log_append_time
        self.keeps_codec = keeps_codec

    cdef void find_bounds(self, int64_t now_ms, int64_t *low, int64_t *high) noexcept:
        low[0] = INT64_MIN
        high[0] = INT64_MAX
        if self.log_append_time:
            return
        if now_ms > INT64_MAX - self.after_max_ms:
            if self.before_max_ms == INT64_MAX:
                return
        else:
            high[0] = now_ms + self.after_max_ms
        if now_ms > INT64_MIN + self.before_max_ms:
            low[0] = now_ms - self.before_max_ms

    def bounds(self, int64_t now_ms):
        cdef int64_t low, high
        self.find_bounds(now_ms, &low, &high)
        return low, high

    cdef int header_status(self, object buf, const uint8_t *p, Py_ssize_t size, Py_ssize_t total) except -1:
        """Check the rules before the records, in Kafka's order. After OK and COMPRESSED check the records."""
        cdef int found
        if not self.allow_zstd and (p[22] & 7) == 4:
            return OLD_ZSTD
        found = second_batch(p + total, size - total)
        if found != OK:
            return found
        found = header_rules(p, total, self.max_bytes, self.from_client)
        if found != BASE_OFFSET and found != TOO_LARGE:
            if crc_of(buf, p, CRC_START, total) != tl_get32(p + 17):
                return BAD_CRC
        return found

    def look(self, buf, int64_t now_ms):
        cdef Py_buffer view
        cdef const uint8_t *p
        cdef int32_t length
        cdef Py_ssize_t total
        cdef int found
        cdef int64_t low, high
        cdef Walked w
        PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
        try:
            p = <const uint8_t *>view.buf
            found = framing(p, view.len, &length)
            if found != OK:
                return found, None, 0
            total = <Py_ssize_t>length + LENGTH_OVERHEAD
            found = self.header_status(buf, p, view.len, total)
            if found != OK:
                return found, header_fields(p), 0
            self.find_bounds(now_ms, &low, &high)
            walk_range(
                p, HEADER_SIZE, total, <int32_t>tl_get32(p + 57), <int64_t>tl_get64(p + 27), self.need_key,
                low, high, &w,
            )
            if w.status != OK:
                return w.status, header_fields(p), w.index
            if (
                self.log_append_time or not self.keeps_codec or view.readonly or total != view.len
                or w.greatest != <int64_t>tl_get64(p + 35)
            ):
                return OK, header_fields(p), w.greatest
            return checked_batch(buf, p, total)
        finally:
            PyBuffer_Release(&view)
