"""A producer by hand whose every step is told by a test, noted in the history as a writer notes its own."""

from __future__ import annotations

from collections.abc import Callable

from tests.exactly_once.by_hand import HandProducer, Refused
from tests.exactly_once.story import Story
from tidelog.errors import ErrorCode
from tidelog.simulation.checks.transaction_history import FAIL, INFO, INVOKE, OK, Entry, Line, Partition


class Scripted:
    """`with Scripted(story, "id") as producer:`; its id is one that the story ends with."""

    def __init__(
        self,
        story: Story,
        transactional_id: str,
        *,
        bumps: bool = True,
        two_phase: bool = False,
        timeout_ms: int = 60_000,
    ) -> None:
        self.story = story
        self.hand = HandProducer(
            story.broker.bootstrap, transactional_id, bumps=bumps, two_phase=two_phase, timeout_ms=timeout_ms
        )
        self.name = story.new_instance(transactional_id, "two-phase" if two_phase else "by-hand")
        self.txn = ""
        self._transactions = 0
        self._values = 0

    def note(self, kind: str, what: str, entries: tuple[Entry, ...] = (), detail: str = "") -> None:
        self.story.diary.write(Line(self.name, kind, what, self.txn, entries, detail))

    def init(self, *, keep: bool = False) -> tuple[int, int] | None:
        self.note(INVOKE, "init", detail=self.hand.transactional_id)
        kept = self.hand.init(keep=keep)
        self.note(OK, "init", detail="" if kept is None else f"{kept[0]}:{kept[1]}")
        return kept

    def begin(self) -> None:
        self._transactions += 1
        self._values = 0
        self.txn = f"{self.name}#{self._transactions}"
        self.note(INVOKE, "begin", detail=self._mark)

    @property
    def _mark(self) -> str:
        return f"{self.hand.transactional_id}:{self.hand.producer_id}:{self.hand.epoch}"

    def prepare(self) -> None:
        self.note(OK, "prepare", detail=self._mark)

    def _new(self, partition: Partition, count: int) -> tuple[Entry, ...]:
        first, self._values = self._values, self._values + count
        return tuple(Entry(*partition, -1, f"{self.txn}.{first + at}") for at in range(count))

    def write(self, partition: Partition, count: int = 1) -> list[str]:
        """The values that were written."""
        entries = self._new(partition, count)
        self.note(INVOKE, "write", entries)
        values = [entry.value for entry in entries]
        offset = self.hand.write(partition, values)
        self.note(OK, "write", tuple(e._replace(offset=offset + at) for at, e in enumerate(entries)))
        return values

    def try_to_write(self, partition: Partition, sequence: int) -> ErrorCode:
        """One batch with a sequence of the test's own; what the broker says."""
        entries = self._new(partition, 1)
        self.note(INVOKE, "write", entries)
        code = self.hand.produce(partition, [entries[0].value], sequence)
        self.note(FAIL if code else OK, "write", entries, code.name)
        return code

    def commit_offsets(self, group: str, offsets: dict[Partition, int]) -> None:
        if group not in self.story.groups:
            self.story.groups.append(group)
        entries = tuple(Entry(*partition, offset, group) for partition, offset in offsets.items())
        self.note(INVOKE, "offsets", entries)
        self.hand.commit_offsets(group, offsets)
        self.note(OK, "offsets", entries)

    def commit(self) -> ErrorCode:
        return self._end("commit", lambda: self.hand.end(commit=True))

    def abort(self) -> ErrorCode:
        return self._end("abort", lambda: self.hand.end(commit=False))

    def _end(self, what: str, end: Callable[[], None]) -> ErrorCode:
        self.note(INVOKE, what)
        try:
            end()
        except Refused as error:
            self.note(INFO, what, detail=str(error))
            return error.code
        self.note(OK, what)
        return ErrorCode.NONE
