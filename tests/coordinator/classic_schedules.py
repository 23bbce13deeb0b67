"""Random lives of a classic group, replayed by their seed, and the checker that watches them.

Clients join, sync, beat, leave, vanish, are started again and send what nobody asked for; writes take their
time or fail; clocks jump; the coordinator itself is restarted from what was written last.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from tests.coordinator.classic_world import Answer, Joined, Synced, World
from tidelog.coordinator.group.classic import ClassicGroup
from tidelog.coordinator.group.classic_state import GroupState
from tidelog.errors import CoordinatorNotAvailable, ErrorCode, NotCoordinator
from tidelog.protocol.messages.join_group import JoinGroupResponse
from tidelog.protocol.messages.sync_group import SyncGroupResponse

PARTITIONS = 6
REBALANCE_MS = 20_000
# A client that is always on time beats well within its session.
BEAT_SECONDS = 3.0
LONGEST_WRITE_SECONDS = 4.0
LONGEST_WAIT_SECONDS = REBALANCE_MS / 1000 + LONGEST_WRITE_SECONDS + 4.0


@dataclass(slots=True)
class SimulatedClient:
    """What a client believes of itself."""

    name: str
    instance: str | None
    version: int
    is_punctual: bool
    protocols: str = "range sticky"
    member_id: str = ""
    generation: int = -1
    has_work: bool = False
    joining: Joined | None = None
    syncing: Synced | None = None
    last_beat: float = 0.0
    is_gone: bool = False
    told: list[JoinGroupResponse.JoinGroupResponseMember] = field(default_factory=list)
    leads: bool = False

    @property
    def waits(self) -> bool:
        return self.joining is not None or self.syncing is not None

    def forget(self) -> None:
        """A new process of the same configuration, or one that has to begin anew."""
        self.member_id, self.generation, self.has_work = "", -1, False
        self.joining = self.syncing = None
        self.leads, self.told = False, []


@dataclass(slots=True)
class _Wait:
    member_id: str
    since: float
    answer: Answer[JoinGroupResponse] | Answer[SyncGroupResponse]
    what: str


class Checker:
    """What holds in every life of a group; an AssertionError says what did not."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.waits: list[_Wait] = []
        self.generation = 0
        self.changed_at = 0.0
        self.incarnation = 0
        # A static member that was started again is the same one under a new id.
        self.identities: dict[str, str] = {}
        self.fenced: set[str] = set()
        self.left: set[str] = set()
        self.leaders: dict[tuple[int, int], str] = {}
        self.given: dict[tuple[int, int], dict[str, bytes]] = {}
        self.owners: dict[tuple[int, int, int], str] = {}
        self.heard: dict[str, float] = {}

    def identity(self, member_id: str) -> str:
        return self.identities.get(member_id, member_id)

    def restarted(self) -> None:
        self.incarnation += 1
        self.generation = self.world.group.generation
        self.changed_at = self.world.clock.monotonic()
        self.fenced = {i for i in self.fenced if i not in self.world.group.members.by_id}
        self.left = {i for i in self.left if i not in self.world.group.members.by_id}

    def wait(
        self, member_id: str, answer: Answer[JoinGroupResponse] | Answer[SyncGroupResponse], what: str
    ) -> None:
        self.waits.append(_Wait(member_id, self.world.clock.monotonic(), answer, what))

    def key(self, generation: int) -> tuple[int, int]:
        return self.incarnation, generation

    # -- answers -----------------------------------------------------------------------------------

    def joined(self, answer: JoinGroupResponse) -> None:
        """A join was answered without an error."""
        member_id, generation = answer.member_id, answer.generation_id
        self.accepted(member_id, f"join of generation {generation}")
        assert generation == self.world.group.generation, "an answer of another generation"
        identity = self.identity(member_id)
        leader = self.leaders.setdefault(self.key(generation), self.identity(answer.leader))
        assert leader == self.identity(answer.leader), f"two leaders in generation {generation}"
        if answer.members:
            assert identity == leader, f"{member_id} is told the members and does not lead"
            assert member_id in {member.member_id for member in answer.members}, "the leader is no member"
        elif answer.leader == member_id:
            raise AssertionError(f"{member_id} leads and is not told the members")

    def gave(self, generation: int, assignments: dict[str, bytes]) -> None:
        self.given[self.key(generation)] = {self.identity(id_): work for id_, work in assignments.items()}

    def synced(self, member_id: str, generation: int, answer: SyncGroupResponse) -> None:
        self.accepted(member_id, f"sync of generation {generation}")
        identity = self.identity(member_id)
        assignment = bytes(answer.assignment)
        if self.key(generation) in self.given:
            expected = self.given[self.key(generation)].get(identity, b"")
            assert assignment == expected, f"{member_id} got {assignment!r}, the leader gave {expected!r}"
        for partition in assignment:
            owner = self.owners.setdefault((*self.key(generation), partition), identity)
            assert owner == identity, f"{partition} belongs to {owner} and to {identity}"

    def accepted(self, member_id: str, what: str) -> None:
        assert member_id not in self.fenced, f"{what}: {member_id} was replaced and is let in"
        assert member_id not in self.left, f"{what}: {member_id} left and is let in"
        self.heard[member_id] = self.world.clock.monotonic()

    def beat(self, member_id: str, generation: int, code: int) -> None:
        if code in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS):
            self.accepted(member_id, "heartbeat")
            assert generation == self.world.group.generation, "a heartbeat of another generation is taken"

    # -- at every moment ---------------------------------------------------------------------------

    def check(self) -> None:
        group, now = self.world.group, self.world.clock.monotonic()
        members = group.members
        assert group.generation >= self.generation, "the generation went back"
        if group.generation != self.generation:
            self.generation, self.changed_at = group.generation, now
        assert members.awaiting_join == sum(m.awaiting_join is not None for m in members.by_id.values())
        assert set(members.pending_syncs) <= set(members.by_id), "a sync is awaited of nobody"
        assert not set(members.pending_joins) & set(members.by_id)
        statics = {m.instance_id: m.member_id for m in members.by_id.values() if m.instance_id is not None}
        assert members.static_ids == statics, "instances and members differ"
        for member_id in self.fenced & set(members.static_ids.values()):
            # Its replacement was not written, and it is itself again.
            self.fenced.discard(member_id)
            self.heard[member_id] = now
        if members:
            assert members.leader_id in members.by_id, "the leader is no member"
        assert not self.left & set(members.by_id), "a member that left is there"
        if group.state is GroupState.EMPTY:
            assert not members, "an empty group has members"
        if group.state is GroupState.STABLE:
            work = sorted(p for member in members.by_id.values() for p in member.assignment)
            assert work == list(range(PARTITIONS)), f"work of a stable group has no owner or two: {work}"
        for wait in self.waits:
            waited = now - wait.since
            assert wait.answer.came or waited <= LONGEST_WAIT_SECONDS, f"{wait.what} waits for {waited} s"
            if wait.answer.came:
                self.heard[wait.member_id] = now
        self.waits = [wait for wait in self.waits if not wait.answer.came]
        for member in members.by_id.values():
            if member.awaiting_join is None and member.awaiting_sync is None:
                silent = now - max(self.heard.get(member.member_id, 0.0), self.changed_at)
                assert silent <= member.session_timeout_ms / 1000 + 0.01, f"{member.member_id} is long dead"


class Schedule:
    """One life: `run` lives it, then lets everyone come to rest."""

    def __init__(self, seed: int, kind: type[ClassicGroup] = ClassicGroup) -> None:
        self.random = random.Random(seed)
        self.kind = kind
        self.world = World(kind=kind, initial_delay_ms=self.random.choice([0, 500, 3000]))
        self.world.hold_writes = True
        # Shorter or longer than a rebalance may take: who is absent fails by the one or by the other.
        self.session_ms = self.random.choice([10_000, 40_000])
        self.checker = Checker(self.world)
        self.write_since: list[float] = []
        self.clients = [self._client(number) for number in range(self.random.randint(2, 6))]

    def _client(self, number: int) -> SimulatedClient:
        draw = self.random.random
        return SimulatedClient(
            f"c{number}",
            f"i{number}" if draw() < 0.4 else None,
            self.random.choice([3, 4, 8, 9]) if draw() < 0.4 else 9,
            is_punctual=draw() < 0.4,
        )

    def run(self, steps: int = 120) -> None:
        for _ in range(steps):
            self._act(self.random.choice(self.clients))
            self._pass_time(self.random.choice([0.0, 0.0, 0.1, 0.5, 1.0, 2.0]))
        self._rest()

    # -- time --------------------------------------------------------------------------------------

    def _pass_time(self, seconds: float) -> None:
        until = self.world.clock.monotonic() + seconds
        while True:
            self._finish_writes()
            self._follow_up()
            self.checker.check()
            left = until - self.world.clock.monotonic()
            if left <= 0:
                return
            self.world.advance(min(left, 0.5))

    def _finish_writes(self) -> None:
        now = self.world.clock.monotonic()
        self.write_since += [now] * (len(self.world.held) - len(self.write_since))
        while self.world.held:
            overdue = now - self.write_since[0] >= LONGEST_WRITE_SECONDS - 1
            if not overdue and self.random.random() < 0.4:
                return
            del self.write_since[0]
            failed = self.random.random() < 0.1
            self.world.finish_write(CoordinatorNotAvailable("the disk is full") if failed else None)
            self.write_since += [now] * (len(self.world.held) - len(self.write_since))

    def _follow_up(self) -> None:
        """Take the answers that came, and do what punctual clients do by themselves."""
        for client in self.clients:
            self._take_answers(client)
            if client.is_punctual and not client.is_gone:
                self._be_punctual(client)

    def _be_punctual(self, client: SimulatedClient) -> None:
        now = self.world.clock.monotonic()
        if client.waits:
            return
        if client.generation < 0:
            self._join(client)
        elif not client.has_work:
            self._sync(client)
        elif now - client.last_beat >= BEAT_SECONDS:
            self._beat(client)

    # -- what clients do ---------------------------------------------------------------------------

    def _act(self, client: SimulatedClient) -> None:
        draw = self.random.random()
        if draw < 0.02:
            self._restart_coordinator()
        elif draw < 0.04:
            self.world.clock.jump_to(self.world.clock.ms() + self.random.randint(-(10**7), 10**7))
        elif draw < 0.08:
            self._stray_request(client)
        elif draw < 0.11:
            self._leave(client)
        elif draw < 0.15 and not client.is_punctual:
            client.is_gone = not client.is_gone
            client.forget()
        elif draw < 0.18:
            self._start_again(client)
        elif client.is_gone or client.is_punctual:
            return
        elif draw < 0.25 and client.member_id:
            client.protocols = self.random.choice(["range sticky", "sticky range", "range"])
            self._join(client)
        elif client.generation < 0:
            self._join(client)
        elif not client.has_work and draw < 0.8:
            self._sync(client)
        else:
            self._beat(client)

    def _start_again(self, client: SimulatedClient) -> None:
        """A process ends without a word and a new one begins; an old one may still be about."""
        client.forget()
        client.is_gone = False
        self._join(client)

    def _join(self, client: SimulatedClient) -> None:
        before = client.member_id
        group = self.world.group
        known = group.members.static_ids.get(client.instance) if client.instance and not before else None
        answer = self.world.join(
            before,
            instance=client.instance,
            protocols=client.protocols,
            version=client.version,
            session_ms=self.session_ms,
            rebalance_ms=REBALANCE_MS,
            client=client.name,
        )
        client.joining, client.syncing = answer, None
        client.generation, client.has_work = -1, False
        new_id = group.members.static_ids.get(client.instance) if client.instance else None
        if known is not None and new_id is not None and new_id != known:
            self.checker.identities[new_id] = self.checker.identity(known)
            self.checker.fenced.add(known)
        self.checker.wait(before or new_id or "", answer, f"join of {client.name}")
        self._take_answers(client)

    def _sync(self, client: SimulatedClient) -> None:
        assignments: dict[str, bytes] = {}
        if client.leads and client.told:
            shares: dict[str, list[int]] = {member.member_id: [] for member in client.told}
            for partition in range(PARTITIONS):
                owner = client.told[(partition + client.generation) % len(client.told)].member_id
                shares[owner].append(partition)
            assignments = {member_id: bytes(share) for member_id, share in shares.items()}
        answer = self.world.sync(client.member_id, client.generation, assignments, instance=client.instance)
        if assignments and not answer.came:
            self.checker.gave(client.generation, assignments)
        client.syncing = answer
        self.checker.wait(client.member_id, answer, f"sync of {client.name}")
        self._take_answers(client)

    def _beat(self, client: SimulatedClient) -> None:
        client.last_beat = self.world.clock.monotonic()
        code = self.world.heartbeat(client.member_id, client.generation, client.instance)
        self.checker.beat(client.member_id, client.generation, code)
        self._take_code(client, code)

    def _leave(self, client: SimulatedClient) -> None:
        if not client.member_id:
            return
        (code,) = self.world.leave((client.member_id, client.instance))
        if code == ErrorCode.NONE:
            self.checker.left.add(client.member_id)
        client.forget()

    def _stray_request(self, client: SimulatedClient) -> None:
        """Something late, twice or from nowhere; it is answered and changes no client's mind."""
        kind = self.random.randrange(5)
        generation = self.world.group.generation - self.random.randint(0, 1)
        if kind == 0 and client.member_id and client.joining is not None:
            late = self.world.join(
                client.member_id,
                instance=client.instance,
                protocols=client.protocols,
                session_ms=self.session_ms,
                rebalance_ms=REBALANCE_MS,
            )
            self.checker.wait(client.member_id, late, "a second join")
            # The one that the client waits for was ended by the newer one.
            client.joining = late
        elif kind == 1 and client.member_id and not client.leads:
            late_sync = self.world.sync(client.member_id, generation, instance=client.instance)
            self.checker.wait(client.member_id, late_sync, "a stray sync")
        elif kind == 2:
            assert self.world.heartbeat("nobody", generation) == ErrorCode.UNKNOWN_MEMBER_ID
        elif kind == 3:
            old = self.random.choice(sorted(self.checker.fenced) or ["nobody"])
            instance = self.random.choice([c.instance for c in self.clients])
            code = self.world.heartbeat(old, self.world.group.generation, instance)
            self.checker.beat(old, self.world.group.generation, code)
        else:
            assert self.world.leave(("nobody", None)) == [ErrorCode.UNKNOWN_MEMBER_ID]

    def _restart_coordinator(self) -> None:
        """Everything that was not written is lost; writes under way are written or not."""
        world = self.world
        old, written = world.group, world.written
        old.end(NotCoordinator("this broker stops"))
        while world.held:
            world.finish_write(None if self.random.random() < 0.5 else CoordinatorNotAvailable("stopped"))
        self.write_since.clear()
        world.group = self.kind.restore("g", written[-1], world) if written else self.kind("g", world)
        world.group.start()
        self.checker.restarted()

    # -- what clients are told ---------------------------------------------------------------------

    def _take_answers(self, client: SimulatedClient) -> None:
        if client.joining is not None and client.joining.value is not None:
            answer, client.joining = client.joining.value, None
            if answer.error_code == ErrorCode.NONE:
                if answer.generation_id == self.world.group.generation:
                    self.checker.joined(answer)
                client.member_id, client.generation = answer.member_id, answer.generation_id
                client.leads = answer.leader == answer.member_id and not answer.skip_assignment
                client.told, client.has_work = answer.members, False
                client.last_beat = self.world.clock.monotonic()
            elif answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                client.member_id = answer.member_id
                self._join(client)
            else:
                self._take_code(client, answer.error_code)
        if client.syncing is not None and client.syncing.value is not None:
            synced, client.syncing = client.syncing.value, None
            if synced.error_code == ErrorCode.NONE:
                self.checker.synced(client.member_id, client.generation, synced)
                client.has_work = True
                client.last_beat = self.world.clock.monotonic()
            else:
                self._take_code(client, synced.error_code)

    def _take_code(self, client: SimulatedClient, code: int) -> None:
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            client.forget()
        elif code in (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION):
            client.generation, client.has_work = -1, False

    # -- the end -----------------------------------------------------------------------------------

    def _rest(self) -> None:
        """Everyone is on time from now on: the group comes to rest, and all work has an owner."""
        for client in self.clients:
            client.is_punctual, client.is_gone = True, False
            client.protocols = "range sticky"
        for _ in range(200):
            self._pass_time(0.5)
        group = self.world.group
        assert group.state is GroupState.STABLE, f"{group.state_name} after everyone was on time"
        ids = {client.member_id for client in self.clients}
        assert set(group.members.by_id) == ids, "members and clients differ"
        assert all(client.has_work and client.generation == group.generation for client in self.clients)
        assert not self.checker.waits, "somebody was never answered"
