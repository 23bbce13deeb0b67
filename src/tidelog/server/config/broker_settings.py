"""Every broker setting of Kafka 3.9 and 4.3, and our own: type, default, importance and rule, one line each.

Served settings come first. The others are grouped by the reason why they change nothing. broker_docs and
broker_docs_not_served have the documentation.
"""

from __future__ import annotations

SERVED = """\
advertised.listeners list null high
allow.everyone.if.no.acl.found boolean false medium unlisted
authorizer.class.name string "" low
auto.create.topics.enable boolean true high
broker.id int -1 high >=-1
broker.id.generation.enable boolean true medium retired
broker.rack string null medium
client.quota.callback.class class null low
compression.gzip.level int -1 medium 1..9|-1 cluster-wide
compression.lz4.level int 9 medium 1..17 cluster-wide
compression.type string producer high in(uncompressed,zstd,lz4,snappy,gzip,producer) cluster-wide
compression.zstd.level int 3 medium -131072..22 cluster-wide
connections.max.idle.ms long 600000 medium
controller.listener.names list null high
controller.quota.window.num int 11 low >=1
controller.quota.window.size.seconds int 1 low >=1
default.replication.factor int 1 medium
delete.topic.enable boolean true high
fetch.max.bytes int 57671680 medium >=1024
group.consumer.assignment.interval.ms int 1000 medium >=0 cluster-wide
group.consumer.assignors list uniform,range medium assignors
group.consumer.heartbeat.interval.ms int 5000 medium >=1
group.consumer.max.assignment.interval.ms int 15000 medium >=0
group.consumer.max.heartbeat.interval.ms int 15000 medium >=1
group.consumer.max.session.timeout.ms int 60000 medium >=1
group.consumer.max.size int 2147483647 medium >=1
group.consumer.migration.policy string bidirectional medium anycase(DISABLED,DOWNGRADE,UPGRADE,BIDIRECTIONAL)
group.consumer.min.assignment.interval.ms int 0 medium >=0
group.consumer.min.heartbeat.interval.ms int 5000 medium >=1
group.consumer.min.session.timeout.ms int 45000 medium >=1
group.consumer.session.timeout.ms int 45000 medium >=1
group.coordinator.rebalance.protocols list classic,consumer,streams medium each(consumer,classic,share,streams)
group.initial.rebalance.delay.ms int 3000 medium
group.max.session.timeout.ms int 1800000 medium
group.max.size int 2147483647 medium >=1
group.min.session.timeout.ms int 6000 medium
inter.broker.listener.name string null medium
listener.security.protocol.map string SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT low per-broker
listeners list PLAINTEXT://127.0.0.1:9092 high per-broker kafka=PLAINTEXT://:9092
log.cleaner.backoff.ms long 15000 medium >=0 cluster-wide
log.cleaner.dedupe.buffer.size long 134217728 medium cluster-wide
log.cleaner.delete.retention.ms long 86400000 medium >=0 cluster-wide
log.cleaner.enable boolean true medium
log.cleaner.io.buffer.load.factor double 0.9 medium cluster-wide
log.cleaner.io.buffer.size int 524288 medium >=0 cluster-wide
log.cleaner.io.max.bytes.per.second double 1.7976931348623157E308 medium cluster-wide
log.cleaner.max.compaction.lag.ms long 9223372036854775807 medium >=1 cluster-wide
log.cleaner.min.cleanable.ratio double 0.5 medium 0..1 cluster-wide
log.cleaner.min.compaction.lag.ms long 0 medium >=0 cluster-wide
log.cleaner.threads int 1 medium >=0 cluster-wide
log.cleanup.policy list delete medium each(compact,delete) cluster-wide
log.dir list ./tidelog-data high kafka=/tmp/kafka-logs
log.dirs list null high
log.flush.interval.messages long 9223372036854775807 high >=1 cluster-wide
log.flush.interval.ms long null high cluster-wide else=log.flush.scheduler.interval.ms
log.flush.offset.checkpoint.interval.ms int 60000 high >=0
log.flush.scheduler.interval.ms long 9223372036854775807 high
log.flush.start.offset.checkpoint.interval.ms int 60000 high >=0
log.index.interval.bytes int 4096 medium >=0 cluster-wide
log.index.size.max.bytes int 10485760 medium >=4 cluster-wide
log.message.timestamp.after.max.ms long 3600000 medium >=0 cluster-wide
log.message.timestamp.before.max.ms long 9223372036854775807 medium >=0 cluster-wide
log.message.timestamp.type string CreateTime medium in(CreateTime,LogAppendTime) cluster-wide
log.retention.bytes long -1 high cluster-wide
log.retention.check.interval.ms long 300000 medium >=1
log.retention.hours int 168 high
log.retention.minutes int null high else=log.retention.hours
log.retention.ms long null high cluster-wide else=log.retention.minutes,log.retention.hours
log.roll.hours int 168 high >=1
log.roll.jitter.hours int 0 high >=0
log.roll.jitter.ms long null high cluster-wide else=log.roll.jitter.hours
log.roll.ms long null high cluster-wide else=log.roll.hours
log.segment.bytes int 1073741824 high >=1048576 cluster-wide
log.segment.delete.delay.ms long 60000 high >=0 cluster-wide
max.connection.creation.rate int 2147483647 medium >=0 cluster-wide
max.connections int 2147483647 medium >=0 cluster-wide
max.connections.per.ip int 2147483647 medium >=0 cluster-wide
max.connections.per.ip.overrides string "" medium hosts cluster-wide
max.incremental.fetch.session.cache.slots int 1000 medium >=0
max.request.partition.size.limit int 2000 medium >=1
message.max.bytes int 1048588 high >=0 cluster-wide
min.insync.replicas int 1 high >=1 cluster-wide
node.id int null high >=0
num.io.threads int 8 high >=1 cluster-wide
num.partitions int 1 medium >=1
num.recovery.threads.per.data.dir int 2 high >=1 cluster-wide
num.replica.alter.log.dirs.threads int null high
offset.metadata.max.bytes int 4096 high
offsets.commit.timeout.ms int 5000 high >=1
offsets.load.buffer.size int 5242880 high >=1
offsets.retention.check.interval.ms long 600000 high >=1
offsets.retention.minutes int 10080 high >=1
offsets.topic.num.partitions int 50 high >=1
offsets.topic.segment.bytes int 104857600 high >=1
password.encoder.cipher.algorithm string AES/CBC/PKCS5Padding low in(AES/CBC/PKCS5Padding,AES/GCM/NoPadding) retired
password.encoder.iterations int 4096 low >=1024 retired
password.encoder.key.length int 128 low >=8 retired
password.encoder.keyfactory.algorithm string null low in(PBKDF2WithHmacSHA512,PBKDF2WithHmacSHA256,PBKDF2WithHmacSHA1) retired
password.encoder.old.secret password null medium retired
password.encoder.secret password null medium retired
producer.id.expiration.ms int 86400000 low >=1 cluster-wide
queued.max.request.bytes long -1 medium
queued.max.requests int 500 high >=1
quota.window.num int 11 low >=1
quota.window.size.seconds int 1 low >=1
replica.alter.log.dirs.io.max.bytes.per.second long null medium >=0 cluster-wide unlisted
replica.high.watermark.checkpoint.interval.ms long 5000 high
reserved.broker.max.id int 1000 medium >=0 retired
security.inter.broker.protocol string PLAINTEXT medium in(PLAINTEXT,SSL,SASL_PLAINTEXT,SASL_SSL)
socket.listen.backlog.size int 50 medium >=1
socket.receive.buffer.bytes int -1 high kafka=102400
socket.request.max.bytes int 104857600 high >=1
socket.send.buffer.bytes int -1 high kafka=102400
super.users string "" medium unlisted
telemetry.max.bytes int 1048576 low >=1
unclean.leader.election.enable boolean false high cluster-wide
"""  # noqa: E501

# A broker alone can hold one replica: its start refuses other numbers.
INTERNAL_TOPICS = """\
offsets.topic.replication.factor short 3 high >=1
share.coordinator.state.topic.min.isr short 2 high >=1
share.coordinator.state.topic.replication.factor short 3 high >=1
transaction.state.log.min.isr int 2 high >=1
transaction.state.log.replication.factor short 3 high >=1
"""

TRANSACTIONS = """\
add.partitions.to.txn.retry.backoff.max.ms int 100 high >=0
add.partitions.to.txn.retry.backoff.ms int 20 high >=1
transaction.abort.timed.out.transaction.cleanup.interval.ms int 10000 low >=1
transaction.max.timeout.ms int 900000 high >=1
transaction.partition.verification.enable boolean true low cluster-wide
transaction.remove.expired.transaction.cleanup.interval.ms int 3600000 low >=1
transaction.state.log.load.buffer.size int 5242880 high >=1
transaction.state.log.num.partitions int 50 high >=1
transaction.state.log.segment.bytes int 104857600 high >=1
transaction.two.phase.commit.enable boolean false low
transactional.id.expiration.ms int 604800000 high >=1
"""

OURS = """\
console.access.config string "" low ours
console.allowed.hosts list "" low ours
console.cluster.name string local low nonempty ours
console.command.config string "" low ours
console.listener string null low address ours
console.pipelines list "" low ours
console.read.only boolean false low ours
console.rules.file string "" low ours
console.scheduling.policy string batch low in(batch,idle,normal) ours
metrics.listener string null low address ours
tidelog.audit.topic string "" low ours
tidelog.batch.unpacked.max.bytes int 134217728 medium >=1 ours
tidelog.canary.interval.ms int 0 low >=0 ours
tidelog.canary.topic string __tidelog_canary low ours
tidelog.log.level string INFO medium anycase(TRACE,DEBUG,INFO,WARN,ERROR,FATAL) ours
tidelog.log.levels list "" low levels ours
tidelog.metrics.partitions.enable boolean true low cluster-wide ours
tidelog.tracing.endpoint string "" low ours
tidelog.tracing.sample.ratio double 1.0 low 0..1 ours
"""

# Settings of a broker with zookeeper.connect. A broker alone names those that are given: they change nothing.
CLUSTER = """\
auto.leader.rebalance.enable boolean true high
control.plane.listener.name string null high retired
controlled.shutdown.enable boolean true medium
controlled.shutdown.max.retries int 3 medium retired
controlled.shutdown.retry.backoff.ms long 5000 medium retired
controller.socket.timeout.ms int 30000 medium
follower.replication.throttled.rate long null medium >=0 cluster-wide unlisted
inter.broker.protocol.version string 3.9-IV0 medium version retired
leader.imbalance.check.interval.seconds long 300 high >=1
leader.imbalance.per.broker.percentage int 10 high retired
leader.replication.throttled.rate long null medium >=0 cluster-wide unlisted
num.replica.fetchers int 1 high >=1 cluster-wide
replica.fetch.backoff.ms int 1000 medium >=0
replica.fetch.max.bytes int 1048576 medium >=0
replica.fetch.min.bytes int 1 high
replica.fetch.response.max.bytes int 10485760 medium >=0
replica.fetch.wait.max.ms int 500 high
replica.lag.time.max.ms long 30000 high
replica.selector.class string null medium
replica.socket.receive.buffer.bytes int -1 high kafka=65536
replica.socket.timeout.ms int 30000 high
replication.quota.window.num int 11 low >=1
replication.quota.window.size.seconds int 1 low >=1
request.timeout.ms int 30000 high
socket.connection.setup.timeout.ms long 10000 medium
tidelog.broker.suspicion.enable boolean true low ours
tidelog.guardian.enable boolean true low ours
tidelog.zookeeper.digest password null low ours
zookeeper.clientCnxnSocket string null medium retired
zookeeper.connect string null high retired
zookeeper.connection.timeout.ms int null high retired
zookeeper.max.in.flight.requests int 500 high >=1 retired kafka=10
zookeeper.metadata.migration.enable boolean false high retired
zookeeper.session.timeout.ms int 18000 high retired
zookeeper.set.acl boolean false high retired
zookeeper.ssl.cipher.suites list null low retired
zookeeper.ssl.client.enable boolean false medium retired
zookeeper.ssl.crl.enable boolean false low retired
zookeeper.ssl.enabled.protocols list null low retired
zookeeper.ssl.endpoint.identification.algorithm string HTTPS low retired
zookeeper.ssl.keystore.location string null medium retired
zookeeper.ssl.keystore.password password null medium retired
zookeeper.ssl.keystore.type string null medium retired
zookeeper.ssl.ocsp.enable boolean false low retired
zookeeper.ssl.protocol string TLSv1.2 low retired
zookeeper.ssl.truststore.location string null medium retired
zookeeper.ssl.truststore.password password null medium retired
zookeeper.ssl.truststore.type string null medium retired
"""

_LOOP = """\
background.threads int 10 high >=1 cluster-wide
num.network.threads int 3 high >=1 cluster-wide
"""

_PURGATORY = """\
delete.records.purgatory.purge.interval.requests int 1 medium
fetch.purgatory.purge.interval.requests int 1000 medium
producer.purgatory.purge.interval.requests int 1000 medium
"""

_OLD_FORMATS = """\
log.message.downconversion.enable boolean true low cluster-wide retired
log.message.format.version string 3.0-IV1 medium version retired
log.message.timestamp.difference.max.ms long 9223372036854775807 medium >=0 cluster-wide retired
"""

_PREALLOCATE = """\
log.preallocate boolean false medium cluster-wide
"""

_CORDON = """\
cordoned.log.dirs list "" medium per-broker
"""

_CONNECTION_SETUP = """\
socket.connection.setup.timeout.max.ms long 30000 medium
"""

_KRAFT = """\
alter.config.policy.kraft.compatibility.enable boolean false low retired
broker.heartbeat.interval.ms int 2000 medium
broker.session.timeout.ms int 9000 medium
controller.quorum.append.linger.ms int 25 medium >=0
controller.quorum.auto.join.enable boolean false low
controller.quorum.bootstrap.servers list "" high
controller.quorum.election.backoff.max.ms int 1000 high >=0
controller.quorum.election.timeout.ms int 1000 high >=0
controller.quorum.fetch.max.bytes int 1048576 low >=1
controller.quorum.fetch.snapshot.max.bytes int 1048576 low >=1
controller.quorum.fetch.timeout.ms int 2000 high >=0
controller.quorum.request.timeout.ms int 2000 medium >=0
controller.quorum.retry.backoff.ms int 20 low >=0
controller.quorum.voters list "" high
eligible.leader.replicas.enable boolean false high retired
initial.broker.registration.timeout.ms int 60000 medium
log.dir.failure.timeout.ms long 30000 low >=1
metadata.log.dir string null high
metadata.log.max.record.bytes.between.snapshots long 20971520 high >=1
metadata.log.max.snapshot.interval.ms long 3600000 high >=0
metadata.log.segment.bytes int 1073741824 high >=8388608
metadata.log.segment.ms long 604800000 high
metadata.max.idle.interval.ms int 500 low >=0
metadata.max.retention.bytes long 104857600 high
metadata.max.retention.ms long 604800000 high
process.roles list null high each(broker,controller)
"""

_GROUPS = """\
group.coordinator.append.linger.ms int -1 medium >=-1
group.coordinator.background.threads int 2 high >=1
group.coordinator.cached.buffer.max.bytes int 1048588 medium >=524288 cluster-wide
group.coordinator.threads int 4 high >=1
offsets.commit.required.acks short -1 high retired
offsets.topic.compression.codec int 0 high
"""

_SHARE = """\
group.share.assignment.interval.ms int 1000 medium >=0 cluster-wide
group.share.assignors list simple medium
group.share.delivery.count.limit int 5 medium 2..10
group.share.heartbeat.interval.ms int 5000 medium >=1
group.share.max.assignment.interval.ms int 15000 medium >=0
group.share.max.delivery.count.limit int 10 medium 5..25
group.share.max.groups short 10 medium 1..100 retired
group.share.max.heartbeat.interval.ms int 15000 medium >=1
group.share.max.partition.max.record.locks int 4000 medium 2000..10000
group.share.max.record.lock.duration.ms int 60000 medium 30000..3600000
group.share.max.session.timeout.ms int 60000 medium >=1
group.share.max.share.sessions int 2000 medium >=1
group.share.max.size int 200 medium 1..1000
group.share.min.assignment.interval.ms int 0 medium >=0
group.share.min.delivery.count.limit int 2 medium 2..5
group.share.min.heartbeat.interval.ms int 5000 medium >=1
group.share.min.partition.max.record.locks int 100 medium 100..2000
group.share.min.record.lock.duration.ms int 15000 medium 1000..30000
group.share.min.session.timeout.ms int 45000 medium >=1
group.share.partition.max.record.locks int 2000 medium 100..10000
group.share.record.lock.duration.ms int 30000 medium 1000..3600000
group.share.session.timeout.ms int 45000 medium >=1
share.coordinator.append.linger.ms int -1 medium >=-1
share.coordinator.cached.buffer.max.bytes int 1048588 medium >=524288 cluster-wide
share.coordinator.load.buffer.size int 5242880 high >=1
share.coordinator.snapshot.update.records.per.snapshot int 500 medium 0..500
share.coordinator.state.topic.compression.codec int 0 high
share.coordinator.state.topic.num.partitions int 50 high >=1
share.coordinator.state.topic.segment.bytes int 104857600 high >=1
share.coordinator.threads int 1 medium >=1
share.coordinator.write.timeout.ms int 5000 high >=1
share.fetch.purgatory.purge.interval.requests int 1000 medium
"""

_STREAMS = """\
group.streams.assignment.interval.ms int 1000 medium >=0 cluster-wide
group.streams.heartbeat.interval.ms int 5000 medium >=1
group.streams.initial.rebalance.delay.ms int 3000 medium >=0
group.streams.max.assignment.interval.ms int 15000 medium >=0
group.streams.max.heartbeat.interval.ms int 15000 medium >=1
group.streams.max.session.timeout.ms int 60000 medium >=1
group.streams.max.size int 2147483647 medium >=1
group.streams.max.standby.replicas int 2 medium >=0
group.streams.min.assignment.interval.ms int 0 medium >=0
group.streams.min.heartbeat.interval.ms int 5000 medium >=1
group.streams.min.session.timeout.ms int 45000 medium >=1
group.streams.num.standby.replicas int 0 medium >=0
group.streams.session.timeout.ms int 45000 medium >=1
"""

_MOVES = """\
alter.log.dirs.replication.quota.window.num int 11 low >=1
alter.log.dirs.replication.quota.window.size.seconds int 1 low >=1
"""

_TIERED = """\
follower.fetch.last.tiered.offset.enable boolean false medium cluster-wide
log.local.retention.bytes long -2 medium >=-2 cluster-wide
log.local.retention.ms long -2 medium >=-2 cluster-wide
remote.fetch.max.wait.ms int 500 medium >=1 cluster-wide
remote.list.offsets.request.timeout.ms long 30000 medium >=1 cluster-wide
remote.log.index.file.cache.total.size.bytes long 1073741824 low >=1 cluster-wide
remote.log.manager.copier.thread.pool.size int 10 medium >=1 cluster-wide
remote.log.manager.copy.max.bytes.per.second long 9223372036854775807 medium >=1 cluster-wide
remote.log.manager.copy.quota.window.num int 11 medium >=1
remote.log.manager.copy.quota.window.size.seconds int 1 medium >=1
remote.log.manager.expiration.thread.pool.size int 10 medium >=1 cluster-wide
remote.log.manager.fetch.max.bytes.per.second long 9223372036854775807 medium >=1 cluster-wide
remote.log.manager.fetch.quota.window.num int 11 medium >=1
remote.log.manager.fetch.quota.window.size.seconds int 1 medium >=1
remote.log.manager.follower.thread.pool.size int 2 medium >=1 cluster-wide
remote.log.manager.task.interval.ms long 30000 low >=1
remote.log.manager.thread.pool.size int 2 medium >=1
remote.log.metadata.custom.metadata.max.bytes int 128 low >=0
remote.log.metadata.manager.class.name string org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager medium nonempty
remote.log.metadata.manager.class.path string null medium
remote.log.metadata.manager.impl.prefix string rlmm.config. medium nonempty
remote.log.metadata.manager.listener.name string null medium nonempty
remote.log.reader.max.pending.tasks int 100 medium >=1
remote.log.reader.threads int 10 medium >=1 cluster-wide
remote.log.storage.manager.class.name string null medium nonempty
remote.log.storage.manager.class.path string null medium
remote.log.storage.manager.impl.prefix string rsm.config. medium nonempty
remote.log.storage.system.enable boolean false medium
"""  # noqa: E501

# Settings of listeners with TLS. They have no attributes.
TLS = """\
principal.builder.class class org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder medium per-broker
ssl.allow.dn.changes boolean false low
ssl.allow.san.changes boolean false low
ssl.cipher.suites list "" medium per-broker
ssl.client.auth string none medium in(required,requested,none) per-broker
ssl.enabled.protocols list TLSv1.2,TLSv1.3 medium per-broker
ssl.endpoint.identification.algorithm string https low per-broker
ssl.key.password password null medium per-broker
ssl.keystore.certificate.chain password null medium per-broker
ssl.keystore.key password null medium per-broker
ssl.keystore.location string null medium per-broker
ssl.keystore.password password null medium per-broker
ssl.keystore.type string JKS medium per-broker
ssl.principal.mapping.rules string DEFAULT low
ssl.protocol string TLSv1.3 medium per-broker
ssl.truststore.certificates password null medium per-broker
ssl.truststore.location string null medium per-broker
ssl.truststore.password password null medium per-broker
ssl.truststore.type string JKS medium per-broker
"""  # noqa: E501

_JAVA_TLS = """\
ssl.engine.factory.class class null low per-broker
ssl.keymanager.algorithm string SunX509 medium per-broker
ssl.provider string null medium per-broker
ssl.secure.random.implementation string null low per-broker
ssl.trustmanager.algorithm string PKIX medium per-broker
"""

SASL = """\
connection.failed.authentication.delay.ms int 100 low >=0
connections.max.reauth.ms long 0 medium
sasl.enabled.mechanisms list GSSAPI medium per-broker
sasl.jaas.config password null medium per-broker
sasl.kerberos.principal.to.local.rules list DEFAULT medium per-broker
sasl.kerberos.service.name string null medium per-broker
sasl.login.callback.handler.class class null medium
sasl.login.connect.timeout.ms int null low
sasl.login.read.timeout.ms int null low
sasl.login.refresh.buffer.seconds short 300 medium per-broker
sasl.login.refresh.min.period.seconds short 60 medium per-broker
sasl.login.refresh.window.factor double 0.8 medium per-broker
sasl.login.refresh.window.jitter double 0.05 medium per-broker
sasl.login.retry.backoff.max.ms long 10000 low
sasl.login.retry.backoff.ms long 100 low
sasl.mechanism.inter.broker.protocol string GSSAPI medium per-broker
sasl.oauthbearer.client.credentials.client.id string null medium
sasl.oauthbearer.client.credentials.client.secret password null medium
sasl.oauthbearer.clock.skew.seconds int 30 low
sasl.oauthbearer.expected.audience list "" high
sasl.oauthbearer.expected.issuer string null high
sasl.oauthbearer.jwks.endpoint.refresh.ms long 3600000 low
sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms long 10000 low
sasl.oauthbearer.jwks.endpoint.retry.backoff.ms long 100 low
sasl.oauthbearer.jwks.endpoint.url string null medium
sasl.oauthbearer.scope string null medium
sasl.oauthbearer.scope.claim.name string scope low
sasl.oauthbearer.sub.claim.name string sub low
sasl.oauthbearer.token.endpoint.url string null medium
sasl.server.callback.handler.class class null medium
sasl.server.max.receive.size int 524288 medium
tidelog.sasl.oauthbearer.allowed.urls list "" medium ours
tidelog.sasl.oauthbearer.unsecured.enable boolean false low ours
"""
"""The settings of SASL. `tidelog.server.config.sasl` reads them for each listener."""

_SASL_KERBEROS = """\
sasl.kerberos.kinit.cmd string /usr/bin/kinit medium per-broker
sasl.kerberos.min.time.before.relogin long 60000 medium per-broker
sasl.kerberos.ticket.renew.jitter double 0.05 medium per-broker
sasl.kerberos.ticket.renew.window.factor double 0.8 medium per-broker
"""

_SASL_LOGIN = """\
sasl.client.callback.handler.class class null medium
sasl.login.class class null medium
sasl.oauthbearer.assertion.algorithm string RS256 medium anycase(ES256,RS256)
sasl.oauthbearer.assertion.claim.aud string null medium
sasl.oauthbearer.assertion.claim.exp.seconds int 300 low 0..86400
sasl.oauthbearer.assertion.claim.iss string null medium
sasl.oauthbearer.assertion.claim.jti.include boolean false medium
sasl.oauthbearer.assertion.claim.nbf.seconds int 60 low 0..3600
sasl.oauthbearer.assertion.claim.sub string null medium
sasl.oauthbearer.assertion.file string null medium
sasl.oauthbearer.assertion.private.key.file string null medium
sasl.oauthbearer.assertion.private.key.passphrase password null medium
sasl.oauthbearer.assertion.template.file string null medium
sasl.oauthbearer.jwt.retriever.class class org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever medium
sasl.oauthbearer.jwt.validator.class class org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator medium
"""  # noqa: E501

_SASL_CONTROLLER = """\
sasl.mechanism.controller.protocol string GSSAPI high
"""

TOKENS = """\
delegation.token.expiry.check.interval.ms long 3600000 low >=1
delegation.token.expiry.time.ms long 86400000 medium >=1
delegation.token.master.key password null medium retired
delegation.token.max.lifetime.ms long 604800000 medium >=1
delegation.token.secret.key password null medium
"""

_ACCESS = """\
early.start.listeners list null high
security.providers string null low
"""

_SECRETS = """\
config.providers list "" low cluster-wide
"""

_PLUGINS = """\
alter.config.policy.class.name class null low
create.topic.policy.class.name class null low
"""

_METRICS = """\
auto.include.jmx.reporter boolean true low retired
kafka.metrics.polling.interval.secs int 10 low >=1
kafka.metrics.reporters list "" low
metric.reporters list org.apache.kafka.common.metrics.JmxReporter low cluster-wide
metrics.num.samples int 2 low >=1
metrics.recording.level string INFO low
metrics.sample.window.ms long 30000 low >=1
"""

NOT_SERVED = {
    "one event loop does this work, whatever the number": _LOOP,
    "a waiting request leaves the purgatory the moment it is answered": _PURGATORY,
    "only the current record format is written and sent": _OLD_FORMATS,
    "a segment's file grows as it is written": _PREALLOCATE,
    "new partitions go to the folder with the fewest partitions": _CORDON,
    "every attempt to connect to a broker has socket.connection.setup.timeout.ms": _CONNECTION_SETUP,
    "metadata is kept in the broker's own tree or in ZooKeeper, not in a KRaft quorum": _KRAFT,
    "group coordinators run on the event loop, and write at once with acks=all": _GROUPS,
    "share groups are not served": _SHARE,
    "streams groups are not served": _STREAMS,
    "moves between data folders keep an even pace, without windows": _MOVES,
    "tiered storage is not served": _TIERED,
    "OpenSSL does the work of TLS, not Java": _JAVA_TLS,
    "kinit renews the tickets of the broker": _SASL_KERBEROS,
    "Java classes are not loaded, and no assertion is made for the login of a broker": _SASL_LOGIN,
    "there are no KRaft controllers": _SASL_CONTROLLER,
    "access is not checked: every client that can connect may do everything": _ACCESS,
    "no secrets are looked up elsewhere": _SECRETS,
    "Java classes cannot be loaded": _PLUGINS,
    "metrics are read over HTTP at metrics.listener, and nothing is pushed": _METRICS,
}
