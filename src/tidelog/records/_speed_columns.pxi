# Fetched records as columns in Arrow's layout: the columns, their growth, and how a batch fills them.

cdef class _Column:
    """A growing buffer that others may view. In bitmaps the reserved bytes are zero."""

    cdef uint8_t *data
    cdef Py_ssize_t size
    cdef Py_ssize_t room
    cdef bint zeroed

    def __dealloc__(self):
        if self.data != NULL:
            give_block(self.data, self.room)

    cdef int ensure(self, Py_ssize_t room) except -1:
        """Make room for this many bytes in total."""
        cdef uint8_t *data
        if room <= self.room:
            return 0
        room = max(room, self.room + self.room // 2, 64)
        data = take_block(&room)
        if self.data != NULL:
            memcpy(data, self.data, self.room)
            give_block(self.data, self.room)
        if self.zeroed:
            memset(data + self.room, 0, room - self.room)
        self.data = data
        self.room = room
        return 0

    def __getbuffer__(self, Py_buffer *view, int flags):
        self.ensure(1)  # a view needs an address, even of no bytes
        PyBuffer_FillInfo(view, self, self.data, self.size, 1, flags)


cdef _Column bitmap():
    cdef _Column made = _Column()
    made.zeroed = True
    return made


cdef _Column ends():
    cdef _Column made = _Column()
    made.ensure(64)
    (<int32_t *>made.data)[0] = 0
    return made


cdef class _Bytes:
    """A column of byte strings: their ends, the bytes, and a validity bit for each."""

    cdef _Column ends
    cdef _Column data
    cdef _Column bits
    cdef Py_ssize_t nulls

    def __cinit__(self):
        self.ends, self.data, self.bits = ends(), _Column(), bitmap()

    cdef int reserve(self, Py_ssize_t rows, Py_ssize_t more) except -1:
        """Make room for `rows` rows in total and for more bytes."""
        self.ends.ensure(4 * rows + 4)
        self.bits.ensure((rows >> 3) + 8)
        self.data.ensure(self.data.size + more)
        return 0

    cdef int show(self, str name, Py_ssize_t rows, dict found) except -1:
        self.ends.size = 4 * rows + 4
        self.bits.size = (rows + 7) >> 3
        found[name + " ends"] = self.ends
        found[name + " data"] = self.data
        found[name + " bits"] = self.bits
        return 0


cdef struct Cells:
    # A column of byte strings during appends, without the GIL.
    int32_t *ends
    uint8_t *data
    uint8_t *bits
    Py_ssize_t size
    Py_ssize_t nulls


cdef inline Cells cells_of(_Bytes column) noexcept nogil:
    cdef Cells cells
    cells.ends = <int32_t *>column.ends.data
    cells.data = column.data.data
    cells.bits = column.bits.data
    cells.size = column.data.size
    cells.nulls = column.nulls
    return cells


cdef inline void add_cell(Cells *cells, Py_ssize_t row, const uint8_t *start, int32_t length) noexcept nogil:
    """Append one row, null for a negative length. The caller has made room for it."""
    if length < 0:
        cells.nulls += 1
    else:
        memcpy(cells.data + cells.size, start, length)
        cells.size += length
        set_bit(cells.bits, row)
    cells.ends[row + 1] = <int32_t>cells.size


cdef inline void keep_cells(_Bytes column, Cells *cells) noexcept nogil:
    column.data.size = cells.size
    column.nulls = cells.nulls


cdef class _Headers:
    """The headers of all rows: keys, which are text, and values."""

    cdef Py_ssize_t rows
    cdef _Bytes name
    cdef _Bytes content

    def __cinit__(self):
        self.name, self.content = _Bytes(), _Bytes()

    cdef int take(self, Layout *r) except -1:
        """Append the headers of one record."""
        cdef const uint8_t *p = r.headers
        cdef int32_t count = r.header_count
        cdef int32_t length
        while count > 0:
            if tl_varint32(&p, r.stop, &length) or length < 0 or length > r.stop - p:
                raise MalformedRecords(MALFORMED, 0)
            self.add_name(p, length)
            p += length
            if tl_varint32(&p, r.stop, &length) or length > r.stop - p:
                raise MalformedRecords(MALFORMED, 0)
            self.add(self.content, p, length)
            if length > 0:
                p += length
            self.rows += 1
            count -= 1
        return 0

    cdef int add_name(self, const uint8_t *p, int32_t length) except -1:
        cdef int32_t index
        cdef bytes text
        for index in range(length):
            if p[index] >= 0x80:  # the column has text: other bytes become replacement characters
                text = PyUnicode_DecodeUTF8(<const char *>p, length, "replace").encode()
                p = <const uint8_t *>PyBytes_AS_STRING(text)
                length = <int32_t>PyBytes_GET_SIZE(text)
                break
        return self.add(self.name, p, length)

    cdef int add(self, _Bytes column, const uint8_t *start, int32_t length) except -1:
        cdef Cells cells
        column.reserve(self.rows + 1, max(length, 0))
        cells = cells_of(column)
        add_cell(&cells, self.rows, start, length)
        keep_cells(column, &cells)
        return 0


cdef class _Sink:
    """The common base of a consumer's columns and Spark's rows."""

    cdef readonly Py_ssize_t rows
    cdef bint shown
    cdef _Column offset
    cdef _Column timestamp
    cdef _Bytes key
    cdef _Bytes value
    cdef _Column header_ends
    cdef _Headers headers

    def __cinit__(self):
        self.offset, self.timestamp = _Column(), _Column()
        self.key, self.value = _Bytes(), _Bytes()
        self.header_ends, self.headers = ends(), _Headers()

    @property
    def null_keys(self):
        return self.key.nulls

    @property
    def null_values(self):
        return self.value.nulls

    @property
    def null_header_values(self):
        return self.headers.content.nulls

    @property
    def header_rows(self):
        return self.headers.rows

    cdef bint room_for(self, Py_ssize_t size) noexcept:
        return (
            not self.shown
            and self.value.data.size + size < 0x7FFFFFFF
            and self.key.data.size + size < 0x7FFFFFFF
        )

    cdef int take_headers(self, Layout *r) except -1:
        """Append the headers of the last row."""
        self.headers.take(r)
        (<int32_t *>self.header_ends.data)[self.rows] = <int32_t>self.headers.rows
        return 0


cdef class ColumnSink(_Sink):
    cdef readonly list topics
    cdef readonly Py_ssize_t null_timestamps
    cdef _Column timestamp_bits
    cdef _Column partition
    cdef _Column topic

    def __cinit__(self):
        self.topics = []
        self.timestamp_bits, self.partition, self.topic = bitmap(), _Column(), _Column()

    def has_room(self, Py_ssize_t size):
        return self.room_for(size)

    def expect(self, Py_ssize_t size):
        if size < 0x7FFFFFFF:
            self.value.data.ensure(size)

    cdef int32_t topic_index(self, str topic) except -1:
        if topic not in self.topics:
            self.topics.append(topic)
        return <int32_t>self.topics.index(topic)

    cdef int reserve_rows(self, Py_ssize_t more, Py_ssize_t size) except -1:
        """Make room for rows, and for the largest size of their keys and values."""
        cdef Py_ssize_t rows = self.rows + more
        self.offset.ensure(8 * rows)
        self.timestamp.ensure(8 * rows)
        self.timestamp_bits.ensure((rows >> 3) + 8)
        self.partition.ensure(4 * rows)
        self.topic.ensure(4 * rows)
        self.key.reserve(rows, size)
        self.value.reserve(rows, size)
        self.header_ends.ensure(4 * rows + 4)
        return 0

    cdef void name_rows(self, Py_ssize_t first, int32_t topic, int32_t partition) noexcept:
        cdef int32_t *topics = <int32_t *>self.topic.data
        cdef int32_t *partitions = <int32_t *>self.partition.data
        cdef Py_ssize_t row
        for row in range(first, self.rows):
            topics[row] = topic
            partitions[row] = partition

    def buffers(self):
        cdef Py_ssize_t rows = self.rows
        cdef dict found
        self.shown = True
        self.offset.size = self.timestamp.size = 8 * rows
        self.partition.size = self.topic.size = 4 * rows
        self.timestamp_bits.size = (rows + 7) >> 3
        self.header_ends.size = 4 * rows + 4
        found = {
            "offset": self.offset,
            "timestamp": self.timestamp,
            "timestamp bits": self.timestamp_bits,
            "partition": self.partition,
            "topic": self.topic,
            "headers ends": self.header_ends,
        }
        self.key.show("key", rows, found)
        self.value.show("value", rows, found)
        self.headers.name.show("header key", self.headers.rows, found)
        self.headers.content.show("header value", self.headers.rows, found)
        return found


cdef enum:
    HEADERS_NEXT = 100


cdef int fill_sink(RecordReader reader, ColumnSink sink, Py_ssize_t limit, Layout *r) noexcept nogil:
    """Append rows of one batch until it ends, the limit is reached, or `r` is a record with headers."""
    cdef Py_ssize_t row = sink.rows
    cdef Py_ssize_t last = row + limit
    cdef int found = OK
    cdef int64_t offset, timestamp
    cdef int64_t *offsets = <int64_t *>sink.offset.data
    cdef int64_t *timestamps = <int64_t *>sink.timestamp.data
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
        reader.position = offset + 1
        offsets[row] = offset
        timestamp = reader.append_time if reader.appended else tl_add64(reader.base_timestamp, r.timestamp_delta)
        timestamps[row] = timestamp
        if timestamp == -1:
            sink.null_timestamps += 1
        else:
            set_bit(sink.timestamp_bits.data, row)
        add_cell(&keys, row, r.key, r.key_length)
        add_cell(&values, row, r.value, r.value_length)
        header_ends[row + 1] = <int32_t>sink.headers.rows
        row += 1
        if r.header_count:
            found = HEADERS_NEXT
            break
    reader.p = p
    sink.rows = row
    keep_cells(sink.key, &keys)
    keep_cells(sink.value, &values)
    return found


cdef inline void set_bit(uint8_t *bits, Py_ssize_t row) noexcept nogil:
    bits[row >> 3] |= <uint8_t>(1 << (row & 7))
