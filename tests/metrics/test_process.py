"""The descriptors of the process are counted, on kernels that tell their number and on others."""

from __future__ import annotations

import os
from contextlib import ExitStack
from types import SimpleNamespace

import pytest

from tidelog.metrics import process


@pytest.mark.parametrize("is_old_kernel", [False, True])
def test_open_descriptors_are_counted(monkeypatch: pytest.MonkeyPatch, is_old_kernel: bool) -> None:
    if is_old_kernel:
        monkeypatch.setattr(os, "stat", lambda path: SimpleNamespace(st_size=0))
    before = process.open_descriptors()
    with ExitStack() as files:
        for _ in range(100):
            files.enter_context(open(os.devnull))
        assert process.open_descriptors() == before + 100
    assert process.open_descriptors() == before


@pytest.mark.skipif(
    os.path.isdir("/proc/self/fd") and not os.stat("/proc/self/fd").st_size,
    reason="Linux before 6.2 does not tell the number",
)
def test_descriptors_are_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scrape would hold the loop for as long as the listing of thousands takes."""
    monkeypatch.setattr(os, "listdir", lambda path: pytest.fail(f"{path} is listed"))
    assert process.open_descriptors() > 2
