# Large blocks of memory that are reused: fresh memory from the system costs more than the work in it. The GIL
# protects the list.

cdef enum:
    KEPT_BLOCKS = 16
    KEPT_BYTES = 64 * 1024 * 1024
    SMALLEST_KEPT = 64 * 1024


cdef uint8_t *kept_data[KEPT_BLOCKS]
cdef Py_ssize_t kept_room[KEPT_BLOCKS]
cdef int kept_count = 0
cdef Py_ssize_t kept_bytes = 0


cdef uint8_t *take_block(Py_ssize_t *room) except NULL:
    """A block of at least this many bytes, and its size."""
    global kept_count, kept_bytes
    cdef int index
    cdef int best = -1
    cdef Py_ssize_t wanted = room[0]
    cdef Py_ssize_t step = SMALLEST_KEPT
    cdef void *data
    if wanted >= SMALLEST_KEPT:
        for index in range(kept_count):
            if kept_room[index] >= wanted and (best < 0 or kept_room[index] < kept_room[best]):
                best = index
        if best >= 0 and kept_room[best] <= 8 * wanted:
            data = kept_data[best]
            room[0] = kept_room[best]
            kept_bytes -= room[0]
            kept_count -= 1
            kept_data[best] = kept_data[kept_count]
            kept_room[best] = kept_room[kept_count]
            return <uint8_t *>data
        while 8 * step < wanted:
            step *= 2
        room[0] = (wanted + step - 1) // step * step  # round sizes, which others can reuse
    data = PyMem_Realloc(NULL, max(room[0], 1))
    if data == NULL:
        raise MemoryError
    return <uint8_t *>data


cdef void give_block(uint8_t *data, Py_ssize_t room) noexcept:
    global kept_count, kept_bytes
    if room >= SMALLEST_KEPT and kept_count < KEPT_BLOCKS and kept_bytes + room <= KEPT_BYTES:
        kept_data[kept_count] = data
        kept_room[kept_count] = room
        kept_count += 1
        kept_bytes += room
    else:
        PyMem_Free(data)


cdef class Block:
    """Memory of a fixed size to write into. Its initial content is undefined."""

    cdef uint8_t *data
    cdef Py_ssize_t room
    cdef Py_ssize_t size

    def __cinit__(self, Py_ssize_t size):
        if size < 0:
            raise ValueError(f"a block of {size} bytes")
        self.room = size
        self.data = take_block(&self.room)
        self.size = size

    def __dealloc__(self):
        if self.data != NULL:
            give_block(self.data, self.room)

    def __len__(self):
        return self.size

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.data, self.size, 0, flags)
