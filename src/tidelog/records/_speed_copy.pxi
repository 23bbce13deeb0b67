# The batches that a follower copies from its leader: their headers, their checksums, and what they change.

cdef enum:
    COPIED_FIELDS = 9
    TRANSACTIONAL = 0x10


cdef int read_copied(
    const uint8_t *base, Py_ssize_t size, int64_t expected, int64_t *out, Py_ssize_t *count, Py_ssize_t *end,
) noexcept nogil:
    # Without `out` the batches are only counted.
    cdef Py_ssize_t at = 0, total
    cdef int64_t first, last
    cdef const uint8_t *p
    count[0] = 0
    while size - at >= HEADER_SIZE:
        p = base + at
        total = <Py_ssize_t><int32_t>tl_get32(p + 8) + LENGTH_OVERHEAD
        end[0] = at
        if total < HEADER_SIZE:
            return BAD_LENGTH
        if total > size - at:
            return OK
        if p[16] != 2:
            return OLD_MAGIC if p[16] < 2 else UNKNOWN_MAGIC
        first = <int64_t>tl_get64(p)
        last = tl_add64(first, <int64_t><int32_t>tl_get32(p + 23))
        if first < expected or last < first:
            return BAD_OFFSET_RANGE
        if out != NULL:
            out[0] = first
            out[1] = last
            out[2] = total
            out[3] = <int32_t>tl_get32(p + 12)
            out[4] = <int64_t>tl_get64(p + 35)
            out[5] = <int16_t>tl_get16(p + 21)
            out[6] = <int64_t>tl_get64(p + 43)
            out[7] = <int16_t>tl_get16(p + 51)
            out[8] = <int32_t>tl_get32(p + 53)
            out += COPIED_FIELDS
        expected = tl_add64(last, 1)
        count[0] += 1
        at += total
    end[0] = at
    return OK


def copied_batches(buf):
    cdef Py_buffer view
    cdef Py_ssize_t count = 0, end = 0
    cdef int status
    cdef array columns
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
    try:
        status = read_copied(<const uint8_t *>view.buf, view.len, INT64_MIN, NULL, &count, &end)
        columns = clone(_LONGS, count * COPIED_FIELDS, False)
        read_copied(<const uint8_t *>view.buf, end, INT64_MIN, <int64_t *>columns.data.as_voidptr, &count, &end)
    finally:
        PyBuffer_Release(&view)
    return status, columns, end


cdef Py_ssize_t find_bad_crc(const uint8_t *base, Py_ssize_t at, Py_ssize_t end) noexcept nogil:
    cdef Py_ssize_t total
    while end - at >= HEADER_SIZE:
        total = <Py_ssize_t><int32_t>tl_get32(base + at + 8) + LENGTH_OVERHEAD
        if total < HEADER_SIZE or total > end - at:
            return at
        if tl_crc(base + at + CRC_START, total - CRC_START) != tl_get32(base + at + 17):
            return at
        at += total
    return -1


def first_bad_crc(buf):
    cdef Py_buffer view
    cdef Py_ssize_t found
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
    try:
        if view.len < LONG_CRC:
            return find_bad_crc(<const uint8_t *>view.buf, 0, view.len)
        with nogil:
            found = find_bad_crc(<const uint8_t *>view.buf, 0, view.len)
        return found
    finally:
        PyBuffer_Release(&view)


cdef const int64_t *copied_rows(array columns, Py_ssize_t first, Py_ssize_t stop) except NULL:
    if columns.ob_descr.itemsize != 8 or not 0 <= first <= stop <= len(columns) // COPIED_FIELDS:
        raise ValueError(f"batches {first} to {stop} of {len(columns) // COPIED_FIELDS}")
    return <const int64_t *>columns.data.as_voidptr + first * COPIED_FIELDS


def copied_run(array columns not None, Py_ssize_t first, tuple limits not None):
    cdef int64_t position, max_position, latest, max_offset, start
    cdef Py_ssize_t stop = len(columns) // COPIED_FIELDS
    cdef const int64_t *row = copied_rows(columns, first, stop)
    position, max_position, latest, max_offset = limits
    start = position
    while first < stop:
        if position > 0 and (position + row[2] > max_position or row[4] > latest):
            break
        if row[1] > max_offset:
            break
        position += row[2]
        first += 1
        row += COPIED_FIELDS
    return first, position - start


def note_copied(
    array columns not None, Py_ssize_t first, Py_ssize_t stop, tuple end not None, int64_t latest_epoch,
    dict entries not None,
):
    cdef int64_t position, since_index, index_interval, greatest, offset_of_greatest
    cdef const int64_t *row = copied_rows(columns, first, stop)
    cdef list index = [], epochs = []
    cdef ProducerEntry entry
    position, since_index, index_interval, greatest, offset_of_greatest = end
    while first < stop:
        if row[6] >= 0:
            if row[5] & CONTROL:
                break
            found = entries.get(row[6])
            if row[5] & TRANSACTIONAL and (found is None or (<ProducerEntry?>found).fields.transaction_start < 0):
                break
            if found is None:
                entry = ProducerEntry(row[6], <int16_t>row[7])
                entries[row[6]] = entry
            else:
                entry = found
            entry.take_epoch(<int16_t>row[7])
            entry.note(
                <int32_t>((row[8] + row[1] - row[0]) & LAST_SEQUENCE) if row[8] >= 0 else -1, row[1],
                <int32_t>(row[1] - row[0]), row[4],
            )
        if row[3] > latest_epoch:
            latest_epoch = row[3]
            epochs.append((row[3], row[0]))
        if row[4] > greatest:
            greatest = row[4]
            offset_of_greatest = row[1]
        if since_index > index_interval:
            index.append((row[1], position, greatest, offset_of_greatest))
            since_index = 0
        since_index += row[2]
        position += row[2]
        first += 1
        row += COPIED_FIELDS
    return first, position, since_index, greatest, offset_of_greatest, index, epochs
