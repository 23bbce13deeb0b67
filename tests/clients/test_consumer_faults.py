"""The consumer while leaders change, sessions are forgotten, followers serve, and brokers fall."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import pytest

from tests.clients.consuming import fill, make_topic, poll_until, read
from tests.clients.fake_cluster import FIRST_SESSION, FakeCluster
from tests.support.own_broker import OwnBrokers
from tidelog.clients.consumer.blocking import Consumer
from tidelog.clients.consumer.errors import LogTruncationException
from tidelog.errors import CorruptMessage
from tidelog.partitions import TopicPartition
from tidelog.protocol.messages.fetch import FetchRequest, FetchResponse
from tidelog.records.batch import Record, build_batch


def consumer_of(cluster: FakeCluster, **settings: object) -> Consumer:
    made = Consumer(
        bootstrap_servers=cluster.bootstrap,
        **{"metadata_max_age_ms": 50, "auto_offset_reset": "earliest", **settings},
    )
    made.assign([("t", 0)])
    return made


def test_a_truncated_log_is_noticed_and_the_position_goes_back(caplog: pytest.LogCaptureFixture) -> None:
    with FakeCluster() as cluster, consumer_of(cluster) as consumer:
        cluster.write(b"a", b"b", b"c", b"lost 1", b"lost 2")
        assert len(read(consumer, 5)) == 5
        del cluster.log[3:]
        cluster.elect(1)
        cluster.write(b"d")
        assert [record.value for record in read(consumer, 1)] == [b"d"]
        assert "offset 5 was read, but the log of the new leader ends at 3" in caplog.text
        assert consumer.position(("t", 0)) == 4


def test_without_a_policy_a_truncated_log_is_told() -> None:
    with FakeCluster() as cluster, consumer_of(cluster, auto_offset_reset="none") as consumer:
        consumer.seek(("t", 0), 0)
        cluster.write(b"a", b"b", b"c")
        read(consumer, 3)
        del cluster.log[1:]
        cluster.elect(1)
        cluster.write(b"d")
        with pytest.raises(LogTruncationException) as caught:
            poll_until(consumer, lambda: False, "it is told", 10)
        assert caught.value.divergent_offsets == {TopicPartition("t", 0): 1}
        consumer.seek(("t", 0), 1)
        assert [record.value for record in read(consumer, 1)] == [b"d"]


def test_a_new_leader_with_the_whole_log_is_followed() -> None:
    with FakeCluster() as cluster, consumer_of(cluster) as consumer:
        cluster.write(b"a", b"b")
        read(consumer, 2)
        cluster.elect(1)
        cluster.write(b"c")
        assert [record.value for record in read(consumer, 1)] == [b"c"]
        assert cluster.epoch_questions[-1] == 0
        assert cluster.asked[-1][0] == 1


def test_a_follower_is_read_from_where_the_leader_says_so() -> None:
    # What the leader says holds for as long as metadata does.
    settings = {"client_rack": "here", "metadata_max_age_ms": 60_000}
    with FakeCluster() as cluster, consumer_of(cluster, **settings) as consumer:
        cluster.preferred = 1
        cluster.write(b"a", b"b", b"c")
        assert len(read(consumer, 3)) == 3
        assert {request.rack_id for _, request in cluster.asked} == {"here"}
        assert [node for node, _ in cluster.asked[:3]] == [0, 1, 1]


def test_a_follower_that_lags_sends_back_to_the_leader() -> None:
    def behind(node: int, request: FetchRequest) -> FetchResponse | None:
        if node == 0:
            return None
        cluster.preferred = None
        data = FetchResponse.PartitionData(partition_index=0, error_code=1, records=b"")
        topic = FetchResponse.FetchableTopicResponse(topic="t", partitions=[data])
        return FetchResponse(responses=[topic])

    with FakeCluster() as cluster, consumer_of(cluster, auto_offset_reset="none") as consumer:
        cluster.preferred = 1
        cluster.script = behind
        consumer.seek(("t", 0), 0)
        cluster.write(b"a")
        assert [record.value for record in read(consumer, 1)] == [b"a"]


def test_a_session_says_only_what_changed_and_is_made_anew_when_it_is_forgotten() -> None:
    with FakeCluster() as cluster, consumer_of(cluster) as consumer:
        cluster.write(b"a", b"b")
        read(consumer, 2)
        consumer.poll(0.1)
        requests = [request for _, request in cluster.asked]
        assert (requests[0].session_id, requests[0].session_epoch) == (0, 0)
        assert (requests[1].session_id, requests[1].session_epoch) == (FIRST_SESSION, 1)
        assert requests[-1].topics == []  # nothing has changed
        cluster.sessions.clear()
        cluster.write(b"c")
        assert [record.value for record in read(consumer, 1)] == [b"c"]
        assert any(request.session_epoch == 0 for _, request in cluster.asked[len(requests) :])


def with_damage(cluster: FakeCluster) -> Callable[[int, FetchRequest], FetchResponse | None]:
    def damaged(node: int, request: FetchRequest) -> FetchResponse | None:
        if not request.topics or request.topics[0].partitions[0].fetch_offset != 1:
            return None
        batch = bytearray(build_batch([Record(1, 1, None, b"damaged")], base_offset=1))
        batch[-2] ^= 1
        data = FetchResponse.PartitionData(partition_index=0, high_watermark=3, records=bytes(batch))
        return FetchResponse(responses=[FetchResponse.FetchableTopicResponse(topic="t", partitions=[data])])

    return damaged


def test_a_damaged_batch_is_told_until_it_is_passed() -> None:
    with FakeCluster() as cluster, consumer_of(cluster) as consumer:
        cluster.script = with_damage(cluster)
        cluster.write(b"a", b"b", b"c")
        assert [record.value for record in read(consumer, 1)] == [b"a"]
        for _ in range(2):
            with pytest.raises(CorruptMessage, match="t-0: the batch at offset 1 does not match its CRC"):
                read(consumer, 1)
        consumer.seek(("t", 0), 2)
        assert [record.value for record in read(consumer, 1)] == [b"c"]


def test_checksums_are_not_looked_at_where_nobody_wants_them() -> None:
    with FakeCluster() as cluster, consumer_of(cluster, check_crcs=False) as consumer:
        cluster.script = with_damage(cluster)
        cluster.write(b"a", b"b", b"c")
        assert len(read(consumer, 3)) == 3


def test_a_throttled_consumer_waits() -> None:
    def throttled(node: int, request: FetchRequest) -> FetchResponse | None:
        answer = cluster._fetch(node, request)
        answer.throttle_time_ms = 200
        return answer

    with FakeCluster() as cluster, consumer_of(cluster) as consumer:
        cluster.script = throttled
        began = time.monotonic()
        consumer.poll(1.0)
        assert len(cluster.asked) <= (time.monotonic() - began) / 0.2 + 2
        assert consumer.metrics()["fetch-throttle-time-max"] == 200


@pytest.mark.parametrize("kill", [True, False], ids=["killed", "stopped"])
def test_a_broker_that_falls_and_comes_back_is_read_on(
    own_broker: OwnBrokers, kill: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    with own_broker({"group.initial.rebalance.delay.ms": "0"}) as broker:
        topic = make_topic(broker.bootstrap, "lasting", 2)
        settings = {"bootstrap.servers": broker.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
        with Consumer(topic, settings, enable_auto_commit=False) as consumer:
            sent = fill(broker.bootstrap, topic, 100)
            assert [record.value for record in read(consumer, 100)] == sent
            consumer.commit()
            broker.restart(kill=kill)
            more = fill(broker.bootstrap, topic, 100)
            assert [record.value for record in read(consumer, 100)] == more
            consumer.commit()
            entry = consumer.committed([(topic, 0)])[TopicPartition(topic, 0)]
            assert entry is not None
            assert entry.offset == 200


def test_close_does_not_wait_for_a_broker_that_is_gone(own_broker: OwnBrokers) -> None:
    with own_broker({"group.initial.rebalance.delay.ms": "0"}) as broker:
        topic = make_topic(broker.bootstrap, "gone")
        consumer = Consumer(topic, bootstrap_servers=broker.bootstrap, group_id="g")
        poll_until(consumer, lambda: bool(consumer.assignment()), "it is assigned")
        consumer.position((topic, 0))
        broker.kill()
        began = time.monotonic()
        consumer.close(2.0)
        assert time.monotonic() - began < 6
