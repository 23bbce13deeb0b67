"""How long a producer waits for acknowledgements while the leader of its partition changes."""

from __future__ import annotations

import itertools
import threading
import time

import confluent_kafka

from tests.support.wait import eventually


class GapWriter:
    """An idempotent producer of one partition with a record every few milliseconds."""

    def __init__(self, bootstrap: str, topic: str, partition: int) -> None:
        self.errors: list[str] = []
        self.acknowledged: list[int] = []
        self._topic = topic
        self._partition = partition
        self._times: list[float] = []
        self._ends = threading.Event()
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 0,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "retry.backoff.ms": 20,
                "topic.metadata.refresh.fast.interval.ms": 50,
                # It asks at once when a connection ends. If no leader is elected by then, it asks again after
                # this time: a second would be its own share of the gap.
                "topic.metadata.refresh.interval.ms": 100,
                # How long it waits for the answer of a leader that is paused.
                "socket.timeout.ms": 1500,
                "log_level": 0,
            }
        )
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> GapWriter:
        self._thread.start()
        self.await_more()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._ends.set()
        self._thread.join(60)

    def await_more(self, count: int = 20, timeout: float = 60.0) -> None:
        wanted = len(self._times) + count
        eventually(lambda: len(self._times) >= wanted, f"{count} more acknowledged records", timeout, 0.005)

    def longest_gap(self, since: float) -> float:
        """The longest time between two acknowledgements, the later of which came after `since`."""
        times = list(self._times)
        return max((b - a for a, b in itertools.pairwise(times) if b > since), default=0.0)

    def _run(self) -> None:
        for number in itertools.count():
            if self._ends.wait(0.003):
                break
            self._producer.produce(
                self._topic, b"%d" % number, partition=self._partition, on_delivery=self._delivered
            )
            self._producer.poll(0)
        if self._producer.flush(50):
            self.errors.append("records are left that no broker took")

    def _delivered(self, error: object, message: confluent_kafka.Message) -> None:
        if error is not None:
            self.errors.append(str(error))
            return
        self._times.append(time.monotonic())
        self.acknowledged.append(int(message.value() or b"-1"))
