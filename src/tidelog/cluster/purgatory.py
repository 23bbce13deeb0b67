"""Delayed operations: requests that wait for something to happen to a partition, or for time to run out.

An operation completes exactly once, either because `try_complete` found its condition met or because its
time is over. An operation that raises ends by itself: the append that woke it and the other operations go on.
A purgatory costs nothing while nobody waits: keys are made when an operation is parked and go when their last
watcher does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable

from tidelog.clock import Scheduler, TimerHandle

log = logging.getLogger("tidelog.cluster")

OnFailure = Callable[[Exception], None]


class DelayedOperation:
    """One waiting request. Subclasses say when it is done and what is then answered.

    `on_failure` gets the exception where looking at the condition, or answering, raises one.
    """

    __slots__ = ("_keys", "_timer", "completed", "on_failure")

    def __init__(self, on_failure: OnFailure | None = None) -> None:
        self.completed = False
        self.on_failure = on_failure
        self._timer: TimerHandle | None = None
        self._keys: tuple[Hashable, ...] = ()

    def try_complete(self) -> bool:
        """Look at the condition; answer through `force_complete` and return True when it is met."""
        raise NotImplementedError

    def on_complete(self) -> None:
        """Called once, when the operation completes for whichever reason."""
        raise NotImplementedError

    def on_expiration(self) -> None:
        """Called before `on_complete` when it was time that ended the wait."""

    def force_complete(self) -> bool:
        if self.completed:
            return False
        self._end()
        self.on_complete()
        return True

    def fail(self, error: Exception) -> None:
        """End the wait because of an exception; it goes no further than this."""
        self._end()
        try:
            if self.on_failure is None:
                raise error
            self.on_failure(error)
        except Exception as unhandled:
            log.error("a request that waited could not be answered", exc_info=unhandled)

    def _end(self) -> None:
        self.completed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Purgatory:
    """The operations of one kind that wait, by the keys whose changes may complete them."""

    def __init__(self, name: str, scheduler: Scheduler) -> None:
        self.name = name
        self._scheduler = scheduler
        self._watchers: dict[Hashable, dict[DelayedOperation, None]] = {}
        # How many operations wait; looked at with every append, so it is a plain number.
        self.delayed = 0
        self._closed = False

    @property
    def watched(self) -> int:
        """How many (key, operation) pairs are watched: an operation on ten partitions counts ten times."""
        return sum(len(operations) for operations in self._watchers.values())

    def try_complete_else_watch(
        self, operation: DelayedOperation, keys: Iterable[Hashable], wait_ms: int
    ) -> bool:
        """Complete the operation now if it can be, else park it under its keys for at most `wait_ms`."""
        return operation.try_complete() or self.watch(operation, keys, wait_ms)

    def watch(self, operation: DelayedOperation, keys: Iterable[Hashable], wait_ms: int) -> bool:
        """Park an operation whose condition is not met; in a closed purgatory it completes as it stands."""
        if self._closed:
            return operation.force_complete()
        operation._keys = tuple(keys)
        for key in operation._keys:
            self._watchers.setdefault(key, {})[operation] = None
        self.delayed += 1
        operation._timer = self._scheduler.schedule(wait_ms / 1000, lambda: self._expire(operation))
        return False

    def check(self, key: Hashable) -> int:
        """Something happened to `key`: give every operation that waits on it a chance to complete."""
        operations = self._watchers.get(key)
        if not operations:
            return 0
        completed = 0
        for operation in list(operations):
            if not operation.completed and self._tried(operation):
                self._forget(operation)
                completed += 1
        return completed

    @staticmethod
    def _tried(operation: DelayedOperation) -> bool:
        try:
            return operation.try_complete()
        except Exception as error:
            operation.fail(error)
            return True

    def complete_all(self, key: Hashable) -> int:
        """End every wait on `key` as it stands."""
        completed = 0
        for operation in list(self._watchers.get(key, ())):
            if not operation.completed:  # the end of another may have met its condition
                self._end(operation)
                completed += 1
        return completed

    def shutdown(self) -> None:
        """End every wait as it stands; from now on nothing waits."""
        self._closed = True
        for key in list(self._watchers):
            self.complete_all(key)

    def _expire(self, operation: DelayedOperation) -> None:
        if operation.completed:
            return
        self._end(operation, expired=True)

    def _end(self, operation: DelayedOperation, *, expired: bool = False) -> None:
        self._forget(operation)
        try:
            if expired:
                operation.on_expiration()
            operation.force_complete()
        except Exception as error:
            operation.fail(error)

    def _forget(self, operation: DelayedOperation) -> None:
        for key in operation._keys:
            operations = self._watchers.get(key)
            if operations is not None:
                operations.pop(operation, None)
                if not operations:
                    del self._watchers[key]
        operation._keys = ()
        self.delayed -= 1
