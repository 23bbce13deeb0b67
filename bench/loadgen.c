/* Load generator: speaks just enough of Kafka's protocol (Produce v9, Fetch v12 and v13, FindCoordinator v3,
 * InitProducerId v2, AddPartitionsToTxn v3, EndTxn v3, ApiVersions v0) to load a broker with little CPU of its own.
 * Batches are built once and sent many times. With --keys each has other keys, on one connection; with --idempotent
 * each has the next sequence of its connection's producer id. The error code of each answer is checked. With
 * --transactional, which implies --idempotent, each connection has its own transactional id and commits all its
 * batches in one transaction at the end of the run.
 *
 *   loadgen produce  closed loop of Produce requests on several connections (bounded by --requests, --bytes or --seconds)
 *   loadgen fetch    closed loop of Fetch requests, in order or at random offsets of [--from, --to)
 *   loadgen session  Fetch requests one after the other in one incremental fetch session of all partitions; each names
 *                    partition 0 at its next offset and gets one batch of it, nothing of the others
 *   loadgen latency  one Produce request at a time on one connection; --interval-us makes it an open loop. SIGTERM ends it
 *                    with the result so far
 *   loadgen idle     opens connections, sends one request on each, and holds them until stdin ends
 *
 * Prints one JSON object on stdout. Any error ends it with one line on stderr and status 1.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#ifndef IP_BIND_ADDRESS_NO_PORT
#define IP_BIND_ADDRESS_NO_PORT 24
#endif

enum { HEAD_MAX = 512, SMALL_BUFFER = 64 * 1024, MAX_SAMPLES = 8 * 1000 * 1000, BATCH_HEADER = 61, KEY_SIZE = 16 };
enum { TRANSACTIONAL = 0x10, TRANSACTIONAL_ID_MAX = 64 }; /* a batch attribute; room for an id */
enum { FIND_COORDINATOR = 10, INIT_PRODUCER_ID = 22, ADD_PARTITIONS_TO_TXN = 24, END_TXN = 26 };
enum { COORDINATOR_LOADING = 14, COORDINATOR_NOT_AVAILABLE = 15, NOT_COORDINATOR = 16, CONCURRENT_TRANSACTIONS = 51 };

struct options {
    const char *host, *topic, *topic_id;
    int port, partitions, connections, depth, records, record_size, acks, max_bytes, per_step, sources;
    int64_t requests, bytes, from, to, ts_start, ts_step, interval_us, warmup, keys, idle_at;
    double seconds, deadline, rate;
    uint64_t seed;
    bool random, idempotent, transactional;
};

static struct options opt = {.host = "127.0.0.1", .topic = "bench", .partitions = 1, .connections = 1, .depth = 1,
    .records = 1, .record_size = 100, .acks = 1, .max_bytes = 1 << 20, .per_step = 1, .sources = 8,
    .deadline = 300, .seed = 1};

static uint8_t topic_id[16]; /* opt.topic_id; requests then name the topic by it */

static void fail(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fputs("loadgen: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    exit(1);
}

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static int64_t wall_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec * 1000LL + t.tv_nsec / 1000000;
}

static void sleep_until(int64_t ns) {
    struct timespec t = {ns / 1000000000LL, ns % 1000000000LL};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR) {}
}

static uint64_t next_random(void) { /* xorshift: good enough to scatter offsets, and the same each run */
    opt.seed ^= opt.seed << 13;
    opt.seed ^= opt.seed >> 7;
    opt.seed ^= opt.seed << 17;
    return opt.seed;
}

/* ---- bytes -------------------------------------------------------------------------------------------------- */

static uint8_t *put16(uint8_t *p, uint16_t v) { v = htobe16(v); memcpy(p, &v, 2); return p + 2; }
static uint8_t *put32(uint8_t *p, uint32_t v) { v = htobe32(v); memcpy(p, &v, 4); return p + 4; }
static uint8_t *put64(uint8_t *p, uint64_t v) { v = htobe64(v); memcpy(p, &v, 8); return p + 8; }
static uint16_t get16(const uint8_t *p) { uint16_t v; memcpy(&v, p, 2); return be16toh(v); }
static uint32_t get32(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return be32toh(v); }
static uint64_t get64(const uint8_t *p) { uint64_t v; memcpy(&v, p, 8); return be64toh(v); }

static uint8_t *put_uvarint(uint8_t *p, uint32_t v) {
    for (; v >= 0x80; v >>= 7) *p++ = (uint8_t)v | 0x80;
    *p++ = (uint8_t)v;
    return p;
}

static uint8_t *put_varint(uint8_t *p, int32_t v) { return put_uvarint(p, ((uint32_t)v << 1) ^ (uint32_t)(v >> 31)); }

static uint8_t *put_compact(uint8_t *p, const char *text) {
    size_t n = strlen(text);
    p = put_uvarint(p, (uint32_t)n + 1);
    memcpy(p, text, n);
    return p + n;
}

/* A position in a complete answer. Reading beyond its end is an error, not a crash. */
struct reader { const uint8_t *p, *end; };

static const uint8_t *take(struct reader *r, size_t n) {
    const uint8_t *p = r->p;
    if ((size_t)(r->end - p) < n) fail("an answer ended early");
    r->p += n;
    return p;
}

static uint32_t take_uvarint(struct reader *r) {
    uint32_t v = 0;
    for (int shift = 0; shift < 35; shift += 7) {
        uint8_t b = *take(r, 1);
        v |= (uint32_t)(b & 0x7f) << shift;
        if (!(b & 0x80)) break;
    }
    return v;
}

static void skip_tags(struct reader *r) {
    for (uint32_t n = take_uvarint(r); n > 0; n--) {
        take_uvarint(r);
        uint32_t size = take_uvarint(r);
        take(r, size);
    }
}

static uint32_t crc_table[256];

static uint32_t crc32c(const uint8_t *p, size_t n) {
    if (!crc_table[1])
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t c = i;
            for (int k = 0; k < 8; k++) c = c & 1 ? (c >> 1) ^ 0x82f63b78u : c >> 1;
            crc_table[i] = c;
        }
    uint32_t c = ~0u;
    while (n--) c = crc_table[(c ^ *p++) & 0xff] ^ (c >> 8);
    return ~c;
}

/* ---- requests ----------------------------------------------------------------------------------------------- */

struct request {
    uint8_t head[HEAD_MAX]; /* length, header and body up to the records */
    size_t head_size, partition_at, offset_at;
    uint8_t *batch; /* records and the tags after them; NULL for a fetch */
    size_t batch_size, tail_size;
};

static void seal_batch(uint8_t *batch, size_t size, int64_t timestamp) {
    put64(batch + 27, (uint64_t)timestamp);
    put64(batch + 35, (uint64_t)timestamp);
    put32(batch + 17, crc32c(batch + 21, size - 21));
}

static uint8_t **key_at; /* the key of each record, when there are keys */

static void draw_keys(void) {
    for (int i = 0; i < opt.records; i++) {
        uint64_t key = next_random() % (uint64_t)opt.keys;
        for (int at = KEY_SIZE - 1; at >= 0; at--, key /= 10) key_at[i][at] = (uint8_t)('0' + key % 10);
    }
}

static uint8_t *put_record(uint8_t *p, int delta, int size) { /* no headers, a value that compresses badly */
    uint8_t scratch[64], *q = scratch;
    *q++ = 0;                  /* attributes */
    *q++ = 0;                  /* timestamp delta */
    q = put_varint(q, delta);  /* offset delta */
    if (opt.keys) {            /* a key is a part of the record's size */
        size -= KEY_SIZE;
        q = put_varint(q, KEY_SIZE);
        q += KEY_SIZE;
    } else {
        q = put_varint(q, -1);
    }
    uint8_t *value_at = q;
    q = put_varint(q, size);
    p = put_varint(p, (int32_t)(q - scratch) + size + 1);
    memcpy(p, scratch, (size_t)(q - scratch));
    if (opt.keys) key_at[delta] = p + (value_at - scratch) - KEY_SIZE;
    p += q - scratch;
    for (int i = 0; i < size; i++) *p++ = (uint8_t)('!' + next_random() % 90);
    *p++ = 0; /* headers */
    return p;
}

/* The producer id and its epoch stay the same for a whole run; the sequence belongs to the first record. */
static void name_producer(uint8_t *batch, int64_t id, int epoch, int32_t sequence) {
    put64(batch + 43, (uint64_t)id);
    put16(batch + 51, (uint16_t)epoch);
    put32(batch + 53, (uint32_t)sequence);
}

static void build_batch(struct request *r, int64_t timestamp) {
    r->batch = malloc(BATCH_HEADER + (size_t)opt.records * ((size_t)opt.record_size + 24) + 8);
    if (!r->batch) fail("no memory for a batch");
    uint8_t *b = r->batch, *p = b + BATCH_HEADER;
    if (opt.keys && !(key_at = calloc((size_t)opt.records, sizeof *key_at))) fail("no memory for keys");
    for (int i = 0; i < opt.records; i++) p = put_record(p, i, opt.record_size);
    r->batch_size = (size_t)(p - b);
    put64(b, 0);
    put32(b + 8, (uint32_t)(r->batch_size - 12));
    put32(b + 12, (uint32_t)-1);
    b[16] = 2;
    put16(b + 21, opt.transactional ? TRANSACTIONAL : 0);
    put32(b + 23, (uint32_t)opt.records - 1);
    name_producer(b, -1, -1, -1);
    put32(b + 57, (uint32_t)opt.records);
    if (opt.keys) draw_keys();
    seal_batch(b, r->batch_size, timestamp);
    memset(p, 0, 3); /* tags of the partition, the topic and the request */
    r->tail_size = r->batch_size + 3;
}

static uint8_t *put_header(uint8_t *p, int key, int version) {
    p = put16(p + 4, (uint16_t)key);
    p = put16(p, (uint16_t)version);
    p = put32(p, 0);
    p = put16(p, 7);
    memcpy(p, "loadgen", 7);
    p += 7;
    *p++ = 0;
    return p;
}

static uint8_t *put_nullable(uint8_t *p, const char *text) {
    if (text) return put_compact(p, text);
    *p++ = 0;
    return p;
}

/* The request up to its batch, which is built already. */
static void build_produce_head(struct request *r, const char *transactional_id) {
    uint8_t *p = put_nullable(put_header(r->head, 0, 9), transactional_id);
    p = put16(p, (uint16_t)opt.acks);
    p = put32(p, 30000);
    *p++ = 2;
    p = put_compact(p, opt.topic);
    *p++ = 2;
    r->partition_at = (size_t)(p - r->head);
    p = put32(p, 0);
    p = put_uvarint(p, (uint32_t)r->batch_size + 1);
    r->head_size = (size_t)(p - r->head);
    put32(r->head, (uint32_t)(r->head_size + r->tail_size - 4));
}

static void build_produce(struct request *r, int64_t timestamp) {
    build_batch(r, timestamp);
    build_produce_head(r, NULL);
}

static uint8_t *put_fetch_head(uint8_t *frame, int version, int32_t session, int32_t epoch) {
    uint8_t *p = put_header(frame, 1, version);
    p = put32(p, (uint32_t)-1); /* replica id: a consumer */
    p = put32(p, 500);          /* max wait */
    p = put32(p, 1);            /* min bytes */
    p = put32(p, 50 << 20);     /* max bytes */
    *p++ = 0;                   /* isolation */
    p = put32(p, (uint32_t)session);
    p = put32(p, (uint32_t)epoch);
    *p++ = 2; /* one topic */
    return p;
}

static uint8_t *put_fetched_partition(uint8_t *p, int32_t partition, int64_t offset) {
    p = put32(p, (uint32_t)partition);
    p = put32(p, (uint32_t)-1); /* leader epoch */
    p = put64(p, (uint64_t)offset);
    p = put32(p, (uint32_t)-1); /* epoch of the record before */
    p = put64(p, (uint64_t)-1); /* log start offset: a follower's */
    p = put32(p, (uint32_t)opt.max_bytes);
    *p++ = 0;
    return p;
}

static size_t end_fetch(uint8_t *frame, uint8_t *p) { /* the size of the frame */
    *p++ = 0;
    *p++ = 1; /* forgotten topics */
    *p++ = 1; /* rack */
    *p++ = 0;
    put32(frame, (uint32_t)(p - frame - 4));
    return (size_t)(p - frame);
}

static void build_fetch(struct request *r) {
    uint8_t *p = put_compact(put_fetch_head(r->head, 12, 0, -1), opt.topic);
    *p++ = 2; /* one partition */
    r->partition_at = (size_t)(p - r->head);
    r->offset_at = r->partition_at + 8;
    r->head_size = end_fetch(r->head, put_fetched_partition(p, 0, 0));
}

/* Fetch v13 of partitions [0, count) of the topic: the first at `offset`, the others at `--idle-at`. */
static size_t build_session_fetch(uint8_t *frame, int32_t session, int32_t epoch, int count, int64_t offset) {
    uint8_t *p = put_fetch_head(frame, 13, session, epoch);
    memcpy(p, topic_id, sizeof topic_id);
    p = put_uvarint(p + sizeof topic_id, (uint32_t)count + 1);
    for (int i = 0; i < count; i++) p = put_fetched_partition(p, i, i ? opt.idle_at : offset);
    return end_fetch(frame, p);
}

/* ---- answers ------------------------------------------------------------------------------------------------ */

/* Goes to the first topic of a Fetch answer and returns its session id. */
static int32_t enter_fetch(struct reader *r) {
    take(r, 4);
    int error = (int16_t)get16(take(r, 2));
    if (error) fail("fetch answered with error %d", error);
    return (int32_t)get32(take(r, 4));
}

static struct reader enter_partition(const uint8_t *body, size_t size, bool fetch) {
    struct reader r = {body + 4, body + size};
    skip_tags(&r);
    if (fetch) enter_fetch(&r);
    if (take_uvarint(&r) != 2) fail("an answer does not name one topic");
    uint32_t name = opt.topic_id ? sizeof topic_id + 1 : take_uvarint(&r);
    take(&r, name ? name - 1 : 0);
    if (take_uvarint(&r) != 2) fail("an answer does not name one partition");
    return r;
}

static void check_produced(const uint8_t *body, size_t size) {
    struct reader r = enter_partition(body, size, false);
    uint32_t partition = get32(take(&r, 4));
    int error = (int16_t)get16(take(&r, 2));
    if (error) fail("produce to %s-%u answered with error %d", opt.topic, partition, error);
}

/* Bytes of whole batches in the answer; *next becomes the offset after them. */
static size_t check_fetched(const uint8_t *body, size_t size, int64_t *next) {
    struct reader r = enter_partition(body, size, true);
    uint32_t partition = get32(take(&r, 4));
    int error = (int16_t)get16(take(&r, 2));
    if (error) fail("fetch of %s-%u at %" PRId64 " answered with error %d", opt.topic, partition, *next, error);
    take(&r, 24);
    for (uint32_t n = take_uvarint(&r); n > 1; n--) {
        take(&r, 16);
        skip_tags(&r);
    }
    take(&r, 4);
    uint32_t length = take_uvarint(&r);
    length = length ? length - 1 : 0;
    const uint8_t *p = take(&r, length), *end = p + length, *start = p;
    while (end - p >= BATCH_HEADER) {
        size_t whole = (size_t)get32(p + 8) + 12;
        if ((size_t)(end - p) < whole) break;
        *next = (int64_t)get64(p) + get32(p + 23) + 1;
        p += whole;
    }
    return (size_t)(p - start);
}

/* ---- samples ------------------------------------------------------------------------------------------------ */

struct samples {
    uint32_t *values; /* tenths of a microsecond */
    size_t count;
};

static struct samples latencies;
static struct samples lateness; /* of the latency mode: how long after it was due a request left */
static struct samples answers;  /* of the latency mode: from there to the answer */

static void add_to(struct samples *s, int64_t ns) {
    if (!s->values && !(s->values = malloc(MAX_SAMPLES * sizeof *s->values))) fail("no memory for samples");
    if (s->count < MAX_SAMPLES) s->values[s->count++] = (uint32_t)(ns < 400000000000LL ? ns / 100 : UINT32_MAX);
}

static void add_sample(int64_t ns) {
    add_to(&latencies, ns);
}

static int by_value(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static void sort(struct samples *s) {
    if (s->count) qsort(s->values, s->count, sizeof *s->values, by_value);
}

static double quantile(const struct samples *s, double q) {
    return s->count ? s->values[(size_t)(q * (double)(s->count - 1))] / 10.0 : 0;
}

static void print_result(int64_t requests, int64_t bytes, double seconds) {
    sort(&latencies);
    sort(&lateness);
    sort(&answers);
    printf("{\"requests\": %" PRId64 ", \"bytes\": %" PRId64 ", \"seconds\": %.6f, \"p50_us\": %.1f, \"p99_us\": %.1f, "
           "\"p999_us\": %.1f, \"max_us\": %.1f, \"late_p99_us\": %.1f, \"answer_p99_us\": %.1f}\n",
        requests, bytes, seconds, quantile(&latencies, 0.5), quantile(&latencies, 0.99), quantile(&latencies, 0.999),
        quantile(&latencies, 1), quantile(&lateness, 0.99), quantile(&answers, 0.99));
}

/* ---- connections -------------------------------------------------------------------------------------------- */

struct connection {
    int fd, inflight;
    struct request request;
    size_t sent, size;    /* of the frame that is leaving */
    uint8_t *buffer;
    size_t filled, capacity;
    uint32_t next_id, expected_id;
    int64_t *started;     /* ring of depth start times */
    int64_t offset, producer_id;
    int producer_epoch;
    int32_t *sequences;   /* of each partition; NULL without --idempotent */
    char transactional_id[TRANSACTIONAL_ID_MAX]; /* empty without --transactional */
    bool waits_for_room;
};

static int connect_to_broker(int source) {
    int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    if (fd < 0) fail("socket: %s", strerror(errno));
    if (source >= 0) { /* 127.0.0.1 alone has only some 28,000 ports */
        struct sockaddr_in from = {.sin_family = AF_INET};
        from.sin_addr.s_addr = htonl(INADDR_LOOPBACK + (uint32_t)source);
        setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
        if (bind(fd, (struct sockaddr *)&from, sizeof from)) fail("bind to a loopback address: %s", strerror(errno));
    }
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)opt.port)};
    if (inet_pton(AF_INET, opt.host, &to.sin_addr) != 1) fail("%s is not an IPv4 address", opt.host);
    if (connect(fd, (struct sockaddr *)&to, sizeof to)) fail("connect to %s:%d: %s", opt.host, opt.port, strerror(errno));
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
}

static void send_all(int fd, const uint8_t *p, size_t n) {
    while (n > 0) {
        ssize_t done = send(fd, p, n, MSG_NOSIGNAL);
        if (done < 0) fail("send: %s", strerror(errno));
        p += done;
        n -= (size_t)done;
    }
}

/* One whole answer with a blocking socket; returns its size without the length. */
static size_t receive_answer(int fd, uint8_t *buffer, size_t capacity) {
    size_t filled = 0, wanted = 4;
    while (filled < wanted) {
        ssize_t n = recv(fd, buffer + filled, wanted > 4 ? wanted - filled : capacity - filled, 0);
        if (n <= 0) fail(n ? "receive: %s" : "the broker closed a connection%s", n ? strerror(errno) : "");
        filled += (size_t)n;
        if (filled >= 4) wanted = 4 + (size_t)get32(buffer);
        if (wanted > capacity) fail("an answer of %zu bytes is larger than expected", wanted);
    }
    return wanted - 4;
}

/* Sends a request that ends at `p` with a blocking socket. Returns its answer after the throttle time. */
static struct reader call(int fd, uint8_t *frame, uint8_t *p, uint8_t *answer, size_t capacity) {
    *p++ = 0; /* tags */
    put32(frame, (uint32_t)(p - frame - 4));
    send_all(fd, frame, (size_t)(p - frame));
    size_t size = receive_answer(fd, answer, capacity);
    struct reader r = {answer + 4, answer + 4 + size};
    take(&r, 4); /* correlation id */
    skip_tags(&r);
    take(&r, 4); /* throttle time */
    return r;
}

/* Waits before the next attempt. Fails if a retry cannot help, or if the time is up. */
static void pause_after(int error, const char *api, int64_t stop) {
    if (error != COORDINATOR_LOADING && error != COORDINATOR_NOT_AVAILABLE && error != NOT_COORDINATOR &&
        error != CONCURRENT_TRANSACTIONS)
        fail("%s answered with error %d", api, error);
    if (now_ns() > stop) fail("%s answered with error %d for 30 s", api, error);
    sleep_until(now_ns() + 20 * 1000000LL);
}

/* The first FindCoordinator request makes a broker create the topic of its transactions. */
static void find_coordinator(struct connection *c) {
    uint8_t frame[HEAD_MAX], answer[HEAD_MAX];
    uint8_t *p = put_compact(put_header(frame, FIND_COORDINATOR, 3), c->transactional_id);
    *p++ = 1; /* of a transaction */
    struct reader r = call(c->fd, frame, p, answer, sizeof answer);
    int error = (int16_t)get16(take(&r, 2));
    if (error && error != COORDINATOR_NOT_AVAILABLE) fail("FindCoordinator answered with error %d", error);
}

/* A producer id of its own for a connection, and sequences that begin at 0. */
static void take_producer_id(struct connection *c) {
    uint8_t frame[HEAD_MAX], answer[64];
    int64_t stop = now_ns() + 30 * 1000000000LL;
    for (;;) {
        uint8_t *p = put_header(frame, INIT_PRODUCER_ID, 2);
        p = put_nullable(p, opt.transactional ? c->transactional_id : NULL);
        p = put32(p, (uint32_t)(opt.deadline * 1000)); /* a transaction may last as long as the run */
        struct reader r = call(c->fd, frame, p, answer, sizeof answer);
        int error = (int16_t)get16(take(&r, 2));
        c->producer_id = (int64_t)get64(take(&r, 8));
        c->producer_epoch = (int16_t)get16(take(&r, 2));
        if (!error) break;
        if (error == NOT_COORDINATOR && opt.transactional) find_coordinator(c);
        pause_after(error, "InitProducerId", stop);
    }
    if (!(c->sequences = calloc((size_t)opt.partitions, sizeof *c->sequences))) fail("no memory for sequences");
}

static uint8_t *put_transaction(uint8_t *frame, const struct connection *c, int key) {
    uint8_t *p = put_compact(put_header(frame, key, 3), c->transactional_id);
    p = put64(p, (uint64_t)c->producer_id);
    return put16(p, (uint16_t)c->producer_epoch);
}

/* The first error of an AddPartitionsToTxn answer; 0 without one. */
static int added_error(struct reader r) {
    if (take_uvarint(&r) != 2) fail("AddPartitionsToTxn did not answer for one topic");
    take(&r, take_uvarint(&r) - 1);
    uint32_t count = take_uvarint(&r);
    if (count != (uint32_t)opt.partitions + 1) fail("AddPartitionsToTxn did not answer for each partition");
    for (; count > 1; count--) {
        take(&r, 4);
        int error = (int16_t)get16(take(&r, 2));
        if (error) return error;
        skip_tags(&r);
    }
    return 0;
}

/* Adds every partition of the topic: a connection may write to each. */
static void add_partitions(struct connection *c) {
    size_t capacity = HEAD_MAX + 8 * (size_t)opt.partitions;
    uint8_t *frame = malloc(capacity), *answer = malloc(capacity);
    if (!frame || !answer) fail("no memory for a frame");
    int64_t stop = now_ns() + 30 * 1000000000LL;
    for (;;) {
        uint8_t *p = put_transaction(frame, c, ADD_PARTITIONS_TO_TXN);
        *p++ = 2; /* one topic */
        p = put_compact(p, opt.topic);
        p = put_uvarint(p, (uint32_t)opt.partitions + 1);
        for (int i = 0; i < opt.partitions; i++) p = put32(p, (uint32_t)i);
        *p++ = 0; /* tags of the topic */
        int error = added_error(call(c->fd, frame, p, answer, capacity));
        if (!error) break;
        pause_after(error, "AddPartitionsToTxn", stop);
    }
    free(frame);
    free(answer);
}

static void commit_transaction(struct connection *c) {
    uint8_t frame[HEAD_MAX], answer[64];
    int64_t stop = now_ns() + 30 * 1000000000LL;
    for (;;) {
        uint8_t *p = put_transaction(frame, c, END_TXN);
        *p++ = 1; /* committed */
        struct reader r = call(c->fd, frame, p, answer, sizeof answer);
        int error = (int16_t)get16(take(&r, 2));
        if (!error) return;
        pause_after(error, "EndTxn", stop);
    }
}

/* Prepares a connection to produce with --idempotent or --transactional. */
static void begin_producing(struct connection *c, int number) {
    if (opt.transactional)
        snprintf(c->transactional_id, sizeof c->transactional_id, "loadgen-%d-%" PRId64 "-%d", (int)getpid(), wall_ms(), number);
    if (opt.idempotent) take_producer_id(c);
    if (opt.transactional) add_partitions(c);
}

static void number_batch(struct connection *c, uint8_t *batch, uint32_t partition) {
    name_producer(batch, c->producer_id, c->producer_epoch, c->sequences[partition]);
    c->sequences[partition] = (int32_t)(((int64_t)c->sequences[partition] + opt.records) & INT32_MAX);
}

/* ---- closed loop on many connections ------------------------------------------------------------------------ */

static struct {
    int64_t issued, answered, issued_bytes, answered_bytes, begun;
    int epoll;
    bool fetch;
} run;

static bool may_issue(int64_t now) {
    if (opt.requests && run.issued >= opt.requests) return false;
    if (opt.bytes && run.issued_bytes >= opt.bytes) return false;
    return !opt.seconds || now - run.begun < (int64_t)(opt.seconds * 1e9);
}

static bool within_rate(int64_t now) {
    return !opt.rate || (double)run.issued_bytes <= opt.rate * (double)(now - run.begun) / 1e9;
}

static void aim_request(struct connection *c) {
    struct request *r = &c->request;
    uint32_t partition = opt.random ? (uint32_t)(next_random() % (uint64_t)opt.partitions)
                                    : (uint32_t)(run.issued % opt.partitions);
    put32(r->head + 8, c->next_id++);
    put32(r->head + r->partition_at, partition);
    if (run.fetch) {
        if (opt.random)
            c->offset = opt.from + (int64_t)(next_random() % (uint64_t)(opt.to - opt.from));
        else if (c->offset >= opt.to)
            c->offset = opt.from;
        put64(r->head + r->offset_at, (uint64_t)c->offset);
        return;
    }
    if (c->sequences) number_batch(c, r->batch, partition);
    if (opt.keys) draw_keys();
    if (opt.keys || opt.ts_step || c->sequences)
        seal_batch(r->batch, r->batch_size, opt.ts_step ? opt.ts_start + run.issued / opt.per_step * opt.ts_step : wall_ms());
}

static void watch(struct connection *c, bool room) {
    if (c->waits_for_room == room) return;
    c->waits_for_room = room;
    struct epoll_event e = {.events = EPOLLIN | (room ? EPOLLOUT : 0), .data.ptr = c};
    epoll_ctl(run.epoll, EPOLL_CTL_MOD, c->fd, &e);
}

static bool push(struct connection *c) { /* true when the frame that was leaving has left */
    struct request *r = &c->request;
    while (c->sent < c->size) {
        struct iovec parts[2];
        int n = 0;
        if (c->sent < r->head_size) parts[n++] = (struct iovec){r->head + c->sent, r->head_size - c->sent};
        size_t at = c->sent > r->head_size ? c->sent - r->head_size : 0;
        if (r->batch) parts[n++] = (struct iovec){r->batch + at, r->tail_size - at};
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = (size_t)n};
        ssize_t done = sendmsg(c->fd, &message, MSG_NOSIGNAL);
        if (done < 0 && errno == EAGAIN) {
            watch(c, true);
            return false;
        }
        if (done < 0) fail("send: %s", strerror(errno));
        c->sent += (size_t)done;
    }
    watch(c, false);
    return true;
}

static void issue(struct connection *c, int64_t now) {
    while (push(c) && c->inflight < opt.depth && may_issue(now) && within_rate(now)) {
        aim_request(c);
        c->started[run.fetch ? 0 : (c->next_id - 1) % (uint32_t)opt.depth] = now;
        c->sent = 0;
        c->size = c->request.head_size + c->request.tail_size;
        c->inflight++;
        run.issued++;
        run.issued_bytes += run.fetch ? 0 : (int64_t)c->request.batch_size;
    }
}

static void take_answer(struct connection *c, const uint8_t *body, size_t size, int64_t now) {
    if (size < 4 || get32(body) != c->expected_id) fail("an answer carries another correlation id than its request");
    if (run.fetch) {
        size_t got = check_fetched(body, size, &c->offset);
        if (!got) fail("a fetch at %" PRId64 " of %s brought nothing", c->offset, opt.topic);
        run.answered_bytes += (int64_t)got;
        run.issued_bytes = run.answered_bytes;
    } else {
        check_produced(body, size);
        run.answered_bytes += (int64_t)c->request.batch_size;
    }
    add_sample(now - c->started[run.fetch ? 0 : c->expected_id % (uint32_t)opt.depth]);
    c->expected_id++;
    c->inflight--;
    run.answered++;
}

static void receive(struct connection *c) {
    ssize_t n = recv(c->fd, c->buffer + c->filled, c->capacity - c->filled, 0);
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) fail(n ? "receive: %s" : "the broker closed a connection%s", n ? strerror(errno) : "");
    c->filled += (size_t)n;
    int64_t now = now_ns();
    size_t at = 0;
    while (c->filled - at >= 4) {
        size_t size = get32(c->buffer + at);
        if (size + 4 > c->capacity) fail("an answer of %zu bytes is larger than expected", size);
        if (c->filled - at < size + 4) break;
        take_answer(c, c->buffer + at + 4, size, now);
        at += size + 4;
    }
    memmove(c->buffer, c->buffer + at, c->filled - at);
    c->filled -= at;
}

static struct connection *open_connections(void) {
    struct connection *all = calloc((size_t)opt.connections, sizeof *all);
    struct request first = {0};
    if (!all) fail("no memory for connections");
    if (run.fetch) build_fetch(&first);
    else build_produce(&first, opt.ts_step ? opt.ts_start : wall_ms());
    for (int i = 0; i < opt.connections; i++) {
        struct connection *c = &all[i];
        c->fd = connect_to_broker(-1);
        begin_producing(c, i);
        fcntl(c->fd, F_SETFL, O_NONBLOCK);
        c->request = first;
        if (opt.transactional) build_produce_head(&c->request, c->transactional_id);
        if (opt.ts_step || opt.idempotent) { /* each frame is changed before it leaves */
            c->request.batch = malloc(first.tail_size);
            if (!c->request.batch) fail("no memory for a batch");
            memcpy(c->request.batch, first.batch, first.tail_size);
        }
        c->capacity = run.fetch ? (size_t)opt.max_bytes + (4u << 20) : SMALL_BUFFER;
        c->buffer = malloc(c->capacity);
        c->started = calloc((size_t)opt.depth, sizeof *c->started);
        c->offset = opt.from + (opt.to - opt.from) * i / opt.connections;
        if (!c->buffer || !c->started) fail("no memory for a connection");
        struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
        epoll_ctl(run.epoll, EPOLL_CTL_ADD, c->fd, &e);
    }
    return all;
}

static void run_load(bool fetch) {
    run.fetch = fetch;
    run.epoll = epoll_create1(0);
    if (fetch && (opt.depth > 1 || opt.to <= opt.from)) fail("fetch wants --depth 1 and --to above --from");
    struct connection *all = open_connections();
    struct epoll_event events[256];
    int64_t now = run.begun = now_ns(), stop = run.begun + (int64_t)(opt.deadline * 1e9);
    for (int i = 0; i < opt.connections; i++) issue(&all[i], now);
    while (run.answered < run.issued || may_issue(now)) {
        int n = epoll_wait(run.epoll, events, 256, opt.rate ? 1 : 1000);
        for (int i = 0; i < n; i++) {
            struct connection *c = events[i].data.ptr;
            if (events[i].events & ~(uint32_t)EPOLLOUT) receive(c);
            issue(c, now_ns());
        }
        now = now_ns();
        if (opt.rate && within_rate(now))
            for (int i = 0; i < opt.connections; i++) issue(&all[i], now);
        if (now > stop) fail("not done after %.0f s: %" PRId64 " of %" PRId64 " answered", opt.deadline, run.answered, run.issued);
    }
    double seconds = (double)(now_ns() - run.begun) / 1e9;
    for (int i = 0; opt.transactional && i < opt.connections; i++) {
        fcntl(all[i].fd, F_SETFL, 0);
        commit_transaction(&all[i]);
    }
    print_result(run.answered, run.answered_bytes, seconds);
}

/* ---- one request at a time ---------------------------------------------------------------------------------- */

static volatile sig_atomic_t is_stopped;

static void stop_latency(int number) {
    (void)number;
    is_stopped = 1;
}

static void run_latency(void) {
    struct sigaction action = {.sa_handler = stop_latency, .sa_flags = SA_RESTART};
    sigaction(SIGTERM, &action, NULL);
    struct request r = {0};
    struct connection c = {.fd = connect_to_broker(-1)};
    begin_producing(&c, 0);
    build_produce(&r, wall_ms());
    if (opt.transactional) build_produce_head(&r, c.transactional_id);
    size_t size = r.head_size + r.tail_size;
    uint8_t *frame = malloc(size), *buffer = malloc(SMALL_BUFFER);
    if (!frame || !buffer) fail("no memory for a frame");
    memcpy(frame, r.head, r.head_size);
    memcpy(frame + r.head_size, r.batch, r.tail_size);
    int64_t begun = now_ns(), stop = begun + (int64_t)(opt.deadline * 1e9), done = 0;
    for (int64_t i = -opt.warmup; !is_stopped && (!opt.requests || i < opt.requests); i++) {
        int64_t from = now_ns();
        if (i <= 0) begun = from;
        if (i >= 0 && opt.seconds && from - begun > (int64_t)(opt.seconds * 1e9)) break;
        if (from > stop) fail("not done after %.0f s", opt.deadline);
        if (i >= 0 && opt.interval_us) {
            /* Counted from the time it was due: a stall counts for every request that it delays. */
            from = begun + i * opt.interval_us * 1000;
            sleep_until(from);
        }
        put32(frame + 8, (uint32_t)i);
        if (c.sequences) {
            number_batch(&c, frame + r.head_size, 0);
            seal_batch(frame + r.head_size, r.batch_size, wall_ms());
        }
        int64_t left = now_ns();
        send_all(c.fd, frame, size);
        size_t got = receive_answer(c.fd, buffer, SMALL_BUFFER);
        if (got < 4 || get32(buffer + 4) != (uint32_t)i) fail("an answer carries another correlation id than its request");
        if (i >= 0) {
            int64_t answered = now_ns();
            add_sample(answered - from);
            add_to(&lateness, left - from);
            add_to(&answers, answered - left);
            done++;
        }
        check_produced(buffer + 4, got);
    }
    double seconds = (double)(now_ns() - begun) / 1e9;
    if (opt.transactional) commit_transaction(&c);
    print_result(done, done * (int64_t)r.batch_size, seconds);
}

/* ---- one fetch session --------------------------------------------------------------------------------------- */

static void read_topic_id(void) {
    if (!opt.topic_id || strlen(opt.topic_id) != 2 * sizeof topic_id) fail("session wants --topic-id in 32 hex digits");
    for (size_t i = 0; i < sizeof topic_id; i++)
        if (sscanf(opt.topic_id + 2 * i, "%2hhx", &topic_id[i]) != 1) fail("--topic-id is not hex");
}

static int32_t open_session(int fd, uint8_t *frame, uint8_t *buffer, size_t capacity) {
    send_all(fd, frame, build_session_fetch(frame, 0, 0, opt.partitions, opt.from));
    struct reader r = {buffer + 8, buffer + 4};
    r.end += receive_answer(fd, buffer, capacity);
    skip_tags(&r);
    int32_t session = enter_fetch(&r);
    if (!session) fail("the broker opened no fetch session for %d partitions", opt.partitions);
    return session;
}

static void run_session(void) {
    enum { SESSION_BUFFER = 4 << 20, PARTITION_SIZE = 33 };
    if (opt.to <= opt.from) fail("session wants --to above --from");
    read_topic_id();
    uint8_t *frame = malloc(HEAD_MAX + (size_t)opt.partitions * PARTITION_SIZE), *buffer = malloc(SESSION_BUFFER);
    if (!frame || !buffer) fail("no memory for a frame");
    int fd = connect_to_broker(-1);
    int32_t session = open_session(fd, frame, buffer, SESSION_BUFFER), epoch = 0;
    int64_t begun = now_ns(), stop = begun + (int64_t)(opt.deadline * 1e9), done = 0, bytes = 0, offset = opt.from;
    for (int64_t from = begun; (!opt.requests || done < opt.requests) && (!opt.seconds || from - begun < (int64_t)(opt.seconds * 1e9)); from = now_ns(), done++) {
        if (from > stop) fail("not done after %.0f s", opt.deadline);
        if (offset >= opt.to) offset = opt.from;
        epoch = epoch == INT32_MAX ? 1 : epoch + 1;
        send_all(fd, frame, build_session_fetch(frame, session, epoch, 1, offset));
        size_t got = receive_answer(fd, buffer, SESSION_BUFFER);
        add_sample(now_ns() - from);
        size_t fetched = check_fetched(buffer + 4, got, &offset);
        if (!fetched) fail("a fetch at %" PRId64 " of %s-0 brought nothing", offset, opt.topic);
        bytes += (int64_t)fetched;
    }
    print_result(done, bytes, (double)(now_ns() - begun) / 1e9);
}

/* ---- connections that do nothing ---------------------------------------------------------------------------- */

static void run_idle(void) {
    struct rlimit files;
    rlim_t needed = (rlim_t)opt.connections + 64;
    getrlimit(RLIMIT_NOFILE, &files);
    if (files.rlim_cur < needed) {
        files.rlim_cur = needed;
        if (files.rlim_max < needed) files.rlim_max = needed;
        if (setrlimit(RLIMIT_NOFILE, &files)) fail("cannot open %d files: %s", opt.connections, strerror(errno));
    }
    static const uint8_t api_versions[] = {0, 0, 0, 17, 0, 18, 0, 0, 0, 0, 0, 1, 0, 7, 'l', 'o', 'a', 'd', 'g', 'e', 'n'};
    uint8_t *buffer = malloc(SMALL_BUFFER);
    if (!buffer) fail("no memory for a buffer");
    int64_t begun = now_ns(), stop = begun + (int64_t)(opt.deadline * 1e9);
    for (int i = 0; i < opt.connections; i++) {
        int fd = connect_to_broker(i % opt.sources);
        send_all(fd, api_versions, sizeof api_versions);
        receive_answer(fd, buffer, SMALL_BUFFER);
        if (now_ns() > stop) fail("only %d connections after %.0f s", i, opt.deadline);
    }
    print_result(opt.connections, 0, (double)(now_ns() - begun) / 1e9);
    fflush(stdout);
    while (read(0, buffer, SMALL_BUFFER) > 0) {}
}

/* ---- options ------------------------------------------------------------------------------------------------ */

static const struct option names[] = {
    {"host", 1, 0, 'h'}, {"port", 1, 0, 'p'}, {"topic", 1, 0, 't'}, {"partitions", 1, 0, 'P'}, {"connections", 1, 0, 'c'},
    {"depth", 1, 0, 'd'}, {"records", 1, 0, 'r'}, {"record-size", 1, 0, 's'}, {"acks", 1, 0, 'a'}, {"max-bytes", 1, 0, 'm'},
    {"requests", 1, 0, 'n'}, {"bytes", 1, 0, 'b'}, {"seconds", 1, 0, 'S'}, {"deadline", 1, 0, 'D'}, {"rate", 1, 0, 'R'},
    {"from", 1, 0, 'f'}, {"to", 1, 0, 'T'}, {"random", 0, 0, 'x'}, {"seed", 1, 0, 'e'}, {"ts-start", 1, 0, 'A'},
    {"ts-step", 1, 0, 'B'}, {"per-step", 1, 0, 'C'}, {"interval-us", 1, 0, 'i'}, {"warmup", 1, 0, 'w'}, {"sources", 1, 0, 'o'},
    {"keys", 1, 0, 'k'}, {"idempotent", 0, 0, 'I'}, {"topic-id", 1, 0, 'U'}, {"idle-at", 1, 0, 'O'},
    {"transactional", 0, 0, 'X'},
    {0, 0, 0, 0}};

static void read_option(int key, const char *value) {
    switch (key) {
    case 'h': opt.host = value; break;
    case 'p': opt.port = atoi(value); break;
    case 't': opt.topic = value; break;
    case 'P': opt.partitions = atoi(value); break;
    case 'c': opt.connections = atoi(value); break;
    case 'd': opt.depth = atoi(value); break;
    case 'r': opt.records = atoi(value); break;
    case 's': opt.record_size = atoi(value); break;
    case 'a': opt.acks = atoi(value); break;
    case 'm': opt.max_bytes = atoi(value); break;
    case 'n': opt.requests = atoll(value); break;
    case 'b': opt.bytes = atoll(value); break;
    case 'S': opt.seconds = atof(value); break;
    case 'D': opt.deadline = atof(value); break;
    case 'R': opt.rate = atof(value); break;
    case 'f': opt.from = atoll(value); break;
    case 'T': opt.to = atoll(value); break;
    case 'x': opt.random = true; break;
    case 'e': opt.seed = strtoull(value, NULL, 10) | 1; break;
    case 'A': opt.ts_start = atoll(value); break;
    case 'B': opt.ts_step = atoll(value); break;
    case 'C': opt.per_step = atoi(value); break;
    case 'i': opt.interval_us = atoll(value); break;
    case 'w': opt.warmup = atoll(value); break;
    case 'o': opt.sources = atoi(value); break;
    case 'k': opt.keys = atoll(value); break;
    case 'I': opt.idempotent = true; break;
    case 'X': opt.transactional = opt.idempotent = true; break;
    case 'U': opt.topic_id = value; break;
    case 'O': opt.idle_at = atoll(value); break;
    default: exit(2);
    }
}

int main(int argc, char **argv) {
    for (int key; (key = getopt_long(argc, argv, "", names, NULL)) != -1;) read_option(key, optarg);
    const char *mode = optind < argc ? argv[optind] : "";
    if (opt.partitions < 1 || opt.connections < 1 || opt.depth < 1 || opt.records < 1 || opt.record_size < 0 ||
        opt.per_step < 1 || opt.sources < 1 || opt.max_bytes < 1 || strlen(opt.topic) > 249)
        fail("a count is below 1 or the topic name is too long");
    if (opt.keys && (opt.connections > 1 || opt.depth > 1 || opt.record_size < KEY_SIZE))
        fail("--keys wants one connection, one request at a time and records of %d bytes or more", KEY_SIZE);
    if (opt.idempotent && strcmp(mode, "produce") && strcmp(mode, "latency"))
        fail("--idempotent and --transactional belong to produce and latency, not to '%s'", mode);
    bool bounded = opt.requests || opt.bytes || opt.seconds;
    if (!bounded && strcmp(mode, "idle")) fail("one of --requests, --bytes, --seconds is needed");
    if (!strcmp(mode, "produce")) run_load(false);
    else if (!strcmp(mode, "fetch")) run_load(true);
    else if (!strcmp(mode, "session")) run_session();
    else if (!strcmp(mode, "latency")) run_latency();
    else if (!strcmp(mode, "idle")) run_idle();
    else fail("mode '%s' is none of produce, fetch, session, latency, idle", mode);
    return 0;
}
