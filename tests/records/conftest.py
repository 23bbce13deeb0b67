"""Both twins of the hot loops, so that every test of a loop runs over each."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace

import pytest

from tidelog.records import (
    _pure,
    _pure_check,
    _pure_cleaner,
    _pure_client,
    _pure_copy,
    _pure_fetch,
    _pure_fetch_request,
    _pure_follower_fetch,
    _pure_produce,
    _pure_producer,
    _pure_rows,
    _pure_run,
    loops,
)


def pure() -> SimpleNamespace:
    modules = (
        _pure,
        _pure_check,
        _pure_produce,
        _pure_producer,
        _pure_cleaner,
        _pure_client,
        _pure_copy,
        _pure_fetch,
        _pure_fetch_request,
        _pure_follower_fetch,
        _pure_rows,
        _pure_run,
    )
    return SimpleNamespace(
        **{name: next(vars(module)[name] for module in modules if name in vars(module)) for name in NAMES}
    )


NAMES = [name for name in loops.__all__ if name not in loops.SHARED]


def compiled() -> ModuleType:
    return pytest.importorskip("tidelog.records._speed", reason="the extension is not built")


@pytest.fixture(params=["pure", "compiled"])
def twin(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """One of the twins, in use by the whole package while the test runs."""
    module = pure() if request.param == "pure" else compiled()
    functions = {name: getattr(module, name) for name in NAMES}
    for name, function in functions.items():
        monkeypatch.setattr(loops, name, function)
    return SimpleNamespace(**functions)
