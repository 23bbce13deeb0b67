# Columns in Arrow's layout for a producer: finds the partitions of rows, and copies rows into batches.

cdef class ArrowColumn:
    """The bytes of many rows: offsets of 4 or 8 bytes into data, and a validity bit for each row."""

    cdef Py_buffer offsets
    cdef Py_buffer data
    cdef Py_buffer validity
    cdef bint wide
    cdef bint has_validity
    cdef bint has_data
    cdef bint given
    cdef Py_ssize_t first
    cdef Py_ssize_t rows

    def __cinit__(self, offsets, data, validity, Py_ssize_t first, Py_ssize_t rows, bint wide):
        cdef Py_ssize_t row
        if offsets is None:
            self.rows = rows
            return
        if first < 0 or rows < 0:
            raise ValueError(f"rows {first} and on, {rows} of them")
        PyObject_GetBuffer(offsets, &self.offsets, PyBUF_SIMPLE)
        self.given = True
        if data is not None:
            PyObject_GetBuffer(data, &self.data, PyBUF_SIMPLE)
            self.has_data = True
        if validity is not None:
            PyObject_GetBuffer(validity, &self.validity, PyBUF_SIMPLE)
            self.has_validity = True
            if self.validity.len * 8 < first + rows:
                raise ValueError(f"{first + rows} rows and {self.validity.len * 8} bits of validity")
        self.wide = wide
        self.first = first
        self.rows = rows
        if rows and self.offsets.len // (8 if wide else 4) <= first + rows:
            raise ValueError(f"{first + rows} rows and {self.offsets.len // (8 if wide else 4)} offsets")
        for row in range(rows):
            if not 0 <= self.offset(row) <= self.offset(row + 1) <= self.data.len:
                raise ValueError(f"the offsets of row {row} are outside of {self.data.len} bytes")

    def __dealloc__(self):
        if self.given:
            PyBuffer_Release(&self.offsets)
        if self.has_data:
            PyBuffer_Release(&self.data)
        if self.has_validity:
            PyBuffer_Release(&self.validity)

    cdef inline int64_t offset(self, Py_ssize_t row) noexcept:
        if self.wide:
            return (<const int64_t *>self.offsets.buf)[self.first + row]
        return (<const int32_t *>self.offsets.buf)[self.first + row]

    cdef inline const uint8_t *cell(self, Py_ssize_t row, Py_ssize_t *size) noexcept:
        """The position and length of a row's bytes; the length is -1 for a null."""
        cdef Py_ssize_t at = self.first + row
        cdef int64_t start, end
        size[0] = -1
        if not self.given:
            return NULL
        if self.has_validity and not (<const uint8_t *>self.validity.buf)[at >> 3] >> (at & 7) & 1:
            return NULL
        start, end = self.offset(row), self.offset(row + 1)
        if start < 0 or end < start or end > self.data.len:
            return NULL  # the buffers changed after they were checked
        size[0] = end - start
        return <const uint8_t *>self.data.buf + start


cdef class ArrowColumns:
    cdef ArrowColumn key
    cdef ArrowColumn value
    cdef Py_buffer times
    cdef bint has_times
    cdef bytes headers
    cdef Py_ssize_t header_size
    cdef ArrowColumn row_headers
    cdef readonly Py_ssize_t rows
    cdef Py_ssize_t first_time

    def __cinit__(
        self, ArrowColumn key not None, ArrowColumn value not None, times, Py_ssize_t first_time, tuple headers,
        ArrowColumn row_headers=None,
    ):
        cdef _Output out = _Output()
        if key.rows != value.rows:
            raise ValueError(f"{key.rows} keys and {value.rows} values")
        if row_headers is not None and row_headers.rows != value.rows:
            raise ValueError(f"{row_headers.rows} rows of headers and {value.rows} values")
        self.row_headers = row_headers
        self.key = key
        self.value = value
        self.rows = value.rows
        if times is not None:
            PyObject_GetBuffer(times, &self.times, PyBUF_SIMPLE)
            self.has_times = True
            if first_time < 0 or self.times.len // 8 < first_time + self.rows:
                raise ValueError(f"{first_time + self.rows} rows and {self.times.len // 8} timestamps")
        self.first_time = first_time
        out.varint(len(headers))
        for name, content in headers:
            out.content(name)
            out.content(content)
        self.headers = PyBytes_FromStringAndSize(<char *>out.data, out.size)
        self.header_size = out.size

    def __dealloc__(self):
        if self.has_times:
            PyBuffer_Release(&self.times)

    cdef inline int64_t time(self, Py_ssize_t row, int64_t otherwise) noexcept:
        return (<const int64_t *>self.times.buf)[self.first_time + row] if self.has_times else otherwise

    cdef inline const uint8_t *headers_of(self, Py_ssize_t row, Py_ssize_t *size) noexcept:
        """The encoded headers of a row: its own, or the headers that all rows share."""
        cdef const uint8_t *own
        if self.row_headers is not None:
            own = self.row_headers.cell(row, size)
            if size[0] > 0:
                return own
        size[0] = self.header_size
        return <const uint8_t *>PyBytes_AS_STRING(self.headers)

    @property
    def has_keys(self):
        return self.key.given

    def largest(self):
        """The largest size of a row's key, value and headers together."""
        cdef Py_ssize_t row, key_size, value_size, header_size
        cdef Py_ssize_t most = 0
        for row in range(self.rows):
            self.key.cell(row, &key_size)
            self.value.cell(row, &value_size)
            self.headers_of(row, &header_size)
            most = max(most, max(key_size, 0) + max(value_size, 0) + header_size)
        return most

    def row(self, Py_ssize_t number):
        """Key and value of a row."""
        cdef Py_ssize_t key_size, value_size
        cdef const uint8_t *key
        cdef const uint8_t *value
        if not 0 <= number < self.rows:
            raise IndexError(f"row {number} of {self.rows}")
        key = self.key.cell(number, &key_size)
        value = self.value.cell(number, &value_size)
        return slice_or_none(key, <int32_t>key_size), slice_or_none(value, <int32_t>value_size)

    def rows_by_partition(self, int32_t partitions):
        """The rows of each partition, by their keys, and the rows without a key, as int32 arrays."""
        cdef array chosen = clone(_INTS, self.rows, False)
        cdef array counts = clone(_INTS, partitions + 1, True)
        cdef int *to = chosen.data.as_ints
        cdef int *count = counts.data.as_ints
        cdef Py_ssize_t row, size
        cdef const uint8_t *key
        cdef int32_t partition
        if partitions <= 0:
            raise ValueError(f"{partitions} partitions")
        for row in range(self.rows):
            key = self.key.cell(row, &size)
            partition = partitions
            if size >= 0:
                partition = <int32_t>((murmur2_of(key, size) & 0x7FFFFFFF) % <uint32_t>partitions)
            to[row] = partition
            count[partition] += 1
        cdef list found = [clone(_INTS, count[index], False) for index in range(partitions + 1)]
        cdef int **next = <int **>PyMem_Realloc(NULL, (partitions + 1) * sizeof(int *))
        if next == NULL:
            raise MemoryError
        for row in range(partitions + 1):
            next[row] = (<array>found[row]).data.as_ints
        for row in range(self.rows):
            next[to[row]][0] = <int>row
            next[to[row]] += 1
        PyMem_Free(next)
        return found
