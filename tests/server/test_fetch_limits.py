"""How much Fetch answers with, and when: each case was seen on Kafka 4.3."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from tests.support.fixtures import bootstrap, new_name
from tests.support.small_client import Client

__all__ = ["bootstrap", "new_name"]

LONG_WAIT_MS = 20_000
SIZE = 50_000  # of a batch, about


@pytest.fixture
def client(bootstrap: str) -> Iterator[Client]:
    with Client(bootstrap) as client:
        yield client


@pytest.fixture
def topic(client: Client, new_name: Callable[[str], str]) -> str:
    """Two partitions with two batches each."""
    name = new_name("limits")
    assert client.create(name, 2) == 0
    for partition in (0, 1, 0, 1):
        assert client.produce(name, partition, b"x" * SIZE).error_code == 0
    return name


def test_only_the_first_partition_with_data_gets_a_batch_above_its_limit(client: Client, topic: str) -> None:
    first, second = client.fetch(topic, [(0, 0, SIZE // 5), (1, 0, SIZE // 5)])
    assert first.size > SIZE
    assert second.size == 0  # half a batch makes the Java consumer give up


def test_what_is_left_of_the_limit_is_not_filled_with_a_part_of_a_first_batch(
    client: Client, topic: str
) -> None:
    first, second = client.fetch(topic, [(0, 0, 1 << 20), (1, 0, 1 << 20)], max_bytes=5 * SIZE // 2)
    assert first.size > 2 * SIZE
    assert second.size == 0


def test_a_batch_behind_the_first_may_be_cut(client: Client, topic: str) -> None:
    (first,) = client.fetch(topic, [(0, 0, 3 * SIZE // 2)])
    assert first.size == 3 * SIZE // 2


def test_min_bytes_above_max_bytes_do_not_make_a_full_answer_wait(client: Client, topic: str) -> None:
    began = time.monotonic()
    (first,) = client.fetch(
        topic, [(0, 0, 1 << 20)], max_bytes=SIZE + 1000, min_bytes=1 << 20, max_wait_ms=LONG_WAIT_MS
    )
    assert first.size == SIZE + 1000
    assert time.monotonic() - began < LONG_WAIT_MS / 2000


def test_a_reader_at_the_end_of_an_older_segment_does_not_wait_for_min_bytes(
    client: Client, new_name: Callable[[str], str]
) -> None:
    name = new_name("segments")
    assert client.create(name, 1, {"segment.bytes": "1048576"}) == 0
    for _ in range(3):
        assert client.produce(name, 0, b"x" * 400_000).error_code == 0
    began = time.monotonic()
    (first,) = client.fetch(name, [(0, 1, 1 << 20)], min_bytes=1 << 20, max_wait_ms=LONG_WAIT_MS)
    assert 400_000 < first.size < 500_000
    assert time.monotonic() - began < LONG_WAIT_MS / 2000
