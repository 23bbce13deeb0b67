"""Seeded lives of a consumer group, and a checker that is told nothing but what its members are told.

Members join, leave, fall silent, lose answers, take their time to let go of partitions, change what they
subscribe to; topics come, grow and go; the coordinator moves. The checker's rules:
- nobody has a partition that somebody else has not let go of;
- epochs never go back, neither a member's nor the group's;
- what the records tell is what the coordinator knows, also after compaction;
- once it is quiet, every partition has an owner, evenly, and the group is stable.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from tests.coordinator.consumer_world import GROUP, Assigned, ConsumerWorld, compacted
from tidelog.coordinator.group.consumer import ConsumerGroup
from tidelog.coordinator.group.migration import read_assignment
from tidelog.coordinator.group.shard import GroupShard
from tidelog.errors import ErrorCode
from tidelog.protocol.messages.consumer_protocol import ConsumerProtocolSubscription

SESSION_SECONDS = 45
CLASSIC_SESSION = 10.0
CLASSIC_REBALANCE = 20.0
REBALANCE_MS = 30_000
MUST_REJOIN = (
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.GROUP_ID_NOT_FOUND,
)
TOPICS = ("a-1", "a-2", "b-1", "b-2", "c-1")
PATTERNS = ("a-.*", "b-.*", "[ab]-1", ".*")


class Violation(AssertionError):
    """A rule that was broken; the text tells which, and where in the story."""


@dataclass(slots=True)
class Consumer:
    """A client as the protocol wants it: it lets go before it says so, and says so before it gets more."""

    name: str
    topics: list[str] | None
    pattern: str | None
    instance: str | None = None
    epoch: int = 0
    # What it reads now; what it is told to read and no more than that, once it has let go of the rest.
    has: set[tuple[str, int]] = field(default_factory=set)
    wanted: set[tuple[str, int]] = field(default_factory=set)
    # It does not know what reached the coordinator, and tells everything.
    is_unsure: bool = True
    has_changed: bool = True
    heard_at: float = 0.0
    # When it may have been told to let go of something, at the earliest: the coordinator counts from there.
    unsure_since: float | None = None
    letting_go_since: float | None = None
    is_running: bool = True

    def owned(self) -> Assigned:
        found: Assigned = {}
        for topic, partition in self.has:
            found.setdefault(topic, set()).add(partition)
        return found

    def start_again(self) -> None:
        self.epoch = 0
        self.has.clear()
        self.wanted.clear()
        self.is_unsure = self.has_changed = True
        self.unsure_since = self.letting_go_since = None


class Life:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.seed = seed
        self.world = ConsumerWorld(
            consumer_assignment_interval_ms=self.random.choice([0, 0, 1000]),
            # Groups that turn into classic ones are another story.
            consumer_migration_policy="upgrade",
        )
        self.consumers: list[Consumer] = []
        self.step = 0
        self._made = 0
        self._group_epoch = self._assignment_epoch = 0
        for name in self.random.sample(TOPICS, 3):
            self.world.topic(name, self.random.randint(1, 6))

    # -- the story ---------------------------------------------------------------------------------

    def run(self, steps: int) -> None:
        actions = [
            (self.join, 10),
            (self.beat, 60),
            (self.let_go, 30),
            (self.leave, 4),
            (self.fall_silent, 3),
            (self.subscribe_anew, 4),
            (self.change_topics, 4),
            (self.wait, 8),
            (self.move_coordinator, 2),
        ]
        names, weights = zip(*actions, strict=True)
        for self.step in range(steps):
            self.random.choices(names, weights)[0]()
            self.check()
        self.become_quiet()
        self.check_everything_is_owned()

    def join(self) -> None:
        if len([consumer for consumer in self.consumers if consumer.is_running]) >= 6:
            return
        self._made += 1
        topics, pattern = self.subscription()
        instance = None
        if self.random.random() < 0.3:
            instance = f"i{self.random.randint(1, 3)}"
            if any(other.instance == instance for other in self.consumers):
                return
        self.consumers.append(Consumer(f"m{self._made}", topics, pattern, instance))

    def subscription(self) -> tuple[list[str], str]:
        kind = self.random.random()
        if kind < 0.2:
            return [], self.random.choice(PATTERNS)
        if kind < 0.6:
            return list(TOPICS[:3]), ""
        return self.random.sample(TOPICS, self.random.randint(1, 4)), ""

    def running(self) -> list[Consumer]:
        return [consumer for consumer in self.consumers if consumer.is_running]

    def beat(self) -> None:
        if self.running():
            self.heartbeat(self.random.choice(self.running()), lost=self.random.random() < 0.08)

    def heartbeat(self, consumer: Consumer, *, lost: bool = False) -> None:
        joins = consumer.epoch == 0
        full = joins or consumer.is_unsure
        owned = consumer.owned() if full or consumer.has_changed else None
        answer = self.world.say(
            consumer.name,
            consumer.epoch,
            topics=consumer.topics if full or consumer.has_changed else None,
            pattern=consumer.pattern if full or consumer.has_changed else None,
            owned={} if joins else owned,
            instance=consumer.instance,
            rebalance_ms=REBALANCE_MS if full else -1,
        )
        consumer.heard_at = now = self.now
        if consumer.unsure_since is None:
            consumer.unsure_since = now
        if lost:
            consumer.is_unsure = True
            return
        if answer.error_code in MUST_REJOIN:
            consumer.start_again()
            return
        if answer.error_code == ErrorCode.UNRELEASED_INSTANCE_ID:
            return  # the one before has not gone yet
        if answer.error_code:
            raise self.violation(f"{consumer.name} is told {answer.error_code}: {answer.error_message}")
        if answer.member_epoch < consumer.epoch:
            raise self.violation(f"{consumer.name} goes back from {consumer.epoch} to {answer.member_epoch}")
        consumer.epoch = answer.member_epoch
        consumer.is_unsure = consumer.has_changed = False
        assigned = self.world.by_name(answer)
        if assigned is not None:
            self.take(consumer, {(name, index) for name, indexes in assigned.items() for index in indexes})
            consumer.has_changed = True  # an assignment is confirmed, also where it changes nothing here
        # What it had let go of before this heartbeat is known to be free now.
        if consumer.has == consumer.wanted:
            consumer.letting_go_since = None
        consumer.unsure_since = None

    def take(self, consumer: Consumer, assigned: set[tuple[str, int]]) -> None:
        """What is new is read at once; what is gone from the list is let go of in the member's own time."""
        consumer.wanted = assigned
        consumer.has |= assigned
        if consumer.has != assigned and consumer.letting_go_since is None:
            consumer.letting_go_since = consumer.unsure_since
        for other in self.running():
            both = consumer.has & other.has
            if other is not consumer and both:
                raise self.violation(f"{consumer.name} gets {sorted(both)}, which {other.name} still has")

    def let_go(self) -> None:
        if self.running():
            consumer = self.random.choice(self.running())
            if consumer.has != consumer.wanted:
                self.has_let_go(consumer)

    def has_let_go(self, consumer: Consumer) -> None:
        consumer.has_changed |= consumer.has != consumer.wanted
        consumer.has &= consumer.wanted

    @property
    def now(self) -> float:
        return self.world.scheduler.clock.monotonic()

    def leave(self) -> None:
        if not self.running():
            return
        consumer = self.random.choice(self.running())
        self.consumers.remove(consumer)
        if consumer.epoch > 0:
            epoch = -2 if consumer.instance is not None and self.random.random() < 0.5 else -1
            self.world.say(consumer.name, epoch, instance=consumer.instance)

    def fall_silent(self) -> None:
        """The process is gone: it reads nothing any more, and nobody tells the coordinator."""
        if self.running():
            self.consumers.remove(self.random.choice(self.running()))

    def subscribe_anew(self) -> None:
        if self.running():
            consumer = self.random.choice(self.running())
            consumer.topics, consumer.pattern = self.subscription()
            consumer.has_changed = True

    def change_topics(self) -> None:
        name = self.random.choice(TOPICS)
        topic = self.world.cluster.topics.get(name)
        if topic is None:
            self.world.topic(name, self.random.randint(1, 6))
        elif self.random.random() < 0.7:
            self.world.topic(name, len(topic.partitions) + self.random.randint(1, 3))
        else:
            self.world.delete_topic(name)
            for consumer in self.consumers:
                consumer.has = {entry for entry in consumer.has if entry[0] != name}
                consumer.wanted = {entry for entry in consumer.wanted if entry[0] != name}
                consumer.has_changed = True

    def wait(self) -> None:
        self.pass_time(self.random.choice([0.5, 2.0, 5.0, 12.0]))

    def pass_time(self, seconds: float) -> None:
        self.world.advance(seconds)
        # A member that was not heard of for a whole session, or has not let go in time, knows that others may
        # have its partitions by now.
        for consumer in self.running():
            since = consumer.letting_go_since
            if since is None:
                since = consumer.unsure_since
            if consumer.epoch and (
                self.now - consumer.heard_at >= SESSION_SECONDS
                or (since is not None and self.now - since >= REBALANCE_MS / 1000)
            ):
                consumer.start_again()

    def move_coordinator(self) -> None:
        self.world.restart()

    # -- the rules ---------------------------------------------------------------------------------

    def violation(self, text: str) -> Violation:
        return Violation(f"seed {self.seed}, step {self.step}: {text}")

    def check(self) -> None:
        group = self.world.shard.groups.get(GROUP)
        if not isinstance(group, ConsumerGroup):
            return
        if group.group_epoch < self._group_epoch or group.assignment_epoch < self._assignment_epoch:
            raise self.violation("an epoch of the group went back")
        if group.assignment_epoch > group.group_epoch:
            raise self.violation("the assignment is ahead of the group")
        self._group_epoch, self._assignment_epoch = group.group_epoch, group.assignment_epoch
        if self.step % 20 == 0:
            self.check_records(group)

    def check_records(self, group: ConsumerGroup) -> None:
        for log in (self.world.runtime.log, compacted(self.world.runtime.log)):
            if durable(self.world.loaded(log)) != durable(self.world.shard):
                raise self.violation("the records tell of another group")

    def become_quiet(self) -> None:
        """Everybody goes on as they should, for longer than any time-out; at last, one topic grows."""
        for at in range(40):
            if at == 25 and self.world.cluster.topics:
                name, topic = self.random.choice(list(self.world.cluster.topics.items()))
                self.world.topic(name, len(topic.partitions) + 2)
            for consumer in self.running():
                self.has_let_go(consumer)
                self.heartbeat(consumer)
                self.check()
            self.pass_time(5.0)

    def check_everything_is_owned(self) -> None:
        group = self.world.shard.groups.get(GROUP)
        if not self.running():
            return
        assert isinstance(group, ConsumerGroup)
        if group.state_name != "Stable":
            raise self.violation(f"the group is {group.state_name} in the end")
        self.check_records(group)
        expected: set[tuple[str, int]] = set()
        for consumer in self.running():
            for name in group.topics_of(group.members[consumer.name].metadata):
                if name in self.world.cluster.topics:
                    topic = self.world.cluster.topics[name]
                    expected |= {(name, index) for index in topic.partitions}
        read = {entry for consumer in self.running() for entry in consumer.has}
        if read != expected:
            raise self.violation(
                f"nobody reads {sorted(expected - read)}, {sorted(read - expected)} too many"
            )
        self.check_balance(group)

    def check_balance(self, group: ConsumerGroup) -> None:
        for one in self.running():
            for other in self.running():
                topics = group.topics_of(group.members[other.name].metadata)
                could_have = [entry for entry in one.has if entry[0] in topics]
                if could_have and len(one.has) - len(other.has) > 1:
                    raise self.violation(
                        f"{one.name} reads {len(one.has)} partitions and {other.name} {len(other.has)}"
                    )


@dataclass(slots=True)
class ClassicConsumer(Consumer):
    """A member that uses the classic protocol, the cooperative way: it joins with what it has."""

    told_at: float | None = None
    joined_at: float | None = None
    must_join: bool = True


class MixedLife(Life):
    """The same with members of both protocols in one group."""

    def join(self) -> None:
        if self.random.random() < 0.5:
            super().join()
        elif len(self.running()) < 6:
            self._made += 1
            topics = self.random.sample(TOPICS, self.random.randint(1, 4))
            self.consumers.append(ClassicConsumer(f"m{self._made}", topics, ""))

    def heartbeat(self, consumer: Consumer, *, lost: bool = False) -> None:
        if not isinstance(consumer, ClassicConsumer):
            super().heartbeat(consumer, lost=lost)
        elif self.is_coordinated:
            # Having joined, a member fetches its assignment soon, most of the time.
            for _ in range(self.random.randint(1, 3)):
                self.classic_turn(consumer, lost)

    @property
    def is_coordinated(self) -> bool:
        """A classic member joins a group that the other members have made."""
        group = self.world.shard.groups.get(GROUP)
        return isinstance(group, ConsumerGroup) and not group.is_empty

    def classic_turn(self, consumer: ClassicConsumer, lost: bool) -> None:
        if consumer.must_join or consumer.has_changed:
            self.classic_join(consumer, lost)
        elif consumer.joined_at is not None:
            self.classic_sync(consumer, lost)
        else:
            code = self.world.classic_heartbeat(consumer.name, consumer.epoch)
            consumer.heard_at = self.now
            if code == ErrorCode.REBALANCE_IN_PROGRESS:
                consumer.must_join = True
                consumer.told_at = self.now if consumer.told_at is None else consumer.told_at
            elif code:
                self.classic_start_again(consumer)

    def classic_join(self, consumer: ClassicConsumer, lost: bool) -> None:
        assert consumer.topics is not None
        data = subscription(consumer.topics, consumer.owned())
        answer = self.world.classic_join(consumer.name, [("range", data)])
        consumer.told_at = None
        consumer.joined_at = consumer.heard_at = self.now
        if lost:
            consumer.must_join = True
            return
        if answer.error_code:
            raise self.violation(f"{consumer.name} cannot join: {answer.error_code}")
        if answer.generation_id < consumer.epoch:
            raise self.violation(f"{consumer.name} goes back from {consumer.epoch}")
        consumer.epoch = answer.generation_id
        consumer.must_join = consumer.has_changed = False

    def classic_sync(self, consumer: ClassicConsumer, lost: bool) -> None:
        answer = self.world.classic_sync(consumer.name, consumer.epoch)
        if answer.error_code == ErrorCode.REBALANCE_IN_PROGRESS:
            consumer.must_join = True
            consumer.told_at = self.now if consumer.told_at is None else consumer.told_at
        elif answer.error_code:
            self.classic_start_again(consumer)
        else:
            consumer.heard_at = self.now
            if lost:
                return
            consumer.joined_at = None
            topics = read_assignment(answer.assignment).assigned_partitions
            self.take(consumer, {(topic.topic, index) for topic in topics for index in topic.partitions})

    def classic_start_again(self, consumer: ClassicConsumer) -> None:
        consumer.start_again()
        consumer.must_join = True
        consumer.told_at = consumer.joined_at = None

    def pass_time(self, seconds: float) -> None:
        for _ in range(10):
            super().pass_time(seconds / 10)
            for consumer in self.running():
                if isinstance(consumer, ClassicConsumer) and consumer.epoch:
                    times = [consumer.heard_at + CLASSIC_SESSION]
                    times += [at + CLASSIC_REBALANCE for at in (consumer.told_at, consumer.joined_at) if at]
                    if self.now >= min(times):
                        self.classic_start_again(consumer)

    def leave(self) -> None:
        if self.running():
            consumer = self.random.choice(self.running())
            if isinstance(consumer, ClassicConsumer):
                self.consumers.remove(consumer)
                self.world.classic_leave((consumer.name, None))
            else:
                super().leave()

    def become_quiet(self) -> None:
        self.consumers.insert(0, Consumer("anchor", list(TOPICS), ""))
        super().become_quiet()


def subscription(topics: list[str], owned: Assigned) -> bytes:
    message = ConsumerProtocolSubscription(
        topics=topics,
        owned_partitions=[
            ConsumerProtocolSubscription.TopicPartition(topic=topic, partitions=sorted(partitions))
            for topic, partitions in owned.items()
        ],
    )
    return b"\0\1" + message.encode(1)


def durable(shard: GroupShard) -> dict[str, object]:
    """All that a group is, for comparing."""
    found: dict[str, object] = {}
    for group_id, group in shard.groups.items():
        assert isinstance(group, ConsumerGroup)
        found[group_id] = {name: getattr(group, name) for name in ConsumerGroup.__slots__}
    return found
