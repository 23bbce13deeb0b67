# Lists, maps and objects, and the choice of the reader for a value of the schema.

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
    """Whether a key occurs twice among the keys from a row on."""
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
    """The field of a name, -1 for none. It looks first at the next field in the order of the schema."""
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
    """Parse a name with escapes, which are rare but valid; returns the position after its closing quote."""
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
    """Parse the value at `p` as a row of a node; returns the position after it."""
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
    """Handle a null, or a value that is not of the node's kind."""
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
