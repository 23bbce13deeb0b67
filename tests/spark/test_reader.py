"""Ranges of offsets as Arrow batches: every record of the range once, whatever lies between its offsets."""

from __future__ import annotations

import datetime
import pickle

import pyarrow as pa
import pytest

from tests.spark.hands import Hands
from tidelog import Producer
from tidelog.clients.errors import ConfigError
from tidelog.errors import InvalidTimestamp, KafkaError
from tidelog.spark.reader import DataLoss, OffsetRange, ReadSettings, read_range
from tidelog.spark.rows import arrow_schema
from tidelog.spark.values import parse
from tidelog.testing import Broker

Row = dict[str, object]
QUICK = {"fetch.max.wait.ms": "50", "retry.backoff.ms": "20"}
WAIT_MS = 1500


def settings(bootstrap: str, options: dict[str, str] | None = None, **more: object) -> ReadSettings:
    client = {"bootstrap.servers": bootstrap, **QUICK, **more.pop("client", {})}  # type: ignore[dict-item]
    return ReadSettings(client, parse(options or {}), **more)  # type: ignore[arg-type]


def batches(topic: str, start: int, end: int, given: ReadSettings) -> list[pa.RecordBatch]:
    found = list(read_range(*pickle.loads(pickle.dumps((OffsetRange(topic, 0, start, end), given)))))
    for batch in found:
        batch.validate(full=True)
        assert batch.schema.equals(arrow_schema(given.format.schema())), "Spark takes nothing else"
    return found


def rows(topic: str, start: int, end: int, given: ReadSettings) -> list[Row]:
    return [row for batch in batches(topic, start, end, given) for row in batch.to_pylist()]


def offsets(topic: str, start: int, end: int, given: ReadSettings) -> list[int]:
    return [number for batch in batches(topic, start, end, given) for number in batch["offset"].to_pylist()]


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_rows_hold_what_was_produced(broker: Broker, hands: Hands, codec: str) -> None:
    topic = hands.topic()
    count = 500
    with Producer(
        bootstrap_servers=broker.bootstrap_servers, compression_type=codec, batch_size=900
    ) as producer:
        for n in range(count):
            producer.send(
                topic,
                None if n % 7 == 0 else b"value %d" % n,
                key=None if n % 3 else b"key %d" % n,
                headers=[("h", b"%d" % n), ("n", None)] if n % 5 == 0 else [],
                partition=0,
                timestamp_ms=10**12 + n,
            )
    found = rows(topic, 3, count - 3, settings(broker.bootstrap_servers, {"includeHeaders": "true"}))
    epoch = datetime.datetime.fromtimestamp(10**9, datetime.UTC)
    assert found == [
        {
            "key": None if n % 3 else b"key %d" % n,
            "value": None if n % 7 == 0 else b"value %d" % n,
            "topic": topic,
            "partition": 0,
            "offset": n,
            "timestamp": epoch + datetime.timedelta(milliseconds=n),
            "timestampType": 0,
            "headers": [{"key": "h", "value": b"%d" % n}, {"key": "n", "value": None}]
            if n % 5 == 0
            else None,
        }
        for n in range(3, count - 3)
    ]


def test_a_range_takes_as_many_fetches_as_it_needs(broker: Broker, hands: Hands) -> None:
    topic = hands.topic()
    hands.produce(topic, ["x" * 500] * 40)
    hands.produce(topic, ["y" * 20_000])  # more than a fetch may bring, and brought all the same
    hands.produce(topic, range(5))
    small = settings(broker.bootstrap_servers, client={"max.partition.fetch.bytes": "2000"})
    assert len(batches(topic, 0, 46, small)) > 1
    assert offsets(topic, 0, 46, small) == list(range(46))
    assert offsets(topic, 40, 41, small) == [40]
    assert offsets(topic, 7, 7, small) == []
    by_three = settings(broker.bootstrap_servers, rows_per_batch=3)
    assert [batch.num_rows for batch in batches(topic, 38, 46, by_three)][-1] <= 3
    assert offsets(topic, 38, 46, by_three) == list(range(38, 46))


def test_only_committed_rows_are_seen_by_those_who_ask_for_them(broker: Broker, hands: Hands) -> None:
    topic = hands.topic()
    hands.produce(topic, ["before"])
    with Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id=f"tx-{topic}") as producer:
        producer.init_transactions()
        for value, commit in ((b"aborted", False), (b"committed", True), (b"aborted", False)):
            producer.begin_transaction()
            producer.send(topic, value, partition=0)
            producer.flush()
            if commit:
                producer.commit_transaction()
            else:
                producer.abort_transaction()
    (end,) = hands.ends(topic)
    committed = settings(broker.bootstrap_servers, client={"isolation.level": "read_committed"})
    every = settings(broker.bootstrap_servers)
    assert [row["value"] for row in rows(topic, 0, end, committed)] == [b"before", b"committed"]
    assert [row["value"] for row in rows(topic, 0, end, every)] == [
        b"before",
        b"aborted",
        b"committed",
        b"aborted",
    ]
    # A range of markers and aborted records alone is empty, and ends.
    assert rows(topic, end - 2, end, committed) == []


@pytest.fixture
def cut(broker: Broker, hands: Hands) -> str:
    """A topic whose first ten offsets are gone."""
    topic = hands.topic()
    hands.produce(topic, range(20))
    hands.admin.delete_records({(topic, 0): 10})
    return topic


def test_offsets_that_are_gone_fail_the_read(broker: Broker, cut: str) -> None:
    given = settings(broker.bootstrap_servers)
    with pytest.raises(
        DataLoss,
        match=r"offsets 5 to 10 cannot be read: the log starts at offset 10 now.*failOnDataLoss=false",
    ):
        rows(cut, 5, 20, given)


def test_offsets_that_are_gone_can_be_passed_over(broker: Broker, cut: str) -> None:
    given = settings(broker.bootstrap_servers, fail_on_data_loss=False, poll_timeout_ms=WAIT_MS)
    assert offsets(cut, 5, 15, given) == list(range(10, 15))
    assert offsets(cut, 2, 8, given) == []
    assert offsets(cut, 15, 30, given) == list(range(15, 20))
    assert offsets(cut, 40, 50, given) == []


def test_a_range_beyond_the_end_is_not_waited_for_for_ever(broker: Broker, cut: str) -> None:
    given = settings(broker.bootstrap_servers, poll_timeout_ms=WAIT_MS)
    late = rf"offsets 20 to 30 cannot be read: no record came within {WAIT_MS} ms"
    with pytest.raises(DataLoss, match=late):
        rows(cut, 15, 30, given)
    with pytest.raises(DataLoss, match=r"offsets 40 to 50 cannot be read: the log ends before it"):
        rows(cut, 40, 50, given)


def test_a_topic_that_is_gone_is_lost_data(broker: Broker) -> None:
    with pytest.raises(
        DataLoss, match="nowhere-0: offsets 0 to 5 cannot be read: the topic or partition does not exist"
    ):
        rows("nowhere", 0, 5, settings(broker.bootstrap_servers, poll_timeout_ms=WAIT_MS))


def test_a_broker_that_restarts_is_found_again() -> None:
    with Broker() as broker:
        broker.create_topic("t")
        with Hands(broker.bootstrap_servers) as hands:
            hands.produce("t", ["x" * 900] * 50)
        given = settings(broker.bootstrap_servers, client={"max.partition.fetch.bytes": "4000"})
        reading = read_range(OffsetRange("t", 0, 0, 50), given)
        found = next(reading)["offset"].to_pylist()
        broker.restart()
        for batch in reading:
            found += batch["offset"].to_pylist()
        assert found == list(range(50))


def test_a_broker_that_is_not_there_is_named(hands: Hands) -> None:
    given = ReadSettings({"bootstrap.servers": "127.0.0.1:1", **QUICK}, poll_timeout_ms=100)
    with pytest.raises(KafkaError, match=r"cannot connect to 127\.0\.0\.1:1: Connection refused"):
        rows("t", 0, 1, given)
    with pytest.raises(ConfigError, match=r"bootstrap\.servers"):
        rows("t", 0, 1, ReadSettings({}))


def test_a_time_that_spark_cannot_hold_is_told_where_it_is_asked_for(broker: Broker, hands: Hands) -> None:
    topic = hands.topic(configs={"message.timestamp.after.max.ms": str(2**63 - 1)})
    nanoseconds = 1_700_000_000_000_000_000
    hands.produce(topic, "a")
    hands.produce(topic, "b", timestamp_ms=nanoseconds)
    told = f"{topic}-0, offset 1: the time of the record is {nanoseconds} ms, which Spark's timestamps cannot"
    with pytest.raises(InvalidTimestamp, match=told):
        rows(topic, 0, 2, settings(broker.bootstrap_servers))
    without = settings(broker.bootstrap_servers, {"columns": "value"})
    assert rows(topic, 0, 2, without) == [{"value": b"a"}, {"value": b"b"}]


def test_columns_and_conditions_are_applied_while_reading(broker: Broker, hands: Hands) -> None:
    topic = hands.topic()
    hands.produce(topic, ['{"n": 1}', "broken", '{"n": 3}'])
    options = {"valueFormat": "json", "valueSchema": "n INT", "columns": "offset", "filter": "offset > 0"}
    assert rows(topic, 0, 3, settings(broker.bootstrap_servers, options)) == [
        {"n": None, "_error": "the value is not valid JSON, from byte 0 on", "_raw": b"broken", "offset": 1},
        {"n": 3, "_error": None, "_raw": None, "offset": 2},
    ]
    assert (
        rows(topic, 0, 3, settings(broker.bootstrap_servers, {"columns": "offset", "filter": "offset > 5"}))
        == []
    )
