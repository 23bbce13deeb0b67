"""Consumers in groups of both protocols: who gets what, what they are told, and what is refused."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import pairwise

import pytest

from tests.clients.consuming import fill, make_topic, poll_until, read
from tests.groups.brokers import QUICK_GROUPS
from tests.support.fixtures import given_broker
from tests.support.own_cluster import any_broker
from tests.support.wait import eventually, patience
from tidelog import Admin
from tidelog.clients.admin import NewPartitions
from tidelog.clients.consumer.blocking import Consumer
from tidelog.clients.consumer.consumer import AsyncConsumer
from tidelog.clients.consumer.interceptors import ConsumerInterceptor
from tidelog.clients.consumer.listener import ConsumerRebalanceListener
from tidelog.clients.errors import ClientClosedException, CommitFailedException, ConfigError
from tidelog.clients.offsets import OffsetAndMetadata
from tidelog.clients.producer.blocking import Producer
from tidelog.errors import FencedInstanceId, RebalanceInProgress
from tidelog.partitions import TopicPartition

NewName = Callable[[str], str]

CLASSIC = [{"partition.assignment.strategy": name} for name in ("range", "roundrobin", "sticky")]
COOPERATIVE = {"partition.assignment.strategy": "cooperative-sticky"}
NEXT = {"group.protocol": "consumer"}
OF_THE_BROKER = pytest.param(NEXT, marks=pytest.mark.needs("ConsumerGroupHeartbeat", "group.version"))
KINDS = [*CLASSIC, COOPERATIVE, OF_THE_BROKER]


def kind_name(kind: object) -> str:
    return "-".join(kind.values()) if isinstance(kind, dict) else str(kind)


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    given = given_broker()
    if given:
        yield given
        return
    quick = {name: value for name, value in QUICK_GROUPS.items() if name != "auto.create.topics.enable"}
    # A static member has to come back within this time.
    quick["group.consumer.session.timeout.ms"] = str(int(min(patience(2000), 8000)))
    with any_broker(tmp_path_factory.mktemp("groups"), quick) as broker:
        yield broker.bootstrap


class Diary(ConsumerRebalanceListener):
    """What a member was told."""

    def __init__(self, consumer: Consumer | None = None) -> None:
        self.told: list[tuple[str, list[TopicPartition]]] = []
        self.committing: Consumer | None = consumer

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        self.told.append(("assigned", partitions))

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        if self.committing is not None:
            self.committing.commit()
        self.told.append(("revoked", partitions))

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        self.told.append(("lost", partitions))


class Group:
    """Members of one group, polled in turn."""

    def __init__(self, bootstrap: str, name: str, kind: dict[str, str], stack: ExitStack) -> None:
        self.name = name
        self._settings: dict[str, object] = {
            "bootstrap.servers": bootstrap,
            "group.id": name,
            "auto.offset.reset": "earliest",
            "metadata.max.age.ms": 300,
            **kind,
        }
        if kind != NEXT:
            self._settings |= {"session.timeout.ms": 6000, "heartbeat.interval.ms": 100}
        self._stack = stack
        self.members: list[Consumer] = []
        self.read: list[bytes] = []

    def join(self, *topics: str, **settings: object) -> Consumer:
        member = self._stack.enter_context(Consumer(*topics, {**self._settings, **settings}))
        self.members.append(member)
        return member

    def leave(self, member: Consumer) -> None:
        member.close()
        self.members.remove(member)

    def settle(self, condition: Callable[[], bool], what: str, limit: float = 40.0) -> None:
        until = time.monotonic() + limit
        while not condition():
            for member in self.members:
                self.read += [record.value for record in member.poll(0.02)]
            assert time.monotonic() < until, f"{what}: {[m.assignment() for m in self.members]}"

    def shares(self) -> list[set[TopicPartition]]:
        return [member.assignment() for member in self.members]

    def settle_shares(self, *sizes: int) -> None:
        self.settle(
            lambda: (
                sorted(len(share) for share in self.shares()) == sorted(sizes)
                and len(set().union(*self.shares())) == sum(sizes)
            ),
            f"shares of {sizes}",
        )


@pytest.fixture
def group(bootstrap: str, new_name: NewName, request: pytest.FixtureRequest) -> Iterator[Group]:
    kind = getattr(request, "param", CLASSIC[0])
    with ExitStack() as stack:
        yield Group(bootstrap, new_name("group"), kind, stack)


of_every_kind = pytest.mark.parametrize("group", KINDS, ids=kind_name, indirect=True)
of_three_kinds = pytest.mark.parametrize(
    "group", [CLASSIC[0], COOPERATIVE, OF_THE_BROKER], ids=kind_name, indirect=True
)


@of_every_kind
def test_members_share_the_partitions_and_everything_is_read_once(
    group: Group, bootstrap: str, new_name: NewName
) -> None:
    topic = make_topic(bootstrap, new_name("shared"), 6)
    sent = {value for partition in range(6) for value in fill(bootstrap, topic, 50, partition)}
    group.join(topic)
    group.settle_shares(6)
    group.join(topic)
    group.join(topic)
    group.settle_shares(2, 2, 2)
    group.settle(lambda: len(group.read) >= len(sent), "everything is read")
    assert sorted(group.read) == sorted(sent)
    group.leave(group.members[0])
    group.settle_shares(3, 3)
    more = [value for partition in range(6) for value in fill(bootstrap, topic, 5, partition)]
    group.read.clear()
    group.settle(lambda: len(group.read) >= len(more), "the rest is read")
    assert sorted(group.read) == sorted(more)


@of_three_kinds
def test_a_listener_is_told_what_comes_and_goes(group: Group, bootstrap: str, new_name: NewName) -> None:
    topic = make_topic(bootstrap, new_name("told"), 4)
    first = group.join()
    diary = Diary(first)
    first.subscribe(topic, listener=diary)
    group.settle_shares(4)
    everything = [TopicPartition(topic, index) for index in range(4)]
    assert diary.told[-1] == ("assigned", everything)
    group.join(topic)
    group.settle_shares(2, 2)
    kinds = [kind for kind, partitions in diary.told if partitions]
    assert "revoked" in kinds
    assert "lost" not in kinds
    revoked = next(partitions for kind, partitions in diary.told if kind == "revoked")
    incremental = kind_name(group._settings.get("partition.assignment.strategy", "")) != "range"
    assert len(revoked) == (2 if incremental else 4)
    group.leave(group.members[1])
    group.settle_shares(4)
    group.leave(first)
    assert diary.told[-1] == ("revoked", everything)


@of_three_kinds
def test_a_member_that_polls_too_seldom_loses_its_partitions(
    group: Group, bootstrap: str, new_name: NewName, caplog: pytest.LogCaptureFixture
) -> None:
    topic = make_topic(bootstrap, new_name("slow"), 2)
    fill(bootstrap, topic, 10)
    slow = group.join(max_poll_interval_ms=500, enable_auto_commit=False)
    diary = Diary()
    slow.subscribe(topic, listener=diary)
    read(slow, 10)
    other = Consumer(topic, {**group._settings, "enable.auto.commit": False})
    with other:
        seen = poll_until(other, lambda: len(other.assignment()) == 2, "the other has everything")
        assert "poll was not called for max.poll.interval.ms=500" in caplog.text
        with pytest.raises(CommitFailedException):
            slow.commit()
        assert len(seen + read(other, 10 - len(seen))) == 10
        group.members.append(other)
        group.settle_shares(1, 1)
        assert ("lost", [TopicPartition(topic, 0), TopicPartition(topic, 1)]) in diary.told


@of_three_kinds
def test_a_slow_handler_keeps_its_place_by_heartbeats(
    group: Group, bootstrap: str, new_name: NewName
) -> None:
    topic = make_topic(bootstrap, new_name("busy"), 2)
    busy = group.join(topic, **({} if "group.protocol" in group._settings else {"session.timeout.ms": 1000}))
    diary = Diary()
    busy.subscribe(topic, listener=diary)
    group.settle_shares(2)
    # So many in a row take longer than the group waits for a member of which it hears nothing.
    enough = busy.metrics()["heartbeat-total"] + 8
    eventually(lambda: busy.metrics()["heartbeat-total"] >= enough, "it is heard of without a poll", 30)
    busy.commit()
    busy.poll(0.1)
    assert {kind for kind, _ in diary.told} == {"assigned"}


@pytest.mark.parametrize("group", [CLASSIC[0], OF_THE_BROKER], ids=kind_name, indirect=True)
def test_topics_are_found_by_a_pattern_and_internal_ones_are_not(
    group: Group, bootstrap: str, new_name: NewName
) -> None:
    prefix = new_name("found")
    make_topic(bootstrap, f"{prefix}.a")
    make_topic(bootstrap, f"x-{prefix}.b")
    member = group.join()
    member.subscribe(pattern=re.compile(rf"{re.escape(prefix)}\..*|__consumer_offsets"))
    group.settle_shares(1)
    make_topic(bootstrap, f"{prefix}.c", 2)
    group.settle_shares(3)
    assert {name.topic for name in member.assignment()} == {f"{prefix}.a", f"{prefix}.c"}
    assert member.subscription() == {f"{prefix}.a", f"{prefix}.c"}


@pytest.mark.parametrize("group", [OF_THE_BROKER], ids=kind_name, indirect=True)
def test_a_pattern_is_matched_by_the_broker(group: Group, bootstrap: str, new_name: NewName) -> None:
    prefix = new_name("matched")
    make_topic(bootstrap, f"{prefix}.a")
    fill(bootstrap, f"{prefix}.a", 5)
    member = group.join()
    member.subscribe(pattern=rf"{prefix}\..*")
    assert len(read(member, 5)) == 5
    make_topic(bootstrap, f"{prefix}.b", 2)
    group.settle_shares(3)


@of_three_kinds
def test_new_partitions_are_given_out(group: Group, bootstrap: str, new_name: NewName) -> None:
    topic = make_topic(bootstrap, new_name("grown"), 1)
    group.join(topic)
    group.settle_shares(1)
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_partitions({topic: NewPartitions(3)})
    group.settle_shares(3)


@of_three_kinds
def test_a_static_member_comes_back_to_its_partitions(
    group: Group, bootstrap: str, new_name: NewName
) -> None:
    topic = make_topic(bootstrap, new_name("static"), 4)
    first = group.join(topic, group_instance_id="one")
    second = group.join()
    diary = Diary()
    second.subscribe(topic, listener=diary)
    group.settle_shares(2, 2)
    before = first.assignment()
    told = len(diary.told)
    group.leave(first)
    again = group.join(topic, group_instance_id="one")
    group.settle(lambda: again.assignment() == before, "it has its partitions again")
    assert diary.told[told:] == []


def test_an_instance_id_belongs_to_the_last_who_came(group: Group, bootstrap: str, new_name: NewName) -> None:
    topic = make_topic(bootstrap, new_name("fenced"), 1)
    first = group.join(topic, group_instance_id="one")
    group.settle_shares(1)
    group.members.clear()
    second = group.join(topic, group_instance_id="one")
    group.settle_shares(1)
    with pytest.raises(FencedInstanceId):
        poll_until(first, lambda: False, "it is fenced", 20)
    assert second.assignment() == {(topic, 0)}


@of_three_kinds
def test_what_is_read_is_committed_before_it_goes(group: Group, bootstrap: str, new_name: NewName) -> None:
    """With automatic commits nothing is read twice when members come and go politely."""
    topic = make_topic(bootstrap, new_name("auto"), 4)
    sent = [value for partition in range(4) for value in fill(bootstrap, topic, 100, partition)]
    group.join(topic, max_poll_records=7)
    group.settle(lambda: len(group.read) >= 30, "some are read")
    group.join(topic, max_poll_records=7)
    group.settle_shares(2, 2)
    group.leave(group.members[0])
    group.settle(lambda: len(group.read) >= 400, "all are read")
    assert sorted(group.read) == sorted(sent)


@of_three_kinds
def test_a_commit_of_a_stranger_is_refused(group: Group, bootstrap: str, new_name: NewName) -> None:
    topic = make_topic(bootstrap, new_name("stranger"), 1)
    member = group.join(topic, enable_auto_commit=False)
    with pytest.raises((CommitFailedException, RebalanceInProgress)):
        member.commit({(topic, 0): 1})
    group.settle_shares(1)
    member.commit({(topic, 0): 0})
    with Consumer({**group._settings, "enable.auto.commit": False}) as stranger:
        stranger.assign([(topic, 0)])
        with pytest.raises(CommitFailedException, match=f"the commit of {topic}-0 came too late"):
            stranger.commit({(topic, 0): 1})


def test_interceptors_see_commits(group: Group, bootstrap: str, new_name: NewName) -> None:
    class Watcher(ConsumerInterceptor):
        def __init__(self) -> None:
            self.seen: list[dict[TopicPartition, int]] = []

        def on_commit(self, offsets: object) -> None:
            self.seen.append(dict(offsets))  # type: ignore[call-overload]

    watcher = Watcher()
    topic = make_topic(bootstrap, new_name("watched"), 1)
    fill(bootstrap, topic, 3)
    member = group.join(topic, interceptor_classes=[watcher], enable_auto_commit=False)
    read(member, 3)
    member.commit()
    assert watcher.seen == [{TopicPartition(topic, 0): 3}]


@of_three_kinds
@pytest.mark.needs("EndTxn")
def test_offsets_go_with_a_producers_transaction(group: Group, bootstrap: str, new_name: NewName) -> None:
    topic = make_topic(bootstrap, new_name("from"), 1)
    fill(bootstrap, topic, 5)
    member = group.join(topic, enable_auto_commit=False)
    read(member, 5)
    with Producer(bootstrap_servers=bootstrap, transactional_id=new_name("id")) as producer:
        with producer.transaction():
            producer.send_offsets_to_transaction({(topic, 0): 5}, member.group_metadata())
        assert member.committed([(topic, 0)])[TopicPartition(topic, 0)] == OffsetAndMetadata(5)


@of_three_kinds
@pytest.mark.needs("EndTxn")
def test_a_member_that_lost_its_partitions_sends_no_offsets_with_a_transaction(
    group: Group, bootstrap: str, new_name: NewName
) -> None:
    topic = make_topic(bootstrap, new_name("late"), 1)
    fill(bootstrap, topic, 5)
    slow = group.join(topic, max_poll_interval_ms=500, enable_auto_commit=False)
    read(slow, 5)
    other = Consumer(topic, {**group._settings, "enable.auto.commit": False})
    with other, Producer(bootstrap_servers=bootstrap, transactional_id=new_name("id")) as producer:
        read(other, 5)
        with producer.transaction():
            producer.send_offsets_to_transaction({(topic, 0): 5}, other.group_metadata())
        with pytest.raises(CommitFailedException), producer.transaction():
            producer.send_offsets_to_transaction({(topic, 0): 3}, slow.group_metadata())
        assert other.committed([(topic, 0)])[TopicPartition(topic, 0)] == OffsetAndMetadata(5)


def test_listeners_of_coroutines_are_awaited(bootstrap: str, new_name: NewName) -> None:
    topic = make_topic(bootstrap, new_name("awaited"), 1)
    fill(bootstrap, topic, 3)
    told: list[str] = []

    class Listener(ConsumerRebalanceListener):
        async def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
            await asyncio.sleep(0.01)
            told.append("assigned")

        async def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
            await asyncio.sleep(0.01)
            await consumer.commit()
            told.append("revoked")

    consumer: AsyncConsumer

    async def main() -> None:
        nonlocal consumer
        settings = {"bootstrap.servers": bootstrap, "group.id": new_name("g"), "enable.auto.commit": False}
        consumer = AsyncConsumer(settings, auto_offset_reset="earliest")
        async with consumer:
            consumer.subscribe([topic], listener=Listener())
            while not await consumer.poll(1):
                pass

    asyncio.run(main())
    assert told == ["assigned", "revoked"]


def test_a_listener_that_fails_is_heard_and_the_consumer_goes_on(
    group: Group, bootstrap: str, new_name: NewName
) -> None:
    class Failing(ConsumerRebalanceListener):
        def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
            raise RuntimeError("not today")

    topic = make_topic(bootstrap, new_name("failing"), 1)
    fill(bootstrap, topic, 3)
    member = group.join()
    member.subscribe(topic, listener=Failing())
    with pytest.raises(RuntimeError, match="not today"):
        read(member, 1)
    assert len(read(member, 3)) == 3


def test_a_listener_may_seek(group: Group, bootstrap: str, new_name: NewName) -> None:
    topic = make_topic(bootstrap, new_name("sought"), 1)
    fill(bootstrap, topic, 10)
    member = group.join()

    class Seeker(ConsumerRebalanceListener):
        def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
            for name in partitions:
                member.seek(name, 7)

    member.subscribe(topic, listener=Seeker())
    assert [record.offset for record in read(member, 3)] == [7, 8, 9]


def test_a_listener_may_close(group: Group, bootstrap: str, new_name: NewName) -> None:
    topic = make_topic(bootstrap, new_name("closed"), 1)
    member = group.join()

    class Closing(ConsumerRebalanceListener):
        def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
            member.close()

    member.subscribe(topic, listener=Closing())
    with pytest.raises(ClientClosedException):
        read(member, 1)


@of_three_kinds
def test_a_changed_subscription_changes_the_assignment(
    group: Group, bootstrap: str, new_name: NewName
) -> None:
    one, two = make_topic(bootstrap, new_name("one"), 1), make_topic(bootstrap, new_name("two"), 2)
    member = group.join(one)
    group.settle_shares(1)
    member.subscribe([one, two])
    group.settle_shares(3)
    member.subscribe([two])
    group.settle(lambda: {name.topic for name in member.assignment()} == {two}, "the new topic alone")
    member.unsubscribe()
    assert member.assignment() == set()
    member.subscribe([one])
    group.settle_shares(1)


@of_three_kinds
def test_close_is_quick_and_lets_others_go_on(group: Group, bootstrap: str, new_name: NewName) -> None:
    topic = make_topic(bootstrap, new_name("closed"), 2)
    group.join(topic)
    group.join(topic)
    group.settle_shares(1, 1)
    began = time.monotonic()
    group.leave(group.members[0])
    assert time.monotonic() - began < patience(3)
    group.settle_shares(2)


def test_settings_that_the_broker_decides_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"session\.timeout\.ms"):
        Consumer(
            bootstrap_servers="localhost:1", group_id="g", group_protocol="consumer", session_timeout_ms=9
        )


def test_generations_rise(group: Group, bootstrap: str, new_name: NewName) -> None:
    topic = make_topic(bootstrap, new_name("generations"), 1)
    member = group.join(topic)
    seen = []
    for _ in range(3):
        before = member.metrics()["rebalance-total"]
        member.enforce_rebalance()
        group.settle(lambda before=before: member.metrics()["rebalance-total"] > before, "rebalanced")  # type: ignore[misc]
        seen.append(member.group_metadata().generation_id)
    assert all(first < second for first, second in pairwise(seen))
