"""The documentation of the broker settings that are not served, in our words.

An indented line continues the text above it. Only DescribeConfigs with documentation and
`tidelog config-docs` import this module.
"""

from __future__ import annotations

NOT_SERVED = """\
alter.config.policy.class.name: The class that may refuse changes of settings.
alter.config.policy.kraft.compatibility.enable: Whether a policy for changed settings sees them the way
  KRaft shows them.
alter.log.dirs.replication.quota.window.num: Windows over which the rate of moves between data folders is
  measured.
alter.log.dirs.replication.quota.window.size.seconds: Length of a window of the rate of moves between data
  folders.
auto.include.jmx.reporter: Whether JMX shows the metrics if metric.reporters does not name its reporter.
background.threads: Threads for work such as deleting files. Here a scheduler on the event loop does it.
broker.heartbeat.interval.ms: How often a broker sends heartbeats to the KRaft controller.
broker.session.timeout.ms: How long without heartbeats the KRaft controller keeps a broker.
config.providers: Sources that settings can refer to for their values.
controller.quorum.append.linger.ms: How long the quorum's leader collects writes before it stores them.
controller.quorum.auto.join.enable: Whether a controller adds itself to the quorum.
controller.quorum.bootstrap.servers: Addresses at which the quorum can be found.
controller.quorum.election.backoff.max.ms: The longest wait between two elections in the quorum.
controller.quorum.election.timeout.ms: How long a candidate waits for votes.
controller.quorum.fetch.max.bytes: Bytes of metadata that one fetch in the quorum asks for.
controller.quorum.fetch.snapshot.max.bytes: Bytes of a metadata snapshot that one fetch asks for.
controller.quorum.fetch.timeout.ms: How long a voter waits for an answer from the leader before it starts an
  election.
controller.quorum.request.timeout.ms: How long a request in the quorum may take.
controller.quorum.retry.backoff.ms: How long to wait before a request in the quorum is sent again.
controller.quorum.voters: The controllers that vote, as id@host:port.
cordoned.log.dirs: Data folders that get no new partitions; * means all.
create.topic.policy.class.name: The class that may refuse new topics.
delete.records.purgatory.purge.interval.requests: After how many finished delete-records requests the
  purgatory is purged.
early.start.listeners: Listeners that open before access control is ready.
eligible.leader.replicas.enable: Whether the controller keeps a list of replicas that left the in-sync set
  and can still become leader without loss.
fetch.purgatory.purge.interval.requests: After how many finished fetches the purgatory is purged.
follower.fetch.last.tiered.offset.enable: Whether a new follower starts at the first offset that is not yet in
  the remote tier.
group.coordinator.append.linger.ms: How long a group coordinator collects writes; -1 adapts the time to the
  load.
group.coordinator.background.threads: Threads for a coordinator's slow work, such as assignments and
  patterns.
group.coordinator.cached.buffer.max.bytes: The largest write buffer that a coordinator keeps for the next
  write.
group.coordinator.threads: Threads that run group coordinators.
group.share.assignment.interval.ms: The shortest time between two assignments of a share group.
group.share.assignors: The assignors of share groups.
group.share.delivery.count.limit: How often a record is delivered before it is archived.
group.share.heartbeat.interval.ms: How often members of a share group send heartbeats.
group.share.max.assignment.interval.ms: The longest assignment interval that a share group may ask for.
group.share.max.delivery.count.limit: The most deliveries of a record that a share group may ask for.
group.share.max.groups: The largest number of share groups.
group.share.max.heartbeat.interval.ms: The longest heartbeat interval that a share group may ask for.
group.share.max.partition.max.record.locks: The most locked records in a partition that a share group may
  ask for.
group.share.max.record.lock.duration.ms: The longest lock on a record that a share group may ask for.
group.share.max.session.timeout.ms: The longest session that a share group may ask for.
group.share.max.share.sessions: The largest number of share sessions of a broker.
group.share.max.size: The largest number of members of a share group.
group.share.min.assignment.interval.ms: The shortest assignment interval that a share group may ask for.
group.share.min.delivery.count.limit: The fewest deliveries of a record that a share group may ask for.
group.share.min.heartbeat.interval.ms: The shortest heartbeat interval that a share group may ask for.
group.share.min.partition.max.record.locks: The fewest locked records in a partition that a share group may
  ask for.
group.share.min.record.lock.duration.ms: The shortest lock on a record that a share group may ask for.
group.share.min.session.timeout.ms: The shortest session that a share group may ask for.
group.share.partition.max.record.locks: The largest number of locked records of a partition: delivered, and
  not yet acknowledged.
group.share.record.lock.duration.ms: How long a record is locked for the member that got it.
group.share.session.timeout.ms: A share group removes a member without heartbeats after this time.
group.streams.assignment.interval.ms: The shortest time between two assignments of a streams group.
group.streams.heartbeat.interval.ms: How often members of a streams group send heartbeats.
group.streams.initial.rebalance.delay.ms: How long a new streams group waits for more members.
group.streams.max.assignment.interval.ms: The longest assignment interval that a streams group may ask for.
group.streams.max.heartbeat.interval.ms: The longest heartbeat interval that a streams group may ask for.
group.streams.max.session.timeout.ms: The longest session that a streams group may ask for.
group.streams.max.size: The largest number of members of a streams group.
group.streams.max.standby.replicas: The most standby copies of a task that a streams group may ask for.
group.streams.min.assignment.interval.ms: The shortest assignment interval that a streams group may ask for.
group.streams.min.heartbeat.interval.ms: The shortest heartbeat interval that a streams group may ask for.
group.streams.min.session.timeout.ms: The shortest session that a streams group may ask for.
group.streams.num.standby.replicas: Standby copies of each task in a streams group.
group.streams.session.timeout.ms: A streams group removes a member without heartbeats after this time.
initial.broker.registration.timeout.ms: How long a starting broker tries to register with the controller.
kafka.metrics.polling.interval.secs: How often the reporters of kafka.metrics.reporters are called.
kafka.metrics.reporters: Classes that report the metrics of the older library.
log.dir.failure.timeout.ms: A broker that cannot report a broken data folder within this time stops.
log.local.retention.bytes: Bytes of a tiered partition that stay on local disks; -2 takes
  log.retention.bytes.
log.local.retention.ms: How long segments of a tiered partition stay on local disks; -2 takes
  log.retention.ms.
log.message.downconversion.enable: Whether the broker converts records to an older format for old clients.
log.message.format.version: The version of Kafka whose record format the broker writes.
log.message.timestamp.difference.max.ms: The largest difference between the timestamp of a record and the
  broker's clock, in either direction.
log.preallocate: Whether the file of a new segment gets its full size at once.
metadata.log.dir: The folder of KRaft's metadata log.
metadata.log.max.record.bytes.between.snapshots: Bytes of metadata after which a snapshot is taken.
metadata.log.max.snapshot.interval.ms: Time after which a snapshot of the metadata is taken.
metadata.log.segment.bytes: The size of a segment of the metadata log.
metadata.log.segment.ms: Time after which a segment of the metadata log is closed.
metadata.max.idle.interval.ms: How often an idle controller writes a record without content to the metadata
  log.
metadata.max.retention.bytes: Bytes of metadata log and snapshots that are kept.
metadata.max.retention.ms: How long metadata log and snapshots are kept.
metric.reporters: Classes that report metrics.
metrics.num.samples: Samples that a rate is computed over.
metrics.recording.level: How detailed the recorded metrics are.
metrics.sample.window.ms: Length of a sample.
num.network.threads: Threads that read requests and write answers, for each listener. Here the event loop
  does both.
offsets.commit.required.acks: Replicas that need a commit before the coordinator answers it.
offsets.topic.compression.codec: The codec of the offsets topic.
process.roles: The roles of a KRaft process: broker, controller or both. This process is a broker that keeps
  its own metadata.
producer.purgatory.purge.interval.requests: After how many finished produce requests the purgatory is purged.
remote.fetch.max.wait.ms: How long a fetch may wait for the remote tier.
remote.list.offsets.request.timeout.ms: How long a lookup of offsets may wait for the remote tier.
remote.log.index.file.cache.total.size.bytes: Disk space for indexes fetched from the remote tier.
remote.log.manager.copier.thread.pool.size: Threads that copy segments to the remote tier.
remote.log.manager.copy.max.bytes.per.second: Bytes that are copied to the remote tier in a second.
remote.log.manager.copy.quota.window.num: Windows over which the rate of remote copies is measured.
remote.log.manager.copy.quota.window.size.seconds: Length of a window of the rate of remote copies.
remote.log.manager.expiration.thread.pool.size: Threads that delete old segments from the remote tier.
remote.log.manager.fetch.max.bytes.per.second: Bytes that are fetched from the remote tier in a second.
remote.log.manager.fetch.quota.window.num: Windows over which the rate of remote fetches is measured.
remote.log.manager.fetch.quota.window.size.seconds: Length of a window of the rate of remote fetches.
remote.log.manager.follower.thread.pool.size: Threads of followers that read the metadata of remote segments.
remote.log.manager.task.interval.ms: How often the tasks for remote segments run.
remote.log.manager.thread.pool.size: Threads for scheduled work of the remote tier.
remote.log.metadata.custom.metadata.max.bytes: The largest metadata of a storage plug-in for a segment.
remote.log.metadata.manager.class.name: The class that keeps the list of remote segments.
remote.log.metadata.manager.class.path: The path of the class that keeps the list of remote segments.
remote.log.metadata.manager.impl.prefix: The prefix of settings for the class that keeps the list of remote
  segments.
remote.log.metadata.manager.listener.name: The listener to which the class that keeps the list of remote
  segments connects.
remote.log.reader.max.pending.tasks: Remote reads that may wait in the queue.
remote.log.reader.threads: Threads that read from the remote tier.
remote.log.storage.manager.class.name: The class that stores segments remotely.
remote.log.storage.manager.class.path: The path of the class that stores segments remotely.
remote.log.storage.manager.impl.prefix: The prefix of settings for the class that stores segments remotely.
remote.log.storage.system.enable: Whether segments can go to a remote tier at all.
sasl.client.callback.handler.class: The class that supplies a client's credentials.
sasl.kerberos.kinit.cmd: The command that renews Kerberos tickets.
sasl.kerberos.min.time.before.relogin: The shortest sleep of the thread that renews tickets.
sasl.kerberos.ticket.renew.jitter: The random part of the time until a ticket is renewed.
sasl.kerberos.ticket.renew.window.factor: The share of a ticket's life after which it is renewed.
sasl.login.class: The class that logs in.
sasl.mechanism.controller.protocol: How brokers log in at controllers.
sasl.oauthbearer.assertion.algorithm: The algorithm that signs an assertion to the token provider.
sasl.oauthbearer.assertion.claim.aud: The audience in an assertion.
sasl.oauthbearer.assertion.claim.exp.seconds: How long an assertion is valid.
sasl.oauthbearer.assertion.claim.iss: The issuer in an assertion.
sasl.oauthbearer.assertion.claim.jti.include: Whether each assertion has an id.
sasl.oauthbearer.assertion.claim.nbf.seconds: How long before its creation an assertion is valid.
sasl.oauthbearer.assertion.claim.sub: The subject in an assertion.
sasl.oauthbearer.assertion.file: A file with a finished assertion.
sasl.oauthbearer.assertion.private.key.file: The key that signs assertions.
sasl.oauthbearer.assertion.private.key.passphrase: The passphrase of the key that signs assertions.
sasl.oauthbearer.assertion.template.file: A file with further headers and claims of assertions.
sasl.oauthbearer.jwt.retriever.class: The class that gets tokens.
sasl.oauthbearer.jwt.validator.class: The class that checks tokens.
security.providers: Classes that add security providers to the Java machine.
share.coordinator.append.linger.ms: How long a share coordinator collects writes; -1 adapts the time to the
  load.
share.coordinator.cached.buffer.max.bytes: The largest write buffer that a share coordinator keeps for the
  next write.
share.coordinator.load.buffer.size: Bytes that a share coordinator reads at once when it loads its state.
share.coordinator.snapshot.update.records.per.snapshot: Updates of the state of a share partition between two
  snapshots.
share.coordinator.state.topic.compression.codec: The codec of the state topic of share groups.
share.coordinator.state.topic.num.partitions: Partitions of the state topic of share groups.
share.coordinator.state.topic.segment.bytes: The segment size of the state topic of share groups.
share.coordinator.threads: Threads that run share coordinators.
share.coordinator.write.timeout.ms: How long a share coordinator waits for a write to be replicated.
share.fetch.purgatory.purge.interval.requests: After how many finished share fetches the purgatory is purged.
socket.connection.setup.timeout.max.ms: The longest a broker tries to open a connection, after several
  failures.
ssl.engine.factory.class: The class that makes TLS engines.
ssl.keymanager.algorithm: How key managers are made.
ssl.provider: The security provider for TLS.
ssl.secure.random.implementation: The random generator for TLS.
ssl.trustmanager.algorithm: How trust managers are made.
"""
