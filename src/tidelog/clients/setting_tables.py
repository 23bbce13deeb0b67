"""The clients' settings as tables, one line each: Kafka 4.3's names, types, defaults and limits.

The notation is that of `tidelog.config.definition`. Settings that change nothing have tables by reason.
"""

from __future__ import annotations

COMMON = """\
bootstrap.servers list null high
client.dns.lookup string use_all_dns_ips medium in(use_all_dns_ips,resolve_canonical_bootstrap_servers_only)
client.id string "" medium
metadata.max.age.ms long 300000 low >=0
metadata.recovery.rebootstrap.trigger.ms long 300000 low >=0
metadata.recovery.strategy string rebootstrap low anycase(REBOOTSTRAP,NONE)
reconnect.backoff.max.ms long 1000 low >=0
reconnect.backoff.ms long 50 low >=0
request.timeout.ms int 30000 medium >=0
retry.backoff.max.ms long 1000 low >=0
retry.backoff.ms long 100 low >=0
sasl.jaas.config password null medium
sasl.kerberos.service.name string null medium
sasl.login.callback.handler.class class null medium
sasl.login.connect.timeout.ms int null low
sasl.login.read.timeout.ms int null low
sasl.login.refresh.buffer.seconds short 300 low 0..3600
sasl.login.refresh.min.period.seconds short 60 low 0..900
sasl.login.refresh.window.factor double 0.8 low 0.5..1.0
sasl.login.refresh.window.jitter double 0.05 low 0.0..0.25
sasl.login.retry.backoff.max.ms long 10000 low
sasl.login.retry.backoff.ms long 100 low
sasl.mechanism string GSSAPI medium
sasl.oauth.token.provider class null medium ours
sasl.oauthbearer.client.credentials.client.id string null medium
sasl.oauthbearer.client.credentials.client.secret password null medium
sasl.oauthbearer.header.urlencode boolean false low
sasl.oauthbearer.scope string null medium
sasl.oauthbearer.token.endpoint.url string null medium
security.protocol string PLAINTEXT medium anycase(SASL_SSL,PLAINTEXT,SSL,SASL_PLAINTEXT)
send.buffer.bytes int 131072 medium >=-1
socket.connection.setup.timeout.max.ms long 30000 medium
socket.connection.setup.timeout.ms long 10000 medium
ssl.cipher.suites list "" low
ssl.enabled.protocols list TLSv1.2,TLSv1.3 medium
ssl.endpoint.identification.algorithm string https low
ssl.key.password password null high
ssl.keystore.certificate.chain password null high
ssl.keystore.key password null high
ssl.keystore.location string null high
ssl.keystore.password password null high
ssl.keystore.type string JKS medium anycase(JKS,PKCS12,PEM)
ssl.protocol string TLSv1.3 medium
ssl.truststore.certificates password null high
ssl.truststore.location string null high
ssl.truststore.password password null high
ssl.truststore.type string JKS medium anycase(JKS,PKCS12,PEM)
sasl.username string null medium ours
sasl.password password null medium ours
"""

PRODUCER = """\
acks string all low in(all,-1,0,1)
batch.size int 16384 medium >=0
buffer.memory long 33554432 high >=0
compression.gzip.level int -1 medium 1..9|-1
compression.lz4.level int 9 medium 1..17
compression.type string none high in(none,gzip,snappy,lz4,zstd)
compression.zstd.level int 3 medium -131072..22
connections.max.idle.ms long 540000 medium
delivery.timeout.ms int 120000 medium >=0
enable.idempotence boolean true low
interceptor.classes list "" low
key.serializer class null high
linger.ms long 5 medium >=0
max.block.ms long 60000 medium >=0
max.in.flight.requests.per.connection int 5 low >=1
max.request.size int 1048576 medium >=0
metadata.max.idle.ms long 300000 low >=5000
partitioner.adaptive.partitioning.enable boolean true low
partitioner.availability.timeout.ms long 0 low >=0
partitioner.class class null medium
partitioner.ignore.keys boolean false medium
receive.buffer.bytes int 32768 medium >=-1
retries int 2147483647 high 0..2147483647
transaction.timeout.ms int 60000 low
transaction.two.phase.commit.enable boolean false low
transactional.id string null low nonempty
value.serializer class null high
"""

CONSUMER = """\
allow.auto.create.topics boolean true medium
auto.commit.interval.ms int 5000 low >=0
auto.offset.reset string latest medium
check.crcs boolean true low
client.rack string "" low
connections.max.idle.ms long 540000 medium
default.api.timeout.ms int 60000 medium >=0
enable.auto.commit boolean true medium
exclude.internal.topics boolean true medium
fetch.max.bytes int 52428800 medium >=0
fetch.max.wait.ms int 500 low >=0
fetch.min.bytes int 1 high >=0
group.id string null high
group.instance.id string null medium nonempty
group.protocol string classic high anycase(CONSUMER,CLASSIC)
group.remote.assignor string null medium
heartbeat.interval.ms int 3000 high
interceptor.classes list "" low
isolation.level string read_uncommitted medium in(read_committed,read_uncommitted)
key.deserializer class null high
max.partition.fetch.bytes int 1048576 high >=0
max.poll.interval.ms int 300000 medium >=1
max.poll.records int 500 medium >=1
partition.assignment.strategy list range,cooperative-sticky medium
receive.buffer.bytes int 65536 medium >=-1
session.timeout.ms int 45000 high
value.deserializer class null high
"""

ADMIN = """\
bootstrap.controllers list "" high
connections.max.idle.ms long 300000 medium
default.api.timeout.ms int 60000 medium >=0
receive.buffer.bytes int 65536 medium >=-1
retries int 2147483647 low 0..2147483647
"""

_KERBEROS = """\
sasl.kerberos.kinit.cmd string /usr/bin/kinit low
sasl.kerberos.min.time.before.relogin long 60000 low
sasl.kerberos.ticket.renew.jitter double 0.05 low
sasl.kerberos.ticket.renew.window.factor double 0.8 low
"""

_TOKEN_CHECKS = """\
sasl.oauthbearer.clock.skew.seconds int 30 low
sasl.oauthbearer.expected.audience list "" high
sasl.oauthbearer.expected.issuer string null high
sasl.oauthbearer.jwks.endpoint.refresh.ms long 3600000 low
sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms long 10000 low
sasl.oauthbearer.jwks.endpoint.retry.backoff.ms long 100 low
sasl.oauthbearer.jwks.endpoint.url string null medium
sasl.oauthbearer.jwt.validator.class class null medium
sasl.oauthbearer.scope.claim.name string scope low
sasl.oauthbearer.sub.claim.name string sub low
"""

_ASSERTIONS = """\
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
sasl.oauthbearer.jwt.retriever.class class null medium
"""

_JAVA = """\
config.providers list "" low
metric.reporters list "" low
sasl.client.callback.handler.class class null medium
sasl.login.class class null medium
security.providers string null low
ssl.engine.factory.class class null low
ssl.keymanager.algorithm string SunX509 low
ssl.provider string null medium
ssl.secure.random.implementation string null low
ssl.trustmanager.algorithm string PKIX low
"""

_METRICS = """\
metrics.num.samples int 2 low >=1
metrics.recording.level string INFO low in(INFO,DEBUG,TRACE)
metrics.sample.window.ms long 30000 low >=0
"""

_TELEMETRY = """\
enable.metrics.push boolean true low
"""

_SHARE = """\
share.acknowledgement.mode string implicit medium in(implicit,explicit)
share.acquire.mode string BATCH_OPTIMIZED medium anycase(batch_optimized,record_limit)
"""

NOT_SERVED = {
    "tickets come from the system, which also renews them": _KERBEROS,
    "only brokers check tokens": _TOKEN_CHECKS,
    "tokens come from client credentials, a file or a Python callable, not from assertions": _ASSERTIONS,
    "it configures Java itself": _JAVA,
    "metrics are plain numbers that are read when asked for": _METRICS,
    "metrics are not pushed to brokers": _TELEMETRY,
}
NOT_SERVED_CONSUMER = {"share groups are not offered": _SHARE}
