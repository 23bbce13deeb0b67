"""Every topic setting of Kafka 3.9 and 4.3, one line each; `else=` is the broker setting of the default."""

from __future__ import annotations

SERVED = """\
cleanup.policy list delete medium each(compact,delete) else=log.cleanup.policy
compression.gzip.level int -1 medium 1..9|-1 else=compression.gzip.level
compression.lz4.level int 9 medium 1..17 else=compression.lz4.level
compression.type string producer medium in(uncompressed,zstd,lz4,snappy,gzip,producer) else=compression.type
compression.zstd.level int 3 medium -131072..22 else=compression.zstd.level
delete.retention.ms long 86400000 medium >=0 else=log.cleaner.delete.retention.ms
file.delete.delay.ms long 60000 medium >=0 else=log.segment.delete.delay.ms
flush.messages long 9223372036854775807 medium >=1 else=log.flush.interval.messages
flush.ms long 9223372036854775807 medium >=0 else=log.flush.interval.ms
follower.replication.throttled.replicas list "" medium replicas
index.interval.bytes int 4096 medium >=0 else=log.index.interval.bytes
leader.replication.throttled.replicas list "" medium replicas
max.compaction.lag.ms long 9223372036854775807 medium >=1 else=log.cleaner.max.compaction.lag.ms
max.message.bytes int 1048588 medium >=0 else=message.max.bytes
message.timestamp.after.max.ms long 3600000 medium >=0 else=log.message.timestamp.after.max.ms
message.timestamp.before.max.ms long 9223372036854775807 medium >=0 else=log.message.timestamp.before.max.ms
message.timestamp.type string CreateTime medium in(CreateTime,LogAppendTime) else=log.message.timestamp.type
min.cleanable.dirty.ratio double 0.5 medium 0..1 else=log.cleaner.min.cleanable.ratio
min.compaction.lag.ms long 0 medium >=0 else=log.cleaner.min.compaction.lag.ms
min.insync.replicas int 1 medium >=1 else=min.insync.replicas
retention.bytes long -1 medium else=log.retention.bytes
retention.ms long 604800000 medium >=-1 else=log.retention.ms
segment.bytes int 1073741824 medium >=1048576 else=log.segment.bytes
segment.index.bytes int 10485760 medium >=4 else=log.index.size.max.bytes
segment.jitter.ms long 0 medium >=0 else=log.roll.jitter.ms
segment.ms long 604800000 medium >=1 else=log.roll.ms
unclean.leader.election.enable boolean false medium else=unclean.leader.election.enable
"""

# For tests with many small segments; as in Kafka, never shown.
INTERNAL = """\
internal.segment.bytes int null low >=1 unlisted
"""

_PREALLOCATE = """\
preallocate boolean false medium else=log.preallocate
"""

_TIERED = """\
local.retention.bytes long -2 medium >=-2 else=log.local.retention.bytes
local.retention.ms long -2 medium >=-2 else=log.local.retention.ms
remote.log.copy.disable boolean false medium
remote.log.delete.on.disable boolean false medium
remote.storage.enable boolean false medium
"""

_OLD_FORMATS = """\
message.downconversion.enable boolean true low retired
message.format.version string 3.0-IV1 medium version retired
message.timestamp.difference.max.ms long 9223372036854775807 medium >=0 retired
"""

NOT_SERVED = {
    "a segment's file grows as it is written": _PREALLOCATE,
    "tiered storage is not served": _TIERED,
    "only the current record format is written and sent": _OLD_FORMATS,
}
