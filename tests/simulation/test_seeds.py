"""Brokers, clients and faults on simulated time: what is promised holds whatever a seed does.

A seed that fails is replayed, with its whole history, by the command in the message.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.simulation.seeds import PROJECT, command, run_seeds
from tests.support.scale import scale

AT_ONCE = 10


def _check(first: int, brokers: int) -> None:
    failed = run_seeds(f"{first}-{first + AT_ONCE - 1}", "--brokers", str(brokers))
    text = [f"{command(seed, '--brokers', brokers)}\n  {problems[0]}" for seed, problems in failed.items()]
    assert not failed, "\n".join(text)


@pytest.mark.parametrize("first", range(0, scale(40, 900), AT_ONCE))
def test_three_brokers_keep_their_promises_through_every_fault(first: int) -> None:
    _check(first, brokers=3)


@pytest.mark.parametrize("first", range(0, scale(10, 100), AT_ONCE))
def test_a_broker_alone_keeps_its_promises_through_every_fault(first: int) -> None:
    _check(first, brokers=1)


def test_one_seed(seed: int, brokers: int, capfd: pytest.CaptureFixture[str]) -> None:
    """The seed of `--sim-seed`."""
    with capfd.disabled():
        done = subprocess.run(
            [sys.executable, "-m", "tests.simulation", str(seed), "--brokers", str(brokers)],
            cwd=PROJECT,
            check=False,
        )
    assert done.returncode == 0
