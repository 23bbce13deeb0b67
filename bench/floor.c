/* The floor of a broker's round trip: receives Produce requests, appends them to a file, and answers.
 *
 *   floor FILE   listens on a free port of 127.0.0.1, prints the port, and serves one connection at a time
 *
 * It reads nothing of a request but its length and its correlation id. The answer names a topic without letters, which
 * `loadgen latency` takes. It waits in epoll_wait, as a server of many connections has to. SIGTERM ends it.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { REQUEST_MAX = 64 * 1024, CORRELATION_ID = 8, ANSWER_ID = 4 };

/* Produce v9, partition 0 without an error. The correlation id is filled in. */
static uint8_t answer[] = {0, 0, 0, 47, 0, 0, 0, 0, 0, /* size, correlation id, tags */
    2, 1, 2, 0, 0, 0, 0, 0, 0,                         /* one topic, its name, one partition: 0, no error */
    0, 0, 0, 0, 0, 0, 0, 0,                            /* offset */
    255, 255, 255, 255, 255, 255, 255, 255,            /* no append time */
    0, 0, 0, 0, 0, 0, 0, 0,                            /* log start offset */
    1, 0, 0, 0, 0, 0, 0, 0, 0};                        /* no record errors, no message, tags, throttle time, tags */

_Static_assert(sizeof answer == 47 + 4, "the size at the begin of the answer");

static void fail(const char *what) {
    fprintf(stderr, "floor: %s: %s\n", what, strerror(errno));
    exit(1);
}

static int listen_on_free_port(void) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&at, size) || listen(fd, 8)) fail("listen");
    if (getsockname(fd, (struct sockaddr *)&at, &size)) fail("getsockname");
    printf("%d\n", ntohs(at.sin_port));
    fflush(stdout);
    return fd;
}

/* Waits for one whole request; returns its size, or 0 at the end of the connection. */
static size_t receive(int poll, int fd, uint8_t *request) {
    size_t filled = 0, wanted = 4;
    while (filled < wanted) {
        struct epoll_event event;
        if (epoll_wait(poll, &event, 1, -1) < 0) fail("epoll_wait");
        ssize_t n = recv(fd, request + filled, REQUEST_MAX - filled, 0);
        if (n == 0 || (n < 0 && errno == ECONNRESET)) return 0;
        if (n < 0) fail("recv");
        filled += (size_t)n;
        uint32_t size;
        memcpy(&size, request, sizeof size);
        if (filled >= 4) wanted = 4 + (size_t)ntohl(size);
        if (wanted > REQUEST_MAX) {
            errno = EMSGSIZE;
            fail("recv");
        }
    }
    return filled;
}

static void serve(int fd, int file) {
    static uint8_t request[REQUEST_MAX];
    struct epoll_event event = {.events = EPOLLIN};
    int poll = epoll_create1(0), on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (poll < 0 || epoll_ctl(poll, EPOLL_CTL_ADD, fd, &event)) fail("epoll");
    off_t end = 0;
    for (size_t size; (size = receive(poll, fd, request)); end += (off_t)size) {
        if (pwrite(file, request, size, end) != (ssize_t)size) fail("pwrite");
        memcpy(answer + ANSWER_ID, request + CORRELATION_ID, 4);
        if (send(fd, answer, sizeof answer, MSG_NOSIGNAL) < 0 && errno != EPIPE && errno != ECONNRESET) fail("send");
    }
    close(poll);
    close(fd);
}

int main(int count, char **words) {
    if (count != 2) {
        fputs("usage: floor FILE\n", stderr);
        return 2;
    }
    int file = open(words[1], O_CREAT | O_TRUNC | O_WRONLY, 0600), listener = listen_on_free_port();
    if (file < 0) fail(words[1]);
    for (;;) {
        int fd = accept(listener, NULL, NULL);
        if (fd < 0) fail("accept");
        serve(fd, file);
    }
}
