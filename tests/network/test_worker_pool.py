"""The worker beside the loop tells everybody that their work is done."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue

import pytest

from tests.support.wait import eventually
from tidelog.cluster.worker import ThreadWorker
from tidelog.errors import NotLeaderOrFollower


def test_one_whose_turn_fails_does_not_keep_the_others_from_theirs() -> None:
    posted: SimpleQueue[Callable[[], None]] = SimpleQueue()
    worker = ThreadWorker("test", posted.put)
    told: list[str] = []

    def fail(result: str | None, error: BaseException | None) -> None:
        raise RuntimeError("the first fails")

    def tell(result: str | None, error: BaseException | None) -> None:
        told.append(str(result))

    worker.submit(lambda: "first", fail)
    worker.submit(lambda: "second", tell)
    worker.submit(lambda: "third", tell)
    worker.close()
    with pytest.raises(RuntimeError):
        posted.get_nowait()()
    while not posted.empty():
        posted.get_nowait()()
    assert told == ["second", "third"]


class Frame:
    """Stands for the bytes that a piece of work is about."""


def test_an_idle_worker_keeps_nothing_of_its_last_work() -> None:
    posted: SimpleQueue[Callable[[], None]] = SimpleQueue()
    worker = ThreadWorker("test", posted.put)
    frame = Frame()
    kept = weakref.ref(frame)
    worker.submit(partial(id, frame), lambda result, error: None)
    del frame
    posted.get(timeout=10)()
    # The result is posted a moment before the thread lets go of its work.
    eventually(lambda: kept() is None, "nothing refers to the frame")
    worker.close()


def test_work_that_comes_after_the_end_is_refused_and_starts_no_thread() -> None:
    posted: SimpleQueue[Callable[[], None]] = SimpleQueue()
    worker = ThreadWorker("closed worker", posted.put)
    worker.submit(lambda: "first", lambda result, error: None)
    worker.close()
    outcomes: list[tuple[str | None, BaseException | None]] = []
    done: list[str] = []
    for _ in range(2):
        worker.submit(lambda: done.append("done") or "late", lambda *outcome: outcomes.append(outcome))
    assert outcomes == [], "told in a turn of the loop, not within the call"
    while not posted.empty():
        posted.get_nowait()()
    assert [(result, type(error)) for result, error in outcomes] == [(None, NotLeaderOrFollower)] * 2
    assert not done
    assert "closed worker" not in {thread.name for thread in threading.enumerate()}
