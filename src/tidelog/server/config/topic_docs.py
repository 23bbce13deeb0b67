"""What each topic setting does, in our words.

A line that is indented belongs to the setting above it. Loaded only when somebody asks for documentation.
"""

from __future__ import annotations

TOPIC = """\
cleanup.policy: What happens to old segments: `delete` drops them by age and size, `compact` keeps the last
  record of each key, and both can be combined. Compaction itself is not served, so a compacted topic grows.
compression.gzip.level: How hard gzip works where compression.type is gzip: 9 is smallest and slowest, -1
  leaves it to the library.
compression.lz4.level: How hard lz4 works where compression.type is lz4.
compression.type: The codec batches are stored with. `producer` keeps them as they were sent, `uncompressed`
  unpacks them, and another codec packs them anew.
compression.zstd.level: How hard zstd works where compression.type is zstd.
delete.retention.ms: How long a tombstone of a compacted topic stays, so that readers have time to see it.
file.delete.delay.ms: How long the files of a dropped segment stay, renamed, for those who are still reading
  them.
flush.messages: After this many records a partition is forced to disk before the producer is answered: 1
  makes every answered record safe from a power cut.
flush.ms: How long a record may wait in memory before it is forced to disk.
follower.replication.throttled.replicas: Replicas whose followers fetch at a bounded rate, as
  partition:broker pairs, or * for all.
index.interval.bytes: Bytes of log between two entries of its offset index: fewer means finer lookups and
  larger indexes.
internal.segment.bytes: A segment size below the smallest that segment.bytes allows, for tests that want
  many segments.
leader.replication.throttled.replicas: Replicas whose leaders send at a bounded rate, as partition:broker
  pairs, or * for all.
local.retention.bytes: Bytes of a tiered partition that stay on local disks; -2 takes retention.bytes.
local.retention.ms: How long a tiered partition's segments stay on local disks; -2 takes retention.ms.
max.compaction.lag.ms: The longest a record may wait to be compacted.
max.message.bytes: The largest batch of records the topic takes, measured as it is stored.
message.downconversion.enable: Whether records are rewritten in an older format for clients that know no
  other.
message.format.version: The version of Kafka whose record format is written.
message.timestamp.after.max.ms: How far in the future a record's own timestamp may lie before the batch is
  refused.
message.timestamp.before.max.ms: How far in the past a record's own timestamp may lie before the batch is
  refused.
message.timestamp.difference.max.ms: How far a record's timestamp may be from the broker's clock, in either
  direction.
message.timestamp.type: Whether records carry the time their producer gave (`CreateTime`) or the time of
  their arrival (`LogAppendTime`).
min.cleanable.dirty.ratio: The share of a log that has to be uncompacted before the cleaner takes it up.
min.compaction.lag.ms: How long a record is left alone by compaction at least.
min.insync.replicas: How many replicas have to be in sync for a produce with acks=all; with one broker, more
  than 1 refuses them all.
preallocate: Whether a new segment's file gets its full size at once.
remote.log.copy.disable: Whether a tiered topic stops copying segments and only reads those that are there.
remote.log.delete.on.disable: Whether what is in the remote tier is deleted when a topic stops being tiered.
remote.storage.enable: Whether the topic's segments go to a remote tier; true is refused.
retention.bytes: The bytes a partition may keep before its oldest segments are dropped; -1 sets no bound.
retention.ms: How long records are kept before their segment is dropped; -1 keeps them for ever.
segment.bytes: The size at which a segment is closed and a new one begun; only closed segments are dropped.
segment.index.bytes: The size an index may grow to before its segment is closed.
segment.jitter.ms: Milliseconds by which closing a segment is put off at random, so that not all partitions
  do it at once.
segment.ms: How long until a segment is closed even if it is not full, so that retention can drop it.
unclean.leader.election.enable: Whether a replica that is behind may lead when no other is left, at the
  price of lost records.
"""
