# The rows of an offset range, in the form of Spark's connector.

# The range of microseconds in 64 bits.
cdef int64_t MOST_MILLISECONDS = 9223372036854775


cdef class RowSink(_Sink):
    cdef readonly bint ended
    cdef readonly Py_ssize_t null_headers
    cdef readonly int64_t beyond
    cdef readonly int64_t beyond_time
    cdef int64_t end
    cdef bint with_keys
    cdef bint with_values
    cdef bint with_headers
    cdef _Column timestamp_type
    cdef _Column header_bits

    def __cinit__(self, int64_t end, *, bint keys=True, bint values=True, bint headers=False):
        self.end = end
        self.beyond = -1
        self.with_keys, self.with_values, self.with_headers = keys, values, headers
        self.timestamp_type, self.header_bits = _Column(), bitmap()

    cdef int reserve(self, Py_ssize_t more, Py_ssize_t size) except -1:
        """Make room for rows, and for the largest size of their keys and values."""
        cdef Py_ssize_t rows = self.rows + more
        self.offset.ensure(8 * rows)
        self.timestamp.ensure(8 * rows)
        self.timestamp_type.ensure(4 * rows)
        if self.with_keys:
            self.key.reserve(rows, size)
        if self.with_values:
            self.value.reserve(rows, size)
        if self.with_headers:
            self.header_ends.ensure(4 * rows + 4)
            self.header_bits.ensure((rows >> 3) + 8)
        return 0

    def fill(self, RecordReader reader not None, Py_ssize_t limit):
        cdef Py_ssize_t made = 0
        cdef Py_ssize_t before
        cdef int found
        cdef Layout r
        if self.rows == 0 and not self.shown and reader.size < 0x40000000:
            # The total size is roughly known: growing would copy.
            if self.with_values:
                self.value.data.ensure(reader.size)
        while made < limit and not self.ended:
            if reader.left == 0 and not reader.may_advance(made == 0):
                break
            if not self.room_for(reader.stop - reader.p):
                break
            self.reserve(min(reader.left, limit - made), reader.stop - reader.p)
            before = self.rows
            with nogil:
                found = fill_rows(reader, self, limit - made, &r)
            made += self.rows - before
            if found == HEADERS_NEXT:
                self.take_headers(&r)
                set_bit(self.header_bits.data, self.rows - 1)
            elif found != OK:
                if made == 0:
                    raise reader.bad_record()
                break
            reader.batch_ended()
        return made

    def buffers(self):
        cdef Py_ssize_t rows = self.rows
        cdef dict found
        self.shown = True
        self.offset.size = self.timestamp.size = 8 * rows
        self.timestamp_type.size = 4 * rows
        found = {"offset": self.offset, "timestamp": self.timestamp, "timestampType": self.timestamp_type}
        if self.with_keys:
            self.key.show("key", rows, found)
        if self.with_values:
            self.value.show("value", rows, found)
        if self.with_headers:
            self.header_ends.size = 4 * rows + 4
            self.header_bits.size = (rows + 7) >> 3
            found["headers ends"], found["headers bits"] = self.header_ends, self.header_bits
            self.headers.name.show("header key", self.headers.rows, found)
            self.headers.content.show("header value", self.headers.rows, found)
        return found


cdef int fill_rows(RecordReader reader, RowSink sink, Py_ssize_t limit, Layout *r) noexcept nogil:
    """Append rows until the batch or range ends, the limit is reached, or `r` is a record with headers."""
    cdef Py_ssize_t row = sink.rows
    cdef Py_ssize_t last = row + limit
    cdef int found = OK
    cdef int64_t offset, timestamp
    cdef int64_t *offsets = <int64_t *>sink.offset.data
    cdef int64_t *timestamps = <int64_t *>sink.timestamp.data
    cdef int32_t *kinds = <int32_t *>sink.timestamp_type.data
    cdef int32_t *header_ends = <int32_t *>sink.header_ends.data
    cdef Cells keys = cells_of(sink.key)
    cdef Cells values = cells_of(sink.value)
    cdef const uint8_t *p = reader.p
    while reader.left > 0 and row < last:
        found = read_record(&p, reader.stop, r)
        if found != OK:
            break
        reader.left -= 1
        offset = tl_add64(reader.base_offset, r.offset_delta)
        if offset < reader.position:
            continue
        if offset >= sink.end:
            sink.ended = True
            break
        reader.position = offset + 1
        offsets[row] = offset
        timestamp = reader.append_time if reader.appended else tl_add64(reader.base_timestamp, r.timestamp_delta)
        timestamps[row] = <int64_t>(<uint64_t>timestamp * 1000)
        if (timestamp > MOST_MILLISECONDS or timestamp < -MOST_MILLISECONDS) and sink.beyond < 0:
            sink.beyond, sink.beyond_time = offset, timestamp
        kinds[row] = reader.appended
        if sink.with_keys:
            add_cell(&keys, row, r.key, r.key_length)
        if sink.with_values:
            add_cell(&values, row, r.value, r.value_length)
        row += 1
        if sink.with_headers:
            header_ends[row] = <int32_t>sink.headers.rows
            if r.header_count:
                found = HEADERS_NEXT
                break
            sink.null_headers += 1
    reader.p = p
    sink.rows = row
    keep_cells(sink.key, &keys)
    keep_cells(sink.value, &values)
    return found
