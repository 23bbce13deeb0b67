# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The compiled twin of `_pure_json`: JSON values into columns in Arrow's layout, in one pass over the bytes.

A row is undone where something is wrong with it, and stands as nulls with its reason; the others go on.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcmp, memcpy, memset

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    #if defined(__SSE2__)
    #include <emmintrin.h>
    #endif

    /* The first byte that ends a plain run of a string: a quote, a backslash, a control or a non-ASCII byte. */
    static inline const uint8_t *tl_plain(const uint8_t *p, const uint8_t *end) {
    #if defined(__SSE2__)
        const __m128i quote = _mm_set1_epi8('"'), slash = _mm_set1_epi8('\\\\'), space = _mm_set1_epi8(0x20);
        while (end - p >= 16) {
            __m128i bytes = _mm_loadu_si128((const __m128i *)p);
            /* Signed: bytes from 0x80 on are below the space as well. */
            __m128i hit = _mm_or_si128(
                _mm_or_si128(_mm_cmpeq_epi8(bytes, quote), _mm_cmpeq_epi8(bytes, slash)),
                _mm_cmplt_epi8(bytes, space));
            int mask = _mm_movemask_epi8(hit);
            if (mask) return p + __builtin_ctz(mask);
            p += 16;
        }
    #endif
        while (p < end && *p >= 0x20 && *p < 0x80 && *p != '"' && *p != '\\\\') p++;
        return p;
    }

    /* The length of the UTF-8 sequence at p, 0 where it is none. */
    static inline int tl_utf8(const uint8_t *p, const uint8_t *end) {
        uint8_t a = p[0];
        if (a < 0xc2) return 0;
        if (a < 0xe0) return end - p >= 2 && (p[1] & 0xc0) == 0x80 ? 2 : 0;
        if (a < 0xf0) {
            if (end - p < 3 || (p[1] & 0xc0) != 0x80 || (p[2] & 0xc0) != 0x80) return 0;
            if (a == 0xe0 && p[1] < 0xa0) return 0;
            return a == 0xed && p[1] > 0x9f ? 0 : 3;
        }
        if (a > 0xf4 || end - p < 4) return 0;
        if ((p[1] & 0xc0) != 0x80 || (p[2] & 0xc0) != 0x80 || (p[3] & 0xc0) != 0x80) return 0;
        if (a == 0xf0 && p[1] < 0x90) return 0;
        return a == 0xf4 && p[1] > 0x8f ? 0 : 4;
    }

    static inline const uint8_t *tl_space(const uint8_t *p, const uint8_t *end) {
        while (p < end && (*p == ' ' || *p == '\\n' || *p == '\\r' || *p == '\\t')) p++;
        return p;
    }

    /* Digits times a power of ten as a two's complement number of 16 bytes, little end first. */
    static inline void tl_put128(uint8_t *out, const uint8_t *digits, int count, int zeros, int negative) {
        unsigned __int128 value = 0;
        for (int i = 0; i < count; i++) value = value * 10 + digits[i];
        for (int i = 0; i < zeros; i++) value *= 10;
        if (negative) value = (unsigned __int128)0 - value;
        for (int i = 0; i < 16; i++) { out[i] = (uint8_t)value; value >>= 8; }
    }

    static const double tl_tens[] = {
        1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17,
        1e18, 1e19, 1e20, 1e21, 1e22};
    """
    const uint8_t *tl_plain(const uint8_t *p, const uint8_t *end) noexcept nogil
    int tl_utf8(const uint8_t *p, const uint8_t *end) noexcept nogil
    const uint8_t *tl_space(const uint8_t *p, const uint8_t *end) noexcept nogil
    void tl_put128(uint8_t *out, const uint8_t *digits, int count, int zeros, int negative) noexcept nogil
    const double tl_tens[23]

# The numbers of `_pure_json`, where their meaning stands.
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
    # What is gone back to where a row is undone.
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
    """Memory that was taken from a column and is given back with the last who looks at it."""

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
    """Room for so many bytes in all; what is new is zero."""
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
    """Room for one row more in what every kind has."""
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
    """The row that was just put is one."""
    node.bits.data[node.rows >> 3] |= <uint8_t>(1 << (node.rows & 7))
    node.rows += 1


cdef inline void put_end(Pass *run, Node *node) noexcept nogil:
    """The end of the row about to be counted."""
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


# What is not of the schema is looked at for its form alone


cdef const uint8_t *skip_string(const uint8_t *p, const uint8_t *end) noexcept nogil:
    """Behind the closing quote of a string whose opening quote is before `p`; NULL where it is none."""
    cdef int length
    cdef uint32_t high, low
    while True:
        p = tl_plain(p, end)
        if p >= end:
            return NULL
        if p[0] == c'"':
            return p + 1
        if p[0] >= 0x80:
            length = tl_utf8(p, end)
            if length == 0:
                return NULL
            p += length
        elif p[0] != c'\\':
            return NULL
        elif end - p < 2:
            return NULL
        elif p[1] == c'u':
            if not hex4(p + 2, end, &high):
                return NULL
            p += 6
            if 0xD800 <= high < 0xE000:
                if high >= 0xDC00 or end - p < 6 or p[0] != c'\\' or p[1] != c'u' or not hex4(p + 2, end, &low):
                    return NULL
                if not 0xDC00 <= low < 0xE000:
                    return NULL
                p += 6
        elif unescaped(p[1]) == 0:
            return NULL
        else:
            p += 2


cdef inline uint8_t unescaped(uint8_t c) noexcept nogil:
    if c == c'"' or c == c'\\' or c == c'/':
        return c
    if c == c'n':
        return 10
    if c == c't':
        return 9
    if c == c'r':
        return 13
    if c == c'b':
        return 8
    if c == c'f':
        return 12
    return 0


cdef bint hex4(const uint8_t *p, const uint8_t *end, uint32_t *value) noexcept nogil:
    cdef int i
    cdef uint8_t c
    if end - p < 4:
        return False
    value[0] = 0
    for i in range(4):
        c = p[i]
        if c'0' <= c <= c'9':
            c -= c'0'
        elif c'a' <= (c | 0x20) <= c'f':
            c = (c | 0x20) - c'a' + 10
        else:
            return False
        value[0] = value[0] << 4 | c
    return True


cdef const uint8_t *skip_number(const uint8_t *p, const uint8_t *end, bint *whole) noexcept nogil:
    """Behind a number; NULL where it is none."""
    whole[0] = True
    if p < end and p[0] == c'-':
        p += 1
    if p >= end:
        return NULL
    if p[0] == c'0':
        p += 1
    elif c'1' <= p[0] <= c'9':
        while p < end and c'0' <= p[0] <= c'9':
            p += 1
    else:
        return NULL
    if p < end and p[0] == c'.':
        whole[0] = False
        p += 1
        if p >= end or not c'0' <= p[0] <= c'9':
            return NULL
        while p < end and c'0' <= p[0] <= c'9':
            p += 1
    if p < end and (p[0] | 0x20) == c'e':
        whole[0] = False
        p += 1
        if p < end and (p[0] == c'+' or p[0] == c'-'):
            p += 1
        if p >= end or not c'0' <= p[0] <= c'9':
            return NULL
        while p < end and c'0' <= p[0] <= c'9':
            p += 1
    return p


cdef inline const uint8_t *skip_word(const uint8_t *p, const uint8_t *end) noexcept nogil:
    if end - p >= 4 and (memcmp(p, b"true", 4) == 0 or memcmp(p, b"null", 4) == 0):
        return p + 4
    if end - p >= 5 and memcmp(p, b"false", 5) == 0:
        return p + 5
    return NULL


cdef const uint8_t *skip_value(Pass *run, const uint8_t *p, const uint8_t *end, int depth) noexcept nogil:
    """Behind the value that starts at `p`."""
    cdef const uint8_t *at = p
    cdef const uint8_t *q
    cdef bint whole
    cdef uint8_t close
    if p >= end:
        return fail(run, SYNTAX, 0, p)
    if p[0] == c'"':
        q = skip_string(p + 1, end)
    elif p[0] == c'{' or p[0] == c'[':
        if depth >= MAX_DEPTH:
            return fail(run, TOO_DEEP, 0, p)
        close = p[0] + 2
        p = tl_space(p + 1, end)
        if p < end and p[0] == close:
            return p + 1
        while True:
            if close == c'}':
                if p >= end or p[0] != c'"':
                    return fail(run, SYNTAX, 0, p)
                q = skip_string(p + 1, end)
                if q == NULL:
                    return fail(run, SYNTAX, 0, p)
                p = tl_space(q, end)
                if p >= end or p[0] != c':':
                    return fail(run, SYNTAX, 0, p)
                p = tl_space(p + 1, end)
            p = skip_value(run, p, end, depth + 1)
            if p == NULL:
                return NULL
            p = tl_space(p, end)
            if p < end and p[0] == close:
                return p + 1
            if p >= end or p[0] != c',':
                return fail(run, SYNTAX, 0, p)
            p = tl_space(p + 1, end)
    elif p[0] == c'-' or c'0' <= p[0] <= c'9':
        q = skip_number(p, end, &whole)
    else:
        q = skip_word(p, end)
    return q if q != NULL else fail(run, SYNTAX, 0, at)


# Values of the schema


cdef const uint8_t *read_text(Pass *run, int index, const uint8_t *p, const uint8_t *end) noexcept nogil:
    """The string behind the quote into the data of a node; behind its closing quote."""
    cdef Node *node = &run.nodes[index]
    cdef const uint8_t *start = p
    cdef uint8_t *out
    cdef int length
    cdef uint32_t point, low
    if node.data.size + (end - p) >= 0x7FFFFFFF or not grow(&node.data, node.data.size + (end - p)):
        return fail(run, NO_MEMORY, index, p)
    out = node.data.data + node.data.size
    while True:
        p = tl_plain(p, end)
        if p >= end:
            return fail(run, SYNTAX, index, p)
        if p[0] >= 0x80:
            length = tl_utf8(p, end)
            if length == 0:
                return fail(run, SYNTAX, index, p)
            p += length
            continue
        if p > start:
            memcpy(out, start, p - start)
            out += p - start
        if p[0] == c'"':
            node.data.size = out - node.data.data
            return p + 1
        if p[0] != c'\\' or end - p < 2:
            return fail(run, SYNTAX, index, p)
        if p[1] == c'u':
            if not hex4(p + 2, end, &point):
                return fail(run, SYNTAX, index, p)
            p += 6
            if 0xD800 <= point < 0xE000:
                if point >= 0xDC00 or end - p < 6 or p[0] != c'\\' or p[1] != c'u' or not hex4(p + 2, end, &low):
                    return fail(run, SYNTAX, index, p)
                if not 0xDC00 <= low < 0xE000:
                    return fail(run, SYNTAX, index, p)
                point = 0x10000 + ((point - 0xD800) << 10) + (low - 0xDC00)
                p += 6
            out = put_point(out, point)
        else:
            out[0] = unescaped(p[1])
            if out[0] == 0:
                return fail(run, SYNTAX, index, p)
            out += 1
            p += 2
        start = p


cdef inline uint8_t *put_point(uint8_t *out, uint32_t point) noexcept nogil:
    if point < 0x80:
        out[0] = <uint8_t>point
        return out + 1
    if point < 0x800:
        out[0] = <uint8_t>(0xC0 | point >> 6)
        out[1] = <uint8_t>(0x80 | point & 0x3F)
        return out + 2
    if point < 0x10000:
        out[0] = <uint8_t>(0xE0 | point >> 12)
        out[1] = <uint8_t>(0x80 | point >> 6 & 0x3F)
        out[2] = <uint8_t>(0x80 | point & 0x3F)
        return out + 3
    out[0] = <uint8_t>(0xF0 | point >> 18)
    out[1] = <uint8_t>(0x80 | point >> 12 & 0x3F)
    out[2] = <uint8_t>(0x80 | point >> 6 & 0x3F)
    out[3] = <uint8_t>(0x80 | point & 0x3F)
    return out + 4


cdef const uint8_t *read_int(Pass *run, int index, const uint8_t *p, const uint8_t *end) noexcept nogil:
    cdef Node *node = &run.nodes[index]
    cdef const uint8_t *at = p
    cdef const uint8_t *digits
    cdef bint negative = p[0] == c'-'
    cdef bint whole
    cdef uint64_t value = 0
    cdef uint64_t limit
    cdef int64_t signed_value
    cdef int shift
    if negative:
        p += 1
    digits = p
    while p < end and c'0' <= p[0] <= c'9':
        if p - digits < 19:
            value = value * 10 + (p[0] - c'0')
        p += 1
    if p == digits or (digits[0] == c'0' and p - digits > 1):
        return fail(run, SYNTAX, index, at)
    if p < end and (p[0] == c'.' or (p[0] | 0x20) == c'e'):
        if skip_number(at, end, &whole) == NULL:
            return fail(run, SYNTAX, index, at)
        return fail(run, WRONG_TYPE, index, at)
    shift = 8 * node.width - 1
    limit = (<uint64_t>1 << shift) - 1
    if negative:
        limit += 1
    if p - digits > 19 or value > limit:
        return fail(run, OUT_OF_RANGE, index, at)
    signed_value = <int64_t>(0 - value) if negative else <int64_t>value
    memcpy(node.data.data + node.width * node.rows, &signed_value, node.width)  # the low bytes come first
    return p


cdef const uint8_t *read_double(Pass *run, int index, const uint8_t *p, const uint8_t *end) noexcept:
    cdef Node *node = &run.nodes[index]
    cdef bint whole
    cdef const uint8_t *q = skip_number(p, end, &whole)
    cdef double value
    cdef float small
    if q == NULL:
        return fail(run, SYNTAX, index, p)
    value = double_of(p, q)
    if node.kind == FLOAT:
        small = <float>value
        if small - small != 0:
            return fail(run, OUT_OF_RANGE, index, p)
        memcpy(node.data.data + 4 * node.rows, &small, 4)
    else:
        if value - value != 0:
            return fail(run, OUT_OF_RANGE, index, p)
        memcpy(node.data.data + 8 * node.rows, &value, 8)
    return q


cdef double double_of(const uint8_t *p, const uint8_t *end) noexcept:
    """A number that is known to be one."""
    cdef const uint8_t *at = p
    cdef bint negative = p[0] == c'-'
    cdef uint64_t digits = 0
    cdef int count = 0
    cdef int exponent = 0
    cdef int written = 0
    cdef bint below = False
    cdef bint minus
    cdef double value
    if negative:
        p += 1
    while p < end and (p[0] | 0x20) != c'e':
        if p[0] == c'.':
            below = True
        else:
            if count < 19:
                digits = digits * 10 + (p[0] - c'0')
            if digits or count:
                count += 1
            exponent -= below
        p += 1
    if p < end:
        p += 1
        minus = p[0] == c'-'
        if p[0] == c'-' or p[0] == c'+':
            p += 1
        while p < end and written < 10000:
            written = written * 10 + (p[0] - c'0')
            p += 1
        exponent += -written if minus else written
    # Both are exact in a double, so that one rounding is made: the nearest.
    if count <= 19 and digits <= 1 << 53 and -22 <= exponent <= 22:
        value = <double>digits
        value = value / tl_tens[-exponent] if exponent < 0 else value * tl_tens[exponent]
        return -value if negative else value
    return float(PyBytes_FromStringAndSize(<const char *>at, end - at))


cdef const uint8_t *read_decimal(Pass *run, int index, const uint8_t *p, const uint8_t *end) noexcept nogil:
    """A number, or one in a string, that fits precision and scale without being rounded."""
    cdef Node *node = &run.nodes[index]
    cdef const uint8_t *at = p
    cdef const uint8_t *q
    cdef bint quoted = p[0] == c'"'
    cdef bint whole, minus
    cdef bint negative = False
    cdef bint below = False
    cdef uint8_t digits[MAX_DIGITS]
    cdef int count = 0
    cdef int exponent = 0
    cdef int written = 0
    if quoted:
        p += 1
    q = skip_number(p, end, &whole)
    if q == NULL or (quoted and (q >= end or q[0] != c'"')):
        if not quoted:
            return fail(run, SYNTAX, index, at)
        return fail(run, BAD_CONTENT if skip_string(at + 1, end) != NULL else SYNTAX, index, at)
    if p[0] == c'-':
        negative = True
        p += 1
    while p < q and (p[0] | 0x20) != c'e':
        if p[0] == c'.':
            below = True
        else:
            if count or p[0] != c'0':
                if count == MAX_DIGITS:
                    return fail(run, OUT_OF_RANGE, index, at)
                digits[count] = p[0] - c'0'
                count += 1
            exponent -= below
        p += 1
    if p < q:
        p += 1
        minus = p[0] == c'-'
        if p[0] == c'-' or p[0] == c'+':
            p += 1
        while p < q and written < 10000:
            written = written * 10 + (p[0] - c'0')
            p += 1
        exponent += -written if minus else written
    exponent += node.scale
    while count and exponent < 0 and digits[count - 1] == 0:
        count -= 1
        exponent += 1
    if count == 0:
        exponent = 0
    if exponent < 0 or count + exponent > node.precision:
        return fail(run, OUT_OF_RANGE, index, at)
    tl_put128(node.data.data + 16 * node.rows, digits, count, exponent, negative)
    return q + quoted


cdef int number(const uint8_t *p, const uint8_t *end, int digits) noexcept nogil:
    """A number of exactly so many digits, -1 where there is none."""
    cdef int value = 0
    cdef int i
    if end - p < digits:
        return -1
    for i in range(digits):
        if not c'0' <= p[i] <= c'9':
            return -1
        value = value * 10 + (p[i] - c'0')
    return value


cdef bint day_of(const uint8_t *p, const uint8_t *end, int64_t *days) noexcept nogil:
    """The day of `YYYY-MM-DD`, counted from 1970."""
    cdef int year = number(p, end, 4)
    cdef int month, day, last, era, in_era
    if year < 1 or end - p < 10 or p[4] != c'-' or p[7] != c'-':
        return False
    month, day = number(p + 5, end, 2), number(p + 8, end, 2)
    if not 1 <= month <= 12 or day < 1:
        return False
    last = 31
    if month == 2:
        last = 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    elif month == 4 or month == 6 or month == 9 or month == 11:
        last = 30
    if day > last:
        return False
    # Years from March on, in eras of 400 years.
    if month <= 2:
        year -= 1
    era = year // 400
    in_era = year - era * 400
    month = month - 3 if month > 2 else month + 9
    days[0] = <int64_t>era * 146097 + in_era * 365 + in_era // 4 - in_era // 100
    days[0] += (153 * month + 2) // 5 + day - 1 - 719468
    return True


cdef const uint8_t *read_date(Pass *run, int index, const uint8_t *p, const uint8_t *end) noexcept nogil:
    cdef Node *node = &run.nodes[index]
    cdef const uint8_t *stop = skip_string(p, end)
    cdef int64_t days
    cdef int32_t value
    if stop == NULL:
        return fail(run, SYNTAX, index, p)
    if stop - p != 11 or not day_of(p, stop - 1, &days):
        return fail(run, BAD_CONTENT, index, p)
    value = <int32_t>days
    memcpy(node.data.data + 4 * node.rows, &value, 4)
    return stop


cdef const uint8_t *read_time(Pass *run, int index, const uint8_t *p, const uint8_t *end) noexcept nogil:
    """`YYYY-MM-DD`, a time of day with up to nine digits of a second, and a zone; UTC where there is none."""
    cdef Node *node = &run.nodes[index]
    cdef const uint8_t *stop = skip_string(p, end)
    cdef int64_t value
    if stop == NULL:
        return fail(run, SYNTAX, index, p)
    if not time_of(p, stop - 1, node.kind == TIMESTAMP, &value):
        return fail(run, BAD_CONTENT, index, p)
    memcpy(node.data.data + 8 * node.rows, &value, 8)
    return stop


cdef bint time_of(const uint8_t *p, const uint8_t *end, bint zoned, int64_t *value) noexcept nogil:
    cdef int64_t days
    cdef int hour, minute, second, digit, i
    cdef int64_t fraction = 0
    cdef int64_t seconds
    if not day_of(p, end, &days):
        return False
    value[0] = days * 86400 * <int64_t>1000000
    p += 10
    if p == end:
        return True
    if p[0] != c'T' and p[0] != c' ':
        return False
    hour, minute, second = number(p + 1, end, 2), number(p + 4, end, 2), 0
    if not 0 <= hour < 24 or p[3] != c':' or not 0 <= minute < 60:
        return False
    p += 6
    if p < end and p[0] == c':':
        second = number(p + 1, end, 2)
        if not 0 <= second < 60:
            return False
        p += 3
        if p < end and p[0] == c'.':
            p += 1
            i = 0
            while p < end and c'0' <= p[0] <= c'9':
                digit = p[0] - c'0'
                if i < 6:
                    fraction = fraction * 10 + digit
                i += 1
                p += 1
            if i == 0 or i > 9:
                return False
            while i < 6:
                fraction *= 10
                i += 1
    seconds = hour * 3600 + minute * 60 + second
    value[0] += seconds * 1000000 + fraction
    if p == end:
        return True
    if not zoned:
        return False
    return zone_of(p, end, value)


cdef bint zone_of(const uint8_t *p, const uint8_t *end, int64_t *value) noexcept nogil:
    """Takes `Z`, `+HH`, `+HHMM` or `+HH:MM` off a time."""
    cdef int hour, minute
    cdef int64_t minutes
    if end - p == 1 and p[0] == c'Z':
        return True
    if p[0] != c'+' and p[0] != c'-':
        return False
    hour, minute = number(p + 1, end, 2), 0
    if end - p == 5:
        minute = number(p + 3, end, 2)
    elif end - p == 6 and p[3] == c':':
        minute = number(p + 4, end, 2)
    elif end - p != 3:
        return False
    if not 0 <= hour <= 18 or not 0 <= minute < 60:
        return False
    minutes = hour * 60 + minute
    value[0] += (minutes if p[0] == c'-' else -minutes) * 60000000
    return True


cdef inline int base64_digit(uint8_t c) noexcept nogil:
    if c'A' <= c <= c'Z':
        return c - c'A'
    if c'a' <= c <= c'z':
        return c - c'a' + 26
    if c'0' <= c <= c'9':
        return c - c'0' + 52
    if c == c'+':
        return 62
    if c == c'/':
        return 63
    return -1


cdef const uint8_t *read_binary(Pass *run, int index, const uint8_t *p, const uint8_t *end) noexcept nogil:
    """Bytes in Base64, with its padding."""
    cdef Node *node = &run.nodes[index]
    cdef int64_t before = node.data.size
    cdef const uint8_t *stop = read_text(run, index, p, end)
    cdef uint8_t *text
    cdef uint8_t *out
    cdef int64_t size, i
    cdef uint32_t word
    cdef int digit, k, pad
    if stop == NULL:
        return NULL
    text = out = node.data.data + before
    size = node.data.size - before
    if size % 4:
        return fail(run, BAD_CONTENT, index, p)
    for i in range(0, size, 4):
        pad, word = 0, 0
        for k in range(4):
            if text[i + k] == c'=' and i + 4 == size and k >= 2:
                pad += 1
                digit = 0
            else:
                digit = base64_digit(text[i + k])
                if digit < 0 or pad:
                    return fail(run, BAD_CONTENT, index, p)
            word = word << 6 | <uint32_t>digit
        if (pad == 1 and word & 0xFF) or (pad == 2 and word & 0xFFFF):
            return fail(run, BAD_CONTENT, index, p)
        for k in range(3 - pad):
            out[0] = <uint8_t>(word >> (16 - 8 * k))
            out += 1
    node.data.size = out - node.data.data
    return stop


cdef const uint8_t *read_list(Pass *run, int index, const uint8_t *p, const uint8_t *end, int depth) noexcept:
    cdef Node *node = &run.nodes[index]
    p = tl_space(p + 1, end)
    if p < end and p[0] == c']':
        return p + 1
    while True:
        p = read_value(run, node.first, p, end, depth + 1)
        if p == NULL:
            return NULL
        p = tl_space(p, end)
        if p < end and p[0] == c']':
            return p + 1
        if p >= end or p[0] != c',':
            return fail(run, SYNTAX, index, p)
        p = tl_space(p + 1, end)


cdef const uint8_t *read_map(Pass *run, int index, const uint8_t *p, const uint8_t *end, int depth) noexcept:
    cdef Node *node = &run.nodes[index]
    cdef Node *keys = &run.nodes[node.first]
    cdef int64_t before = keys.rows
    cdef const uint8_t *at = p
    p = tl_space(p + 1, end)
    if p < end and p[0] == c'}':
        return p + 1
    while True:
        if p >= end or p[0] != c'"':
            return fail(run, SYNTAX, index, p)
        if not reserve_row(keys):
            return fail(run, NO_MEMORY, index, p)
        p = read_text(run, node.first, p + 1, end)
        if p == NULL:
            return NULL
        put_end(run, keys)
        valid(keys)
        p = tl_space(p, end)
        if p >= end or p[0] != c':':
            return fail(run, SYNTAX, index, p)
        p = read_value(run, node.first + 1, tl_space(p + 1, end), end, depth + 1)
        if p == NULL:
            return NULL
        p = tl_space(p, end)
        if p < end and p[0] == c'}':
            break
        if p >= end or p[0] != c',':
            return fail(run, SYNTAX, index, p)
        p = tl_space(p + 1, end)
    if has_twins(keys, before):
        return fail(run, TWICE, index, at)
    return p + 1


cdef bint has_twins(Node *keys, int64_t first) noexcept nogil:
    """Whether a key stands twice among those from a row on."""
    cdef int64_t count = keys.rows - first
    cdef int64_t size = 16
    cdef int64_t i, slot
    cdef int32_t *table
    cdef int32_t *ends = <int32_t *>keys.ends.data
    cdef int32_t start, length, other
    cdef uint32_t digest
    cdef bint found = False
    if count < 2:
        return False
    while size < 2 * count:
        size *= 2
    table = <int32_t *>calloc(size, 4)
    if table == NULL:
        return False
    for i in range(first, keys.rows):
        start, length = ends[i], ends[i + 1] - ends[i]
        digest = 2166136261
        for slot in range(length):
            digest = (digest ^ keys.data.data[start + slot]) * 16777619
        slot = digest & (size - 1)
        while table[slot]:
            other = <int32_t>(first + table[slot] - 1)
            if ends[other + 1] - ends[other] == length and (
                memcmp(keys.data.data + start, keys.data.data + ends[other], length) == 0
            ):
                found = True
            slot = (slot + 1) & (size - 1)
        table[slot] = <int32_t>(i - first + 1)
    free(table)
    return found


cdef inline int field_of(Pass *run, Node *node, const uint8_t *name, int64_t length, int expected) noexcept nogil:
    """The field of a name, looked for where fields in the order of the schema would have it first; -1 for none."""
    cdef int index
    cdef Node *child
    if expected < node.first + node.count:
        child = &run.nodes[expected]
        if child.name_length == length and memcmp(child.name, name, length) == 0:
            return expected
    for index in range(node.first, node.first + node.count):
        child = &run.nodes[index]
        if child.name_length == length and memcmp(child.name, name, length) == 0:
            return index
    return -1


cdef const uint8_t *escaped_field(
    Pass *run, Node *node, const uint8_t *p, const uint8_t *end, int expected, int *field
) noexcept:
    """A name with escapes in it, which nobody writes and everybody may; behind its closing quote."""
    cdef Pass inner
    cdef Node text
    cdef const uint8_t *stop
    memset(&inner, 0, sizeof(Pass))
    memset(&text, 0, sizeof(Node))
    inner.nodes = &text
    text.kind = STRING
    stop = read_text(&inner, 0, p, end)
    if stop == NULL:
        fail(run, inner.error, 0, p)
    else:
        field[0] = field_of(run, node, text.data.data, text.data.size, expected)
    free(text.data.data)
    return stop


cdef const uint8_t *read_struct(Pass *run, int index, const uint8_t *p, const uint8_t *end, int depth) noexcept:
    cdef Node *node = &run.nodes[index]
    cdef const uint8_t *name
    cdef int expected = node.first
    cdef int field = -1
    cdef int found = 0
    cdef int64_t stamp
    run.stamp += 1
    stamp = run.stamp
    p = tl_space(p + 1, end)
    if p < end and p[0] == c'}':
        p += 1
    else:
        while True:
            if p >= end or p[0] != c'"':
                return fail(run, SYNTAX, index, p)
            name = p + 1
            p = tl_plain(name, end)
            if p >= end:
                return fail(run, SYNTAX, index, p)
            if p[0] == c'"':
                field = field_of(run, node, name, p - name, expected)
                p += 1
            else:
                p = escaped_field(run, node, name, end, expected, &field)
                if p == NULL:
                    return NULL
            p = tl_space(p, end)
            if p >= end or p[0] != c':':
                return fail(run, SYNTAX, index, p)
            p = tl_space(p + 1, end)
            if field < 0:
                p = skip_value(run, p, end, depth + 1)
            elif run.nodes[field].seen == stamp:
                return fail(run, TWICE, field, name)
            else:
                run.nodes[field].seen = stamp
                expected = field + 1
                found += 1
                p = read_value(run, field, p, end, depth + 1)
            if p == NULL:
                return NULL
            p = tl_space(p, end)
            if p < end and p[0] == c'}':
                p += 1
                break
            if p >= end or p[0] != c',':
                return fail(run, SYNTAX, index, p)
            p = tl_space(p + 1, end)
    if found < node.count and not fill_missing(run, node, stamp, p):
        return NULL
    return p


cdef bint fill_missing(Pass *run, Node *node, int64_t stamp, const uint8_t *p) noexcept nogil:
    cdef int index
    cdef Node *child
    for index in range(node.first, node.first + node.count):
        child = &run.nodes[index]
        if child.seen == stamp:
            continue
        if child.required:
            fail(run, MISSING, index, p)
            return False
        if not put_null(run, child):
            fail(run, NO_MEMORY, index, p)
            return False
    return True


cdef inline bint starts_as(int kind, uint8_t c) noexcept nogil:
    """Whether a value that starts with `c` may be of a kind."""
    if kind <= DOUBLE:
        if kind == BOOL:
            return c == c't' or c == c'f'
        return c == c'-' or c'0' <= c <= c'9'
    if kind == DECIMAL:
        return c == c'"' or c == c'-' or c'0' <= c <= c'9'
    if kind == ARRAY:
        return c == c'['
    if kind == MAP or kind == STRUCT:
        return c == c'{'
    return c == c'"'


cdef const uint8_t *read_value(Pass *run, int index, const uint8_t *p, const uint8_t *end, int depth) noexcept:
    """The value that starts at `p` as a row of a node; behind it."""
    cdef Node *node = &run.nodes[index]
    cdef const uint8_t *at = p
    cdef int kind = node.kind
    if p >= end:
        return fail(run, SYNTAX, index, p)
    if depth >= MAX_DEPTH:
        return fail(run, TOO_DEEP, index, p)
    if not reserve_row(node):
        return fail(run, NO_MEMORY, index, p)
    if not starts_as(kind, p[0]):
        return read_other(run, index, p, end, depth)
    if kind == STRING:
        p = read_text(run, index, p + 1, end)
    elif kind == BOOL:
        p = skip_word(p, end)
        if p == NULL:
            return fail(run, SYNTAX, index, at)
        if at[0] == c't':
            node.data.data[node.rows >> 3] |= <uint8_t>(1 << (node.rows & 7))
    elif kind <= INT64:
        p = read_int(run, index, p, end)
    elif kind <= DOUBLE:
        p = read_double(run, index, p, end)
    elif kind == STRUCT:
        p = read_struct(run, index, p, end, depth)
    elif kind == ARRAY:
        p = read_list(run, index, p, end, depth)
    elif kind == MAP:
        p = read_map(run, index, p, end, depth)
    elif kind == DECIMAL:
        p = read_decimal(run, index, p, end)
    elif kind == DATE:
        p = read_date(run, index, p + 1, end)
    elif kind == BINARY:
        p = read_binary(run, index, p + 1, end)
    else:
        p = read_time(run, index, p + 1, end)
    if p == NULL:
        return NULL
    if has_ends(kind):
        put_end(run, node)
    valid(node)
    return p


cdef const uint8_t *read_other(Pass *run, int index, const uint8_t *p, const uint8_t *end, int depth) noexcept nogil:
    """A null, or what is not of the node's kind."""
    cdef Node *node = &run.nodes[index]
    if end - p >= 4 and memcmp(p, b"null", 4) == 0:
        if node.required:
            return fail(run, IS_NULL, index, p)
        if not put_null(run, node):
            return fail(run, NO_MEMORY, index, p)
        return p + 4
    if skip_value(run, p, end, depth) == NULL:
        return NULL
    return fail(run, WRONG_TYPE, index, p)


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
    """Go back to where the row began."""
    cdef int index
    cdef int64_t row
    cdef Node *node
    for index in range(1, run.node_count):
        node = &run.nodes[index]
        # The row that was begun and not counted may have left its bit as well.
        for row in range(node.saved_rows, node.rows + 1):
            if row >> 3 < node.bits.room:
                node.bits.data[row >> 3] &= <uint8_t>~(1 << (row & 7))
            if node.kind == BOOL and row >> 3 < node.data.room:
                node.data.data[row >> 3] &= <uint8_t>~(1 << (row & 7))
        node.rows = node.saved_rows
        node.nulls = node.saved_nulls
        node.data.size = node.saved_size


cdef void read_row(Pass *run, const uint8_t *p, const uint8_t *end) noexcept:
    """One value into the columns; what is wrong with it is in `error`, and the columns are as before then."""
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
        # A value that is cut or garbled is called so, even where something else is wrong before that place.
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
        while index < len(order):  # children of a node stand side by side
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
