# The records of a fetched partition: a reader walks over the fetched batches, and returns records or fills
# the columns of a sink (`_speed_columns.pxi`, `_speed_rows.pxi`).

@no_gc  # refers to bytes and a name
cdef class _Payload:
    """The uncompressed bytes of a batch, or of a whole answer, and the common fields of its records."""

    cdef Py_buffer view
    cdef bint held
    cdef str topic
    cdef int32_t partition
    cdef int32_t leader_epoch
    cdef int8_t timestamp_type

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.view)


cdef enum:
    HAS_KEY = 1
    HAS_VALUE = 2
    HAS_HEADERS = 4


@no_gc  # refers to bytes and to deserialized objects, which seldom refer to their record
cdef class ConsumerRecord:
    """A record that was read. Its key, value and headers become objects on first use.

    It keeps the bytes of its fetch.
    """

    cdef _Payload payload
    cdef readonly int64_t offset
    cdef readonly int64_t timestamp
    cdef object made_key
    cdef object made_value
    cdef object made_headers
    cdef int32_t key_at
    cdef readonly int32_t serialized_key_size
    cdef int32_t value_at
    cdef readonly int32_t serialized_value_size
    cdef int32_t headers_at
    cdef int32_t header_count
    cdef uint8_t has

    def __init__(
        self, str topic, int32_t partition, int64_t offset, int64_t timestamp=-1, key=None, value=None,
        tuple headers=(), int8_t timestamp_type=0, int32_t leader_epoch=-1, int32_t serialized_key_size=-1, int32_t serialized_value_size=-1,
    ):
        cdef _Payload payload = _Payload.__new__(_Payload)
        payload.topic = topic
        payload.partition = partition
        payload.timestamp_type = timestamp_type
        payload.leader_epoch = leader_epoch
        self.payload = payload
        self.offset = offset
        self.timestamp = timestamp
        self.made_key = key
        self.made_value = value
        self.made_headers = headers
        self.serialized_key_size = len(key) if type(key) is bytes else serialized_key_size
        self.serialized_value_size = len(value) if type(value) is bytes else serialized_value_size
        self.has = HAS_KEY | HAS_VALUE | HAS_HEADERS

    @classmethod
    def __class_getitem__(cls, types):
        from types import GenericAlias

        return GenericAlias(cls, types)

    @property
    def topic(self):
        return self.payload.topic

    @property
    def partition(self):
        return self.payload.partition

    @property
    def leader_epoch(self):
        return self.payload.leader_epoch

    @property
    def timestamp_type(self):
        return self.payload.timestamp_type

    @property
    def key(self):
        if not self.has & HAS_KEY:
            self.made_key = slice_or_none(<const uint8_t *>self.payload.view.buf + self.key_at, self.serialized_key_size)
            self.has |= HAS_KEY
        return self.made_key

    @property
    def value(self):
        if not self.has & HAS_VALUE:
            self.made_value = slice_or_none(<const uint8_t *>self.payload.view.buf + self.value_at, self.serialized_value_size)
            self.has |= HAS_VALUE
        return self.made_value

    @property
    def headers(self):
        cdef const uint8_t *base
        if not self.has & HAS_HEADERS:
            if self.header_count == 0:
                self.made_headers = ()
            else:
                base = <const uint8_t *>self.payload.view.buf
                self.made_headers = read_headers(
                    base + self.headers_at, base + self.payload.view.len, self.header_count, 0
                )
            self.has |= HAS_HEADERS
        return self.made_headers

    def replace(self, key, value):
        self.made_key = key
        self.made_value = value
        self.has |= HAS_KEY | HAS_VALUE

    def __reduce__(self):
        from tidelog.records._pure_fetch import fields_of

        return ConsumerRecord, fields_of(self)

    def __repr__(self):
        from tidelog.records._pure_fetch import described

        return described(self)


@no_gc  # refers to bytes, and to lists and sets of numbers
cdef class RecordReader:
    cdef object buf
    cdef Py_buffer view
    cdef bint held
    cdef readonly str topic
    cdef readonly int32_t partition
    cdef readonly int32_t leader_epoch
    cdef readonly int64_t position
    cdef readonly int64_t next_fetch
    cdef readonly Py_ssize_t size
    cdef bint check_crcs
    cdef list aborted
    cdef Py_ssize_t aborted_at
    cdef set dropped
    cdef Py_ssize_t at
    # The current batch; its records are in `payload` from `p` to `stop`.
    cdef _Payload payload
    cdef const uint8_t *p
    cdef const uint8_t *stop
    cdef int64_t left
    cdef int64_t base_offset
    cdef int64_t batch_next
    cdef int64_t base_timestamp
    cdef int64_t append_time
    cdef bint appended

    def __cinit__(self, buf, str topic not None, int32_t partition, int64_t position, bint check_crcs, aborted):
        PyObject_GetBuffer(buf, &self.view, PyBUF_SIMPLE)
        self.held = True
        self.buf = buf
        self.size = self.view.len
        self.topic = topic
        self.partition = partition
        self.position = position
        self.leader_epoch = -1
        self.check_crcs = check_crcs
        self.aborted = None if aborted is None else list(aborted)
        self.dropped = set()
        self.next_fetch = self.scan()

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.view)

    def copy(self):
        cdef RecordReader made = RecordReader.__new__(
            RecordReader, self.buf, self.topic, self.partition, self.position, self.check_crcs, self.aborted
        )
        made.leader_epoch = self.leader_epoch
        made.aborted_at = self.aborted_at
        made.dropped = self.dropped.copy()
        made.at = self.at
        made.payload, made.p, made.stop, made.left = self.payload, self.p, self.stop, self.left
        made.base_offset, made.batch_next = self.base_offset, self.batch_next
        made.base_timestamp, made.append_time, made.appended = self.base_timestamp, self.append_time, self.appended
        return made

    cdef int64_t scan(self) noexcept:
        """The offset after the last complete batch."""
        cdef const uint8_t *base = <const uint8_t *>self.view.buf
        cdef Py_ssize_t at = 0
        cdef int64_t found = -1
        cdef int32_t length
        while self.size - at >= HEADER_SIZE:
            length = <int32_t>tl_get32(base + at + 8)
            if length < HEADER_SIZE - LENGTH_OVERHEAD or length > self.size - at - LENGTH_OVERHEAD:
                break
            found = tl_add64(<int64_t>tl_get64(base + at), <int64_t>(<int32_t>tl_get32(base + at + 23)) + 1)
            at += <Py_ssize_t>length + LENGTH_OVERHEAD
        return found

    cdef bint whole_batch(self) noexcept:
        cdef Py_ssize_t rest = self.size - self.at
        cdef int32_t length
        if rest < HEADER_SIZE:
            return False
        length = <int32_t>tl_get32(<const uint8_t *>self.view.buf + self.at + 8)
        return length < HEADER_SIZE - LENGTH_OVERHEAD or length <= rest - LENGTH_OVERHEAD

    @property
    def done(self):
        return self.left == 0 and not self.whole_batch()

    cdef int advance(self) except -1:
        """Go to the next batch with records to return; 0 at the end."""
        cdef const uint8_t *p
        cdef int32_t length, count
        cdef Py_ssize_t end
        cdef int64_t base, last, next_offset
        cdef uint16_t attributes
        while self.whole_batch():
            p = <const uint8_t *>self.view.buf + self.at
            base = <int64_t>tl_get64(p)
            length = <int32_t>tl_get32(p + 8)
            if p[16] != 2:
                raise self.bad_batch(base, f"has magic {<int>(<signed char>p[16])} where 2 is read")
            if length < HEADER_SIZE - LENGTH_OVERHEAD:
                raise self.bad_batch(base, f"declares a length of {length}")
            end = self.at + length + LENGTH_OVERHEAD
            last = tl_add64(base, <int32_t>tl_get32(p + 23))
            next_offset = tl_add64(last, 1)
            if next_offset > self.position:
                attributes = tl_get16(p + 21)
                count = <int32_t>tl_get32(p + 57)
                if self.check_crcs:
                    if crc_of(self.buf, <const uint8_t *>self.view.buf, self.at + CRC_START, end) != tl_get32(p + 17):
                        raise self.bad_crc(base)
                if not self.left_out(p, end, attributes, last) and count > 0:
                    self.open_batch(p, end, attributes, count)
                    self.at = end
                    return 1
                self.position = next_offset
                self.leader_epoch = <int32_t>tl_get32(p + 12)
            self.at = end
        return 0

    cdef int open_batch(self, const uint8_t *p, Py_ssize_t end, uint16_t attributes, int32_t count) except -1:
        cdef _Payload payload = _Payload.__new__(_Payload)
        cdef Py_ssize_t start = self.at + HEADER_SIZE
        if attributes & 7:
            from tidelog.records._pure_fetch import unpack

            PyObject_GetBuffer(unpack(attributes, memoryview(self.buf)[start:end]), &payload.view, PyBUF_SIMPLE)
            start, end = 0, payload.view.len
        else:
            PyObject_GetBuffer(self.buf, &payload.view, PyBUF_SIMPLE)
        payload.held = True
        if payload.view.len > 0x7FFFFFFF:
            raise self.bad_batch(self.position, "is larger than 2 GB")
        payload.topic = self.topic
        payload.partition = self.partition
        payload.leader_epoch = <int32_t>tl_get32(p + 12)
        self.appended = attributes & 8 != 0
        payload.timestamp_type = self.appended
        self.payload = payload
        self.p = <const uint8_t *>payload.view.buf + start
        self.stop = <const uint8_t *>payload.view.buf + end
        self.left = count
        self.base_offset = <int64_t>tl_get64(p)
        self.batch_next = tl_add64(self.base_offset, <int64_t>(<int32_t>tl_get32(p + 23)) + 1)
        self.base_timestamp = <int64_t>tl_get64(p + 27)
        self.append_time = <int64_t>tl_get64(p + 35)
        return 0

    cdef bint left_out(self, const uint8_t *p, Py_ssize_t end, uint16_t attributes, int64_t last) except -1:
        if self.aborted is not None:
            while self.aborted_at < len(self.aborted) and self.aborted[self.aborted_at][0] <= last:
                self.dropped.add(self.aborted[self.aborted_at][1])
                self.aborted_at += 1
        if attributes & 0x20:
            if self.aborted is not None and self.is_abort(end, attributes):
                self.dropped.discard(<int64_t>tl_get64(p + 43))
            return True
        return attributes & 0x10 != 0 and bool(self.dropped) and <int64_t>tl_get64(p + 43) in self.dropped

    cdef bint is_abort(self, Py_ssize_t end, uint16_t attributes) except -1:
        from tidelog.records._pure_fetch import _is_abort

        return _is_abort(memoryview(self.buf), self.at, attributes)

    cdef object bad_batch(self, int64_t offset, str reason):
        from tidelog.records._pure_fetch import bad_batch

        return bad_batch(self.topic, self.partition, offset, reason)

    cdef object bad_crc(self, int64_t offset):
        from tidelog.records._pure_fetch import bad_crc

        return bad_crc(self.topic, self.partition, offset)

    cdef object bad_record(self):
        from tidelog.records._pure_fetch import bad_record

        return bad_record(self.topic, self.partition, self.position)

    cdef bint may_advance(self, bint nothing_yet) except -1:
        """`advance`, but the error of a batch is raised only after the records before it were returned."""
        if nothing_yet:
            return self.advance()
        try:
            return self.advance()
        except Exception:
            return False

    def take(self, Py_ssize_t limit):
        cdef list out = []
        cdef Py_ssize_t made = 0
        cdef Layout r
        cdef ConsumerRecord record
        cdef const uint8_t *base
        cdef int64_t offset
        while made < limit:
            if self.left == 0 and not self.may_advance(made == 0):
                break
            base = <const uint8_t *>self.payload.view.buf
            while self.left > 0 and made < limit:
                if read_record(&self.p, self.stop, &r) != OK:
                    if made == 0:
                        raise self.bad_record()
                    return out
                self.left -= 1
                offset = tl_add64(self.base_offset, r.offset_delta)
                if offset < self.position:
                    continue
                self.position = offset + 1
                record = ConsumerRecord.__new__(ConsumerRecord)
                record.payload = self.payload
                record.offset = offset
                record.timestamp = (
                    self.append_time if self.appended else tl_add64(self.base_timestamp, r.timestamp_delta)
                )
                record.key_at = <int32_t>(r.key - base)
                record.serialized_key_size = r.key_length
                record.value_at = <int32_t>(r.value - base)
                record.serialized_value_size = r.value_length
                record.headers_at = <int32_t>(r.headers - base)
                record.header_count = r.header_count
                out.append(record)
                made += 1
            self.batch_ended()
        return out

    cdef void batch_ended(self) noexcept:
        self.leader_epoch = self.payload.leader_epoch
        if self.left == 0 and self.batch_next > self.position:
            self.position = self.batch_next

    def take_columns(self, ColumnSink sink not None, Py_ssize_t limit):
        cdef Py_ssize_t made = 0
        cdef Py_ssize_t before
        cdef int found
        cdef int32_t topic
        cdef Layout r
        while made < limit:
            if self.left == 0 and not self.may_advance(made == 0):
                break
            if not sink.room_for(self.stop - self.p):
                break
            topic = sink.topic_index(self.topic)
            sink.reserve_rows(min(self.left, limit - made), self.stop - self.p)
            before = sink.rows
            with nogil:
                found = fill_sink(self, sink, limit - made, &r)
            made += sink.rows - before
            sink.name_rows(before, topic, self.partition)
            if found == HEADERS_NEXT:
                sink.take_headers(&r)
            elif found != OK:
                if made == 0:
                    raise self.bad_record()
                break
            self.batch_ended()
        return made
