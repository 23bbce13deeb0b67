"""Real clients log in: ours, confluent-kafka, kafka-python and aiokafka, by every mechanism they have."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.support.sasl_broker import free_address, metric, sasl_broker
from tests.support.sasl_walks import Walk, oauth
from tests.support.wait import eventually
from tidelog import Admin, Consumer, NewTopic, Producer
from tidelog.clients.admin.users import ScramMechanism, UserScramCredentialUpsertion
from tidelog.errors import ErrorCode, SaslAuthenticationFailed
from tidelog.testing import Broker

KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
USERS = {
    "PLAIN": ("alice", "alice-secret"),
    "SCRAM-SHA-256": ("carol", "carol-secret"),
    "SCRAM-SHA-512": ("dave", "dave-secret"),
}


def token(**claims: object) -> str:
    now = time.time()
    everything = {"sub": "erin", "iat": now, "exp": now + 3600, "iss": "us", "aud": "kafka"} | claims
    return jwt.encode(everything, KEY, "RS256", headers={"kid": "key"})


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    path: Path = tmp_path_factory.mktemp("keys") / "jwks.json"
    public = jwt.algorithms.RSAAlgorithm.to_jwk(KEY.public_key(), as_dict=True)
    path.write_text(json.dumps({"keys": [public | {"kid": "key"}]}))
    broker = sasl_broker(
        **{
            "sasl.oauthbearer.jwks.endpoint.url": path.as_uri(),
            "tidelog.sasl.oauthbearer.allowed.urls": path.as_uri(),
            "sasl.oauthbearer.expected.issuer": "us",
            "sasl.oauthbearer.expected.audience": "kafka",
            "metrics.listener": free_address(),
            "listener.name.reauth.connections.max.reauth.ms": "1500",
        }
    )
    with Admin(bootstrap_servers=broker.address_of("PLAINTEXT")) as admin:
        admin.create_topics([NewTopic("demo", 1, 1)])
    yield broker
    broker.close()


def ours(
    broker: Broker, mechanism: str, user: str, password: str, listener: str = "SASL"
) -> dict[str, object]:
    return {
        "bootstrap.servers": broker.address_of(listener),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
    }


# Our clients


@pytest.mark.parametrize("mechanism", USERS)
def test_our_clients(broker: Broker, mechanism: str) -> None:
    settings = ours(broker, mechanism, *USERS[mechanism])
    with Producer(settings) as producer:
        producer.send("demo", b"ours").result(10)
    with Consumer(settings | {"group.id": mechanism, "auto.offset.reset": "earliest"}) as consumer:
        consumer.subscribe(["demo"])
        assert eventually(lambda: list(consumer.poll(1.0)), "records come")


@pytest.mark.parametrize(
    ("mechanism", "user"), [(name, user) for name in USERS for user in (USERS[name][0], "x")]
)
def test_a_wrong_password_and_an_unknown_user_get_the_same_answer(
    broker: Broker, mechanism: str, user: str
) -> None:
    with (
        pytest.raises(SaslAuthenticationFailed) as refused,
        Admin(ours(broker, mechanism, user, "wrong")) as admin,
    ):
        admin.describe_cluster(timeout=5)
    message = str(refused.value).partition(": ")[2]
    if mechanism == "PLAIN":
        assert message == "Authentication failed: Invalid username or password"
    else:
        assert message == (
            "Authentication failed during authentication due to invalid credentials with "
            f"SASL mechanism {mechanism}"
        )


def test_a_changed_password_holds_for_new_connections(broker: Broker) -> None:
    def change(password: str) -> None:
        with Admin(bootstrap_servers=broker.address_of("PLAINTEXT")) as admin:
            admin.alter_user_scram_credentials(
                [UserScramCredentialUpsertion("fred", password, ScramMechanism.SCRAM_SHA_256, 4096)]
            )

    change("before")
    with Admin(ours(broker, "SCRAM-SHA-256", "fred", "before")) as connected:
        assert connected.describe_cluster()
        change("after")
        assert connected.describe_cluster()  # an open connection stays
    with (
        pytest.raises(SaslAuthenticationFailed),
        Admin(ours(broker, "SCRAM-SHA-256", "fred", "before")) as late,
    ):
        late.describe_cluster(timeout=5)
    with Admin(ours(broker, "SCRAM-SHA-256", "fred", "after")) as new:
        assert new.describe_cluster()


def test_our_client_outlives_its_session(broker: Broker) -> None:
    with Producer(ours(broker, "PLAIN", *USERS["PLAIN"], listener="REAUTH")) as producer:
        ends = time.monotonic() + 2.5

        def sent_after_the_end() -> bool:
            producer.send("demo", b"again").result(10)
            return time.monotonic() > ends

        eventually(sent_after_the_end, "the session has ended")


# confluent-kafka


def confluent(broker: Broker, mechanism: str, listener: str = "SASL") -> dict[str, object]:
    settings: dict[str, object] = {
        "bootstrap.servers": broker.address_of(listener),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
    }
    if mechanism == "OAUTHBEARER":
        return settings | {"oauth_cb": lambda _: (token(), time.time() + 3600)}
    user, password = USERS[mechanism]
    return settings | {"sasl.username": user, "sasl.password": password}


@pytest.mark.parametrize("mechanism", [*USERS, "OAUTHBEARER"])
def test_confluent_kafka(broker: Broker, mechanism: str) -> None:
    from confluent_kafka import Producer as ConfluentProducer

    producer = ConfluentProducer(confluent(broker, mechanism))
    problems: list[object] = []
    producer.poll(0)  # asks for a token
    producer.produce("demo", b"confluent", on_delivery=lambda error, _: problems.append(error))
    assert producer.flush(10) == 0
    assert problems == [None]


def test_confluent_kafka_with_a_wrong_password(broker: Broker) -> None:
    from confluent_kafka import KafkaError as ConfluentError
    from confluent_kafka import Producer as ConfluentProducer

    errors: list[ConfluentError] = []
    settings = confluent(broker, "SCRAM-SHA-256") | {"sasl.password": "wrong", "error_cb": errors.append}
    producer = ConfluentProducer(settings | {"log_level": 0})

    def refused() -> bool:
        producer.poll(0.1)
        return any(error.code() == ConfluentError._AUTHENTICATION for error in errors)

    eventually(refused, "the client reports the refusal")


def test_confluent_kafka_re_authenticates_on_its_connection(broker: Broker) -> None:
    from confluent_kafka import Producer as ConfluentProducer

    before = reauthentications(broker)
    producer = ConfluentProducer(confluent(broker, "PLAIN", "REAUTH"))
    problems: list[object] = []

    def renewed() -> bool:
        producer.produce("demo", b"again", on_delivery=lambda error, _: problems.append(error))
        assert producer.flush(10) == 0
        return reauthentications(broker) >= before + 2

    eventually(renewed, "the session was renewed twice")
    assert set(problems) == {None}


def reauthentications(broker: Broker) -> float:
    return metric(broker, "successful_reauthentication_total", "REAUTH")


# kafka-python and aiokafka


@pytest.mark.parametrize("mechanism", [*USERS, "OAUTHBEARER"])
def test_kafka_python(broker: Broker, mechanism: str) -> None:
    from kafka.net.sasl.oauth import AbstractTokenProvider

    import kafka

    class Provider(AbstractTokenProvider):  # type: ignore[misc]
        def token(self) -> str:
            return token()

    settings: dict[str, object] = {
        "bootstrap_servers": broker.address_of("SASL"),
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
    }
    if mechanism == "OAUTHBEARER":
        settings["sasl_oauth_token_provider"] = Provider()
    else:
        settings["sasl_plain_username"], settings["sasl_plain_password"] = USERS[mechanism]
    producer = kafka.KafkaProducer(**settings)
    assert producer.send("demo", b"kafka-python").get(10).topic == "demo"
    producer.close()


@pytest.mark.parametrize("mechanism", [*USERS, "OAUTHBEARER"])
def test_aiokafka(broker: Broker, mechanism: str) -> None:
    import aiokafka
    from aiokafka.abc import AbstractTokenProvider

    class Provider(AbstractTokenProvider):  # type: ignore[misc]
        async def token(self) -> str:
            return token()

    settings: dict[str, object] = {
        "bootstrap_servers": broker.address_of("SASL"),
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
    }
    if mechanism == "OAUTHBEARER":
        settings["sasl_oauth_token_provider"] = Provider()
    else:
        settings["sasl_plain_username"], settings["sasl_plain_password"] = USERS[mechanism]

    async def send() -> str:
        producer = aiokafka.AIOKafkaProducer(**settings)
        await producer.start()
        try:
            sent = await producer.send_and_wait("demo", b"aiokafka")
            return str(sent.topic)
        finally:
            await producer.stop()

    assert asyncio.run(send()) == "demo"


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_kafka_python_and_aiokafka_with_a_wrong_password(broker: Broker, mechanism: str) -> None:
    import aiokafka
    import aiokafka.errors
    import kafka.errors

    settings: dict[str, object] = {
        "bootstrap_servers": broker.address_of("SASL"),
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": USERS[mechanism][0],
        "sasl_plain_password": "wrong",
    }
    # After a handshake of version 0 a refusal has no words: Kafka closes the connection as well.
    with pytest.raises(kafka.errors.KafkaTimeoutError):
        kafka.KafkaProducer(**settings, bootstrap_timeout_ms=1000)

    async def log_in() -> None:
        producer = aiokafka.AIOKafkaProducer(**settings)
        try:
            await producer.start()
        finally:
            await producer.stop()

    # aiokafka tries every broker of its list, logs the refusal of each, and then says this.
    with pytest.raises(aiokafka.errors.KafkaConnectionError):
        asyncio.run(log_in())
    assert metric(broker, "failed_authentication_total", "SASL") >= 2


@pytest.mark.parametrize(
    "claims", [{"iss": "them"}, {"aud": "others"}, {"exp": 1000}, {"iat": time.time() + 600}]
)
def test_a_token_with_wrong_claims_is_refused(broker: Broker, claims: dict[str, object]) -> None:
    walk = Walk(broker.address_of("SASL"))
    walk.handshake("OAUTHBEARER")
    walk.authenticate(oauth(token(**claims)))
    walk.authenticate(b"\x01")
    walk.close()
    status = '{"status":"invalid_token"}'
    assert [answer.get("authBytes") for answer in walk.answers[1:] if isinstance(answer, dict)] == [
        status,
        "",
    ]
    refused = walk.answers[-1]
    assert isinstance(refused, dict)
    assert (refused["errorCode"], refused["errorMessage"]) == (ErrorCode.SASL_AUTHENTICATION_FAILED, status)


def test_no_secret_is_logged(broker: Broker) -> None:
    lines = "\n".join(map(str, broker.log_lines()))
    for _, password in USERS.values():
        assert password not in lines
    assert "eyJ" not in lines
