# The syntax of JSON: values that are not in the schema are only checked for their syntax, and skipped.

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
    """
    const uint8_t *tl_plain(const uint8_t *p, const uint8_t *end) noexcept nogil
    int tl_utf8(const uint8_t *p, const uint8_t *end) noexcept nogil
    const uint8_t *tl_space(const uint8_t *p, const uint8_t *end) noexcept nogil


cdef const uint8_t *skip_string(const uint8_t *p, const uint8_t *end) noexcept nogil:
    """The position after the closing quote of the string that begins at `p`; NULL if it is invalid."""
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
    """The position after a number; NULL if it is invalid."""
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
    """The position after the value that starts at `p`."""
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
