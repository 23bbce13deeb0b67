"""Fetch sessions tell exactly what a session would that looks at all of its partitions each time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.session_schedules import Schedule
from tidelog.cluster.fetch import Fetcher, FetchParams
from tidelog.cluster.fetch_session import (
    FetchContext,
    FetchedPartition,
    FetchPartition,
    FetchSession,
    FetchSessionCache,
    WantedPartition,
)
from tidelog.cluster.partition import Partition
from tidelog.storage.log_listener import LogListeners

SEEDS, STEPS = 12, 250


def play(folder: Path, seeds: int = SEEDS) -> int:
    answers = 0
    for seed in range(seeds):
        schedule = Schedule(folder / str(seed), seed)
        answers += schedule.run(STEPS)
        schedule.close()
    return answers


def test_sessions_agree_with_a_model_that_looks_at_everything(tmp_path: Path) -> None:
    assert play(tmp_path) > SEEDS * STEPS // 6


def test_schedules_have_followers_that_wait_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, tails = Fetcher.read_tail, 0

    def read_tail(self: Fetcher, context: FetchContext, params: FetchParams) -> FetchedPartition | None:
        nonlocal tails
        tail = right(self, context, params)
        tails += tail is not None
        return tail

    monkeypatch.setattr(Fetcher, "read_tail", read_tail)
    play(tmp_path)
    assert tails > SEEDS


def forget_appends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Partition, "changed", lambda self: None)


def forget_followers(monkeypatch: pytest.MonkeyPatch) -> None:
    right = FetchPartition.watch

    def watch(self: FetchPartition, partition: Partition, session: FetchSession) -> None:
        right(self, partition, session)
        partition.end_watchers.pop(self, None)

    monkeypatch.setattr(FetchPartition, "watch", watch)


def forget_log_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LogListeners, "log_start_moved", lambda self: None)


def forget_offsets_that_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    right = FetchSession.want

    def want(self: FetchSession, wanted: FetchPartition) -> None:
        dirty = dict(self.dirty)
        known = wanted.key in self.partitions
        right(self, wanted)
        if known:
            self.dirty = dirty

    monkeypatch.setattr(FetchSession, "want", want)


def forget_the_partition_of_a_small_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    right = FetchSessionCache.context_of_one

    def context_of_one(
        self: FetchSessionCache, session_id: int, epoch: int, wanted: WantedPartition | None, **how: bool
    ) -> FetchContext | None:
        context = right(self, session_id, epoch, wanted, **how)
        if context is not None and wanted is not None:
            context.session.dirty.pop(context.session.partitions[wanted[:2]])
        return context

    monkeypatch.setattr(FetchSessionCache, "context_of_one", context_of_one)


def clean_what_has_more(monkeypatch: pytest.MonkeyPatch) -> None:
    right = FetchContext.select

    def select(self: FetchContext, answers: list[FetchedPartition]) -> list[FetchedPartition]:
        for answer in answers:
            answer.has_more = False
        return right(self, answers)

    monkeypatch.setattr(FetchContext, "select", select)


def clean_what_a_follower_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Fetcher.read_tail

    def read_tail(self: Fetcher, context: FetchContext, params: FetchParams) -> FetchedPartition | None:
        tail = right(self, context, params)
        if tail is not None:
            tail.has_more = False
            tail.wanted.fetch_offset = tail.high_watermark
        return tail

    monkeypatch.setattr(Fetcher, "read_tail", read_tail)


def keep_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    right = FetchSession.to_the_end

    def to_the_end(self: FetchSession, partition: FetchPartition) -> None:
        if not partition.turn:
            right(self, partition)

    monkeypatch.setattr(FetchSession, "to_the_end", to_the_end)


def ignore_the_isolation_level(monkeypatch: pytest.MonkeyPatch) -> None:
    def read_as(self: FetchSession, isolation_level: int, reads_to_log_end: bool) -> None:
        self.reads_to_log_end = reads_to_log_end

    monkeypatch.setattr(FetchSession, "read_as", read_as)


@pytest.mark.parametrize(
    "fault",
    [
        forget_appends,
        forget_followers,
        forget_log_start,
        forget_offsets_that_moved,
        forget_the_partition_of_a_small_fetch,
        clean_what_has_more,
        clean_what_a_follower_waited_for,
        keep_the_order,
        ignore_the_isolation_level,
    ],
)
def test_a_planted_fault_is_found(
    fault: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        play(tmp_path)
