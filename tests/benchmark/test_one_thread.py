"""The benchmark with broker and clients in one thread runs its cases to the end."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).parent.parent.parent / "bench"


@pytest.fixture
def one_thread() -> Iterator[ModuleType]:
    sys.path.insert(0, str(BENCH))
    try:
        yield importlib.import_module("one_thread")
    finally:
        sys.path.remove(str(BENCH))
        sys.modules.pop("one_thread", None)


@pytest.mark.parametrize("case", ["produce16", "woken", "transaction"])
def test_a_case_gives_the_cpu_time_of_each_round(one_thread: ModuleType, case: str) -> None:
    found = one_thread.measure(case, 16, 2)
    assert len(found) == 2
    assert found == sorted(found)
    assert found[0] > 0
