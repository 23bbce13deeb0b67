"""Members of groups made of plain requests: quick, many, and rebalancing all the time.

Each commits ever higher numbers for the partitions that it is given, and the register remembers which of
them were sent, acknowledged and refused.
"""

from __future__ import annotations

import random
import threading
import uuid
from collections import defaultdict

from tests.groups.outside import GONE, NOT_NOW, commit
from tests.support.raw import RawConnection
from tests.support.routing import routed_connection
from tests.support.wait import eventually
from tidelog.errors import ErrorCode
from tidelog.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from tidelog.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tidelog.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from tidelog.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from tidelog.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

SESSION_MS = 3000
REFUSED = (
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.STALE_MEMBER_EPOCH,
    ErrorCode.GROUP_ID_NOT_FOUND,
)


class Register:
    """What the members know of the offsets that they committed, by partition."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next = 0
        self.acknowledged: defaultdict[int, int] = defaultdict(int)
        self.unsure: defaultdict[int, set[int]] = defaultdict(set)
        self.rounds = 0  # how often members got their part of a new generation

    def number(self, partition: int) -> int:
        with self._lock:
            self._next += 1
            self.unsure[partition].add(self._next)
            return self._next

    def settle(self, partition: int, number: int, codes: set[int]) -> bool:
        """Whether the commit was taken."""
        with self._lock:
            if codes == {0}:
                self.unsure[partition].discard(number)
                self.acknowledged[partition] = max(number, self.acknowledged[partition])
            elif codes <= {*REFUSED, *NOT_NOW}:
                self.unsure[partition].discard(number)
            else:
                raise AssertionError(f"a commit was answered with {[ErrorCode(code).name for code in codes]}")
            return codes == {0}

    def explains(self, partition: int, found: int) -> bool:
        """Whether the broker may name this: the last acknowledged, or a later one of unknown outcome."""
        last = self.acknowledged[partition]
        return found == last or (found > last and found in self.unsure[partition])

    def new_round(self) -> None:
        with self._lock:
            self.rounds += 1


class RawMember:
    """A member in a thread, which lives until the broker is gone; `failure` is what must not happen."""

    def __init__(self, bootstrap: str, group: str, topic: str, partitions: int, register: Register) -> None:
        self.group = group
        self.topic = topic
        self.partitions = partitions
        self.register = register
        self.member_id = ""
        self.failure: BaseException | None = None
        self.chance = random.Random(0)
        self._bootstrap = bootstrap
        self._thread = threading.Thread()

    def start(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()

    def join(self) -> None:
        self._thread.join(30)
        assert not self._thread.is_alive(), f"{self.member_id} does not end with its broker"
        if self.failure is not None:
            raise self.failure

    def _live(self) -> None:
        try:
            with routed_connection(self._bootstrap, client_id="raw") as connection:
                while True:
                    self.take_part(connection)
        except GONE:
            pass
        except BaseException as error:
            self.failure = error

    def take_part(self, connection: RawConnection) -> None:
        """From one join to the next."""
        raise NotImplementedError

    def commit_some(self, connection: RawConnection, owned: list[int], epoch: int) -> bool:
        """Whether the group still takes this member's commits."""
        for partition in owned:
            number = self.register.number(partition)
            codes = commit(connection, self.group, {(self.topic, partition): number}, epoch, self.member_id)
            if not self.register.settle(partition, number, codes):
                return False
        return True


class ClassicMember(RawMember):
    def take_part(self, connection: RawConnection) -> None:
        joined = self._join(connection)
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = joined.member_id
            joined = self._join(connection)
        if joined.error_code:
            assert joined.error_code in (*REFUSED, *NOT_NOW), ErrorCode(joined.error_code).name
            self.member_id = "" if joined.error_code == ErrorCode.UNKNOWN_MEMBER_ID else self.member_id
            return
        owned = self._sync(connection, joined)
        if owned is None:
            return
        self.register.new_round()
        for _ in range(self.chance.randrange(1, 6)):
            if not self.commit_some(connection, owned, joined.generation_id):
                return
            if self._heartbeat(connection, joined.generation_id):
                return
        if self.chance.random() < 0.5:
            self._leave(connection)

    def _join(self, connection: RawConnection) -> JoinGroupResponse:
        protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="share", metadata=b"m")
        request = JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=SESSION_MS,
            member_id=self.member_id,
            protocol_type="raw",
            protocols=[protocol],
        )
        return connection.ask(request, JoinGroupResponse, 7, 20)

    def _sync(self, connection: RawConnection, joined: JoinGroupResponse) -> list[int] | None:
        members = sorted(member.member_id for member in joined.members)
        request = SyncGroupRequest(
            group_id=self.group,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            protocol_type="raw",
            protocol_name="share",
            assignments=[
                SyncGroupRequest.SyncGroupRequestAssignment(
                    member_id=member, assignment=bytes(range(at, self.partitions, len(members)))
                )
                for at, member in enumerate(members)
            ],
        )
        answer = connection.ask(request, SyncGroupResponse, 5, 20)
        if answer.error_code:
            assert answer.error_code in (*REFUSED, *NOT_NOW), ErrorCode(answer.error_code).name
            return None
        return list(answer.assignment)

    def _heartbeat(self, connection: RawConnection, generation: int) -> int:
        request = HeartbeatRequest(group_id=self.group, generation_id=generation, member_id=self.member_id)
        code = connection.ask(request, HeartbeatResponse, 4).error_code
        assert code in (0, *REFUSED, *NOT_NOW), ErrorCode(code).name
        return code

    def _leave(self, connection: RawConnection) -> None:
        member = LeaveGroupRequest.MemberIdentity(member_id=self.member_id)
        connection.ask(LeaveGroupRequest(group_id=self.group, members=[member]), LeaveGroupResponse, 4)
        self.member_id = ""


class ConsumerMember(RawMember):
    """The member of a consumer group: its heartbeats do everything."""

    def take_part(self, connection: RawConnection) -> None:
        self.member_id = self.member_id or str(uuid.UUID(int=self.chance.getrandbits(128)))
        answer = self._heartbeat(connection, 0, [])
        owned: list[int] = []
        topic_id = b""
        for _ in range(self.chance.randrange(4, 20)):
            if answer.error_code:
                assert answer.error_code in (*REFUSED, *NOT_NOW), ErrorCode(answer.error_code).name
                self.member_id = ""
                return
            if answer.assignment is not None:
                given = [topic for topic in answer.assignment.topic_partitions if topic.partitions]
                owned = [partition for topic in given for partition in topic.partitions]
                topic_id = given[0].topic_id if given else topic_id
                self.register.new_round()
            self.commit_some(connection, owned, answer.member_epoch)
            answer = self._heartbeat(connection, answer.member_epoch, owned, topic_id)
        if self.chance.random() < 0.5:
            self._heartbeat(connection, -1, [])
            self.member_id = ""

    def _heartbeat(
        self, connection: RawConnection, epoch: int, owned: list[int], topic_id: bytes = b""
    ) -> ConsumerGroupHeartbeatResponse:
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group, member_id=self.member_id, member_epoch=epoch, topic_partitions=None
        )
        if epoch == 0:
            request.rebalance_timeout_ms = SESSION_MS
            request.subscribed_topic_names = [self.topic]
            request.topic_partitions = []
        elif epoch > 0:
            owned_topic = ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id=topic_id, partitions=owned)
            request.topic_partitions = [owned_topic] if owned else []
        return connection.ask(request, ConsumerGroupHeartbeatResponse, 1)


def wait_for_rounds(register: Register, members: list[RawMember], more: int) -> None:
    """Until members got their part so many times more."""
    wanted = register.rounds + more

    def enough() -> bool:
        failed = next((member.failure for member in members if member.failure is not None), None)
        if failed is not None:
            raise failed
        return register.rounds >= wanted

    eventually(enough, f"{more} more rounds of the group", 30, 0.002)
