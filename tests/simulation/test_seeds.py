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

REPLICATED_SECONDS = scale(12, 20)
"""Replicas cost more than what has one: their faults end sooner in every run."""


def _check(first: int, brokers: int, *more: str) -> None:
    options = ("--brokers", str(brokers), *more)
    failed = run_seeds(f"{first}-{first + AT_ONCE - 1}", *options)
    text = [f"{command(seed, *options)}\n  {problems[0]}" for seed, problems in failed.items()]
    assert not failed, "\n".join(text)


@pytest.mark.parametrize("first", range(0, scale(30, 1000), AT_ONCE))
def test_replicas_keep_their_promises_through_every_fault(first: int) -> None:
    _check(first, 3, "--replicas", "3", "--seconds", str(REPLICATED_SECONDS))


def test_idempotent_producers_write_once_while_disks_are_full_at_times() -> None:
    options = ("--brokers", "3", "--replicas", "3", "--seconds", str(REPLICATED_SECONDS), "--fill-disks")
    failed = run_seeds(f"0-{scale(3, 99)}", *options)
    assert not failed, "\n".join(f"{command(seed, *options)}\n  {failed[seed][0]}" for seed in failed)


def test_brokers_register_again_while_their_disks_are_full() -> None:
    options = ("--replicas", "3", "--seconds", str(REPLICATED_SECONDS), "--fill-whole-disks")
    failed = run_seeds(f"0-{scale(1, 9)}", *options)
    assert not failed, "\n".join(f"{command(seed, *options)}\n  {failed[seed][0]}" for seed in failed)


def test_leaders_leave_log_folders_that_break_and_come_back_after_a_restart() -> None:
    # In the end of each run one more folder breaks, so that a short one is enough for every day.
    options = ("--brokers", "3", "--replicas", "3", "--seconds", str(scale(2, 20)), "--fail-folders")
    failed = run_seeds(f"0-{scale(1, 99)}", *options)
    assert not failed, "\n".join(f"{command(seed, *options)}\n  {failed[seed][0]}" for seed in failed)


def test_requests_of_the_controller_that_arrive_after_newer_ones_change_nothing() -> None:
    options = ("--replicas", "3", "--seconds", str(REPLICATED_SECONDS), "--delay-connections")
    failed = run_seeds(f"0-{scale(1, 49)}", *options)
    assert not failed, "\n".join(f"{command(seed, *options)}\n  {failed[seed][0]}" for seed in failed)


@pytest.mark.parametrize("first", range(0, scale(10, 900), AT_ONCE))
def test_three_brokers_keep_their_promises_through_every_fault(first: int) -> None:
    _check(first, brokers=3)


@pytest.mark.parametrize("first", range(0, scale(10, 100), AT_ONCE))
def test_a_broker_alone_keeps_its_promises_through_every_fault(first: int) -> None:
    _check(first, brokers=1)


def test_one_seed(seed: int, brokers: int, replicas: int, capfd: pytest.CaptureFixture[str]) -> None:
    """The seed of `--sim-seed`."""
    arguments = [str(seed), "--brokers", str(brokers), "--replicas", str(replicas)]
    with capfd.disabled():
        done = subprocess.run(
            [sys.executable, "-m", "tests.simulation", *arguments],
            cwd=PROJECT,
            check=False,
        )
    assert done.returncode == 0
