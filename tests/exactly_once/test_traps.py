"""The ways in which systems of this kind are known to have failed, each as a schedule of its own.

Every schedule is noted in a history and judged by the same checker as the random ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer

from tests.exactly_once.brokers import ON_KAFKA, Running, running_broker
from tests.exactly_once.scripted import Scripted
from tests.exactly_once.story import Cast, Story
from tests.support.wait import eventually
from tidelog.errors import ErrorCode
from tidelog.simulation.checks.transaction_history import COMMITTED

PROTOCOLS = pytest.mark.parametrize("bumps", [False, True], ids=["v1", "v2"])


class Trap(Story):
    """story.a story without writers: the test says who does what, to the partitions `a`, `b` and `c`."""

    def __init__(self, broker: Running, folder: Path, name: str) -> None:
        cast = Cast(
            flavours=(),
            readers=(("confluent-kafka", COMMITTED),),
            last_readers=("fetch",),
            patience=5.0,
            suffix="-" + re.sub(r"\W", "-", name),
        )
        super().__init__(broker, folder, name, cast)
        self.a, _, _, self.b, self.c = cast.partitions

    def producer(
        self, name: str, *, bumps: bool = True, two_phase: bool = False, timeout_ms: int = 60_000
    ) -> Scripted:
        name += self.cast.suffix
        return Scripted(self, name, bumps=bumps, two_phase=two_phase, timeout_ms=timeout_ms)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running_broker(tmp_path_factory.mktemp("traps")) as running:
        yield running


@pytest.fixture
def story(broker: Running, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Trap]:
    with Trap(broker, tmp_path, request.node.name) as playing:
        yield playing


# -- a delayed EndTxn that reaches the next transaction (KAFKA-17754)


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_a_delayed_end_does_not_reach_the_next_transaction(story: Trap, commit: bool) -> None:
    """With the newer protocol each end has an epoch of its own, so that the broker can tell."""
    late, end = delayed_end_reaches_the_next_transaction(story, bumps=True, commit=commit)
    assert (late, end) == (ErrorCode.PRODUCER_FENCED, ErrorCode.NONE)
    story.finish()


def delayed_end_reaches_the_next_transaction(
    story: Trap, *, bumps: bool, commit: bool
) -> tuple[ErrorCode, ErrorCode]:
    """The first transaction is ended twice: the request got stuck and was sent again, and the first one
    arrives when the next transaction is open, which then ends the other way. What the late one was told, and
    the end of the second transaction."""
    producer = story.producer("late", bumps=bumps)
    producer.init()
    producer.begin()
    producer.write(story.a)
    producer.write(story.b)
    delayed = producer.hand.end_request(commit)
    assert (producer.commit() if commit else producer.abort()) == ErrorCode.NONE
    producer.begin()
    producer.write(story.a)
    late = ErrorCode(producer.hand.ask_end(*delayed).error_code)
    if bumps:
        producer.write(story.b)
    return late, producer.abort() if commit else producer.commit()


def test_with_the_older_protocol_a_delayed_commit_is_taken_for_that_of_the_next_transaction(
    story: Trap,
) -> None:
    """Nothing in the older requests tells the transactions of an epoch apart: it is so in Kafka too, and the
    checker sees it. The producer is told when it aborts what is committed."""
    late, end = delayed_end_reaches_the_next_transaction(story, bumps=False, commit=True)
    assert (late, end) == (ErrorCode.NONE, ErrorCode.INVALID_TXN_STATE)
    assert {problem.rule for problem in story.problems()} == {"G1a"}


def test_with_the_older_protocol_a_delayed_abort_makes_the_next_commit_fail(story: Trap) -> None:
    late, end = delayed_end_reaches_the_next_transaction(story, bumps=False, commit=False)
    assert (late, end) == (ErrorCode.NONE, ErrorCode.INVALID_TXN_STATE)
    story.finish()


def test_with_the_older_protocol_nothing_more_is_written_after_a_delayed_end(story: Trap) -> None:
    """The rest of the transaction that was ended too early does not begin another one that nobody ends."""
    producer = story.producer("late", bumps=False)
    producer.init()
    producer.begin()
    producer.write(story.a)
    delayed = producer.hand.end_request(True)
    assert producer.commit() == ErrorCode.NONE
    producer.begin()
    producer.write(story.a)
    assert producer.hand.ask_end(*delayed).error_code == 0
    producer.hand.wait_until_complete()
    refusals = (ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE)
    assert producer.try_to_write(story.a, sequence=2) in refusals
    assert producer.abort() == ErrorCode.INVALID_TXN_STATE
    assert "stable" not in {problem.rule for problem in story.problems()}


# -- a retry answered with OUT_OF_ORDER_SEQUENCE_NUMBER after it was written, deduplication lost by a restart


@PROTOCOLS
@pytest.mark.parametrize("restart", ["none", "kill", "stop"])
def test_a_batch_that_comes_again_is_known(story: Trap, bumps: bool, restart: str) -> None:
    write_again(story, bumps=bumps, restart=restart)
    story.finish()


def write_again(story: Trap, *, bumps: bool, restart: str) -> None:
    """Five batches whose answers get lost: all of them are sent again, in an open transaction and after."""
    producer = story.producer("again", bumps=bumps)
    producer.init()
    producer.begin()
    batches = [producer.write(story.a, count) for count in (2, 1, 3, 1, 1)]
    if restart != "none":
        producer.hand.close()
        (story.kill_broker if restart == "kill" else story.stop_broker)()
    sequence = 0
    for values in batches:
        # Kafka knows a producer's last batch alone after a restart.
        if restart == "none" or not ON_KAFKA or values is batches[-1]:
            assert producer.hand.produce(story.a, values, sequence) == ErrorCode.NONE, sequence
        sequence += len(values)
    producer.write(story.a)
    old_epoch = producer.hand.epoch
    assert producer.commit() == ErrorCode.NONE
    # Behind the end of its transaction nobody waits for an answer: it is refused.
    producer.hand.wait_until_complete()
    code = producer.hand.produce(story.a, batches[-1], sequence - 1, old_epoch)
    assert code == (ErrorCode.INVALID_PRODUCER_EPOCH if bumps else ErrorCode.TRANSACTION_ABORTABLE)


# -- an old epoch that is not aborted


@PROTOCOLS
@pytest.mark.parametrize("kill", [False, True], ids=["", "kill"])
def test_a_producer_that_is_replaced_leaves_nothing_and_writes_nothing(
    story: Trap, bumps: bool, kill: bool
) -> None:
    replace_a_producer(story, bumps=bumps, kill=kill)
    story.finish()


def replace_a_producer(story: Trap, *, bumps: bool, kill: bool) -> None:
    old, new = story.producer("same", bumps=bumps), story.producer("same", bumps=bumps)
    old.init()
    old.begin()
    old.write(story.a)
    old.write(story.b)
    if kill:
        old.hand.close()
        story.kill_broker()
    new.init()
    new.begin()
    new.write(story.a)
    refusals = (
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.TRANSACTION_ABORTABLE,
    )
    for partition, sequence in ((story.a, 1), (story.b, 1), (story.c, 0)):
        assert old.try_to_write(partition, sequence) in refusals
    assert old.commit() in (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED)
    new.write(story.b)
    assert new.commit() == ErrorCode.NONE


@pytest.mark.xfail(ON_KAFKA, reason="Kafka 4.3 writes no markers")
@PROTOCOLS
def test_a_transaction_whose_time_is_over_when_the_broker_comes_back_is_aborted_everywhere(
    story: Trap, bumps: bool
) -> None:
    """Alone on its machine, Kafka 4.3 completes such an abort without its markers: what the producer commits
    next then commits the aborted records too."""
    for _ in range(3):
        producer = story.producer("overdue", bumps=bumps, timeout_ms=500)
        producer.init()
        producer.begin()
        producer.write(story.a)
        producer.write(story.b)
        producer.hand.close()
        story.kill_broker()
        producer.hand.wait_until_complete()
        following = story.producer("overdue", bumps=bumps)
        following.init()
        following.begin()
        following.write(story.a)
        following.write(story.b)
        assert following.commit() == ErrorCode.NONE
    story.finish()


# -- group offsets that differ between the live state and its replay


@PROTOCOLS
def test_group_offsets_are_the_same_after_a_restart(story: Trap, bumps: bool) -> None:
    commit_offsets_in_transactions(story, bumps=bumps)
    story.finish()


def commit_offsets_in_transactions(story: Trap, *, bumps: bool) -> None:
    """Committed, aborted, and left open over a kill; for the same partitions of a group."""
    group = "group-reader" + story.cast.suffix
    producer = story.producer("reader", bumps=bumps)
    producer.init()
    for offset, commit in ((1, True), (2, False), (3, True), (4, False)):
        producer.begin()
        producer.write(story.a)
        producer.commit_offsets(group, {story.a: offset, story.b: offset})
        assert (producer.commit() if commit else producer.abort()) == ErrorCode.NONE
    for commit in (True, False):
        producer.begin()
        producer.commit_offsets(group, {story.a: 10 + commit})
        producer.hand.close()
        story.kill_broker()
        assert (producer.commit() if commit else producer.abort()) == ErrorCode.NONE


def test_offsets_that_name_no_member_are_taken_while_the_group_has_one(story: Trap) -> None:
    """So it is in Kafka, for producers from before members were named: whoever wants to be fenced by its
    group has to say who it is. The offsets still hold if and only if their transaction commits."""
    group = "group-member" + story.cast.suffix
    member = Consumer({"bootstrap.servers": story.broker.bootstrap, "group.id": group, "log_level": 0})
    member.subscribe([story.a[0]])
    try:
        eventually(lambda: member.poll(0.1) or member.assignment(), "the group has a member", 30)
        producer = story.producer("nobody")
        producer.init()
        for offset, commit in ((1, True), (2, False)):
            producer.begin()
            producer.commit_offsets(group, {story.a: offset})
            assert (producer.commit() if commit else producer.abort()) == ErrorCode.NONE
    finally:
        member.close()
    story.finish()


# -- a pause instead of a kill


def test_producers_that_were_paused_are_fenced_when_they_wake(broker: Running, tmp_path: Path) -> None:
    cast = Cast(
        flavours=("confluent-kafka", "kafka-python"),
        readers=(("kafka-python", COMMITTED),),
        last_readers=("confluent-kafka",),
    )
    with Story(broker, tmp_path, "paused", cast) as story:
        story.go_on(5)
        for _ in range(3):
            story.pause_writer()
        story.pause_broker()
        story.go_on(2)
        story.finish()


# -- prepared transactions


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_a_prepared_transaction_waits_for_its_owner_through_kills(story: Trap, commit: bool) -> None:
    if not story.broker.has_two_phase:
        pytest.skip("no two-phase commits")
    old = story.producer("prepared", two_phase=True)
    old.init()
    old.begin()
    old.write(story.a)
    old.write(story.b)
    old.commit_offsets("group-prepared" + story.cast.suffix, {story.a: 7})
    old.prepare()
    old.hand.close()
    story.kill_broker()
    new = story.producer("prepared", two_phase=True)
    assert new.init(keep=True) == (old.hand.producer_id, old.hand.epoch)
    new.txn = old.txn
    new.hand.close()
    story.kill_broker()
    assert old.commit() == ErrorCode.PRODUCER_FENCED
    assert (new.commit() if commit else new.abort()) == ErrorCode.NONE
    new.begin()
    new.write(story.b)
    assert new.commit() == ErrorCode.NONE
    story.finish()
