# Compaction: the map from a key's hash to its last offset, the filter of batches, and the index of the rest.

cdef extern from *:
    """
    /* SipHash-2-4 with a result of 128 bits: who does not know the key cannot make two record keys collide. */
    #define TL_ROTATE(x, b) ((x) << (b) | (x) >> (64 - (b)))
    #define TL_SIPROUND do { \\
        v0 += v1; v1 = TL_ROTATE(v1, 13); v1 ^= v0; v0 = TL_ROTATE(v0, 32); \\
        v2 += v3; v3 = TL_ROTATE(v3, 16); v3 ^= v2; \\
        v0 += v3; v3 = TL_ROTATE(v3, 21); v3 ^= v0; \\
        v2 += v1; v1 = TL_ROTATE(v1, 17); v1 ^= v2; v2 = TL_ROTATE(v2, 32); } while (0)

    static inline uint64_t tl_little64(const uint8_t *p) {
        uint64_t word;
        memcpy(&word, p, 8);
    #if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
        word = __builtin_bswap64(word);
    #endif
        return word;
    }
    static inline void tl_siphash128(const uint8_t *key, const uint8_t *p, size_t n, uint64_t *low, uint64_t *high) {
        uint64_t k0 = tl_little64(key), k1 = tl_little64(key + 8), last = (uint64_t)n << 56;
        uint64_t v0 = k0 ^ 0x736f6d6570736575ull, v1 = k1 ^ 0x646f72616e646f6dull ^ 0xee;
        uint64_t v2 = k0 ^ 0x6c7967656e657261ull, v3 = k1 ^ 0x7465646279746573ull;
        const uint8_t *end = p + (n & ~(size_t)7);
        for (; p < end; p += 8) {
            uint64_t m = tl_little64(p);
            v3 ^= m; TL_SIPROUND; TL_SIPROUND; v0 ^= m;
        }
        for (size_t i = 0; i < (n & 7); i++) last |= (uint64_t)p[i] << (8 * i);
        v3 ^= last; TL_SIPROUND; TL_SIPROUND; v0 ^= last;
        v2 ^= 0xee;
        TL_SIPROUND; TL_SIPROUND; TL_SIPROUND; TL_SIPROUND;
        *low = v0 ^ v1 ^ v2 ^ v3;
        v1 ^= 0xdd;
        TL_SIPROUND; TL_SIPROUND; TL_SIPROUND; TL_SIPROUND;
        *high = v0 ^ v1 ^ v2 ^ v3;
    }

    /* A slot is both halves of the hash and the offset + 1; 0 there means that it is free. */
    enum { TL_SLOT = 24 };
    static inline uint64_t tl_first_slot(uint64_t low, uint64_t slots) { return low % slots; }
    static inline uint8_t *tl_find(uint8_t *table, uint64_t slots, uint64_t low, uint64_t high) {
        uint64_t at = tl_first_slot(low, slots);
        for (uint64_t tries = 0; tries < slots; tries++) {
            uint8_t *slot = table + at * TL_SLOT;
            uint64_t a, b, c;
            memcpy(&c, slot + 16, 8);
            if (c == 0) return slot;
            memcpy(&a, slot, 8);
            memcpy(&b, slot + 8, 8);
            if (a == low && b == high) return slot;
            if (++at == slots) at = 0;
        }
        return 0;
    }
    static inline int64_t tl_get_offset(const uint8_t *slot) {
        uint64_t c;
        memcpy(&c, slot + 16, 8);
        return (int64_t)(c - 1);
    }
    static inline void tl_put_offset(uint8_t *slot, uint64_t low, uint64_t high, int64_t offset) {
        uint64_t c = (uint64_t)offset + 1;
        memcpy(slot, &low, 8);
        memcpy(slot + 8, &high, 8);
        memcpy(slot + 16, &c, 8);
    }
    """
    enum:
        TL_SLOT
    void tl_siphash128(const uint8_t *key, const uint8_t *p, size_t n, uint64_t *low, uint64_t *high) noexcept nogil
    uint8_t *tl_find(uint8_t *table, uint64_t slots, uint64_t low, uint64_t high) noexcept nogil
    int64_t tl_get_offset(const uint8_t *slot) noexcept nogil
    void tl_put_offset(uint8_t *slot, uint64_t low, uint64_t high, int64_t offset) noexcept nogil

cdef enum:
    NOT_PLAIN = 0x37  # compressed, transactional or control


def siphash128(key, data):
    cdef Py_buffer k, view
    cdef uint64_t low, high
    cdef uint8_t out[16]
    cdef int at
    PyObject_GetBuffer(key, &k, PyBUF_SIMPLE)
    try:
        require_key(&k)
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            tl_siphash128(<const uint8_t *>k.buf, <const uint8_t *>view.buf, view.len, &low, &high)
        finally:
            PyBuffer_Release(&view)
    finally:
        PyBuffer_Release(&k)
    for at in range(8):
        out[at] = <uint8_t>(low >> (8 * at))
        out[8 + at] = <uint8_t>(high >> (8 * at))
    return PyBytes_FromStringAndSize(<char *>out, 16)


cdef int require_key(Py_buffer *view) except -1:
    if view.len != 16:
        raise ValueError(f"a hash key has 16 bytes, not {view.len}")
    return 0


cdef struct OffsetTable:
    uint8_t *slots
    uint64_t count
    uint8_t key[16]
    int64_t used
    int64_t limit


cdef int open_table(Py_buffer *view, object key, OffsetTable *table) except -1:
    cdef Py_buffer k
    PyObject_GetBuffer(key, &k, PyBUF_SIMPLE)
    try:
        require_key(&k)
        memcpy(table.key, k.buf, 16)
    finally:
        PyBuffer_Release(&k)
    table.slots = <uint8_t *>view.buf
    table.count = view.len // TL_SLOT
    if table.count == 0:
        raise ValueError(f"an offset map needs at least {<int>TL_SLOT} bytes, not {view.len}")
    return 0


cdef int put_records(
    OffsetTable *table, const uint8_t *p, const uint8_t *end, int64_t count, int64_t base_offset,
    int64_t from_offset, int64_t *latest, int64_t *index,
) noexcept nogil:
    """Put every key with its offset into the map; `latest` is the last offset that is done."""
    cdef Layout r
    cdef uint64_t low, high
    cdef int64_t offset, i
    cdef uint8_t *slot
    cdef int found
    for i in range(count):
        index[0] = i
        found = read_record(&p, end, &r)
        if found != OK:
            return found
        offset = tl_add64(base_offset, r.offset_delta)
        if r.key_length >= 0 and offset >= from_offset:
            tl_siphash128(table.key, r.key, r.key_length, &low, &high)
            slot = tl_find(table.slots, table.count, low, high)
            if slot == NULL:
                return MAP_FULL
            if tl_get_offset(slot) < 0:
                if table.used >= table.limit:
                    return MAP_FULL
                table.used += 1
            tl_put_offset(slot, low, high, offset)
        if offset >= from_offset:
            latest[0] = offset
    index[0] = count if count > 0 else 0
    return OK if p == end else BYTES_LEFT


def map_records(
    table, key, int64_t used, int64_t limit, buf, Py_ssize_t start, Py_ssize_t end, int64_t count,
    int64_t base_offset, int64_t from_offset,
):
    cdef Py_buffer slots, view
    cdef OffsetTable t
    cdef int64_t latest = -1
    cdef int64_t index = 0
    cdef int found
    PyObject_GetBuffer(table, &slots, PyBUF_WRITABLE)
    try:
        open_table(&slots, key, &t)
        t.used = used
        t.limit = limit
        PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
        try:
            require(&view, start, end)
            with nogil:
                found = put_records(
                    &t, <const uint8_t *>view.buf + start, <const uint8_t *>view.buf + end, count,
                    base_offset, from_offset, &latest, &index,
                )
        finally:
            PyBuffer_Release(&view)
    finally:
        PyBuffer_Release(&slots)
    return found, index, t.used, latest


cdef int whole_batch(const uint8_t *p, Py_ssize_t size, Py_ssize_t *total) noexcept nogil:
    """OK, NO_BATCH if the bytes end before the batch does, or the error of the batch."""
    cdef int32_t length
    if size < HEADER_SIZE:
        return NO_BATCH
    length = <int32_t>tl_get32(p + 8)
    if length < HEADER_SIZE - LENGTH_OVERHEAD:
        return BAD_LENGTH
    if p[16] != 2:
        return OLD_MAGIC if p[16] < 2 else UNKNOWN_MAGIC
    total[0] = <Py_ssize_t>length + LENGTH_OVERHEAD
    if total[0] > size:
        return NO_BATCH
    return OK if tl_crc(p + CRC_START, total[0] - CRC_START) == tl_get32(p + 17) else BAD_CRC


cdef int map_plain(
    OffsetTable *table, const uint8_t *base, Py_ssize_t end, int64_t from_offset, Py_ssize_t *at,
    int64_t *latest, int64_t *records,
) noexcept nogil:
    cdef Py_ssize_t total
    cdef int found
    cdef int64_t index, last_offset
    cdef const uint8_t *p
    while True:
        p = base + at[0]
        found = whole_batch(p, end - at[0], &total)
        if found != OK:
            return OK if found == NO_BATCH else found
        if tl_get16(p + 21) & NOT_PLAIN:
            return COMPRESSED
        found = put_records(
            table, p + HEADER_SIZE, p + total, <int32_t>tl_get32(p + 57), <int64_t>tl_get64(p), from_offset,
            latest, &index,
        )
        records[0] += index
        if found != OK:
            return found
        last_offset = tl_add64(<int64_t>tl_get64(p), <int32_t>tl_get32(p + 23))
        if last_offset >= from_offset:
            latest[0] = last_offset
        at[0] += total


def map_batches(
    table, key, int64_t used, int64_t limit, buf, Py_ssize_t start, Py_ssize_t end, int64_t from_offset
):
    cdef Py_buffer slots, view
    cdef OffsetTable t
    cdef int64_t latest = -1
    cdef int64_t records = 0
    cdef Py_ssize_t at = start
    cdef int found
    PyObject_GetBuffer(table, &slots, PyBUF_WRITABLE)
    try:
        open_table(&slots, key, &t)
        t.used = used
        t.limit = limit
        PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
        try:
            require(&view, start, end)
            with nogil:
                found = map_plain(&t, <const uint8_t *>view.buf, end, from_offset, &at, &latest, &records)
        finally:
            PyBuffer_Release(&view)
    finally:
        PyBuffer_Release(&slots)
    return found, at, t.used, latest, records


cdef struct Filter:
    OffsetTable table
    int64_t latest
    int64_t now
    int64_t horizon
    uint8_t *keep
    int64_t read
    int64_t kept
    Py_ssize_t written


cdef struct Kept:
    int64_t count
    bint tombstones
    int64_t first_timestamp
    int64_t greatest


cdef int choose_records(
    Filter *f, const uint8_t *p, const uint8_t *end, int64_t count, int64_t base_offset, int64_t base_timestamp,
    bint drop_tombstones, bint append_time, int64_t max_timestamp, Kept *out,
) noexcept nogil:
    """Choose the records that stay: those after the map, and the last of each key, but no old tombstones."""
    cdef Layout r
    cdef uint64_t low, high
    cdef int64_t offset, timestamp, i
    cdef uint8_t *slot
    cdef bint keep
    cdef int found
    out.count = 0
    out.tombstones = False
    out.first_timestamp = -1
    out.greatest = -1
    for i in range(count):
        found = read_record(&p, end, &r)
        if found != OK:
            return found
        offset = tl_add64(base_offset, r.offset_delta)
        keep = offset > f.latest
        if not keep and r.key_length >= 0 and (r.value_length >= 0 or not drop_tombstones):
            tl_siphash128(f.table.key, r.key, r.key_length, &low, &high)
            slot = tl_find(f.table.slots, f.table.count, low, high)
            keep = offset >= (-1 if slot == NULL else tl_get_offset(slot))
        f.keep[i] = keep
        if keep:
            timestamp = max_timestamp if append_time else tl_add64(base_timestamp, r.timestamp_delta)
            if out.count == 0:
                out.first_timestamp = timestamp
            if timestamp > out.greatest:
                out.greatest = timestamp
            out.count += 1
            if r.value_length < 0:
                out.tombstones = True
    return OK if p == end else BYTES_LEFT


cdef uint8_t *copy_records(
    Filter *f, const uint8_t *p, const uint8_t *end, int64_t count, int64_t old_base, int64_t new_base,
    bint append_time, int64_t max_timestamp, uint8_t *out,
) noexcept nogil:
    """Write the chosen records, with timestamps from `new_base` on; NULL if the bytes changed meanwhile."""
    cdef Layout r
    cdef int64_t i, delta
    cdef int32_t size
    cdef const uint8_t *begin
    cdef const uint8_t *rest
    cdef uint8_t short_varint[10]
    cdef Py_ssize_t length, tail
    for i in range(count):
        begin = p
        if read_record(&p, end, &r) != OK:
            return NULL
        if not f.keep[i]:
            continue
        if old_base == new_base and not append_time:
            memcpy(out, begin, p - begin)
            out += p - begin
            continue
        rest = begin
        if tl_varint32(&rest, end, &size):
            return NULL
        begin = rest
        rest += 1
        if tl_varint64(&rest, end, &delta):
            return NULL
        delta = tl_sub64(max_timestamp if append_time else tl_add64(old_base, delta), new_base)
        length = tl_put_varint(short_varint, delta) - short_varint
        tail = p - rest
        out = tl_put_varint(out, 1 + length + tail)
        out[0] = begin[0]
        memcpy(out + 1, short_varint, length)
        memcpy(out + 1 + length, rest, tail)
        out += 1 + length + tail
    return out


cdef void sign(uint8_t *out, Py_ssize_t total) noexcept nogil:
    tl_put32(out + 8, <uint32_t>(total - LENGTH_OVERHEAD))
    tl_put32(out + 17, tl_crc(out + CRC_START, total - CRC_START))


cdef int filter_batch(Filter *f, const uint8_t *p, Py_ssize_t total, uint8_t *out, Py_ssize_t room, bint retain) noexcept nogil:
    cdef uint16_t attributes = tl_get16(p + 21)
    cdef int64_t base_offset = <int64_t>tl_get64(p)
    cdef int64_t base_timestamp = <int64_t>tl_get64(p + 27)
    cdef int64_t max_timestamp = <int64_t>tl_get64(p + 35)
    cdef int64_t count = <int32_t>tl_get32(p + 57)
    cdef bint append_time = attributes & 0x08
    cdef bint has_horizon = attributes & 0x40
    cdef bint needs_horizon
    cdef int64_t new_base
    cdef uint8_t *end
    cdef Kept kept
    cdef int found
    f.written = 0
    if count < 0 or count > (total - HEADER_SIZE) // SMALLEST_RECORD:
        return CUT_SHORT
    if room < total:
        return NO_ROOM
    if base_offset > f.latest:
        memcpy(out, p, total)
        f.written = total
        f.read += count
        f.kept += count
        return UNCHANGED
    found = choose_records(
        f, p + HEADER_SIZE, p + total, count, base_offset, base_timestamp, has_horizon and base_timestamp <= f.now,
        append_time, max_timestamp, &kept,
    )
    if found != OK:
        return found
    if kept.count == 0:
        f.read += count
        if not retain:
            return DROPPED
        memcpy(out, p, HEADER_SIZE)
        tl_put16(out + 21, attributes & 0x38)
        tl_put64(out + 27, <uint64_t>-1)
        tl_put32(out + 57, 0)
        sign(out, HEADER_SIZE)
        f.written = HEADER_SIZE
        return EMPTIED
    needs_horizon = kept.tombstones and not has_horizon
    if kept.count == count and not needs_horizon:
        memcpy(out, p, total)
        f.written = total
        f.read += count
        f.kept += count
        return UNCHANGED
    if room < total + 15 * kept.count:  # deltas of timestamps may grow with a new base
        return NO_ROOM
    new_base = f.horizon if needs_horizon else base_timestamp if has_horizon else kept.first_timestamp
    end = copy_records(
        f, p + HEADER_SIZE, p + total, count, base_timestamp, new_base, append_time, max_timestamp,
        out + HEADER_SIZE,
    )
    if end == NULL:
        return MALFORMED
    memcpy(out, p, HEADER_SIZE)
    tl_put16(out + 21, attributes | 0x40 if needs_horizon else attributes)
    tl_put64(out + 27, <uint64_t>new_base)
    tl_put64(out + 35, <uint64_t>(max_timestamp if append_time else kept.greatest))
    tl_put32(out + 57, <uint32_t>kept.count)
    sign(out, end - out)
    f.written = end - out
    f.read += count
    f.kept += kept.count
    return REWRITTEN


cdef bint contains(const int64_t *sorted_offsets, Py_ssize_t count, int64_t offset) noexcept nogil:
    cdef Py_ssize_t low = 0, high = count, middle
    while low < high:
        middle = (low + high) // 2
        if sorted_offsets[middle] < offset:
            low = middle + 1
        else:
            high = middle
    return low < count and sorted_offsets[low] == offset


cdef int filter_plain(
    Filter *f, const uint8_t *base, Py_ssize_t end, uint8_t *out, Py_ssize_t out_size, const int64_t *retained,
    Py_ssize_t retained_count, Py_ssize_t *at, Py_ssize_t *out_at,
) noexcept nogil:
    cdef Py_ssize_t total
    cdef int found
    cdef const uint8_t *p
    while True:
        p = base + at[0]
        found = whole_batch(p, end - at[0], &total)
        if found != OK:
            return OK if found == NO_BATCH else found
        if tl_get16(p + 21) & NOT_PLAIN:
            return COMPRESSED
        found = filter_batch(
            f, p, total, out + out_at[0], out_size - out_at[0],
            contains(retained, retained_count, tl_add64(<int64_t>tl_get64(p), <int32_t>tl_get32(p + 23))),
        )
        if found < UNCHANGED:
            return found
        at[0] += total
        out_at[0] += f.written


def filter_batches(
    table, key, buf, Py_ssize_t start, Py_ssize_t end, out, Py_ssize_t out_at, int64_t latest, int64_t now,
    int64_t horizon, array retained, bint single, bint retain,
):
    cdef Py_buffer slots, view, target
    cdef Filter f
    cdef Py_ssize_t at = start
    cdef Py_ssize_t retained_count
    cdef int found
    if retained.typecode != "q":
        raise ValueError(f"offsets are an array of type 'q', not {retained.typecode!r}")
    retained_count = len(retained)
    f.latest = latest
    f.now = now
    f.horizon = horizon
    f.read = 0
    f.kept = 0
    f.written = 0
    f.keep = NULL
    PyObject_GetBuffer(table, &slots, PyBUF_SIMPLE)
    try:
        open_table(&slots, key, &f.table)
        PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
        try:
            require(&view, start, end)
            if single and end - start < HEADER_SIZE:
                raise ValueError(f"a batch takes at least {<int>HEADER_SIZE} bytes, not {end - start}")
            PyObject_GetBuffer(out, &target, PyBUF_WRITABLE)
            try:
                require(&target, out_at, target.len)
                f.keep = <uint8_t *>PyMem_Realloc(NULL, (end - start) // SMALLEST_RECORD + 1)
                if f.keep == NULL:
                    raise MemoryError
                with nogil:
                    if single:
                        found = filter_batch(
                            &f, <const uint8_t *>view.buf + start, end - start, <uint8_t *>target.buf + out_at,
                            target.len - out_at, retain,
                        )
                        out_at += f.written
                    else:
                        found = filter_plain(
                            &f, <const uint8_t *>view.buf, end, <uint8_t *>target.buf, target.len,
                            <const int64_t *>retained.data.as_voidptr, retained_count, &at, &out_at,
                        )
            finally:
                PyMem_Free(f.keep)
                PyBuffer_Release(&target)
        finally:
            PyBuffer_Release(&view)
    finally:
        PyBuffer_Release(&slots)
    return found, at, out_at, f.read, f.kept


def index_batches(
    buf, Py_ssize_t start, Py_ssize_t end, int64_t position, int64_t interval, int64_t since,
    int64_t max_timestamp, int64_t offset_of_max,
):
    cdef Py_buffer view
    cdef const uint8_t *p
    cdef Py_ssize_t at = start
    cdef Py_ssize_t total
    cdef int64_t last_offset, timestamp
    cdef list entries = []
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
    try:
        require(&view, start, end)
        while end - at >= HEADER_SIZE:
            p = <const uint8_t *>view.buf + at
            total = <Py_ssize_t><int32_t>tl_get32(p + 8) + LENGTH_OVERHEAD
            if total < HEADER_SIZE or total > end - at:
                break
            last_offset = tl_add64(<int64_t>tl_get64(p), <int32_t>tl_get32(p + 23))
            timestamp = <int64_t>tl_get64(p + 35)
            if timestamp > max_timestamp:
                max_timestamp = timestamp
                offset_of_max = last_offset
            if since > interval:
                entries.append((last_offset, position + at - start, max_timestamp, offset_of_max))
                since = 0
            since += total
            at += total
    finally:
        PyBuffer_Release(&view)
    if at != end:
        raise ValueError(f"no whole batch at position {at} of {end}")
    return entries, since, max_timestamp, offset_of_max
