"""Passwords, certificates, authorities, rules and quotas change while brokers are killed, stopped and paused.

Producers, groups of both protocols and a copy loop in transactions go on meanwhile. Each broker gets another
login at the others and a certificate of another authority. Nothing acknowledged is lost or there twice.
A client that lost a right is refused by every broker, also by one that was away when the right was removed.
"""

from __future__ import annotations

import random
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.chaos.controllers import check_controllers
from tests.chaos.faulty_cluster import BROKERS, FaultyCluster
from tests.chaos.nemesis import Nemesis
from tests.security.secured_clients import (
    COPY,
    MAY_COMMIT,
    MAY_READ,
    MAY_READ_IN_GROUP,
    MAY_WRITE,
    PARTITIONS,
    RULES,
    TOPIC,
    USER,
    Cast,
    await_login,
    ended,
    finish,
    logs_in,
    set_and_remove_quota,
    set_password,
    take_rule_away_and_back,
)
from tests.security.served_certificates import accepts, serial_in, serial_of
from tests.security.visitor import Visitor
from tests.support import secure
from tests.support.broker import Broker
from tests.support.scale import scale
from tests.support.wait import eventually, patience
from tidelog import Admin, NewTopic
from tidelog.clients.admin import (
    AclBinding,
    AclOperation,
    AclResourceType,
    ScramMechanism,
    UserScramCredentialDeletion,
)
from tidelog.errors import KafkaError
from tidelog.security.certificate_renewal import NEXT_AUTHORITY_KEY, CertificateRenewal
from tidelog.security.certificates import CertificateAuthority
from tidelog.security.security_folder import ADMIN_USER, AUTHORITY_FILE, BROKER_USER, MECHANISM, PREFIX

BROKER_LOGIN = f"{PREFIX}.{MECHANISM.lower()}.sasl.jaas.config"
SETTINGS = {
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "min.insync.replicas": "2",
    "replica.lag.time.max.ms": "2000",
    "connection.failed.authentication.delay.ms": "20",
    "connections.max.reauth.ms": "15000",
    "delegation.token.secret.key": "the key of all tokens",
}
FAULTS = ("kill", "stop", "pause")

only_secured = pytest.mark.skipif(
    not secure.is_secured(), reason="takes a minute: one of the tests of `make test-secure`"
)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[FaultyCluster]:
    with FaultyCluster(tmp_path, SETTINGS, secured=True) as running:
        yield running


class Certificates:
    """A new authority in three steps; `await_step` waits until the brokers have the files of the last one."""

    def __init__(self, cluster: FaultyCluster, folder: Path) -> None:
        self._cluster = cluster
        self._files = secure.security_folder().path
        self._renewal = CertificateRenewal(self._files)
        self._old_client = folder / "old-client.pem"
        self._new_client = folder / "new-client.pem"
        self.steps = [self.add_authority, self.renew, self.drop_authority]

    def add_authority(self) -> None:
        """Each broker comes to accept a client of the new authority."""
        shutil.copy(self._files / "client.pem", self._old_client)
        self._renewal.add_authority(days=2)
        key, trusted = (self._files / name for name in (NEXT_AUTHORITY_KEY, AUTHORITY_FILE))
        pair = CertificateAuthority.load(key.read_bytes(), trusted.read_bytes(), 1).client("new")
        self._new_client.write_bytes(pair.key_pem() + pair.certificate_pem())

    def renew(self) -> None:
        """Each broker comes to show its new certificate."""
        self._renewal.renew(days=1)

    def drop_authority(self) -> None:
        """Each broker comes to refuse a client of the old authority."""
        self._renewal.drop_authority()

    def await_step(self) -> None:
        secure.forget_keys()
        for broker_id in BROKERS:
            eventually(
                lambda id=broker_id: self._is_done(id), f"broker {broker_id} has new files", patience(20)
            )

    def _is_done(self, broker_id: int) -> bool:
        broker = self._cluster[broker_id]
        if len(self.steps) == 2:
            return accepts(broker, self._new_client)
        if len(self.steps) == 1:
            return serial_of(broker) == serial_in(self._files / f"broker-{broker_id}.pem")
        return not accepts(broker, self._old_client)


class Story:
    """Rounds of a fault each, with changes before it, meanwhile and after it, all drawn from a seed."""

    def __init__(self, cluster: FaultyCluster, folder: Path, seed: int) -> None:
        self.cluster = cluster
        self.chance = random.Random(seed)
        self.nemesis = Nemesis(cluster, seed)
        self.casts: list[Cast] = []
        self._folder = folder
        self.logins = 0
        self._passwords = 0
        with self.admin() as admin:
            admin.create_topics([NewTopic(topic, PARTITIONS, 3) for topic in (TOPIC, COPY)])
            admin.create_acls(RULES)
            self.visitor = Visitor(admin)
        self.check_visitor()

    @contextmanager
    def admin(self, without: int | None = None) -> Iterator[Admin]:
        """An admin who knows all running brokers but one."""
        known = [self.cluster[id].bootstrap for id in self.cluster.running if id != without]
        settings = {"bootstrap.servers": ",".join(known), "default.api.timeout.ms": 60_000}
        with Admin({**settings, **secure.properties(ADMIN_USER)}) as admin:
            yield admin

    # --- changes

    def change_password(self) -> None:
        """New clients log in with the new password. Those with the old one could not authenticate again."""
        if self.casts:
            self.casts[-1].stop()
        self._passwords += 1
        password = f"word-{self._passwords}"
        with self.admin() as admin:
            set_password(admin, USER, password)
        await_login([self.cluster[id].bootstrap for id in BROKERS], USER, password)
        self.casts.append(Cast(self.cluster.bootstrap, self._passwords, password))
        self.casts[-1].start()
        self.casts[-1].go_on()

    def begin_broker_login(self) -> str:
        """Another user with the rights of a broker, for each broker from its next start on."""
        self.logins += 1
        user, password = f"broker-login-{self.logins}", f"between-{self.logins}"
        rights = (AclOperation.CLUSTER_ACTION, AclOperation.CREATE)
        with self.admin() as admin:
            set_password(admin, user, password)
            kind = AclResourceType.CLUSTER
            admin.create_acls([AclBinding(kind, "kafka-cluster", f"User:{user}", right) for right in rights])
        for broker_id in BROKERS:
            self.cluster[broker_id].settings[BROKER_LOGIN] = secure.jaas(user, password)["sasl.jaas.config"]
        return user

    def end_broker_login(self, user: str, password: str) -> None:
        """Remove the credential of the former user of the brokers."""
        with self.admin() as admin:
            admin.alter_user_scram_credentials(
                [UserScramCredentialDeletion(user, ScramMechanism.SCRAM_SHA_512)]
            )
        for broker_id in BROKERS:
            address = self.cluster[broker_id].bootstrap
            eventually(
                lambda address=address: not logs_in(address, user, password), f"{address} forgets {user}"
            )

    def change_visitor(self, away: int | None) -> None:
        """Each change is known to every broker but the one that is away."""
        changes = self.visitor.changes
        self.chance.shuffle(changes)
        for change in changes:
            with self.admin(without=away) as admin:
                change(admin)
            self.check_visitor(away)

    def check_visitor(self, away: int | None = None) -> None:
        for broker_id in BROKERS:
            if broker_id != away:
                self._await_visitor(self.cluster[broker_id])

    def _await_visitor(self, broker: Broker) -> None:
        try:
            eventually(lambda: not self.visitor.problems(broker), "the changes are known", patience(10.0))
        except AssertionError as error:
            error.add_note(f"{broker.bootstrap}: {self.visitor.problems(broker)}")
            raise

    def change_rights(self, away: int, count: int) -> None:
        """The clients lose rights and get them back."""
        cast = self.casts[-1]
        everything = [
            (MAY_WRITE, cast.writers),
            (MAY_READ, [*cast.readers, cast.copier]),
            (MAY_READ_IN_GROUP, cast.group_readers),
            (MAY_COMMIT, [cast.copier]),
        ]
        with self.admin(without=away) as admin:
            for rule, refused in self.chance.sample(everything, count):
                take_rule_away_and_back(admin, cast, rule, refused)
            set_and_remove_quota(admin, cast)

    # --- faults

    def fault(self, kind: str, broker_id: int) -> None:
        """What changed while a broker was away is known to it when it answers again."""
        getattr(self, kind)(broker_id)
        self.await_recovery()

    def kill(self, broker_id: int) -> None:
        self.cluster.kill(broker_id)
        self.nemesis.gone(broker_id)
        self._change_everything(broker_id)
        self._start(broker_id)

    def stop(self, broker_id: int) -> None:
        self.cluster.stop(broker_id)
        self._change_everything(broker_id)
        self._start(broker_id)

    def pause(self, broker_id: int) -> None:
        """Until the session has expired. Then the broker is restarted for its new login."""
        self.cluster.pause(broker_id)
        try:
            self.nemesis.gone(broker_id)
            self.change_visitor(broker_id)
        finally:
            self.cluster.resume(broker_id)
        self._await_visitor(self.cluster[broker_id])
        self.await_recovery()
        self.cluster.kill(broker_id)
        self._start(broker_id)

    def expire(self, broker_id: int) -> None:
        """Changes that come while the session of a broker ends."""
        self.nemesis.expire(broker_id)
        self.change_visitor(None)

    def zookeeper_away(self, _: int) -> None:
        """Logins, rules and quotas count as before while no broker can ask ZooKeeper."""
        self.cluster.server.signal(signal.SIGSTOP)
        try:
            found = {id: self.visitor.problems(self.cluster[id]) for id in BROKERS}
        finally:
            self.cluster.server.signal(signal.SIGCONT)
        assert found == {id: [] for id in BROKERS}

    def _change_everything(self, away: int) -> None:
        self.change_visitor(away)
        self.change_rights(away, scale(2, 4))

    def _start(self, broker_id: int) -> None:
        self.cluster.start(broker_id)
        assert self.visitor.problems(self.cluster[broker_id]) == [], "known before the first answer"

    # --- after a fault

    def await_recovery(self) -> None:
        self.cluster.await_agreement()
        eventually(lambda: self._out_of_sync() == [], "every replica is in sync", patience(30.0), 0.1)
        self.casts[-1].go_on()

    def _out_of_sync(self) -> list[str]:
        try:
            with self.admin() as admin:
                topics = admin.describe_topics(admin.list_topics(list_internal=True))
        except KafkaError as error:
            return [str(error)]
        return [
            f"{topic.name}-{partition.partition}"
            for topic in topics.values()
            for partition in topic.partitions
            if set(partition.isr) != set(partition.replicas)
        ]


@pytest.mark.parametrize(
    "seed",
    [pytest.param(0, marks=only_secured), *(pytest.param(n, marks=pytest.mark.long) for n in range(1, 6))],
)
def test_security_changes_amid_faults(cluster: FaultyCluster, tmp_path: Path, seed: int) -> None:
    story = Story(cluster, tmp_path, seed)
    with ended(story.casts):
        _change_everything(cluster, story, tmp_path)


def _change_everything(cluster: FaultyCluster, story: Story, tmp_path: Path) -> None:
    login, password = BROKER_USER, secure.password_of_broker()
    for _ in range(scale(1, 3)):
        victims, faults = [*BROKERS], [*FAULTS]
        story.chance.shuffle(victims)
        story.chance.shuffle(faults)
        next_login = story.begin_broker_login()
        certificates = Certificates(cluster, tmp_path)
        for victim, fault in zip(victims, faults, strict=True):
            certificates.steps.pop(0)()
            story.change_password()
            story.fault(fault, victim)
            certificates.await_step()
        for fault in ("expire", "zookeeper_away"):
            story.fault(fault, story.chance.choice(BROKERS))
        story.end_broker_login(login, password)
        login, password = next_login, f"between-{story.logins}"
        story.fault("kill", cluster.await_controller())
    finish(cluster.bootstrap, story.casts)
    assert check_controllers(cluster.logs(), cluster.controller_epoch()) == []
    assert cluster.surprises() == []
