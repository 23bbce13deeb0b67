# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The compiled twin of `_pure_json`: JSON values into columns in Arrow's layout, in one pass over the bytes.

A row with an error is undone and has nulls, and its reason is returned. The other rows are not affected.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcmp, memcpy, memset

# The numbers of `_pure_json`, which explains them.
cdef enum:
    BOOL = 0
    INT8 = 1
    INT16 = 2
    INT32 = 3
    INT64 = 4
    FLOAT = 5
    DOUBLE = 6
    STRING = 7
    BINARY = 8
    DATE = 9
    TIMESTAMP = 10
    LOCAL_TIMESTAMP = 11
    DECIMAL = 12
    ARRAY = 13
    MAP = 14
    STRUCT = 15

cdef enum:
    FINE = 0
    NO_VALUE = 1
    SYNTAX = 2
    NO_OBJECT = 3
    WRONG_TYPE = 4
    OUT_OF_RANGE = 5
    IS_NULL = 6
    MISSING = 7
    TWICE = 8
    TOO_DEEP = 9
    BAD_CONTENT = 10
    NO_MEMORY = 11

cdef enum:
    MAX_DEPTH = 128
    MAX_DIGITS = 100

include "_json_cells.pxi"
include "_json_syntax.pxi"
include "_json_scalars.pxi"
include "_json_nested.pxi"

# Rows


cdef void save(Pass *run) noexcept nogil:
    cdef int index
    cdef Node *node
    for index in range(1, run.node_count):
        node = &run.nodes[index]
        node.saved_rows = node.rows
        node.saved_nulls = node.nulls
        node.saved_size = node.data.size


cdef void undo(Pass *run) noexcept nogil:
    """Undo the row: restore the columns to their state before it."""
    cdef int index
    cdef int64_t row
    cdef Node *node
    for index in range(1, run.node_count):
        node = &run.nodes[index]
        # The unfinished row may have set its bit as well.
        for row in range(node.saved_rows, node.rows + 1):
            if row >> 3 < node.bits.room:
                node.bits.data[row >> 3] &= <uint8_t>~(1 << (row & 7))
            if node.kind == BOOL and row >> 3 < node.data.room:
                node.data.data[row >> 3] &= <uint8_t>~(1 << (row & 7))
        node.rows = node.saved_rows
        node.nulls = node.saved_nulls
        node.data.size = node.saved_size


cdef void read_row(Pass *run, const uint8_t *p, const uint8_t *end) noexcept:
    """Put one value into the columns. After an error, which is in `error`, the columns are as before."""
    cdef const uint8_t *q
    cdef int error, node
    cdef const uint8_t *at
    run.error = FINE
    save(run)
    q = tl_space(p, end)
    if q >= end:
        fail(run, SYNTAX, 0, q)
    elif q[0] != c'{':
        if skip_value(run, q, end, 0) != NULL:
            fail(run, NO_OBJECT, 0, q)
    else:
        q = read_struct(run, 0, q, end, 0)
        if q != NULL and tl_space(q, end) != end:
            fail(run, SYNTAX, 0, tl_space(q, end))
    if run.error == FINE or run.error == NO_MEMORY:
        return
    if run.error != SYNTAX:
        # A value with invalid syntax is reported as such, even if an earlier part of it has another error.
        error, node, at = run.error, run.error_node, run.error_at
        q = skip_value(run, tl_space(p, end), end, 0)
        if q == NULL:
            if run.error == TOO_DEEP:
                run.error_node = 0
        elif tl_space(q, end) != end:
            fail(run, SYNTAX, 0, tl_space(q, end))
        else:
            run.error, run.error_node, run.error_at = error, node, at
    undo(run)


cdef class JsonReader:
    cdef Pass run
    cdef list names
    cdef object fields

    def __cinit__(self, fields):
        self.fields = fields
        self.names = []
        cdef list order = [(STRUCT, True, b"", 0, 0, fields)]
        cdef int index = 0
        cdef int at
        cdef Node *node
        while index < len(order):  # the children of a node are adjacent
            order.extend(order[index][5])
            index += 1
        self.run.node_count = len(order)
        self.run.nodes = <Node *>calloc(len(order), sizeof(Node))
        if self.run.nodes == NULL:
            raise MemoryError
        at = 1
        for index in range(len(order)):
            kind, required, name, precision, scale, children = order[index]
            node = &self.run.nodes[index]
            node.kind, node.required, node.precision, node.scale = kind, required, precision, scale
            node.width = (0, 1, 2, 4, 8, 4, 8, 0, 0, 4, 8, 8, 16, 0, 0, 0)[kind]
            node.first, node.count = at, len(children)
            at += node.count
            self.names.append(name)
            node.name = <const uint8_t *>PyBytes_AS_STRING(name)
            node.name_length = PyBytes_GET_SIZE(name)

    def __dealloc__(self):
        cdef int index
        if self.run.nodes != NULL:
            for index in range(self.run.node_count):
                free(self.run.nodes[index].data.data)
                free(self.run.nodes[index].ends.data)
                free(self.run.nodes[index].bits.data)
            free(self.run.nodes)

    def read(self, ends, data, bits, Py_ssize_t first, Py_ssize_t rows):
        cdef Py_buffer ends_view, data_view, bits_view
        PyObject_GetBuffer(ends, &ends_view, PyBUF_SIMPLE)
        try:
            PyObject_GetBuffer(data, &data_view, PyBUF_SIMPLE)
            try:
                PyObject_GetBuffer(b"" if bits is None else bits, &bits_view, PyBUF_SIMPLE)
                try:
                    return self.read_views(&ends_view, &data_view, &bits_view, bits is not None, first, rows)
                finally:
                    PyBuffer_Release(&bits_view)
            finally:
                PyBuffer_Release(&data_view)
        finally:
            PyBuffer_Release(&ends_view)

    cdef list read_views(
        self, Py_buffer *ends, Py_buffer *data, Py_buffer *bits, bint has_bits, Py_ssize_t first, Py_ssize_t rows
    ):
        cdef const int32_t *places = <const int32_t *>ends.buf
        cdef const uint8_t *base = <const uint8_t *>data.buf
        cdef const uint8_t *known = <const uint8_t *>bits.buf
        cdef list errors = []
        cdef Py_ssize_t row
        cdef int32_t start, stop
        cdef Pass *run = &self.run
        if first < 0 or rows < 0 or ends.len < 4 * (first + rows + 1):
            raise ValueError(f"rows {first} to {first + rows} are outside of the column")
        if has_bits and bits.len < (first + rows + 7) >> 3:
            raise ValueError("the column has fewer validity bits than rows")
        for row in range(first, first + rows):
            start, stop = places[row], places[row + 1]
            if not 0 <= start <= stop <= data.len:
                raise ValueError(f"row {row} lies outside of the column's data")
            if has_bits and not known[row >> 3] >> (row & 7) & 1:
                run.error, run.error_node, run.error_at = NO_VALUE, 0, base + start
            else:
                read_row(run, base + start, base + stop)
            if run.error == FINE:
                continue
            if run.error == NO_MEMORY:
                raise MemoryError("the columns of JSON values")
            errors.append((row - first, run.error, run.error_node, run.error_at - (base + start)))
            self.null_row()
        return errors

    cdef int null_row(self) except -1:
        cdef int index
        for index in range(1, 1 + self.run.nodes[0].count):
            if not put_null(&self.run, &self.run.nodes[index]):
                raise MemoryError("the columns of JSON values")
        return 0

    def take(self):
        cdef list found = []
        cdef int index
        cdef Node *node
        for index in range(1, self.run.node_count):
            node = &self.run.nodes[index]
            bits = taken(&node.bits, (node.rows + 7) >> 3)
            ends = data = None
            if has_ends(node.kind):
                if not grow(&node.ends, 4):
                    raise MemoryError
                ends = taken(&node.ends, 4 * node.rows + 4)
            if node.kind == STRING or node.kind == BINARY:
                data = taken(&node.data, node.data.size)
            elif node.kind == BOOL:
                data = taken(&node.data, (node.rows + 7) >> 3)
            elif node.width:
                data = taken(&node.data, node.width * node.rows)
            found.append((node.rows, node.nulls, bits, ends, data))
            node.rows = node.nulls = 0
        return found
