"""Every figure with its unit, its target and Apache Kafka's result: the only table of the benchmark.

Kafka is 4.3.1, warm, with a heap of 1 GB, on a machine with two cores. Two numbers are its results on a quiet
and on a busy machine, or with memory that the machine already held and with memory that it first had to get.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from report import Figure


@dataclass(slots=True, frozen=True)
class Target:
    """The name of a figure and its limit. Without a limit it is context for the others."""

    name: str
    unit: str
    bound: float | None = None
    kafka: str = ""
    at_least: bool = False  # most limits are upper limits


PER_REQUEST, PER_GB, PER_CPU_SECOND = "CPU-s / 100,000", "CPU-s / GB", "MB / CPU-s"
PER_LOGIN = "CPU-s / 1,000"
TARGETS: dict[str, Target] = {
    "floor": Target("(this machine: append to a file)", PER_GB),
    "start": Target("start to first answer", "s", 0.4, "2"),
    "idle": Target("resident when idle", "MB", 60, "330, warm 1,170"),
    "small": Target("one-record produce, 16 connections", PER_REQUEST, 2.0, "2.9"),
    "small idempotent": Target("the same, idempotent, acks=all, against the plain one", "times", 1.15),
    "small transactional": Target("the same, transactional, against the plain one", "times", 1.15),
    "p50": Target("one-record produce, one connection, p50", "us", 40, "92"),
    "p99": Target("one-record produce, one connection, p99", "us", 100, "159"),
    "bulk1000": Target("produce, 1 MB requests, 1,000-byte records", PER_GB, 1.0, "1.3-3.0"),
    "bulk100": Target("produce, 1 MB requests, 100-byte records", PER_GB, 1.0, "1.6-3.0"),
    "fetch": Target("fetch, 1 MiB requests", PER_GB, 0.25, "0.22-0.33"),
    "session of 100": Target("fetch of one partition, session of 100 against 1", "times", 1.5),
    "session of 1000": Target("fetch of one partition, session of 1,000 against 1", "times", 1.5),
    "beside": Target("one record beside a 1 GB/s producer, p99", "ms", 10, ""),
    "beside due": Target("the same, one due every 2 ms", "ms", 10, "38-218"),
    "rate": Target("that producer's rate", "MB/s", 950, "790-990", at_least=True),
    "cold": Target("one record beside a reader of evicted data, slow disk, p99", "times", 1.5),
    "console": Target("one record beside 10 browsers on the console, p99", "times", 1.2),
    "console p50": Target("the same, p50", "times"),
    "console waits": Target("the broker's waits for a core beside them, per record", "us"),
    "console memory": Target("the broker's resident memory grown by them", "MB", 60),
    "console process": Target("resident memory of the console's process", "MB"),
    "commands": Target("a command that asks the broker one thing, the slowest of six", "s", 0.3),
    "grown": Target("resident grown since idle, under load", "MB", 32, "650-790"),
    "creep": Target("resident grown from first to third load", "MB", 4, "370-550"),
    "connections": Target("resident, 10,000 idle connections", "MB", 200, "440"),
    "segments produce": Target("produce, log of 10,000 segments", "times", 1.3, "1.04"),
    "segments fetch": Target("fetch at random, log of 10,000 segments", "times", 1.3, "0.99"),
    "beside partitions produce": Target("produce, broker of 2,000 partitions", "times", 1.3, "0.87"),
    "beside partitions fetch": Target("fetch at random, broker of 2,000 partitions", "times", 1.3, "0.84"),
    "among partitions produce": Target("produce, spread over 2,000 partitions", "times", 1.3, "1.06"),
    "among partitions fetch": Target("fetch at random, spread over 2,000 partitions", "times", 1.3, "0.96"),
    "open": Target("opening 2,000 partitions after a clean stop", "s", 3, "16"),
    "clean1000": Target("cleaning, 1,000-byte records", PER_CPU_SECOND, 100, at_least=True),
    "clean100": Target("cleaning, 100-byte records", PER_CPU_SECOND, 25, at_least=True),
    "clean beside": Target("one record while a log is cleaned, p99", "times", 2),
    "retention": Target("one retention run over 2,000 partitions", "CPU-ms", 50),
    "retention drops": Target("one that takes a segment from each, loop alone", "CPU-ms", 50),
    "commits": Target("offset commits of one partition, 16 connections", "1 / CPU-s", 10_000, at_least=True),
    "heartbeats": Target("1,000 groups of 3 members, a heartbeat every 3 s", "% of a core", 10),
    "rebalance": Target("a group of 200 members, last join to last assignment", "s", 2),
    "offsets": Target("start with 1,000,000 committed offsets", "s", 10),
    "offsets memory": Target("resident while they are loaded", "MB", 400),
    "transactions": Target(
        "transactions of 3 partitions, one producer", "1 / s", 450, "190-325", at_least=True
    ),
    "transactions of 8": Target("the same, eight producers", "1 / s", 1_500, at_least=True),
    "transactions bulk": Target("20 MB transactions beside an idempotent producer", "%", 90, at_least=True),
    "logins": Target("logins by SCRAM-SHA-512 over TLS", PER_LOGIN),
    "handshakes": Target("TLS handshakes", PER_LOGIN),
    "logins beside": Target("one record beside logins, one connection, p99.9", "ms", 20),
    "acl 10": Target("one-record produce, 10 rules to no authorizer", "times", 1.05),
    "acl 1000": Target("one-record produce, 1,000 rules to no authorizer", "times", 1.05),
    "acl 10000": Target("one-record produce, 10,000 rules to no authorizer", "times", 1.05),
    "create topics": Target("cluster of 3: 1,000 topics through one request", "s", 5),
    "create topics beside": Target("one record beside it, one due every 5 ms, p99", "ms", 10),
    "create partitions": Target("cluster of 3: one topic of 1,000 partitions", "s", 2),
    "create partitions beside": Target("one record beside it, one due every 5 ms, p99", "ms", 10),
    "failover": Target("cluster of 3: controller of 1,000 partitions, from its election", "s", 1),
    "idle cluster": Target("cluster of 3 with 1,000 partitions, idle, all brokers", "% of a core", 3, "12.7"),
    "idle cluster memory": Target("resident, largest broker of it", "MB", 80),
    "cluster start": Target("cluster of 3: start of a broker to its first answer", "s", 0.5),
    "cluster produce": Target("one-record produce, broker of a cluster to a single one", "times", 1.1),
    "cluster fetch": Target("fetch of one batch, broker of a cluster to a single one", "times", 1.1),
    "replicated1000": Target("3 replicas: librdkafka, acks=all, 1,000-byte records", PER_GB, 6, "13-18"),
    "replicated100": Target("3 replicas: librdkafka, acks=all, 100-byte records", PER_GB, 12, "14-45"),
    "replicated100 rate": Target("rate of that", "records/s", 350_000, "290,000", at_least=True),
    "replicated p50": Target("3 replicas: one-record produce, acks=all, one connection, p50", "us"),
    "replicated p99": Target("the same, p99", "us"),
    "replicated partitions": Target("3 replicas: one topic of 1,000 partitions, all in sync", "s", 6, "9"),
    "replicated topics": Target("3 replicas: 1,000 topics of 3 partitions, all in sync", "s", 30, "62"),
    "replicated idle 1000": Target(
        "3 replicas: 1,000 partitions, idle, all brokers", "% of a core", 5, "12.7"
    ),
    "replicated idle 3000": Target(
        "3 replicas: 3,000 partitions, idle, all brokers", "% of a core", 8, "20.5"
    ),
    "replicated memory": Target("resident, largest broker with 3,000 partitions", "MB", 150, "1,240"),
    "replicated restart": Target(
        "3 replicas: a restarted broker of 3,000 partitions in every ISR", "s", 6, "14"
    ),
    "librdkafka100": Target(
        "librdkafka, 100-byte records", "records/s", 2_500_000, "2.1-2.6 M", at_least=True
    ),
    "librdkafka1000": Target(
        "librdkafka, 1,000-byte records", "records/s", 600_000, "300,000", at_least=True
    ),
    "produce confluent 100": Target(
        "our producer to confluent-kafka, 100-byte records", "times", 0.5, at_least=True
    ),
    "produce kafka-python 100": Target(
        "our producer to kafka-python, 100-byte records", "times", 3, at_least=True
    ),
    "produce aiokafka 100": Target("our producer to aiokafka, 100-byte records", "times", 3, at_least=True),
    "produce columns 100": Target(
        "our columns to confluent-kafka, 100-byte records", "times", 2, at_least=True
    ),
    "produce confluent 100 keyed": Target(
        "our producer to confluent-kafka, 100-byte records with keys", "times"
    ),
    "produce kafka-python 100 keyed": Target(
        "our producer to kafka-python, 100-byte records with keys", "times"
    ),
    "produce aiokafka 100 keyed": Target("our producer to aiokafka, 100-byte records with keys", "times"),
    "produce columns 100 keyed": Target(
        "our columns to confluent-kafka, 100-byte records with keys", "times"
    ),
    "produce confluent 1000": Target(
        "our producer to confluent-kafka, 1,000-byte records", "times", 0.5, at_least=True
    ),
    "produce kafka-python 1000": Target(
        "our producer to kafka-python, 1,000-byte records", "times", 3, at_least=True
    ),
    "produce aiokafka 1000": Target(
        "our producer to aiokafka, 1,000-byte records", "times", 3, at_least=True
    ),
    "produce columns 1000": Target(
        "our columns to confluent-kafka, 1,000-byte records", "times", 2, at_least=True
    ),
    "produce confluent 1000 keyed": Target(
        "our producer to confluent-kafka, 1,000-byte records with keys", "times"
    ),
    "produce kafka-python 1000 keyed": Target(
        "our producer to kafka-python, 1,000-byte records with keys", "times"
    ),
    "produce aiokafka 1000 keyed": Target("our producer to aiokafka, 1,000-byte records with keys", "times"),
    "produce columns 1000 keyed": Target(
        "our columns to confluent-kafka, 1,000-byte records with keys", "times"
    ),
    "consume confluent 100": Target(
        "our consumer to confluent-kafka, 100-byte records", "times", 0.5, at_least=True
    ),
    "consume kafka-python 100": Target(
        "our consumer to kafka-python, 100-byte records", "times", 3, at_least=True
    ),
    "consume aiokafka 100": Target("our consumer to aiokafka, 100-byte records", "times", 3, at_least=True),
    "consume columns 100": Target(
        "our columns read to confluent-kafka, 100-byte records", "times", 2, at_least=True
    ),
    "consume confluent 1000": Target(
        "our consumer to confluent-kafka, 1,000-byte records", "times", 0.5, at_least=True
    ),
    "consume kafka-python 1000": Target(
        "our consumer to kafka-python, 1,000-byte records", "times", 3, at_least=True
    ),
    "consume aiokafka 1000": Target(
        "our consumer to aiokafka, 1,000-byte records", "times", 3, at_least=True
    ),
    "consume columns 1000": Target(
        "our columns read to confluent-kafka, 1,000-byte records", "times", 2, at_least=True
    ),
    "spark read": Target(
        "Spark, 100-byte rows read into noop", "rows/s", 2_000_000, "1.3-1.55 M", at_least=True
    ),
    "spark write": Target("Spark, 100-byte rows written", "rows/s", 600_000, "410,000", at_least=True),
    "spark exactly once": Target(
        "Spark, 100-byte rows written exactly once", "rows/s", 450_000, at_least=True
    ),
    "spark floor": Target("Spark, micro-batch of one row", "ms", 150),
    "spark collect": Target("collect, events into Parquet", "events/s", 150_000, at_least=True),
    "tables collect": Target("collect into Delta tables, CPU, to the tables before", "times", 1.05),
    "tables collect rate": Target("collect into Delta tables", "events/s", 350_000, at_least=True),
    "tables collect memory": Target("its driver's memory, more than before", "MB", 80),
    "tables small": Target("micro-batches of 1,000 rows, CPU, to the tables before", "times", 1.0),
    "tables merge": Target("merge of 100,000 keys into 5,000,000 rows", "s", 3),
    "tables merge cpu": Target("its CPU, to the append before", "times", 2),
    "tables merge memory": Target("its driver's memory", "MB"),
    "tables merge read": Target("that table read, CPU, to before", "times", 0.1),
    "tables merge first read": Target("the same, the first time in a JVM", "times", 0.1),
    "tables commits": Target("a commit after 10,000 batches to one after 100, CPU", "times", 1.5),
    "tables rings": Target("rings, 200,000 invitations a day, CPU, to before", "times", 0.1),
    "tables rings many": Target("rings, 1,000,000 invitations a day", "s"),
    "tables rings memory": Target("their driver's memory in Python, beside a JVM of 2 GB", "MB", 2_000),
    "tables five": Target("the five pipelines of `make run`, time, to before", "times", 0.67),
    "tables five cpu": Target("their CPU, to before", "times"),
    "spark connector read": Target("Spark's own connector on this broker, rows read", "rows/s"),
    "spark connector write": Target("Spark's own connector on this broker, rows written", "rows/s"),
}


def figure(key: str, measured: float | Sequence[float], note: str = "") -> Figure:
    """The figure of a target; the median of several rounds."""
    target = TARGETS[key]
    rounds = [measured] if isinstance(measured, float | int) else list(measured)
    return Figure(
        target.name,
        statistics.median(rounds),
        target.unit,
        target.bound,
        target.at_least,
        target.kafka,
        [float(value) for value in rounds],
        note,
    )
