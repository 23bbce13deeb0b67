"""A broker that takes no batches: how long the sticky partitioner goes on choosing its partitions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.clients.fake_broker import SILENCE, Answer, FakeBroker, Produced
from tests.support.wait import eventually
from tidelog.clients.producer.blocking import Producer
from tidelog.records.loops import RecordFuture

MANY = 200
"""Records, each a batch of its own: hardly any partition that may be chosen is never among so many."""


class SlowLeader(FakeBroker):
    """Two brokers, each with one partition; the second takes a batch and is silent, as long as it hangs."""

    def __init__(self) -> None:
        super().__init__(self._hang, partitions=2, nodes=2)
        self.hangs = True

    def _hang(self, batch: Produced) -> Answer | None:
        return SILENCE if self.hangs and batch.partition == 1 else None

    def recover(self) -> None:
        self.hangs = False
        self.hang_up()  # what was sent meanwhile is sent again


@contextmanager
def producing(broker: FakeBroker, **settings: object) -> Iterator[Producer]:
    fixed: dict[str, object] = {
        "batch_size": 1,
        "linger_ms": 0,
        "enable_idempotence": False,
        "max_in_flight_requests_per_connection": 1,
        "retry_backoff_ms": 5,
        "retry_backoff_max_ms": 20,
        "reconnect_backoff_ms": 5,
        "reconnect_backoff_max_ms": 20,
    }
    producer = Producer(bootstrap_servers=broker.bootstrap, **{**fixed, **settings})
    try:
        yield producer
    finally:
        producer.close(timeout=0)


def send(producer: Producer, count: int) -> list[RecordFuture]:
    return [producer.send("t", b"v") for _ in range(count)]


def partitions(futures: list[RecordFuture]) -> set[int]:
    return {future.result(10).partition for future in futures}


def waiting_for_the_slow_one(broker: FakeBroker, producer: Producer) -> list[RecordFuture]:
    """Send until a batch is on its way to the broker that hangs, and others wait behind it."""
    sent: list[RecordFuture] = []

    def stuck() -> list[RecordFuture]:
        sent.extend(send(producer, 20))
        waiting = [future for future in sent if not future.done()]
        came = any(batch.partition == 1 for batch in broker.produced)
        return waiting if came and len(waiting) >= 2 else []

    return eventually(stuck, "records for the broker that hangs")


def left_alone(producer: Producer) -> bool:
    """Whether everything of a small burst was written, so that none of it went to the broker that hangs."""
    burst = send(producer, 20)
    try:
        eventually(lambda: all(future.done() for future in burst), "all written", timeout=0.3)
    except AssertionError:
        return False
    return True


def test_a_partition_whose_leader_takes_nothing_is_left_out_until_it_does() -> None:
    with SlowLeader() as broker, producing(broker, partitioner_availability_timeout_ms=50) as producer:
        stuck = waiting_for_the_slow_one(broker, producer)
        eventually(lambda: left_alone(producer), "the slow broker is left alone", timeout=20)
        assert partitions(send(producer, MANY)) == {0}
        broker.recover()
        assert {1} <= partitions(stuck)
        assert partitions(send(producer, MANY)) == {0, 1}


def test_without_a_time_limit_it_is_chosen_less_often_and_not_left_out() -> None:
    with SlowLeader() as broker, producing(broker) as producer:
        waiting_for_the_slow_one(broker, producer)
        before = len(broker.produced)
        sent = send(producer, MANY)
        eventually(lambda: len(broker.produced) - before >= MANY / 2, "most are written")
        assert any(not future.done() for future in sent)
        broker.recover()
        assert partitions(sent) == {0, 1}


def test_what_went_to_a_slow_leader_and_expired_does_not_keep_it_out_for_ever() -> None:
    """Nothing waits for it any more, so that nothing could show that it takes batches again."""
    limits = {"delivery_timeout_ms": 600, "request_timeout_ms": 500}
    with (
        SlowLeader() as broker,
        producing(broker, partitioner_availability_timeout_ms=50, **limits) as producer,
    ):
        stuck = waiting_for_the_slow_one(broker, producer)
        eventually(lambda: all(future.done() for future in stuck), "what waited has expired")
        broker.recover()

        def chosen() -> bool:
            burst = send(producer, 20)
            return any(future.exception(10) is None and future.result(0).partition == 1 for future in burst)

        eventually(chosen, "the broker is chosen again")


def test_a_broker_that_is_merely_busy_for_a_moment_is_not_left_out_later() -> None:
    """It had as many requests as it may have, answered them, and nothing was sent to it since."""
    with (
        FakeBroker(partitions=2, nodes=2) as broker,
        producing(broker, partitioner_availability_timeout_ms=50) as producer,
    ):
        assert partitions(send(producer, MANY)) == {0, 1}
        sender = producer._core.sender
        eventually(lambda: not sender._blocked_since, "nobody is held to be busy")
        assert sender.unavailable_brokers() == set()
