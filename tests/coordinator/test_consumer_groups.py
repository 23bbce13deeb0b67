"""Consumer groups: members send heartbeats, the coordinator assigns, nobody gets what another still has."""

from __future__ import annotations

import pytest

from tests.coordinator.consumer_world import GROUP, ConsumerWorld
from tidelog.coordinator.group.consumer_events import MemberState
from tidelog.errors import ErrorCode, KafkaError, NotEnoughReplicas
from tidelog.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest


@pytest.fixture
def world() -> ConsumerWorld:
    world = ConsumerWorld()
    world.topic("orders", 4)
    return world


class TestJoining:
    def test_the_first_member_gets_everything(self, world: ConsumerWorld) -> None:
        answer = world.join("a", ["orders"])
        assert (answer.member_id, answer.member_epoch) == ("a", 2)
        assert answer.heartbeat_interval_ms == 5000
        assert world.by_name(answer) == {"orders": {0, 1, 2, 3}}
        assert world.group.state_name == "Stable"

    def test_a_member_that_wants_nothing_is_a_member_all_the_same(self, world: ConsumerWorld) -> None:
        answer = world.join("a", [])
        assert (answer.member_epoch, world.by_name(answer)) == (1, {})
        assert world.group.group_epoch == 1

    def test_a_topic_that_does_not_exist_is_assigned_when_it_does(self, world: ConsumerWorld) -> None:
        assert world.by_name(world.join("a", ["later"])) == {}
        world.topic("later", 2)
        assert world.by_name(world.say("a", 2)) == {"later": {0, 1}}

    def test_from_version_1_on_the_member_brings_its_id(self, world: ConsumerWorld) -> None:
        def join(version: int) -> tuple[int, str | None]:
            answer = world.say("", 0, topics=["orders"], owned={}, rebalance_ms=1000, version=version)
            return answer.error_code, answer.member_id

        assert join(1) == (ErrorCode.INVALID_REQUEST, None)
        code, member_id = join(0)
        assert code == 0
        assert member_id is not None
        assert len(member_id) == 22

    def test_a_heartbeat_without_news_is_answered_without_an_assignment(self, world: ConsumerWorld) -> None:
        epoch = world.join("a", ["orders"]).member_epoch
        written = len(world.runtime.log)
        answer = world.say("a", epoch)
        assert (answer.error_code, answer.member_epoch, answer.assignment) == (0, epoch, None)
        assert len(world.runtime.log) == written

    def test_who_tells_everything_is_told_everything(self, world: ConsumerWorld) -> None:
        epoch = world.join("a", ["orders"]).member_epoch
        answer = world.say("a", epoch, topics=["orders"], owned={"orders": {0}}, rebalance_ms=30_000)
        assert world.by_name(answer) == {"orders": {0, 1, 2, 3}}

    def test_a_member_may_join_again_under_its_id(self, world: ConsumerWorld) -> None:
        world.join("a", ["orders"])
        answer = world.join("a", ["orders"])
        assert (answer.member_epoch, world.by_name(answer)) == (2, {"orders": {0, 1, 2, 3}})

    def test_a_group_that_is_full_takes_nobody_else(self) -> None:
        world = ConsumerWorld(consumer_max_size=1)
        world.join("a", [])
        assert world.join("b", []).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
        assert world.join("a", []).error_code == 0

    def test_members_of_another_protocol_are_refused_where_it_is_off(self) -> None:
        world = ConsumerWorld(coordinator_rebalance_protocols=("classic",))
        assert world.join("a", []).error_code == ErrorCode.UNSUPPORTED_VERSION


class TestMalformed:
    GOOD = {
        "group_id": GROUP,
        "member_id": "a",
        "member_epoch": 0,
        "rebalance_timeout_ms": 1000,
        "subscribed_topic_names": ["orders"],
        "topic_partitions": [],
    }

    @pytest.mark.parametrize(
        ("change", "code"),
        [
            ({"group_id": ""}, ErrorCode.INVALID_REQUEST),
            ({"member_id": ""}, ErrorCode.INVALID_REQUEST),
            ({"instance_id": ""}, ErrorCode.INVALID_REQUEST),
            ({"rack_id": ""}, ErrorCode.INVALID_REQUEST),
            ({"rebalance_timeout_ms": -1}, ErrorCode.INVALID_REQUEST),
            ({"topic_partitions": None}, ErrorCode.INVALID_REQUEST),
            (
                {"topic_partitions": [ConsumerGroupHeartbeatRequest.TopicPartitions(partitions=[0])]},
                ErrorCode.INVALID_REQUEST,
            ),
            ({"subscribed_topic_names": None}, ErrorCode.INVALID_REQUEST),
            ({"member_epoch": -2}, ErrorCode.INVALID_REQUEST),
            ({"member_epoch": -3}, ErrorCode.INVALID_REQUEST),
            ({"server_assignor": "magic"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
            ({"server_assignor": ""}, ErrorCode.UNSUPPORTED_ASSIGNOR),
            ({"subscribed_topic_regex": "["}, ErrorCode.INVALID_REGULAR_EXPRESSION),
            ({"member_epoch": 1}, ErrorCode.GROUP_ID_NOT_FOUND),
            ({"member_epoch": -1}, ErrorCode.GROUP_ID_NOT_FOUND),
        ],
    )
    def test_it_is_refused_and_changes_nothing(
        self, world: ConsumerWorld, change: dict[str, object], code: int
    ) -> None:
        request = ConsumerGroupHeartbeatRequest(**{**self.GOOD, **change})  # type: ignore[arg-type]
        answer = world.send(request)
        assert answer.error_code == code
        assert answer.error_message
        assert not world.runtime.log
        assert not world.shard.groups


class TestRebalancing:
    def test_a_member_gives_up_before_another_gets(self, world: ConsumerWorld) -> None:
        world.join("a", ["orders"])
        joined = world.join("b", ["orders"])
        assert (joined.member_epoch, world.by_name(joined)) == (3, {})
        # The first is told what it keeps, and stays in its epoch until it has let go of the rest.
        told = world.say("a", 2)
        assert (told.member_epoch, world.by_name(told)) == (2, {"orders": {0, 1}})
        assert world.group.members["a"].current.state is MemberState.UNREVOKED_PARTITIONS
        assert world.group.state_name == "Reconciling"
        assert world.by_name(world.say("b", 3)) is None
        still = world.say("a", 2, owned={"orders": {0, 1, 2}})
        assert (still.member_epoch, still.assignment) == (2, None)
        done = world.say("a", 2, owned={"orders": {0, 1}})
        assert (done.member_epoch, done.assignment) == (3, None)
        assert world.by_name(world.say("b", 3)) == {"orders": {2, 3}}
        assert world.group.state_name == "Stable"

    def test_a_member_that_has_to_give_up_more_stays_in_its_epoch(self, world: ConsumerWorld) -> None:
        world.join("a", ["orders"])
        world.join("b", ["orders"])
        assert world.by_name(world.say("a", 2)) == {"orders": {0, 1}}
        world.join("c", ["orders"])
        world.join("d", ["orders"])
        # What it was told last is done; meanwhile there is a newer target.
        answer = world.say("a", 2, owned={"orders": {0, 1}})
        assert (answer.member_epoch, world.by_name(answer)) == (2, {"orders": {0}})
        assert world.say("a", 2, owned={"orders": {0}}).member_epoch == 5

    def test_targets_are_made_at_most_once_in_an_interval(self) -> None:
        world = ConsumerWorld(consumer_assignment_interval_ms=1000)
        world.topic("orders", 4)
        world.join("a", ["orders"])
        joined = world.join("b", ["orders"])
        assert (joined.member_epoch, world.group.group_epoch) == (2, 3)
        assert world.group.state_name == "Assigning"
        assert world.say("a", 2).assignment is None
        world.advance(1.0)
        assert world.by_name(world.say("a", 2)) == {"orders": {0, 1}}
        assert world.group.assignment_epoch == 3

    def test_a_clock_that_is_set_back_holds_up_no_target(self) -> None:
        world = ConsumerWorld(consumer_assignment_interval_ms=1000)
        world.topic("orders", 4)
        world.join("a", ["orders"])
        clock = world.scheduler.clock
        clock.jump_to(clock.ms() - 3_600_000)
        world.join("b", ["orders"])
        assert world.group.assignment_epoch == world.group.group_epoch == 3
        assert world.by_name(world.say("a", 2)) == {"orders": {0, 1}}

    def test_a_member_that_leaves_leaves_its_partitions(self, world: ConsumerWorld) -> None:
        world.join("a", ["orders"])
        world.join("b", ["orders"])
        answer = world.say("a", -1)
        assert (answer.error_code, answer.member_id, answer.member_epoch) == (0, "a", -1)
        assert world.group.group_epoch == 4
        assert world.by_name(world.say("b", 3)) == {"orders": {0, 1, 2, 3}}
        world.say("b", -1)
        assert world.group.state_name == "Empty"

    def test_a_topic_that_grows_or_goes_is_noticed_with_the_next_heartbeat(
        self, world: ConsumerWorld
    ) -> None:
        world.join("a", ["orders", "payments"])
        world.topic("orders", 6)
        assert world.by_name(world.say("a", 2)) == {"orders": {0, 1, 2, 3, 4, 5}}
        world.topic("payments", 1)
        assert world.by_name(world.say("a", 3)) == {"orders": {0, 1, 2, 3, 4, 5}, "payments": {0}}
        world.delete_topic("orders")
        assert world.by_name(world.say("a", 4)) == {"payments": {0}}
        assert world.group.group_epoch == 5

    def test_changes_that_concern_others_change_nothing(self, world: ConsumerWorld) -> None:
        world.join("a", ["orders"])
        world.topic("payments", 1)
        assert world.say("a", 2).member_epoch == 2
        assert world.group.group_epoch == 2

    def test_a_topic_that_is_no_longer_wanted_is_given_up_before_there_is_a_new_target(self) -> None:
        world = ConsumerWorld(consumer_assignment_interval_ms=1000)
        world.topic("orders", 2)
        world.topic("payments", 1)
        world.join("a", ["orders", "payments"])
        answer = world.say("a", 2, topics=["payments"])
        assert (answer.member_epoch, world.by_name(answer)) == (2, {"payments": {0}})
        assert world.group.assignment_epoch == 2
        answer = world.say("a", 2, owned={"payments": {0}})
        assert (answer.member_epoch, answer.assignment) == (2, None)
        assert world.group.members["a"].current.state is MemberState.STABLE

    def test_the_assignor_that_most_members_ask_for_is_used(self, world: ConsumerWorld) -> None:
        world.topic("payments", 3)
        both = ["orders", "payments"]
        world.join("a", both, assignor="range")
        assert world.consumer.describe(GROUP).assignor_name == "range"
        world.join("b", both, assignor="uniform")
        world.join("c", both, assignor="uniform")
        assert world.consumer.describe(GROUP).assignor_name == "uniform"
        sizes = [sum(map(len, target.values())) for target in world.group.targets.values()]
        assert sorted(sizes) == [2, 2, 3]


class TestFencing:
    def test_an_epoch_that_is_not_the_members_fences_it(self, world: ConsumerWorld) -> None:
        world.join("a", ["orders"])
        assert world.say("a", 3).error_code == ErrorCode.FENCED_MEMBER_EPOCH
        assert world.say("a", 1).error_code == ErrorCode.FENCED_MEMBER_EPOCH
        assert world.say("b", 2).error_code == ErrorCode.UNKNOWN_MEMBER_ID

    def test_the_epoch_before_is_taken_from_who_has_nothing_too_many(self, world: ConsumerWorld) -> None:
        """The answer that raised it may have been lost."""
        world.join("a", ["orders"])
        world.topic("orders", 5)
        assert world.say("a", 2).member_epoch == 3
        assert world.say("a", 2).error_code == ErrorCode.FENCED_MEMBER_EPOCH
        assert world.say("a", 2, owned={"orders": {0, 1, 2, 3}}).member_epoch == 3
        world.topic("other", 1)
        too_many = world.say("a", 2, owned={"orders": {0}, "other": {0}})
        assert too_many.error_code == ErrorCode.FENCED_MEMBER_EPOCH

    def test_a_member_that_is_silent_for_a_session_is_removed(self, world: ConsumerWorld) -> None:
        world.join("a", ["orders"])
        world.advance(30)
        world.say("a", 2)
        world.advance(44)
        assert "a" in world.group.members
        world.advance(2)
        assert world.group.state_name == "Empty"
        assert world.say("a", 2).error_code == ErrorCode.UNKNOWN_MEMBER_ID

    def test_the_groups_own_session_time_holds_from_the_next_heartbeat_on(self, world: ConsumerWorld) -> None:
        world.join("a", ["orders"])
        world.overrides[GROUP] = {
            "consumer.session.timeout.ms": "60000",
            "consumer.heartbeat.interval.ms": "7000",
        }
        assert world.say("a", 2).heartbeat_interval_ms == 7000
        world.advance(50)
        assert "a" in world.group.members
        world.advance(11)
        assert not world.group.members

    def test_a_member_that_keeps_what_it_should_give_up_is_removed(self, world: ConsumerWorld) -> None:
        world.join("a", ["orders"])
        world.join("b", ["orders"])
        world.say("a", 2)
        for _ in range(2):
            world.advance(10)
            assert world.say("b", 3).error_code == world.say("a", 2).error_code == 0
        world.advance(11)
        assert world.say("a", 2).error_code == ErrorCode.UNKNOWN_MEMBER_ID
        assert world.by_name(world.say("b", 3)) == {"orders": {0, 1, 2, 3}}

    def test_a_member_that_gave_up_in_time_stays(self, world: ConsumerWorld) -> None:
        world.join("a", ["orders"])
        world.join("b", ["orders"])
        world.say("a", 2)
        world.say("a", 2, owned={"orders": {0, 1}})
        for _ in range(5):
            world.advance(10)
            assert world.say("a", 3).error_code == world.say("b", 3).error_code == 0

    def test_sessions_and_revocations_go_on_at_the_next_coordinator(self, world: ConsumerWorld) -> None:
        world.join("a", ["orders"])
        world.join("b", ["orders"])
        world.say("a", 2)
        world.restart()
        world.advance(29)
        assert set(world.group.members) == {"a", "b"}
        world.advance(2)
        assert set(world.group.members) == {"b"}
        world.advance(15)
        assert not world.group.members

    def test_a_member_is_removed_later_where_the_log_cannot_be_written(self, world: ConsumerWorld) -> None:
        world.join("a", ["orders"])
        world.runtime.hold = True
        world.advance(46)
        world.runtime.finish(NotEnoughReplicas())
        assert "a" in world.group.members
        world.runtime.hold = False
        world.advance(2)
        assert not world.group.members


class TestStaticMembers:
    def test_its_partitions_stay_with_the_instance_id_while_it_is_away(self, world: ConsumerWorld) -> None:
        world.join("a", ["orders"], instance="i")
        assert world.say("a", -2, instance="i").member_epoch == -2
        assert world.group.state_name == "Reconciling"
        written = world.group.group_epoch
        answer = world.join("b", ["orders"], instance="i")
        assert (answer.member_id, answer.member_epoch) == ("b", 2)
        assert world.by_name(answer) == {"orders": {0, 1, 2, 3}}
        assert set(world.group.members) == {"b"}
        assert world.group.group_epoch == written

    def test_who_does_not_come_back_within_a_session_is_gone(self, world: ConsumerWorld) -> None:
        world.join("a", ["orders"], instance="i")
        world.say("a", -2, instance="i")
        world.advance(46)
        assert not world.group.members

    def test_an_instance_id_in_use_is_not_handed_over(self, world: ConsumerWorld) -> None:
        world.join("a", ["orders"], instance="i")
        assert world.join("b", ["orders"], instance="i").error_code == ErrorCode.UNRELEASED_INSTANCE_ID
        assert world.say("b", 2, instance="i").error_code == ErrorCode.FENCED_INSTANCE_ID
        assert world.say("b", -2, instance="i").error_code == ErrorCode.FENCED_INSTANCE_ID
        assert world.say("a", 2, instance="other").error_code == ErrorCode.UNKNOWN_MEMBER_ID
        assert world.say("a", 2, instance="i").error_code == 0

    def test_who_was_replaced_is_fenced(self, world: ConsumerWorld) -> None:
        world.join("a", ["orders"], instance="i")
        world.say("a", -2, instance="i")
        assert world.say("a", 2, instance="i").error_code == ErrorCode.FENCED_MEMBER_EPOCH
        world.join("b", ["orders"], instance="i")
        assert world.say("a", 2, instance="i").error_code == ErrorCode.FENCED_INSTANCE_ID

    def test_one_that_leaves_for_good_is_gone(self, world: ConsumerWorld) -> None:
        world.join("a", ["orders"], instance="i")
        assert world.say("a", -1, instance="i").error_code == 0
        assert world.join("b", ["orders"], instance="i").member_epoch == 4


class TestPatterns:
    def test_the_topics_come_with_the_heartbeat_after_the_one_that_brought_the_pattern(
        self, world: ConsumerWorld
    ) -> None:
        world.topic("orders-2", 1)
        joined = world.join("a", pattern="orders.*")
        assert (joined.member_epoch, world.by_name(joined)) == (1, {})
        assert world.by_name(world.say("a", 1)) == {"orders": {0, 1, 2, 3}, "orders-2": {0}}

    def test_new_topics_are_looked_at_when_ten_seconds_have_passed(self, world: ConsumerWorld) -> None:
        world.join("a", pattern="orders.*")
        world.say("a", 1)
        world.topic("orders-2", 1)
        world.advance(5)
        assert world.say("a", 2).assignment is None
        world.advance(6)
        assert world.say("a", 2).assignment is None  # resolves
        assert world.by_name(world.say("a", 2)) == {"orders": {0, 1, 2, 3}, "orders-2": {0}}

    def test_a_pattern_is_looked_at_again_after_ten_minutes_at_the_latest(self, world: ConsumerWorld) -> None:
        world.join("a", pattern="orders.*")
        world.say("a", 1)
        first = world.group.patterns["orders.*"].timestamp
        for _ in range(31):
            world.advance(20)
            world.say("a", 2)
        assert world.group.patterns["orders.*"].timestamp > first

    def test_topics_that_are_gone_are_given_up_at_once(self, world: ConsumerWorld) -> None:
        world.join("a", pattern="orders.*")
        world.say("a", 1)
        world.delete_topic("orders")
        assert world.by_name(world.say("a", 2)) == {}

    def test_a_pattern_that_somebody_has_already_is_assigned_at_once(self, world: ConsumerWorld) -> None:
        world.join("a", pattern="orders.*")
        world.say("a", 1)
        world.join("b", pattern="orders.*")
        assert world.group.targets["b"]

    def test_what_nobody_wants_any_more_is_forgotten(self, world: ConsumerWorld) -> None:
        world.join("a", pattern="orders.*")
        world.say("a", 1)
        assert world.by_name(world.say("a", 2, topics=[], pattern="")) == {}
        assert not world.group.patterns
        world.say("a", 3, pattern="o.*", owned={})
        world.say("a", -1)
        assert not world.group.patterns

    def test_names_and_a_pattern_go_together(self, world: ConsumerWorld) -> None:
        world.topic("payments", 1)
        world.join("a", ["payments"], pattern="orders.*")
        assert world.by_name(world.say("a", 2)) == {"orders": {0, 1, 2, 3}, "payments": {0}}

    def test_many_topics_are_matched_in_turns(
        self, world: ConsumerWorld, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tidelog.coordinator.group.consumer_service.SECONDS_A_TURN", 0.0)
        for number in range(300):
            world.topic(f"t{number}", 1)
        world.join("a", pattern="t.*")
        assert not world.group.patterns
        # Meanwhile others are served, and nobody begins the same anew.
        assert world.say("a", 1).error_code == 0
        world.advance(0)
        assert len(world.group.patterns["t.*"].topics) == 300


class TestOffsets:
    def commit(self, world: ConsumerWorld, member: str, epoch: int, partition: int, version: int = 9) -> int:
        topic_id = world.cluster.topics["orders"].topic_id
        try:
            check = world.group.validate_offset_commit(
                member, None, epoch, transactional=False, api_version=version
            )
            if check is not None:
                check(topic_id, partition)
        except KafkaError as error:
            return error.code
        return 0

    def test_a_member_commits_with_its_epoch(self, world: ConsumerWorld) -> None:
        world.join("a", ["orders"])
        assert self.commit(world, "a", 2, 0) == 0
        assert self.commit(world, "a", 3, 0) == ErrorCode.STALE_MEMBER_EPOCH
        assert self.commit(world, "b", 2, 0) == ErrorCode.UNKNOWN_MEMBER_ID
        assert self.commit(world, "", -1, 0) == ErrorCode.UNKNOWN_MEMBER_ID
        assert self.commit(world, "a", 2, 0, version=8) == ErrorCode.UNSUPPORTED_VERSION

    def test_an_older_epoch_commits_what_was_the_members_then(self, world: ConsumerWorld) -> None:
        world.join("a", ["orders"])
        world.join("b", ["orders"])
        world.say("a", 2)
        assert self.commit(world, "a", 2, 3) == 0  # it is being given up
        world.say("a", 2, owned={"orders": {0, 1}})
        assert self.commit(world, "a", 2, 0) == 0
        assert self.commit(world, "a", 1, 0) == ErrorCode.STALE_MEMBER_EPOCH
        assert self.commit(world, "a", 2, 3) == ErrorCode.STALE_MEMBER_EPOCH
        world.say("b", 3)
        assert self.commit(world, "b", 2, 3) == ErrorCode.STALE_MEMBER_EPOCH
        assert self.commit(world, "b", 3, 3) == 0

    def test_offsets_are_fetched_with_the_members_epoch_or_without_a_member(
        self, world: ConsumerWorld
    ) -> None:
        world.join("a", ["orders"])
        world.group.validate_offset_fetch("a", 2)
        world.group.validate_offset_fetch(None, -1)
        for member, epoch, code in (
            ("a", 1, ErrorCode.STALE_MEMBER_EPOCH),
            ("b", 2, ErrorCode.UNKNOWN_MEMBER_ID),
        ):
            with pytest.raises(KafkaError) as refused:
                world.group.validate_offset_fetch(member, epoch)
            assert refused.value.code == code

    def test_anyone_commits_for_an_empty_group(self, world: ConsumerWorld) -> None:
        world.join("a", ["orders"])
        world.say("a", -1)
        assert self.commit(world, "", -1, 0) == 0
        assert self.commit(world, "a", 2, 0) == ErrorCode.UNKNOWN_MEMBER_ID

    def test_a_group_with_members_is_not_deleted(self, world: ConsumerWorld) -> None:
        world.join("a", pattern="orders")
        with pytest.raises(KafkaError) as refused:
            world.group.validate_delete()
        assert refused.value.code == ErrorCode.NON_EMPTY_GROUP
        world.say("a", -1)
        world.group.validate_delete()
        assert not world.loaded([*world.runtime.log, *world.group.tombstones()]).groups

    def test_it_knows_what_it_is_subscribed_to(self, world: ConsumerWorld) -> None:
        world.topic("payments", 1)
        world.join("a", ["orders"], pattern="pay.*")
        assert world.group.is_subscribed_to("orders")
        assert world.group.is_subscribed_to("payments")
        assert not world.group.is_subscribed_to("other")


class TestWriting:
    def test_nothing_is_answered_before_it_is_written(self, world: ConsumerWorld) -> None:
        world.runtime.hold = True
        with pytest.raises(AssertionError, match="0 answers"):
            world.join("a", ["orders"])
        assert not world.shard.groups
        world.runtime.finish()
        assert set(world.group.members) == {"a"}

    def test_what_cannot_be_written_has_not_happened(self, world: ConsumerWorld) -> None:
        world.runtime.hold = True
        with pytest.raises(AssertionError, match="0 answers"):
            world.join("a", ["orders"])
        world.runtime.finish(NotEnoughReplicas("too few"))
        assert not world.shard.groups
        world.runtime.hold = False
        assert world.join("a", ["orders"]).member_epoch == 2

    def test_each_decision_sees_what_the_one_before_has_written(self, world: ConsumerWorld) -> None:
        world.runtime.hold = True
        for member in ("a", "b"):
            with pytest.raises(AssertionError, match="0 answers"):
                world.join(member, ["orders"])
        world.runtime.finish()
        world.runtime.finish()
        assert set(world.group.members) == {"a", "b"}
        assert world.group.group_epoch == 3

    def test_records_that_older_coordinators_kept_are_deleted(self, world: ConsumerWorld) -> None:
        world.join("a", ["orders"])
        world.group.has_partition_metadata = True
        world.say("a", 2, topics=[])
        assert world.runtime.log[-1].value is not None
        assert any(record.key[1] == 4 and record.value is None for record in world.runtime.log)
        assert not world.group.has_partition_metadata


def test_a_group_describes_what_members_have_and_are_to_have(world: ConsumerWorld) -> None:
    world.join("a", ["orders"], instance="i")
    world.join("b", ["orders"])
    world.say("a", 2, instance="i")
    described = world.consumer.describe(GROUP)
    assert (described.group_state, described.group_epoch, described.assignment_epoch) == ("Reconciling", 3, 3)
    a, b = described.members
    assert (a.member_id, a.instance_id, a.member_epoch, a.member_type) == ("a", "i", 2, 1)
    assert (a.client_id, a.client_host, a.subscribed_topic_names) == ("client", "/127.0.0.1", ["orders"])
    # What it is to give up is its own until it has.
    assert [(topic.topic_name, topic.partitions) for topic in a.assignment.topic_partitions] == [
        ("orders", [0, 1, 2, 3])
    ]
    assert [topic.partitions for topic in a.target_assignment.topic_partitions] == [[0, 1]]
    assert not b.assignment.topic_partitions
    assert [topic.partitions for topic in b.target_assignment.topic_partitions] == [[2, 3]]
    with pytest.raises(KafkaError) as refused:
        world.consumer.describe("other")
    assert refused.value.code == ErrorCode.GROUP_ID_NOT_FOUND


def test_beside_kafka_3_9_there_are_classic_groups_only() -> None:
    world = ConsumerWorld()
    world.consumer._settings.group_version = 0
    assert world.join("m", ["t"]).error_code == ErrorCode.UNSUPPORTED_VERSION


def test_a_coordinator_with_another_clock_resolves_patterns_of_the_one_before() -> None:
    world = ConsumerWorld()
    world.topic("a-1", 1)
    epoch = world.join("m", pattern="a-.*").member_epoch
    world.advance(0)
    world.topic("a-2", 1)
    clock = world.scheduler.clock
    clock.jump_to(clock.ms() - 3_600_000)
    world.restart()
    assigned: set[str] = set()
    for _ in range(4):
        answer = world.say("m", epoch, owned={})
        epoch = answer.member_epoch
        assigned |= set(world.by_name(answer) or {})
        world.advance(1)
    assert assigned == {"a-1", "a-2"}
