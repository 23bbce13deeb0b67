# The state of one producer in a log, in 200 bytes: updated with every batch, without an object per batch.

cdef enum:
    REMEMBERED = 5
    LAST_SEQUENCE = 0x7FFFFFFF

cdef struct Noted:
    int64_t last_offset
    int64_t timestamp
    int32_t last_sequence
    int32_t offset_delta

cdef struct ProducerFields:  # the fields that an append can change
    Noted batches[REMEMBERED]  # a ring; the newest is at `newest`
    int64_t last_timestamp
    int64_t transaction_start
    int32_t newest
    int32_t count
    int16_t epoch


cdef inline int64_t field(object batch, Py_ssize_t at) except? -1:
    """A numeric field of a CheckedBatch."""
    if not PyTuple_Check(batch) or PyTuple_GET_SIZE(batch) != 8:
        raise TypeError(f"a CheckedBatch is right, not {batch!r}")
    return <int64_t><object>PyTuple_GET_ITEM(batch, at)


@no_gc
cdef class ProducerEntry:
    cdef readonly int64_t producer_id
    cdef public int coordinator_epoch
    cdef ProducerFields fields

    def __init__(self, int64_t producer_id, int16_t epoch=-1):
        self.producer_id = producer_id
        self.coordinator_epoch = -1
        self.fields.epoch = epoch
        self.fields.last_timestamp = -1
        self.fields.transaction_start = -1

    @property
    def epoch(self):
        return self.fields.epoch

    @property
    def last_timestamp(self):
        return self.fields.last_timestamp

    @last_timestamp.setter
    def last_timestamp(self, int64_t value):
        self.fields.last_timestamp = value

    @property
    def transaction_start(self):
        return None if self.fields.transaction_start < 0 else self.fields.transaction_start

    @transaction_start.setter
    def transaction_start(self, value):
        self.fields.transaction_start = -1 if value is None else <int64_t>value

    @property
    def last_sequence(self):
        return self.fields.batches[self.fields.newest].last_sequence if self.fields.count else -1

    @property
    def last_offset(self):
        return self.fields.batches[self.fields.newest].last_offset if self.fields.count else -1

    @property
    def batches(self):
        cdef int at, back
        cdef list found = []
        for back in range(self.fields.count - 1, -1, -1):
            at = (self.fields.newest - back + REMEMBERED) % REMEMBERED
            found.append(batch_metadata(&self.fields.batches[at]))
        return tuple(found)

    def take_epoch(self, int16_t epoch):
        if epoch != self.fields.epoch:
            self.fields.epoch = epoch
            self.fields.count = 0

    def copy(self):
        cdef ProducerEntry other = ProducerEntry(self.producer_id)
        other.coordinator_epoch = self.coordinator_epoch
        other.fields = self.fields
        return other

    def end_transaction(self, int16_t epoch, int coordinator_epoch, int64_t timestamp):
        start = self.transaction_start
        self.take_epoch(epoch)
        self.fields.transaction_start = -1
        self.fields.last_timestamp = timestamp
        self.coordinator_epoch = coordinator_epoch
        return start

    def awaits(self, batch):
        cdef ProducerFields *f = &self.fields
        return (
            f.count > 0
            and f.epoch == field(batch, 6)
            and ((<int64_t>f.batches[f.newest].last_sequence + 1) & LAST_SEQUENCE) == field(batch, 7)
            and (f.transaction_start >= 0) == ((field(batch, 2) & 0x10) != 0)
        )

    def awaits_first(self, batch):
        cdef ProducerFields *f = &self.fields
        cdef int64_t last_sequence = f.batches[f.newest].last_sequence if f.count else -1
        return (
            f.epoch == field(batch, 6)
            and ((last_sequence + 1) & LAST_SEQUENCE) == field(batch, 7)
            and f.transaction_start < 0
            and (field(batch, 2) & 0x30) == 0x10
        )

    def append(self, batch, int64_t last_offset):
        cdef bytes before = self.state()
        cdef int64_t sequence = field(batch, 7), delta = field(batch, 3)
        self.take_epoch(<int16_t>field(batch, 6))
        self.note(
            <int32_t>((sequence + delta) & LAST_SEQUENCE) if sequence >= 0 else -1, last_offset,
            <int32_t>delta, field(batch, 4),
        )
        return before

    cpdef note(self, int32_t last_sequence, int64_t last_offset, int32_t offset_delta, int64_t timestamp):
        cdef ProducerFields *f = &self.fields
        cdef Noted *noted
        f.newest = f.newest + 1 if f.newest + 1 < REMEMBERED else 0
        if f.count < REMEMBERED:
            f.count += 1
        noted = &f.batches[f.newest]
        noted.last_sequence = last_sequence
        noted.last_offset = last_offset
        noted.offset_delta = offset_delta
        noted.timestamp = timestamp
        f.last_timestamp = timestamp

    cpdef bytes state(self):
        return PyBytes_FromStringAndSize(<const char *>&self.fields, sizeof(ProducerFields))

    def restore(self, bytes state not None):
        if PyBytes_GET_SIZE(state) != sizeof(ProducerFields):
            raise ValueError(f"a state of {len(state)} bytes is not one of a producer")
        memcpy(&self.fields, PyBytes_AS_STRING(state), sizeof(ProducerFields))

    def find_duplicate(self, int64_t epoch, int64_t first_sequence, int64_t offset_delta):
        cdef int64_t last_sequence = (first_sequence + offset_delta) & LAST_SEQUENCE
        cdef Noted *noted
        cdef int back
        if epoch != self.fields.epoch:
            return None
        for back in range(self.fields.count):
            noted = &self.fields.batches[(self.fields.newest - back + REMEMBERED) % REMEMBERED]
            if noted.offset_delta == offset_delta and noted.last_sequence == last_sequence:
                return batch_metadata(noted)
        return None


cdef object batch_metadata(const Noted *noted):
    return BatchMetadata(noted.last_sequence, noted.last_offset, noted.offset_delta, noted.timestamp)
