# Records as columns and as objects, and the payload of a batch of records.

cdef int require_room(Py_ssize_t start, Py_ssize_t end, int64_t count) except -1:
    if count < 0 or count > (end - start) // SMALLEST_RECORD:
        raise MalformedRecords(CUT_SHORT, (end - start) // SMALLEST_RECORD)
    return 0


cdef int fill_columns(
    const uint8_t *base, const uint8_t *p, const uint8_t *end, int64_t count, int64_t *timestamps,
    int *offsets, int *key_at, int *key_length, int *value_at, int *value_length,
    int *headers_at, int *header_count, int64_t *index,
) noexcept nogil:
    cdef Layout r
    cdef int found
    cdef int64_t i
    for i in range(count):
        found = read_record(&p, end, &r)
        if found != OK:
            index[0] = i
            return found
        timestamps[i] = r.timestamp_delta
        offsets[i] = r.offset_delta
        key_at[i] = <int32_t>(r.key - base)
        key_length[i] = r.key_length
        value_at[i] = <int32_t>(r.value - base)
        value_length[i] = r.value_length
        headers_at[i] = <int32_t>(r.headers - base)
        header_count[i] = r.header_count
    index[0] = count
    return OK if p == end else BYTES_LEFT


cdef array _LONGS = array("q")
cdef array _INTS = array("i")


def walk_columns(buf, Py_ssize_t start, Py_ssize_t end, int64_t count):
    cdef Py_buffer view
    cdef array a, b, c, d, e, f, g, h
    cdef const uint8_t *base
    cdef int found
    cdef int64_t index
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
    try:
        require(&view, start, end)
        require_room(start, end, count)
        if end > 0x7FFFFFFF:
            raise OverflowError(f"positions up to {end} do not fit in 32 bits")
        base = <const uint8_t *>view.buf
        a = clone(_LONGS, count, False)
        b, c, d = clone(_INTS, count, False), clone(_INTS, count, False), clone(_INTS, count, False)
        e, f = clone(_INTS, count, False), clone(_INTS, count, False)
        g, h = clone(_INTS, count, False), clone(_INTS, count, False)
        with nogil:
            found = fill_columns(
                base, base + start, base + end, count, <int64_t *>a.data.as_voidptr, b.data.as_ints,
                c.data.as_ints, d.data.as_ints, e.data.as_ints, f.data.as_ints, g.data.as_ints,
                h.data.as_ints, &index,
            )
    finally:
        PyBuffer_Release(&view)
    if found != OK:
        raise MalformedRecords(found, index)
    return a, b, c, d, e, f, g, h


cdef object slice_or_none(const uint8_t *p, int32_t length):
    return None if length < 0 else PyBytes_FromStringAndSize(<const char *>p, length)


cdef tuple read_headers(const uint8_t *p, const uint8_t *stop, int32_t count, int64_t index):
    """The headers of a record that `read_record` accepted, checked again since the buffer may be writable."""
    cdef int32_t length
    cdef list pairs = []
    while count > 0:
        if tl_varint32(&p, stop, &length) or length < 0 or length > stop - p:
            raise MalformedRecords(MALFORMED, index)
        name = PyUnicode_DecodeUTF8(<const char *>p, length, "surrogateescape")
        p += length
        if tl_varint32(&p, stop, &length) or length > stop - p:
            raise MalformedRecords(MALFORMED, index)
        pairs.append((name, slice_or_none(p, length)))
        if length > 0:
            p += length
        count -= 1
    return tuple(pairs)


def make_records(
    make, buf, Py_ssize_t start, Py_ssize_t end, int64_t count, int64_t base_offset, int64_t base_timestamp,
    append_time,
):
    cdef Py_buffer view
    cdef const uint8_t *p
    cdef const uint8_t *stop
    cdef Layout r
    cdef int found
    cdef int64_t index
    cdef bint named_tuple = isinstance(make, type) and issubclass(make, tuple)
    cdef list records = []
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
    try:
        require(&view, start, end)
        require_room(start, end, count)
        p = <const uint8_t *>view.buf + start
        stop = <const uint8_t *>view.buf + end
        for index in range(count):
            found = read_record(&p, stop, &r)
            if found != OK:
                raise MalformedRecords(found, index)
            fields = (
                tl_add64(base_offset, r.offset_delta),
                tl_add64(base_timestamp, r.timestamp_delta) if append_time is None else append_time,
                slice_or_none(r.key, r.key_length),
                slice_or_none(r.value, r.value_length),
                read_headers(r.headers, r.stop, r.header_count, index) if r.header_count else (),
            )
            records.append(tuple_new(<type>make, (fields,), NULL) if named_tuple else make(*fields))
        if p != stop:
            raise MalformedRecords(BYTES_LEFT, count)
    finally:
        PyBuffer_Release(&view)
    return records


cdef class _Output:
    """A growing buffer."""

    cdef uint8_t *data
    cdef Py_ssize_t size
    cdef Py_ssize_t room

    def __dealloc__(self):
        PyMem_Free(self.data)

    cdef int reserve(self, Py_ssize_t more) except -1:
        cdef Py_ssize_t room
        cdef void *data
        if more <= self.room - self.size:
            return 0
        room = max(self.size + more, 2 * self.room, 256)
        data = PyMem_Realloc(self.data, room)
        if data == NULL:
            raise MemoryError
        self.data = <uint8_t *>data
        self.room = room
        return 0

    cdef int varint(self, int64_t value) except -1:
        self.reserve(10)
        self.size = tl_put_varint(self.data + self.size, value) - self.data
        return 0

    cdef int raw(self, const void *data, Py_ssize_t size) except -1:
        self.reserve(size)
        memcpy(self.data + self.size, data, size)
        self.size += size
        return 0

    cdef int content(self, object data) except -1:
        """Append a length and that many bytes, or the length -1 for None."""
        cdef Py_buffer view
        if data is None:
            return self.varint(-1)
        if type(data) is bytes:
            self.varint(PyBytes_GET_SIZE(data))
            return self.raw(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            self.varint(view.len)
            return self.raw(view.buf, view.len)
        finally:
            PyBuffer_Release(&view)


def encode_records(records, int64_t base_offset, int64_t base_timestamp):
    cdef _Output out = _Output()
    cdef _Output body = _Output()
    cdef int64_t offset, timestamp
    cdef int64_t last_delta = -1
    cdef int64_t greatest = -1
    cdef int64_t delta
    cdef Py_ssize_t count = 0
    for fields in records:
        offset, timestamp, key, value, headers = fields
        delta = tl_sub64(offset, base_offset)
        if offset < base_offset or not last_delta < delta <= 0x7FFFFFFF:
            raise ValueError(f"offset {offset} does not follow in a batch that starts at {base_offset}")
        body.size = 0
        body.raw(b"\0", 1)
        body.varint(tl_sub64(timestamp, base_timestamp))
        body.varint(delta)
        body.content(key)
        body.content(value)
        body.varint(len(headers))
        for name, content in headers:
            body.content((<str?>name).encode("utf-8", "surrogateescape"))
            body.content(content)
        out.varint(body.size)
        out.raw(body.data, body.size)
        count += 1
        last_delta = delta
        if timestamp > greatest:
            greatest = timestamp
    return PyBytes_FromStringAndSize(<char *>out.data, out.size), count, last_delta, greatest


def one_record_batch(bytes key not None, bytes value, int64_t timestamp):
    cdef uint8_t lengths[30]
    cdef uint8_t *p
    cdef Py_ssize_t key_size = PyBytes_GET_SIZE(key), value_size = -1 if value is None else PyBytes_GET_SIZE(value)
    cdef Py_ssize_t key_length = tl_put_varint(lengths, key_size) - lengths
    cdef Py_ssize_t value_length = tl_put_varint(lengths + 10, value_size) - (lengths + 10)
    cdef Py_ssize_t record = 4 + key_length + key_size + value_length + max(value_size, 0)
    cdef Py_ssize_t record_length = tl_put_varint(lengths + 20, record) - (lengths + 20)
    cdef Py_ssize_t size = HEADER_SIZE + record_length + record
    cdef bytearray out
    if size > 0x7FFFFFFF:
        raise OverflowError(f"a batch of {size} bytes is too large")
    out = PyByteArray_FromStringAndSize(NULL, size)
    p = <uint8_t *>PyByteArray_AS_STRING(out)
    memset(p, 0, HEADER_SIZE)
    tl_put32(p + 8, <uint32_t>(size - LENGTH_OVERHEAD))
    tl_put32(p + 12, 0xFFFFFFFF)  # no leader epoch
    p[16] = 2
    tl_put64(p + 27, <uint64_t>timestamp)
    tl_put64(p + 35, <uint64_t>timestamp)
    memset(p + 43, 0xFF, 14)  # no producer
    tl_put32(p + 57, 1)
    p += HEADER_SIZE
    memcpy(p, lengths + 20, record_length)
    p += record_length
    memset(p, 0, 3)  # attributes, deltas of timestamp and offset
    memcpy(p + 3, lengths, key_length)
    p += 3 + key_length
    memcpy(p, PyBytes_AS_STRING(key), key_size)
    p += key_size
    memcpy(p, lengths + 10, value_length)
    p += value_length
    if value_size > 0:
        memcpy(p, PyBytes_AS_STRING(value), value_size)
        p += value_size
    p[0] = 0  # no headers
    p = <uint8_t *>PyByteArray_AS_STRING(out)
    tl_put32(p + 17, crc_of(out, p, CRC_START, size))
    return out
