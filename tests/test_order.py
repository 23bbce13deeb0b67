"""The order of the tests: the longest come first, all others as they are collected."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.conftest import LONGEST, TESTS, pytest_collection_modifyitems


def test_the_longest_files_come_first() -> None:
    names = ["cli/test_acls.py", LONGEST[1], "cli/test_topics.py", LONGEST[0]]
    items: list[Any] = [SimpleNamespace(path=TESTS / name) for name in names]
    pytest_collection_modifyitems(items)
    assert [item.path for item in items] == [TESTS / names[at] for at in (1, 3, 0, 2)]


def test_the_longest_files_are_there() -> None:
    assert [name for name in LONGEST if not (TESTS / name).is_file()] == []
