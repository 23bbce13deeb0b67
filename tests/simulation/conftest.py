"""`pytest tests/simulation --sim-seed 17` replays one seed and prints its history."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("simulation")
    group.addoption("--sim-seed", type=int, default=None, help="replay this seed and print its history")
    group.addoption("--sim-brokers", type=int, default=3, help="of that run; 1 has an embedded tree")
    group.addoption("--sim-replicas", type=int, default=1, help="of each partition in that run")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--sim-seed", default=None) is None:
        return
    items[:] = [item for item in items if item.name.startswith("test_one_seed[")]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.function.__name__ == "test_one_seed":
        seed = metafunc.config.getoption("--sim-seed", default=None)
        brokers = metafunc.config.getoption("--sim-brokers", default=3)
        replicas = metafunc.config.getoption("--sim-replicas", default=1)
        runs = [] if seed is None else [(seed, brokers, replicas)]
        metafunc.parametrize(("seed", "brokers", "replicas"), runs, ids=str)
