"""Groups change from the classic protocol to the consumer protocol and back while they are used."""

from __future__ import annotations

import pytest

from tests.coordinator.consumer_world import GROUP, ConsumerWorld, compacted
from tidelog.coordinator.group.classic import ClassicGroup
from tidelog.coordinator.group.consumer import ConsumerGroup
from tidelog.coordinator.group.consumer_events import MemberState
from tidelog.coordinator.group.migration import read_assignment, read_subscription, write_assignment
from tidelog.errors import ErrorCode
from tidelog.protocol.message import Message
from tidelog.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)
from tidelog.protocol.wire import ProtocolError

Named = dict[str, set[int]]


def versioned(message: Message, version: int) -> bytes:
    return version.to_bytes(2, "big") + message.encode(version)


def subscription(*topics: str, owned: Named | None = None) -> bytes:
    partitions = [
        ConsumerProtocolSubscription.TopicPartition(topic=topic, partitions=sorted(found))
        for topic, found in (owned or {}).items()
    ]
    return versioned(ConsumerProtocolSubscription(topics=list(topics), owned_partitions=partitions), 1)


def assignment(user_data: bytes | None = None, **topics: set[int]) -> bytes:
    partitions = [
        ConsumerProtocolAssignment.TopicPartition(topic=topic, partitions=sorted(found))
        for topic, found in topics.items()
    ]
    message = ConsumerProtocolAssignment(assigned_partitions=partitions, user_data=user_data)
    return versioned(message, 1)


def assigned(data: bytes) -> Named:
    return {topic.topic: set(topic.partitions) for topic in read_assignment(data).assigned_partitions}


@pytest.fixture
def world() -> ConsumerWorld:
    world = ConsumerWorld()
    world.topic("orders", 4)
    return world


class Classic:
    """A member that uses the classic protocol."""

    def __init__(self, world: ConsumerWorld, *, instance: str | None = None) -> None:
        self.world = world
        self.instance = instance
        self.member_id = ""
        self.generation = -1
        self.has: Named = {}

    def join(self, *topics: str, owned: Named | None = None) -> int:
        protocols = [("range", subscription(*(topics or ("orders",)), owned=owned or self.has))]
        answer = self.world.classic_join(self.member_id, protocols, instance=self.instance)
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
            answer = self.world.classic_join(self.member_id, protocols, instance=self.instance)
        if not answer.error_code:
            self.member_id, self.generation = answer.member_id, answer.generation_id
        return answer.error_code

    def sync(self, given: bytes | None = None) -> int:
        leads = {} if given is None else {self.member_id: given}
        answer = self.world.classic_sync(self.member_id, self.generation, leads)
        if not answer.error_code:
            self.has = assigned(answer.assignment)
        return answer.error_code

    def heartbeat(self) -> int:
        return self.world.classic_heartbeat(self.member_id, self.generation)


def classic_group(world: ConsumerWorld, given: bytes | None = None) -> Classic:
    """A classic group of one member, which has all partitions."""
    member = Classic(world)
    assert member.join() == 0
    assert member.sync(given or assignment(orders={0, 1, 2, 3})) == 0
    return member


class TestUpgrade:
    def test_the_first_member_of_the_new_protocol_turns_the_group_and_the_others_stay(
        self, world: ConsumerWorld
    ) -> None:
        old = classic_group(world)
        answer = world.join("new", ["orders"])
        assert (answer.error_code, answer.member_epoch) == (0, old.generation + 1)
        assert set(world.group.members) == {old.member_id, "new"}
        member = world.group.members[old.member_id]
        assert member.is_classic
        assert member.current.epoch == old.generation
        # It is told to join, gives up what it is to give up, and the other gets it.
        assert old.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
        assert old.join() == 0
        assert old.sync() == 0
        assert old.has == {"orders": {0, 1}}
        assert old.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
        assert old.join() == 0
        assert old.generation == answer.member_epoch
        assert old.sync() == 0
        assert world.by_name(world.say("new", answer.member_epoch)) == {"orders": {2, 3}}
        assert old.heartbeat() == 0
        assert world.group.state_name == "Stable"
        assert [member.member_type for member in world.consumer.describe(GROUP).members] == [0, 1]

    def test_members_that_are_waiting_are_told_to_join_again(self, world: ConsumerWorld) -> None:
        old = classic_group(world)
        with pytest.raises(AssertionError, match="0 answers"):
            # The other member has to join again before this one is answered.
            world.classic_join(
                world.classic_join("", [("range", subscription("orders"))]).member_id,
                [("range", subscription("orders"))],
            )
        group = world.shard.groups[GROUP]
        assert isinstance(group, ClassicGroup)
        told: list[int] = []
        (waiting,) = [member for member in group.members.by_id.values() if member.awaiting_join is not None]
        waiting.awaiting_join = lambda answer: told.append(answer.error_code)
        assert world.join("new", ["orders"]).error_code == 0
        assert told == [ErrorCode.REBALANCE_IN_PROGRESS]
        assert old.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS

    def test_an_empty_classic_group_is_replaced(self, world: ConsumerWorld) -> None:
        old = classic_group(world)
        world.classic_leave((old.member_id, None))
        assert world.join("new", ["orders"]).member_epoch == 2
        assert world.group.state_name == "Stable"
        assert isinstance(world.loaded(compacted(world.runtime.log)).groups[GROUP], ConsumerGroup)

    @pytest.mark.parametrize(
        ("policy", "allowed"),
        [("bidirectional", True), ("UPGRADE", True), ("downgrade", False), ("disabled", False)],
    )
    def test_the_policy_says_whether(self, policy: str, allowed: bool) -> None:
        world = ConsumerWorld(consumer_migration_policy=policy)
        world.topic("orders", 4)
        classic_group(world)
        code = world.join("new", ["orders"]).error_code
        assert code == (0 if allowed else ErrorCode.GROUP_ID_NOT_FOUND)
        assert isinstance(world.shard.groups[GROUP], ConsumerGroup) is allowed

    def test_groups_of_other_protocols_stay_what_they_are(self, world: ConsumerWorld) -> None:
        required = world.classic_join("", [("c", b"x")], protocol_type="connect")
        joined = world.classic_join(required.member_id, [("c", b"x")], protocol_type="connect")
        assert joined.error_code == 0
        assert world.join("new", ["orders"]).error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert isinstance(world.shard.groups[GROUP], ClassicGroup)

    def test_an_assignor_that_keeps_data_with_the_members_is_not_taken_over(
        self, world: ConsumerWorld
    ) -> None:
        classic_group(world, assignment(b"mine", orders={0, 1, 2, 3}))
        assert world.join("new", ["orders"]).error_code == ErrorCode.GROUP_ID_NOT_FOUND

    def test_a_group_that_is_too_large_stays_a_classic_one(self) -> None:
        world = ConsumerWorld(consumer_max_size=0)
        world.topic("orders", 4)
        classic_group(world)
        assert world.join("new", ["orders"]).error_code == ErrorCode.GROUP_ID_NOT_FOUND


class TestDowngrade:
    def mixed(self, world: ConsumerWorld) -> Classic:
        """A consumer group of a new member and an old one, each with half of the partitions."""
        world.join("new", ["orders"])
        old = Classic(world)
        assert old.join() == 0
        world.say("new", 2)
        world.say("new", 2, owned={"orders": {0, 1}})
        assert old.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
        assert (old.join(), old.sync(), old.has) == (0, 0, {"orders": {2, 3}})
        return old

    def test_those_who_stay_go_on_as_a_classic_group(self, world: ConsumerWorld) -> None:
        old = self.mixed(world)
        assert world.say("new", -1).error_code == 0
        group = world.shard.groups[GROUP]
        assert isinstance(group, ClassicGroup)
        assert group.state_name == "PreparingRebalance"
        assert old.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
        before = old.generation
        assert old.join() == 0
        assert old.generation > before
        assert old.sync(assignment(orders={0, 1, 2, 3})) == 0
        assert old.has == {"orders": {0, 1, 2, 3}}
        loaded = world.loaded(compacted(world.runtime.log)).groups[GROUP]
        assert isinstance(loaded, ClassicGroup)
        assert loaded.generation == old.generation

    def test_it_happens_too_when_the_last_one_falls_silent(self, world: ConsumerWorld) -> None:
        old = self.mixed(world)
        for _ in range(6):
            world.advance(8)
            old.heartbeat()
        assert isinstance(world.shard.groups[GROUP], ClassicGroup)

    def test_and_back_again(self, world: ConsumerWorld) -> None:
        old = self.mixed(world)
        world.say("new", -1)
        assert (old.join(), old.sync(assignment(orders={0, 1, 2, 3}))) == (0, 0)
        epoch = world.join("newer", ["orders"]).member_epoch
        assert epoch == old.generation + 1
        assert old.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS

    def test_a_static_member_that_comes_back_with_the_old_protocol_turns_the_group(
        self, world: ConsumerWorld
    ) -> None:
        world.join("new", ["orders"], instance="i")
        old = Classic(world, instance="i")
        assert old.join() == 0
        assert old.generation == 2
        group = world.shard.groups[GROUP]
        assert isinstance(group, ClassicGroup)
        assert group.state_name == "Stable"
        assert (old.sync(), old.has) == (0, {"orders": {0, 1, 2, 3}})

    def test_one_that_wants_other_topics_now_is_assigned_anew(self, world: ConsumerWorld) -> None:
        world.topic("payments", 1)
        world.join("new", ["orders"], instance="i")
        old = Classic(world, instance="i")
        assert old.join("payments") == 0
        assert world.shard.groups[GROUP].state_name == "PreparingRebalance"

    @pytest.mark.parametrize("policy", ["upgrade", "disabled"])
    def test_the_policy_may_forbid_it(self, world: ConsumerWorld, policy: str) -> None:
        self.mixed(world)
        world.values["group.consumer.migration.policy"] = policy
        world.say("new", -1)
        assert isinstance(world.shard.groups[GROUP], ConsumerGroup)

    def test_an_empty_consumer_group_makes_way_for_a_classic_one(self, world: ConsumerWorld) -> None:
        world.join("new", ["orders"])
        world.say("new", -1)
        old = Classic(world)
        assert old.join() == 0
        assert isinstance(world.shard.groups[GROUP], ClassicGroup)
        assert isinstance(world.loaded(compacted(world.runtime.log)).groups[GROUP], ClassicGroup)


class TestClassicMembers:
    def test_they_are_refused_where_migration_is_off(self) -> None:
        world = ConsumerWorld(consumer_migration_policy="disabled")
        world.topic("orders", 4)
        world.join("new", ["orders"])
        assert Classic(world).join() == ErrorCode.INCONSISTENT_GROUP_PROTOCOL

    def test_they_have_to_be_consumers_and_have_a_protocol_in_common(self, world: ConsumerWorld) -> None:
        world.join("new", ["orders"])
        data = subscription("orders")

        def join(*names: str, protocol_type: str = "consumer") -> int:
            protocols = [(name, data) for name in names]
            return world.classic_join("", protocols, protocol_type=protocol_type, version=3).error_code

        assert join("x", protocol_type="connect") == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert join("range", "other") == 0
        assert join("sticky") == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert join("other") == 0

    def test_a_subscription_that_cannot_be_read_is_refused(self, world: ConsumerWorld) -> None:
        world.join("new", ["orders"])
        answer = world.classic_join("", [("range", b"")], version=3)
        assert answer.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert len(world.group.members) == 1

    def test_they_are_fenced_by_generation_instance_and_protocol(self, world: ConsumerWorld) -> None:
        world.join("new", ["orders"])
        old = Classic(world)
        old.join()
        assert world.classic_heartbeat(old.member_id, 99) == ErrorCode.ILLEGAL_GENERATION
        assert world.classic_heartbeat("nobody", 3) == ErrorCode.UNKNOWN_MEMBER_ID
        assert world.classic_heartbeat("new", 2) == ErrorCode.UNKNOWN_MEMBER_ID
        assert world.classic_sync(old.member_id, 99).error_code == ErrorCode.ILLEGAL_GENERATION

    def test_they_leave_one_by_one(self, world: ConsumerWorld) -> None:
        world.join("new", ["orders"])
        old = Classic(world, instance="i")
        old.join()
        answer = world.classic_leave(("nobody", None), ("other", "i"), ("", "i"), ("", "j"))
        assert [member.error_code for member in answer.members] == [
            ErrorCode.UNKNOWN_MEMBER_ID,
            ErrorCode.FENCED_INSTANCE_ID,
            0,
            ErrorCode.UNKNOWN_MEMBER_ID,
        ]
        assert set(world.group.members) == {"new"}

    def test_they_are_removed_when_they_are_silent_for_their_own_session(self, world: ConsumerWorld) -> None:
        world.join("new", ["orders"])
        old = Classic(world)
        old.join()
        old.sync()
        world.advance(9)
        assert old.heartbeat() == 0
        world.advance(9)
        assert old.member_id in world.group.members
        world.advance(2)
        assert set(world.group.members) == {"new"}

    def test_they_are_removed_when_they_do_not_join_after_they_were_told_to(
        self, world: ConsumerWorld
    ) -> None:
        world.join("new", ["orders"])
        old = Classic(world)
        old.join()
        old.sync()
        world.topic("orders", 8)
        world.say("new", 2)
        for _ in range(4):
            assert old.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
            world.advance(4.9)
        world.advance(1)
        assert old.member_id not in world.group.members

    def test_they_are_removed_when_they_join_and_never_fetch_what_they_got(
        self, world: ConsumerWorld
    ) -> None:
        world.join("new", ["orders"])
        old = Classic(world)
        old.join()
        for _ in range(3):
            world.advance(6)
            assert old.heartbeat() == 0
        world.advance(3)
        assert old.member_id not in world.group.members

    def test_a_member_that_gives_up_joins_twice(self, world: ConsumerWorld) -> None:
        first = Classic(world)
        world.join("new", ["other"])
        assert (first.join(), first.sync(), first.has) == (0, 0, {"orders": {0, 1, 2, 3}})
        world.say("new", 2, topics=["orders"])
        assert (first.heartbeat(), first.join(), first.sync()) == (ErrorCode.REBALANCE_IN_PROGRESS, 0, 0)
        assert first.has == {"orders": {0, 1}}
        assert world.group.members[first.member_id].current.state is MemberState.UNREVOKED_PARTITIONS
        assert (first.heartbeat(), first.join(), first.sync()) == (ErrorCode.REBALANCE_IN_PROGRESS, 0, 0)
        assert world.group.members[first.member_id].current.state is MemberState.STABLE
        assert first.heartbeat() == 0


def test_subscriptions_of_later_versions_are_read_like_the_newest_known() -> None:
    message = ConsumerProtocolSubscription(topics=["t"], rack_id="r", generation_id=4)
    data = (7).to_bytes(2, "big") + message.encode(3) + b"more"
    assert read_subscription(data) == message
    for broken in (b"", b"\0", b"\xff\xff" + message.encode(3), b"\0\1\0\0\0\5"):
        with pytest.raises(ProtocolError):
            read_subscription(broken)


def test_assignments_are_written_in_the_version_of_the_subscription(world: ConsumerWorld) -> None:
    topic_id = world.cluster.topics["orders"].topic_id
    data = write_assignment({topic_id: frozenset({1, 0}), b"?" * 16: frozenset({5})}, world.cluster, b"\0\0")
    assert data[:2] == b"\0\0"
    assert assigned(data) == {"orders": {0, 1}}
