"""Delayed operations: requests that wait for a change of a partition, or for their timeout.

Kafka's counterpart is DelayedOperationPurgatory. An operation completes exactly once, when `try_complete`
finds its condition met or when it times out. An exception of an operation ends this operation alone: the
append that checked it and the other operations continue. A purgatory costs nothing while no operation waits:
a key exists only while an operation watches it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable

from tidelog.clock import Scheduler
from tidelog.cluster.expirations import Expiration, Expirations

log = logging.getLogger("tidelog.cluster")

OnFailure = Callable[[Exception], None]


class DelayedOperation:
    """A waiting request. Subclasses define its condition and its answer.

    `on_failure` gets the exception if the check of the condition or the answer raises one.
    """

    __slots__ = ("_expiration", "_keys", "completed", "on_failure")

    def __init__(self, on_failure: OnFailure | None = None) -> None:
        self.completed = False
        self.on_failure = on_failure
        self._expiration: Expiration | None = None
        self._keys: tuple[Hashable, ...] = ()

    def try_complete(self) -> bool:
        """Check the condition; if it is met, answer with `force_complete` and return True."""
        raise NotImplementedError

    def on_complete(self) -> None:
        """Called once, when the operation completes for any reason."""
        raise NotImplementedError

    def on_expiration(self) -> None:
        """Called before `on_complete` if the operation timed out."""

    def force_complete(self) -> bool:
        if self.completed:
            return False
        self._end()
        self.on_complete()
        return True

    def check(self) -> bool:
        """Call `try_complete`; an exception ends this operation alone."""
        try:
            return self.try_complete()
        except Exception as error:
            self.fail(error)
            return True

    def complete(self, *, expired: bool = False) -> None:
        """Call `force_complete`; an exception ends this operation alone."""
        try:
            if expired:
                self.on_expiration()
            self.force_complete()
        except Exception as error:
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """End the wait and pass the exception to `on_failure`, or log it. Does not raise."""
        self._end()
        try:
            if self.on_failure is None:
                raise error
            self.on_failure(error)
        except Exception as unhandled:
            log.error("a request that waited could not be answered", exc_info=unhandled)

    def _end(self) -> None:
        self.completed = True
        if self._expiration is not None:
            self._expiration.cancel()
            self._expiration = None


class Purgatory:
    """The waiting operations of one kind, by the keys whose changes may complete them."""

    def __init__(self, name: str, scheduler: Scheduler) -> None:
        self.name = name
        self._expirations = Expirations(scheduler, self._expire)
        self._watchers: dict[Hashable, dict[DelayedOperation, None]] = {}
        # The number of waiting operations. Every append reads it, so it is a plain attribute.
        self.delayed = 0
        self._closed = False

    @property
    def watched(self) -> int:
        """How many (key, operation) pairs are watched: an operation on ten partitions counts ten times."""
        return sum(len(operations) for operations in self._watchers.values())

    def try_complete_else_watch(
        self, operation: DelayedOperation, keys: Iterable[Hashable], wait_ms: int
    ) -> bool:
        """Complete the operation now if its condition is met, else let it wait for at most `wait_ms`."""
        return operation.try_complete() or self.watch(operation, keys, wait_ms)

    def watch(self, operation: DelayedOperation, keys: Iterable[Hashable], wait_ms: int) -> bool:
        """Let an operation wait for at most `wait_ms`. A closed purgatory completes it at once."""
        if self._closed:
            return operation.force_complete()
        operation._keys = tuple(keys)
        for key in operation._keys:
            self._watchers.setdefault(key, {})[operation] = None
        self.delayed += 1
        operation._expiration = self._expirations.add(operation, wait_ms)
        return False

    def check(self, key: Hashable) -> int:
        """Check every operation that watches `key`, after a change; returns how many are complete."""
        operations = self._watchers.get(key)
        if not operations:
            return 0
        completed = 0
        for operation in list(operations):
            if not operation.completed and operation.check():
                self._forget(operation)
                completed += 1
        return completed

    def complete_all(self, key: Hashable) -> int:
        """Complete every operation that watches `key`, whether its condition is met or not."""
        completed = 0
        for operation in list(self._watchers.get(key, ())):
            if not operation.completed:  # another one may have completed it
                self._end(operation)
                completed += 1
        return completed

    def shutdown(self) -> None:
        """Complete every operation. Later operations complete at once."""
        self._closed = True
        for key in list(self._watchers):
            self.complete_all(key)

    def _expire(self, operation: DelayedOperation) -> None:
        if operation.completed:
            return
        self._end(operation, expired=True)

    def _end(self, operation: DelayedOperation, *, expired: bool = False) -> None:
        self._forget(operation)
        operation.complete(expired=expired)

    def _forget(self, operation: DelayedOperation) -> None:
        for key in operation._keys:
            operations = self._watchers.get(key)
            if operations is not None:
                operations.pop(operation, None)
                if not operations:
                    del self._watchers[key]
        operation._keys = ()
        self.delayed -= 1
