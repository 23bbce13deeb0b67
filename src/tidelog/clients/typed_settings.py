"""The settings of the clients as keyword arguments, for type checkers and editors.

`make docs` prints it with packaging/typed_settings.py, from the same definitions as the documentation, and a
test holds that it is current. It is committed because a type checker reads source files and runs nothing.
Serializers and deserializers are parameters of their own, as they carry the types of keys and values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, TypedDict

if TYPE_CHECKING:
    from tidelog.clients.consumer.assignors import Assignor
    from tidelog.clients.consumer.interceptors import ConsumerInterceptor
    from tidelog.clients.producer.interceptors import ProducerInterceptor
    from tidelog.config import Password


class ClientConfig(TypedDict, total=False):
    """Settings of every client."""

    bootstrap_servers: str | Sequence[str]
    """Brokers to ask first, as host:port; the client finds the rest of the cluster through any of them."""
    client_dns_lookup: Literal["use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"]
    """How a host name becomes addresses: `use_all_dns_ips` tries all its addresses in turn,
    `resolve_canonical_bootstrap_servers_only` first replaces each bootstrap server by its canonical host
    names.
    """
    client_id: str
    """A name for this client in the logs and metrics of brokers."""
    connections_max_idle_ms: int
    """The client closes a connection that was idle for this long."""
    metadata_max_age_ms: int
    """The client asks for metadata again after this time, even if nothing has failed."""
    metadata_recovery_rebootstrap_trigger_ms: int
    """Without metadata from any known broker for this long, the client goes back to `bootstrap.servers`."""
    metadata_recovery_strategy: Literal["REBOOTSTRAP", "NONE", "rebootstrap", "none"]
    """`rebootstrap` goes back to `bootstrap.servers` when no known broker answers; `none` keeps to the known
    brokers.
    """
    receive_buffer_bytes: int
    """The size of the socket's receive buffer; -1 leaves it to the system."""
    reconnect_backoff_max_ms: int
    """The longest pause before the client connects again to a broker that it could not reach."""
    reconnect_backoff_ms: int
    """The pause before the first such try; it doubles with each failure."""
    request_timeout_ms: int
    """How long the client waits for the answer to a request."""
    retry_backoff_max_ms: int
    """The longest pause before a failed request is sent again."""
    retry_backoff_ms: int
    """The pause before the first such retry; it doubles with each failure."""
    sasl_jaas_config: str | Password | None
    """A JAAS line of Kafka with user and password, or with the options of another mechanism. Java clients
    take the same line. With `tokenauth="true"` user and password belong to a delegation token. Without it the
    section `KafkaClient` of the JAAS file counts that the environment names in KAFKA_OPTS.
    """
    sasl_kerberos_service_name: str | None
    """The Kerberos name of the brokers, such as `kafka`; `GSSAPI` needs it, and the package `gssapi`. The
    ticket is the system's, or `sasl.jaas.config` has `keyTab` and `principal`.
    """
    sasl_login_callback_handler_class: object
    """As `sasl.oauth.token.provider`. Kafka's own classes are understood, too: they get tokens from
    `sasl.oauthbearer.token.endpoint.url`.
    """
    sasl_login_connect_timeout_ms: int | None
    """How long a connection to the token endpoint may take; 10 seconds if not set."""
    sasl_login_read_timeout_ms: int | None
    """How long the answer of the token endpoint may take; 10 seconds if not set."""
    sasl_login_refresh_buffer_seconds: int
    """A token is renewed at least this long before it expires."""
    sasl_login_refresh_min_period_seconds: int
    """A token is kept at least this long."""
    sasl_login_refresh_window_factor: float
    """A token is renewed after this part of its lifetime."""
    sasl_login_refresh_window_jitter: float
    """A random part of the lifetime, up to this, is added to `sasl.login.refresh.window.factor`."""
    sasl_login_retry_backoff_max_ms: int
    """The longest pause before the token endpoint is asked again, and the time after which the login fails.
    """
    sasl_login_retry_backoff_ms: int
    """The pause before the first such try; it doubles with each failure."""
    sasl_mechanism: str
    """How the client logs in: `PLAIN`, `SCRAM-SHA-256`, `SCRAM-SHA-512`, `OAUTHBEARER` or `GSSAPI`."""
    sasl_oauth_token_provider: object
    """A callable that returns the token of `OAUTHBEARER`: its text, or a tuple of text, expiry in seconds
    since 1970, principal and extensions. An object with a method `token` does, too. It is called beside the
    event loop and may block.
    """
    sasl_oauthbearer_client_credentials_client_id: str | None
    """The id of this client at the token endpoint."""
    sasl_oauthbearer_client_credentials_client_secret: str | Password | None
    """The secret of this client at the token endpoint."""
    sasl_oauthbearer_header_urlencode: bool
    """Whether id and secret are URL-encoded before they are sent, which some endpoints expect."""
    sasl_oauthbearer_scope: str | None
    """The scope to request at the token endpoint."""
    sasl_oauthbearer_token_endpoint_url: str | None
    """Where tokens come from, with the credentials of this client. A URL that begins with `file://` names a
    file that has the token.
    """
    sasl_password: str | Password | None
    """The password, without a JAAS line."""
    sasl_username: str | None
    """The user, without a JAAS line."""
    security_protocol: Literal[
        "SASL_SSL", "PLAINTEXT", "SSL", "SASL_PLAINTEXT", "sasl_ssl", "plaintext", "ssl", "sasl_plaintext"
    ]
    """Whether connections use TLS (`SSL`), a login (`SASL_PLAINTEXT`), both (`SASL_SSL`) or neither."""
    send_buffer_bytes: int
    """The size of the socket's send buffer; -1 leaves it to the system."""
    socket_connection_setup_timeout_max_ms: int
    """The longest time that a connection may take to be made."""
    socket_connection_setup_timeout_ms: int
    """How long the first try may take; the time doubles with each failure."""
    ssl_cipher_suites: str | Sequence[str]
    """The cipher suites that TLS may use, by the names of Java or OpenSSL; empty leaves them to OpenSSL."""
    ssl_enabled_protocols: str | Sequence[str]
    """The versions of TLS that the client accepts. Versions before TLS 1.2 stay off."""
    ssl_endpoint_identification_algorithm: str
    """`https` compares the broker's certificate with its host name; empty does not."""
    ssl_key_password: str | Password | None
    """The password of the client's private key. A key in a JKS or PKCS12 store has the password of the store
    if this is not set.
    """
    ssl_keystore_certificate_chain: str | Password | None
    """The client's certificates as PEM text."""
    ssl_keystore_key: str | Password | None
    """The client's private key as PEM text."""
    ssl_keystore_location: str | None
    """A file with the client's private key and certificates."""
    ssl_keystore_password: str | Password | None
    """The password of `ssl.keystore.location`, if that is a JKS or PKCS12 store."""
    ssl_keystore_type: Literal["JKS", "PKCS12", "PEM", "jks", "pkcs12", "pem"]
    """The format of `ssl.keystore.location`. If it is not set, the client finds it out."""
    ssl_protocol: str
    """The version of TLS if `ssl.enabled.protocols` is empty."""
    ssl_truststore_certificates: str | Password | None
    """The certificates that the client trusts, as PEM text."""
    ssl_truststore_location: str | None
    """A file with the certificates that the client trusts. A client without this setting and without
    `ssl.truststore.certificates` trusts the certificates of the system.
    """
    ssl_truststore_password: str | Password | None
    """The password of `ssl.truststore.location`, if that is a JKS or PKCS12 store."""
    ssl_truststore_type: Literal["JKS", "PKCS12", "PEM", "jks", "pkcs12", "pem"]
    """The format of `ssl.truststore.location`. If it is not set, the client finds it out."""


class ProducerConfig(ClientConfig, total=False):
    """Settings of `Producer` and `AsyncProducer`."""

    acks: Literal["all", "-1", "0", "1", -1, 0, 1]
    """How many replicas confirm a batch before it counts as written: `all` (or -1), 1 (the leader) or 0
    (none).
    """
    batch_size: int
    """The producer fills batches of a partition up to this many bytes; 0 sends each record alone."""
    buffer_memory: int
    """Bytes of unsent records that the producer holds; `send` waits when they are used up."""
    compression_gzip_level: int
    """How hard gzip works: 9 is smallest and slowest, -1 leaves it to the library."""
    compression_lz4_level: int
    """How hard lz4 works; higher is smaller and slower."""
    compression_type: Literal["none", "gzip", "snappy", "lz4", "zstd"]
    """The codec of batches."""
    compression_zstd_level: int
    """How hard zstd works; higher is smaller and slower, negative levels are fastest."""
    delivery_timeout_ms: int
    """A record fails when it is not confirmed this long after `send`, retries included."""
    enable_idempotence: bool
    """Whether batches are numbered, so that a retry is neither stored twice nor out of order."""
    interceptor_classes: Sequence[ProducerInterceptor | type[ProducerInterceptor]]
    """Subclasses of `ProducerInterceptor`, called with each record and each result."""
    linger_ms: int
    """How long a batch that is not full waits for more records."""
    max_block_ms: int
    """How long `send` and the calls of transactions wait for metadata, buffer memory or a coordinator."""
    max_in_flight_requests_per_connection: int
    """Requests to one broker that may be unanswered at a time; an idempotent producer may have at most 5."""
    max_request_size: int
    """The largest record, and about the largest request, in bytes."""
    metadata_max_idle_ms: int
    """The producer forgets the metadata of a topic that it did not send to for this long."""
    partitioner_adaptive_partitioning_enable: bool
    """Whether records without a key go more often to brokers that answer fast."""
    partitioner_availability_timeout_ms: int
    """Records without a key avoid a partition whose broker took no request for this long; 0 avoids none."""
    partitioner_class: object
    """A function or an object that chooses the partition, or `RoundRobinPartitioner`."""
    partitioner_ignore_keys: bool
    """Whether records with a key are spread as records without one."""
    retries: int
    """How often a failed batch is sent again, within `delivery.timeout.ms`."""
    transaction_timeout_ms: int
    """The coordinator aborts a transaction that is open for longer."""
    transaction_two_phase_commit_enable: bool
    """Whether a prepared transaction stays open until someone ends it, without a time-out."""
    transactional_id: str | None
    """The name under which transactions survive a restart of the producer; it switches transactions on."""


class ConsumerConfig(ClientConfig, total=False):
    """Settings of `Consumer` and `AsyncConsumer`."""

    allow_auto_create_topics: bool
    """Whether a broker may create a topic because this consumer asks for it."""
    auto_commit_interval_ms: int
    """How often positions are committed with `enable.auto.commit`."""
    auto_offset_reset: str
    """Where a group without committed offsets begins: `earliest`, `latest`, `none` (an error) or
    `by_duration:PT1H` (an hour ago).
    """
    check_crcs: bool
    """Whether the checksum of each batch is compared."""
    client_rack: str
    """The rack of this consumer; it reads from a replica in the same rack if there is one."""
    default_api_timeout_ms: int
    """How long a call waits that has no time-out of its own."""
    enable_auto_commit: bool
    """Whether positions are committed by themselves, every `auto.commit.interval.ms`."""
    exclude_internal_topics: bool
    """Whether patterns pass over internal topics such as `__consumer_offsets`."""
    fetch_max_bytes: int
    """The most bytes that a fetch answers with; a first batch that is larger still comes."""
    fetch_max_wait_ms: int
    """How long a broker holds a fetch that has fewer than `fetch.min.bytes`."""
    fetch_min_bytes: int
    """A broker answers a fetch once it has this many bytes."""
    group_id: str | None
    """The consumer group; without one nothing is shared or committed."""
    group_instance_id: str | None
    """The name of a static member: it keeps its partitions over a restart within the session timeout."""
    group_protocol: Literal["CONSUMER", "CLASSIC", "consumer", "classic"]
    """`classic` lets a member assign the partitions, `consumer` lets the broker do it."""
    group_remote_assignor: str | None
    """The broker's assignor for the protocol `consumer`: `uniform` or `range`."""
    heartbeat_interval_ms: int
    """How often a member of a classic group says that it lives."""
    interceptor_classes: Sequence[ConsumerInterceptor | type[ConsumerInterceptor]]
    """Subclasses of `ConsumerInterceptor`, called with the records of each poll and with each commit."""
    isolation_level: Literal["read_committed", "read_uncommitted"]
    """`read_committed` leaves out records of open and aborted transactions."""
    max_partition_fetch_bytes: int
    """The most bytes of one partition in a fetch; a first batch that is larger still comes."""
    max_poll_interval_ms: int
    """A member that does not poll for this long leaves its group."""
    max_poll_records: int
    """The most records that one `poll` gives."""
    partition_assignment_strategy: str | Sequence[str | Assignor | type[Assignor]]
    """Assignors of a classic group, the preferred one first: `range`, `roundrobin`, `sticky`,
    `cooperative-sticky` or objects.
    """
    session_timeout_ms: int
    """A classic group drops a member that was silent for this long."""


class AdminClientConfig(ClientConfig, total=False):
    """Settings of `Admin` and `AsyncAdmin`."""

    bootstrap_controllers: str | Sequence[str]
    """Controllers of a KRaft cluster to ask instead of brokers, as host:port."""
    default_api_timeout_ms: int
    """How long a call may take, retries included, that has no time-out of its own."""
    retries: int
    """How often a failed request is sent again, within the time of its call."""
