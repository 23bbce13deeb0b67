"""The documentation of the served broker settings, in our words.

An indented line continues the text above it. Only DescribeConfigs with documentation and
`tidelog config-docs` import this module.
"""

from __future__ import annotations

SERVED = """\
add.partitions.to.txn.retry.backoff.max.ms: How long the broker retries to add a partition to a transaction.
add.partitions.to.txn.retry.backoff.ms: How long the broker waits between two attempts to add a partition to a
  transaction.
advertised.listeners: The addresses for clients, as NAME://host:port, if they differ from the addresses that
  the broker binds. Without this setting clients get the addresses of listeners.
allow.everyone.if.no.acl.found: Whether everybody may use a resource that no access rule is about.
authorizer.class.name: The class that decides who may do what. Kafka's two names, which are
  kafka.security.authorizer.AclAuthorizer and org.apache.kafka.metadata.authorizer.StandardAuthorizer, mean
  that the access rules in the tree decide. `package.module.Class` is a Python class of your own. Without a
  name every client that can connect may do everything.
auto.create.topics.enable: Whether a metadata request creates topics that do not exist, if the client allows
  it.
auto.leader.rebalance.enable: Whether the controller gives leadership back to the preferred replicas, if too
  many partitions are led by others.
broker.id: The number of this broker; -1 generates one on the first start and keeps it in the log folder.
broker.id.generation.enable: Whether a broker without a number may generate one.
broker.rack: The rack of this broker. Clients get it with the metadata, and the controller places the replicas
  of a partition on different racks.
client.quota.callback.class: A Python class, as package.module.Class, that decides which quota a client has.
  Without it the quotas of users and client ids count.
compression.gzip.level: The level of gzip if the broker compresses: 9 is smallest and slowest, -1 is the
  library's default.
compression.lz4.level: The level of lz4 if the broker compresses; higher is smaller and slower.
compression.type: The codec of stored batches. `producer` keeps the codec of the producer, `uncompressed`
  stores batches without compression. Other values compress every batch with that codec.
compression.zstd.level: The level of zstd if the broker compresses; higher is smaller and slower, and negative
  levels are the fastest.
connection.failed.authentication.delay.ms: How long the broker waits before it answers a failed authentication
  and closes the connection, which slows down guessing.
connections.max.idle.ms: The broker closes a connection without requests after this time.
connections.max.reauth.ms: How long the session of a client is valid, unless its token expires before. The
  client re-authenticates until then; the first request after it closes the connection. 0 means for ever. With
  the prefix listener.name.NAME.MECHANISM. it is for one mechanism of a listener.
control.plane.listener.name: The listener for requests of the controller, which then do not wait behind
  clients' requests. Without it they come over the listener of brokers.
controlled.shutdown.enable: Whether a broker of a cluster gives up its leaderships before it stops.
controlled.shutdown.max.retries: How often a broker retries to give up its leaderships before it stops
  without.
controlled.shutdown.retry.backoff.ms: How long a broker waits before it retries to give up its leaderships.
console.access.config: A TOML file with the logins, sessions and roles of the console. Without it nobody logs
  in, and everybody who reaches the console may do everything.
console.allowed.hosts: More host names and addresses under which the console answers, *.example.com for the
  names below one, * for all. It always answers under localhost, loopback addresses, the address at which the
  connection arrives, the hosts of console.listener and advertised.listeners, and the host of public_url; with
  a login under every address. It refuses other names, which may be those of a site that wants its data.
console.cluster.name: The name of the cluster on the pages of console.listener and in their addresses.
console.command.config: A file with client settings (security.protocol, sasl.jaas.config and so on) with which
  the console connects to its broker. It needs them if the first listener asks who connects.
console.listener: host:port of the console, which has web pages and a JSON API; port 0 takes any free port. It
  needs the packages of the extra console: pip install 'tidelog[console]'. Without the setting there is none.
console.pipelines: The data folders of pipelines that the console shows.
console.read.only: Whether the console refuses every change.
console.rules.file: A JSON file with decoders, schema files and masking rules of topics for the console.
console.scheduling.policy: The place of the console's process beside the broker. batch: the broker
  interrupts it whenever it wakes up, and it gets a quarter of a core that both want (SCHED_BATCH, niceness
  5). idle: it runs when a core has nothing else to do (SCHED_IDLE), and does not answer while all are busy.
  normal: as the broker.
controller.listener.names: Listeners of a KRaft controller. The broker leaves them out and logs a line at
  start, so that it can use a file for KRaft.
controller.quota.window.num: Windows over which the rate of topic changes of a client is measured. Its bucket
  holds the tokens of all of them.
controller.quota.window.size.seconds: Length of a window of the rate of topic changes of a client.
controller.socket.timeout.ms: How long the controller and brokers wait for the answer to a request between
  them.
default.replication.factor: Replicas of a new topic whose creator gives no number.
delegation.token.expiry.check.interval.ms: How often the controller removes expired delegation tokens.
delegation.token.expiry.time.ms: How long a delegation token is valid until it has to be renewed.
delegation.token.master.key: The old name of delegation.token.secret.key.
delegation.token.max.lifetime.ms: How long a delegation token can be renewed.
delegation.token.secret.key: The key that signs delegation tokens; the same on all brokers. Without it there
  are no tokens.
delete.topic.enable: Whether clients may delete topics.
fetch.max.bytes: The upper limit of records in the answer to a fetch, also if the client asks for more. A
  larger first batch is sent nevertheless.
follower.replication.throttled.rate: Bytes a second that this broker fetches as a follower of throttled
  replicas.
group.consumer.assignment.interval.ms: The shortest time between two assignments of a consumer group.
group.consumer.assignors: The assignors of consumer groups; the first is the default.
group.consumer.heartbeat.interval.ms: How often members of a consumer group send heartbeats.
group.consumer.max.assignment.interval.ms: The longest assignment interval that a consumer group may ask for.
group.consumer.max.heartbeat.interval.ms: The longest heartbeat interval that a consumer group may ask for.
group.consumer.max.session.timeout.ms: The longest session that a consumer group may ask for.
group.consumer.max.size: The largest number of members of a consumer group.
group.consumer.migration.policy: Whether groups may change from the classic to the consumer protocol
  (UPGRADE), back (DOWNGRADE), both ways (BIDIRECTIONAL) or not at all (DISABLED).
group.consumer.min.assignment.interval.ms: The shortest assignment interval that a consumer group may ask for.
group.consumer.min.heartbeat.interval.ms: The shortest heartbeat interval that a consumer group may ask for.
group.consumer.min.session.timeout.ms: The shortest session that a consumer group may ask for.
group.consumer.session.timeout.ms: A consumer group removes a member without heartbeats after this time.
group.coordinator.rebalance.protocols: The group protocols that clients may use. Without `consumer`, the
  broker refuses consumer groups. It always serves classic groups, and never share and streams groups.
group.initial.rebalance.delay.ms: How long a new group waits for more members before its first assignment.
group.max.session.timeout.ms: The longest session that a member of a classic group may ask for.
group.max.size: The largest number of members of a classic group.
group.min.session.timeout.ms: The shortest session that a member of a classic group may ask for.
inter.broker.listener.name: The listener for other brokers; it has to be an advertised listener.
inter.broker.protocol.version: The version of Kafka whose requests brokers send each other. The broker refuses
  versions before 3.4.
leader.imbalance.check.interval.seconds: How often the controller counts the partitions that are not led by
  their preferred replica.
leader.imbalance.per.broker.percentage: The percentage of a broker's preferred partitions that others may
  lead, before the controller gives leadership back.
leader.replication.throttled.rate: Bytes a second that this broker sends to followers of throttled replicas.
listener.security.protocol.map: The protocols of the listeners, as NAME:PROTOCOL pairs. Only PLAINTEXT
  listeners are served.
listeners: The addresses that the broker binds, as NAME://host:port. An empty host means every interface; with
  port 0 the system chooses the port. The default is the loopback address: other machines cannot connect.
log.cleaner.backoff.ms: How long the cleaner waits when it finds nothing to compact.
log.cleaner.dedupe.buffer.size: Memory for the map of keys, 24 bytes for each key. Logs that are compacted at
  the same time share it. If the keys of a log do not fit, compaction takes several passes.
log.cleaner.delete.retention.ms: How long compaction keeps a tombstone, so that consumers have time to read
  it.
log.cleaner.enable: Whether the broker compacts logs at all.
log.cleaner.io.buffer.load.factor: How full the map of keys may get. With a larger factor a pass takes more
  keys, and finds each more slowly.
log.cleaner.io.buffer.size: Memory for reads and writes of the cleaner; its threads share it.
log.cleaner.io.max.bytes.per.second: Bytes that the cleaner may read and write in a second.
log.cleaner.max.compaction.lag.ms: The longest time until a record of a compacted topic is compacted.
log.cleaner.min.cleanable.ratio: The uncompacted share of a log at which the cleaner compacts it.
log.cleaner.min.compaction.lag.ms: The shortest time until a record of a compacted topic is compacted.
log.cleaner.threads: The number of logs that the broker compacts at the same time, each by short pieces of
  work in the threads of num.io.threads; with 0 it compacts none.
log.cleanup.policy: The default of cleanup.policy: `delete` deletes old segments by age and size, `compact`
  keeps the last record of each key. A topic can have both.
log.dir: The data folder, if log.dirs is not set. The default is below the folder in which the broker starts.
log.dirs: The data folders, separated by commas. A new partition goes to the folder with the fewest
  partitions.
log.flush.interval.messages: After this many records the broker flushes the file of a partition to disk,
  before it answers the producer. With the default the operating system decides.
log.flush.interval.ms: The longest time until a record is flushed to disk. Without this setting
  log.flush.scheduler.interval.ms counts.
log.flush.offset.checkpoint.interval.ms: How often the broker writes its recovery points, which limit the work
  after a crash.
log.flush.scheduler.interval.ms: How often the broker looks for logs to flush.
log.flush.start.offset.checkpoint.interval.ms: How often the broker writes the log start offsets, so that
  deleted records stay deleted after a crash.
log.index.interval.bytes: Bytes of log between two entries of its offset index. With fewer bytes lookups are
  finer and indexes larger.
log.index.size.max.bytes: The size of an index at which the broker rolls its segment.
log.message.timestamp.after.max.ms: The broker refuses batches with a timestamp farther in the future.
log.message.timestamp.before.max.ms: The broker refuses batches with a timestamp farther in the past.
log.message.timestamp.type: Whether records have the timestamp of their producer (`CreateTime`) or of their
  arrival (`LogAppendTime`).
log.retention.bytes: The size of a partition above which the broker deletes its oldest segments; -1 means no
  limit.
log.retention.check.interval.ms: How often the broker looks for segments that retention deletes.
log.retention.hours: Hours until the broker deletes records; log.retention.minutes and log.retention.ms take
  precedence.
log.retention.minutes: Minutes until the broker deletes records; log.retention.ms takes precedence.
log.retention.ms: Milliseconds until the broker deletes records, segment by segment; -1 keeps them for ever.
log.roll.hours: Hours after which the broker rolls a segment, even if it is not full; log.roll.ms takes
  precedence.
log.roll.jitter.hours: Hours of random delay before a segment is rolled; log.roll.jitter.ms takes precedence.
log.roll.jitter.ms: Milliseconds of random delay before a segment is rolled, so that partitions roll at
  different times.
log.roll.ms: Milliseconds after which the broker rolls a segment, even if it is not full, so that retention
  can delete it.
log.segment.bytes: The size at which the broker closes a segment and begins a new one.
log.segment.delete.delay.ms: How long the renamed files of a deleted segment stay, for consumers that still
  read them.
max.connection.creation.rate: New connections in a second; further connections wait. A listener can have its
  own rate, with its prefix.
max.connections: The largest number of open connections; above it the broker closes the longest idle one. A
  listener can have its own limit, with its prefix.
max.connections.per.ip: The largest number of open connections from one address.
max.connections.per.ip.overrides: Other limits for single hosts, as host:count pairs.
max.incremental.fetch.session.cache.slots: The number of incremental fetch sessions; clients without a session
  send full fetches.
max.request.partition.size.limit: The largest number of partitions in an answer to DescribeTopicPartitions.
message.max.bytes: The size of the largest stored batch, for topics without max.message.bytes.
metrics.listener: host:port of the metrics over HTTP, in Prometheus' format, or https://host:port with the TLS
  settings listener.name.metrics.ssl.* or ssl.*. Without it there is no such listener.
min.insync.replicas: The number of in-sync replicas that a produce with acks=all needs. With one broker, more
  than 1 refuses every such produce.
node.id: KRaft's name for broker.id.
num.io.threads: Threads for work that would block the event loop, such as flushing and compressing, and as
  many threads for reads outside the page cache. The loop itself handles the requests.
num.partitions: Partitions of a new topic whose creator gives no number.
num.recovery.threads.per.data.dir: Threads for each data folder that open logs at start and recover them after
  a crash.
num.replica.alter.log.dirs.threads: The number of partitions that move between data folders at the same time,
  each by short pieces of work in the threads of num.io.threads; by default the number of folders.
num.replica.fetchers: Fetchers for each leader that a broker follows.
offset.metadata.max.bytes: The longest metadata of a committed offset.
offsets.commit.timeout.ms: How long a commit may wait for its replicas.
offsets.load.buffer.size: Bytes that a group coordinator reads at once when it loads its groups.
offsets.retention.check.interval.ms: How often the broker looks for expired offsets.
offsets.retention.minutes: How long the broker keeps the offsets of a group without members.
offsets.topic.num.partitions: Partitions of the offsets topic; the number cannot change later.
offsets.topic.replication.factor: Replicas of the offsets topic. A broker without zookeeper.connect has 1 and
  refuses a larger number.
offsets.topic.segment.bytes: The segment size of the offsets topic: small segments are compacted and loaded
  sooner.
password.encoder.cipher.algorithm: The cipher for passwords among stored settings of brokers.
password.encoder.iterations: Iterations that derive the key for stored passwords.
password.encoder.key.length: Bits of the key for stored passwords: 128, 192 or 256.
password.encoder.keyfactory.algorithm: How the key for stored passwords is derived from the secret. Without
  this setting it is PBKDF2WithHmacSHA512.
password.encoder.old.secret: The previous password.encoder.secret, which decrypts passwords that were stored
  with it.
password.encoder.secret: The secret that encrypts passwords among stored settings of brokers. Without it a
  broker of a cluster stores none.
principal.builder.class: The Python class that makes the principal of a connection, such as
  package.module.Class; Kafka's default is built in.
producer.id.expiration.ms: How long a partition keeps the state of a producer that sends nothing.
queued.max.request.bytes: Memory for received requests. When it is used up, the broker stops reading from
  sockets. -1 means no limit.
queued.max.requests: The largest number of requests in progress. At the limit the broker stops reading from
  sockets.
quota.window.num: Windows over which bytes, request times and connections of a client are measured.
quota.window.size.seconds: Length of a window of the rates of a client. A request quota throttles for one
  window at most.
replica.alter.log.dirs.io.max.bytes.per.second: Bytes that all moves between data folders together may copy in
  a second; 0 pauses the moves. Without this setting there is no limit.
replica.fetch.backoff.ms: How long a follower waits after a failed fetch.
replica.fetch.max.bytes: Bytes that a follower asks for from each partition.
replica.fetch.min.bytes: Bytes that a leader collects before it answers a follower.
replica.fetch.response.max.bytes: Bytes that a follower asks for in one answer.
replica.fetch.wait.max.ms: How long a leader waits for new records before it answers a follower.
replica.high.watermark.checkpoint.interval.ms: How often the broker writes the high watermarks to disk.
replica.lag.time.max.ms: A follower that has not caught up for this long leaves the in-sync replicas.
replica.selector.class: The class that picks the replica that a consumer reads from. Kafka's
  RackAwareReplicaSelector and LeaderSelector are known by their names.
replica.socket.receive.buffer.bytes: The receive buffer of a follower's connection; with -1 the system adapts
  the size.
replica.socket.timeout.ms: How long a follower waits for an answer from its leader.
replication.quota.window.num: Windows over which the rate of throttled replicas is measured.
replication.quota.window.size.seconds: Length of a window of the rate of throttled replicas.
request.timeout.ms: How long a broker waits for the answer to a request that it sends to another broker.
reserved.broker.max.id: The largest broker.id that an operator sets; generated numbers are larger.
sasl.enabled.mechanisms: The SASL mechanisms of the broker or, with the prefix of a listener, of that
  listener: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER, GSSAPI.
sasl.jaas.config: The login module of a mechanism and its options, as
  listener.name.NAME.MECHANISM.sasl.jaas.config. PLAIN has its users here: user_alice="secret". Its username
  and password are for logins of this broker at others. Without it the JAAS file of KAFKA_OPTS counts.
sasl.kerberos.principal.to.local.rules: Rules that make a user's name of a Kerberos principal. The first that
  applies decides.
sasl.kerberos.service.name: The Kerberos name of the broker's service.
sasl.login.callback.handler.class: A Python class, package.module.Class, that supplies the token of this
  broker's own logins by OAUTHBEARER. Its method token returns the token, or a tuple of the token and its
  expiry in seconds since 1970.
sasl.login.connect.timeout.ms: How long this broker tries to reach the token provider for its own logins.
sasl.login.read.timeout.ms: How long this broker waits for the token provider's answer.
sasl.login.refresh.buffer.seconds: Time that should be left on this broker's own token when it is renewed.
sasl.login.refresh.min.period.seconds: The shortest time between two renewals of this broker's own token.
sasl.login.refresh.window.factor: The share of a token's life after which this broker renews it.
sasl.login.refresh.window.jitter: The random part of the time until this broker renews its token.
sasl.login.retry.backoff.max.ms: The longest wait between two attempts to reach the token provider.
sasl.login.retry.backoff.ms: The first wait between two attempts to reach the token provider.
sasl.mechanism.inter.broker.protocol: How brokers log in at each other: a mechanism of their listener.
sasl.oauthbearer.client.credentials.client.id: The client id with which this broker asks for its own token.
sasl.oauthbearer.client.credentials.client.secret: The client secret with which this broker asks for its own
  token.
sasl.oauthbearer.clock.skew.seconds: How far the clocks of broker and token provider may differ.
sasl.oauthbearer.expected.audience: The audiences of which a token has to have one. Without this setting any
  is accepted.
sasl.oauthbearer.expected.issuer: The issuer that a token has to have. Without this setting any is accepted.
sasl.oauthbearer.jwks.endpoint.refresh.ms: How old the provider's keys may be when a token is checked. Older
  ones are fetched again.
sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms: The longest wait after a failed attempt to fetch the
  provider's keys.
sasl.oauthbearer.jwks.endpoint.retry.backoff.ms: The wait after the first failed attempt to fetch the
  provider's keys; each further one doubles it.
sasl.oauthbearer.jwks.endpoint.url: The file: or https: URL of the provider's keys (a JSON Web Key Set). It
  has to be in tidelog.sasl.oauthbearer.allowed.urls, too.
sasl.oauthbearer.scope: The scope in this broker's requests for its own token.
sasl.oauthbearer.scope.claim.name: The claim that has the scope of a token.
sasl.oauthbearer.sub.claim.name: The claim that has the user of a token.
sasl.oauthbearer.token.endpoint.url: The URL for this broker's requests for its own token.
sasl.server.callback.handler.class: A Python class, package.module.Class, that checks the credentials of a
  mechanism, as listener.name.NAME.MECHANISM.sasl.server.callback.handler.class. Kafka's own classes stand for
  what the broker does without one.
sasl.server.max.receive.size: The largest frame of a client that is not authenticated.
security.inter.broker.protocol: The protocol between brokers. Without inter.broker.listener.name it is also
  the name of the listener for brokers.
share.coordinator.state.topic.min.isr: In-sync replicas that the state topic of share groups needs. One broker
  can hold 1.
share.coordinator.state.topic.replication.factor: Replicas of the state topic of share groups. One broker can
  hold 1.
socket.connection.setup.timeout.ms: How long a broker tries to open a connection to another broker.
socket.listen.backlog.size: Connections of a listener that may wait until the broker accepts them.
socket.receive.buffer.bytes: The receive buffer of a client's socket; with -1 the system adapts the size.
socket.request.max.bytes: The largest request; the broker closes a connection with a larger one.
socket.send.buffer.bytes: The send buffer of a client's socket; with -1 the system adapts the size.
ssl.allow.dn.changes: Whether a key store may be replaced by one whose certificate has another name.
ssl.allow.san.changes: Whether a key store may be replaced by one whose certificate lacks alternative names of
  the old one.
ssl.cipher.suites: The allowed cipher suites, with Java's names; empty allows OpenSSL's safe ones.
ssl.client.auth: Whether clients have to show a certificate: `required`, `requested` if they may, or `none`. A
  certificate that is shown has to be trusted.
ssl.enabled.protocols: The allowed versions of TLS. Versions older than TLSv1.2 stay off.
ssl.endpoint.identification.algorithm: Whether this broker compares the host of another broker with the names
  in its certificate: `https`, or nothing.
ssl.key.password: The password of the private key in the key store.
ssl.keystore.certificate.chain: The broker's certificates as PEM text, in place of a file.
ssl.keystore.key: The broker's private key as PEM text, in place of a file.
ssl.keystore.location: The file with the broker's private key and certificates. A changed file is loaded
  within ten seconds, or at once when the setting is set again.
ssl.keystore.password: The password of the key store; a PEM file has none.
ssl.keystore.type: The format of the key store: JKS, PKCS12 or PEM. Without this setting the file tells.
ssl.principal.mapping.rules: Rules that make the name of a principal from the name of a certificate, separated
  by commas: DEFAULT, or RULE:pattern/replacement/ with L or U behind it. The first that matches counts.
ssl.protocol: The version of TLS, if ssl.enabled.protocols is empty.
ssl.truststore.certificates: The trusted certificates as PEM text, in place of a file.
ssl.truststore.location: The file of trusted certificates, of authorities or of single clients.
ssl.truststore.password: The password of the trust store; a PEM file has none.
ssl.truststore.type: The format of the trust store: JKS, PKCS12 or PEM. Without this setting the file tells.
super.users: Principals that may do everything whatever the access rules say, separated by semicolons:
  User:admin;User:CN=broker,O=Tide. Brokers of a cluster need to be among them, or a rule for CLUSTER_ACTION.
telemetry.max.bytes: The largest push of metrics that a client may send, compressed and uncompressed.
tidelog.audit.topic: The topic for the events of the audit: denied operations, and changes of topics, settings
  and access rules, as JSON. Each broker writes to a partition that it leads, and drops events that it
  cannot write in time.
tidelog.batch.unpacked.max.bytes: The largest decompressed size of a batch. The broker refuses a larger batch
  before it uses the memory.
tidelog.broker.suspicion.enable: Whether the controller moves leaderships away from a broker whose
  address refuses connections, before the session of that broker expires. If the broker is on another host
  than the controller, a second broker has to be refused, too.
tidelog.canary.interval.ms: How often the broker writes a record to the topic of the canary, reads it and
  commits its offset, to measure what its clients see; 0 switches the canary off. The canary needs a listener
  with PLAINTEXT, and an authorizer has to let ANONYMOUS use its topic and group.
tidelog.canary.topic: The topic of the canary's records, with one partition for each broker.
tidelog.guardian.enable: Whether a small process waits for the death of the broker and then ends its ZooKeeper
  session, so that other brokers lead its partitions at once and not when the session expires.
tidelog.log.level: The lowest level of log lines that the broker prints.
tidelog.log.levels: Levels for parts of the broker, as part:LEVEL pairs; a part is a package such as network
  or storage.
tidelog.metrics.partitions.enable: Whether /metrics has series for each partition. Without them, the series of
  a topic have the sum of its partitions, or the maximum of a lag in seconds.
tidelog.sasl.oauthbearer.allowed.urls: The URLs that sasl.oauthbearer.jwks.endpoint.url may have, as Kafka's
  system property org.apache.kafka.sasl.oauthbearer.allowed.urls.
tidelog.sasl.oauthbearer.unsecured.enable: Whether OAUTHBEARER takes tokens without a signature, which anybody
  can make. For tests alone.
tidelog.tracing.endpoint: The URL of a collector of OpenTelemetry traces, such as
  http://localhost:4318/v1/traces. Each request becomes a span. Needs the extra otel; without a URL there are
  no traces.
tidelog.tracing.sample.ratio: The share of requests that are traced.
tidelog.zookeeper.digest: The identity of this broker at ZooKeeper, as user:password, with the scheme digest.
transaction.abort.timed.out.transaction.cleanup.interval.ms: How often the broker looks for timed-out
  transactions and aborts them.
transaction.max.timeout.ms: The longest transaction time-out that a producer may ask for.
transaction.partition.verification.enable: Whether the broker verifies with the transaction coordinator that a
  transaction contains a partition, before it appends records of the transaction to the partition.
transaction.remove.expired.transaction.cleanup.interval.ms: How often the broker looks for expired
  transactional ids.
transaction.state.log.load.buffer.size: Bytes that a transaction coordinator reads at once when it loads its
  state.
transaction.state.log.min.isr: In-sync replicas that the transaction state topic needs. One broker can hold 1.
transaction.state.log.num.partitions: Partitions of the transaction state topic; the number cannot change
  later.
transaction.state.log.replication.factor: Replicas of the transaction state topic. One broker can hold 1.
transaction.state.log.segment.bytes: The segment size of the transaction state topic.
transaction.two.phase.commit.enable: Whether producers may use two-phase commits, whose transactions have no
  time-out.
transactional.id.expiration.ms: How long the coordinator keeps an unused transactional id.
unclean.leader.election.enable: Whether an out-of-sync replica may become leader if no in-sync replica is
  left. Records may be lost then.
zookeeper.clientCnxnSocket: Kafka's class of the connection to ZooKeeper, which has to be
  org.apache.zookeeper.ClientCnxnSocketNetty for TLS. The broker has one kind of connection, which has TLS; it
  refuses a class that contradicts zookeeper.ssl.client.enable.
zookeeper.connect: The ZooKeeper of a cluster, as host:port,host:port/chroot. The broker joins the cluster
  with this tree. Without this setting it is alone and keeps its own tree.
zookeeper.connection.timeout.ms: How long the broker tries to reach ZooKeeper at its start. Without this
  setting it is zookeeper.session.timeout.ms.
zookeeper.max.in.flight.requests: The largest number of reads that wait for answers of ZooKeeper at a time,
  where the broker reads many nodes.
zookeeper.metadata.migration.enable: Whether the metadata moves from ZooKeeper to KRaft. The broker refuses
  true.
zookeeper.session.timeout.ms: How long ZooKeeper keeps the session of a silent broker. Then the others take
  over its partitions.
zookeeper.set.acl: Whether the broker creates nodes with access lists, so that only brokers change them. This
  needs an identity: tidelog.zookeeper.digest or zookeeper.ssl.keystore.location.
zookeeper.ssl.cipher.suites: The cipher suites towards ZooKeeper, by the names of Java or OpenSSL.
zookeeper.ssl.client.enable: Whether the broker connects to ZooKeeper over TLS.
zookeeper.ssl.crl.enable: Whether revocation lists are consulted for ZooKeeper's certificate. The broker
  refuses true.
zookeeper.ssl.enabled.protocols: The versions of TLS towards ZooKeeper. Without this setting it is
  zookeeper.ssl.protocol.
zookeeper.ssl.endpoint.identification.algorithm: Whether the name in ZooKeeper's certificate is compared with
  the host. An empty value compares nothing.
zookeeper.ssl.keystore.location: The file of this broker's key and certificates towards ZooKeeper: PEM, PKCS12
  or JKS.
zookeeper.ssl.keystore.password: The password of zookeeper.ssl.keystore.location and of the private key in it.
zookeeper.ssl.keystore.type: The format of zookeeper.ssl.keystore.location. Without this setting the broker
  finds it out.
zookeeper.ssl.ocsp.enable: Whether ZooKeeper's certificate is checked online. The broker refuses true.
zookeeper.ssl.protocol: The version of TLS towards ZooKeeper, without zookeeper.ssl.enabled.protocols.
zookeeper.ssl.truststore.location: The file of certificates that the broker trusts at ZooKeeper: PEM, PKCS12
  or JKS. Without it the broker trusts the system's certificates.
zookeeper.ssl.truststore.password: The password of zookeeper.ssl.truststore.location, if it is PKCS12 or JKS.
zookeeper.ssl.truststore.type: The format of zookeeper.ssl.truststore.location. Without this setting the
  broker finds it out.
"""
