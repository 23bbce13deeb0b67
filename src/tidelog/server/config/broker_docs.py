"""What each broker setting does, in our words.

A line that is indented belongs to the setting above it. Loaded only when somebody asks for documentation.
"""

from __future__ import annotations

SERVED = """\
add.partitions.to.txn.retry.backoff.max.ms: The longest the broker keeps trying to add a partition to a
  transaction on its own.
add.partitions.to.txn.retry.backoff.ms: How long it waits between two of these attempts.
advertised.listeners: The addresses that clients are told to connect to, as NAME://host:port, for when they
  differ from those the broker binds. Left out, the listeners themselves are told.
auto.create.topics.enable: Whether asking for the metadata of a topic that does not exist creates it, when
  the client allows that.
broker.id: The number of this broker; -1 generates one on the first start and keeps it in the log folder.
broker.id.generation.enable: Whether a broker without a number may generate one.
broker.rack: The place this broker stands in, told to clients with the metadata.
compression.gzip.level: How hard gzip works where the broker compresses: 9 is smallest and slowest, -1
  leaves it to the library.
compression.lz4.level: How hard lz4 works where the broker compresses; higher is smaller and slower.
compression.type: The codec batches are stored with. `producer` keeps them as they were sent, `uncompressed`
  unpacks them, and another codec packs them anew.
compression.zstd.level: How hard zstd works where the broker compresses; negative levels are faster than
  fast.
connections.max.idle.ms: A connection without a request for this long is closed.
controller.listener.names: Listeners of a KRaft controller. They are left out, with a line at start, so that
  a file written for KRaft can be used.
default.replication.factor: Replicas of a topic that is created without saying how many. One broker can hold
  one.
delete.topic.enable: Whether clients may delete topics.
fetch.max.bytes: The most bytes of records in the answer to a fetch, whatever the client asks for; a first
  batch larger than that is sent all the same.
group.consumer.assignment.interval.ms: How long a consumer group's assignment rests before it is computed
  again.
group.consumer.assignors: The ways partitions can be dealt out in consumer groups; the first is the default.
group.consumer.heartbeat.interval.ms: How often members of a consumer group report.
group.consumer.max.assignment.interval.ms: The longest rest between assignments that a group may ask for.
group.consumer.max.heartbeat.interval.ms: The longest heartbeat interval that a consumer group may ask for.
group.consumer.max.session.timeout.ms: The longest session that a consumer group may ask for.
group.consumer.max.size: Members that a consumer group may have.
group.consumer.migration.policy: Which way groups may move between the classic and the consumer protocol.
group.consumer.min.assignment.interval.ms: The shortest rest between assignments that a group may ask for.
group.consumer.min.heartbeat.interval.ms: The shortest heartbeat interval that a consumer group may ask for.
group.consumer.min.session.timeout.ms: The shortest session that a consumer group may ask for.
group.consumer.session.timeout.ms: A member of a consumer group that is silent for this long is removed.
group.coordinator.rebalance.protocols: The group protocols that clients may use; without `consumer`, consumer
  groups are refused. Classic groups always can be used, share and streams groups never.
group.initial.rebalance.delay.ms: How long a new group waits for more members before its first assignment.
group.max.session.timeout.ms: The longest session that a member of a classic group may ask for.
group.max.size: Members that a classic group may have.
group.min.session.timeout.ms: The shortest session that a member of a classic group may ask for.
inter.broker.listener.name: The listener other brokers would use; it has to be one of the advertised ones.
listener.security.protocol.map: Which protocol a listener's name stands for, as NAME:PROTOCOL pairs. Only
  PLAINTEXT listeners are served.
listeners: Where the broker listens, as NAME://host:port; an empty host means every interface, port 0 lets
  the system choose. Ours is the loopback address, so that nothing is open before somebody decides it.
log.cleaner.backoff.ms: How long the cleaner rests when it finds nothing to compact.
log.cleaner.dedupe.buffer.size: Memory for the map of keys, 24 bytes each, shared by the logs that are
  compacted at a time. Where the keys of a log do not fit, it takes several passes.
log.cleaner.delete.retention.ms: How long a tombstone stays after compaction, so that readers have time to
  see it.
log.cleaner.enable: Whether compaction runs at all.
log.cleaner.io.buffer.load.factor: How full the map of keys may get: fuller takes more keys in a pass, and
  longer to find them.
log.cleaner.io.buffer.size: Memory for the cleaner's reads and writes, shared by its threads.
log.cleaner.io.max.bytes.per.second: Bytes a second that the cleaner may read and write together.
log.cleaner.max.compaction.lag.ms: The longest a record of a compacted topic may wait to be compacted.
log.cleaner.min.cleanable.ratio: The share of a log that has to be uncompacted before the cleaner takes it
  up.
log.cleaner.min.compaction.lag.ms: How long a record of a compacted topic is left alone at least.
log.cleaner.threads: Logs that are compacted at a time, each by short pieces of work in the threads of
  num.io.threads; 0 compacts none.
log.cleanup.policy: What happens to old segments of topics that do not say: `delete` drops them by age and
  size, `compact` keeps the last record of each key, and both can be combined. Compaction itself is not
  served, so compacted topics grow.
log.dir: The folder for data where log.dirs is not given. Ours lies below the folder the broker is started
  in.
log.dirs: The folders for data, separated by commas; a new partition goes to the one with the fewest.
log.flush.interval.messages: After this many records in a partition its file is forced to disk before the
  producer is answered. The default leaves it to the operating system.
log.flush.interval.ms: How long a record may wait in memory before it is forced to disk; left out,
  log.flush.scheduler.interval.ms counts.
log.flush.offset.checkpoint.interval.ms: How often the broker notes up to which offset its logs are safely
  on disk, which bounds the work after a crash.
log.flush.scheduler.interval.ms: How often the broker looks for logs that are due to be flushed.
log.flush.start.offset.checkpoint.interval.ms: How often the broker notes where its logs start, so that
  deleted records stay deleted after a crash.
log.index.interval.bytes: Bytes of log between two entries of its offset index: fewer means finer lookups
  and larger indexes.
log.index.size.max.bytes: The size an index may grow to before its segment is closed.
log.message.timestamp.after.max.ms: How far in the future a record's own timestamp may lie before the batch
  is refused.
log.message.timestamp.before.max.ms: How far in the past a record's own timestamp may lie before the batch
  is refused.
log.message.timestamp.type: Whether records carry the time their producer gave (`CreateTime`) or the time of
  their arrival (`LogAppendTime`).
log.retention.bytes: The bytes a partition may keep before its oldest segments are dropped; -1 sets no
  bound.
log.retention.check.interval.ms: How often the broker looks for segments that are too old or too many.
log.retention.hours: Hours that records are kept; log.retention.minutes and log.retention.ms go before it.
log.retention.minutes: Minutes that records are kept; log.retention.ms goes before it.
log.retention.ms: Milliseconds that records are kept before their segment is dropped; -1 keeps them for
  ever.
log.roll.hours: Hours after which a segment is closed even if it is not full; log.roll.ms goes before it.
log.roll.jitter.hours: Hours by which closing a segment is put off at random; log.roll.jitter.ms goes before
  it.
log.roll.jitter.ms: Milliseconds by which closing a segment is put off at random, so that not all partitions
  do it at once.
log.roll.ms: Milliseconds after which a segment is closed even if it is not full, so that retention can drop
  it.
log.segment.bytes: The size at which a segment is closed and a new one begun.
log.segment.delete.delay.ms: How long the files of a dropped segment stay, renamed, for those who are still
  reading them.
max.connection.creation.rate: New connections accepted in a second; those above it wait. Can be given for
  one listener with its prefix.
max.connections: Connections that may be open at once; above it the longest idle one is closed. Can be given
  for one listener with its prefix.
max.connections.per.ip: Connections that may be open at once from one address.
max.connections.per.ip.overrides: Other limits for named hosts, as host:count pairs.
max.incremental.fetch.session.cache.slots: How many incremental fetch sessions the broker remembers; clients
  without one fetch in full.
max.request.partition.size.limit: The most partitions one answer to DescribeTopicPartitions holds.
message.max.bytes: The largest batch of records a topic takes unless it says otherwise, measured as it is
  stored.
metrics.listener: host:port at which the metrics can be read over HTTP in Prometheus' format. Off when left
  out.
min.insync.replicas: How many replicas have to be in sync for a produce with acks=all; with one broker, more
  than 1 refuses them all.
node.id: KRaft's name for broker.id.
num.io.threads: Threads for work that would block the event loop, such as forcing files to disk and
  compressing, and as many for reading data that is outside the page cache. Requests themselves are handled on
  the loop.
num.partitions: Partitions of a topic that is created without saying how many.
num.recovery.threads.per.data.dir: Threads that open logs at start and repair them after a crash, for each
  data folder.
num.replica.alter.log.dirs.threads: Partitions that move between data folders at a time, each by short
  pieces of work in the threads of num.io.threads; left out, as many as there are folders.
offset.metadata.max.bytes: The longest text that may come with a committed offset.
offsets.commit.timeout.ms: How long a commit may wait for its replicas.
offsets.load.buffer.size: Bytes read at once when a coordinator loads its groups.
offsets.retention.check.interval.ms: How often committed offsets are looked through for stale ones.
offsets.retention.minutes: How long the offsets of a group without members are kept.
offsets.topic.num.partitions: Partitions of the topic that keeps the groups' offsets; they cannot be changed
  once it exists.
offsets.topic.replication.factor: Replicas of the topic that keeps the groups' offsets. One broker gives 1,
  and a larger number is refused.
offsets.topic.segment.bytes: The segment size of that topic: small ones are compacted and loaded sooner.
producer.id.expiration.ms: How long a partition remembers an idempotent producer that is silent.
queued.max.request.bytes: Memory for requests that are being received or handled; when it is used up,
  sockets are not read. -1 sets no bound.
queued.max.requests: Requests that may be in progress at once; beyond it, sockets are not read.
replica.alter.log.dirs.io.max.bytes.per.second: Bytes a second that all partitions moving between data
  folders may copy together; 0 lets the moves stand still, and left out there is no bound.
replica.high.watermark.checkpoint.interval.ms: How often the high watermarks are written to disk.
reserved.broker.max.id: The largest number an operator gives by hand; generated ones start above it.
share.coordinator.state.topic.min.isr: In-sync replicas that the topic of the share groups' state needs. One
  broker gives 1.
share.coordinator.state.topic.replication.factor: Replicas of the topic of the share groups' state. One
  broker gives 1.
socket.listen.backlog.size: Connections that the system holds for a listener until the broker accepts them.
socket.receive.buffer.bytes: The receive buffer of a client's socket; -1 lets the system size it by
  what the connection carries.
socket.request.max.bytes: The largest request; a connection that announces a larger one is closed.
socket.send.buffer.bytes: The send buffer of a client's socket; -1 lets the system size it by what
  the connection carries.
tidelog.batch.unpacked.max.bytes: What one compressed batch may unpack to; a batch that holds more is
  refused before the memory is spent.
tidelog.log.level: The level from which the broker's log lines are written.
tidelog.log.levels: Levels for parts of the broker, as part:LEVEL pairs; a part is a package such as network
  or storage.
transaction.abort.timed.out.transaction.cleanup.interval.ms: How often transactions that took too long are
  looked for and aborted.
transaction.max.timeout.ms: The longest a producer may ask for to finish a transaction.
transaction.partition.verification.enable: Whether a partition asks the coordinator if a transaction is
  really open before it takes records of it.
transaction.remove.expired.transaction.cleanup.interval.ms: How often forgotten transactional ids are looked
  for.
transaction.state.log.load.buffer.size: Bytes read at once when a transaction coordinator loads its state.
transaction.state.log.min.isr: In-sync replicas that the topic of the transactions' state needs. One broker
  gives 1.
transaction.state.log.num.partitions: Partitions of the topic of the transactions' state; they cannot be
  changed once it exists.
transaction.state.log.replication.factor: Replicas of the topic of the transactions' state. One broker gives
  1.
transaction.state.log.segment.bytes: The segment size of the topic of the transactions' state.
transaction.two.phase.commit.enable: Whether producers may take part in a two-phase commit that outlasts
  every time-out.
transactional.id.expiration.ms: How long an unused transactional id is remembered.
"""
