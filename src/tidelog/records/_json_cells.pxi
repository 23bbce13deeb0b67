# The columns of values, and the numbers that a pass over a row keeps.

cdef struct Cells:
    uint8_t *data
    int64_t size
    int64_t room

cdef struct Node:
    int kind
    int required
    int width
    int precision
    int scale
    int first
    int count
    const uint8_t *name
    int64_t name_length
    Cells data
    Cells ends
    Cells bits
    int64_t rows
    int64_t nulls
    int64_t seen
    # The state to restore when a row is undone.
    int64_t saved_rows
    int64_t saved_nulls
    int64_t saved_size

cdef struct Pass:
    Node *nodes
    int node_count
    int64_t stamp
    int error
    int error_node
    const uint8_t *error_at


cdef class _Bytes:
    """Memory that was taken from a column. It is freed with the last view of it."""

    cdef uint8_t *data
    cdef int64_t size

    def __dealloc__(self):
        free(self.data)

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.data, self.size, 0, flags)


cdef _Bytes taken(Cells *cells, int64_t size):
    cdef _Bytes made = _Bytes()
    if cells.data == NULL:
        cells.data = <uint8_t *>calloc(1, 64)
        if cells.data == NULL:
            raise MemoryError
    made.data = cells.data
    made.size = size
    memset(cells, 0, sizeof(Cells))
    return made


cdef inline bint grow(Cells *cells, int64_t room) noexcept nogil:
    """Make room for this many bytes in total; new bytes are zero."""
    cdef uint8_t *data
    if room <= cells.room:
        return True
    room = max(room, cells.room + cells.room // 2 + 64)
    data = <uint8_t *>realloc(cells.data, room)
    if data == NULL:
        return False
    memset(data + cells.room, 0, room - cells.room)
    cells.data = data
    cells.room = room
    return True


cdef inline const uint8_t *fail(Pass *run, int error, int node, const uint8_t *at) noexcept nogil:
    run.error = error
    run.error_node = node
    run.error_at = at
    return NULL


cdef inline bint has_ends(int kind) noexcept nogil:
    return kind == STRING or kind == BINARY or kind == ARRAY or kind == MAP


cdef inline bint reserve_row(Node *node) noexcept nogil:
    """Make room for one more row in the parts that every kind has."""
    cdef int64_t rows = node.rows + 1
    if not grow(&node.bits, (rows >> 3) + 1):
        return False
    if node.kind == STRUCT:
        return True
    if has_ends(node.kind):
        return grow(&node.ends, 4 * rows + 4)
    if node.kind == BOOL:
        return grow(&node.data, (rows >> 3) + 1)
    return grow(&node.data, node.width * rows)


cdef inline void valid(Node *node) noexcept nogil:
    """Count the row that was just written, as valid."""
    node.bits.data[node.rows >> 3] |= <uint8_t>(1 << (node.rows & 7))
    node.rows += 1


cdef inline void put_end(Pass *run, Node *node) noexcept nogil:
    """Write the end of the row that is counted next."""
    cdef int64_t end
    if node.kind == STRING or node.kind == BINARY:
        end = node.data.size
    else:
        end = run.nodes[node.first].rows
    (<int32_t *>node.ends.data)[node.rows + 1] = <int32_t>end


cdef bint put_null(Pass *run, Node *node) noexcept nogil:
    cdef int child
    if not reserve_row(node):
        return False
    if has_ends(node.kind):
        put_end(run, node)
    elif node.kind == STRUCT:
        for child in range(node.first, node.first + node.count):
            if not put_null(run, &run.nodes[child]):
                return False
    elif node.kind != BOOL:
        memset(node.data.data + node.width * node.rows, 0, node.width)
    node.rows += 1
    node.nulls += 1
    return True
