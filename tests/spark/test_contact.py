"""The first contact with a cluster: soon over where nobody is there, and made once."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator

import pytest

from tests.spark.decided import Driver
from tests.spark.hands import Hands
from tidelog.spark import contact
from tidelog.spark.batch import TidelogBatchReader
from tidelog.spark.contact import ClusterUnreachable, first_contact
from tidelog.spark.options import BOOTSTRAP_TIMEOUT_MS, batch_options, sink_options, stream_options
from tidelog.spark.pipelines.topics import prepare_topics
from tidelog.spark.sending import Target
from tidelog.spark.sink import batch_writer, write_plain
from tidelog.spark.stream import TidelogStreamReader

NOBODY = "127.0.0.1:1"
GIVEN = {"kafka.bootstrap.servers": NOBODY, "bootstrapTimeoutMs": "300"}
SOON = 5.0


@pytest.fixture
def silent() -> Iterator[str]:
    """An address that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def read_batch() -> None:
    TidelogBatchReader(batch_options({**GIVEN, "subscribe": "orders"})).partitions()


def start_stream() -> None:
    TidelogStreamReader(stream_options({**GIVEN, "subscribe": "orders"})).initialOffset()


def write() -> None:
    target = Target("orders", has_key=False, has_partition=False, has_headers=False)
    write_plain(sink_options({**GIVEN, "topic": "orders"}), target, iter([]))


def write_exactly_once() -> None:
    from pyspark.sql.types import StringType, StructType

    given = {**GIVEN, "topic": "orders", "exactlyOnce": "true"}
    batch_writer(given, StructType().add("value", StringType()), overwrite=False)


@pytest.mark.parametrize("use", [read_batch, start_stream, write, write_exactly_once])
def test_an_address_where_no_broker_is_fails_soon_and_is_named(use: Callable[[], None]) -> None:
    begun = time.monotonic()
    with pytest.raises(
        ClusterUnreachable, match=r"no broker answers at kafka\.bootstrap\.servers=127\.0\.0\.1:1"
    ):
        use()
    assert time.monotonic() - begun < SOON


def test_an_address_that_says_nothing_fails_soon(silent: str) -> None:
    begun = time.monotonic()
    with pytest.raises(ClusterUnreachable, match="within 1500 ms"):
        first_contact({"bootstrap.servers": silent}, 1500)
    assert time.monotonic() - begun < SOON


def test_a_name_that_is_none_is_named() -> None:
    with pytest.raises(ClusterUnreachable, match=r"no-such-host\.invalid:9092"):
        first_contact({"bootstrap.servers": "no-such-host.invalid:9092"}, 500)


def test_a_pipeline_fails_soon_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.spark.options.BOOTSTRAP_TIMEOUT_MS", 300)
    with pytest.raises(ClusterUnreachable, match=NOBODY):
        prepare_topics([], NOBODY, {})


def test_it_is_over_within_ten_seconds_where_nothing_is_set() -> None:
    assert BOOTSTRAP_TIMEOUT_MS / 1000 + contact.GRACE_SECONDS < 10
    assert sink_options({"kafka.bootstrap.servers": NOBODY}).bootstrap_timeout_ms == BOOTSTRAP_TIMEOUT_MS


def test_a_process_that_had_contact_waits_for_brokers_as_its_clients_do(
    hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query that runs lives through the restart of a broker, however long the first contact may take."""
    with Driver(hands, hands.topic(), "run") as driver:
        first_contact(driver.options.client, 10_000)
        monkeypatch.setattr(contact, "LoopThread", None)
        first_contact(driver.options.client, 1)
