# Scalar values of the schema: strings, numbers, dates and times, bytes.

cdef extern from *:
    """
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
    void tl_put128(uint8_t *out, const uint8_t *digits, int count, int zeros, int negative) noexcept nogil
    const double tl_tens[23]


cdef const uint8_t *read_text(Pass *run, int index, const uint8_t *p, const uint8_t *end) noexcept nogil:
    """Parse the string after the quote into the data of a node; returns the position after it."""
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
    """Convert a valid number."""
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
    # Both are exact in a double, so there is only one rounding, to the nearest.
    if count <= 19 and digits <= 1 << 53 and -22 <= exponent <= 22:
        value = <double>digits
        value = value / tl_tens[-exponent] if exponent < 0 else value * tl_tens[exponent]
        return -value if negative else value
    return float(PyBytes_FromStringAndSize(<const char *>at, end - at))


cdef const uint8_t *read_decimal(Pass *run, int index, const uint8_t *p, const uint8_t *end) noexcept nogil:
    """A number, or a number in a string, that fits precision and scale without rounding."""
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
    """A number of exactly this many digits, or -1."""
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
    """The date `YYYY-MM-DD` as days since 1970."""
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
    # Years begin in March, in eras of 400 years.
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
    """`YYYY-MM-DD`, a time with up to nine digits after the second, and a zone; the default is UTC."""
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
    """Parse the zone of a time: `Z`, `+HH`, `+HHMM` or `+HH:MM`."""
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
