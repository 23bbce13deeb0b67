# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The compiled twin of `_pure`: the same functions, the same answers, with C types.

Every read is checked against the end of its range first; nothing here trusts a length or a count.
Long walks and checksums run without the GIL.
"""

from cpython.array cimport array, clone
from cpython.buffer cimport (
    PyBUF_SIMPLE,
    PyBUF_WRITABLE,
    PyBuffer_FillInfo,
    PyBuffer_Release,
    PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.unicode cimport PyUnicode_DecodeUTF8
from cython cimport no_gc
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset
from posix.time cimport CLOCK_REALTIME, clock_gettime, timespec

from tidelog.records._pure import MalformedRecords

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>

    enum { TL_LONG = 4096, TL_SHORT = 256 };
    static uint32_t tl_crc_table[256];
    static uint32_t tl_skip_long[4][256], tl_skip_short[4][256];
    static int tl_crc_hardware = 0;

    /* CRCs are linear: what a run of zero bytes does to one is a matrix of bits, kept as four tables. */
    static uint32_t tl_times(const uint32_t *matrix, uint32_t vector) {
        uint32_t sum = 0;
        for (; vector; vector >>= 1, matrix++) if (vector & 1) sum ^= *matrix;
        return sum;
    }
    static void tl_skip_init(uint32_t table[4][256], int bytes) {
        uint32_t a[32], b[32];
        a[0] = 0x82f63b78u;  /* one zero bit */
        for (int i = 1; i < 32; i++) a[i] = 1u << (i - 1);
        for (int bits = 1; bits < 8 * bytes; bits *= 2) {
            for (int i = 0; i < 32; i++) b[i] = tl_times(a, a[i]);
            memcpy(a, b, sizeof a);
        }
        for (int k = 0; k < 4; k++)
            for (uint32_t n = 0; n < 256; n++) table[k][n] = tl_times(a, n << (8 * k));
    }
    static inline uint32_t tl_skip(uint32_t table[4][256], uint32_t crc) {
        return table[0][crc & 0xff] ^ table[1][crc >> 8 & 0xff] ^ table[2][crc >> 16 & 0xff] ^ table[3][crc >> 24];
    }

    #if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
    #include <nmmintrin.h>
    __attribute__((target("sse4.2")))
    static uint32_t tl_crc_fast(uint32_t crc, const uint8_t *p, size_t n) {
        uint64_t c = crc, word;
        /* The instruction takes three cycles but one can start in each: three runs go side by side. */
        for (size_t run = TL_LONG; run >= TL_SHORT; run /= TL_LONG / TL_SHORT) {
            uint32_t (*table)[256] = run == TL_LONG ? tl_skip_long : tl_skip_short;
            while (n >= 3 * run) {
                uint64_t c1 = 0, c2 = 0, w1, w2;
                const uint8_t *end = p + run;
                for (; p < end; p += 8) {
                    memcpy(&word, p, 8); memcpy(&w1, p + run, 8); memcpy(&w2, p + 2 * run, 8);
                    c = _mm_crc32_u64(c, word); c1 = _mm_crc32_u64(c1, w1); c2 = _mm_crc32_u64(c2, w2);
                }
                c = tl_skip(table, (uint32_t)c) ^ c1;
                c = tl_skip(table, (uint32_t)c) ^ c2;
                p += 2 * run;
                n -= 3 * run;
            }
        }
        while (n >= 8) { memcpy(&word, p, 8); c = _mm_crc32_u64(c, word); p += 8; n -= 8; }
        crc = (uint32_t)c;
        while (n--) crc = _mm_crc32_u8(crc, *p++);
        return crc;
    }
    static int tl_has_crc(void) { return __builtin_cpu_supports("sse4.2"); }
    #elif defined(__aarch64__) && defined(__ARM_FEATURE_CRC32)
    #include <arm_acle.h>
    static uint32_t tl_crc_fast(uint32_t crc, const uint8_t *p, size_t n) {
        uint64_t word;
        while (n >= 8) { memcpy(&word, p, 8); crc = __crc32cd(crc, word); p += 8; n -= 8; }
        while (n--) crc = __crc32cb(crc, *p++);
        return crc;
    }
    static int tl_has_crc(void) { return 1; }
    #else
    static uint32_t tl_crc_fast(uint32_t crc, const uint8_t *p, size_t n) { (void)p; (void)n; return crc; }
    static int tl_has_crc(void) { return 0; }
    #endif

    static void tl_crc_init(void) {
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t c = i;
            for (int k = 0; k < 8; k++) c = c & 1 ? (c >> 1) ^ 0x82f63b78u : c >> 1;
            tl_crc_table[i] = c;
        }
        tl_skip_init(tl_skip_long, TL_LONG);
        tl_skip_init(tl_skip_short, TL_SHORT);
        tl_crc_hardware = tl_has_crc();
    }

    static uint32_t tl_crc(const uint8_t *p, size_t n) {
        uint32_t crc = 0xffffffffu;
        if (tl_crc_hardware) return ~tl_crc_fast(crc, p, n);
        while (n--) crc = tl_crc_table[(crc ^ *p++) & 0xff] ^ (crc >> 8);
        return ~crc;
    }

    static inline uint16_t tl_get16(const uint8_t *p) { return (uint16_t)(p[0] << 8 | p[1]); }
    static inline uint32_t tl_get32(const uint8_t *p) {
        return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
    }
    static inline uint64_t tl_get64(const uint8_t *p) { return (uint64_t)tl_get32(p) << 32 | tl_get32(p + 4); }
    static inline void tl_put16(uint8_t *p, uint16_t v) { p[0] = (uint8_t)(v >> 8); p[1] = (uint8_t)v; }
    static inline void tl_put32(uint8_t *p, uint32_t v) {
        p[0] = (uint8_t)(v >> 24); p[1] = (uint8_t)(v >> 16); p[2] = (uint8_t)(v >> 8); p[3] = (uint8_t)v;
    }
    static inline void tl_put64(uint8_t *p, uint64_t v) { tl_put32(p, (uint32_t)(v >> 32)); tl_put32(p + 4, (uint32_t)v); }

    /* A zigzag varint before `end`: 0, or 1 if the bytes end inside of it, or 2 if it is longer than its type. */
    static inline int tl_varint32(const uint8_t **at, const uint8_t *end, int32_t *value) {
        const uint8_t *p = *at;
        uint32_t raw;
        if (p < end && p[0] < 0x80) { raw = p[0]; *at = p + 1; }
        else {
            int shift = 0;
            raw = 0;
            for (;;) {
                if (p >= end) return 1;
                uint8_t b = *p++;
                raw |= (uint32_t)(b & 0x7f) << shift;
                if (b < 0x80) break;
                shift += 7;
                if (shift >= 35) return 2;
            }
            *at = p;
        }
        *value = (int32_t)((raw >> 1) ^ (0u - (raw & 1)));
        return 0;
    }
    static inline int tl_varint64(const uint8_t **at, const uint8_t *end, int64_t *value) {
        const uint8_t *p = *at;
        uint64_t raw = 0;
        int shift = 0;
        for (;;) {
            if (p >= end) return 1;
            uint8_t b = *p++;
            raw |= (uint64_t)(b & 0x7f) << shift;
            if (b < 0x80) break;
            shift += 7;
            if (shift >= 70) return 2;
        }
        *at = p;
        *value = (int64_t)((raw >> 1) ^ (0ull - (raw & 1)));
        return 0;
    }
    static inline uint8_t *tl_put_unsigned(uint8_t *p, uint64_t raw) {
        while (raw > 0x7f) { *p++ = (uint8_t)(raw | 0x80); raw >>= 7; }
        *p++ = (uint8_t)raw;
        return p;
    }
    static inline uint8_t *tl_put_varint(uint8_t *p, int64_t value) {
        return tl_put_unsigned(p, ((uint64_t)value << 1) ^ (uint64_t)(value >> 63));
    }
    static inline int64_t tl_add64(int64_t a, int64_t b) { return (int64_t)((uint64_t)a + (uint64_t)b); }
    static inline int64_t tl_sub64(int64_t a, int64_t b) { return (int64_t)((uint64_t)a - (uint64_t)b); }
    """
    void tl_crc_init() noexcept nogil
    int tl_crc_hardware
    uint32_t tl_crc(const uint8_t *p, size_t n) noexcept nogil
    uint16_t tl_get16(const uint8_t *p) noexcept nogil
    uint32_t tl_get32(const uint8_t *p) noexcept nogil
    uint64_t tl_get64(const uint8_t *p) noexcept nogil
    void tl_put16(uint8_t *p, uint16_t v) noexcept nogil
    void tl_put32(uint8_t *p, uint32_t v) noexcept nogil
    void tl_put64(uint8_t *p, uint64_t v) noexcept nogil
    int tl_varint32(const uint8_t **at, const uint8_t *end, int32_t *value) noexcept nogil
    int tl_varint64(const uint8_t **at, const uint8_t *end, int64_t *value) noexcept nogil
    uint8_t *tl_put_unsigned(uint8_t *p, uint64_t raw) noexcept nogil
    uint8_t *tl_put_varint(uint8_t *p, int64_t value) noexcept nogil
    int64_t tl_add64(int64_t a, int64_t b) noexcept nogil
    int64_t tl_sub64(int64_t a, int64_t b) noexcept nogil

cdef extern from "Python.h":
    object tuple_new "PyTuple_Type.tp_new"(type kind, object args, void *kwargs)

tl_crc_init()

# The numbers of `_pure`, where their meaning stands.
cdef enum:
    OK = 0
    COMPRESSED = 1
    NO_BATCH = 2
    BAD_LENGTH = 3
    OLD_MAGIC = 4
    SECOND_BATCH = 5
    BASE_OFFSET = 6
    TOO_LARGE = 7
    BAD_CRC = 8
    UNKNOWN_CODEC = 9
    BAD_OFFSET_RANGE = 10
    BAD_COUNT = 11
    COUNT_MISMATCH = 12
    CONTROL_BATCH = 13
    BAD_SEQUENCE = 14
    APPEND_TIME = 15
    MALFORMED = 16
    CUT_SHORT = 17
    BYTES_LEFT = 18
    OFFSET_DELTA = 19
    UNKNOWN_MAGIC = 20
    RECORD_ERRORS = 21

cdef enum:
    HEADER_SIZE = 61
    LENGTH_OVERHEAD = 12
    CRC_START = 21
    SMALLEST_RECORD = 7
    LONG_WALK = 4096  # bytes from which on giving up the GIL costs less than keeping it
    LONG_CRC = 32768


cdef int require(Py_buffer *view, Py_ssize_t start, Py_ssize_t end) except -1:
    if not 0 <= start <= end <= view.len:
        raise ValueError(f"range {start}:{end} is outside of a buffer of {view.len} bytes")
    return 0


# Varints and checksums


def read_varint(buf, Py_ssize_t pos, Py_ssize_t end):
    cdef Py_buffer view
    cdef const uint8_t *p
    cdef int64_t value
    cdef int bad
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
    try:
        require(&view, pos, end)
        p = <const uint8_t *>view.buf + pos
        bad = tl_varint64(&p, <const uint8_t *>view.buf + end, &value)
        if bad:
            raise ValueError(f"no varint at position {pos}")
        return value, p - <const uint8_t *>view.buf
    finally:
        PyBuffer_Release(&view)


def encode_varint(int64_t value):
    cdef uint8_t out[10]
    cdef uint8_t *end = tl_put_varint(out, value)
    return PyBytes_FromStringAndSize(<char *>out, end - out)


cdef uint32_t crc_of(object buf, const uint8_t *base, Py_ssize_t start, Py_ssize_t end) except? 0:
    cdef uint32_t value
    if end - start < LONG_CRC:
        return tl_crc(base + start, end - start)
    if tl_crc_hardware:
        with nogil:
            value = tl_crc(base + start, end - start)
        return value
    from crc32c import crc32c  # slow to import, and needed only where the processor has no instruction for it

    return crc32c(memoryview(buf)[start:end])


def crc(buf, Py_ssize_t start, Py_ssize_t end):
    cdef Py_buffer view
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
    try:
        require(&view, start, end)
        return crc_of(buf, <const uint8_t *>view.buf, start, end)
    finally:
        PyBuffer_Release(&view)


def patch_header(buf, Py_ssize_t pos, int64_t base_offset, int32_t leader_epoch):
    cdef Py_buffer view
    cdef uint8_t *p
    PyObject_GetBuffer(buf, &view, PyBUF_WRITABLE)
    try:
        if pos < 0 or pos > view.len - HEADER_SIZE:
            raise ValueError(f"no batch header at position {pos} of {view.len} bytes")
        p = <uint8_t *>view.buf + pos
        tl_put64(p, <uint64_t>base_offset)
        tl_put32(p + 12, <uint32_t>leader_epoch)
    finally:
        PyBuffer_Release(&view)


# The records of a batch


cdef struct Layout:
    int64_t timestamp_delta
    int32_t offset_delta
    int32_t key_length
    int32_t value_length
    int32_t header_count
    const uint8_t *key
    const uint8_t *value
    const uint8_t *headers
    const uint8_t *stop


cdef int skip_headers(const uint8_t **at, const uint8_t *stop, int32_t count) noexcept nogil:
    cdef int32_t length
    while count > 0:
        if tl_varint32(at, stop, &length) or length < 0 or length > stop - at[0]:
            return MALFORMED
        at[0] += length
        if tl_varint32(at, stop, &length) or length > stop - at[0]:
            return MALFORMED
        if length > 0:
            at[0] += length
        count -= 1
    return OK


cdef int read_record(const uint8_t **at, const uint8_t *end, Layout *r) noexcept nogil:
    cdef int32_t size
    cdef const uint8_t *p
    cdef const uint8_t *stop
    cdef int bad = tl_varint32(at, end, &size)
    if bad:
        return CUT_SHORT if bad == 1 else MALFORMED
    p = at[0]
    if size <= 0 or size > end - p:
        return MALFORMED
    stop = p + size
    p += 1  # attributes, of which none is used
    if tl_varint64(&p, stop, &r.timestamp_delta) or tl_varint32(&p, stop, &r.offset_delta):
        return MALFORMED
    if tl_varint32(&p, stop, &r.key_length) or r.key_length > stop - p:
        return MALFORMED
    r.key = p
    if r.key_length > 0:
        p += r.key_length
    if tl_varint32(&p, stop, &r.value_length) or r.value_length > stop - p:
        return MALFORMED
    r.value = p
    if r.value_length > 0:
        p += r.value_length
    if tl_varint32(&p, stop, &r.header_count) or r.header_count < 0 or r.header_count > stop - p:
        return MALFORMED
    r.headers = p
    r.stop = stop
    if r.header_count and skip_headers(&p, stop, r.header_count):
        return MALFORMED
    if p != stop:
        return MALFORMED
    at[0] = stop
    return OK


cdef struct Walked:
    int status
    int64_t index
    int64_t greatest
    int64_t delta_of_greatest


cdef void walk_records(
    const uint8_t *p, const uint8_t *end, int64_t count, int64_t base_timestamp,
    bint need_key, int64_t low, int64_t high, Walked *out,
) noexcept nogil:
    cdef Layout r
    cdef int64_t index, timestamp
    cdef int64_t wrong_delta = -1
    cdef int64_t first_error = -1
    out.greatest = -1
    out.delta_of_greatest = 0
    for index in range(count):
        out.status = read_record(&p, end, &r)
        if out.status != OK:
            out.index = index
            return
        timestamp = tl_add64(base_timestamp, r.timestamp_delta)
        if r.offset_delta != index and wrong_delta < 0:
            wrong_delta = index
        if (need_key and r.key_length < 0) or (timestamp != -1 and (timestamp < low or timestamp > high)):
            if first_error < 0:
                first_error = index
        if timestamp > out.greatest:
            out.greatest = timestamp
            out.delta_of_greatest = r.offset_delta
    out.status = OK
    out.index = count if count > 0 else 0
    if p != end:
        out.status = BYTES_LEFT
    elif wrong_delta >= 0:
        out.status = OFFSET_DELTA
        out.index = wrong_delta
    elif first_error >= 0:
        out.status = RECORD_ERRORS
        out.index = first_error


cdef void walk_range(
    const uint8_t *base, Py_ssize_t start, Py_ssize_t end, int64_t count, int64_t base_timestamp,
    bint need_key, int64_t low, int64_t high, Walked *out,
) noexcept:
    if end - start < LONG_WALK:
        walk_records(base + start, base + end, count, base_timestamp, need_key, low, high, out)
        return
    with nogil:
        walk_records(base + start, base + end, count, base_timestamp, need_key, low, high, out)


def walk(
    buf, Py_ssize_t start, Py_ssize_t end, int64_t count, int64_t base_timestamp,
    bint need_key, int64_t low, int64_t high,
):
    cdef Py_buffer view
    cdef Walked w
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
    try:
        require(&view, start, end)
        walk_range(<const uint8_t *>view.buf, start, end, count, base_timestamp, need_key, low, high, &w)
    finally:
        PyBuffer_Release(&view)
    return w.status, w.index, w.greatest, w.delta_of_greatest


# A produced batch


cdef int next_length(const uint8_t *p, Py_ssize_t size, int32_t *length) noexcept nogil:
    if size < LENGTH_OVERHEAD:
        return NO_BATCH
    length[0] = <int32_t>tl_get32(p + 8)
    if length[0] < 14:
        return BAD_LENGTH
    if size < 17:
        return NO_BATCH
    if p[16] > 2:
        return UNKNOWN_MAGIC
    return OK if length[0] <= size - LENGTH_OVERHEAD else NO_BATCH


cdef int framing(const uint8_t *p, Py_ssize_t size, int32_t *length) noexcept nogil:
    """OK, or what is wrong with the first batch; whether there is a second one is not looked at here."""
    cdef int found = next_length(p, size, length)
    if found != OK:
        return found
    if p[16] != 2:
        return OLD_MAGIC
    return BAD_LENGTH if length[0] < HEADER_SIZE - LENGTH_OVERHEAD else OK


cdef int second_batch(const uint8_t *p, Py_ssize_t size) noexcept nogil:
    cdef int32_t length
    cdef int found = next_length(p, size, &length)
    if found == NO_BATCH:
        return OK
    return SECOND_BATCH if found == OK else found


cdef int header_rules(const uint8_t *p, Py_ssize_t total, int64_t max_bytes, bint from_client) noexcept nogil:
    cdef uint16_t attributes = tl_get16(p + 21)
    cdef int32_t last_delta = <int32_t>tl_get32(p + 23)
    cdef int32_t count = <int32_t>tl_get32(p + 57)
    if from_client and tl_get64(p) != 0:
        return BASE_OFFSET
    if total > max_bytes:
        return TOO_LARGE
    if (attributes & 7) > 4:
        return UNKNOWN_CODEC
    if from_client:
        if last_delta < 0:
            return BAD_OFFSET_RANGE
        if count <= 0:
            return BAD_COUNT
        if <int64_t>count != <int64_t>last_delta + 1:
            return COUNT_MISMATCH
        if attributes & 0x20:
            return CONTROL_BATCH
        if <int64_t>tl_get64(p + 43) >= 0 and <int32_t>tl_get32(p + 53) < 0:
            return BAD_SEQUENCE
    if attributes & 0x08:
        return APPEND_TIME
    return COMPRESSED if attributes & 7 else OK


cdef tuple header_fields(const uint8_t *p):
    return (
        <int64_t>tl_get64(p),
        <int32_t>tl_get32(p + 8),
        <int32_t>tl_get32(p + 12),
        <int>(<signed char>p[16]),
        tl_get32(p + 17),
        <int16_t>tl_get16(p + 21),
        <int32_t>tl_get32(p + 23),
        <int64_t>tl_get64(p + 27),
        <int64_t>tl_get64(p + 35),
        <int64_t>tl_get64(p + 43),
        <int16_t>tl_get16(p + 51),
        <int32_t>tl_get32(p + 53),
        <int32_t>tl_get32(p + 57),
    )


def check_batch(
    buf, Py_ssize_t start, Py_ssize_t end, int64_t max_bytes, bint from_client,
    bint need_key, int64_t low, int64_t high,
):
    cdef Py_buffer view
    cdef const uint8_t *p
    cdef int32_t length
    cdef Py_ssize_t total
    cdef int found
    cdef Walked w
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
    try:
        require(&view, start, end)
        p = <const uint8_t *>view.buf + start
        found = framing(p, end - start, &length)
        if found != OK:
            return found, None, 0, 0
        total = <Py_ssize_t>length + LENGTH_OVERHEAD
        found = second_batch(p + total, end - start - total)
        if found == OK:
            found = header_rules(p, total, max_bytes, from_client)
            if found != BASE_OFFSET and found != TOO_LARGE:
                if crc_of(buf, <const uint8_t *>view.buf, start + CRC_START, start + total) != tl_get32(p + 17):
                    found = BAD_CRC
        if found != OK:
            return found, header_fields(p), 0, 0
        walk_range(
            p, HEADER_SIZE, total, <int32_t>tl_get32(p + 57), <int64_t>tl_get64(p + 27), need_key, low, high, &w
        )
        return w.status, header_fields(p), w.greatest if w.status == OK else w.index, w.delta_of_greatest
    finally:
        PyBuffer_Release(&view)


# Records as columns and as objects


cdef int require_room(Py_ssize_t start, Py_ssize_t end, int64_t count) except -1:
    if count < 0 or count > (end - start) // SMALLEST_RECORD:
        raise MalformedRecords(CUT_SHORT, (end - start) // SMALLEST_RECORD)
    return 0


cdef int fill_columns(
    const uint8_t *base, const uint8_t *p, const uint8_t *end, int64_t count, int64_t *timestamps,
    int *offsets, int *key_at, int *key_length, int *value_at, int *value_length,
    int *headers_at, int *header_count, int64_t *index,
) noexcept nogil:
    cdef Layout r
    cdef int found
    cdef int64_t i
    for i in range(count):
        found = read_record(&p, end, &r)
        if found != OK:
            index[0] = i
            return found
        timestamps[i] = r.timestamp_delta
        offsets[i] = r.offset_delta
        key_at[i] = <int32_t>(r.key - base)
        key_length[i] = r.key_length
        value_at[i] = <int32_t>(r.value - base)
        value_length[i] = r.value_length
        headers_at[i] = <int32_t>(r.headers - base)
        header_count[i] = r.header_count
    index[0] = count
    return OK if p == end else BYTES_LEFT


cdef array _LONGS = array("q")
cdef array _INTS = array("i")


def walk_columns(buf, Py_ssize_t start, Py_ssize_t end, int64_t count):
    cdef Py_buffer view
    cdef array a, b, c, d, e, f, g, h
    cdef const uint8_t *base
    cdef int found
    cdef int64_t index
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
    try:
        require(&view, start, end)
        require_room(start, end, count)
        if end > 0x7FFFFFFF:
            raise OverflowError(f"positions up to {end} do not fit in 32 bits")
        base = <const uint8_t *>view.buf
        a = clone(_LONGS, count, False)
        b, c, d = clone(_INTS, count, False), clone(_INTS, count, False), clone(_INTS, count, False)
        e, f = clone(_INTS, count, False), clone(_INTS, count, False)
        g, h = clone(_INTS, count, False), clone(_INTS, count, False)
        with nogil:
            found = fill_columns(
                base, base + start, base + end, count, <int64_t *>a.data.as_voidptr, b.data.as_ints,
                c.data.as_ints, d.data.as_ints, e.data.as_ints, f.data.as_ints, g.data.as_ints,
                h.data.as_ints, &index,
            )
    finally:
        PyBuffer_Release(&view)
    if found != OK:
        raise MalformedRecords(found, index)
    return a, b, c, d, e, f, g, h


cdef object slice_or_none(const uint8_t *p, int32_t length):
    return None if length < 0 else PyBytes_FromStringAndSize(<const char *>p, length)


cdef tuple read_headers(const uint8_t *p, const uint8_t *stop, int32_t count, int64_t index):
    """Of a record that `read_record` accepted; checked again because the buffer may be somebody's to write."""
    cdef int32_t length
    cdef list pairs = []
    while count > 0:
        if tl_varint32(&p, stop, &length) or length < 0 or length > stop - p:
            raise MalformedRecords(MALFORMED, index)
        name = PyUnicode_DecodeUTF8(<const char *>p, length, "surrogateescape")
        p += length
        if tl_varint32(&p, stop, &length) or length > stop - p:
            raise MalformedRecords(MALFORMED, index)
        pairs.append((name, slice_or_none(p, length)))
        if length > 0:
            p += length
        count -= 1
    return tuple(pairs)


def make_records(
    make, buf, Py_ssize_t start, Py_ssize_t end, int64_t count, int64_t base_offset, int64_t base_timestamp,
    append_time,
):
    cdef Py_buffer view
    cdef const uint8_t *p
    cdef const uint8_t *stop
    cdef Layout r
    cdef int found
    cdef int64_t index
    cdef bint named_tuple = isinstance(make, type) and issubclass(make, tuple)
    cdef list records = []
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
    try:
        require(&view, start, end)
        require_room(start, end, count)
        p = <const uint8_t *>view.buf + start
        stop = <const uint8_t *>view.buf + end
        for index in range(count):
            found = read_record(&p, stop, &r)
            if found != OK:
                raise MalformedRecords(found, index)
            fields = (
                tl_add64(base_offset, r.offset_delta),
                tl_add64(base_timestamp, r.timestamp_delta) if append_time is None else append_time,
                slice_or_none(r.key, r.key_length),
                slice_or_none(r.value, r.value_length),
                read_headers(r.headers, r.stop, r.header_count, index) if r.header_count else (),
            )
            records.append(tuple_new(<type>make, (fields,), NULL) if named_tuple else make(*fields))
        if p != stop:
            raise MalformedRecords(BYTES_LEFT, count)
    finally:
        PyBuffer_Release(&view)
    return records


# Building a payload


cdef class _Output:
    """Bytes that grow."""

    cdef uint8_t *data
    cdef Py_ssize_t size
    cdef Py_ssize_t room

    def __dealloc__(self):
        PyMem_Free(self.data)

    cdef int reserve(self, Py_ssize_t more) except -1:
        cdef Py_ssize_t room
        cdef void *data
        if more <= self.room - self.size:
            return 0
        room = max(self.size + more, 2 * self.room, 256)
        data = PyMem_Realloc(self.data, room)
        if data == NULL:
            raise MemoryError
        self.data = <uint8_t *>data
        self.room = room
        return 0

    cdef int varint(self, int64_t value) except -1:
        self.reserve(10)
        self.size = tl_put_varint(self.data + self.size, value) - self.data
        return 0

    cdef int raw(self, const void *data, Py_ssize_t size) except -1:
        self.reserve(size)
        memcpy(self.data + self.size, data, size)
        self.size += size
        return 0

    cdef int content(self, object data) except -1:
        """A length and that many bytes, or the length -1 for None."""
        cdef Py_buffer view
        if data is None:
            return self.varint(-1)
        if type(data) is bytes:
            self.varint(PyBytes_GET_SIZE(data))
            return self.raw(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            self.varint(view.len)
            return self.raw(view.buf, view.len)
        finally:
            PyBuffer_Release(&view)


def encode_records(records, int64_t base_offset, int64_t base_timestamp):
    cdef _Output out = _Output()
    cdef _Output body = _Output()
    cdef int64_t offset, timestamp
    cdef int64_t last_delta = -1
    cdef int64_t greatest = -1
    cdef int64_t delta
    cdef Py_ssize_t count = 0
    for fields in records:
        offset, timestamp, key, value, headers = fields
        delta = tl_sub64(offset, base_offset)
        if offset < base_offset or not last_delta < delta <= 0x7FFFFFFF:
            raise ValueError(f"offset {offset} does not follow in a batch that starts at {base_offset}")
        body.size = 0
        body.raw(b"\0", 1)
        body.varint(tl_sub64(timestamp, base_timestamp))
        body.varint(delta)
        body.content(key)
        body.content(value)
        body.varint(len(headers))
        for name, content in headers:
            body.content((<str?>name).encode("utf-8", "surrogateescape"))
            body.content(content)
        out.varint(body.size)
        out.raw(body.data, body.size)
        count += 1
        last_delta = delta
        if timestamp > greatest:
            greatest = timestamp
    return PyBytes_FromStringAndSize(<char *>out.data, out.size), count, last_delta, greatest


# Hashes


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


# Produce requests and their answers


cdef struct Reader:
    const uint8_t *base
    const uint8_t *p
    const uint8_t *end
    bint flexible


cdef int left_less(Reader *r, Py_ssize_t size) except -1:
    if size > r.end - r.p:
        raise ValueError(f"{size} bytes are declared at position {r.p - r.base}, {r.end - r.p} are left")
    return 0


cdef int64_t number(Reader *r, int size) except? -1:
    cdef int64_t value
    left_less(r, size)
    value = <int32_t>tl_get32(r.p) if size == 4 else <int16_t>tl_get16(r.p)
    r.p += size
    return value


cdef int64_t unsigned_varint(Reader *r) except -1:
    cdef uint32_t raw = 0
    cdef int shift = 0
    cdef uint8_t byte
    while True:
        left_less(r, 1)
        byte = r.p[0]
        r.p += 1
        raw |= <uint32_t>(byte & 0x7F) << shift
        if byte < 0x80:
            return raw
        shift += 7
        if shift >= 35:
            raise ValueError(f"no varint before position {r.p - r.base}")


cdef int64_t length_of(Reader *r, int size) except? -2:
    return unsigned_varint(r) - 1 if r.flexible else number(r, size)


cdef object string(Reader *r):
    cdef int64_t length = length_of(r, 2)
    if length < 0:
        return None
    left_less(r, length)
    text = PyUnicode_DecodeUTF8(<const char *>r.p, length, NULL)
    r.p += length
    return text


cdef int64_t count_of(Reader *r, int smallest) except -1:
    cdef int64_t count = length_of(r, 4)
    if count < 0 or count > (r.end - r.p) // smallest:
        raise ValueError(f"{count} elements are declared where {r.end - r.p} bytes are left")
    return count


cdef int skip_tags(Reader *r) except -1:
    cdef int64_t count, size
    if not r.flexible:
        return 0
    count = unsigned_varint(r)
    while count > 0:
        unsigned_varint(r)
        size = unsigned_varint(r)
        if size > r.end - r.p:
            raise ValueError(f"a tag of {size} bytes where {r.end - r.p} are left")
        r.p += size
        count -= 1
    return 0


cdef list read_partitions(Reader *r):
    cdef list partitions = []
    cdef int64_t partition, length
    cdef Py_ssize_t start
    cdef int64_t count = count_of(r, 6 if r.flexible else 8)
    while count > 0:
        partition = number(r, 4)
        length = length_of(r, 4)
        if length < 0:
            partitions.append((partition, -1, -1))
        else:
            left_less(r, length)
            start = r.p - r.base
            r.p += length
            partitions.append((partition, start, start + length))
        skip_tags(r)
        count -= 1
    return partitions


cdef tuple read_produce(Reader *r, int version):
    cdef list topics = []
    cdef int64_t acks, timeout_ms, count
    transactional_id = string(r)
    acks = number(r, 2)
    timeout_ms = number(r, 4)
    count = count_of(r, (18 if version >= 13 else 3) if r.flexible else 6)
    while count > 0:
        if version >= 13:
            left_less(r, 16)
            topic = PyBytes_FromStringAndSize(<const char *>r.p, 16)
            r.p += 16
        else:
            topic = string(r)
            if topic is None:
                raise ValueError("a topic name is null")
        partitions = read_partitions(r)
        skip_tags(r)
        topics.append((topic, partitions))
        count -= 1
    skip_tags(r)
    if r.p != r.end:
        raise ValueError(f"{r.end - r.p} bytes follow after the request")
    return transactional_id, acks, timeout_ms, topics


def parse_produce(buf, Py_ssize_t pos, int version):
    cdef Py_buffer view
    cdef Reader r
    if not 3 <= version <= 13:
        raise ValueError(f"Produce version {version} is not served; 3 to 13 are")
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
    try:
        if not 0 <= pos <= view.len:
            raise ValueError(f"position {pos} is outside of a frame of {view.len} bytes")
        r.base = <const uint8_t *>view.buf
        r.p = r.base + pos
        r.end = r.base + view.len
        r.flexible = version >= 9
        return read_produce(&r, version)
    finally:
        PyBuffer_Release(&view)


def produce_response(
    int version, int32_t correlation_id, topic, int32_t partition, int16_t error_code, int64_t base_offset,
    int64_t log_append_time, int64_t log_start_offset,
):
    cdef bytes name
    cdef uint8_t fixed[64]
    cdef uint8_t *p = fixed
    cdef Py_ssize_t before
    cdef bint flexible = version >= 9
    if not 3 <= version <= 13:
        raise ValueError(f"Produce version {version} is not served; 3 to 13 are")
    if version >= 13:
        if not isinstance(topic, bytes) or len(topic) != 16:
            raise ValueError(f"a topic id of 16 bytes is right, not {topic!r}")
        name = topic
    else:
        if not isinstance(topic, str):
            raise ValueError(f"a topic name is right, not {topic!r}")
        name = (<str>topic).encode("utf-8")
        if len(name) > 0x7FFF:
            raise ValueError(f"a topic name of {len(name)} bytes is too long")
    tl_put32(p, <uint32_t>correlation_id)
    p += 4
    if flexible:
        tl_put16(p, 2)
        p += 2
        if version < 13:
            p = tl_put_unsigned(p, len(name) + 1)
    else:
        tl_put32(p, 1)
        tl_put16(p + 4, <uint16_t>len(name))
        p += 6
    before = p - fixed
    if flexible:
        p[0] = 2
        p += 1
    else:
        tl_put32(p, 1)
        p += 4
    tl_put32(p, <uint32_t>partition)
    tl_put16(p + 4, <uint16_t>error_code)
    tl_put64(p + 6, <uint64_t>base_offset)
    tl_put64(p + 14, <uint64_t>log_append_time)
    p += 22
    if version >= 5:
        tl_put64(p, <uint64_t>log_start_offset)
        p += 8
    if flexible:
        # no record errors, no text; tags of partition and topic; throttle time; tags
        p[0] = 1
        tl_put64(p + 1, 0)
        p += 9
    else:
        if version == 8:
            tl_put32(p, 0)
            tl_put16(p + 4, 0xFFFF)
            p += 6
        tl_put32(p, 0)
        p += 4
    return join_around(fixed, before, name, p - fixed)


cdef bytes join_around(const uint8_t *fixed, Py_ssize_t before, bytes name, Py_ssize_t size):
    """The fixed bytes with the name put in at `before`."""
    cdef Py_ssize_t length = PyBytes_GET_SIZE(name)
    cdef bytes out = PyBytes_FromStringAndSize(NULL, size + length)
    cdef char *p = PyBytes_AS_STRING(out)
    memcpy(p, fixed, before)
    memcpy(p + before, PyBytes_AS_STRING(name), length)
    memcpy(p + before + length, fixed + before, size - before)
    return out


# Compaction: the map from a key's hash to its last offset, and batches filtered by it

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

# The numbers of `_pure_cleaner`, where their meaning stands.
cdef enum:
    MAP_FULL = 22
    NO_ROOM = 23
    UNCHANGED = 24
    REWRITTEN = 25
    EMPTIED = 26
    DROPPED = 27

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
    """Every key with its offset into the table; `latest` is the last offset that is taken care of."""
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
    """OK, NO_BATCH where the bytes end before the batch does, or what is wrong with it."""
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
    """Which records stay: those behind the map, and the last one of each key unless it is an old tombstone."""
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
    """The chosen records, their timestamps counted from `new_base`; NULL if they changed under our hands."""
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
    if room < total + 15 * kept.count:  # timestamps may be farther from a new base
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


# Batches that a producer fills


cdef int64_t now_ms() noexcept nogil:
    cdef timespec at
    clock_gettime(CLOCK_REALTIME, &at)
    return <int64_t>at.tv_sec * 1000 + at.tv_nsec // 1000000


cdef inline int varint_size(int64_t value) noexcept nogil:
    cdef uint64_t raw = (<uint64_t>value << 1) ^ <uint64_t>(value >> 63)
    cdef int size = 1
    while raw > 0x7F:
        raw >>= 7
        size += 1
    return size


@no_gc  # refers to a batch alone, and batches drop what refers back when they are done
cdef class RecordFuture:
    cdef readonly object batch
    cdef readonly int64_t timestamp
    cdef readonly int32_t index
    cdef readonly int32_t key_size
    cdef readonly int32_t value_size

    def __init__(self, batch, int32_t index, int64_t timestamp, int32_t key_size, int32_t value_size):
        self.batch = batch
        self.index = index
        self.timestamp = timestamp
        self.key_size = key_size
        self.value_size = value_size

    def done(self):
        return self.batch.future_done(self)

    def cancelled(self):
        return False

    def cancel(self):
        return False

    def running(self):
        return not self.batch.future_done(self)

    def result(self, timeout=None):
        return self.batch.future_result(self, timeout)

    def exception(self, timeout=None):
        return self.batch.future_exception(self, timeout)

    def add_done_callback(self, function):
        self.batch.future_callback(self, function)

    def __await__(self):
        return self.batch.future_await(self)


cdef enum:
    POOL_SLOTS = 64


cdef class BufferPool:
    cdef uint8_t *slots[POOL_SLOTS]
    cdef int used
    cdef readonly Py_ssize_t size

    def __cinit__(self, Py_ssize_t size):
        self.size = size

    def __dealloc__(self):
        while self.used > 0:
            self.used -= 1
            PyMem_Free(self.slots[self.used])

    @property
    def held(self):
        return self.used

    cdef uint8_t *take(self) noexcept:
        if self.used == 0:
            return NULL
        self.used -= 1
        return self.slots[self.used]

    cdef bint keep(self, uint8_t *data) noexcept:
        if self.used == POOL_SLOTS:
            return False
        self.slots[self.used] = data
        self.used += 1
        return True


cdef class BatchBuffer:
    """One batch in memory: room for the header, then records. The GIL keeps appends and `seal` apart."""

    cdef uint8_t *data
    cdef readonly Py_ssize_t size
    cdef readonly Py_ssize_t limit
    cdef Py_ssize_t room
    cdef Py_ssize_t exports
    cdef readonly int64_t base_timestamp
    cdef readonly int64_t max_timestamp
    cdef readonly int32_t count
    cdef readonly bint sealed
    cdef BufferPool pool

    def __cinit__(self, Py_ssize_t limit, *args):
        self.limit = limit
        self.size = HEADER_SIZE
        self.base_timestamp = -1
        self.max_timestamp = -1

    def __init__(self, Py_ssize_t limit, *args):
        pass

    def __dealloc__(self):
        PyMem_Free(self.data)

    @property
    def full(self):
        return self.sealed or (self.count > 0 and self.size >= self.limit)

    cdef uint8_t *start_record(self, int64_t timestamp, Py_ssize_t rest) except? NULL:
        """Room for a record of which `rest` bytes are key, value and headers with their lengths; NULL if none."""
        cdef Py_ssize_t body, total, room
        cdef void *data
        if self.count == 0:
            self.base_timestamp = timestamp
        body = 1 + varint_size(tl_sub64(timestamp, self.base_timestamp)) + varint_size(self.count) + rest
        total = body + varint_size(body)
        if body > 0x7FFFFFFF or self.count == 0x7FFFFFFF:
            return NULL
        if self.size + total > self.limit and self.count > 0:
            return NULL
        if self.data == NULL and self.pool is not None and self.pool.size == self.limit:
            self.data = self.pool.take()
            if self.data != NULL:
                self.room = self.limit
        if total > self.room - self.size:
            room = max(self.size + total, min(2 * self.room, self.limit), min(self.limit, 1024))
            data = PyMem_Realloc(self.data, room)
            if data == NULL:
                raise MemoryError
            self.data = <uint8_t *>data
            self.room = room
        cdef uint8_t *p = tl_put_varint(self.data + self.size, body)
        p[0] = 0
        p = tl_put_varint(p + 1, tl_sub64(timestamp, self.base_timestamp))
        p = tl_put_varint(p, self.count)
        self.size += total
        self.count += 1
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        return p

    cdef RecordFuture future(self, int64_t timestamp, Py_ssize_t key_size, Py_ssize_t value_size):
        cdef int32_t index = self.count - 1
        cdef RecordFuture made = RecordFuture.__new__(RecordFuture)
        made.batch = self
        made.index = index
        made.timestamp = timestamp
        made.key_size = <int32_t>key_size
        made.value_size = <int32_t>value_size
        return made

    def append_value(self, bytes value):
        cdef uint8_t *p
        cdef int64_t timestamp
        cdef Py_ssize_t size
        if self.sealed or value is None:
            return None
        size = PyBytes_GET_SIZE(value)
        timestamp = now_ms()
        p = self.start_record(timestamp, 1 + varint_size(size) + size + 1)
        if p == NULL:
            return None
        p[0] = 1
        p = tl_put_varint(p + 1, size)
        memcpy(p, PyBytes_AS_STRING(value), size)
        p[size] = 0
        return self.future(timestamp, -1, size)

    cdef RecordFuture append_pair(self, bytes key, bytes value):
        cdef Py_ssize_t key_size = PyBytes_GET_SIZE(key)
        cdef Py_ssize_t value_size = PyBytes_GET_SIZE(value)
        cdef int64_t timestamp = now_ms()
        cdef uint8_t *p
        if self.sealed:
            return None
        p = self.start_record(
            timestamp, varint_size(key_size) + key_size + varint_size(value_size) + value_size + 1
        )
        if p == NULL:
            return None
        p = put_content(p, PyBytes_AS_STRING(key), key_size)
        p = put_content(p, PyBytes_AS_STRING(value), value_size)
        p[0] = 0
        return self.future(timestamp, key_size, value_size)

    def append(self, int64_t timestamp, bytes key, bytes value, tuple headers):
        cdef uint8_t *p
        cdef Py_ssize_t key_size = -1
        cdef Py_ssize_t value_size = -1
        cdef Py_ssize_t rest
        cdef bytes name, content
        if self.sealed:
            return None
        if key is not None:
            key_size = PyBytes_GET_SIZE(key)
        if value is not None:
            value_size = PyBytes_GET_SIZE(value)
        rest = varint_size(key_size) + max(key_size, 0) + varint_size(value_size) + max(value_size, 0)
        rest += varint_size(len(headers))
        for name, content in headers:
            rest += varint_size(PyBytes_GET_SIZE(name)) + PyBytes_GET_SIZE(name)
            if content is None:
                rest += 1
            else:
                rest += varint_size(PyBytes_GET_SIZE(content)) + PyBytes_GET_SIZE(content)
        p = self.start_record(timestamp, rest)
        if p == NULL:
            return None
        p = put_content(p, PyBytes_AS_STRING(key) if key is not None else NULL, key_size)
        p = put_content(p, PyBytes_AS_STRING(value) if value is not None else NULL, value_size)
        p = tl_put_varint(p, len(headers))
        for name, content in headers:
            p = put_content(p, PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name))
            if content is None:
                p = put_content(p, NULL, -1)
            else:
                p = put_content(p, PyBytes_AS_STRING(content), PyBytes_GET_SIZE(content))
        return self.future(timestamp, key_size, value_size)

    def append_rows(self, ArrowColumns columns, rows, Py_ssize_t start, Py_ssize_t stop, int64_t timestamp):
        cdef Py_buffer view
        cdef Py_ssize_t done
        if self.sealed:
            return start
        if rows is None:
            if not 0 <= start <= stop <= columns.rows:
                raise ValueError(f"rows {start}:{stop} of {columns.rows}")
            return self.take_rows(columns, NULL, start, stop, timestamp)
        PyObject_GetBuffer(rows, &view, PyBUF_SIMPLE)
        try:
            if not 0 <= start <= stop <= view.len // 4:
                raise ValueError(f"rows {start}:{stop} of {view.len // 4}")
            done = self.take_rows(columns, <const int32_t *>view.buf, start, stop, timestamp)
        finally:
            PyBuffer_Release(&view)
        return done

    cdef Py_ssize_t take_rows(
        self, ArrowColumns c, const int32_t *rows, Py_ssize_t start, Py_ssize_t stop, int64_t timestamp
    ) except -1:
        """Appends rows until the batch is full; the first row that found no room."""
        cdef Py_ssize_t at, row, key_size, value_size, rest
        cdef const uint8_t *key
        cdef const uint8_t *value
        cdef int64_t time
        cdef uint8_t *p
        at = start
        while at < stop:
            row = at if rows == NULL else rows[at]
            if row < 0 or row >= c.rows:
                raise ValueError(f"row {row} of {c.rows}")
            key = c.key.cell(row, &key_size)
            value = c.value.cell(row, &value_size)
            time = c.time(row, timestamp)
            rest = varint_size(key_size) + varint_size(value_size) + c.header_size
            if key_size > 0:
                rest += key_size
            if value_size > 0:
                rest += value_size
            p = self.start_record(time, rest)
            if p == NULL:
                break
            p = put_content(p, <const char *>key, key_size)
            p = put_content(p, <const char *>value, value_size)
            memcpy(p, PyBytes_AS_STRING(c.headers), c.header_size)
            at += 1
        return at

    def last_future(self):
        return self.future(self.max_timestamp, -1, -1)

    def seal(self):
        self.sealed = True

    def reuse(self, BufferPool pool):
        self.pool = pool

    def release(self):
        self.sealed = True
        if self.exports == 0 and self.data != NULL:
            if self.pool is None or self.room != self.pool.size or not self.pool.keep(self.data):
                PyMem_Free(self.data)
            self.data = NULL
            self.room = 0

    def bytes_view(self):
        return memoryview(self)

    def __getbuffer__(self, Py_buffer *view, int flags):
        if not self.sealed or self.data == NULL:
            raise BufferError("a batch shows its bytes between seal and release")
        PyBuffer_FillInfo(view, self, self.data, self.size, 0, flags)
        self.exports += 1

    def __releasebuffer__(self, Py_buffer *view):
        self.exports -= 1


cdef class OpenBatches:
    cdef readonly list batches

    def __init__(self, Py_ssize_t partitions):
        if partitions <= 0:
            raise ValueError(f"{partitions} partitions")
        self.batches = [None] * partitions

    def append(self, bytes key not None, bytes value not None):
        cdef int32_t hashed = murmur2_of(<const uint8_t *>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key))
        batch = self.batches[(hashed & 0x7FFFFFFF) % len(self.batches)]
        return None if batch is None else (<BatchBuffer?>batch).append_pair(key, value)


cdef inline uint8_t *put_content(uint8_t *p, const char *content, Py_ssize_t size) noexcept:
    p = tl_put_varint(p, size)
    if size > 0:
        memcpy(p, content, size)
        p += size
    return p


def sign_batch(
    buf, int16_t attributes, int32_t count, int64_t base_timestamp, int64_t max_timestamp,
    int64_t producer_id, int16_t producer_epoch, int32_t base_sequence,
):
    cdef Py_buffer view
    cdef uint8_t *p
    PyObject_GetBuffer(buf, &view, PyBUF_WRITABLE)
    try:
        if view.len < HEADER_SIZE or view.len > 0x7FFFFFFF:
            raise ValueError(f"no batch of {view.len} bytes")
        p = <uint8_t *>view.buf
        tl_put64(p, 0)
        tl_put32(p + 8, <uint32_t>(view.len - LENGTH_OVERHEAD))
        tl_put32(p + 12, <uint32_t>-1)
        p[16] = 2
        tl_put16(p + 21, <uint16_t>attributes)
        tl_put32(p + 23, <uint32_t>(count - 1))
        tl_put64(p + 27, <uint64_t>base_timestamp)
        tl_put64(p + 35, <uint64_t>max_timestamp)
        tl_put64(p + 43, <uint64_t>producer_id)
        tl_put16(p + 51, <uint16_t>producer_epoch)
        tl_put32(p + 53, <uint32_t>base_sequence)
        tl_put32(p + 57, <uint32_t>count)
        tl_put32(p + 17, crc_of(buf, p, CRC_START, view.len))
    finally:
        PyBuffer_Release(&view)


# Columns in Arrow's layout


cdef class ArrowColumn:
    """Bytes of many rows: offsets of 4 or 8 bytes into data, and a bit for each row that is not null."""

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
        """Where the bytes of a row are and how many; -1 where it is null."""
        cdef Py_ssize_t at = self.first + row
        cdef int64_t start, end
        size[0] = -1
        if not self.given:
            return NULL
        if self.has_validity and not (<const uint8_t *>self.validity.buf)[at >> 3] >> (at & 7) & 1:
            return NULL
        start, end = self.offset(row), self.offset(row + 1)
        if start < 0 or end < start or end > self.data.len:
            return NULL  # somebody wrote into the buffers after they were checked
        size[0] = end - start
        return <const uint8_t *>self.data.buf + start


cdef class ArrowColumns:
    cdef ArrowColumn key
    cdef ArrowColumn value
    cdef Py_buffer times
    cdef bint has_times
    cdef bytes headers
    cdef Py_ssize_t header_size
    cdef readonly Py_ssize_t rows
    cdef Py_ssize_t first_time

    def __cinit__(
        self, ArrowColumn key not None, ArrowColumn value not None, times, Py_ssize_t first_time, tuple headers
    ):
        cdef _Output out = _Output()
        if key.rows != value.rows:
            raise ValueError(f"{key.rows} keys and {value.rows} values")
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

    @property
    def has_keys(self):
        return self.key.given

    def largest(self):
        """The most bytes that a row's key, value and headers take together."""
        cdef Py_ssize_t row, key_size, value_size
        cdef Py_ssize_t most = 0
        for row in range(self.rows):
            self.key.cell(row, &key_size)
            self.value.cell(row, &value_size)
            most = max(most, max(key_size, 0) + max(value_size, 0))
        return most + self.header_size

    def rows_by_partition(self, int32_t partitions):
        """For each partition the rows whose keys belong to it, and the rows without a key, as int32 arrays."""
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


# The records of a fetched partition


@no_gc  # refers to bytes and a name
cdef class _Payload:
    """The unpacked bytes of a batch, or of a whole answer, and what all of its records have in common."""

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


@no_gc  # refers to its bytes, and to what deserializers made of them, which seldom knows its record
cdef class Record:
    """A record that was read; its key, value and headers are made into objects when they are looked at.

    It keeps the bytes of the fetch that it came with.
    """

    cdef _Payload payload
    cdef readonly int64_t offset
    cdef readonly int64_t timestamp
    cdef object made_key
    cdef object made_value
    cdef object made_headers
    cdef int32_t key_at
    cdef readonly int32_t key_size
    cdef int32_t value_at
    cdef readonly int32_t value_size
    cdef int32_t headers_at
    cdef int32_t header_count
    cdef uint8_t has

    def __init__(
        self, str topic, int32_t partition, int64_t offset, int64_t timestamp=-1, key=None, value=None,
        tuple headers=(), int8_t timestamp_type=0, int32_t leader_epoch=-1, int32_t key_size=-1, int32_t value_size=-1,
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
        self.key_size = len(key) if type(key) is bytes else key_size
        self.value_size = len(value) if type(value) is bytes else value_size
        self.has = HAS_KEY | HAS_VALUE | HAS_HEADERS

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
            self.made_key = slice_or_none(<const uint8_t *>self.payload.view.buf + self.key_at, self.key_size)
            self.has |= HAS_KEY
        return self.made_key

    @property
    def value(self):
        if not self.has & HAS_VALUE:
            self.made_value = slice_or_none(<const uint8_t *>self.payload.view.buf + self.value_at, self.value_size)
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

        return Record, fields_of(self)

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
    # The batch that is being read; its records lie in `payload` from `p` to `stop`.
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

    cdef int64_t scan(self) noexcept:
        """The offset behind the last whole batch."""
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
        """Go to the next batch that has records to hand out; 0 at the end."""
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
        """`advance`, but what is wrong with a batch waits until what is before it was handed out."""
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
        cdef Record record
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
                record = Record.__new__(Record)
                record.payload = self.payload
                record.offset = offset
                record.timestamp = (
                    self.append_time if self.appended else tl_add64(self.base_timestamp, r.timestamp_delta)
                )
                record.key_at = <int32_t>(r.key - base)
                record.key_size = r.key_length
                record.value_at = <int32_t>(r.value - base)
                record.value_size = r.value_length
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


cdef enum:
    HEADERS_NEXT = 100


cdef int fill_sink(RecordReader reader, ColumnSink sink, Py_ssize_t limit, Layout *r) noexcept nogil:
    """Rows of one batch until it ends, so many were made, or one has headers, which is then in `r`."""
    cdef Py_ssize_t row = sink.rows
    cdef Py_ssize_t last = row + limit
    cdef int found = OK
    cdef int64_t offset, timestamp
    cdef int64_t *offsets = <int64_t *>sink.offset.data
    cdef int64_t *timestamps = <int64_t *>sink.timestamp.data
    cdef int32_t *header_ends = <int32_t *>sink.header_ends.data
    cdef Cells keys = cells_of(sink.key)
    cdef Cells values = cells_of(sink.value)
    cdef const uint8_t *p = reader.p
    while reader.left > 0 and row < last:
        found = read_record(&p, reader.stop, r)
        if found != OK:
            break
        reader.left -= 1
        offset = tl_add64(reader.base_offset, r.offset_delta)
        if offset < reader.position:
            continue
        reader.position = offset + 1
        offsets[row] = offset
        timestamp = reader.append_time if reader.appended else tl_add64(reader.base_timestamp, r.timestamp_delta)
        timestamps[row] = timestamp
        if timestamp == -1:
            sink.null_timestamps += 1
        else:
            set_bit(sink.timestamp_bits.data, row)
        add_cell(&keys, row, r.key, r.key_length)
        add_cell(&values, row, r.value, r.value_length)
        header_ends[row + 1] = <int32_t>sink.headers.rows
        row += 1
        if r.header_count:
            found = HEADERS_NEXT
            break
    reader.p = p
    sink.rows = row
    keep_cells(sink.key, &keys)
    keep_cells(sink.value, &values)
    return found


cdef inline void set_bit(uint8_t *bits, Py_ssize_t row) noexcept nogil:
    bits[row >> 3] |= <uint8_t>(1 << (row & 7))


# Large blocks that were given back, to be used again: memory that is fresh from the system costs more than what
# is done in it. The GIL keeps takers and givers apart.


cdef enum:
    KEPT_BLOCKS = 16
    KEPT_BYTES = 64 * 1024 * 1024
    SMALLEST_KEPT = 64 * 1024


cdef uint8_t *kept_data[KEPT_BLOCKS]
cdef Py_ssize_t kept_room[KEPT_BLOCKS]
cdef int kept_count = 0
cdef Py_ssize_t kept_bytes = 0


cdef uint8_t *take_block(Py_ssize_t *room) except NULL:
    """A block of at least so many bytes, and how many it has."""
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
        room[0] = (wanted + step - 1) // step * step  # sizes that others will want as well
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
    """So many bytes to be written into; what they hold before that is left over from others."""

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


cdef class _Column:
    """Bytes that grow and that others may look at; what is reserved and not used yet is zero in bitmaps."""

    cdef uint8_t *data
    cdef Py_ssize_t size
    cdef Py_ssize_t room
    cdef bint zeroed

    def __dealloc__(self):
        if self.data != NULL:
            give_block(self.data, self.room)

    cdef int ensure(self, Py_ssize_t room) except -1:
        """Room for so many bytes in all."""
        cdef uint8_t *data
        if room <= self.room:
            return 0
        room = max(room, self.room + self.room // 2, 64)
        data = take_block(&room)
        if self.data != NULL:
            memcpy(data, self.data, self.room)
            give_block(self.data, self.room)
        if self.zeroed:
            memset(data + self.room, 0, room - self.room)
        self.data = data
        self.room = room
        return 0

    def __getbuffer__(self, Py_buffer *view, int flags):
        self.ensure(1)  # nobody likes to be shown nothing at no address
        PyBuffer_FillInfo(view, self, self.data, self.size, 1, flags)


cdef _Column bitmap():
    cdef _Column made = _Column()
    made.zeroed = True
    return made


cdef _Column ends():
    cdef _Column made = _Column()
    made.ensure(64)
    (<int32_t *>made.data)[0] = 0
    return made


cdef class _Bytes:
    """A column of byte strings: where each ends, the bytes, and a bit for each that is not null."""

    cdef _Column ends
    cdef _Column data
    cdef _Column bits
    cdef Py_ssize_t nulls

    def __cinit__(self):
        self.ends, self.data, self.bits = ends(), _Column(), bitmap()

    cdef int reserve(self, Py_ssize_t rows, Py_ssize_t more) except -1:
        """Room for so many rows in all, and so many bytes more."""
        self.ends.ensure(4 * rows + 4)
        self.bits.ensure((rows >> 3) + 8)
        self.data.ensure(self.data.size + more)
        return 0

    cdef int show(self, str name, Py_ssize_t rows, dict found) except -1:
        self.ends.size = 4 * rows + 4
        self.bits.size = (rows + 7) >> 3
        found[name + " ends"] = self.ends
        found[name + " data"] = self.data
        found[name + " bits"] = self.bits
        return 0


cdef struct Cells:
    # A column of byte strings while rows are added, without the GIL.
    int32_t *ends
    uint8_t *data
    uint8_t *bits
    Py_ssize_t size
    Py_ssize_t nulls


cdef inline Cells cells_of(_Bytes column) noexcept nogil:
    cdef Cells cells
    cells.ends = <int32_t *>column.ends.data
    cells.data = column.data.data
    cells.bits = column.bits.data
    cells.size = column.data.size
    cells.nulls = column.nulls
    return cells


cdef inline void add_cell(Cells *cells, Py_ssize_t row, const uint8_t *start, int32_t length) noexcept nogil:
    """One row, null where the length is negative; there is room for it."""
    if length < 0:
        cells.nulls += 1
    else:
        memcpy(cells.data + cells.size, start, length)
        cells.size += length
        set_bit(cells.bits, row)
    cells.ends[row + 1] = <int32_t>cells.size


cdef inline void keep_cells(_Bytes column, Cells *cells) noexcept nogil:
    column.data.size = cells.size
    column.nulls = cells.nulls


cdef class _Headers:
    """The headers of all rows: names, which are text, and contents."""

    cdef Py_ssize_t rows
    cdef _Bytes name
    cdef _Bytes content

    def __cinit__(self):
        self.name, self.content = _Bytes(), _Bytes()

    cdef int take(self, Layout *r) except -1:
        """Those of one record."""
        cdef const uint8_t *p = r.headers
        cdef int32_t count = r.header_count
        cdef int32_t length
        while count > 0:
            if tl_varint32(&p, r.stop, &length) or length < 0 or length > r.stop - p:
                raise MalformedRecords(MALFORMED, 0)
            self.add_name(p, length)
            p += length
            if tl_varint32(&p, r.stop, &length) or length > r.stop - p:
                raise MalformedRecords(MALFORMED, 0)
            self.add(self.content, p, length)
            if length > 0:
                p += length
            self.rows += 1
            count -= 1
        return 0

    cdef int add_name(self, const uint8_t *p, int32_t length) except -1:
        cdef int32_t index
        cdef bytes text
        for index in range(length):
            if p[index] >= 0x80:  # the column is a text: what is no UTF-8 is marked in it
                text = PyUnicode_DecodeUTF8(<const char *>p, length, "replace").encode()
                p = <const uint8_t *>PyBytes_AS_STRING(text)
                length = <int32_t>PyBytes_GET_SIZE(text)
                break
        return self.add(self.name, p, length)

    cdef int add(self, _Bytes column, const uint8_t *start, int32_t length) except -1:
        cdef Cells cells
        column.reserve(self.rows + 1, max(length, 0))
        cells = cells_of(column)
        add_cell(&cells, self.rows, start, length)
        keep_cells(column, &cells)
        return 0


cdef class _Sink:
    """What the columns of a consumer and the rows of Spark have in common."""

    cdef readonly Py_ssize_t rows
    cdef bint shown
    cdef _Column offset
    cdef _Column timestamp
    cdef _Bytes key
    cdef _Bytes value
    cdef _Column header_ends
    cdef _Headers headers

    def __cinit__(self):
        self.offset, self.timestamp = _Column(), _Column()
        self.key, self.value = _Bytes(), _Bytes()
        self.header_ends, self.headers = ends(), _Headers()

    @property
    def null_keys(self):
        return self.key.nulls

    @property
    def null_values(self):
        return self.value.nulls

    @property
    def null_header_values(self):
        return self.headers.content.nulls

    @property
    def header_rows(self):
        return self.headers.rows

    cdef bint room_for(self, Py_ssize_t size) noexcept:
        return (
            not self.shown
            and self.value.data.size + size < 0x7FFFFFFF
            and self.key.data.size + size < 0x7FFFFFFF
        )

    cdef int take_headers(self, Layout *r) except -1:
        """The headers of the last row."""
        self.headers.take(r)
        (<int32_t *>self.header_ends.data)[self.rows] = <int32_t>self.headers.rows
        return 0


cdef class ColumnSink(_Sink):
    cdef readonly list topics
    cdef readonly Py_ssize_t null_timestamps
    cdef _Column timestamp_bits
    cdef _Column partition
    cdef _Column topic

    def __cinit__(self):
        self.topics = []
        self.timestamp_bits, self.partition, self.topic = bitmap(), _Column(), _Column()

    def has_room(self, Py_ssize_t size):
        return self.room_for(size)

    def expect(self, Py_ssize_t size):
        if size < 0x7FFFFFFF:
            self.value.data.ensure(size)

    cdef int32_t topic_index(self, str topic) except -1:
        if topic not in self.topics:
            self.topics.append(topic)
        return <int32_t>self.topics.index(topic)

    cdef int reserve_rows(self, Py_ssize_t more, Py_ssize_t size) except -1:
        """Room for so many rows, whose keys and values are so many bytes at most."""
        cdef Py_ssize_t rows = self.rows + more
        self.offset.ensure(8 * rows)
        self.timestamp.ensure(8 * rows)
        self.timestamp_bits.ensure((rows >> 3) + 8)
        self.partition.ensure(4 * rows)
        self.topic.ensure(4 * rows)
        self.key.reserve(rows, size)
        self.value.reserve(rows, size)
        self.header_ends.ensure(4 * rows + 4)
        return 0

    cdef void name_rows(self, Py_ssize_t first, int32_t topic, int32_t partition) noexcept:
        cdef int32_t *topics = <int32_t *>self.topic.data
        cdef int32_t *partitions = <int32_t *>self.partition.data
        cdef Py_ssize_t row
        for row in range(first, self.rows):
            topics[row] = topic
            partitions[row] = partition

    def buffers(self):
        cdef Py_ssize_t rows = self.rows
        cdef dict found
        self.shown = True
        self.offset.size = self.timestamp.size = 8 * rows
        self.partition.size = self.topic.size = 4 * rows
        self.timestamp_bits.size = (rows + 7) >> 3
        self.header_ends.size = 4 * rows + 4
        found = {
            "offset": self.offset,
            "timestamp": self.timestamp,
            "timestamp bits": self.timestamp_bits,
            "partition": self.partition,
            "topic": self.topic,
            "headers ends": self.header_ends,
        }
        self.key.show("key", rows, found)
        self.value.show("value", rows, found)
        self.headers.name.show("header key", self.headers.rows, found)
        self.headers.content.show("header value", self.headers.rows, found)
        return found


# The rows of an offset range, as Spark's connector has them


cdef class RowSink(_Sink):
    cdef readonly bint ended
    cdef readonly Py_ssize_t null_headers
    cdef int64_t end
    cdef bint with_keys
    cdef bint with_values
    cdef bint with_headers
    cdef _Column timestamp_type
    cdef _Column header_bits

    def __cinit__(self, int64_t end, *, bint keys=True, bint values=True, bint headers=False):
        self.end = end
        self.with_keys, self.with_values, self.with_headers = keys, values, headers
        self.timestamp_type, self.header_bits = _Column(), bitmap()

    cdef int reserve(self, Py_ssize_t more, Py_ssize_t size) except -1:
        """Room for so many rows, whose keys and values are so many bytes at most."""
        cdef Py_ssize_t rows = self.rows + more
        self.offset.ensure(8 * rows)
        self.timestamp.ensure(8 * rows)
        self.timestamp_type.ensure(4 * rows)
        if self.with_keys:
            self.key.reserve(rows, size)
        if self.with_values:
            self.value.reserve(rows, size)
        if self.with_headers:
            self.header_ends.ensure(4 * rows + 4)
            self.header_bits.ensure((rows >> 3) + 8)
        return 0

    def fill(self, RecordReader reader not None, Py_ssize_t limit):
        cdef Py_ssize_t made = 0
        cdef Py_ssize_t before
        cdef int found
        cdef Layout r
        if self.rows == 0 and not self.shown and reader.size < 0x40000000:
            # What is to come is known in about: growing would copy it.
            if self.with_values:
                self.value.data.ensure(reader.size)
        while made < limit and not self.ended:
            if reader.left == 0 and not reader.may_advance(made == 0):
                break
            if not self.room_for(reader.stop - reader.p):
                break
            self.reserve(min(reader.left, limit - made), reader.stop - reader.p)
            before = self.rows
            with nogil:
                found = fill_rows(reader, self, limit - made, &r)
            made += self.rows - before
            if found == HEADERS_NEXT:
                self.take_headers(&r)
                set_bit(self.header_bits.data, self.rows - 1)
            elif found != OK:
                if made == 0:
                    raise reader.bad_record()
                break
            reader.batch_ended()
        return made

    def buffers(self):
        cdef Py_ssize_t rows = self.rows
        cdef dict found
        self.shown = True
        self.offset.size = self.timestamp.size = 8 * rows
        self.timestamp_type.size = 4 * rows
        found = {"offset": self.offset, "timestamp": self.timestamp, "timestampType": self.timestamp_type}
        if self.with_keys:
            self.key.show("key", rows, found)
        if self.with_values:
            self.value.show("value", rows, found)
        if self.with_headers:
            self.header_ends.size = 4 * rows + 4
            self.header_bits.size = (rows + 7) >> 3
            found["headers ends"], found["headers bits"] = self.header_ends, self.header_bits
            self.headers.name.show("header key", self.headers.rows, found)
            self.headers.content.show("header value", self.headers.rows, found)
        return found


cdef int fill_rows(RecordReader reader, RowSink sink, Py_ssize_t limit, Layout *r) noexcept nogil:
    """Rows of one batch until it or the range ends, so many were made, or one has headers, which is then in `r`."""
    cdef Py_ssize_t row = sink.rows
    cdef Py_ssize_t last = row + limit
    cdef int found = OK
    cdef int64_t offset, timestamp
    cdef int64_t *offsets = <int64_t *>sink.offset.data
    cdef int64_t *timestamps = <int64_t *>sink.timestamp.data
    cdef int32_t *kinds = <int32_t *>sink.timestamp_type.data
    cdef int32_t *header_ends = <int32_t *>sink.header_ends.data
    cdef Cells keys = cells_of(sink.key)
    cdef Cells values = cells_of(sink.value)
    cdef const uint8_t *p = reader.p
    while reader.left > 0 and row < last:
        found = read_record(&p, reader.stop, r)
        if found != OK:
            break
        reader.left -= 1
        offset = tl_add64(reader.base_offset, r.offset_delta)
        if offset < reader.position:
            continue
        if offset >= sink.end:
            sink.ended = True
            break
        reader.position = offset + 1
        offsets[row] = offset
        timestamp = reader.append_time if reader.appended else tl_add64(reader.base_timestamp, r.timestamp_delta)
        timestamps[row] = <int64_t>(<uint64_t>timestamp * 1000)
        kinds[row] = reader.appended
        if sink.with_keys:
            add_cell(&keys, row, r.key, r.key_length)
        if sink.with_values:
            add_cell(&values, row, r.value, r.value_length)
        row += 1
        if sink.with_headers:
            header_ends[row] = <int32_t>sink.headers.rows
            if r.header_count:
                found = HEADERS_NEXT
                break
            sink.null_headers += 1
    reader.p = p
    sink.rows = row
    keep_cells(sink.key, &keys)
    keep_cells(sink.value, &values)
    return found
