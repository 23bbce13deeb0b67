"""Records that are read from one topic and written to another come over exactly once, in their order,
whatever happens to those who carry them and to the broker.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.exactly_once.brokers import running_broker
from tests.exactly_once.moving import Moving, compare
from tests.support.own_cluster import broker_count
from tests.support.scale import scale
from tidelog.simulation.checks.transaction_checker import Log

# Not confluent-kafka on several brokers: send_offsets_to_transaction of librdkafka 2.16 has no time limit
# while it waits for a group coordinator that was killed (tests/transactions/test_lost_coordinators.py). Its
# group waits with it, for max.poll.interval.ms.
FLAVOURS = ("confluent-kafka", "kafka-python") if broker_count() == 1 else ("kafka-python", "kafka-python")


@pytest.mark.parametrize("seed", range(scale(1, 3)))
def test_every_record_comes_over_once(tmp_path: Path, seed: int) -> None:
    records, batch = scale(40_000, 1_000_000), scale(100, 500)
    with (
        running_broker(tmp_path) as broker,
        Moving(
            broker, tmp_path / "moving", seed, records=records, batch=batch, flavours=FLAVOURS
        ) as moving,
    ):
        moving.act(scale(4, 40))
        moving.finish()


@pytest.mark.parametrize(
    ("target", "rule"),
    [
        ([(0, "moved a"), (1, "moved b"), (3, "moved a")], "duplicate"),
        ([(0, "moved a"), (1, "moved c")], "lost"),
        ([(0, "moved b"), (1, "moved a"), (2, "moved c")], "order"),
    ],
)
def test_what_came_over_wrong_is_named(target: Log, rule: str) -> None:
    (problem,) = compare(["a", "b", "c"], target, ("target", 0))
    assert problem.rule == rule


def test_what_came_over_right_is_right() -> None:
    assert compare(["a", "b"], [(3, "moved a"), (7, "moved b")], ("target", 0)) == []
