"""HandlingTime: the time of the broker's thread for a request that is handled in steps."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from time import perf_counter_ns
from typing import Generic, TypeVar

Y = TypeVar("Y")
S = TypeVar("S")
R = TypeVar("R")


class HandlingTime:
    __slots__ = ("_since_ns", "_spent_ns")

    def __init__(self) -> None:
        self._spent_ns = 0
        self._since_ns = 0  # 0 between two steps

    @property
    def ns(self) -> int:
        return self._spent_ns + (perf_counter_ns() - self._since_ns if self._since_ns else 0)

    def start(self) -> None:
        self._since_ns = perf_counter_ns()

    def stop(self) -> None:
        self._spent_ns, self._since_ns = self.ns, 0


def timed(steps: Generator[Y, S, R], time: HandlingTime) -> Generator[Y, S, R]:
    """Run the same steps, and add their time, without the time between them, to `time`."""
    send, given = steps.send, None
    error: BaseException | None = None
    while True:
        time.start()
        try:
            if error is not None:
                yielded = steps.throw(error)
            else:
                yielded = send(given)  # type: ignore[arg-type]
        except StopIteration as done:
            result: R = done.value
            return result
        finally:
            time.stop()
        error = None
        try:
            given = yield yielded
        except GeneratorExit:
            steps.close()
            raise
        except BaseException as thrown:
            error = thrown


class TimedCoroutine(Generic[R]):
    """Awaits a coroutine, and measures its steps."""

    __slots__ = ("_time", "_work")

    def __init__(self, work: Coroutine[None, None, R], time: HandlingTime) -> None:
        self._work = work
        self._time = time

    def __await__(self) -> Generator[None, None, R]:
        return timed(self._work.__await__(), self._time)
