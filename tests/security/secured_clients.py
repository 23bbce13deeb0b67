"""The clients, users and rules of tests in which the security of a cluster changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from tests.chaos.writer import check_writes
from tests.security.running_clients import (
    CONSUMER,
    ConfluentReader,
    ConfluentWriter,
    Copier,
    OurReader,
    OurWriter,
    Progress,
    Reader,
    Running,
    Writer,
    await_denied,
    await_progress,
)
from tests.support import secure
from tests.support.wait import eventually, patience
from tidelog import Admin, Consumer, TopicPartition
from tidelog.clients.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclResourceType,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from tidelog.clients.errors import SaslAuthenticationFailed

TOPIC, COPY, PARTITIONS = "orders", "copied-orders", 3
USER = "alice"
READERS, NEW_READERS, COPY_ID = "readers", "new-readers", "copier"
"""The groups of the two protocols; the copy loop has one name for its group and its transactions."""


def may(
    operation: AclOperation, name: str, kind: AclResourceType = AclResourceType.TOPIC, user: str = USER
) -> AclBinding:
    return AclBinding(kind, name, f"User:{user}", operation)


MAY_WRITE, MAY_READ = may(AclOperation.WRITE, TOPIC), may(AclOperation.READ, TOPIC)
MAY_READ_IN_GROUP = may(AclOperation.READ, READERS, AclResourceType.GROUP)
MAY_COMMIT = may(AclOperation.WRITE, COPY_ID, AclResourceType.TRANSACTIONAL_ID)
RULES = [
    MAY_WRITE,
    MAY_READ,
    MAY_READ_IN_GROUP,
    MAY_COMMIT,
    may(AclOperation.WRITE, COPY),
    may(AclOperation.READ, NEW_READERS, AclResourceType.GROUP),
    may(AclOperation.READ, COPY_ID, AclResourceType.GROUP),
]


class Cast:
    """The clients of one password: two producers, members of a group of each protocol, and a copy loop."""

    def __init__(self, bootstrap: str, generation: int, password: str) -> None:
        common = {"bootstrap.servers": bootstrap}
        ours = {
            **secure.properties(),
            **secure.jaas(USER, password),
            **common,
            "client.id": f"ours-{generation}",
            "request.timeout.ms": 5000,
        }
        theirs = {
            **secure.confluent_settings(),
            **common,
            "sasl.username": USER,
            "sasl.password": password,
            "socket.timeout.ms": 5000,
        }
        self.our_writer = OurWriter(f"our writer {generation}", TOPIC, PARTITIONS, ours)
        their_writer = ConfluentWriter(f"their writer {generation}", TOPIC, PARTITIONS, theirs)
        self.writers: list[Writer] = [self.our_writer, their_writer]
        self.group_readers: list[Reader] = [
            OurReader(f"our reader {generation}", TOPIC, READERS, ours),
            ConfluentReader(f"their reader {generation}", TOPIC, READERS, theirs),
        ]
        self.readers: list[Reader] = [
            *self.group_readers,
            OurReader(f"our new reader {generation}", TOPIC, NEW_READERS, ours, CONSUMER),
            ConfluentReader(f"their new reader {generation}", TOPIC, NEW_READERS, theirs, CONSUMER),
        ]
        self.copier = Copier(f"copier {generation}", TOPIC, COPY, COPY_ID, ours)

    @property
    def everyone(self) -> list[Running]:
        return [*self.writers, *self.readers, self.copier]

    def start(self) -> None:
        for client in self.everyone:
            client.start()

    def stop(self) -> None:
        for client in self.everyone:
            client.stop()

    def go_on(self) -> None:
        """Wait until each client has done more."""
        await_progress(self.everyone, patience(60.0))

    def throttled(self) -> float:
        return self.our_writer.producer.metrics().get("produce-throttle-time-max", 0.0)


@contextmanager
def ended(casts: Sequence[Cast]) -> Iterator[None]:
    """Let the clients of a test that fails end."""
    try:
        yield
    finally:
        for client in (client for cast in casts for client in cast.everyone):
            client.end()


# --- changes


def set_password(admin: Admin, user: str, password: str) -> None:
    credential = UserScramCredentialUpsertion(user, password, ScramMechanism.SCRAM_SHA_512, 4096)
    admin.alter_user_scram_credentials([credential])


def logs_in(address: str, user: str, password: str) -> bool:
    settings = {**secure.properties(), **secure.jaas(user, password), "bootstrap.servers": address}
    try:
        with Admin(settings) as admin:
            admin.describe_cluster(timeout=30)
    except SaslAuthenticationFailed:
        return False
    return True


def await_login(addresses: Iterable[str], user: str, password: str, old: str | None = None) -> None:
    """Each broker takes the new password soon, and the old one no more."""
    for address in addresses:
        eventually(lambda address=address: logs_in(address, user, password), f"{address} knows {user}")
        assert old is None or not logs_in(address, user, old), f"{address} takes the old password"


def remove_rule(admin: Admin, rule: AclBinding) -> None:
    wanted = AclBindingFilter(rule.resource_type, rule.name, rule.principal, rule.operation)
    removed = admin.delete_acls([wanted])
    assert removed


def take_rule_away_and_back(admin: Admin, cast: Cast, rule: AclBinding, refused: Sequence[Progress]) -> None:
    """All clients go on when the rule is there again."""
    remove_rule(admin, rule)
    await_denied(refused, patience(30.0))
    admin.create_acls([rule])
    cast.go_on()


def set_and_remove_quota(admin: Admin, cast: Cast) -> None:
    entity = (("user", USER),)
    admin.alter_client_quotas({entity: {"producer_byte_rate": 300.0}})
    eventually(lambda: cast.throttled() > 0, "the producer is throttled", patience(30.0))
    admin.alter_client_quotas({entity: {"producer_byte_rate": None}})
    cast.go_on()


# --- what is there in the end


def records_of(bootstrap: str, topic: str) -> dict[tuple[str, int], list[str]]:
    """The committed records of a topic by partition."""
    found: dict[tuple[str, int], list[str]] = {(topic, index): [] for index in range(PARTITIONS)}
    settings = {
        **secure.properties(),
        "bootstrap.servers": bootstrap,
        "isolation.level": "read_committed",
    }
    with Consumer[bytes, bytes](settings) as consumer:
        partitions = [TopicPartition(topic, index) for index in range(PARTITIONS)]
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        ends = consumer.end_offsets(partitions)

        def all_read() -> bool:
            for record in consumer.poll(1.0):
                found[record.topic, record.partition].append((record.value or b"").decode())
            return all(consumer.position(partition) >= ends[partition] for partition in partitions)

        eventually(all_read, f"{topic} is read", patience(30.0))
    return found


def finish(bootstrap: str, casts: Sequence[Cast]) -> None:
    """End the last cast: nothing acknowledged is lost or there twice, read by each group, and copied once."""
    last = casts[-1]
    for writer in last.writers:
        writer.stop()
    acknowledged: set[str] = set()
    for writer in (writer for cast in casts for writer in cast.writers):
        acknowledged.update(*writer.acknowledged.values())
    for what, sets in _seen_by(casts).items():
        eventually(
            lambda sets=sets: acknowledged <= set[str]().union(*(set(seen) for seen in sets)),
            f"{what}: every acknowledged record",
            patience(60.0),
        )
    for client in (*last.readers, last.copier):
        client.stop()
    found = records_of(bootstrap, TOPIC)
    for writer in (writer for cast in casts for writer in cast.writers):
        assert check_writes(writer.acknowledged, found) == []
    copied = records_of(bootstrap, COPY)
    in_both = {(COPY, index): found[TOPIC, index] for index in range(PARTITIONS)}
    assert check_writes(in_both, copied) == []


def _seen_by(casts: Sequence[Cast]) -> Mapping[str, list[set[str]]]:
    """What the groups have read and the copy loops have copied, by what it is."""
    old = [reader.read for cast in casts for reader in cast.group_readers]
    new = [reader.read for cast in casts for reader in cast.readers if reader not in cast.group_readers]
    return {READERS: old, NEW_READERS: new, COPY_ID: [cast.copier.copied for cast in casts]}
