"""The texts of the clients' settings, for the page that `tidelog config-docs --clients` prints.

An indented line belongs to the setting above it. The module is loaded only for documentation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tidelog.clients.settings import admin_definition, consumer_definition, producer_definition
from tidelog.config.definition import ConfigDef, ConfigKey

COMMON = """\
bootstrap.servers: Brokers to ask first, as host:port; the client finds the rest of the cluster through any
  of them.
client.dns.lookup: How a host name becomes addresses: `use_all_dns_ips` tries all its addresses in turn,
  `resolve_canonical_bootstrap_servers_only` first replaces each bootstrap server by its canonical host
  names.
client.id: A name for this client in the logs and metrics of brokers.
connections.max.idle.ms: The client closes a connection that was idle for this long.
metadata.max.age.ms: The client asks for metadata again after this time, even if nothing has failed.
metadata.recovery.rebootstrap.trigger.ms: Without metadata from any known broker for this long, the client
  goes back to `bootstrap.servers`.
metadata.recovery.strategy: `rebootstrap` goes back to `bootstrap.servers` when no known broker answers;
  `none` keeps to the known brokers.
receive.buffer.bytes: The size of the socket's receive buffer; -1 leaves it to the system.
reconnect.backoff.max.ms: The longest pause before the client connects again to a broker that it could not
  reach.
reconnect.backoff.ms: The pause before the first such try; it doubles with each failure.
request.timeout.ms: How long the client waits for the answer to a request.
retry.backoff.max.ms: The longest pause before a failed request is sent again.
retry.backoff.ms: The pause before the first such retry; it doubles with each failure.
sasl.jaas.config: A JAAS line of Kafka with user and password, or with the options of another mechanism. Java
  clients take the same line. With `tokenauth="true"` user and password belong to a delegation token.
  Without it the section `KafkaClient` of the JAAS file counts that the environment names in KAFKA_OPTS.
sasl.kerberos.service.name: The Kerberos name of the brokers, such as `kafka`; `GSSAPI` needs it, and the
  package `gssapi`. The ticket is the system's, or `sasl.jaas.config` has `keyTab` and `principal`.
sasl.login.callback.handler.class: As `sasl.oauth.token.provider`. Kafka's own classes are understood, too:
  they get tokens from `sasl.oauthbearer.token.endpoint.url`.
sasl.login.connect.timeout.ms: How long a connection to the token endpoint may take; 10 seconds if not set.
sasl.login.read.timeout.ms: How long the answer of the token endpoint may take; 10 seconds if not set.
sasl.login.refresh.buffer.seconds: A token is renewed at least this long before it expires.
sasl.login.refresh.min.period.seconds: A token is kept at least this long.
sasl.login.refresh.window.factor: A token is renewed after this part of its lifetime.
sasl.login.refresh.window.jitter: A random part of the lifetime, up to this, is added to
  `sasl.login.refresh.window.factor`.
sasl.login.retry.backoff.max.ms: The longest pause before the token endpoint is asked again, and the time
  after which the login fails.
sasl.login.retry.backoff.ms: The pause before the first such try; it doubles with each failure.
sasl.mechanism: How the client logs in: `PLAIN`, `SCRAM-SHA-256`, `SCRAM-SHA-512`, `OAUTHBEARER` or `GSSAPI`.
sasl.oauth.token.provider: A callable that returns the token of `OAUTHBEARER`: its text, or a tuple of text,
  expiry in seconds since 1970, principal and extensions. An object with a method `token` does, too. It is
  called beside the event loop and may block.
sasl.oauthbearer.client.credentials.client.id: The id of this client at the token endpoint.
sasl.oauthbearer.client.credentials.client.secret: The secret of this client at the token endpoint.
sasl.oauthbearer.header.urlencode: Whether id and secret are URL-encoded before they are sent, which some
  endpoints expect.
sasl.oauthbearer.scope: The scope to request at the token endpoint.
sasl.oauthbearer.token.endpoint.url: Where tokens come from, with the credentials of this client. A URL that
  begins with `file://` names a file that has the token.
sasl.password: The password, without a JAAS line.
sasl.username: The user, without a JAAS line.
security.protocol: Whether connections use TLS (`SSL`), a login (`SASL_PLAINTEXT`), both (`SASL_SSL`) or
  neither.
send.buffer.bytes: The size of the socket's send buffer; -1 leaves it to the system.
socket.connection.setup.timeout.max.ms: The longest time that a connection may take to be made.
socket.connection.setup.timeout.ms: How long the first try may take; the time doubles with each failure.
ssl.cipher.suites: The cipher suites that TLS may use, by the names of Java or OpenSSL; empty leaves them to
  OpenSSL.
ssl.enabled.protocols: The versions of TLS that the client accepts. Versions before TLS 1.2 stay off.
ssl.endpoint.identification.algorithm: `https` compares the broker's certificate with its host name; empty
  does not.
ssl.key.password: The password of the client's private key. A key in a JKS or PKCS12 store has the password of
  the store if this is not set.
ssl.keystore.certificate.chain: The client's certificates as PEM text.
ssl.keystore.key: The client's private key as PEM text.
ssl.keystore.location: A file with the client's private key and certificates.
ssl.keystore.password: The password of `ssl.keystore.location`, if that is a JKS or PKCS12 store.
ssl.keystore.type: The format of `ssl.keystore.location`. If it is not set, the client finds it out.
ssl.protocol: The version of TLS if `ssl.enabled.protocols` is empty.
ssl.truststore.certificates: The certificates that the client trusts, as PEM text.
ssl.truststore.location: A file with the certificates that the client trusts. A client without this setting
  and without `ssl.truststore.certificates` trusts the certificates of the system.
ssl.truststore.password: The password of `ssl.truststore.location`, if that is a JKS or PKCS12 store.
ssl.truststore.type: The format of `ssl.truststore.location`. If it is not set, the client finds it out.
"""

PRODUCER = """\
acks: How many replicas confirm a batch before it counts as written: `all` (or -1), 1 (the leader) or 0
  (none).
batch.size: The producer fills batches of a partition up to this many bytes; 0 sends each record alone.
buffer.memory: Bytes of unsent records that the producer holds; `send` waits when they are used up.
compression.gzip.level: How hard gzip works: 9 is smallest and slowest, -1 leaves it to the library.
compression.lz4.level: How hard lz4 works; higher is smaller and slower.
compression.type: The codec of batches.
compression.zstd.level: How hard zstd works; higher is smaller and slower, negative levels are fastest.
delivery.timeout.ms: A record fails when it is not confirmed this long after `send`, retries included.
enable.idempotence: Whether batches are numbered, so that a retry is neither stored twice nor out of order.
interceptor.classes: Subclasses of `ProducerInterceptor`, called with each record and each result.
key.serializer: A function, an object with `serialize`, or the name of one of Kafka's serializers, that
  turns a key into bytes.
linger.ms: How long a batch that is not full waits for more records.
max.block.ms: How long `send` and the calls of transactions wait for metadata, buffer memory or a
  coordinator.
max.in.flight.requests.per.connection: Requests to one broker that may be unanswered at a time; an
  idempotent producer may have at most 5.
max.request.size: The largest record, and about the largest request, in bytes.
metadata.max.idle.ms: The producer forgets the metadata of a topic that it did not send to for this long.
partitioner.adaptive.partitioning.enable: Whether records without a key go more often to brokers that answer
  fast.
partitioner.availability.timeout.ms: Records without a key avoid a partition whose broker took no request
  for this long; 0 avoids none.
partitioner.class: A function or an object that chooses the partition, or `RoundRobinPartitioner`.
partitioner.ignore.keys: Whether records with a key are spread as records without one.
retries: How often a failed batch is sent again, within `delivery.timeout.ms`.
transaction.timeout.ms: The coordinator aborts a transaction that is open for longer.
transaction.two.phase.commit.enable: Whether a prepared transaction stays open until someone ends it,
  without a time-out.
transactional.id: The name under which transactions survive a restart of the producer; it switches
  transactions on.
value.serializer: As `key.serializer`, for values.
"""

CONSUMER = """\
allow.auto.create.topics: Whether a broker may create a topic because this consumer asks for it.
auto.commit.interval.ms: How often positions are committed with `enable.auto.commit`.
auto.offset.reset: Where a group without committed offsets begins: `earliest`, `latest`, `none` (an error)
  or `by_duration:PT1H` (an hour ago).
check.crcs: Whether the checksum of each batch is compared.
client.rack: The rack of this consumer; it reads from a replica in the same rack if there is one.
default.api.timeout.ms: How long a call waits that has no time-out of its own.
enable.auto.commit: Whether positions are committed by themselves, every `auto.commit.interval.ms`.
exclude.internal.topics: Whether patterns pass over internal topics such as `__consumer_offsets`.
fetch.max.bytes: The most bytes that a fetch answers with; a first batch that is larger still comes.
fetch.max.wait.ms: How long a broker holds a fetch that has fewer than `fetch.min.bytes`.
fetch.min.bytes: A broker answers a fetch once it has this many bytes.
group.id: The consumer group; without one nothing is shared or committed.
group.instance.id: The name of a static member: it keeps its partitions over a restart within the session
  timeout.
group.protocol: `classic` lets a member assign the partitions, `consumer` lets the broker do it.
group.remote.assignor: The broker's assignor for the protocol `consumer`: `uniform` or `range`.
heartbeat.interval.ms: How often a member of a classic group says that it lives.
interceptor.classes: Subclasses of `ConsumerInterceptor`, called with the records of each poll and with each
  commit.
isolation.level: `read_committed` leaves out records of open and aborted transactions.
key.deserializer: A function, an object with `deserialize`, or the name of one of Kafka's deserializers,
  that turns bytes into a key.
max.partition.fetch.bytes: The most bytes of one partition in a fetch; a first batch that is larger still
  comes.
max.poll.interval.ms: A member that does not poll for this long leaves its group.
max.poll.records: The most records that one `poll` gives.
partition.assignment.strategy: Assignors of a classic group, the preferred one first: `range`, `roundrobin`,
  `sticky`, `cooperative-sticky` or objects.
session.timeout.ms: A classic group drops a member that was silent for this long.
value.deserializer: As `key.deserializer`, for values.
"""

ADMIN = """\
bootstrap.controllers: Controllers of a KRaft cluster to ask instead of brokers, as host:port.
default.api.timeout.ms: How long a call may take, retries included, that has no time-out of its own.
retries: How often a failed request is sent again, within the time of its call.
"""

INTRODUCTION = """\
# Client settings

The settings of `Producer`, `Consumer`, `Admin` and their asynchronous forms. They have the names and
defaults of Kafka 4.3. Give them as keyword arguments with underscores (`linger_ms=20`), or as a dict with
Kafka's own names (`{"linger.ms": 20}`). A name that no client knows logs a warning with the nearest name. A
value that cannot be used raises `ConfigError`, which says what is allowed.

`HandlerConsumer` takes the settings of a consumer. The tools take these settings in the file that
`--command-config` names, and Spark's options take them as `kafka.<name>`.
"""

NOTHING = """\
Files that were written for Java clients may have these settings. They are checked as Kafka checks them, a
warning names each one, and nothing else happens.
"""


def client_texts() -> dict[str, dict[str, str]]:
    """The texts of settings by name: the texts of every client, and of each kind of client."""
    tables = {"common": COMMON, "producer": PRODUCER, "consumer": CONSUMER, "admin": ADMIN}
    return {kind: dict(_texts(table)) for kind, table in tables.items()}


def markdown() -> str:
    """The whole page."""
    definitions = {
        "producer": producer_definition(),
        "consumer": consumer_definition(),
        "admin": admin_definition(),
    }
    texts = client_texts()
    parts = [INTRODUCTION]
    # Some settings of all clients differ in their defaults.
    same: list[str] = []
    others: list[str] = []
    for name in texts["common"]:
        defaults = {definition[name].default for definition in definitions.values()}
        (same if len(defaults) == 1 else others).append(name)
    parts += ["## Every client\n", *_table(definitions["admin"][name] for name in same)]
    for kind, definition in definitions.items():
        names = sorted([*texts[kind], *others])
        parts += [f"\n## {kind.capitalize()}\n", *_table((definition[name] for name in names), kind)]
    parts += ["\n## Settings that change nothing\n", NOTHING, *_not_served(definitions.values())]
    return "\n".join(parts) + "\n"


def _not_served(definitions: Iterable[ConfigDef]) -> Iterator[str]:
    yield "| setting | why | type | default |"
    yield "|---|---|---|---|"
    keys = {key.name: key for definition in definitions for key in definition.values()}
    for name, key in sorted(keys.items()):
        if key.reason is not None:
            why = f"{key.reason[:1].upper()}{key.reason[1:]}."
            yield f"| `{name}` | {why} | {key.type.name.lower()} | {_default(key)} |"


def _texts(table: str) -> Iterator[tuple[str, str]]:
    for entry in table.replace("\n  ", " ").splitlines():
        name, _, text = entry.partition(": ")
        yield name, text


def _table(keys: Iterable[ConfigKey], kind: str = "common") -> Iterator[str]:
    texts = client_texts()
    yield "| setting | what it does | type | default | allowed | importance |"
    yield "|---|---|---|---|---|---|"
    for key in keys:
        text = texts[kind].get(key.name) or texts["common"][key.name]
        allowed = key.rule.allowed() if key.rule is not None else ""
        yield (
            f"| `{key.name}` | {_escaped(text)} | {key.type.name.lower()} | {_default(key)} "
            f"| {_escaped(allowed)} | {key.importance.value} |"
        )


def _default(key: ConfigKey) -> str:
    note = f" (Kafka: `{key.kafka_default}`)" if key.kafka_default is not None else ""
    if key.default is None:
        return note.strip()
    return (f"`{key.default}`" if key.default else "empty") + note


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*")
