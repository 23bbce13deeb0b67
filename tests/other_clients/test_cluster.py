"""Three brokers as clients of other languages see them, whichever broker they ask first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest

from tests.other_clients.confluent import Confluent
from tests.other_clients.programs import MODES, AdminClient, OtherClient, Task, admin_clients, all_clients
from tests.support.cluster import ClusterOfBrokers
from tests.support.fixtures import new_name
from tests.support.wait import eventually
from tidelog import Admin, Consumer, NewTopic, Producer, TopicPartition
from tidelog.errors import KafkaError

__all__ = ["new_name"]

NewName = Callable[[str], str]
Chosen = TypeVar("Chosen", bound=OtherClient)

BROKERS = (1, 2, 3)
PARTITIONS = 6
REPLICAS = 3
COUNT = 20

CLIENTS: list[OtherClient] = [Confluent(), *all_clients()]
ADMINS: list[AdminClient] = [Confluent(), *admin_clients()]


def ready(client: Chosen) -> Chosen:
    """The client, built; the test is skipped if its tools are not installed."""
    reason = client.missing()
    if reason is not None:
        pytest.skip(reason)
    client.build()
    return client


@pytest.fixture(scope="module", params=CLIENTS, ids=lambda client: client.name)
def client(request: pytest.FixtureRequest) -> OtherClient:
    chosen: OtherClient = request.param
    return ready(chosen)


@pytest.fixture(scope="module", params=ADMINS, ids=lambda client: client.name)
def admin_client(request: pytest.FixtureRequest) -> AdminClient:
    chosen: AdminClient = request.param
    return ready(chosen)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterOfBrokers]:
    with ClusterOfBrokers(tmp_path_factory.mktemp("cluster"), len(BROKERS)) as cluster:
        yield cluster


@pytest.fixture
def topic(cluster: ClusterOfBrokers, new_name: NewName) -> str:
    """Partitions with three replicas and leaders on all brokers, that all brokers know."""
    name = new_name("spread")
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topics([NewTopic(name, PARTITIONS, REPLICAS)])

    def known() -> bool:
        return all(set(leaders(cluster, broker, name).values()) == set(BROKERS) for broker in BROKERS)

    eventually(known, "leaders on all brokers")
    return name


def leaders(cluster: ClusterOfBrokers, broker: int, topic: str) -> dict[int, int | None]:
    """The leaders of partitions, as one broker says."""
    with Admin(bootstrap_servers=cluster[broker].bootstrap) as admin:
        try:
            found = admin.describe_topics([topic])[topic]
        except KafkaError:
            return {}
    return {entry.partition: entry.leader for entry in found.partitions}


def read_all(cluster: ClusterOfBrokers, topic: str, count: int) -> list[list[str]]:
    """The values of each partition, without those of aborted transactions."""
    values: list[list[str]] = [[] for _ in range(PARTITIONS)]
    with Consumer(bootstrap_servers=cluster.bootstrap, isolation_level="read_committed") as consumer:
        consumer.assign([TopicPartition(topic, partition) for partition in range(PARTITIONS)])
        consumer.seek_to_beginning()

        def arrived() -> bool:
            for record in consumer.poll(0.2):
                assert record.value is not None
                values[record.partition].append(record.value.decode())
            return sum(map(len, values)) >= count

        eventually(arrived, f"{count} records", 30, 0)
    return values


def write_all(cluster: ClusterOfBrokers, task: Task, what: str) -> None:
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        for partition, values in enumerate(task.values(what)):
            for value in values:
                producer.send(task.topic, value.encode(), partition=partition)
        producer.flush()


@pytest.mark.parametrize("broker", BROKERS)
def test_any_broker_names_all_brokers_the_controller_and_all_leaders(
    cluster: ClusterOfBrokers, client: OtherClient, topic: str, broker: int
) -> None:
    seen = client.metadata(Task(cluster[broker].bootstrap, topic))
    assert seen.brokers == set(BROKERS)
    assert seen.controller == cluster.controller
    assert seen.leaders == leaders(cluster, broker, topic)


@pytest.mark.parametrize(("broker", "mode"), list(zip(BROKERS, MODES, strict=True)))
def test_records_reach_the_leaders_on_all_brokers_in_order(
    cluster: ClusterOfBrokers, client: OtherClient, topic: str, broker: int, mode: str
) -> None:
    task = Task(cluster[broker].bootstrap, topic, mode=mode, partitions=PARTITIONS, count=COUNT)
    client.produce(task)
    assert read_all(cluster, topic, COUNT * PARTITIONS) == task.values(mode)


@pytest.mark.parametrize("broker", BROKERS)
def test_two_members_of_a_group_share_the_partitions_of_all_brokers(
    cluster: ClusterOfBrokers, client: OtherClient, topic: str, new_name: NewName, broker: int
) -> None:
    written = Task("", topic, partitions=PARTITIONS, count=COUNT)
    task = Task(cluster[broker].bootstrap, topic, group=new_name("group"), count=2 * COUNT * PARTITIONS)
    write_all(cluster, written, "before")
    with (
        ThreadPoolExecutor(1) as pool,
        Admin(bootstrap_servers=cluster.bootstrap) as admin,
    ):
        reading = pool.submit(client.consume, task)

        def both_have_partitions() -> bool:
            if reading.done():
                reading.result()
            try:
                found = admin.describe_consumer_groups([task.group])[task.group]
            except KafkaError:
                return False
            return sorted(len(member.assignment) for member in found.members) == [3, 3]

        eventually(both_have_partitions, "two members with three partitions each", 60, 0.2)
        write_all(cluster, written, "after")
        reads = reading.result()
        offsets = admin.list_consumer_group_offsets([task.group])[task.group]
    expected = [a + b for a, b in zip(written.values("before"), written.values("after"), strict=True)]
    for partition in range(PARTITIONS):
        # A rebalance may hand a partition over before its last commit: its records are read twice then.
        by_offset = {read.offset: read.value for read in reads if read.partition == partition}
        assert [by_offset[offset] for offset in sorted(by_offset)] == expected[partition]
        assert offsets[TopicPartition(topic, partition)].offset == 2 * COUNT
    last = {read.partition: read.member for read in reads if read.value.startswith("after")}
    assert sorted(last.values()) == ["first"] * 3 + ["second"] * 3


@pytest.mark.parametrize("broker", BROKERS)
def test_topics_settings_and_group_offsets_are_managed_through_any_broker(
    cluster: ClusterOfBrokers, admin_client: AdminClient, new_name: NewName, broker: int
) -> None:
    topic, group = new_name("managed"), new_name("group")
    task = Task(cluster[broker].bootstrap, topic, group=group, partitions=PARTITIONS, replication=REPLICAS)
    seen = admin_client.administer(task)
    assert seen.replicas == [REPLICAS] * PARTITIONS
    assert seen.retention == "120000"
    assert seen.committed == {partition: partition + 10 for partition in range(PARTITIONS)}
    assert seen.ends == dict.fromkeys(range(PARTITIONS), 0)
    assert seen.group
    eventually(lambda: not any(leaders(cluster, id, task.topic) for id in BROKERS), "no broker has the topic")
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        assert task.group not in {found.group_id for found in admin.list_groups()}
