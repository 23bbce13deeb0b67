"""The benchmark with broker and clients in one thread runs its cases to the end."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest

from tests.benchmark.programs import imported


@pytest.fixture
def one_thread() -> Iterator[ModuleType]:
    with imported("one_thread") as modules:
        yield modules["one_thread"]


@pytest.mark.parametrize("case", ["produce16", "woken", "transaction"])
def test_a_case_gives_the_cpu_time_of_each_round(one_thread: ModuleType, case: str) -> None:
    found = one_thread.measure(case, 16, 2)
    assert len(found) == 2
    assert found == sorted(found)
    assert found[0] > 0
