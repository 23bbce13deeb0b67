"""Killed at random while it cleans and deletes under the load of a real producer, a broker loses nothing.

One producer writes to a compacted topic, to one that keeps little, and to one whose records are deleted. The
n-th record of each has offset n. Readers begin at the start, and read on through the kill.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka import Producer as Client

from tests.support.broker import Broker
from tests.support.scale import scale
from tests.support.wait import eventually
from tidelog import Admin, NewTopic

KILLS = scale(5, 200)
SEGMENT = 200_000
KEPT = 600_000
KEYS = 1500
VALUE = 400
SETTINGS = {
    "log.cleaner.backoff.ms": "5",
    "log.cleaner.io.max.bytes.per.second": "10000000",  # passes that last, so that kills find them
    "log.retention.check.interval.ms": "20",
    "log.flush.start.offset.checkpoint.interval.ms": "50",
    "log.flush.offset.checkpoint.interval.ms": "200",
}
TOPICS: dict[str, dict[str, str]] = {
    "compacted": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.05"},
    "aged": {"retention.bytes": str(KEPT)},
    "trimmed": {},
}
CLIENT: dict[str, str | int | float | bool | None] = {
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 50,
    "topic.metadata.refresh.fast.interval.ms": 50,
    "log_level": 0,  # that the broker goes away is not worth a line
}


class Load:
    """Writes numbered records to each topic until it is stopped, whatever happens to the broker."""

    def __init__(self, bootstrap: str) -> None:
        self.sent = dict.fromkeys(TOPICS, 0)
        self.acknowledged = dict.fromkeys(TOPICS, -1)
        self.sent_of: dict[bytes, int] = {}
        self.failures: list[KafkaError] = []
        self._client = Client(
            {
                **CLIENT,
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 5,
                "batch.size": SEGMENT // 4,
                "retry.backoff.ms": 20,
            }
        )
        self._chance = random.Random(3)
        self._paused = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.wait(0.01):  # a rate that leaves the machine to the broker
            for topic in TOPICS if not self._paused else ():
                for _ in range(25 if len(self._client) < 20_000 else 0):
                    self._send(topic)
            self._client.poll(0)
        self._client.flush(60.0)

    def pause(self) -> None:
        """Until `resume`; on return all is acknowledged."""
        self._paused = True
        eventually(lambda: len(self._client) == 0, "everything is acknowledged", 60.0)
        assert self.acknowledged == {topic: count - 1 for topic, count in self.sent.items()}

    def resume(self) -> None:
        self._paused = False

    def _send(self, topic: str) -> None:
        number = self.sent[topic]
        key = b"key-%d" % self._chance.randrange(KEYS)

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self.failures.append(error)
                return
            self.acknowledged[topic] = number
            assert message.offset() == number

        self.sent[topic] = number + 1
        if topic == "compacted":
            self.sent_of[key] = number
        self._client.produce(topic, b"%d " % number + bytes(VALUE), key, 0, on_delivery=delivered)

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
        assert self.failures == []


class Reader:
    """From the start of a topic to an offset, with whatever breaks there are."""

    def __init__(self, bootstrap: str) -> None:
        self.partition = TopicPartition("", 0)
        self.consumer = Consumer(
            {
                **CLIENT,
                "bootstrap.servers": bootstrap,
                "group.id": "unused",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",  # what it was about to read may be deleted
                "fetch.wait.max.ms": 20,
                "fetch.error.backoff.ms": 20,
                "fetch.queue.backoff.ms": 20,
            }
        )

    def records(self, topic: str, last: Callable[[], int | None]) -> Iterator[tuple[int, bytes | None, int]]:
        """Offset, key and number of each, up to the offset `last`, once that is known."""
        self.partition = TopicPartition(topic, 0, OFFSET_BEGINNING)
        self.consumer.assign([self.partition])
        offset, silence = -1, 0
        while (end := last()) is None or offset < end:
            messages = self.consumer.consume(500, 0.1)
            silence = 0 if messages else silence + 1
            assert silence < 600, f"{self.partition.topic} is not read on behind {offset}, to {end}"
            for message in messages:
                if message.error() is None:
                    value = message.value() or b""
                    offset = message.offset() or 0
                    yield offset, message.key(), int(value[: value.index(b" ")])

    def close(self) -> None:
        self.consumer.close()

    def low(self) -> int:
        bounds: list[tuple[int, int]] = []

        def known() -> bool:
            try:
                bounds.append(self.consumer.get_watermark_offsets(self.partition, timeout=5.0))
            except KafkaException:
                return False
            return True

        eventually(known, "the broker tells its offsets", 60.0)
        return bounds[-1][0]


class Trimmer:
    """Deletes the older records of a topic again and again; while the broker is away it cannot."""

    def __init__(self, broker: Broker, load: Load) -> None:
        self.asked = 0
        self._broker, self._load = broker, load
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.wait(0.02):
            self.asked = max(self.asked, self._load.acknowledged["trimmed"] - 1500)
            try:
                with Admin(
                    bootstrap_servers=self._broker.bootstrap, default_api_timeout_ms=5000, retries=0
                ) as admin:
                    admin.delete_records({("trimmed", 0): self.asked})
            except Exception:  # it is killed at this moment
                continue

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()


class World:
    def __init__(self, folder: Path) -> None:
        self.broker = Broker(folder, SETTINGS)
        self.caught: dict[str, int] = {".cleaned": 0, ".swap": 0, ".deleted": 0}
        self.largest = dict.fromkeys(TOPICS, 0)

    def start(self) -> None:
        self.broker.start()
        with Admin(bootstrap_servers=self.broker.bootstrap) as admin:
            for name, configs in TOPICS.items():
                common = {"internal.segment.bytes": str(SEGMENT), "file.delete.delay.ms": "50"}
                admin.create_topics([NewTopic(name, num_partitions=1, configs={**common, **configs})])
        self.load = Load(self.broker.bootstrap)
        self.trimmer = Trimmer(self.broker, self.load)
        self.reader = Reader(self.broker.bootstrap)

    def close(self) -> None:
        self.reader.close()
        self.trimmer.stop()
        try:
            self.load.stop()
        finally:
            self.broker.close()

    def kill(self, delay: float) -> None:
        """And start again; on return nothing more is written, and all that was is acknowledged."""
        threading.Event().wait(delay)
        self.broker.kill()
        for suffix in self.caught:
            self.caught[suffix] += any(self.broker.data.glob(f"*/*{suffix}"))
        for topic in TOPICS:
            sizes = [path.stat().st_size for path in self.broker.data.glob(f"{topic}-0/*.log")]
            self.largest[topic] = max(self.largest[topic], sum(sizes))
        self.broker.start()
        self.load.pause()

    def turn(self, order: list[str], delay: float) -> None:
        """The first of the topics is read while the broker is killed, the others when all is written."""
        with ThreadPoolExecutor(1) as pool:
            killing = pool.submit(self.kill, delay)
            for topic in order:
                self.read(topic, killing)
        self.load.resume()

    def read(self, topic: str, killing: Future[None]) -> None:
        def last() -> int | None:
            if not killing.done():
                return None
            killing.result()
            return self.load.sent[topic] - 1

        records = self.reader.records(topic, last)
        if topic == "compacted":
            self.check_compacted(records)
        else:
            self.check_numbered(topic, records)

    def check_compacted(self, records: Iterator[tuple[int, bytes | None, int]]) -> None:
        newest: dict[bytes | None, int] = {}
        before = -1
        for offset, key, number in records:
            assert offset == number > before
            newest[key] = number
            before = offset
        assert newest == self.load.sent_of

    def check_numbered(self, topic: str, records: Iterator[tuple[int, bytes | None, int]]) -> None:
        """Only what was deleted may be missing, and only what may be deleted is."""
        jumped_to, expected = 0, 0
        for offset, _, number in records:
            assert offset == number >= expected
            if offset > expected:
                jumped_to = offset
            expected = offset + 1
        if topic == "trimmed":
            assert jumped_to <= self.trimmer.asked
            return
        assert jumped_to <= self.reader.low()
        assert jumped_to == 0 or (self.load.sent[topic] - jumped_to) * VALUE > KEPT - SEGMENT


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    made.start()
    yield made
    made.close()


def test_killed_while_it_cleans_and_deletes_it_loses_nothing(world: World) -> None:
    chance = random.Random(7)
    load = world.load
    eventually(lambda: min(load.acknowledged.values()) > 10_000, "there is much to clean", 60.0)
    for turn in range(KILLS):
        order = [*TOPICS][turn % 3 :] + [*TOPICS][: turn % 3]
        world.turn(order, chance.random() * 0.8)
    # What is to be kept, and what came during a pass or while the broker started.
    assert world.largest["compacted"] < KEYS * VALUE + 15 * SEGMENT < load.sent["compacted"] * VALUE
    assert world.largest["aged"] < KEPT + 12 * SEGMENT
    print(f"{KILLS} kills, found in the folder: {world.caught}; largest {world.largest}; sent {load.sent}")
    assert sum(world.caught.values()) > 0
    assert "cannot be cleaned" not in world.broker.log()
