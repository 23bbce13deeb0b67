"""Delayed operations complete once: when their condition is met, or when their time is over."""

from __future__ import annotations

import pytest

from tidelog.clock import SimulatedScheduler
from tidelog.cluster.purgatory import DelayedOperation, Purgatory


class Waiting(DelayedOperation):
    __slots__ = ("ended", "expired", "ready")

    def __init__(self) -> None:
        super().__init__()
        self.ready = False
        self.expired = False
        self.ended = 0

    def try_complete(self) -> bool:
        return self.ready and self.force_complete()

    def on_expiration(self) -> None:
        self.expired = True

    def on_complete(self) -> None:
        self.ended += 1


def make() -> tuple[SimulatedScheduler, Purgatory]:
    scheduler = SimulatedScheduler()
    return scheduler, Purgatory("Test", scheduler)


def test_an_operation_whose_condition_is_met_never_waits() -> None:
    _, purgatory = make()
    operation = Waiting()
    operation.ready = True
    assert purgatory.try_complete_else_watch(operation, ["a"], 100)
    assert operation.ended == 1
    assert purgatory.delayed == 0


def test_a_parked_operation_completes_when_one_of_its_keys_changes() -> None:
    scheduler, purgatory = make()
    operation = Waiting()
    assert not purgatory.try_complete_else_watch(operation, ["a", "b"], 100)
    assert purgatory.delayed == 1
    assert purgatory.watched == 2
    assert purgatory.check("b") == 0
    operation.ready = True
    assert purgatory.check("c") == 0
    assert purgatory.check("b") == 1
    assert (operation.ended, operation.expired) == (1, False)
    assert (purgatory.delayed, purgatory.watched) == (0, 0)
    scheduler.advance(1)
    assert operation.ended == 1


def test_time_ends_a_wait_once() -> None:
    scheduler, purgatory = make()
    operation = Waiting()
    purgatory.try_complete_else_watch(operation, ["a"], 100)
    scheduler.advance(0.099)
    assert operation.ended == 0
    scheduler.advance(0.002)
    assert (operation.ended, operation.expired) == (1, True)
    operation.ready = True
    assert purgatory.check("a") == 0
    assert operation.ended == 1
    assert purgatory.watched == 0


def test_ending_all_waits_on_a_key_leaves_the_others() -> None:
    _, purgatory = make()
    on_a, on_b = Waiting(), Waiting()
    purgatory.try_complete_else_watch(on_a, ["a"], 100)
    purgatory.try_complete_else_watch(on_b, ["b"], 100)
    assert purgatory.complete_all("a") == 1
    assert (on_a.ended, on_b.ended) == (1, 0)
    purgatory.shutdown()
    assert on_b.ended == 1
    assert purgatory.delayed == 0


def test_ending_all_waits_counts_each_once_even_where_the_end_of_one_ends_another() -> None:
    _, purgatory = make()

    class Chained(Waiting):
        __slots__ = ()

        def on_complete(self) -> None:
            super().on_complete()
            second.ready = True
            purgatory.check("a")

    first, second = Chained(), Waiting()
    purgatory.try_complete_else_watch(first, ["a"], 100)
    purgatory.try_complete_else_watch(second, ["a"], 100)
    purgatory.complete_all("a")
    assert (first.ended, second.ended, purgatory.delayed) == (1, 1, 0)


def test_nothing_waits_after_the_shutdown() -> None:
    _, purgatory = make()
    purgatory.shutdown()
    late = Waiting()
    assert purgatory.try_complete_else_watch(late, ["a"], 100)
    assert (late.ended, purgatory.delayed) == (1, 0)


class Failing(Waiting):
    """Raises when it is looked at, or when it is to answer."""

    __slots__ = ("_where", "errors")

    def __init__(self, where: str) -> None:
        super().__init__()
        self._where = where
        self.errors: list[Exception] = []
        self.on_failure = self.errors.append

    def _raise(self, where: str) -> None:
        if where == self._where:
            raise RuntimeError(f"planted in {where}")

    def try_complete(self) -> bool:
        if self.ready:
            self._raise("try_complete")
        return super().try_complete()

    def on_expiration(self) -> None:
        self._raise("on_expiration")

    def on_complete(self) -> None:
        self._raise("on_complete")
        super().on_complete()


@pytest.mark.parametrize("where", ["try_complete", "on_complete"])
def test_an_operation_that_raises_ends_by_itself_and_the_others_complete(where: str) -> None:
    scheduler, purgatory = make()
    before, failing, after = Waiting(), Failing(where), Waiting()
    for operation in (before, failing, after):
        purgatory.try_complete_else_watch(operation, ["a"], 100)
        operation.ready = True
    purgatory.check("a")
    assert (before.ended, after.ended) == (1, 1)
    assert [str(error) for error in failing.errors] == [f"planted in {where}"]
    assert (purgatory.delayed, purgatory.watched) == (0, 0)
    scheduler.advance(1)
    assert len(failing.errors) == 1, "told once"


@pytest.mark.parametrize("where", ["on_expiration", "on_complete"])
def test_an_exception_at_the_end_of_the_time_goes_to_its_operation_alone(where: str) -> None:
    scheduler, purgatory = make()
    failing, other = Failing(where), Waiting()
    purgatory.try_complete_else_watch(failing, ["a"], 100)
    purgatory.try_complete_else_watch(other, ["a"], 100)
    scheduler.advance(1)
    assert (len(failing.errors), other.ended, purgatory.delayed) == (1, 1, 0)


def test_a_shutdown_ends_every_wait_although_one_of_them_raises() -> None:
    _, purgatory = make()
    failing, other = Failing("on_complete"), Waiting()
    purgatory.try_complete_else_watch(failing, ["a"], 100)
    purgatory.try_complete_else_watch(other, ["a"], 100)
    purgatory.shutdown()
    assert (len(failing.errors), other.ended, purgatory.delayed) == (1, 1, 0)


def test_an_exception_that_nobody_is_told_of_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    _, purgatory = make()
    failing = Failing("on_complete")
    failing.on_failure = None
    purgatory.try_complete_else_watch(failing, ["a"], 100)
    purgatory.complete_all("a")
    assert "planted in on_complete" in caplog.text


def test_waits_of_the_same_length_end_in_order_with_one_timer() -> None:
    scheduler, purgatory = make()
    waits = [Waiting() for _ in range(3)]
    for wait in waits:
        purgatory.try_complete_else_watch(wait, ["a"], 100)
        scheduler.advance(0.03)
    longer = Waiting()
    purgatory.try_complete_else_watch(longer, ["a"], 200)
    assert len(scheduler._timers) == 2
    waits[0].ready = True
    purgatory.check("a")
    scheduler.advance(0.03)  # the end of the completed one
    assert [wait.ended for wait in waits] == [1, 0, 0]
    scheduler.advance(0.011)
    assert [wait.expired for wait in waits] == [False, True, False]
    scheduler.advance(0.031)
    assert [wait.expired for wait in waits] == [False, True, True]
    assert longer.ended == 0
    scheduler.advance(0.13)
    assert longer.expired
    assert scheduler._timers == []


def test_an_operation_whose_end_begins_another_wait_lets_it_wait() -> None:
    scheduler, purgatory = make()
    following = Waiting()

    class Repeated(Waiting):
        def on_complete(self) -> None:
            super().on_complete()
            purgatory.try_complete_else_watch(following, ["a"], 0)

    purgatory.try_complete_else_watch(Repeated(), ["a"], 0)
    scheduler.run_pending()
    assert following.expired
    assert purgatory.delayed == 0


def test_completed_operations_do_not_collect_behind_one_that_waits() -> None:
    scheduler, purgatory = make()
    first = Waiting()
    purgatory.try_complete_else_watch(first, ["first"], 1000)
    for _ in range(5_000):
        done = Waiting()
        purgatory.try_complete_else_watch(done, ["a"], 1000)
        done.ready = True
        purgatory.check("a")
    (queue,) = purgatory._expirations._queues.values()
    assert len(queue.entries) < 200
    scheduler.advance(1)
    assert first.expired


def test_a_wait_may_begin_and_be_over_while_another_one_ends() -> None:
    """As when an answer lets the next request be read, and that one ends other waits."""
    scheduler, purgatory = make()
    others = [Waiting() for _ in range(2)]

    class First(Waiting):
        def on_complete(self) -> None:
            super().on_complete()
            brief = Waiting()
            for other in others:
                other.ready = True
            purgatory.check("others")
            purgatory.try_complete_else_watch(brief, ["brief"], 100)
            brief.ready = True
            purgatory.check("brief")

    purgatory.try_complete_else_watch(First(), ["a"], 100)
    for other in others:
        purgatory.try_complete_else_watch(other, ["others"], 100)
    scheduler.advance(0.1)
    assert [(other.ended, other.expired) for other in others] == [(1, False)] * 2
    later = Waiting()
    purgatory.try_complete_else_watch(later, ["a"], 100)
    scheduler.advance(0.1)
    assert later.expired
    scheduler.advance(0.1)
    assert scheduler._timers == []


def test_completed_operations_that_all_waited_for_another_time_do_not_collect() -> None:
    """A client may give each request another time-out, such as what is left of its own."""
    scheduler, purgatory = make()
    waits: dict[int, Waiting] = {}
    for wait_ms in range(3_600_000, 3_605_000):
        operation = Waiting()
        purgatory.try_complete_else_watch(operation, [wait_ms], wait_ms)
        if wait_ms % 100 == 0:
            waits[wait_ms] = operation
        else:
            operation.ready = True
            purgatory.check(wait_ms)
    assert len(purgatory._expirations._queues) < 300
    assert sum(timer.callback is not None for timer in scheduler._timers) < 300
    scheduler.advance(3602.05)
    expired = [wait_ms for wait_ms, wait in waits.items() if wait.expired]
    assert expired == list(range(3_600_000, 3_602_100, 100))
    scheduler.advance(10)
    assert all(wait.expired for wait in waits.values())
    assert purgatory._expirations._queues == {}
