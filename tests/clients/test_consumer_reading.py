"""A consumer gives each record once and in order, whatever its program does and whatever ends a poll.

What that means precisely is written in `tests.clients.reading_story`; a failing story is told again by its
seed, but threads and clocks are real, so it may end differently.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from tests.clients.consuming import LIMIT, fill, make_topic, poll_until, read
from tests.clients.reading_story import Notes, Seen, tell_story
from tests.groups.brokers import QUICK_GROUPS
from tests.support.own_broker import own_broker
from tests.support.scale import scale
from tests.support.wait import eventually
from tidelog.clients.blocking import Errand
from tidelog.clients.consumer import blocking as blocking_module
from tidelog.clients.consumer import fetcher as fetcher_module
from tidelog.clients.consumer.blocking import Consumer
from tidelog.clients.consumer.consumer import AsyncConsumer
from tidelog.clients.consumer.listener import ConsumerRebalanceListener
from tidelog.partitions import TopicPartition
from tidelog.records.loops import RecordReader

pytest.importorskip("pyarrow")

NewName = Callable[[str], str]
STEPS = scale(100, 400)
TOLD_WITHIN = 300.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with own_broker(tmp_path_factory.mktemp("reading"), QUICK_GROUPS) as running:
        yield running.bootstrap


@pytest.mark.parametrize("seed", range(scale(3, 30)))
def test_whatever_a_program_does_it_gets_each_record_once_and_in_order(
    broker: str, new_name: NewName, seed: int
) -> None:
    tell_story(broker, new_name("story"), f"reading-{seed}", STEPS)


@pytest.mark.parametrize("seed", range(scale(2, 30)))
def test_signals_lose_and_double_nothing(broker: str, new_name: NewName, seed: int) -> None:
    story = [sys.executable, "-m", "tests.clients.reading_story", broker, new_name("signals")]
    told = subprocess.run(
        [*story, f"signals-{seed}", str(STEPS)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=TOLD_WITHIN,
    )
    assert told.returncode == 0, told.stderr


# What the story finds


def seen(offset: int) -> Seen:
    return offset, None, b"%d" % offset, ()


TRUTH = [seen(offset) for offset in (0, 1, 2, 5, 6)]  # 3 and 4 may not be seen


def test_a_true_story_is_believed() -> None:
    notes = Notes()
    for offset in (0, 1, 2):
        notes.got(seen(offset))
    for offset in (3, 4, 5):
        notes.stands("position", offset)
    notes.got(seen(5))
    notes.sought(2)
    for offset in (2, 5, 6):
        notes.got(seen(offset))
    notes.stands("committed", 7)
    assert not list(notes.problems(TRUTH))


@pytest.mark.parametrize(
    ("offsets", "problem"),
    [
        ([0, 1, 5, 6], "got (5,"),  # left out
        ([0, 1, 1, 2, 5, 6], "got (1,"),  # doubled
        ([0, 2, 1, 5, 6], "got (2,"),  # another order
        ([0, 1, 2, 3, 5, 6], "got (3,"),  # of an aborted transaction
        ([0, 1, 2, 5], "1 records never came"),
    ],
)
def test_records_that_are_not_as_they_should_be_are_found(offsets: list[int], problem: str) -> None:
    notes = Notes()
    for offset in offsets:
        notes.got(seen(offset))
    assert problem in next(notes.problems(TRUTH))


@pytest.mark.parametrize("position", [1, 6])
def test_a_position_before_or_beyond_what_came_is_found(position: int) -> None:
    notes = Notes()
    for offset in (0, 1, 2):
        notes.got(seen(offset))
    notes.stands("committed", position)
    assert f"committed {position} after 3" in next(notes.problems(TRUTH))


# A poll that was interrupted when it had taken something


def interrupted_here(consumer: Consumer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the thread that polls, when it has taken records or columns."""

    def interrupted(take: Callable[[int], object]) -> Callable[[int], object]:
        def taken(limit: int) -> object:
            if take(limit):
                raise KeyboardInterrupt
            return None

        return taken

    inner = consumer._core
    monkeypatch.setattr(inner, "take", interrupted(inner.take))
    monkeypatch.setattr(inner, "take_columns", interrupted(inner.take_columns))


def interrupted_on_the_way(consumer: Consumer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C when the loop has taken records, and before the thread that polls looks at them."""
    left = 1

    class Inbox(SimpleQueue[object]):
        def get(self, block: bool = True, timeout: float | None = None) -> object:
            nonlocal left
            found = super().get(block, timeout)
            if found is None and left:
                left -= 1
                raise KeyboardInterrupt
            return found

    monkeypatch.setattr(consumer, "_take_without_loop", lambda take, timeout: (None, timeout))
    monkeypatch.setattr(blocking_module, "SimpleQueue", Inbox)


@pytest.mark.parametrize(
    ("interrupt", "poll"),
    [
        (interrupted_here, Consumer.poll),
        (interrupted_here, Consumer.poll_arrow),
        (interrupted_on_the_way, Consumer.poll),
    ],
)
def test_what_an_interrupted_poll_had_taken_comes_again_and_is_not_committed(
    bootstrap: str,
    new_name: NewName,
    interrupt: Callable[[Consumer, pytest.MonkeyPatch], None],
    poll: Callable[[Consumer, float], object],
) -> None:
    topic, group = make_topic(bootstrap, new_name("interrupted"), 2), new_name("group")
    names = [TopicPartition(topic, partition) for partition in range(2)]
    for name in names:
        fill(bootstrap, topic, 20, name.partition)
    with Consumer(bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest") as consumer:
        consumer.assign(names)
        assert len(consumer.poll(LIMIT, 5)) == 5
        stood = [consumer.position(name) for name in names]
        with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
            interrupt(consumer, patch)
            poll(consumer, LIMIT)
        assert [consumer.position(name) for name in names] == stood
        assert consumer.metrics()["records-consumed-total"] == 5
        consumer.commit()
        assert [entry and entry.offset for entry in consumer.committed(names).values()] == stood
        rest = [(record.partition, record.offset) for record in read(consumer, 35)]
        assert sorted(rest) == [
            (name.partition, at) for name in names for at in range(stood[name.partition], 20)
        ]
        assert consumer.metrics()["records-consumed-total"] == 40


def test_an_error_of_a_listener_brings_nothing_back_that_an_earlier_poll_gave(
    broker: str, new_name: NewName
) -> None:
    errors = iter([None, ValueError("not today")])

    class Listener(ConsumerRebalanceListener):
        def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
            if (error := next(errors, None)) is not None:
                raise error

    topic = make_topic(broker, new_name("listener"))
    settings = {"group.id": new_name("group"), "partition.assignment.strategy": "cooperative-sticky"}
    fill(broker, topic, 20)
    with Consumer(settings, bootstrap_servers=broker, auto_offset_reset="earliest") as consumer:
        consumer.subscribe(topic, listener=Listener())
        assert len(read(consumer, 20)) == 20
        consumer.enforce_rebalance()
        with pytest.raises(ValueError, match="not today"):
            read(consumer, 1)
        fill(broker, topic, 1)
        assert [record.offset for record in read(consumer, 1)] == [20]


def test_what_comes_while_a_record_is_given_back_stays_behind_it(
    bootstrap: str, new_name: NewName, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop takes an answer while the thread that polls goes back to what could not be deserialized."""
    topic = make_topic(bootstrap, new_name("given-back"))
    answered, failed = threading.Event(), threading.Event()

    def deserialize(value: bytes) -> bytes:
        if value.endswith(b"-5") and not failed.is_set():
            fill(bootstrap, topic, 10)
            assert answered.wait(LIMIT)
            failed.set()
            raise ValueError("not now")
        return value

    def reader(*of: Any) -> RecordReader:
        answered.set()
        assert failed.wait(LIMIT)
        with contextlib.suppress(AssertionError):  # it must not, while this answer is being taken
            eventually(lambda: state.turn != turn, "the thread goes back", 0.3)
        return RecordReader(*of)

    with Consumer(bootstrap_servers=bootstrap, value_deserializer=deserialize) as consumer:
        consumer.assign([(topic, 0)])
        consumer.seek((topic, 0), 0)
        poll_until(consumer, lambda: consumer._core.fetcher.is_asking, "it waits for records")
        (state,) = consumer._core.subscriptions.states.values()
        turn = state.turn
        fill(bootstrap, topic, 10)
        eventually(lambda: consumer._core.fetcher.ready, "records have come")
        monkeypatch.setattr(fetcher_module, "RecordReader", reader)
        found = read(consumer, 20)
        assert failed.is_set()
        assert [record.offset for record in found] == list(range(20))


def test_a_cancelled_poll_on_a_loop_loses_nothing(bootstrap: str, new_name: NewName) -> None:
    topic = make_topic(bootstrap, new_name("cancelled"))
    fill(bootstrap, topic, 50)

    async def main() -> list[int]:
        found: list[int] = []
        async with AsyncConsumer(bootstrap_servers=bootstrap) as consumer:
            consumer.assign([(topic, 0)])
            consumer.seek((topic, 0), 0)
            while records := await consumer.poll(LIMIT if not found else 1.0, 1):
                found += [record.offset for record in records]
                consumer._core.turns._began = 0.0  # it has polled for long, and lets others have a turn
                poll = asyncio.ensure_future(consumer.poll(LIMIT, 1))
                await asyncio.sleep(0)
                poll.cancel()
                for given in await asyncio.gather(poll, return_exceptions=True):
                    assert isinstance(given, list | asyncio.CancelledError)
                    found += [record.offset for record in given] if isinstance(given, list) else []
        return found

    assert asyncio.run(main()) == list(range(50))


def test_a_poll_that_is_interrupted_while_it_is_handed_to_the_loop_takes_nothing_later(
    bootstrap: str, new_name: NewName, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic(bootstrap, new_name("handed-over"))
    with Consumer(bootstrap_servers=bootstrap) as consumer:
        consumer.assign([(topic, 0)])
        consumer.seek((topic, 0), 0)
        start = consumer._thread.start

        def interrupted(errand: Errand[object]) -> Errand[object]:
            monkeypatch.setattr(consumer._thread, "start", start)
            start(errand)
            raise KeyboardInterrupt

        monkeypatch.setattr(consumer._thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            consumer.poll(None)
        fill(bootstrap, topic, 20)
        eventually(lambda: consumer._core.fetcher.ready, "records have come")
        assert [record.offset for record in read(consumer, 20)] == list(range(20))
