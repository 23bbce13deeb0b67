"""The member of a classic group, against a coordinator whose answers the test gives."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import cast

import pytest

from tidelog.clients.consumer.assignors import assignment_bytes, read_member
from tidelog.clients.consumer.classic_group import ClassicGroup
from tidelog.clients.consumer.commits import Coordinator, GroupOffsets
from tidelog.clients.consumer.interceptors import Interceptors
from tidelog.clients.consumer.membership import ASSIGNED, LOST, REVOKED, MembershipContext
from tidelog.clients.consumer.metrics import ConsumerMetrics
from tidelog.clients.consumer.partitions import SubscriptionState
from tidelog.clients.errors import CommitFailedException
from tidelog.clients.offsets import OffsetAndMetadata
from tidelog.clients.settings import consumer_settings
from tidelog.errors import CoordinatorLoadInProgress, ErrorCode, KafkaError, UnknownMemberId
from tidelog.partitions import TopicPartition
from tidelog.protocol.message import Message
from tidelog.protocol.messages.heartbeat import HeartbeatResponse
from tidelog.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from tidelog.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from tidelog.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

FIRST, SECOND = TopicPartition("t", 0), TopicPartition("t", 1)
LATER = 5.0


class ScriptedCoordinator:
    """Answers joins with rising generations. A test may hold the joins, and says what each sync assigns."""

    group_id = "g"

    def __init__(self) -> None:
        self.generation = 0
        self.assignment: list[TopicPartition] = []
        self.may_join = asyncio.Event()
        self.may_join.set()
        self.joins: list[JoinGroupRequest] = []
        self.failing_syncs = 0
        self.commits: list[OffsetCommitRequest] = []
        self.instead_of_commits: list[Callable[[], Coroutine[None, None, None]]] = []
        self.client = SimpleNamespace(retry_backoff=SimpleNamespace(delay=lambda attempt: 0.0))
        self.trouble = None

    async def connection(self) -> ScriptedCoordinator:
        return self

    def note(self, error: KafkaError) -> None:
        if not isinstance(error, CoordinatorLoadInProgress):
            raise error

    def version_for(self, request: type[Message], *, at_most: int | None = None) -> int:
        return request.VERSIONS[1] if at_most is None else at_most

    async def call(self, request: Message, answer: type[Message], **how: object) -> Message:
        if isinstance(request, JoinGroupRequest):
            self.joins.append(request)
            await self.may_join.wait()
            self.generation += 1
            return JoinGroupResponse(
                generation_id=self.generation,
                protocol_name="cooperative-sticky",
                leader="another",
                member_id=request.member_id or f"m{self.generation}",
            )
        if isinstance(request, SyncGroupRequest):
            if self.failing_syncs:
                self.failing_syncs -= 1
                return SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
            return SyncGroupResponse(assignment=assignment_bytes(self.assignment))
        if isinstance(request, OffsetCommitRequest):
            if self.instead_of_commits:
                await self.instead_of_commits.pop()()
                raise CoordinatorLoadInProgress("it is loading")
            self.commits.append(request)
            return OffsetCommitResponse()
        return HeartbeatResponse()


class Membership:
    def __init__(self) -> None:
        self.coordinator = ScriptedCoordinator()
        self.told: list[tuple[str, list[TopicPartition]]] = []
        subscription = SubscriptionState()
        subscription.subscribe(["t"])
        around = SimpleNamespace(
            client=None,
            settings=consumer_settings(
                bootstrap_servers="127.0.0.1:1",
                group_id="g",
                partition_assignment_strategy="cooperative-sticky",
            ),
            coordinator=self.coordinator,
            subscription=subscription,
            metrics=ConsumerMetrics(),
            wake=lambda: None,
            tell=self._tell,
            commit_owned=self._commit,
            reassigned=lambda: None,
        )
        self.group = ClassicGroup(cast(MembershipContext, around))

    async def _tell(self, kind: str, partitions: list[TopicPartition]) -> None:
        if partitions:
            self.told.append((kind, partitions))

    async def _commit(self) -> None:
        """Nothing is committed by itself."""

    async def poll(self, seconds: float = LATER) -> None:
        await self.group.poll(asyncio.get_running_loop().time() + seconds)


def run(story: Callable[[Membership], Coroutine[None, None, None]]) -> None:
    async def main() -> None:
        member = Membership()
        try:
            await story(member)
        finally:
            await member.group.close()

    asyncio.run(main())


def test_a_cooperative_member_revokes_what_it_is_not_assigned_any_more() -> None:
    async def story(member: Membership) -> None:
        member.coordinator.assignment = [FIRST, SECOND]
        await member.poll()
        member.coordinator.assignment = [FIRST]
        member.group.request_rejoin("another member came")
        await member.poll()
        assert member.told == [(ASSIGNED, [FIRST, SECOND]), (REVOKED, [SECOND])]

    run(story)


def test_a_member_that_is_removed_while_it_joins_has_lost_its_partitions() -> None:
    """A commit of them would be valid in the new generation, and set the offsets of other members back."""

    async def story(member: Membership) -> None:
        member.coordinator.assignment = [FIRST, SECOND]
        await member.poll()
        before = member.group.identity()
        member.coordinator.may_join.clear()
        member.group.request_rejoin("another member came")
        await member.poll(0.0)
        member.group.refused(UnknownMemberId("the session expired"), before)
        member.coordinator.assignment = [FIRST]
        member.coordinator.may_join.set()
        await member.poll()
        assert member.told == [(ASSIGNED, [FIRST, SECOND]), (LOST, [FIRST, SECOND]), (ASSIGNED, [FIRST])]

    run(story)


def test_a_member_that_was_removed_commits_nothing_until_it_has_given_up_its_partitions() -> None:
    """The join is done in the background: it is a member again before the poll that loses the partitions."""

    async def story(member: Membership) -> None:
        member.coordinator.assignment = [FIRST, SECOND]
        await member.poll()
        before = member.group.identity()
        member.coordinator.may_join.clear()
        member.group.request_rejoin("another member came")
        await member.poll(0.0)
        member.group.refused(UnknownMemberId("the session expired"), before)
        member.coordinator.assignment = [FIRST]
        member.coordinator.may_join.set()
        async with asyncio.timeout(LATER):
            while member.group.identity().epoch < 2:
                await asyncio.sleep(0)
        with pytest.raises(CommitFailedException):
            member.group.check_commit()
        await member.poll()
        member.group.check_commit()

    run(story)


def test_offsets_of_a_transaction_are_those_of_the_member_that_got_the_partitions() -> None:
    """The group refuses a member that it removed. A member of the next generation could set offsets back."""

    async def story(member: Membership) -> None:
        def owner() -> tuple[str, int]:
            found = member.group.owner_of_offsets()
            return found.member_id, found.epoch

        assert owner() == ("", -1)
        member.coordinator.assignment = [FIRST, SECOND]
        await member.poll()
        before = member.group.identity()
        assert owner() == (before.member_id, 1)
        member.coordinator.may_join.clear()
        member.group.request_rejoin("another member came")
        await member.poll(0.0)
        member.group.refused(UnknownMemberId("the session expired"), before)
        assert owner() == (before.member_id, 1)
        member.coordinator.may_join.set()
        async with asyncio.timeout(LATER):
            while member.group.identity().epoch < 2:
                await asyncio.sleep(0)
        assert owner() == (before.member_id, 1)
        await member.poll()
        after = member.group.identity()
        assert owner() == (after.member_id, after.epoch)
        assert after.epoch > 1

    run(story)


def test_a_commit_is_not_tried_again_as_the_next_membership() -> None:
    async def story(member: Membership) -> None:
        member.coordinator.assignment = [FIRST]
        await member.poll()
        coordinator = member.coordinator
        offsets = GroupOffsets(
            cast(Coordinator, coordinator),
            member.group.identity,
            member.group.refused,
            ConsumerMetrics(),
            Interceptors([]),
        )
        before = member.group.identity()

        async def lose_and_join_again() -> None:
            member.group.refused(UnknownMemberId("the session expired"), before)
            await member.poll()

        coordinator.instead_of_commits = [lose_and_join_again]
        with pytest.raises(CommitFailedException, match="came too late"):
            await offsets.commit({FIRST: OffsetAndMetadata(45)}, LATER)
        assert coordinator.commits == []
        await offsets.commit({FIRST: OffsetAndMetadata(46)}, LATER)
        (commit,) = coordinator.commits
        assert commit.generation_id_or_member_epoch == member.group.identity().epoch == 2

    run(story)


def test_a_member_that_is_removed_between_two_attempts_to_join_claims_nothing_any_more() -> None:
    """The leader leaves out partitions of another member until that one gives them up, and joins again."""

    async def story(member: Membership) -> None:
        member.coordinator.assignment = [FIRST, SECOND]
        await member.poll()
        before = member.group.identity()
        member.coordinator.may_join.clear()
        member.coordinator.failing_syncs = 1
        member.group.request_rejoin("another member came")
        await member.poll(0.0)
        member.group.refused(UnknownMemberId("the session expired"), before)
        member.coordinator.may_join.set()
        await member.poll()
        _, claimed, after = (
            read_member("m", None, bytes(request.protocols[0].metadata)).owned
            for request in member.coordinator.joins
        )
        assert claimed == {FIRST, SECOND}
        assert after == frozenset()
        assert member.group.owned == {FIRST, SECOND}

    run(story)
