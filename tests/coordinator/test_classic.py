"""The rules of a classic group, each as Kafka has it."""

from __future__ import annotations

import pytest

from tests.coordinator.classic_world import World
from tidelog.coordinator.group.classic import ClassicGroup
from tidelog.coordinator.group.classic_state import GroupState
from tidelog.errors import (
    CoordinatorNotAvailable,
    ErrorCode,
    FencedInstanceId,
    GroupIdNotFound,
    IllegalGeneration,
    NonEmptyGroup,
    NotCoordinator,
    RebalanceInProgress,
    UnknownMemberId,
)

NONE = ErrorCode.NONE


def members_of(world: World) -> set[str]:
    return set(world.group.members.by_id)


# -- joining -------------------------------------------------------------------------------------------


def test_a_member_without_an_id_is_given_one_and_joins_with_it() -> None:
    world = World()
    first = world.join()
    assert first.got.error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert first.got.member_id == "c-1"
    assert (first.got.generation_id, first.got.protocol_name) == (-1, None)
    assert world.group.state is GroupState.EMPTY
    second = world.join("c-1")
    world.advance(0)
    assert (second.got.error_code, second.got.generation_id, second.got.leader) == (NONE, 1, "c-1")


def test_before_version_4_a_member_joins_at_once() -> None:
    world = World()
    answer = world.join(version=3)
    world.advance(0)
    assert (answer.got.error_code, answer.got.member_id) == (NONE, "c-1")


def test_an_id_that_is_not_used_within_the_session_is_forgotten() -> None:
    world = World()
    member_id = world.join(session_ms=10_000).got.member_id
    world.advance(9.9)
    assert member_id in world.group.members.pending_joins
    world.advance(0.2)
    assert world.join(member_id).got.error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_pending_id_holds_up_the_rebalance_until_it_expires() -> None:
    world = World()
    (leader,) = world.stable(1)
    world.join(session_ms=10_000)
    rejoined = world.join(leader)
    assert not rejoined.came
    world.heartbeat(leader)
    world.advance(10)
    assert rejoined.got.generation_id == 2


def test_an_id_that_nobody_gave_is_unknown() -> None:
    assert World().join("nobody").got.error_code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(("protocol_type", "protocols"), [("", "range"), ("consumer", "")])
def test_a_member_needs_a_protocol_type_and_a_protocol(protocol_type: str, protocols: str) -> None:
    answer = World().join(protocol_type=protocol_type, protocols=protocols)
    assert answer.got.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_a_member_of_another_type_or_without_a_common_protocol_is_refused() -> None:
    world = World()
    world.stable(1, protocol_type="connect", protocols="sessioned compatible")
    refused = world.join(protocol_type="consumer", protocols="compatible")
    assert refused.got.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    refused = world.join(protocol_type="connect", protocols="eager")
    assert refused.got.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    taken = world.join(protocol_type="connect", protocols="eager compatible")
    assert taken.got.error_code == ErrorCode.MEMBER_ID_REQUIRED


def test_the_protocol_that_most_members_prefer_is_taken_of_those_that_all_support() -> None:
    world = World(initial_delay_ms=100)
    answers = [
        world.new_member(protocols="sticky range roundrobin")[1],
        world.new_member(protocols="roundrobin range sticky")[1],
        world.new_member(protocols="fancy roundrobin range")[1],
    ]
    world.advance(1)
    assert {answer.got.protocol_name for answer in answers} == {"roundrobin"}


def test_only_the_leader_is_told_the_members_and_what_they_want() -> None:
    world = World(initial_delay_ms=100)
    first, leading = world.new_member(protocols={"range": b"one", "other": b"x"})
    second, following = world.new_member(protocols={"range": b"two"}, instance=None)
    world.advance(1)
    assert leading.got.leader == following.got.leader == first
    assert [(m.member_id, bytes(m.metadata)) for m in leading.got.members] == [
        (first, b"one"),
        (second, b"two"),
    ]
    assert following.got.members == []


def test_a_member_that_asks_again_is_answered_once_for_each_time() -> None:
    world = World()
    leader, follower = world.stable(2)
    first = world.join(leader)
    second = world.join(leader)
    assert first.got.error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert not second.came
    assert world.join(follower).got.generation_id == second.got.generation_id == 2


def test_a_member_that_missed_the_answer_gets_it_again() -> None:
    world = World()
    _, joined = world.new_member()
    world.advance(0)
    again = world.join(joined.got.member_id)
    assert again.got == joined.got
    assert world.group.generation == 1


def test_a_follower_that_joins_a_stable_group_unchanged_causes_nothing() -> None:
    world = World()
    _, follower = world.stable(2)
    answer = world.join(follower)
    assert (answer.got.error_code, answer.got.generation_id, answer.got.members) == (NONE, 1, [])
    assert world.group.state is GroupState.STABLE


def test_a_leader_that_joins_a_stable_group_has_everyone_join() -> None:
    world = World()
    leader, follower = world.stable(2)
    assert not world.join(leader).came
    assert world.heartbeat(follower) == ErrorCode.REBALANCE_IN_PROGRESS


def test_a_member_that_supports_something_else_has_everyone_join() -> None:
    world = World()
    world.stable(2, protocols="range sticky")
    _, follower = list(world.group.members.by_id)
    assert not world.join(follower, protocols="sticky").came
    assert world.group.state is GroupState.PREPARING_REBALANCE


def test_a_changed_join_while_the_leader_assigns_starts_over() -> None:
    world = World(initial_delay_ms=10)
    first, _ = world.new_member(protocols="range sticky")
    second, _ = world.new_member(protocols="range sticky")
    world.advance(1)
    waiting = world.sync(second)
    assert not world.join(second, protocols="sticky").came
    assert waiting.got.error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert world.join(first, protocols="range sticky").got.generation_id == 2
    assert world.group.protocol == "sticky"


# -- the first rebalance -------------------------------------------------------------------------------


def test_the_first_rebalance_waits_for_members() -> None:
    world = World(initial_delay_ms=3000)
    _, first = world.new_member()
    world.advance(2.9)
    assert not first.came
    world.advance(0.2)
    assert first.got.generation_id == 1


def test_while_members_keep_coming_the_first_rebalance_waits_longer() -> None:
    world = World(initial_delay_ms=3000)
    _, first = world.new_member()
    world.advance(2)
    _, second = world.new_member()
    world.advance(2)  # the first delay is over, and somebody came in it
    assert not first.came
    world.advance(2.1)
    assert first.got.generation_id == second.got.generation_id == 1


def test_the_first_rebalance_does_not_wait_longer_than_the_rebalance_time_out() -> None:
    world = World(initial_delay_ms=3000)
    _, first = world.new_member(rebalance_ms=7000)
    for _ in range(20):
        world.advance(0.5)
        if first.came:
            break
        world.new_member(rebalance_ms=7000)
    assert first.came
    assert world.clock.monotonic() <= 9.1


# -- members that do not come --------------------------------------------------------------------------


def test_a_member_that_does_not_join_in_time_is_left_out() -> None:
    world = World()
    leader, follower = world.stable(2, session_ms=60_000, rebalance_ms=20_000)
    answer = world.join(leader, session_ms=60_000, rebalance_ms=20_000)
    world.advance(19.9)
    assert not answer.came
    world.advance(0.2)
    assert answer.got.generation_id == 2
    assert members_of(world) == {leader}
    assert world.heartbeat(follower) == ErrorCode.UNKNOWN_MEMBER_ID


def test_when_the_leader_does_not_join_another_leads() -> None:
    world = World()
    leader, follower = world.stable(2, session_ms=60_000, rebalance_ms=20_000)
    answer = world.join(follower, protocols={"range": b"changed"}, session_ms=60_000, rebalance_ms=20_000)
    world.advance(20.1)
    assert answer.got.leader == follower
    assert [member.member_id for member in answer.got.members] == [follower]
    assert leader not in members_of(world)


def test_static_members_that_do_not_join_stay_until_their_session_ends() -> None:
    world = World()
    first, one = world.join(instance="a", session_ms=60_000), "a"
    world.advance(0)
    world.settle([first.got.member_id], [first])
    _, second = world.new_member(session_ms=60_000, rebalance_ms=20_000)
    world.advance(31)
    assert second.got.generation_id == 2
    assert world.group.members.static_ids[one] == first.got.member_id
    assert second.got.leader == second.got.member_id


def test_a_silent_member_is_removed_after_its_session() -> None:
    world = World()
    leader, follower = world.stable(2, session_ms=10_000)
    for _ in range(3):
        world.advance(4)
        world.heartbeat(leader)
    assert members_of(world) == {leader}
    assert world.heartbeat(leader) == ErrorCode.REBALANCE_IN_PROGRESS
    assert world.heartbeat(follower) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_waits_for_others_needs_no_heartbeats() -> None:
    world = World()
    leader, follower = world.stable(2, session_ms=10_000, rebalance_ms=60_000)
    waiting = world.join(leader, session_ms=10_000, rebalance_ms=60_000)
    for _ in range(6):
        world.advance(8)
        world.heartbeat(follower)
    assert not waiting.came
    assert world.join(follower, rebalance_ms=60_000).got.generation_id == 2
    assert waiting.came


def test_a_new_member_cannot_wait_for_ever() -> None:
    world = World()
    (leader,) = world.stable(1, session_ms=1_000_000, rebalance_ms=1_000_000)
    _, waiting = world.new_member(rebalance_ms=1_000_000)
    world.advance(299)
    assert not waiting.came
    world.advance(2)
    assert waiting.got.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert members_of(world) == {leader}


def test_members_that_do_not_sync_in_time_are_removed() -> None:
    world = World(initial_delay_ms=10)
    how = {"session_ms": 60_000, "rebalance_ms": 20_000}
    first, one = world.new_member(**how)
    second, _ = world.new_member(**how)
    world.advance(1)
    assert one.got.leader == first
    waiting = world.sync(second)
    world.advance(20)
    assert waiting.got.error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert members_of(world) == {second}
    assert world.join(second, session_ms=60_000).got.leader == second


def test_a_follower_that_does_not_sync_is_removed_from_the_stable_group() -> None:
    world = World(initial_delay_ms=10)
    how = {"session_ms": 60_000, "rebalance_ms": 20_000}
    first, _ = world.new_member(**how)
    second, _ = world.new_member(**how)
    world.advance(1)
    assert world.sync(first, assignments={first: b"all"}).got.assignment == b"all"
    assert world.group.state is GroupState.STABLE
    world.advance(20)
    assert members_of(world) == {first}
    assert second not in members_of(world)


# -- syncing -------------------------------------------------------------------------------------------


def test_everyone_gets_the_assignment_of_the_leader_once_it_is_written() -> None:
    world = World(initial_delay_ms=10)
    first, _ = world.new_member()
    second, _ = world.new_member()
    third, _ = world.new_member()
    world.advance(1)
    world.hold_writes = True
    early = world.sync(second)
    leading = world.sync(first, assignments={first: b"1", second: b"2", third: b"3"})
    assert not early.came
    assert not leading.came
    world.finish_write()
    assert (leading.got.assignment, early.got.assignment) == (b"1", b"2")
    assert (early.got.protocol_type, early.got.protocol_name) == ("consumer", "range")
    assert world.sync(third).got.assignment == b"3"
    written = world.written[-1]
    assert (written.generation, written.leader, written.protocol) == (1, first, "range")
    assert {m.member_id: bytes(m.assignment) for m in written.members} == {
        first: b"1",
        second: b"2",
        third: b"3",
    }
    assert world.rebalances == 1


def test_a_member_that_the_leader_forgot_gets_nothing() -> None:
    world = World(initial_delay_ms=10)
    first, _ = world.new_member()
    second, _ = world.new_member()
    world.advance(1)
    world.sync(first, assignments={first: b"all", "stranger": b"much"})
    answer = world.sync(second)
    assert (answer.got.error_code, answer.got.assignment) == (NONE, b"")


def test_an_assignment_that_is_not_written_makes_everyone_join() -> None:
    world = World(initial_delay_ms=10)
    first, _ = world.new_member()
    second, _ = world.new_member()
    world.advance(1)
    waiting = world.sync(second)
    world.fail_writes = NotCoordinator("gone")
    leading = world.sync(first, assignments={first: b"1"})
    assert leading.got.error_code == waiting.got.error_code == ErrorCode.NOT_COORDINATOR
    assert world.group.state is GroupState.PREPARING_REBALANCE
    assert world.heartbeat(first) == ErrorCode.REBALANCE_IN_PROGRESS


def test_an_assignment_that_was_overtaken_is_not_handed_out() -> None:
    world = World(initial_delay_ms=10)
    first, _ = world.new_member()
    world.advance(1)
    world.hold_writes = True
    leading = world.sync(first, assignments={first: b"all"})
    world.new_member()
    assert leading.got.error_code == ErrorCode.REBALANCE_IN_PROGRESS
    world.finish_write()
    assert world.group.state is GroupState.PREPARING_REBALANCE
    assert world.group.members.by_id[first].assignment == b""


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ({"member_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"generation": 99}, ErrorCode.ILLEGAL_GENERATION),
        ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol": "sticky"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"instance": "i"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"protocol_type": "consumer", "protocol": "range"}, ErrorCode.NONE),
    ],
)
def test_a_sync_has_to_fit_the_group(how: dict[str, str], code: int) -> None:
    world = World()
    (member,) = world.stable(1)
    assert world.sync(**({"member_id": member} | how)).got.error_code == code  # type: ignore[arg-type]


def test_a_sync_while_members_join_is_told_to_join() -> None:
    world = World()
    leader, follower = world.stable(2)
    world.join(leader)
    assert world.sync(follower).got.error_code == ErrorCode.REBALANCE_IN_PROGRESS


def test_a_second_sync_of_a_waiting_member_ends_the_first() -> None:
    world = World(initial_delay_ms=10)
    first, _ = world.new_member()
    second, _ = world.new_member()
    world.advance(1)
    one, two = world.sync(second), world.sync(second)
    assert one.got.error_code == ErrorCode.REBALANCE_IN_PROGRESS
    world.sync(first, assignments={second: b"2"})
    assert two.got.assignment == b"2"


# -- heartbeats and leaving ----------------------------------------------------------------------------


def test_heartbeats_tell_what_is_wrong() -> None:
    world = World()
    (member,) = world.stable(1)
    assert world.heartbeat(member) == NONE
    assert world.heartbeat("nobody") == ErrorCode.UNKNOWN_MEMBER_ID
    assert world.heartbeat(member, 7) == ErrorCode.ILLEGAL_GENERATION
    assert world.heartbeat(member, instance="i") == ErrorCode.UNKNOWN_MEMBER_ID
    world.group.end(NotCoordinator())
    assert world.heartbeat(member) == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_when_the_last_member_leaves_the_group_is_empty_and_that_is_written() -> None:
    world = World()
    (member,) = world.stable(1)
    assert world.leave((member, None)) == [NONE]
    assert world.group.state is GroupState.EMPTY
    written = world.written[-1]
    assert (written.generation, written.members, written.leader, written.protocol) == (2, [], None, None)
    assert written.protocol_type == "consumer"


def test_members_leave_together_and_each_has_its_answer() -> None:
    world = World()
    leader, follower, other = world.stable(3)
    static = world.join(instance="i")
    pending = world.join().got.member_id
    codes = world.leave(
        (follower, None),
        ("nobody", None),
        ("", "i"),
        ("", "nowhere"),
        ("", None),
        (leader, "i"),
        (pending, None),
    )
    unknown = ErrorCode.UNKNOWN_MEMBER_ID
    assert codes == [NONE, unknown, NONE, unknown, unknown, unknown, NONE]
    assert members_of(world) == {leader, other}
    assert static.got.error_code == unknown
    assert world.heartbeat(leader) == ErrorCode.REBALANCE_IN_PROGRESS


def test_when_the_leader_leaves_another_member_leads() -> None:
    world = World()
    leader, follower = world.stable(2)
    world.leave((leader, None))
    assert world.join(follower).got.leader == follower


def test_a_member_that_leaves_while_others_wait_for_it_ends_their_wait() -> None:
    world = World()
    leader, follower = world.stable(2)
    waiting = world.join(leader)
    world.leave((follower, None))
    assert waiting.got.generation_id == 2


def test_a_member_that_leaves_while_it_waits_is_answered() -> None:
    world = World(initial_delay_ms=10)
    _, _ = world.new_member()
    second, _ = world.new_member()
    world.advance(1)
    syncing = world.sync(second)
    world.leave((second, None))
    assert syncing.got.error_code == ErrorCode.UNKNOWN_MEMBER_ID


# -- static members ------------------------------------------------------------------------------------


def static_group(world: World) -> tuple[str, str]:
    """Two static members with their work: the leader "a" and the follower "b"."""
    first = world.join(instance="a", protocols="range sticky")
    second = world.join(instance="b", protocols="range sticky")
    world.advance(1)
    leader, follower = world.settle([first.got.member_id, second.got.member_id], [first, second])
    return leader, follower


def test_a_static_member_needs_no_id_first() -> None:
    world = World()
    answer = world.join(instance="a")
    world.advance(0)
    assert (answer.got.error_code, answer.got.member_id) == (NONE, "a-1")


def test_a_restarted_follower_takes_its_place_without_a_rebalance() -> None:
    world = World(initial_delay_ms=10)
    leader, follower = static_group(world)
    answer = world.join(instance="b", protocols="range sticky")
    new_id = answer.got.member_id
    assert new_id not in (leader, follower)
    assert (answer.got.error_code, answer.got.generation_id, answer.got.leader) == (NONE, 1, leader)
    assert (answer.got.members, answer.got.skip_assignment) == ([], False)
    assert world.sync(new_id, instance="b").got.assignment == f"work of {follower}".encode()
    assert world.heartbeat(leader) == NONE
    assert new_id in {member.member_id for member in world.written[-1].members}


def test_the_one_before_is_fenced() -> None:
    world = World(initial_delay_ms=10)
    _, follower = static_group(world)
    world.join(instance="b", protocols="range sticky")
    assert world.heartbeat(follower, instance="b") == ErrorCode.FENCED_INSTANCE_ID
    assert world.sync(follower, instance="b").got.error_code == ErrorCode.FENCED_INSTANCE_ID
    assert world.join(follower, instance="b").got.error_code == ErrorCode.FENCED_INSTANCE_ID
    assert world.leave((follower, "b")) == [ErrorCode.FENCED_INSTANCE_ID]
    assert world.heartbeat(follower) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_restarted_leader_is_told_not_to_assign() -> None:
    world = World(initial_delay_ms=10)
    static_group(world)
    answer = world.join(instance="a", protocols="range sticky")
    assert answer.got.skip_assignment
    assert answer.got.leader == answer.got.member_id
    assert len(answer.got.members) == 2


def test_a_restarted_leader_of_an_older_version_takes_itself_for_a_follower() -> None:
    world = World(initial_delay_ms=10)
    leader, _ = static_group(world)
    answer = world.join(instance="a", protocols="range sticky", version=8)
    assert not answer.got.skip_assignment
    assert answer.got.leader == leader != answer.got.member_id
    assert answer.got.members == []


def test_a_replacement_that_is_not_written_is_taken_back() -> None:
    world = World(initial_delay_ms=10)
    leader, follower = static_group(world)
    world.fail_writes = CoordinatorNotAvailable("no replicas")
    answer = world.join(instance="b", protocols="range sticky")
    assert answer.got.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert members_of(world) == {leader, follower}
    assert world.heartbeat(follower, instance="b") == NONE


def test_a_replacement_that_changes_the_protocol_makes_everyone_join() -> None:
    world = World(initial_delay_ms=10)
    leader, _ = static_group(world)
    answer = world.join(instance="b", protocols="sticky")
    assert not answer.came
    assert world.heartbeat(leader) == ErrorCode.REBALANCE_IN_PROGRESS
    assert world.join(leader, instance="a", protocols="range sticky").got.generation_id == 2
    assert answer.got.protocol_name == "sticky"


def test_a_member_replaced_while_it_waits_is_told_that_it_is_fenced() -> None:
    world = World(initial_delay_ms=1000)
    first = world.join(instance="a")
    second = world.join(instance="a")
    assert first.got.error_code == ErrorCode.FENCED_INSTANCE_ID
    world.advance(1)
    assert second.got.generation_id == 1
    waiting = world.sync(second.got.member_id, generation=99)
    assert waiting.got.error_code == ErrorCode.ILLEGAL_GENERATION


def test_a_replacement_while_the_leader_assigns_starts_over() -> None:
    world = World(initial_delay_ms=10)
    first = world.join(instance="a")
    second = world.join(instance="b")
    world.advance(1)
    syncing = world.sync(second.got.member_id, instance="b")
    answer = world.join(instance="b")
    assert syncing.got.error_code == ErrorCode.FENCED_INSTANCE_ID
    assert not answer.came
    assert world.join(first.got.member_id, instance="a").got.generation_id == 2
    assert answer.got.generation_id == 2


# -- size ----------------------------------------------------------------------------------------------


def test_a_full_group_takes_nobody() -> None:
    world = World(max_size=2)
    leader, follower = world.stable(2)
    answer = world.join()
    assert (answer.got.error_code, answer.got.member_id) == (ErrorCode.GROUP_MAX_SIZE_REACHED, "")
    assert members_of(world) == {leader, follower}


def test_while_members_join_the_first_to_come_have_the_places() -> None:
    world = World(initial_delay_ms=100, max_size=2)
    ids = [world.join().got.member_id for _ in range(3)]
    answers = [world.join(member_id) for member_id in ids]
    assert answers[2].got.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    world.advance(1)
    assert [answer.got.generation_id for answer in answers[:2]] == [1, 1]


def test_a_group_that_was_loaded_too_large_rebalances() -> None:
    world = World()
    world.stable(3)
    record = world.written[-1]
    small = World(max_size=2)
    small.group = ClassicGroup.restore("g", record, small)
    small.group.start()
    assert small.group.state is GroupState.PREPARING_REBALANCE
    ids = list(small.group.members.by_id)
    answers = [small.join(member_id) for member_id in ids]
    assert [answer.value and answer.value.error_code for answer in answers] == [
        NONE,
        NONE,
        ErrorCode.GROUP_MAX_SIZE_REACHED,
    ]


# -- loading and unloading -----------------------------------------------------------------------------


def test_a_loaded_group_is_the_one_that_was_written() -> None:
    world = World(initial_delay_ms=10)
    leader, follower = static_group(world)
    loaded = World()
    loaded.group = ClassicGroup.restore("g", world.written[-1], loaded)
    loaded.group.start()
    assert (loaded.group.state, loaded.group.generation) == (GroupState.STABLE, 1)
    assert loaded.group.members.leader_id == leader
    assert loaded.heartbeat(follower, instance="b") == NONE
    assert loaded.sync(follower).got.assignment == f"work of {follower}".encode()
    for _ in range(3):
        loaded.advance(4)
        loaded.heartbeat(follower)
    assert members_of(loaded) == {follower}


def test_when_the_group_is_unloaded_everyone_who_waits_is_told() -> None:
    world = World(initial_delay_ms=10)
    first, _ = world.new_member()
    second, _ = world.new_member()
    world.advance(1)
    syncing = world.sync(second)
    joining = World()
    leader, _ = joining.stable(2)
    waiting = joining.join(leader)
    for each in (world, joining):
        each.group.end(NotCoordinator("it moved"))
    assert syncing.got.error_code == waiting.got.error_code == ErrorCode.NOT_COORDINATOR
    assert world.join(first).got.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.sync(first).got.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.group.wake_at == float("inf")


# -- what others ask -----------------------------------------------------------------------------------


def commit(
    world: World, member: str, generation: int, instance: str | None = None, txn: bool = False
) -> None:
    world.group.validate_offset_commit(member, instance, generation, transactional=txn, api_version=9)


def test_only_members_of_the_generation_commit() -> None:
    world = World()
    commit(world, "", -1)  # a simple consumer, of a group that nobody has joined
    with pytest.raises(UnknownMemberId):
        commit(world, "m", 3)
    (member,) = world.stable(1)
    commit(world, member, 1)
    commit(world, "", -1, txn=True)
    for bad, error in [
        (("", -1), UnknownMemberId),
        (("nobody", 1), UnknownMemberId),
        ((member, 2), IllegalGeneration),
        ((member, 1, "i"), UnknownMemberId),
    ]:
        with pytest.raises(error):
            commit(world, *bad)  # type: ignore[arg-type]


def test_nobody_commits_while_the_leader_assigns() -> None:
    world = World()
    member, _ = world.new_member()
    world.advance(0)
    with pytest.raises(RebalanceInProgress):
        commit(world, member, 1)
    commit(world, member, 1, txn=True)


def test_members_may_commit_while_they_are_to_join_again() -> None:
    world = World()
    leader, follower = world.stable(2)
    world.join(leader)
    commit(world, follower, 1)


def test_a_fenced_member_does_not_commit() -> None:
    world = World(initial_delay_ms=10)
    _, follower = static_group(world)
    world.join(instance="b", protocols="range sticky")
    with pytest.raises(FencedInstanceId):
        commit(world, follower, 1, "b")


SUBSCRIPTION = b"\x00\x01\x00\x00\x00\x01\x00\x02t1\xff\xff\xff\xff\x00\x00\x00\x00"


def test_a_group_knows_what_its_consumers_are_subscribed_to() -> None:
    world = World()
    assert not world.group.is_subscribed_to("t1")
    world.stable(1, protocols={"range": SUBSCRIPTION})
    assert world.group.is_subscribed_to("t1")
    assert not world.group.is_subscribed_to("t2")
    other = World()
    other.stable(1, protocols={"range": b"what is this"})
    assert other.group.is_subscribed_to("anything")


def test_only_an_empty_group_is_deleted() -> None:
    world = World()
    world.group.validate_delete()
    (member,) = world.stable(1)
    with pytest.raises(NonEmptyGroup):
        world.group.validate_delete()
    world.group.validate_offset_delete()
    world.leave((member, None))
    world.group.validate_delete()
    world.group.end(NotCoordinator())
    with pytest.raises(GroupIdNotFound):
        world.group.validate_delete()


def test_offsets_of_other_types_of_groups_are_not_deleted_while_they_have_members() -> None:
    world = World()
    world.stable(1, protocol_type="connect")
    with pytest.raises(NonEmptyGroup):
        world.group.validate_offset_delete()


def test_offsets_expire_from_the_commit_or_from_the_time_the_group_became_empty() -> None:
    world = World()
    assert world.group.offset_expiry_base(5) == 5
    (member,) = world.stable(1, protocols={"range": SUBSCRIPTION})
    assert world.group.offset_expiry_base(5) == 5  # subscribed topics are another question
    world.join(member)
    world.advance(0)
    assert world.group.offset_expiry_base(5) is None
    world.advance(3)
    world.leave((member, None))
    assert world.group.offset_expiry_base(5) == world.clock.ms()
    connect = World()
    connect.stable(1, protocol_type="connect")
    assert connect.group.offset_expiry_base(5) is None


def test_a_jump_of_the_wall_clock_removes_nobody() -> None:
    world = World()
    (member,) = world.stable(1, session_ms=10_000)
    world.clock.jump_to(world.clock.ms() + 10**9)
    world.advance(9)
    assert world.heartbeat(member) == NONE


def test_a_heartbeat_asks_for_no_new_timer() -> None:
    world = World()
    (member,) = world.stable(1, session_ms=10_000)
    world.advance(1)
    before = world.group.wake_at
    assert world.heartbeat(member) == NONE
    assert world.group.wake_at == before
