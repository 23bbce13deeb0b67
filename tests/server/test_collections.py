"""The garbage collector of a broker holds its loop shortly."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tidelog.server.run import keep_collections_short


@pytest.fixture
def collector() -> Iterator[None]:
    """The collector of this process, as it was before."""
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


def test_a_collection_visits_few_objects_while_many_are_made(collector: None) -> None:
    visited: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            young = range(info["generation"] + 1)
            visited.append(sum(len(gc.get_objects(generation)) for generation in young))

    keep_collections_short()
    gc.callbacks.append(note)
    try:
        kept = [[[number]] for number in range(500_000)]
    finally:
        gc.callbacks.remove(note)
    assert len(kept) == 500_000
    assert len(visited) > 10
    assert max(visited) <= 40_000, "about 2 ms of work"
