# Hashes that choose partitions: of keys (murmur2), and of names in internal topics.

cdef int32_t murmur2_of(const uint8_t *p, Py_ssize_t left) noexcept nogil:
    cdef uint32_t h, k
    cdef uint32_t m = 0x5BD1E995
    h = <uint32_t>0x9747B28C ^ <uint32_t>left
    while left >= 4:
        k = (<uint32_t>p[0] | <uint32_t>p[1] << 8 | <uint32_t>p[2] << 16 | <uint32_t>p[3] << 24) * m
        h = (h * m) ^ ((k ^ (k >> 24)) * m)
        p += 4
        left -= 4
    if left == 3:
        h ^= <uint32_t>p[2] << 16
    if left >= 2:
        h ^= <uint32_t>p[1] << 8
    if left >= 1:
        h = (h ^ p[0]) * m
    h = (h ^ (h >> 13)) * m
    return <int32_t>(h ^ (h >> 15))


def murmur2(data):
    cdef Py_buffer view
    cdef int32_t found
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    found = murmur2_of(<const uint8_t *>view.buf, view.len)
    PyBuffer_Release(&view)
    return found


def java_string_hash(str text not None):
    cdef uint32_t h = 0
    cdef uint32_t point
    for point in text:
        if point > 0xFFFF:
            point -= 0x10000
            h = h * 31 + 0xD800 + (point >> 10)
            h = h * 31 + 0xDC00 + (point & 0x3FF)
        else:
            h = h * 31 + point
    return <int32_t>h
