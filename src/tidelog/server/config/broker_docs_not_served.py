"""What each broker setting means that we do not serve, in our words.

A line that is indented belongs to the setting above it. Loaded only when somebody asks for documentation.
"""

from __future__ import annotations

NOT_SERVED = """\
alter.config.policy.class.name: The class that may refuse changes of settings.
alter.config.policy.kraft.compatibility.enable: Whether a policy for changed settings sees them the way
  KRaft shows them.
alter.log.dirs.replication.quota.window.num: Windows over which the rate of moves between data folders is
  measured.
alter.log.dirs.replication.quota.window.size.seconds: Length of one such window.
authorizer.class.name: The class that decides who may do what.
auto.include.jmx.reporter: Whether metrics are also shown over JMX without asking for it.
auto.leader.rebalance.enable: Whether leadership goes back to the preferred replicas by itself.
background.threads: Threads for chores such as deleting files. Here a scheduler on the event loop does them.
broker.heartbeat.interval.ms: How often a broker tells the KRaft controller that it lives.
broker.session.timeout.ms: After how long without that the controller gives the broker up.
client.quota.callback.class: The class that decides which quota a client has.
config.providers: Sources that settings can refer to for their values.
connection.failed.authentication.delay.ms: How long a connection stays open after its login failed, to slow
  guessing down.
connections.max.reauth.ms: How long a login is good for before the client has to repeat it; 0 means for
  ever.
control.plane.listener.name: The listener that the controller's requests would come in at, apart from those
  of clients.
controlled.shutdown.enable: Whether a broker hands its leaderships over before it stops.
controlled.shutdown.max.retries: How often a broker asks again to hand its leaderships over.
controlled.shutdown.retry.backoff.ms: How long it waits before it asks again.
controller.quorum.append.linger.ms: How long the quorum's leader collects writes before it stores them.
controller.quorum.auto.join.enable: Whether a controller adds itself to the quorum.
controller.quorum.bootstrap.servers: Addresses at which the quorum can be found.
controller.quorum.election.backoff.max.ms: The longest wait between two elections in the quorum.
controller.quorum.election.timeout.ms: How long a candidate waits for votes.
controller.quorum.fetch.max.bytes: Bytes of metadata that one fetch in the quorum asks for.
controller.quorum.fetch.snapshot.max.bytes: Bytes of a metadata snapshot that one fetch asks for.
controller.quorum.fetch.timeout.ms: After how long without hearing from the leader a voter starts an
  election.
controller.quorum.request.timeout.ms: How long a request in the quorum may take.
controller.quorum.retry.backoff.ms: How long to wait before a request in the quorum is sent again.
controller.quorum.voters: The controllers that vote, as id@host:port.
controller.quota.window.num: Windows over which the rate of topic changes is measured.
controller.quota.window.size.seconds: Length of one such window.
controller.socket.timeout.ms: How long a controller waits for a broker's answer.
cordoned.log.dirs: Data folders that get no new partitions; * stands for all of them.
create.topic.policy.class.name: The class that may refuse new topics.
delegation.token.expiry.check.interval.ms: How often expired tokens are removed.
delegation.token.expiry.time.ms: How long a token is good for before it has to be renewed.
delegation.token.master.key: The old name of delegation.token.secret.key.
delegation.token.max.lifetime.ms: How long a token can be renewed for at all.
delegation.token.secret.key: The key that tokens are made and checked with; the same on all brokers.
delete.records.purgatory.purge.interval.requests: After how many finished delete-records requests the
  waiting list is tidied.
early.start.listeners: Listeners that open before access control is ready.
eligible.leader.replicas.enable: Whether the controller keeps a list of replicas that left the in-sync set
  and may still lead without loss.
fetch.purgatory.purge.interval.requests: After how many finished fetches the list of waiting ones is tidied.
follower.fetch.last.tiered.offset.enable: Whether a new follower starts at what is not yet in the remote
  tier.
follower.replication.throttled.rate: Bytes a second that this broker fetches as a follower of throttled
  replicas.
group.coordinator.append.linger.ms: How long a group coordinator collects writes; -1 adapts it to the load.
group.coordinator.background.threads: Threads for a coordinator's slow work, such as assignments and
  patterns.
group.coordinator.cached.buffer.max.bytes: The largest write buffer that a coordinator keeps for the next
  write.
group.coordinator.threads: Threads that run group coordinators.
group.share.assignment.interval.ms: How long a share group's assignment rests before it is computed again.
group.share.assignors: The ways partitions can be dealt out in share groups.
group.share.delivery.count.limit: How often a record is handed out before it is given up.
group.share.heartbeat.interval.ms: How often members of a share group report.
group.share.max.assignment.interval.ms: The longest rest between assignments that a share group may ask for.
group.share.max.delivery.count.limit: The most deliveries of a record that a share group may ask for.
group.share.max.groups: Share groups that may exist.
group.share.max.heartbeat.interval.ms: The longest heartbeat interval that a share group may ask for.
group.share.max.partition.max.record.locks: The most locked records in a partition that a share group may
  ask for.
group.share.max.record.lock.duration.ms: The longest lock on a record that a share group may ask for.
group.share.max.session.timeout.ms: The longest session that a share group may ask for.
group.share.max.share.sessions: Share sessions that a broker remembers.
group.share.max.size: Members that a share group may have.
group.share.min.assignment.interval.ms: The shortest rest between assignments that a share group may ask
  for.
group.share.min.delivery.count.limit: The fewest deliveries of a record that a share group may ask for.
group.share.min.heartbeat.interval.ms: The shortest heartbeat interval that a share group may ask for.
group.share.min.partition.max.record.locks: The fewest locked records in a partition that a share group may
  ask for.
group.share.min.record.lock.duration.ms: The shortest lock on a record that a share group may ask for.
group.share.min.session.timeout.ms: The shortest session that a share group may ask for.
group.share.partition.max.record.locks: Records of a partition that may be handed out and not yet settled.
group.share.record.lock.duration.ms: How long a member has a record to itself.
group.share.session.timeout.ms: A member of a share group that is silent for this long is removed.
group.streams.assignment.interval.ms: How long a streams group's assignment rests before it is computed
  again.
group.streams.heartbeat.interval.ms: How often members of a streams group report.
group.streams.initial.rebalance.delay.ms: How long a new streams group waits for more members.
group.streams.max.assignment.interval.ms: The longest rest between assignments that a streams group may ask
  for.
group.streams.max.heartbeat.interval.ms: The longest heartbeat interval that a streams group may ask for.
group.streams.max.session.timeout.ms: The longest session that a streams group may ask for.
group.streams.max.size: Members that a streams group may have.
group.streams.max.standby.replicas: The most standby copies of a task that a streams group may ask for.
group.streams.min.assignment.interval.ms: The shortest rest between assignments that a streams group may ask
  for.
group.streams.min.heartbeat.interval.ms: The shortest heartbeat interval that a streams group may ask for.
group.streams.min.session.timeout.ms: The shortest session that a streams group may ask for.
group.streams.num.standby.replicas: Standby copies of each task in a streams group.
group.streams.session.timeout.ms: A member of a streams group that is silent for this long is removed.
initial.broker.registration.timeout.ms: How long a starting broker tries to register with the controller.
inter.broker.protocol.version: The version of Kafka whose requests brokers send each other, held back during
  an upgrade.
kafka.metrics.polling.interval.secs: How often the reporters of kafka.metrics.reporters are called.
kafka.metrics.reporters: Classes that report the older kind of metrics.
leader.imbalance.check.interval.seconds: How often the controller looks for brokers that lead too little.
leader.imbalance.per.broker.percentage: The share of leaderships away from the preferred replica that is
  tolerated on a broker.
leader.replication.throttled.rate: Bytes a second that this broker sends to followers of throttled replicas.
log.dir.failure.timeout.ms: A broker that cannot report a broken data folder within this time stops.
log.local.retention.bytes: Bytes of a tiered partition that stay on local disks; -2 takes
  log.retention.bytes.
log.local.retention.ms: How long a tiered partition's segments stay on local disks; -2 takes
  log.retention.ms.
log.message.downconversion.enable: Whether records are rewritten in an older format for clients that know no
  other.
log.message.format.version: The version of Kafka whose record format is written.
log.message.timestamp.difference.max.ms: How far a record's timestamp may be from the broker's clock, in
  either direction.
log.preallocate: Whether a new segment's file gets its full size at once.
metadata.log.dir: The folder of KRaft's metadata log.
metadata.log.max.record.bytes.between.snapshots: Bytes of metadata after which a snapshot is taken.
metadata.log.max.snapshot.interval.ms: Time after which a snapshot of the metadata is taken.
metadata.log.segment.bytes: The size of a segment of the metadata log.
metadata.log.segment.ms: Time after which a segment of the metadata log is closed.
metadata.max.idle.interval.ms: How often an idle controller writes to the metadata log, to show that it
  lives.
metadata.max.retention.bytes: Bytes of metadata log and snapshots that are kept.
metadata.max.retention.ms: How long metadata log and snapshots are kept.
metric.reporters: Classes that report metrics.
metrics.num.samples: Samples that a rate is computed over.
metrics.recording.level: How detailed the recorded metrics are.
metrics.sample.window.ms: Length of one such sample.
num.network.threads: Threads that read requests and write answers, for each listener. Here the event loop
  does both.
num.replica.fetchers: Fetchers for each leader that a broker follows.
offsets.commit.required.acks: Replicas that have to have a commit before it is answered.
offsets.topic.compression.codec: The codec of the topic that keeps the groups' offsets.
password.encoder.cipher.algorithm: The cipher for passwords that are stored as settings.
password.encoder.iterations: How often the key for that is stretched.
password.encoder.key.length: How long that key is.
password.encoder.keyfactory.algorithm: How that key is made.
password.encoder.old.secret: The secret before the last change, to read what was stored with it.
password.encoder.secret: The secret that stored passwords are encrypted with.
principal.builder.class: The class that makes a user of what a connection shows.
process.roles: What a KRaft process is: broker, controller or both. This one is a broker that keeps its own
  metadata.
producer.purgatory.purge.interval.requests: After how many finished produce requests the list of waiting
  ones is tidied.
quota.window.num: Windows over which a client's rates are measured.
quota.window.size.seconds: Length of one such window.
remote.fetch.max.wait.ms: How long a fetch may wait for the remote tier.
remote.list.offsets.request.timeout.ms: How long a lookup of offsets may wait for the remote tier.
remote.log.index.file.cache.total.size.bytes: Disk space for indexes fetched from the remote tier.
remote.log.manager.copier.thread.pool.size: Threads that copy segments to the remote tier.
remote.log.manager.copy.max.bytes.per.second: Bytes a second that are copied to the remote tier.
remote.log.manager.copy.quota.window.num: Windows over which that rate is measured.
remote.log.manager.copy.quota.window.size.seconds: Length of one such window.
remote.log.manager.expiration.thread.pool.size: Threads that delete old segments from the remote tier.
remote.log.manager.fetch.max.bytes.per.second: Bytes a second that are fetched from the remote tier.
remote.log.manager.fetch.quota.window.num: Windows over which the rate of remote fetches is measured.
remote.log.manager.fetch.quota.window.size.seconds: Length of one such window.
remote.log.manager.follower.thread.pool.size: Threads that follow what leaders have put into the remote
  tier.
remote.log.manager.task.interval.ms: How often copying, expiring and following are run.
remote.log.manager.thread.pool.size: Threads for the remote tier's scheduled work.
remote.log.metadata.custom.metadata.max.bytes: What a storage plug-in may note about a segment.
remote.log.metadata.manager.class.name: The class that keeps the list of remote segments.
remote.log.metadata.manager.class.path: Where that class is loaded from.
remote.log.metadata.manager.impl.prefix: The prefix of settings that are handed to that class.
remote.log.metadata.manager.listener.name: The listener that class connects to.
remote.log.reader.max.pending.tasks: Remote reads that may wait in the queue.
remote.log.reader.threads: Threads that read from the remote tier.
remote.log.storage.manager.class.name: The class that stores segments remotely.
remote.log.storage.manager.class.path: Where that class is loaded from.
remote.log.storage.manager.impl.prefix: The prefix of settings that are handed to that class.
remote.log.storage.system.enable: Whether segments can be moved to a remote tier at all.
replica.fetch.backoff.ms: How long a follower waits after a failed fetch.
replica.fetch.max.bytes: Bytes that a follower asks for from each partition.
replica.fetch.min.bytes: Bytes that a leader collects before it answers a follower.
replica.fetch.response.max.bytes: Bytes that a follower asks for in one answer.
replica.fetch.wait.max.ms: How long a leader may keep a follower waiting for new records.
replica.lag.time.max.ms: A follower that has not caught up for this long leaves the in-sync set.
replica.selector.class: The class that picks the replica a consumer reads from.
replica.socket.receive.buffer.bytes: The receive buffer of a follower's connection.
replica.socket.timeout.ms: How long a follower waits for an answer from its leader.
replication.quota.window.num: Windows over which the rate of throttled replicas is measured.
replication.quota.window.size.seconds: Length of one such window.
request.timeout.ms: How long a broker waits for the answer to a request of its own.
sasl.client.callback.handler.class: The class that supplies a client's credentials.
sasl.enabled.mechanisms: The ways to log in that the broker offers.
sasl.jaas.config: The login modules and their options, as one text.
sasl.kerberos.kinit.cmd: The command that renews Kerberos tickets.
sasl.kerberos.min.time.before.relogin: How long the renewing thread sleeps at least.
sasl.kerberos.principal.to.local.rules: Rules that make a short user name of a Kerberos principal.
sasl.kerberos.service.name: The Kerberos name of the broker's service.
sasl.kerberos.ticket.renew.jitter: The random part of the time until a ticket is renewed.
sasl.kerberos.ticket.renew.window.factor: The share of a ticket's life after which it is renewed.
sasl.login.callback.handler.class: The class that supplies what a login needs.
sasl.login.class: The class that logs in.
sasl.login.connect.timeout.ms: How long to try to reach a login provider.
sasl.login.read.timeout.ms: How long to wait for a login provider's answer.
sasl.login.refresh.buffer.seconds: Time that should be left on a credential when it is renewed.
sasl.login.refresh.min.period.seconds: The shortest time between two renewals of a credential.
sasl.login.refresh.window.factor: The share of a credential's life after which it is renewed.
sasl.login.refresh.window.jitter: The random part of that time.
sasl.login.retry.backoff.max.ms: The longest wait between two attempts to reach a login provider.
sasl.login.retry.backoff.ms: The first wait between two such attempts.
sasl.mechanism.controller.protocol: How brokers log in at controllers.
sasl.mechanism.inter.broker.protocol: How brokers log in at each other.
sasl.oauthbearer.assertion.algorithm: How an assertion to the token provider is signed.
sasl.oauthbearer.assertion.claim.aud: The audience that stands in the assertion.
sasl.oauthbearer.assertion.claim.exp.seconds: How long an assertion is good for.
sasl.oauthbearer.assertion.claim.iss: The issuer that stands in the assertion.
sasl.oauthbearer.assertion.claim.jti.include: Whether each assertion gets an id of its own.
sasl.oauthbearer.assertion.claim.nbf.seconds: How long before now an assertion is already good.
sasl.oauthbearer.assertion.claim.sub: The subject that stands in the assertion.
sasl.oauthbearer.assertion.file: A file with a finished assertion.
sasl.oauthbearer.assertion.private.key.file: The key that assertions are signed with.
sasl.oauthbearer.assertion.private.key.passphrase: The passphrase of that key.
sasl.oauthbearer.assertion.template.file: A file with further headers and claims of assertions.
sasl.oauthbearer.client.credentials.client.id: The id that a token is asked for with.
sasl.oauthbearer.client.credentials.client.secret: The secret that goes with that id.
sasl.oauthbearer.clock.skew.seconds: How far the clocks of broker and token provider may differ.
sasl.oauthbearer.expected.audience: The audiences that a token may be meant for.
sasl.oauthbearer.expected.issuer: The issuer that a token has to come from.
sasl.oauthbearer.jwks.endpoint.refresh.ms: How often the provider's keys are fetched.
sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms: The longest wait between two attempts to fetch them.
sasl.oauthbearer.jwks.endpoint.retry.backoff.ms: The first wait between two such attempts.
sasl.oauthbearer.jwks.endpoint.url: Where the provider's keys are.
sasl.oauthbearer.jwt.retriever.class: The class that gets tokens.
sasl.oauthbearer.jwt.validator.class: The class that checks tokens.
sasl.oauthbearer.scope: The scope that a token is asked for with.
sasl.oauthbearer.scope.claim.name: The claim that holds a token's scope.
sasl.oauthbearer.sub.claim.name: The claim that holds a token's user.
sasl.oauthbearer.token.endpoint.url: Where tokens are asked for.
sasl.server.callback.handler.class: The class that checks credentials on the broker.
sasl.server.max.receive.size: The largest message a client may send before it is logged in.
security.inter.broker.protocol: The protocol brokers speak to each other; it names the listener for that
  where inter.broker.listener.name does not.
security.providers: Classes that add security providers to the Java machine.
share.coordinator.append.linger.ms: How long a share coordinator collects writes; -1 adapts it to the load.
share.coordinator.cached.buffer.max.bytes: The largest write buffer that a share coordinator keeps for the
  next write.
share.coordinator.load.buffer.size: Bytes read at once when a share coordinator loads its state.
share.coordinator.snapshot.update.records.per.snapshot: Updates of a share partition's state between two
  snapshots of it.
share.coordinator.state.topic.compression.codec: The codec of the topic of the share groups' state.
share.coordinator.state.topic.num.partitions: Partitions of the topic of the share groups' state.
share.coordinator.state.topic.segment.bytes: The segment size of the topic of the share groups' state.
share.coordinator.threads: Threads that run share coordinators.
share.coordinator.write.timeout.ms: How long a share coordinator waits for a write to be replicated.
share.fetch.purgatory.purge.interval.requests: After how many finished share fetches the list of waiting
  ones is tidied.
socket.connection.setup.timeout.max.ms: The longest a broker tries to open a connection, after several
  failures.
socket.connection.setup.timeout.ms: How long a broker tries to open a connection the first time.
ssl.allow.dn.changes: Whether a key file may be replaced by one with another name in its certificate.
ssl.allow.san.changes: Whether a key file may be replaced by one that lacks alternative names of the old.
ssl.cipher.suites: The ciphers that may be used; empty allows all that are safe.
ssl.client.auth: Whether clients have to show a certificate.
ssl.enabled.protocols: The versions of TLS that may be used.
ssl.endpoint.identification.algorithm: Whether the name in a server's certificate is compared with its host.
ssl.engine.factory.class: The class that makes TLS engines.
ssl.key.password: The password of the private key.
ssl.keymanager.algorithm: How key managers are made.
ssl.keystore.certificate.chain: The broker's certificates as text, in place of a key file.
ssl.keystore.key: The broker's private key as text, in place of a key file.
ssl.keystore.location: The key file.
ssl.keystore.password: The password of the key file.
ssl.keystore.type: The format of the key file.
ssl.principal.mapping.rules: Rules that make a short user name of a certificate's name.
ssl.protocol: The version of TLS that contexts are made with.
ssl.provider: The security provider for TLS.
ssl.secure.random.implementation: The random generator for TLS.
ssl.trustmanager.algorithm: How trust managers are made.
ssl.truststore.certificates: The trusted certificates as text, in place of a file.
ssl.truststore.location: The file of trusted certificates.
ssl.truststore.password: The password of that file.
ssl.truststore.type: The format of that file.
telemetry.max.bytes: The largest report of its own metrics that a client may send.
unclean.leader.election.enable: Whether a replica that is behind may lead when no other is left, at the
  price of lost records.
zookeeper.clientCnxnSocket: The class of the ZooKeeper client's connection.
zookeeper.connect: The ZooKeeper ensemble of a cluster. A broker that is given one does not start, so that
  it never runs alone by mistake.
zookeeper.connection.timeout.ms: How long to try to reach ZooKeeper.
zookeeper.max.in.flight.requests: Requests to ZooKeeper that may be unanswered at once.
zookeeper.metadata.migration.enable: Whether the metadata moves from ZooKeeper to KRaft.
zookeeper.session.timeout.ms: How long a silent broker keeps its session with ZooKeeper.
zookeeper.set.acl: Whether nodes are created with access lists.
zookeeper.ssl.cipher.suites: The ciphers towards ZooKeeper.
zookeeper.ssl.client.enable: Whether ZooKeeper is reached over TLS.
zookeeper.ssl.crl.enable: Whether revocation lists are consulted for ZooKeeper's certificate.
zookeeper.ssl.enabled.protocols: The versions of TLS towards ZooKeeper.
zookeeper.ssl.endpoint.identification.algorithm: Whether the name in ZooKeeper's certificate is compared
  with the host.
zookeeper.ssl.keystore.location: The file of this broker's key towards ZooKeeper.
zookeeper.ssl.keystore.password: The password of that key file.
zookeeper.ssl.keystore.type: The format of that key file.
zookeeper.ssl.ocsp.enable: Whether ZooKeeper's certificate is checked online.
zookeeper.ssl.protocol: The version of TLS that talks with ZooKeeper begin with.
zookeeper.ssl.truststore.location: The file of certificates that ZooKeeper is trusted by.
zookeeper.ssl.truststore.password: The password of that file.
zookeeper.ssl.truststore.type: The format of that file.
"""
