"""The simulation finds faults: each planted one breaks a promise within a few seeds."""

from __future__ import annotations

import pytest

from tests.simulation.planted import PLANTED
from tests.simulation.seeds import command, run_seeds
from tests.support.scale import scale

MOST_SEEDS = 12
"""Plants that need more seeds are tried in the long form alone."""


def test_the_plants_of_every_run_are_many() -> None:
    assert sum(plant.seeds <= MOST_SEEDS for plant in PLANTED.values()) >= 12


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found(name: str) -> None:
    plant = PLANTED[name]
    if plant.seeds > MOST_SEEDS and not scale(0, 1):
        pytest.skip("tried in the long form")
    # The seed that found it last, then others: a change of the program may give a seed another history.
    seeds = f"{plant.seed},0-{plant.seeds - 1}"
    options = ["--brokers", str(plant.brokers), "--plant", name]
    if plant.replicas > 1:
        options += ["--replicas", str(plant.replicas), "--seconds", str(plant.seconds)]
    if plant.fails_folders:
        options += ["--fail-folders"]
    if plant.delays_connections:
        options += ["--delay-connections"]
    assert run_seeds(seeds, *options, "--until-found"), command(seeds, *options)
