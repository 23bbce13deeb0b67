"""The partition of a key or an id, by the hashes of all Kafka clients and brokers."""

from __future__ import annotations

from tidelog.records import loops
from tidelog.records._pure import Buffer


def partition_for_key(key: Buffer, partitions: int) -> int:
    """The partition that Java's default partitioner chooses for this key."""
    return (loops.murmur2(key) & 0x7FFFFFFF) % partitions


def partition_for_id(text: str, partitions: int) -> int:
    """The partition of an internal topic that holds a group or a transactional id."""
    number = abs(loops.java_string_hash(text))
    return 0 if number == 1 << 31 else number % partitions  # Java's abs has no 2^31
