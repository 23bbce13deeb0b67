# Numbers in bytes: checksums (CRC-32C, by the processor's instruction if it has one), big-endian integers,
# varints, and the range check at the start of every function here.

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


cdef int require(Py_buffer *view, Py_ssize_t start, Py_ssize_t end) except -1:
    if not 0 <= start <= end <= view.len:
        raise ValueError(f"range {start}:{end} is outside of a buffer of {view.len} bytes")
    return 0


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
    from crc32c import crc32c  # slow to import, and needed only on processors without the instruction

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
