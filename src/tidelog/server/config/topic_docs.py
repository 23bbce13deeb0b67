"""The documentation of the topic settings, in our words.

An indented line continues the text above it. Only DescribeConfigs with documentation and
`tidelog config-docs` import this module.
"""

from __future__ import annotations

TOPIC = """\
cleanup.policy: `delete` deletes old segments by age and size, `compact` keeps the last record of each key. A
  topic can have both.
compression.gzip.level: The level of gzip if compression.type is gzip: 9 is smallest and slowest, -1 is the
  library's default.
compression.lz4.level: The level of lz4 if compression.type is lz4; higher is smaller and slower.
compression.type: The codec of stored batches. `producer` keeps the codec of the producer, `uncompressed`
  stores batches without compression. Other values compress every batch with that codec.
compression.zstd.level: The level of zstd if compression.type is zstd; higher is smaller and slower, and
  negative levels are the fastest.
delete.retention.ms: How long compaction keeps a tombstone, so that consumers have time to read it.
file.delete.delay.ms: How long the renamed files of a deleted segment stay, for consumers that still read
  them.
flush.messages: After this many records the broker flushes a partition to disk, before it answers the
  producer. With 1 every acknowledged record survives a power cut.
flush.ms: The longest time until a record is flushed to disk.
follower.replication.throttled.replicas: Replicas whose followers fetch at a limited rate, as
  partition:broker pairs, or * for all.
index.interval.bytes: Bytes of log between two entries of its offset index. With fewer bytes lookups are finer
  and indexes larger.
internal.segment.bytes: A segment size below the limit of segment.bytes, for tests with many segments.
leader.replication.throttled.replicas: Replicas whose leaders send at a limited rate, as partition:broker
  pairs, or * for all.
local.retention.bytes: Bytes of a tiered partition that stay on local disks; -2 takes retention.bytes.
local.retention.ms: How long segments of a tiered partition stay on local disks; -2 takes retention.ms.
max.compaction.lag.ms: The longest time until a record is compacted.
max.message.bytes: The size of the largest stored batch.
message.downconversion.enable: Whether the broker converts records to an older format for old clients.
message.format.version: The version of Kafka whose record format the broker writes.
message.timestamp.after.max.ms: The broker refuses batches with a timestamp farther in the future.
message.timestamp.before.max.ms: The broker refuses batches with a timestamp farther in the past.
message.timestamp.difference.max.ms: The largest difference between the timestamp of a record and the broker's
  clock, in either direction.
message.timestamp.type: Whether records have the timestamp of their producer (`CreateTime`) or of their
  arrival (`LogAppendTime`).
min.cleanable.dirty.ratio: The uncompacted share of a log at which the cleaner compacts it.
min.compaction.lag.ms: The shortest time until a record is compacted.
min.insync.replicas: The number of in-sync replicas that a produce with acks=all needs. With one broker, more
  than 1 refuses every such produce.
preallocate: Whether the file of a new segment gets its full size at once.
remote.log.copy.disable: Whether a tiered topic stops copying segments, and only reads the copied ones.
remote.log.delete.on.disable: Whether Kafka deletes the remote segments when a topic stops being tiered.
remote.storage.enable: Whether the topic's segments go to a remote tier; the broker refuses true.
retention.bytes: The size of a partition above which the broker deletes its oldest segments; -1 means no
  limit.
retention.ms: Milliseconds until the broker deletes records, segment by segment; -1 keeps them for ever.
segment.bytes: The size at which the broker closes a segment and begins a new one. Retention deletes closed
  segments only.
segment.index.bytes: The size of an index at which the broker rolls its segment.
segment.jitter.ms: Milliseconds of random delay before a segment is rolled, so that partitions roll at
  different times.
segment.ms: Milliseconds after which the broker rolls a segment, even if it is not full, so that retention can
  delete it.
unclean.leader.election.enable: Whether an out-of-sync replica may become leader if no in-sync replica is
  left. Records may be lost then.
"""
