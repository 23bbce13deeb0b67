"""One transactional producer as a process of its own: `python -m tests.exactly_once.writer '{"name": ...}'`.

It writes random transactions until it is told to stop (SIGTERM: the one under way is ended), killed or
fenced. What it asks for is in the history before it is sent, what became of it after the answer.
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.exactly_once.history import Diary, History
from tests.exactly_once.sessions import Ended, Refused, make_session
from tests.support import secure_clients
from tidelog.simulation.checks.transaction_history import (
    COMMITTED,
    FAIL,
    INFO,
    INVOKE,
    OK,
    Entry,
    Line,
    Partition,
)


@dataclass(slots=True, frozen=True)
class Writer:
    """Everything that such a process is told."""

    name: str
    number: int  # of all instances of its transactional id
    transactional_id: str
    flavour: str
    bootstrap: str
    history: str
    partitions: list[Partition]
    seed: str
    padding: int = 0
    abort_share: float = 0.3
    prepared_share: float = 0.3  # of the prepared transactions, those that are left to the next owner
    limit: int = 1 << 30  # transactions

    def text(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def parse(text: str) -> Writer:
        told = json.loads(text)
        return Writer(**{**told, "partitions": [(topic, index) for topic, index in told["partitions"]]})


class WriterProcess:
    """The life of a writer. `stopping` is set from outside."""

    def __init__(self, task: Writer) -> None:
        self.task = task
        self.stopping = False
        self.chance = random.Random(task.seed)
        self.diary = Diary(Path(task.history))
        self.txn = ""
        self._count = 0
        self.session = make_session(
            task.flavour, task.bootstrap, task.transactional_id, task.partitions, task.padding, self._told
        )

    @property
    def group(self) -> str:
        return f"group-{self.task.transactional_id}"

    def _note(
        self, kind: str, what: str, entries: tuple[Entry, ...] = (), detail: str = "", txn: str | None = None
    ) -> None:
        name = self.txn if txn is None else txn
        self.diary.write(Line(self.task.name, kind, what, name, entries, detail.replace("\n", " ")))

    def _told(self, entry: Entry, error: str) -> None:
        """A record was written, or was not as far as its producer knows."""
        txn = entry.value.rpartition(".")[0]
        self._note(INFO if error else OK, "write", (entry,), error, txn)

    def run(self) -> None:
        self._note(INVOKE, "init", detail=self.task.transactional_id)
        try:
            kept = self.session.init()
        except (Refused, Ended) as error:
            self._note(INFO, "init", detail=str(error))
            return
        self._note(OK, "init", detail=kept)
        try:
            if kept:
                self._decide(kept)
            while not self.stopping and self._count < self.task.limit:
                self._transaction()
        except Ended as error:
            self._note(INFO, "ended", detail=str(error))

    def _try(self, what: str, call: Callable[[], object], entries: tuple[Entry, ...] = ()) -> None:
        self._note(INVOKE, what, entries)
        try:
            call()
        except Refused as error:
            self._note(FAIL, what, entries, str(error))
            raise
        except Ended as error:
            self._note(INFO, what, entries, str(error))
            raise
        self._note(OK, what, entries)

    def _decide(self, mark: str) -> None:
        """End a transaction that was kept: what its owner said to be prepared is committed."""
        mine = [
            line
            for line in History(Path(self.task.history)).read()
            if line.detail == f"{self.task.transactional_id}:{mark}" and line.what in ("begin", "prepare")
        ]
        assert mine, f"{mark} is kept, and nobody began it"
        self.txn = mine[0].txn
        commit = any(line.what == "prepare" for line in mine)
        self._try("commit" if commit else "abort", self.session.commit if commit else self.session.abort)

    # -- one transaction ---------------------------------------------------------------------------

    def _transaction(self) -> None:
        self._count += 1
        self.txn = f"{self.task.name}#{self._count}"
        mark = f"{self.task.transactional_id}:{self.session.mark()}"
        self._note(INVOKE, "begin", detail=mark)
        try:
            self.session.begin()
            self._fill()
            if self.chance.random() < self.task.abort_share:
                self._try("abort", self.session.abort)
                return
            if self.task.flavour == "two-phase":
                self._note(OK, "prepare", detail=mark)
                if self.chance.random() < self.task.prepared_share:
                    raise Ended("left prepared")
            self._try("commit", self.session.commit)
        except Refused:
            try:
                self._try("abort", self.session.abort)
            except Refused as error:
                raise Ended(str(error)) from None

    def _fill(self) -> None:
        """Records to some partitions; now and then wait for them, read, and commit offsets in between."""
        chance = self.chance
        places = chance.sample(self.task.partitions, chance.randint(1, min(4, len(self.task.partitions))))
        number = 0
        for topic, index in places * chance.randint(1, 2):
            count = chance.randint(1, 3)
            entries = tuple(Entry(topic, index, -1, f"{self.txn}.{number + at}") for at in range(count))
            number += count
            self._note(INVOKE, "write", entries)
            self.session.write(entries)
            drawn = chance.random()
            if drawn < 0.2:
                self.session.flush()
            elif drawn < 0.3:
                found = tuple(self.session.read())
                if found:
                    line = Line(f"{self.task.name}/reader", OK, "read", self.txn, found, COMMITTED)
                    self.diary.write(line)
        if chance.random() < 0.4:
            self._commit_offsets(places)

    def _commit_offsets(self, places: list[Partition]) -> None:
        offset = self.task.number * 100_000 + self._count
        entries = tuple(Entry(topic, index, offset, self.group) for topic, index in places)
        self._try("offsets", lambda: self.session.offsets(self.group, dict.fromkeys(places, offset)), entries)


def main() -> None:
    secure_clients.install_if_secured()
    process = WriterProcess(Writer.parse(sys.argv[1]))

    def stop(*_: object) -> None:
        process.stopping = True

    signal.signal(signal.SIGTERM, stop)
    faulthandler.register(signal.SIGUSR1)  # for whoever waits for it in vain
    process.run()
    sys.stdout.flush()
    # No farewell: a client that closes itself would abort what is meant to be left behind.
    os._exit(0)


if __name__ == "__main__":
    main()
