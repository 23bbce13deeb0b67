"""LogListener: the events of a log, for its manager and its partition."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tidelog.errors import KafkaStorageError

if TYPE_CHECKING:
    from tidelog.storage.flush_job import FlushJob
    from tidelog.storage.log import Log


class LogListener:
    """Each method is called on the thread that owns the log. The defaults do nothing."""

    __slots__ = ()

    def segment_rolled(self, log: Log) -> None:
        """A segment is complete and can be flushed."""

    def log_flushed(self, job: FlushJob) -> None:
        """A flush succeeded."""

    def log_start_moved(self, log: Log) -> None:
        """The log start offset has risen."""

    def log_truncated(self, log: Log) -> Callable[[], None] | None:
        """A truncation lowers the recovery point.

        Returns a function that makes the listener's checkpoint durable. The function is called in any thread,
        before the files are cut. If it raises OSError or KafkaStorageError, they are not cut.
        """
        return None

    def storage_failed(self, log: Log, error: OSError) -> None:
        """The disk refused a read or a write of the log."""


class LogListeners:
    """The listeners of one log, notified in the order in which they were added."""

    __slots__ = ("_listeners", "_log")

    def __init__(self, log: Log) -> None:
        self._log = log
        self._listeners: tuple[LogListener, ...] = ()

    def add(self, listener: LogListener) -> None:
        if listener not in self._listeners:
            self._listeners = (*self._listeners, listener)

    def segment_rolled(self) -> None:
        for listener in self._listeners:
            listener.segment_rolled(self._log)

    def log_flushed(self, job: FlushJob) -> None:
        for listener in self._listeners:
            listener.log_flushed(job)

    def log_start_moved(self) -> None:
        for listener in self._listeners:
            listener.log_start_moved(self._log)

    def log_truncated(self) -> list[Callable[[], None]]:
        writes = [listener.log_truncated(self._log) for listener in self._listeners]
        return [write for write in writes if write is not None]

    def storage_failed(self, error: OSError) -> None:
        for listener in self._listeners:
            listener.storage_failed(self._log, error)

    def storage_error(self, what: str, error: OSError) -> KafkaStorageError:
        """Report an error of the disk to the listeners; returns the error to raise."""
        self.storage_failed(error)
        return KafkaStorageError(f"{what}: {error}")

    @contextmanager
    def disk_errors(self, what: str) -> Iterator[None]:
        """Turns OSError into KafkaStorageError. It costs too much for the path of every append."""
        try:
            yield
        except OSError as error:
            raise self.storage_error(what, error) from error
