"""The worker beside the loop tells everybody that their work is done."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue

import pytest

from tidelog.cluster.worker import ThreadWorker


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
