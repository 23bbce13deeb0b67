"""The sink on Apache Kafka 4.3 and 3.9: what is said of it on our broker holds there as well.

Kafka 4.3 is there twice, with two-phase commit and without; 3.9 has none.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kafka.servers import new_kafka
from tests.spark.conftest import spark
from tests.spark.hands import Hands
from tests.spark.test_decisions import *  # noqa: F403
from tests.spark.test_exactly_once import *  # noqa: F403
from tests.spark.test_exactly_once_fenced import *  # noqa: F403
from tests.spark.test_exactly_once_stories import test_every_row_is_there_once_whoever_dies_and_whenever
from tests.spark.test_sink import *  # noqa: F403

__all__ = ["spark", "test_every_row_is_there_once_whoever_dies_and_whenever"]

TWO_PHASE = {"transaction.two.phase.commit.enable": "true"}


@pytest.fixture(scope="module", params=["kafka4 in two phases", "kafka4", "kafka3"])
def hands(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hands]:
    """Works on Apache Kafka in place of our broker."""
    kind, *two_phase = request.param.split(" ", 1)
    folder = tmp_path_factory.mktemp("kafka")
    with new_kafka(kind, folder, TWO_PHASE if two_phase else None) as kafka, Hands(kafka.bootstrap) as hands:
        yield hands
