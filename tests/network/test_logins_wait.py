"""Connections that log in wait for requests, and get a moment of each turn of the loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from tidelog.network import loop
from tidelog.network.loop import LOGIN_NS, READ, DirectSelector

REQUEST = 1000
LOGINS = range(200)
LOGIN_WORK_NS = LOGIN_NS // 4


class Kernel:
    """Stands for epoll: every descriptor is always ready. Those that were not reported come first."""

    def __init__(self) -> None:
        self.ready: list[int] = []

    def register(self, fd: int, eventmask: int) -> None:
        self.ready.append(fd)

    def modify(self, fd: int, eventmask: int) -> None: ...

    def unregister(self, fd: int) -> None:
        self.ready.remove(fd)

    def poll(self, timeout: float | None, maxevents: int) -> list[tuple[int, int]]:
        reported = self.ready[:maxevents]
        self.ready = self.ready[maxevents:] + reported
        return [(fd, READ) for fd in reported]

    def close(self) -> None: ...


class Turns:
    """A selector with connections that log in and one that sends requests, on a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0
        monkeypatch.setattr(loop.time, "perf_counter_ns", lambda: self.now)
        self.handled: list[int] = []
        self.selector = DirectSelector(Kernel())
        self.selector._login_ns = LOGIN_NS
        for fd in LOGINS:
            self.selector.add(fd, lambda _, fd=fd: self._work(fd), READ, is_login=True)
        self.selector.add(REQUEST, lambda _: self.handled.append(REQUEST), READ)

    def _work(self, fd: int) -> None:
        self.handled.append(fd)
        self.now += LOGIN_WORK_NS

    def run(self) -> list[int]:
        """One turn; returns the descriptors in the order in which they were handled."""
        self.handled.clear()
        self.selector.select(0.0)
        return list(self.handled)


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> Iterator[Turns]:
    turns = Turns(monkeypatch)
    yield turns
    turns.selector.close()


def test_a_request_does_not_wait_for_two_hundred_logins(turns: Turns) -> None:
    for _ in range(5):
        begun = turns.now
        assert turns.run()[0] == REQUEST
        assert turns.now - begun <= LOGIN_NS + LOGIN_WORK_NS


def test_each_login_has_its_turn(turns: Turns) -> None:
    counts = Counter(fd for _ in range(100) for fd in turns.run())
    assert counts[REQUEST] == 100
    assert {counts[fd] for fd in LOGINS} == {2}


def test_a_connection_that_has_logged_in_is_like_others(turns: Turns) -> None:
    turns.selector.remove(5)
    turns.selector.add(5, lambda _: turns.handled.append(5), READ)
    assert turns.run()[:2] == [REQUEST, 5]


def test_callbacks_of_logins_wait_and_are_not_forgotten(turns: Turns) -> None:
    done: list[int] = []

    def result(number: int) -> None:
        done.append(number)
        turns.now += LOGIN_WORK_NS

    for number in range(10):
        turns.selector.login_callbacks.append(lambda number=number: result(number))  # type: ignore[misc]
    assert turns.run()[0] == REQUEST
    assert 1 <= len(done) < 10
    while turns.selector.login_callbacks:
        turns.run()
    assert done == list(range(10))


def test_a_failed_login_is_reported_and_ends_nothing(turns: Turns) -> None:
    reported: list[str] = []
    turns.selector.on_error = lambda message, error: reported.append(str(error))
    turns.selector.login_callbacks.append(lambda: [][0])
    turns.run()
    assert reported == ["list index out of range"]
    assert turns.run()[0] == REQUEST
