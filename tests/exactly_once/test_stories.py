"""Transactions of other people's clients are exactly once, whatever happens to producers and to the broker.
What that means precisely is written in `checker`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.exactly_once.brokers import running_broker
from tests.exactly_once.story import Cast, Story
from tests.support.scale import scale


@pytest.mark.parametrize("seed", range(scale(1, 20)))
def test_transactions_are_exactly_once_through_every_fault(tmp_path: Path, seed: int) -> None:
    cast = Cast(padding=scale(0, 2000), times_out=bool(scale(0, 1)))
    with running_broker(tmp_path) as broker, Story(broker, tmp_path / "story", seed, cast) as story:
        story.go_on(20)
        story.act(scale(6, 30), commits=(0, 2, 20))
        story.go_on(20)
        story.finish()
