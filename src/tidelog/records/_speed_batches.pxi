# Batches that a producer fills, the futures of their records, and their shared memory.

cdef int64_t now_ms() noexcept nogil:
    cdef timespec at
    clock_gettime(CLOCK_REALTIME, &at)
    return <int64_t>at.tv_sec * 1000 + at.tv_nsec // 1000000


cdef inline int varint_size(int64_t value) noexcept nogil:
    cdef uint64_t raw = (<uint64_t>value << 1) ^ <uint64_t>(value >> 63)
    cdef int size = 1
    while raw > 0x7F:
        raw >>= 7
        size += 1
    return size


@no_gc  # refers only to a batch, which drops its references back when it is done
cdef class RecordFuture:
    cdef readonly object batch
    cdef readonly int64_t timestamp
    cdef readonly int32_t index
    cdef readonly int32_t key_size
    cdef readonly int32_t value_size

    def __init__(self, batch, int32_t index, int64_t timestamp, int32_t key_size, int32_t value_size):
        self.batch = batch
        self.index = index
        self.timestamp = timestamp
        self.key_size = key_size
        self.value_size = value_size

    def done(self):
        return self.batch.future_done(self)

    def cancelled(self):
        return False

    def cancel(self):
        return False

    def running(self):
        return not self.batch.future_done(self)

    def result(self, timeout=None):
        return self.batch.future_result(self, timeout)

    def exception(self, timeout=None):
        return self.batch.future_exception(self, timeout)

    def add_done_callback(self, function):
        self.batch.future_callback(self, function)

    def __await__(self):
        return self.batch.future_await(self)


cdef enum:
    POOL_SLOTS = 64


cdef class BufferPool:
    cdef uint8_t *slots[POOL_SLOTS]
    cdef int used
    cdef readonly Py_ssize_t size

    def __cinit__(self, Py_ssize_t size):
        self.size = size

    def __dealloc__(self):
        while self.used > 0:
            self.used -= 1
            PyMem_Free(self.slots[self.used])

    @property
    def held(self):
        return self.used

    cdef uint8_t *take(self) noexcept:
        if self.used == 0:
            return NULL
        self.used -= 1
        return self.slots[self.used]

    cdef bint keep(self, uint8_t *data) noexcept:
        if self.used == POOL_SLOTS:
            return False
        self.slots[self.used] = data
        self.used += 1
        return True


cdef class BatchBuffer:
    """One batch in memory: room for the header, then records. The GIL separates appends and `seal`."""

    cdef uint8_t *data
    cdef readonly Py_ssize_t size
    cdef readonly Py_ssize_t limit
    cdef Py_ssize_t room
    cdef Py_ssize_t exports
    cdef readonly int64_t base_timestamp
    cdef readonly int64_t max_timestamp
    cdef readonly int32_t count
    cdef readonly bint sealed
    cdef BufferPool pool

    def __cinit__(self, Py_ssize_t limit, *args):
        self.limit = limit
        self.size = HEADER_SIZE
        self.base_timestamp = -1
        self.max_timestamp = -1

    def __init__(self, Py_ssize_t limit, *args):
        pass

    def __dealloc__(self):
        PyMem_Free(self.data)

    @property
    def full(self):
        return self.sealed or (self.count > 0 and self.size >= self.limit)

    cdef uint8_t *start_record(self, int64_t timestamp, Py_ssize_t rest) except? NULL:
        """Room for a record with `rest` bytes of key, value, headers and lengths; NULL if there is none."""
        cdef Py_ssize_t body, total, room
        cdef void *data
        if self.count == 0:
            self.base_timestamp = timestamp
        body = 1 + varint_size(tl_sub64(timestamp, self.base_timestamp)) + varint_size(self.count) + rest
        total = body + varint_size(body)
        if body > 0x7FFFFFFF or self.count == 0x7FFFFFFF:
            return NULL
        if self.size + total > self.limit and self.count > 0:
            return NULL
        if self.data == NULL and self.pool is not None and self.pool.size == self.limit:
            self.data = self.pool.take()
            if self.data != NULL:
                self.room = self.limit
        if total > self.room - self.size:
            room = max(self.size + total, min(2 * self.room, self.limit), min(self.limit, 1024))
            data = PyMem_Realloc(self.data, room)
            if data == NULL:
                raise MemoryError
            self.data = <uint8_t *>data
            self.room = room
        cdef uint8_t *p = tl_put_varint(self.data + self.size, body)
        p[0] = 0
        p = tl_put_varint(p + 1, tl_sub64(timestamp, self.base_timestamp))
        p = tl_put_varint(p, self.count)
        self.size += total
        self.count += 1
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        return p

    cdef RecordFuture future(self, int64_t timestamp, Py_ssize_t key_size, Py_ssize_t value_size):
        cdef int32_t index = self.count - 1
        cdef RecordFuture made = RecordFuture.__new__(RecordFuture)
        made.batch = self
        made.index = index
        made.timestamp = timestamp
        made.key_size = <int32_t>key_size
        made.value_size = <int32_t>value_size
        return made

    def append_value(self, bytes value):
        cdef uint8_t *p
        cdef int64_t timestamp
        cdef Py_ssize_t size
        if self.sealed or value is None:
            return None
        size = PyBytes_GET_SIZE(value)
        timestamp = now_ms()
        p = self.start_record(timestamp, 1 + varint_size(size) + size + 1)
        if p == NULL:
            return None
        p[0] = 1
        p = tl_put_varint(p + 1, size)
        memcpy(p, PyBytes_AS_STRING(value), size)
        p[size] = 0
        return self.future(timestamp, -1, size)

    cdef RecordFuture append_pair(self, bytes key, bytes value):
        cdef Py_ssize_t key_size = PyBytes_GET_SIZE(key)
        cdef Py_ssize_t value_size = PyBytes_GET_SIZE(value)
        cdef int64_t timestamp = now_ms()
        cdef uint8_t *p
        if self.sealed:
            return None
        p = self.start_record(
            timestamp, varint_size(key_size) + key_size + varint_size(value_size) + value_size + 1
        )
        if p == NULL:
            return None
        p = put_content(p, PyBytes_AS_STRING(key), key_size)
        p = put_content(p, PyBytes_AS_STRING(value), value_size)
        p[0] = 0
        return self.future(timestamp, key_size, value_size)

    def append(self, int64_t timestamp, bytes key, bytes value, tuple headers):
        cdef uint8_t *p
        cdef Py_ssize_t key_size = -1
        cdef Py_ssize_t value_size = -1
        cdef Py_ssize_t rest
        cdef bytes name, content
        if self.sealed:
            return None
        if key is not None:
            key_size = PyBytes_GET_SIZE(key)
        if value is not None:
            value_size = PyBytes_GET_SIZE(value)
        rest = varint_size(key_size) + max(key_size, 0) + varint_size(value_size) + max(value_size, 0)
        rest += varint_size(len(headers))
        for name, content in headers:
            rest += varint_size(PyBytes_GET_SIZE(name)) + PyBytes_GET_SIZE(name)
            if content is None:
                rest += 1
            else:
                rest += varint_size(PyBytes_GET_SIZE(content)) + PyBytes_GET_SIZE(content)
        p = self.start_record(timestamp, rest)
        if p == NULL:
            return None
        p = put_content(p, PyBytes_AS_STRING(key) if key is not None else NULL, key_size)
        p = put_content(p, PyBytes_AS_STRING(value) if value is not None else NULL, value_size)
        p = tl_put_varint(p, len(headers))
        for name, content in headers:
            p = put_content(p, PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name))
            if content is None:
                p = put_content(p, NULL, -1)
            else:
                p = put_content(p, PyBytes_AS_STRING(content), PyBytes_GET_SIZE(content))
        return self.future(timestamp, key_size, value_size)

    def append_rows(self, ArrowColumns columns, rows, Py_ssize_t start, Py_ssize_t stop, int64_t timestamp):
        cdef Py_buffer view
        cdef Py_ssize_t done
        if self.sealed:
            return start
        if rows is None:
            if not 0 <= start <= stop <= columns.rows:
                raise ValueError(f"rows {start}:{stop} of {columns.rows}")
            return self.take_rows(columns, NULL, start, stop, timestamp)
        PyObject_GetBuffer(rows, &view, PyBUF_SIMPLE)
        try:
            if not 0 <= start <= stop <= view.len // 4:
                raise ValueError(f"rows {start}:{stop} of {view.len // 4}")
            done = self.take_rows(columns, <const int32_t *>view.buf, start, stop, timestamp)
        finally:
            PyBuffer_Release(&view)
        return done

    cdef Py_ssize_t take_rows(
        self, ArrowColumns c, const int32_t *rows, Py_ssize_t start, Py_ssize_t stop, int64_t timestamp
    ) except -1:
        """Append rows until the batch is full; returns the first row that did not fit."""
        cdef Py_ssize_t at, row, key_size, value_size, header_size, rest
        cdef const uint8_t *key
        cdef const uint8_t *value
        cdef const uint8_t *headers
        cdef int64_t time
        cdef uint8_t *p
        at = start
        while at < stop:
            row = at if rows == NULL else rows[at]
            if row < 0 or row >= c.rows:
                raise ValueError(f"row {row} of {c.rows}")
            key = c.key.cell(row, &key_size)
            value = c.value.cell(row, &value_size)
            time = c.time(row, timestamp)
            headers = c.headers_of(row, &header_size)
            rest = varint_size(key_size) + varint_size(value_size) + header_size
            if key_size > 0:
                rest += key_size
            if value_size > 0:
                rest += value_size
            p = self.start_record(time, rest)
            if p == NULL:
                break
            p = put_content(p, <const char *>key, key_size)
            p = put_content(p, <const char *>value, value_size)
            memcpy(p, headers, header_size)
            at += 1
        return at

    def last_future(self):
        return self.future(self.max_timestamp, -1, -1)

    def seal(self):
        self.sealed = True

    def reuse(self, BufferPool pool):
        self.pool = pool

    def release(self):
        self.sealed = True
        if self.exports == 0 and self.data != NULL:
            if self.pool is None or self.room != self.pool.size or not self.pool.keep(self.data):
                PyMem_Free(self.data)
            self.data = NULL
            self.room = 0

    def bytes_view(self):
        return memoryview(self)

    def __getbuffer__(self, Py_buffer *view, int flags):
        if not self.sealed or self.data == NULL:
            raise BufferError("a batch shows its bytes between seal and release")
        PyBuffer_FillInfo(view, self, self.data, self.size, 0, flags)
        self.exports += 1

    def __releasebuffer__(self, Py_buffer *view):
        self.exports -= 1


cdef class OpenBatches:
    cdef readonly list batches

    def __init__(self, Py_ssize_t partitions):
        if partitions <= 0:
            raise ValueError(f"{partitions} partitions")
        self.batches = [None] * partitions

    def append(self, bytes key not None, bytes value not None):
        cdef int32_t hashed = murmur2_of(<const uint8_t *>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key))
        batch = self.batches[(hashed & 0x7FFFFFFF) % len(self.batches)]
        return None if batch is None else (<BatchBuffer?>batch).append_pair(key, value)


cdef inline uint8_t *put_content(uint8_t *p, const char *content, Py_ssize_t size) noexcept:
    p = tl_put_varint(p, size)
    if size > 0:
        memcpy(p, content, size)
        p += size
    return p


def sign_batch(
    buf, int16_t attributes, int32_t count, int64_t base_timestamp, int64_t max_timestamp,
    int64_t producer_id, int16_t producer_epoch, int32_t base_sequence,
):
    cdef Py_buffer view
    cdef uint8_t *p
    PyObject_GetBuffer(buf, &view, PyBUF_WRITABLE)
    try:
        if view.len < HEADER_SIZE or view.len > 0x7FFFFFFF:
            raise ValueError(f"no batch of {view.len} bytes")
        p = <uint8_t *>view.buf
        tl_put64(p, 0)
        tl_put32(p + 8, <uint32_t>(view.len - LENGTH_OVERHEAD))
        tl_put32(p + 12, <uint32_t>-1)
        p[16] = 2
        tl_put16(p + 21, <uint16_t>attributes)
        tl_put32(p + 23, <uint32_t>(count - 1))
        tl_put64(p + 27, <uint64_t>base_timestamp)
        tl_put64(p + 35, <uint64_t>max_timestamp)
        tl_put64(p + 43, <uint64_t>producer_id)
        tl_put16(p + 51, <uint16_t>producer_epoch)
        tl_put32(p + 53, <uint32_t>base_sequence)
        tl_put32(p + 57, <uint32_t>count)
        tl_put32(p + 17, crc_of(buf, p, CRC_START, view.len))
    finally:
        PyBuffer_Release(&view)
