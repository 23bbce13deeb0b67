# A run of batches for one log: consecutive batches that roll no segment and come from known producers in sequence.

cdef enum:
    CONTROL = 0x20


def lay_out(
    bytearray data not None, Py_ssize_t at, list batches not None, Py_ssize_t first, Py_ssize_t stop,
    int64_t base_offset, int32_t leader_epoch, tuple end not None, dict entries not None, dict verifications not None,
):
    cdef int64_t position, max_position, latest, max_offset, since_index, index_interval
    cdef int64_t size, last_offset, timestamp, last_position, greatest = INT64_MIN, offset_of_greatest = -1
    cdef Py_ssize_t start = at
    cdef uint8_t *p
    cdef ProducerEntry entry
    cdef list offsets = [], undo = []
    cdef bint index_due = False
    position, max_position, latest, max_offset, since_index, index_interval = end
    last_position = position
    if first < 0 or stop > len(batches) or at < 0:
        raise ValueError(f"batches {first} to {stop} of {len(batches)} from byte {at} on")
    while first < stop and not index_due:
        batch = batches[first]
        size = field(batch, 1)
        last_offset = base_offset + field(batch, 3)
        timestamp = field(batch, 4)
        if position + size > max_position or timestamp > latest or last_offset > max_offset:
            break
        if size < HEADER_SIZE or size > len(data) - at:
            raise ValueError(f"a batch of {size} bytes at byte {at} of {len(data)}")
        if field(batch, 5) >= 0:
            producer_id = <object>PyTuple_GET_ITEM(batch, 5)
            found = entries.get(producer_id)
            if found is None or producer_id in verifications or field(batch, 2) & CONTROL:
                break
            entry = found
            if not entry.awaits(batch):
                break
            undo.append((producer_id, entry.append(batch, last_offset)))
        p = <uint8_t *><char *>data + at
        tl_put64(p, <uint64_t>base_offset)
        tl_put32(p + 12, <uint32_t>leader_epoch)
        offsets.append(base_offset)
        if timestamp > greatest:
            greatest = timestamp
            offset_of_greatest = last_offset
        index_due = since_index > index_interval
        since_index += size
        last_position = position
        position += size
        at += size
        base_offset = last_offset + 1
        first += 1
    return offsets, undo, at - start, base_offset, last_position, greatest, offset_of_greatest, index_due
