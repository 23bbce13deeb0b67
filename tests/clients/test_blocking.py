"""The thread behind a blocking client: work is handed over, ends, fails and is called off."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError

import pytest

from tests.support.wait import eventually
from tidelog.clients.blocking import Errand, LoopThread

LIMIT = 10.0


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    made = LoopThread("a client")
    yield made
    made.close()


class Waiting:
    """Work that waits for ever, and tells what became of it."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.ended_in = ""

    async def work(self) -> None:
        self.begun.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            asyncio.get_running_loop()  # what it tidies up, it tidies up on the loop
            self.ended_in = threading.current_thread().name


def test_work_gives_its_result_or_its_error(thread: LoopThread) -> None:
    async def add(one: int, two: int) -> int:
        return one + two

    async def fail() -> None:
        raise ValueError("no")

    assert thread.run(add(1, 2)) == 3
    assert thread.submit(add(3, 4)).result(LIMIT) == 7
    with pytest.raises(ValueError, match="no"):
        thread.run(fail())


@pytest.mark.parametrize("call", [LoopThread.run, LoopThread.submit], ids=["run", "submit"])
def test_work_that_has_begun_when_handing_it_over_is_interrupted_ends_on_the_loop(
    thread: LoopThread, monkeypatch: pytest.MonkeyPatch, call: Callable[..., object]
) -> None:
    waiting = Waiting()
    real = thread.loop.call_soon_threadsafe

    def interrupted(function: Callable[..., object], *args: object) -> None:
        monkeypatch.setattr(thread.loop, "call_soon_threadsafe", real)
        real(function, *args)
        assert waiting.begun.wait(LIMIT)
        raise KeyboardInterrupt

    monkeypatch.setattr(thread.loop, "call_soon_threadsafe", interrupted)
    with pytest.raises(KeyboardInterrupt):
        call(thread, waiting.work())
    eventually(lambda: waiting.ended_in, "the work ends")
    assert waiting.ended_in == "a client"


def test_work_that_is_called_off_before_the_loop_takes_it_never_begins(thread: LoopThread) -> None:
    waiting = Waiting()
    errand = Errand(waiting.work())
    assert errand.cancel()
    thread.start(errand)
    thread.apply(lambda: None)
    assert not waiting.begun.is_set()
    with pytest.raises(CancelledError):
        errand.result(LIMIT)


def test_work_that_is_called_off_as_the_loop_takes_it_ends(thread: LoopThread) -> None:
    waiting = Waiting()
    errand = Errand(waiting.work())
    work = errand._not_begun.pop()
    assert errand.cancel()  # the loop has taken the work out, and there is no task yet
    errand._not_begun.append(work)
    thread.start(errand)
    thread.apply(lambda: None)
    thread.apply(lambda: None)
    assert thread.apply(lambda: [task for task in asyncio.all_tasks() if task is errand._task]) == []


def test_closing_the_thread_cancels_what_runs(thread: LoopThread) -> None:
    waiting = Waiting()
    errand = thread.submit(waiting.work())
    assert waiting.begun.wait(LIMIT)
    thread.close()
    with pytest.raises(CancelledError):
        errand.result(LIMIT)
    assert waiting.ended_in == "a client"
