"""Three broker processes on a real ZooKeeper keep their promises whatever fails, one fault after the other.

Partitions have one replica: those of a dead broker are unavailable until it is back, with all acknowledged
records. After each fault all brokers say what the tree says within two seconds, and no watch is lost.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.chaos.controllers import check_controllers
from tests.chaos.faulty_cluster import BROKERS, FaultyCluster
from tests.chaos.moving_brokers import MovingBrokers
from tests.chaos.nemesis import Nemesis
from tests.chaos.writer import SteadyWriter, check_writes
from tests.exactly_once.story import READERS, Cast
from tests.exactly_once.story import Story as TransactionStory
from tests.groups.story import Flavour
from tests.groups.story import Story as GroupStory
from tests.support.contents import read_with_client
from tests.support.scale import scale
from tests.support.wait import eventually, patience
from tidelog import Admin, NewTopic
from tidelog.errors import TopicAlreadyExists

TOPIC, PARTITIONS = "steady", 6
SEED = 0


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyCluster]:
    with FaultyCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])
        yield cluster


@pytest.fixture
def cluster(running: FaultyCluster) -> Iterator[FaultyCluster]:
    """The cluster of all tests; after each the controllers and the logs of the brokers are checked."""
    running.await_agreement()
    yield running
    running.await_agreement()
    running.check_watches()
    assert check_controllers(running.logs(), running.controller_epoch()) == []
    assert running.surprises() == []


@pytest.fixture
def writer(cluster: FaultyCluster, request: pytest.FixtureRequest) -> Iterator[SteadyWriter]:
    """Writes during the test. In the end every acknowledged record is there once, in order."""
    prefix = f"{request.node.name} "
    with SteadyWriter(cluster.bootstrap, TOPIC, PARTITIONS, prefix) as steady:
        steady.await_more(PARTITIONS, patience(20.0))
        yield steady
        steady.stop()
    cluster.await_agreement()
    assert check_writes(steady.acknowledged, read(cluster, prefix), steady.sent_anew) == []


def read(cluster: FaultyCluster, prefix: str) -> dict[tuple[str, int], list[str]]:
    """The records of a writer by partition."""
    found = read_with_client(cluster.bootstrap, [(TOPIC, index) for index in range(PARTITIONS)])
    values = {key: [(record.value or b"").decode() for record in log.records] for key, log in found.items()}
    return {key: [value for value in log if value.startswith(prefix)] for key, log in values.items()}


@contextmanager
def creation(cluster: FaultyCluster, topic: str) -> Iterator[None]:
    """A topic is created meanwhile. A client that has lost the answer may find that it exists."""

    def create() -> None:
        with Admin(bootstrap_servers=cluster.bootstrap) as admin, suppress(TopicAlreadyExists):
            admin.create_topics([NewTopic(topic, 3, 1)])

    with ThreadPoolExecutor(1) as pool:
        created = pool.submit(create)
        yield
        created.result(patience(60.0))


def elected_after(cluster: FaultyCluster, epoch: int) -> None:
    eventually(
        lambda: cluster.controller_epoch() > epoch and cluster.controller() is not None,
        f"a controller with an epoch above {epoch}",
        patience(20.0),
    )


def test_each_broker_is_killed_paused_and_stopped_in_turn(
    cluster: FaultyCluster, writer: SteadyWriter
) -> None:
    nemesis = Nemesis(cluster, SEED)
    for victim in nemesis.chance.sample(BROKERS, scale(1, 3)):
        cluster.kill(victim)
        nemesis.gone(victim)
        cluster.await_agreement()
        writer.await_more(4, patience(10.0))  # those that the other brokers lead
        cluster.start(victim)
        cluster.await_agreement()
        cluster.check_watches()
        nemesis.kill(victim)
        cluster.await_agreement()
        nemesis.stop(victim)
        cluster.await_agreement()
        nemesis.pause(victim)
        nemesis.pause(victim, wait=True)
        cluster.await_agreement()
        cluster.check_watches()
        if scale(0, 1):
            nemesis.isolate(victim)
            cluster.await_agreement()
            cluster.check_watches()
        writer.await_more(PARTITIONS, patience(10.0))


def test_connections_to_zookeeper_are_cut_amid_changes(cluster: FaultyCluster, writer: SteadyWriter) -> None:
    """The outcome of a write whose answer is lost is read back, and no watch is lost."""
    nemesis = Nemesis(cluster, SEED)
    for number in range(scale(8, 100)):
        broker_id = nemesis.chance.choice([*BROKERS, cluster.await_controller()])
        with creation(cluster, f"cut-{number}"):
            nemesis.cut(broker_id)
        if number % 4 == 3:
            cluster.await_agreement()
            cluster.check_watches()
    assert nemesis.faults["cut"] == scale(8, 100)
    writer.await_more(PARTITIONS, patience(10.0))


def test_sessions_expire_amid_changes(cluster: FaultyCluster, writer: SteadyWriter) -> None:
    """A broker whose session expired registers again; if it was the controller, there is a new one."""
    nemesis = Nemesis(cluster, SEED)
    for number in range(scale(4, 20)):
        epoch, controller = cluster.controller_epoch(), cluster.await_controller()
        broker_id = controller if number % 2 else nemesis.chance.choice(BROKERS)
        with creation(cluster, f"expired-{number}"):
            nemesis.expire(broker_id)
        if broker_id == controller:
            elected_after(cluster, epoch)
        cluster.await_agreement()
        cluster.check_watches()
    for broker_id in BROKERS:
        nemesis.expire(broker_id)
    cluster.await_agreement()
    writer.await_more(PARTITIONS, patience(10.0))


def test_controllers_are_killed_amid_changes(cluster: FaultyCluster, writer: SteadyWriter) -> None:
    """Another broker becomes the controller. Every second one comes back before its session expires."""
    nemesis = Nemesis(cluster, SEED)
    for number in range(scale(2, 20)):
        epoch, controller = cluster.controller_epoch(), cluster.await_controller()
        with creation(cluster, f"killed-{number}"):
            nemesis.kill(controller, wait=number % 2 == 1)
        elected_after(cluster, epoch)
        cluster.await_agreement()
        cluster.check_watches()
    writer.await_more(PARTITIONS, patience(10.0))


@pytest.mark.parametrize("fault", [signal.SIGSTOP, signal.SIGKILL], ids=["paused", "killed"])
def test_brokers_serve_clients_and_rest_while_zookeeper_is_away(
    cluster: FaultyCluster, writer: SteadyWriter, fault: signal.Signals
) -> None:
    """No loop runs hot, and all goes on when ZooKeeper is back."""
    cluster.server.signal(fault)
    began, used = time.monotonic(), cpu_seconds(cluster)
    writer.await_more(PARTITIONS, patience(10.0))
    away = scale(2, 20)
    eventually(lambda: time.monotonic() > began + away, f"{away} s are over", away + 10)
    busy = {id: now - used[id] for id, now in cpu_seconds(cluster).items()}
    if fault is signal.SIGSTOP:
        cluster.server.signal(signal.SIGCONT)
    else:
        cluster.server.wait()
        cluster.server.start()
        cluster.server.wait_ready()
    # The writer's records cost the brokers something, too.
    assert max(busy.values()) < 0.3 * (time.monotonic() - began), busy
    cluster.await_agreement()
    writer.await_more(PARTITIONS, patience(10.0))


def cpu_seconds(cluster: FaultyCluster) -> dict[int, float]:
    """The CPU time of each broker so far."""
    ticks = os.sysconf("SC_CLK_TCK")
    found = {}
    for broker_id in BROKERS:
        fields = Path(f"/proc/{cluster[broker_id].pid}/stat").read_text().rpartition(")")[2].split()
        found[broker_id] = (int(fields[11]) + int(fields[12])) / ticks
    return found


@pytest.mark.parametrize("seed", range(scale(1, 5)))
@pytest.mark.parametrize(
    "flavours",
    [
        [Flavour(client, "range") for client in ("kafka-python", "aiokafka")],
        *[[Flavour("confluent-kafka", how)] for how in ("consumer:uniform", "range")][: scale(1, 2)],
    ],
    ids=lambda flavours: f"{flavours[0].client}-{flavours[0].strategy}",
)
def test_groups_read_every_record_once_while_their_coordinators_move(
    cluster: FaultyCluster, tmp_path: Path, flavours: list[Flavour], seed: int
) -> None:
    name = f"{flavours[0]}-{seed}"  # the cluster has the topics of all these stories
    brokers = MovingBrokers(cluster, name)
    with GroupStory(brokers, tmp_path, flavours, name) as story:
        names = [story.join().name for _ in range(2)]
        story.group.wait_until_stable(names)
        story.go_on(5)
        story.restart_broker(kill=True)
        story.act(scale(1, 21))
        story.restart_broker(kill=False)
        story.go_on(5)
        story.finish()


@pytest.mark.parametrize("seed", range(scale(1, 5)))
def test_transactions_are_exactly_once_while_their_coordinators_move(
    cluster: FaultyCluster, tmp_path: Path, seed: int
) -> None:
    brokers = MovingBrokers(cluster, seed)
    cast = Cast(
        # Not confluent-kafka: send_offsets_to_transaction of librdkafka 2.16 has no time limit while it waits
        # for a group coordinator (tests/transactions/test_lost_coordinators.py).
        flavours=("by-hand", "two-phase", "kafka-python")[: scale(2, 3)],
        suffix=f"-{seed}",
        readers=READERS[: scale(1, 4)],
        last_readers=("confluent-kafka", "kafka-python")[: scale(1, 2)],
    )
    with TransactionStory(brokers, tmp_path, seed, cast) as story:
        story.go_on(10)
        story.kill_broker()
        story.act(scale(1, 30), commits=(0, 2, 10))
        story.stop_broker()
        story.go_on(10)
        story.finish()
