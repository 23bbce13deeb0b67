"""The ledger of a member of a group: what it read and did not commit yet, and the lines about it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, Protocol

from tidelog.simulation.checks.group_history import NOBODY, Line

Partition = tuple[str, int]
POLL_RECORDS: Final = 12
"""How many records a member takes before it commits."""

# The coordinator said no, so that nothing was committed. After any other error nobody knows.
REFUSALS: Final = (
    "ILLEGAL_GENERATION",
    "UNKNOWN_MEMBER_ID",
    "REBALANCE_IN_PROGRESS",
    "FENCED_INSTANCE_ID",
    "FENCED_MEMBER_EPOCH",
    "STALE_MEMBER_EPOCH",
    "IllegalGeneration",
    "UnknownMemberId",
    "RebalanceInProgress",
    "FencedInstanceId",
    "CommitFailed",
    "IllegalState",
)


class Diary(Protocol):
    def write(self, lines: Iterable[Line], /) -> None: ...


class FencedError(Exception):
    """Another member has this one's instance id."""


class Ledger:
    """What was read and not committed yet, and the lines about it."""

    def __init__(self, name: str, instance: str | None, diary: Diary) -> None:
        self.name = name
        self.instance = instance
        self.stopping = False
        self._diary = diary
        self._owned: set[Partition] = set()
        self._pending: dict[Partition, int] = {}

    @property
    def owns_something(self) -> bool:
        return bool(self._owned)

    def note(self, what: str, detail: str = NOBODY) -> None:
        self._diary.write([Line(self.name, what, detail=detail.replace("\n", " ") or NOBODY)])

    def assigned(self, partitions: Iterable[Partition], generation: int = -1) -> None:
        self._gone(
            partitions, "assigned", f"{generation}:{self.instance}" if self.instance else str(generation)
        )
        self._owned.update(partitions)

    def revoked(self, partitions: Iterable[Partition]) -> None:
        self._gone(partitions, "revoked", NOBODY)

    def lost(self, partitions: Iterable[Partition]) -> None:
        self._gone(partitions, "lost", NOBODY)

    def _gone(self, partitions: Iterable[Partition], what: str, detail: str) -> None:
        partitions = sorted(partitions)
        for partition in partitions:
            self._pending.pop(partition, None)
            self._owned.discard(partition)
        self._diary.write(Line(self.name, what, *partition, detail=detail) for partition in partitions)

    def read(self, topic: str, partition: int, offset: int, value: bytes | None) -> None:
        self._diary.write([Line(self.name, "read", topic, partition, offset, (value or b"-").decode())])
        self._pending[topic, partition] = offset + 1

    def commit(self, send: Callable[[Mapping[Partition, int]], None]) -> None:
        """Commit what is pending; it stays pending where it failed."""
        offsets = self._intend()
        if offsets:
            try:
                send(offsets)
            except Exception as error:
                self._failed(offsets, error)
            else:
                self._settled(offsets)

    async def commit_async(self, send: Callable[[Mapping[Partition, int]], Awaitable[None]]) -> None:
        offsets = self._intend()
        if offsets:
            try:
                await send(offsets)
            except Exception as error:
                self._failed(offsets, error)
            else:
                self._settled(offsets)

    def _intend(self) -> dict[Partition, int]:
        offsets = dict(self._pending)
        self._tell("committing", offsets)
        return offsets

    def _settled(self, offsets: Mapping[Partition, int]) -> None:
        for partition, offset in offsets.items():
            if self._pending.get(partition) == offset:
                del self._pending[partition]
        self._tell("committed", offsets)

    def _failed(self, offsets: Mapping[Partition, int], error: Exception) -> None:
        text = f"{type(error).__name__}: {error}".replace("\n", " ")
        self._tell("refused" if any(name in text for name in REFUSALS) else "unsure", offsets, text)
        if "FENCED_INSTANCE_ID" in text or "FencedInstanceId" in text:
            raise FencedError(text)

    def _tell(self, what: str, offsets: Mapping[Partition, int], detail: str = NOBODY) -> None:
        self._diary.write(
            Line(self.name, what, *partition, offset, detail) for partition, offset in offsets.items()
        )
