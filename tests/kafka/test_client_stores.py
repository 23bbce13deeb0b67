"""Our clients at Apache Kafka 3.9 and 4.3: stores of keytool, and every mechanism but Kerberos."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.data.key_stores.record import KEY_PASSWORD, PASSWORD
from tests.kafka.servers import Kafka3, Kafka4, ZooKeeper
from tests.support.ports import free_port
from tests.support.wait import eventually
from tidelog import Admin, Consumer, Producer, TopicPartition
from tidelog.cli.main import main
from tidelog.clients.admin import NewTopic, ScramMechanism, UserScramCredentialUpsertion
from tidelog.clients.errors import SslAuthenticationException
from tidelog.errors import KafkaError, SaslAuthenticationFailed
from tidelog.security.jaas import OAUTHBEARER_MODULE, PLAIN_MODULE, SCRAM_MODULE

STORES = Path(__file__).parent.parent / "data" / "key_stores"
SECRET = "alice's secret"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
MODULES = {
    "PLAIN": f'{PLAIN_MODULE} required user_alice="{SECRET}"',
    "SCRAM-SHA-256": f"{SCRAM_MODULE} required",
    "SCRAM-SHA-512": f"{SCRAM_MODULE} required",
    "OAUTHBEARER": f'{OAUTHBEARER_MODULE} required unsecuredLoginStringClaim_sub="broker"',
}
JKS = {
    "ssl_truststore_location": str(STORES / "trust.jks"),
    "ssl_truststore_password": PASSWORD,
    "ssl_truststore_type": "JKS",
}
PKCS12 = {"ssl_truststore_location": str(STORES / "trust.p12"), "ssl_truststore_password": PASSWORD}


@dataclass(slots=True, frozen=True)
class Secured:
    login_port: int
    certificate_port: int

    def login(self, mechanism: str, secret: str = SECRET) -> dict[str, object]:
        given: dict[str, object] = {
            "bootstrap_servers": f"127.0.0.1:{self.login_port}",
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": mechanism,
        }
        if mechanism == "OAUTHBEARER":
            line = f'{OAUTHBEARER_MODULE} required unsecuredLoginStringClaim_sub="alice";'
            return {**given, "sasl_jaas_config": line}
        return {**given, "sasl_username": "alice", "sasl_password": secret}

    def knows(self, mechanism: str) -> bool:
        try:
            with Admin(**self.login(mechanism), **JKS) as admin:
                admin.list_topics()
        except SaslAuthenticationFailed:
            return False
        return True

    def broker_settings(self, plain: str, more: dict[str, str]) -> dict[str, str]:
        """The settings of a broker that has these listeners, and `more` that only it uses."""
        advertised = {
            "PLAINTEXT": plain,
            "SASL_SSL": f"127.0.0.1:{self.login_port}",
            "SSL": f"127.0.0.1:{self.certificate_port}",
        }
        # It can be reached by another address, too, which its certificate does not have.
        bound = {**advertised, "SASL_SSL": f"0.0.0.0:{self.login_port}", **more}
        prefix = "listener.name.sasl_ssl."
        protocols = {name: name for name in advertised} | {"CONTROLLER": "PLAINTEXT"}
        return {
            "listeners": ",".join(f"{name}://{address}" for name, address in bound.items()),
            "advertised.listeners": ",".join(f"{name}://{address}" for name, address in advertised.items()),
            "listener.security.protocol.map": ",".join(map(":".join, protocols.items())),
            "delegation.token.secret.key": "tokens",
            "ssl.keystore.location": str(STORES / "server.p12"),
            "ssl.keystore.password": PASSWORD,
            "ssl.keystore.type": "PKCS12",
            "ssl.truststore.location": str(STORES / "trust.jks"),
            "ssl.truststore.password": PASSWORD,
            "listener.name.ssl.ssl.client.auth": "required",
            "sasl.enabled.mechanisms": ",".join(MECHANISMS),
            **{f"{prefix}{name.lower()}.connections.max.reauth.ms": "1500" for name in MECHANISMS},
            **{f"{prefix}{name.lower()}.sasl.jaas.config": f"{module};" for name, module in MODULES.items()},
        }

    def certificate(self) -> dict[str, object]:
        return {"bootstrap_servers": f"127.0.0.1:{self.certificate_port}", "security_protocol": "SSL"}


@pytest.fixture(scope="module", params=["kafka3", "kafka4"])
def kafka(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp(str(request.param))
    secured = Secured(free_port(), free_port())
    with ExitStack() as running:
        server: Kafka3 | Kafka4
        if request.param == "kafka3":
            zookeeper = running.enter_context(ZooKeeper(folder / "zookeeper"))
            server = Kafka3(folder / "kafka", folder / "data", zookeeper)
            server.extra = secured.broker_settings(server.bootstrap, {})
        else:
            server = Kafka4(folder / "kafka", folder / "data")
            controller = {"CONTROLLER": f"127.0.0.1:{server.controller_port}"}
            server.extra = secured.broker_settings(server.bootstrap, controller)
            server.format()
        running.enter_context(server)
        admin = running.enter_context(Admin(bootstrap_servers=server.bootstrap))
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            admin.alter_user_scram_credentials([UserScramCredentialUpsertion("alice", SECRET, mechanism)])
        eventually(lambda: secured.knows("SCRAM-SHA-512"), "the users are known")
        eventually(lambda: secured.knows("SCRAM-SHA-256"), "the users are known")
        yield secured


@pytest.mark.parametrize("trust", [JKS, PKCS12], ids=["JKS", "PKCS12"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_producer_consumer_and_admin_log_in(kafka: Secured, mechanism: str, trust: dict[str, object]) -> None:
    client = {**kafka.login(mechanism), **trust}
    topic = f"{mechanism.lower()}-{len(trust)}"
    with Producer(**client) as producer:
        producer.send(topic, b"v").result(30)
    with Consumer(**client, auto_offset_reset="earliest", group_id=topic) as consumer:
        consumer.subscribe([topic])
        end = time.monotonic() + 30
        values: list[object] = []
        while not values and time.monotonic() < end:
            values += [record.value for record in consumer.poll(0.5)]
    assert values == [b"v"]
    with Admin(**client) as admin:
        assert topic in admin.list_topics()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "OAUTHBEARER"])
def test_a_session_is_renewed_in_place_and_no_request_fails(kafka: Secured, mechanism: str) -> None:
    """The broker closes connections whose session is older than 1.5 s."""
    with Producer(**kafka.login(mechanism), **JKS, linger_ms=0) as producer:
        end = time.monotonic() + 5
        while time.monotonic() < end:
            producer.send("renewed", b"v").result(10)
        metrics = producer.metrics()
    assert metrics["record-retry-total"] == 0
    assert metrics["successful-authentication-total"] > metrics["connection-creation-total"]
    assert metrics["connection-creation-total"] <= 2


def test_a_key_of_a_store_is_the_identity(kafka: Secured) -> None:
    keys = (
        {"ssl_keystore_location": str(STORES / "server.p12"), "ssl_keystore_password": PASSWORD},
        {
            "ssl_keystore_location": str(STORES / "server.jks"),
            "ssl_keystore_password": PASSWORD,
            "ssl_key_password": KEY_PASSWORD,
        },
    )
    for key in keys:
        with Producer(**kafka.certificate(), **PKCS12, **key) as producer:
            producer.send("certified", b"v").result(30)
    with pytest.raises(SslAuthenticationException), Producer(**kafka.certificate(), **PKCS12) as producer:
        producer.send("certified", b"v").result(30)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_wrong_password_is_refused_at_once(kafka: Secured, mechanism: str) -> None:
    begun = time.monotonic()
    wrong = {**kafka.login(mechanism, "a wrong one"), **JKS}
    with pytest.raises(SaslAuthenticationFailed) as caught, Producer(**wrong) as producer:
        producer.send("never", b"v").result(30)
    with pytest.raises(SaslAuthenticationFailed), Admin(**wrong) as admin:
        admin.list_topics()
    with pytest.raises(SaslAuthenticationFailed), Consumer(**wrong) as consumer:
        consumer.assign([TopicPartition("never", 0)])
        consumer.poll(30)
    assert "a wrong one" not in str(caught.value)
    assert time.monotonic() - begun < 10


def test_an_expired_token_is_refused_at_once(kafka: Secured) -> None:
    expired = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbGljZSIsImlhdCI6MSwiZXhwIjoyfQ."
    given = {**kafka.login("OAUTHBEARER"), **JKS, "sasl_oauth_token_provider": lambda: expired}
    with pytest.raises(SaslAuthenticationFailed), Producer(**given) as producer:
        producer.send("never", b"v").result(30)


def test_a_wrong_authority_and_a_wrong_host_are_refused_at_once(kafka: Secured) -> None:
    begun = time.monotonic()
    stranger = {**kafka.login("PLAIN"), "ssl_truststore_location": str(STORES / "other.pem")}
    with pytest.raises(SslAuthenticationException, match="verify failed"), Producer(**stranger) as producer:
        producer.send("never", b"v").result(30)
    elsewhere = {**kafka.login("PLAIN"), **JKS, "bootstrap_servers": f"127.0.0.2:{kafka.login_port}"}
    with pytest.raises(SslAuthenticationException, match="mismatch"), Producer(**elsewhere) as producer:
        producer.send("never", b"v").result(30)
    with Admin(**elsewhere, ssl_endpoint_identification_algorithm="") as admin:
        admin.list_topics()
    assert time.monotonic() - begun < 15


def test_a_delegation_token_logs_in(kafka: Secured) -> None:
    with Admin(**kafka.login("SCRAM-SHA-512"), **JKS) as admin:
        token = admin.create_delegation_token()
    secret = base64.b64encode(token.hmac).decode()
    line = f'{SCRAM_MODULE} required username="{token.token_id}" password="{secret}" tokenauth="true";'
    client = {**kafka.login("SCRAM-SHA-256"), **JKS, "sasl_jaas_config": line}
    del client["sasl_username"], client["sasl_password"]

    def logged_in() -> bool:
        try:
            with Admin(**client) as admin:
                return bool(admin.list_topics()) or True
        except KafkaError:
            return False

    eventually(logged_in, "the token is known")


TOOLS = [
    ("console-producer", "--topic", "tooled"),
    (
        "producer-perf-test",
        "--topic",
        "tooled",
        *["--num-records", "5", "--record-size", "10", "--throughput", "-1"],
    ),
    ("consumer-perf-test", "--topic", "tooled", "--num-records", "5"),
    ("verifiable-producer", "--topic", "tooled", "--max-messages", "5"),
    ("verifiable-consumer", "--topic", "tooled", "--group-id", "tooled", "--max-messages", "5"),
    ("console-consumer", "--topic", "tooled", "--from-beginning", "--max-messages", "1"),
    ("leader-election", "--election-type", "preferred", "--all-topic-partitions"),
    ("reassign-partitions", "--list"),
    ("replica-verification", "--topics-include", "tooled", "--once"),
    ("check", "--topic", "tooled"),
    ("topics", "--describe", "--topic", "tooled"),
    ("configs", "--describe", "--topic", "tooled"),
]


@pytest.mark.parametrize("kafka", ["kafka4"], indirect=True)
def test_tools_take_a_file_of_a_java_client(kafka: Secured, tmp_path: Path) -> None:
    """The file that people have for Kafka's tools, with a store of keytool."""
    file = tmp_path / "client.properties"
    login = f'{SCRAM_MODULE} required \\\n  username="alice" \\\n  password="{SECRET}";'
    file.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\n"
        f"sasl.jaas.config={login}\n"
        f"ssl.truststore.location={STORES / 'trust.jks'}\nssl.truststore.password={PASSWORD}\n"
    )
    with Admin(**kafka.login("PLAIN"), **JKS) as admin:
        admin.create_topics([NewTopic("tooled", 1)])
    where = ["--bootstrap-server", f"127.0.0.1:{kafka.login_port}", "--command-config", str(file)]
    for name, *flags in TOOLS:
        result = CliRunner().invoke(main, [name, *where, *flags], input="one\ntwo\n")
        # `check` ends with 1 because one replica is not safe.
        assert result.exit_code == (1 if name == "check" else 0), f"{name}: {result.output}"
        assert SECRET not in result.output
        assert PASSWORD not in result.output
    file.write_text(file.read_text().replace(SECRET, "a wrong one"))
    for name, *flags in TOOLS:
        result = CliRunner().invoke(main, [name, *where, *flags], input="one\ntwo\n")
        assert result.exit_code != 0, f"{name}: {result.output}"
        assert "Authentication failed" in result.output, name
        assert "Traceback" not in result.output
        assert "a wrong one" not in result.output
