"""The administrator's client on a broker: ours, or the one that TIDELOG_TEST_BOOTSTRAP names."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import confluent_kafka
import pytest

from tests.support.topics import PatientAdmin
from tests.support.wait import eventually
from tidelog.clients.admin import (
    Admin,
    AlterConfigOp,
    AsyncAdmin,
    ConfigResource,
    ConfigSource,
    ConfigType,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    OpType,
    Replica,
    ResourceType,
    Results,
)
from tidelog.clients.admin.driver import AdminApiDriver, Deadline, R
from tidelog.clients.errors import ClientClosedException, ConfigError, TimeoutException
from tidelog.errors import (
    GroupIdNotFound,
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicationFactor,
    MismatchedEndpointType,
    NetworkException,
    NonEmptyGroup,
    OffsetOutOfRange,
    ThrottlingQuotaExceeded,
    TopicAlreadyExists,
    UnknownMemberId,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from tidelog.protocol.message import Message
from tidelog.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse

Named = Callable[[str], str]


@pytest.fixture(scope="module")
def admin(bootstrap: str) -> Iterator[Admin]:
    with PatientAdmin(bootstrap_servers=bootstrap, default_api_timeout_ms=30_000) as client:
        yield client


def produce(bootstrap: str, topic: str, values: list[bytes], partition: int = 0, timestamp: int = 0) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    for at, value in enumerate(values):
        producer.produce(topic, value, partition=partition, timestamp=timestamp + at if timestamp else 0)
    assert producer.flush(30) == 0


# Topics


class Throttling(AdminApiDriver):
    """A controller that refuses a topic so many times for a quota; `asked` are the names of each request."""

    def __init__(self, admin: AsyncAdmin, refusals: int) -> None:
        super().__init__(admin.settings)
        self.refusals = refusals
        self.asked: list[list[str]] = []

    async def ask_controller(
        self, request: Message, answer: type[R], deadline: Deadline, code_of: Callable[[R], int]
    ) -> R:
        assert isinstance(request, CreateTopicsRequest)
        self.asked.append([topic.name for topic in request.topics])
        refused = len(self.asked) <= self.refusals
        found = CreateTopicsResponse(
            topics=[
                CreateTopicsResponse.CreatableTopicResult(
                    name=topic.name,
                    error_code=ThrottlingQuotaExceeded.code if topic.name == "b" and refused else 0,
                )
                for topic in request.topics
            ]
        )
        assert isinstance(found, answer)
        return found


def throttled(refusals: int) -> tuple[AsyncAdmin, Throttling]:
    admin = AsyncAdmin(bootstrap_servers="127.0.0.1:1", retry_backoff_ms=1, retry_backoff_max_ms=1)
    driver = Throttling(admin, refusals)
    admin.driver = driver
    return admin, driver


TWO_TOPICS = [NewTopic("a"), NewTopic("b")]


def test_topics_beyond_a_quota_are_asked_for_again_and_they_alone() -> None:
    admin, throttling = throttled(2)
    made = asyncio.run(admin.create_topics(TWO_TOPICS))
    assert sorted(made) == ["a", "b"]
    assert throttling.asked == [["a", "b"], ["b"], ["b"]]


@pytest.mark.parametrize(("again", "timeout"), [(False, 30.0), (True, 0.0)])
def test_a_quota_is_told_where_it_is_not_waited_out(again: bool, timeout: float) -> None:
    admin, throttling = throttled(1)
    made = asyncio.run(
        admin.create_topics(TWO_TOPICS, retry_on_quota_violation=again, partial=True, timeout=timeout)
    )
    assert list(made) == ["a"]
    assert isinstance(made.errors["b"], ThrottlingQuotaExceeded)
    assert throttling.asked == [["a", "b"]]


def test_a_topic_is_made_described_listed_and_deleted(admin: Admin, new_name: Named) -> None:
    name = new_name("t")
    created = admin.create_topics([NewTopic(name, 3, 1, configs={"retention.ms": "60000"})])[name]
    assert (created.num_partitions, created.replication_factor) == (3, 1)
    assert created.configs["retention.ms"].value == "60000"
    described = eventually(
        lambda: admin.describe_topics([name], partial=True).get(name), "the topic is known"
    )
    assert described.topic_id == created.topic_id
    assert [partition.partition for partition in described.partitions] == [0, 1, 2]
    assert all(partition.leader in partition.isr for partition in described.partitions)
    assert described.authorized_operations is None
    assert admin.list_topics()[name].topic_id == created.topic_id
    assert admin.describe_topics_by_id([created.topic_id])[created.topic_id].name == name
    admin.delete_topics([name])
    eventually(lambda: name not in admin.list_topics(), "the topic is gone")
    with pytest.raises(UnknownTopicOrPartition, match=name):
        admin.describe_topics([name])
    with pytest.raises(UnknownTopicId, match=created.topic_id):
        admin.describe_topics_by_id([created.topic_id])


def test_the_first_error_is_raised_unless_the_rest_is_wanted_too(admin: Admin, new_name: Named) -> None:
    old, new = new_name("old"), new_name("new")
    admin.create_topics([NewTopic(old)])
    with pytest.raises(TopicAlreadyExists, match=old):
        admin.create_topics([NewTopic(old)])
    results = admin.create_topics([NewTopic(old), NewTopic(new)], partial=True)
    assert list(results) == [new]
    assert isinstance(results.errors[old], TopicAlreadyExists)
    with pytest.raises(TopicAlreadyExists):
        _ = results[old]
    with pytest.raises(KeyError):
        _ = results["nobody asked for it"]


def test_a_text_is_not_taken_for_a_list_of_names(admin: Admin) -> None:
    for call in (admin.describe_topics, admin.delete_topics, admin.describe_topics_by_id):
        with pytest.raises(TypeError, match=r"expected a list of names, such as \['orders'\], not the text"):
            call("orders")
    for of_groups in (admin.describe_consumer_groups, admin.delete_consumer_groups, admin.fence_producers):
        with pytest.raises(TypeError, match=r"expected a list of names, such as \['billing'\]"):
            of_groups("billing")
    with pytest.raises(ValueError, match="offset -1 of orders-0: expected 0 or more"):
        admin.alter_consumer_group_offsets("billing", {("orders", 0): -1})


def test_what_is_only_validated_is_not_made(admin: Admin, new_name: Named) -> None:
    name = new_name("t")
    admin.create_topics([NewTopic(name, 2)], validate_only=True)
    assert name not in admin.list_topics()
    with pytest.raises(InvalidReplicationFactor):
        admin.create_topics([NewTopic(name, 1, 7)], validate_only=True)


def test_replicas_can_be_named(admin: Admin, new_name: Named) -> None:
    name = new_name("t")
    broker = admin.describe_cluster().nodes[0].id
    admin.create_topics([NewTopic(name, replica_assignments={0: [broker], 1: [broker]})])
    described = eventually(lambda: admin.describe_topics([name], partial=True).get(name), "it is known")
    assert [partition.replicas for partition in described.partitions] == [[broker], [broker]]


def test_a_topic_is_deleted_by_its_id(admin: Admin, new_name: Named) -> None:
    name = new_name("t")
    topic_id = admin.create_topics([NewTopic(name)])[name].topic_id
    admin.delete_topics_by_id([topic_id])
    eventually(lambda: name not in admin.list_topics(), "the topic is gone")
    # Kafka 3.9 still has the id for a moment, without its topic.
    with pytest.raises((UnknownTopicId, UnknownTopicOrPartition)):
        admin.delete_topics_by_id([topic_id])


def test_a_topic_gets_more_partitions(admin: Admin, new_name: Named) -> None:
    name = new_name("t")
    admin.create_topics([NewTopic(name, 1)])
    admin.create_partitions({name: NewPartitions(3)})

    def count() -> int:
        """What the broker knows of it; the controller may know more for a moment."""
        described = admin.describe_topics([name], partial=True)
        return len(described[name].partitions) if name in described else 0

    eventually(lambda: count() == 3, "there are three", 30)
    with pytest.raises(InvalidPartitions):
        admin.create_partitions({name: NewPartitions(2)})


def test_internal_topics_are_listed_where_they_are_asked_for(admin: Admin, new_name: Named) -> None:
    admin.list_consumer_group_offsets([new_name("g")])  # the first question about a group makes the topic
    eventually(lambda: "__consumer_offsets" in admin.list_topics(list_internal=True), "it is there")
    assert "__consumer_offsets" not in admin.list_topics()


# Records and offsets


def test_offsets_are_found_by_name_and_by_time(admin: Admin, bootstrap: str, new_name: Named) -> None:
    name = new_name("t")
    admin.create_topics([NewTopic(name, 2)])
    start = 1_700_000_000_000
    produce(bootstrap, name, [b"a", b"b", b"c"], timestamp=start)
    partition = (name, 0)
    assert admin.list_offsets({partition: OffsetSpec.EARLIEST})[partition].offset == 0
    assert admin.list_offsets({partition: OffsetSpec.LATEST})[partition].offset == 3
    newest = admin.list_offsets({partition: OffsetSpec.MAX_TIMESTAMP})[partition]
    assert (newest.offset, newest.timestamp) == (2, start + 2)
    by_time = admin.list_offsets({partition: start + 1, (name, 1): start})
    assert (by_time[partition].offset, by_time[name, 1].offset) == (1, -1)
    committed = admin.list_offsets({partition: OffsetSpec.LATEST}, isolation_level="read_committed")
    assert committed[partition].offset == 3


def test_a_partition_that_is_not_there_is_named(admin: Admin, new_name: Named) -> None:
    name = new_name("t")
    admin.create_topics([NewTopic(name, 1)])
    results = admin.list_offsets(
        {(name, 0): OffsetSpec.LATEST, (name, 9): OffsetSpec.LATEST, ("missing", 0): OffsetSpec.LATEST},
        partial=True,
    )
    assert results[name, 0].offset == 0
    assert f"{name}-9" in str(results.errors[name, 9])
    assert isinstance(results.errors["missing", 0], UnknownTopicOrPartition)


def test_the_oldest_records_are_deleted(admin: Admin, bootstrap: str, new_name: Named) -> None:
    name = new_name("t")
    admin.create_topics([NewTopic(name, 1)])
    produce(bootstrap, name, [b"a", b"b", b"c"])
    assert admin.delete_records({(name, 0): 2})[name, 0] == 2
    assert admin.list_offsets({(name, 0): OffsetSpec.EARLIEST})[name, 0].offset == 2
    with pytest.raises(OffsetOutOfRange):
        admin.delete_records({(name, 0): 17})
    assert admin.delete_records({(name, 0): -1})[name, 0] == 3


# Settings


def test_settings_are_described_with_their_sources(admin: Admin, new_name: Named) -> None:
    name = new_name("t")
    admin.create_topics([NewTopic(name, configs={"retention.ms": "60000"})])
    resource = ConfigResource(ResourceType.TOPIC, name)
    entries = admin.describe_configs([resource], include_synonyms=True, include_documentation=True)[resource]
    assert entries["retention.ms"].source is ConfigSource.DYNAMIC_TOPIC_CONFIG
    assert entries["retention.ms"].type is ConfigType.LONG
    assert entries["retention.ms"].synonyms[0].value == "60000"
    assert entries["retention.ms"].documentation
    assert entries["segment.bytes"].is_default
    assert list(admin.describe_configs([resource], names=["retention.ms"])[resource]) == ["retention.ms"]


def test_settings_are_changed_one_by_one(admin: Admin, new_name: Named) -> None:
    name = new_name("t")
    admin.create_topics([NewTopic(name, configs={"retention.ms": "60000", "segment.ms": "70000"})])
    resource = ConfigResource(ResourceType.TOPIC, name)
    admin.incremental_alter_configs(
        {
            resource: [
                AlterConfigOp("retention.ms", "80000"),
                AlterConfigOp("segment.ms", None, OpType.DELETE),
                AlterConfigOp("cleanup.policy", "compact", OpType.APPEND),
            ]
        }
    )

    def changed() -> bool:
        entries = admin.describe_configs([resource])[resource]
        values = {key: entries[key].value for key in ("retention.ms", "cleanup.policy")}
        return entries["segment.ms"].is_default and values == {
            "retention.ms": "80000",
            "cleanup.policy": "delete,compact",
        }

    eventually(changed, "the changes hold")
    with pytest.raises(InvalidConfig):
        admin.incremental_alter_configs({resource: [AlterConfigOp("retention.ms", "soon")]})
    admin.incremental_alter_configs({resource: [AlterConfigOp("retention.ms", "1")]}, validate_only=True)
    assert changed()


def test_settings_of_a_broker_are_asked_for_at_the_broker(admin: Admin) -> None:
    broker = admin.describe_cluster().nodes[0].id
    resource = ConfigResource(ResourceType.BROKER, str(broker))
    assert admin.describe_configs([resource])[resource]["num.partitions"].value == "1"
    with pytest.raises(NetworkException, match="broker 4711 is not in the cluster"):
        admin.describe_configs([ConfigResource(ResourceType.BROKER, "4711")])
    with pytest.raises(ValueError, match="expected the number of a broker"):
        admin.describe_configs([ConfigResource(ResourceType.BROKER, "first")])


@pytest.mark.needs("ListConfigResources")
def test_what_has_settings_is_listed(admin: Admin, bootstrap: str, new_name: Named) -> None:
    name = new_name("t")
    admin.create_topics([NewTopic(name)])
    topics = admin.list_config_resources([ResourceType.TOPIC])
    assert ConfigResource(ResourceType.TOPIC, name) in topics
    assert {resource.type for resource in topics} == {ResourceType.TOPIC}
    assert isinstance(admin.list_client_metrics_resources(), list)


# Groups


def join(bootstrap: str, group: str, topics: list[str], **settings: str) -> confluent_kafka.Consumer:
    """A member of a group."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
    )
    consumer.subscribe(topics)
    return consumer


@pytest.mark.parametrize(
    "protocol", ["classic", pytest.param("consumer", marks=pytest.mark.needs("group.version"))]
)
def test_a_group_with_a_member_is_listed_and_described(
    admin: Admin, bootstrap: str, new_name: Named, protocol: str
) -> None:
    topic, group = new_name("t"), new_name("g")
    admin.create_topics([NewTopic(topic, 2)])
    produce(bootstrap, topic, [b"a"])
    consumer = join(bootstrap, group, [topic], group_protocol=protocol, client_id="me")
    try:
        assert consumer.poll(30) is not None
        described = eventually(
            lambda: (g := admin.describe_consumer_groups([group])[group]).state == "Stable" and g,
            "the group is stable",
        )
        assert described.type.lower() == protocol
        (member,) = described.members
        assert member.client_id == "me"
        assert sorted(member.assignment) == [(topic, 0), (topic, 1)]
        assert (described.group_epoch is not None) == (protocol == "consumer")
        (listing,) = [found for found in admin.list_consumer_groups() if found.group_id == group]
        assert (listing.type.lower(), listing.protocol, listing.state) == (protocol, "consumer", "Stable")
        assert group in [found.group_id for found in admin.list_groups(types=[protocol])]
        assert group not in [found.group_id for found in admin.list_groups(states=["Empty"])]
        with pytest.raises(NonEmptyGroup):
            admin.delete_consumer_groups([group])
    finally:
        consumer.close()
    eventually(lambda: admin.describe_consumer_groups([group])[group].state == "Empty", "it is empty")
    admin.delete_consumer_groups([group])
    with pytest.raises(GroupIdNotFound):
        admin.describe_consumer_groups([group])


def test_offsets_of_a_group_are_set_listed_and_forgotten(admin: Admin, new_name: Named) -> None:
    topic, group = new_name("t"), new_name("g")
    admin.create_topics([NewTopic(topic, 3)])
    admin.alter_consumer_group_offsets(group, {(topic, 0): 5, (topic, 2): 7})
    found = admin.list_consumer_group_offsets([group])[group]
    assert {partition: offset.offset for partition, offset in found.items()} == {(topic, 0): 5, (topic, 2): 7}
    (listing,) = [entry for entry in admin.list_groups() if entry.group_id == group]
    assert listing.is_simple_consumer_group
    some = admin.list_consumer_group_offsets({group: [(topic, 1), (topic, 2)], new_name("g"): [(topic, 0)]})
    assert [list(offsets) for offsets in some.values()] == [[(topic, 2)], []]
    assert admin.list_consumer_group_offsets({group: None})[group] == found
    admin.delete_consumer_group_offsets(group, [(topic, 0)])
    assert list(admin.list_consumer_group_offsets([group])[group]) == [(topic, 2)]
    results = admin.alter_consumer_group_offsets(group, {("missing", 0): 1}, partial=True)
    assert isinstance(results.errors["missing", 0], UnknownTopicOrPartition)


def test_static_members_are_taken_out(admin: Admin, bootstrap: str, new_name: Named) -> None:
    topic, group = new_name("t"), new_name("g")
    admin.create_topics([NewTopic(topic, 1)])
    produce(bootstrap, topic, [b"a"])
    consumer = join(bootstrap, group, [topic], group_instance_id="one", session_timeout_ms="45000")
    assert consumer.poll(30) is not None
    consumer.close()  # a static member stays in the group for its session
    with pytest.raises(UnknownMemberId):
        admin.remove_members_from_consumer_group(group, ["two"])
    removed = admin.remove_members_from_consumer_group(group)
    assert list(removed) == ["one"]
    eventually(lambda: not admin.describe_consumer_groups([group])[group].members, "nobody is left")
    assert not admin.remove_members_from_consumer_group(group)


def test_classic_groups_are_described_with_the_bytes_of_their_protocol(
    admin: Admin, bootstrap: str, new_name: Named
) -> None:
    topic, group = new_name("t"), new_name("g")
    admin.create_topics([NewTopic(topic, 1)])
    produce(bootstrap, topic, [b"a"])
    consumer = join(bootstrap, group, [topic])
    assert consumer.poll(30) is not None
    described = admin.describe_classic_groups([group])[group]
    assert described.protocol == "consumer"
    assert topic.encode() in described.members[0].assignment
    consumer.close()


# Transactions


def test_transactions_and_producers_are_listed_described_and_fenced(
    admin: Admin, bootstrap: str, new_name: Named
) -> None:
    topic, name = new_name("t"), new_name("x")
    admin.create_topics([NewTopic(topic, 1)])
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"a", partition=0)
    producer.flush(30)
    (listing,) = [found for found in admin.list_transactions() if found.transactional_id == name]
    assert listing.state == "Ongoing"
    assert name not in [found.transactional_id for found in admin.list_transactions(states=["Empty"])]
    described = admin.describe_transactions([name])[name]
    assert described.partitions == [(topic, 0)]
    assert described.transaction_start_time_ms is not None
    (state,) = admin.describe_producers([(topic, 0)])[topic, 0]
    assert (state.producer_id, state.current_transaction_start_offset) == (described.producer_id, 0)
    broker = admin.describe_topics([topic])[topic].partitions[0].leader
    assert admin.describe_producers([(topic, 0)], broker_id=broker)[topic, 0] == [state]
    admin.force_terminate_transaction(name)
    eventually(
        lambda: admin.describe_transactions([name])[name].state in ("CompleteAbort", "Empty"),
        "the transaction is aborted",
    )
    with pytest.raises(confluent_kafka.KafkaException):
        producer.commit_transaction(10)


# The cluster


def test_the_cluster_is_described(admin: Admin, bootstrap: str) -> None:
    cluster = admin.describe_cluster(include_authorized_operations=True)
    assert cluster.controller in [node.id for node in cluster.nodes]
    assert cluster.authorized_operations
    node = cluster.nodes[0]
    versions = admin.describe_api_versions(node.id)
    assert versions[3].high >= 12
    features = admin.describe_features(broker_id=node.id)
    for name, level in features.finalized.items():  # a cluster with ZooKeeper has none
        assert level.high <= features.supported[name].high


def test_log_folders_are_described_with_what_lies_in_them(
    admin: Admin, bootstrap: str, new_name: Named
) -> None:
    topic = new_name("t")
    admin.create_topics([NewTopic(topic, 1)])
    produce(bootstrap, topic, [b"x" * 1000])
    broker = admin.describe_topics([topic])[topic].partitions[0].leader
    assert broker is not None
    (folder,) = admin.describe_log_dirs()[broker].values()
    assert folder.replicas[topic, 0].size > 1000
    assert folder.total_bytes is not None
    replica = Replica(topic, 0, broker)
    where = admin.describe_replica_log_dirs([replica])[replica]
    assert (where.current_log_dir, where.future_log_dir) == (folder.path, None)
    admin.alter_replica_log_dirs({replica: folder.path})  # it lies there already
    with pytest.raises(NetworkException, match="broker 4711"):
        admin.describe_log_dirs([4711])


# The client itself


def test_the_blocking_client_has_every_call_of_the_asyncio_one() -> None:
    calls = {
        name: method
        for name, method in inspect.getmembers(AsyncAdmin, inspect.iscoroutinefunction)
        if not name.startswith("_") and name not in ("start", "close")
    }
    assert len(calls) > 55
    for name, method in calls.items():
        blocking = getattr(Admin, name)
        assert inspect.signature(blocking) == inspect.signature(method), name
        assert inspect.getdoc(blocking), name


def test_the_asyncio_client_does_the_same(bootstrap: str, new_name: Named) -> None:
    name = new_name("t")

    async def main() -> int:
        async with AsyncAdmin({"bootstrap.servers": bootstrap}) as admin:
            await admin.create_topics([NewTopic(name, 2)])
            async with asyncio.timeout(30):
                while (await admin.describe_topics([name], partial=True)).errors:
                    pass
            described = await asyncio.gather(*(admin.describe_topics([name]) for _ in range(5)))
            return sum(len(found[name].partitions) for found in described)

    assert asyncio.run(main()) == 10


def test_nobody_there_is_said_in_one_line_when_time_is_over(new_name: Named) -> None:
    with (
        Admin(bootstrap_servers="127.0.0.1:1", default_api_timeout_ms=500) as admin,
        pytest.raises(
            TimeoutException, match=r"Metadata: not within 0.5 s; the last answer was: .*127.0.0.1:1.*refused"
        ),
    ):
        admin.list_topics()


def test_close_leaves_no_thread_and_ends_the_client(bootstrap: str) -> None:
    before = set(threading.enumerate())
    admin = Admin(bootstrap_servers=bootstrap)
    admin.list_topics()
    assert set(threading.enumerate()) != before
    admin.close()
    admin.close()
    # The thread that looked up the address may take a moment longer.
    eventually(lambda: set(threading.enumerate()) <= before, "no thread is left")
    with pytest.raises(ClientClosedException):
        admin.list_topics()


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"bootstrap\.servers"):
        Admin()
    with pytest.raises(ConfigError, match=r"bootstrap.controllers.*or bootstrap.servers alone"):
        Admin(bootstrap_controllers="localhost:9093", bootstrap_servers="localhost:9092")


def test_a_broker_that_is_taken_for_a_controller_says_so(bootstrap: str) -> None:
    advice = "name controllers of a KRaft cluster in bootstrap.controllers, brokers in bootstrap.servers"
    with Admin(bootstrap_controllers=bootstrap, default_api_timeout_ms=20_000) as client:
        for call in (client.describe_cluster, client.list_topics):
            with pytest.raises(MismatchedEndpointType) as raised:
                call()
            assert str(raised.value) == f"{bootstrap} is no controller: {advice}"


def test_numbers_tell_what_went_over_the_wire(bootstrap: str) -> None:
    with Admin(bootstrap_servers=bootstrap) as client:
        assert client.metrics()["request-total"] == 0
        client.list_topics()
        before = client.metrics()
        client.list_topics()
        after = client.metrics()
    assert before["connection-count"] == after["connection-count"] >= 1
    assert after["request-total"] > before["request-total"] >= 2
    assert after["request-total"] == after["response-total"]
    assert after["outgoing-byte-total"] > before["outgoing-byte-total"] > 0
    assert after["incoming-byte-total"] > before["incoming-byte-total"] > 0
    assert after["request-latency-max"] >= after["request-latency-avg"] > 0
    assert client.metrics()["connection-count"] == 0


def test_results_show_both_sides() -> None:
    results = Results({"a": 1, "b": UnknownTopicOrPartition("no b")})
    assert dict(results) == {"a": 1}
    assert "no b" in repr(results)


def test_a_child_that_leaves_the_block_of_an_admin_leaves_it_to_its_parent(bootstrap: str) -> None:
    program = """
import os, sys, warnings
from tidelog import Admin
warnings.filterwarnings("ignore", "This process .* is multi-threaded")  # Python 3.12 and newer
with Admin(bootstrap_servers=sys.argv[1]) as admin:
    if os.fork() == 0:
        sys.exit(7)
    print(os.waitstatus_to_exitcode(os.wait()[1]), len(admin.describe_cluster().nodes) > 0)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, bootstrap], capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("7 True\n", "")
