"""A consumer that loses a right is told so by `poll`, and goes on when the right is there again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.sasl_broker import PLAIN_MODULE, sasl_broker
from tests.support.sasl_walks import PLAIN_USERS
from tests.support.wait import eventually
from tidelog import Admin, Consumer
from tidelog.clients.admin import AclBinding, AclBindingFilter, AclOperation, AclResourceType
from tidelog.errors import GroupAuthorizationFailed, KafkaError, TopicAuthorizationFailed
from tidelog.testing import Broker

USER, PASSWORD = next(iter(PLAIN_USERS.items()))
TOPIC = AclBinding(AclResourceType.TOPIC, "t", f"User:{USER}", AclOperation.READ)
GROUP = AclBinding(AclResourceType.GROUP, "g-classic", f"User:{USER}", AclOperation.READ)
NEW_GROUP = AclBinding(AclResourceType.GROUP, "g-consumer", f"User:{USER}", AclOperation.READ)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    broker = sasl_broker(
        **{
            "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
            "super.users": "User:ANONYMOUS",
            "group.initial.rebalance.delay.ms": 0,
            "group.consumer.min.heartbeat.interval.ms": 100,
            "group.consumer.heartbeat.interval.ms": 100,
        }
    )
    with broker:
        broker.create_topic("t")
        yield broker


@pytest.fixture
def admin(broker: Broker) -> Iterator[Admin]:
    with Admin(bootstrap_servers=broker.address_of("PLAINTEXT")) as admin:
        admin.create_acls([TOPIC, GROUP, NEW_GROUP])
        yield admin


def reads_on(broker: Broker, consumer: Consumer[bytes, bytes], value: str) -> None:
    broker.produce("t", value)

    def read() -> bool:
        try:
            return any(record.value == value.encode() for record in consumer.poll(0.2))
        except (TopicAuthorizationFailed, GroupAuthorizationFailed):
            return False  # of a heartbeat or fetch before the right was there again

    eventually(read, f"{value} is read", 30.0)


def settings(broker: Broker, protocol: str) -> dict[str, object]:
    return {
        "bootstrap.servers": broker.address_of("SASL"),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": f'{PLAIN_MODULE} required username="{USER}" password="{PASSWORD}";',
        "group.id": f"g-{protocol}",
        "group.protocol": protocol,
        **({"heartbeat.interval.ms": 100} if protocol == "classic" else {}),
        "metadata.max.age.ms": 200,
        "retry.backoff.ms": 20,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }


def remove(admin: Admin, rule: AclBinding) -> None:
    assert admin.delete_acls([AclBindingFilter(rule.resource_type, rule.name)])


def await_denied(consumer: Consumer[bytes, bytes], error: type[KafkaError]) -> None:
    def denied() -> bool:
        try:
            consumer.poll(0.2)
        except error:
            return True
        return False

    eventually(denied, "poll says what is missing", 30.0)


# Without the right to read in its group, a member of the new protocol is no member any more, as with Kafka's
# client. So only the right on the topic comes back there.
@pytest.mark.parametrize(
    ("protocol", "lost", "error"),
    [
        ("classic", GROUP, GroupAuthorizationFailed),
        ("classic", TOPIC, TopicAuthorizationFailed),
        ("consumer", TOPIC, TopicAuthorizationFailed),
    ],
    ids=["classic-group", "classic-topic", "consumer-topic"],
)
def test_a_consumer_goes_on_when_its_right_is_back(
    broker: Broker, admin: Admin, protocol: str, lost: AclBinding, error: type[KafkaError]
) -> None:
    with Consumer[bytes, bytes](settings(broker, protocol)) as consumer:
        consumer.subscribe(["t"])
        reads_on(broker, consumer, f"first of {protocol}, {lost.name}")
        remove(admin, lost)
        await_denied(consumer, error)
        await_denied(consumer, error)
        admin.create_acls([lost])
        reads_on(broker, consumer, f"second of {protocol}, {lost.name}")


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_consumer_that_starts_without_its_right_waits_for_it(
    broker: Broker, admin: Admin, protocol: str
) -> None:
    remove(admin, TOPIC)
    with Consumer[bytes, bytes](settings(broker, protocol)) as consumer:
        consumer.subscribe(["t"])
        await_denied(consumer, TopicAuthorizationFailed)
        await_denied(consumer, TopicAuthorizationFailed)
        admin.create_acls([TOPIC])
        reads_on(broker, consumer, f"late {protocol}")
