/* Produces as fast as librdkafka lets it: rdkafka_load LIBRARY HOST:PORT TOPIC PARTITIONS RECORDS RECORD_SIZE [NAME=VALUE]...
 * librdkafka is opened at run time, for example the one in the confluent-kafka package, so no headers are needed.
 * Prints one JSON object; time ends when the last record is acknowledged.
 */
#include <dlfcn.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PRODUCER = 0, BLOCK_WHEN_FULL = 4, RUN_OF_ONE_PARTITION = 10000, FLUSH_MS = 60000 };

struct message { int error; }; /* only the first field is used */

static long failed;

static void on_failure(void *client, const struct message *message, void *opaque) {
    (void)client;
    (void)opaque;
    failed += message->error != 0;
}

static void *symbol(void *library, const char *name) {
    void *found = dlsym(library, name);
    if (!found) {
        fprintf(stderr, "rdkafka_load: %s\n", dlerror());
        exit(1);
    }
    return found;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void set(int (*conf_set)(void *, const char *, const char *, char *, size_t), void *conf, const char *name,
    const char *value) {
    char error[512];
    if (conf_set(conf, name, value, error, sizeof error)) {
        fprintf(stderr, "rdkafka_load: %s\n", error);
        exit(1);
    }
}

int main(int argc, char **argv) {
    if (argc < 7) {
        fprintf(stderr, "usage: rdkafka_load LIBRARY HOST:PORT TOPIC PARTITIONS RECORDS RECORD_SIZE [NAME=VALUE]...\n");
        return 2;
    }
    void *lib = dlopen(argv[1], RTLD_NOW);
    if (!lib) {
        fprintf(stderr, "rdkafka_load: %s\n", dlerror());
        return 1;
    }
    void *(*conf_new)(void) = symbol(lib, "rd_kafka_conf_new");
    int (*conf_set)(void *, const char *, const char *, char *, size_t) = symbol(lib, "rd_kafka_conf_set");
    void (*conf_set_report)(void *, void (*)(void *, const struct message *, void *)) = symbol(lib, "rd_kafka_conf_set_dr_msg_cb");
    void *(*client_new)(int, void *, char *, size_t) = symbol(lib, "rd_kafka_new");
    void *(*topic_new)(void *, const char *, void *) = symbol(lib, "rd_kafka_topic_new");
    int (*produce)(void *, int32_t, int, void *, size_t, const void *, size_t, void *) = symbol(lib, "rd_kafka_produce");
    int (*flush)(void *, int) = symbol(lib, "rd_kafka_flush");

    int partitions = atoi(argv[4]), size = atoi(argv[6]);
    int64_t records = atoll(argv[5]);
    if (partitions < 1 || records < 1 || size < 0) {
        fprintf(stderr, "rdkafka_load: a count is below 1\n");
        return 2;
    }
    char error[512], *value = malloc((size_t)size + 1);
    if (!value) return 1;
    for (int i = 0; i < size; i++) value[i] = (char)('!' + rand() % 90);
    void *conf = conf_new();
    set(conf_set, conf, "bootstrap.servers", argv[2]);
    set(conf_set, conf, "delivery.report.only.error", "true");
    for (int i = 7; i < argc; i++) {
        char *equals = strchr(argv[i], '=');
        if (!equals) {
            fprintf(stderr, "rdkafka_load: '%s' is not NAME=VALUE\n", argv[i]);
            return 2;
        }
        *equals = 0;
        set(conf_set, conf, argv[i], equals + 1);
    }
    conf_set_report(conf, on_failure);
    void *client = client_new(PRODUCER, conf, error, sizeof error);
    void *topic = client ? topic_new(client, argv[3], NULL) : NULL;
    if (!topic) {
        fprintf(stderr, "rdkafka_load: no producer: %s\n", error);
        return 1;
    }
    double begun = now();
    for (int64_t i = 0; i < records; i++) {
        int32_t partition = (int32_t)(i / RUN_OF_ONE_PARTITION % partitions);
        failed += produce(topic, partition, BLOCK_WHEN_FULL, value, (size_t)size, NULL, 0, NULL) != 0;
    }
    int unfinished = flush(client, FLUSH_MS);
    double seconds = now() - begun;
    if (failed || unfinished) {
        fprintf(stderr, "rdkafka_load: %ld records failed%s\n", failed, unfinished ? ", some unacknowledged" : "");
        return 1;
    }
    printf("{\"records\": %" PRId64 ", \"seconds\": %.6f}\n", records, seconds);
    return 0;
}
