"""The check that every test of the exactly-once sink ends with finds each thing that it is to find."""

from __future__ import annotations

import pytest

from tests.spark.decided import problems, settled
from tests.spark.hands import Hands
from tidelog import Producer

ROWS = ["a", "b", "c"]


@pytest.mark.parametrize(
    ("written", "found"),
    [
        (["a", "b", "c"], None),
        (["a", "c"], "1 rows missing, such as ['b']"),
        ([], "3 rows missing"),
        (["a", "b", "b", "c"], "1 rows twice"),
        (["a", "b", "c", "x"], "1 rows that nobody wrote, such as ['x']"),
    ],
)
def test_rows_that_are_wrong_are_found(hands: Hands, written: list[str], found: str | None) -> None:
    topic = hands.topic(partitions=2)
    for index, row in enumerate(written):
        hands.produce(topic, [row], partition=index % 2)
    told = problems(hands, topic, ROWS)
    assert any(each.startswith(found) for each in told) if found is not None else told == []


def test_a_transaction_that_is_left_open_is_found(hands: Hands) -> None:
    topic = hands.topic(partitions=2)
    hands.produce(topic, ROWS)
    with Producer(bootstrap_servers=hands.bootstrap, transactional_id="left-open") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"d", partition=1)
        producer.flush()
        told = problems(hands, topic, ROWS)
        assert told == ["transaction left-open is Ongoing", f"{topic}-1 is stable up to 0 of 1"]
        with pytest.raises(AssertionError, match=f"no transaction open in {topic}"):
            settled(hands, topic, timeout=0.2)
        producer.abort_transaction()
    settled(hands, topic)
    assert not problems(hands, topic, ROWS), "aborted rows are not read"
