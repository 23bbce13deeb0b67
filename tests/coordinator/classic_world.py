"""A classic group without a broker: its clock, its log and its ids are moved by the test."""

from __future__ import annotations

import itertools
from collections import deque
from typing import Generic, TypeVar

from tidelog.clock import ManualClock
from tidelog.config.values import ConfigValue
from tidelog.coordinator.group.classic import ClassicGroup
from tidelog.coordinator.group.classic_state import Client
from tidelog.coordinator.group.records import read_group_value
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.coordinator.runtime import Done, NewRecord
from tidelog.errors import KafkaError
from tidelog.protocol.messages.group_records import GroupMetadataValue
from tidelog.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from tidelog.protocol.messages.leave_group import LeaveGroupRequest
from tidelog.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

A = TypeVar("A")


class Answer(Generic[A]):
    """What a request was answered with: nothing yet, or once."""

    def __init__(self) -> None:
        self.value: A | None = None

    def __call__(self, value: A) -> None:
        assert self.value is None, "answered twice"
        self.value = value

    @property
    def came(self) -> bool:
        return self.value is not None

    @property
    def got(self) -> A:
        assert self.value is not None, "not answered"
        return self.value


Joined = Answer[JoinGroupResponse]
Synced = Answer[SyncGroupResponse]


class World:
    """One group and what surrounds it. `hold_writes` keeps appends open until `finish_write`."""

    def __init__(self, *, kind: type[ClassicGroup] = ClassicGroup, **settings: int) -> None:
        self.clock = ManualClock()
        self.values: dict[str, ConfigValue] = {
            "group.initial.rebalance.delay.ms": settings.get("initial_delay_ms", 0),
            "group.max.size": settings.get("max_size", 2**31 - 1),
            "group.min.session.timeout.ms": 6000,
            "group.max.session.timeout.ms": 1_800_000,
        }
        self.settings = GroupSettings(self.values.__getitem__)
        self.hold_writes = False
        self.fail_writes: KafkaError | None = None
        self.held: deque[tuple[NewRecord, Done]] = deque()
        self.written: list[GroupMetadataValue] = []
        self.rebalances = 0
        self._ids = itertools.count(1)
        self.group = kind("g", self)

    # -- ClassicGroupHost ------------------------------------------------------------------------------

    def write(self, group: ClassicGroup, record: NewRecord, done: Done) -> None:
        self.held.append((record, done))
        if not self.hold_writes:
            self.finish_write(self.fail_writes)

    def wake(self, group: ClassicGroup) -> None:
        pass  # `advance` looks at wake_at

    def new_member_id(self, prefix: str) -> str:
        return f"{prefix}-{next(self._ids)}"

    def rebalanced(self, group: ClassicGroup) -> None:
        self.rebalances += 1

    # -- what tests do -----------------------------------------------------------------------------

    def finish_write(self, error: KafkaError | None = None) -> None:
        record, done = self.held.popleft()
        if error is None:
            assert record.value is not None
            self.written.append(read_group_value(record.value))
        done(error)

    def advance(self, seconds: float) -> None:
        """Let time pass, waking the group as often as it asks for it."""
        until = self.clock.monotonic() + seconds
        while self.group.wake_at <= until:
            self.clock.advance(max(self.group.wake_at - self.clock.monotonic(), 0.0))
            self.group.expire()
        self.clock.advance(max(until - self.clock.monotonic(), 0.0))

    def join(
        self,
        member_id: str = "",
        *,
        instance: str | None = None,
        protocols: str | dict[str, bytes] = "range",
        protocol_type: str = "consumer",
        session_ms: int = 10_000,
        rebalance_ms: int = 30_000,
        version: int = 9,
        reason: str | None = None,
        client: str = "c",
    ) -> Joined:
        named = protocols if isinstance(protocols, dict) else dict.fromkeys(protocols.split(), b"")
        request = JoinGroupRequest(
            group_id="g",
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocols=[
                JoinGroupRequest.JoinGroupRequestProtocol(name=name, metadata=metadata)
                for name, metadata in named.items()
            ],
            reason=reason,
        )
        answer: Joined = Answer()
        self.group.join(request, Client(client, "/127.0.0.1", version), answer)
        return answer

    def sync(
        self,
        member_id: str,
        generation: int | None = None,
        assignments: dict[str, bytes] | None = None,
        *,
        instance: str | None = None,
        protocol_type: str | None = None,
        protocol: str | None = None,
    ) -> Synced:
        request = SyncGroupRequest(
            group_id="g",
            generation_id=self.group.generation if generation is None else generation,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocol_name=protocol,
            assignments=[
                SyncGroupRequest.SyncGroupRequestAssignment(member_id=name, assignment=assignment)
                for name, assignment in (assignments or {}).items()
            ],
        )
        answer: Synced = Answer()
        self.group.sync(request, answer)
        return answer

    def heartbeat(self, member_id: str, generation: int | None = None, instance: str | None = None) -> int:
        try:
            return self.group.heartbeat(
                member_id, instance, self.group.generation if generation is None else generation
            )
        except KafkaError as error:
            return error.code

    def leave(self, *leaving: tuple[str, str | None]) -> list[int]:
        """The error code for each of (member id, instance)."""
        identities = [
            LeaveGroupRequest.MemberIdentity(member_id=member_id, group_instance_id=instance)
            for member_id, instance in leaving
        ]
        return [answer.error_code for answer in self.group.leave(identities)]

    # -- stories that tests start from -------------------------------------------------------------

    def new_member(self, **how: object) -> tuple[str, Joined]:
        """A dynamic member as clients of today join: it asks for an id, and joins with it."""
        first = self.join(**how)  # type: ignore[arg-type]
        member_id = first.got.member_id
        return member_id, self.join(member_id, **how)  # type: ignore[arg-type]

    def stable(self, size: int = 2, **how: object) -> list[str]:
        """A group of so many members that have their assignments: "work of" and the id."""
        members = [self.new_member(**how) for _ in range(size)]
        self.advance(0.0)
        return self.settle([member_id for member_id, _ in members], [answer for _, answer in members])

    def settle(self, member_ids: list[str], answers: list[Joined]) -> list[str]:
        """Sync everyone who joined; the leader first, who comes first in the list, too."""
        for member_id, answer in zip(member_ids, answers, strict=True):
            assert answer.got.error_code == 0
            assert answer.got.member_id == member_id
        leader = answers[0].got.leader
        work = {member_id: f"work of {member_id}".encode() for member_id in member_ids}
        assert self.sync(leader, assignments=work).got.error_code == 0
        for member_id in member_ids:
            assert self.sync(member_id).got.assignment == work[member_id]
        return sorted(member_ids, key=lambda member_id: member_id != leader)
