"""The settings of a broker with zookeeper.connect."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.data.key_stores.record import PASSWORD as STORE_PASSWORD
from tests.support.certificates import make_authority, make_certificate
from tidelog.config.values import ConfigError, Password
from tidelog.endpoints import Endpoint
from tidelog.security.jaas import PLAIN_MODULE
from tidelog.security.tls import enabled_versions
from tidelog.server.broker_transport import LOGIN_HANDLER, BrokerTransport, client_properties, transport_to
from tidelog.server.config.broker import BrokerConfig
from tidelog.server.config.cluster import ClusterConfig
from tidelog.server.run import StartFailed
from tidelog.server.zookeeper_connection import zookeeper_settings

TLS = {"zookeeper.ssl.client.enable": "true"}


def loaded(settings: dict[str, str] | None = None) -> BrokerConfig:
    return BrokerConfig.load(None, {"zookeeper.connect": "one:2181,two:2181/kafka", **(settings or {})})


def cluster(settings: dict[str, str] | None = None) -> ClusterConfig:
    found = loaded(settings).cluster
    assert found is not None
    return found


def refusal(settings: dict[str, str]) -> str:
    with pytest.raises(ConfigError) as caught:
        loaded(settings)
    return str(caught.value)


def test_a_cluster_has_kafkas_defaults() -> None:
    config = cluster()
    assert config.zookeeper_connect == "one:2181,two:2181/kafka"
    assert config.zookeeper_session_timeout_ms == config.zookeeper_connection_timeout_ms == 18000
    assert (config.controlled_shutdown_max_retries, config.controlled_shutdown_retry_backoff_ms) == (3, 5000)
    assert config.zookeeper_tls is None
    assert config.control_plane_listener is None


def test_a_connection_time_out_of_its_own() -> None:
    config = cluster({"zookeeper.connection.timeout.ms": "700", "zookeeper.session.timeout.ms": "6000"})
    assert (config.zookeeper_connection_timeout_ms, config.zookeeper_session_timeout_ms) == (700, 6000)


def test_none_of_the_settings_is_said_to_change_nothing() -> None:
    config = loaded({"controlled.shutdown.max.retries": "5", "leader.imbalance.per.broker.percentage": "3"})
    assert config.warnings == []


@pytest.mark.parametrize("version", ["3.4", "3.4-IV0", "3.9-IV0", "4.0"])
def test_brokers_speak_the_protocol_of_3_4_and_newer(version: str) -> None:
    cluster({"inter.broker.protocol.version": version})


@pytest.mark.parametrize("version", ["3.3-IV3", "2.8", "0.10.2"])
def test_an_older_protocol_between_brokers_is_refused_by_name(version: str) -> None:
    message = refusal({"inter.broker.protocol.version": version})
    assert message == f"inter.broker.protocol.version={version}: expected 3.4 or newer"


def test_kraft_is_refused() -> None:
    assert refusal({"process.roles": "broker"}).startswith("process.roles=broker: ")
    assert refusal({"zookeeper.metadata.migration.enable": "true"}).endswith(
        "migration to KRaft is not served"
    )


LISTENERS = {
    "listeners": "CONTROL://127.0.0.1:9090,PLAINTEXT://127.0.0.1:9092",
    "listener.security.protocol.map": "CONTROL:PLAINTEXT,PLAINTEXT:PLAINTEXT",
}


def test_the_controllers_requests_can_have_a_listener() -> None:
    assert (
        cluster({**LISTENERS, "control.plane.listener.name": "control"}).control_plane_listener == "CONTROL"
    )


@pytest.mark.parametrize("name", ["PLAINTEXT", "OTHER"])
def test_a_control_plane_listener_is_another_advertised_listener(name: str) -> None:
    message = refusal({**LISTENERS, "control.plane.listener.name": name})
    assert message.startswith(
        f"control.plane.listener.name={name}: expected an advertised listener other than"
    )


def test_tls_towards_zookeeper_takes_stores() -> None:
    tls = cluster(
        TLS
        | {
            "zookeeper.clientCnxnSocket": "org.apache.zookeeper.ClientCnxnSocketNetty",
            "zookeeper.ssl.keystore.location": "/etc/key.p12",
            "zookeeper.ssl.keystore.password": "secret",
            "zookeeper.ssl.truststore.location": "/etc/ca",
            "zookeeper.ssl.truststore.password": "other",
            "zookeeper.ssl.truststore.type": "JKS",
            "zookeeper.ssl.endpoint.identification.algorithm": "",
        }
    ).zookeeper_tls
    assert tls is not None
    assert (tls.keystore_location, tls.truststore_location) == ("/etc/key.p12", "/etc/ca")
    assert tls.keystore_password == tls.key_password == Password("secret")
    assert tls.truststore_password == Password("other")
    assert (tls.keystore_type, tls.truststore_type) == (None, "JKS")
    assert enabled_versions(tls) == ["TLSv1.2"]
    assert tls.endpoint_identification_algorithm == ""


def test_an_unusable_store_is_named_when_the_broker_starts(tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_text(make_certificate(make_authority()).pem("right"))
    settings = TLS | {"zookeeper.ssl.keystore.location": str(tmp_path / "key.pem")}
    with pytest.raises(
        StartFailed, match=r"^zookeeper\.ssl\.keystore\.password: needed: the key is encrypted"
    ):
        zookeeper_settings(cluster(settings))
    with pytest.raises(StartFailed, match=r"^zookeeper\.ssl\.keystore\.password=\[hidden\]: this password"):
        zookeeper_settings(cluster(settings | {"zookeeper.ssl.keystore.password": "wrong"}))


def test_the_class_of_the_connection_does_not_contradict_tls() -> None:
    name = "zookeeper.clientCnxnSocket"
    classes = "org.apache.zookeeper.ClientCnxnSocket"
    assert cluster({name: classes + "NIO"}).zookeeper_tls is None
    assert "it has no TLS" in refusal(TLS | {name: classes + "NIO"})
    assert f"expected {classes}Netty" in refusal({name: "org.example.Socket"})


def test_what_tls_cannot_do_is_refused() -> None:
    assert "revoked" in refusal(TLS | {"zookeeper.ssl.crl.enable": "true"})
    assert "revoked" in refusal(TLS | {"zookeeper.ssl.ocsp.enable": "true"})
    assert "TLSv1.3" in refusal(TLS | {"zookeeper.ssl.enabled.protocols": "TLSv1.1"})


def test_access_lists_need_an_identity() -> None:
    assert "identity" in refusal({"zookeeper.set.acl": "true"})
    assert cluster({"zookeeper.set.acl": "true", "tidelog.zookeeper.digest": "kafka:x"}).zookeeper_set_acl
    message = refusal({"tidelog.zookeeper.digest": "secret"})
    assert message == "tidelog.zookeeper.digest=[hidden]: expected user:password"


def test_a_transport_between_brokers_is_secured_as_their_listener() -> None:
    config = loaded(LISTENERS | {"inter.broker.listener.name": "PLAINTEXT", "request.timeout.ms": "1234"})
    settings, _ = transport_to(config, "PLAINTEXT", "broker-1-fetcher-0").prepare()
    assert (settings.client_id, settings.security_protocol) == ("broker-1-fetcher-0", "PLAINTEXT")
    assert settings.request_timeout_ms == 1234


class Tokens:
    """Supplies the token of a broker's own logins."""

    def token(self) -> tuple[str, float]:
        return "of-the-class", 2.0**32


def of_oauthbearer(handler: str) -> dict[str, object]:
    """The settings of connections to other brokers, which log in by OAUTHBEARER."""
    config = loaded({"sasl.mechanism.inter.broker.protocol": "OAUTHBEARER", LOGIN_HANDLER: handler})
    return client_properties(config, Endpoint("INNER", "SASL_PLAINTEXT", "127.0.0.1", 9093), "fetcher")


def test_a_class_supplies_the_token_of_a_broker() -> None:
    properties = of_oauthbearer(f"{__name__}.Tokens")
    assert properties == of_oauthbearer(f"{__name__}.Tokens")  # else each connection would ask for a token
    _, security = BrokerTransport(properties).prepare()
    token = security.token_now()
    assert token is not None
    assert (token.value, token.expires) == ("of-the-class", 2.0**32)
    with pytest.raises(ConfigError, match="expected a Python class"):
        of_oauthbearer("no.such.Class")


def test_a_transport_has_the_stores_and_the_login_of_its_listener() -> None:
    stores = Path(__file__).parent.parent / "data" / "key_stores"
    login = f'{PLAIN_MODULE} required username="broker" password="x" user_broker="x";'
    config = loaded(
        {
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "sasl.login.retry.backoff.ms": "7",
            "ssl.truststore.location": str(stores / "trust.p12"),
            "ssl.truststore.password": STORE_PASSWORD,
            "listener.name.inner.plain.sasl.jaas.config": login,
            "listener.name.inner.ssl.truststore.location": str(stores / "trust.jks"),
            "listener.name.inner.ssl.truststore.type": "JKS",
        }
    )
    properties = client_properties(config, Endpoint("INNER", "SASL_SSL", "127.0.0.1", 9093), "fetcher")
    settings, security = BrokerTransport(properties).prepare()
    assert settings.ssl_truststore_location == str(stores / "trust.jks")
    assert settings.sasl_login_retry_backoff_ms == 7
    assert "ssl.keystore.type" not in settings.given
    assert security.credentials is not None
    assert (security.mechanism, security.credentials.username) == ("PLAIN", "broker")
    assert security.context is not None
    assert len(security.context.get_ca_certs()) == 2
    wrong = BrokerTransport({**properties, "ssl.truststore.password": "wrong"})
    with pytest.raises(ConfigError, match=r"^ssl\.truststore\.password=\[hidden\]: it does not open"):
        wrong.prepare()


def test_internal_topics_have_kafkas_replicas() -> None:
    config = loaded()
    assert config.offsets_topic_replication_factor == 3
    assert config.transaction_state_log_replication_factor == 3
    assert config.transaction_state_log_min_isr == 2
    assert loaded({"default.replication.factor": "3"}).default_replication_factor == 3
