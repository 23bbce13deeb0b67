"""The simulation finds faults: each planted one breaks a promise within a few seeds."""

from __future__ import annotations

import pytest

from tests.simulation.planted import PLANTED
from tests.simulation.seeds import command, run_seeds
from tests.support.scale import scale

ALWAYS = ("aborted-offsets-stay", "absence-is-deletion", "expired-brokers-stay-away")
"""Found by the first seeds: these are tried in every run, the others in the long form."""


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found(name: str) -> None:
    if name not in ALWAYS and not scale(0, 1):
        pytest.skip("tried in the long form")
    plant = PLANTED[name]
    options = ("--brokers", str(plant.brokers), "--plant", name)
    found = run_seeds(0, plant.seeds - 1, *options, "--until-found")
    assert found, command(f"0-{plant.seeds - 1}", *options)
