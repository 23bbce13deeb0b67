"""Killed at any moment, a broker comes back with all that it acknowledged and with nothing torn."""

from __future__ import annotations

import random
import re
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.client import TOPIC, Client, Stored, batch_of, surprises
from tests.support.broker import READY_SECONDS, Broker
from tests.support.raw import ConnectionClosed, NoAnswer
from tests.support.scale import scale
from tests.support.wait import eventually
from tidelog.protocol.offset_specs import EARLIEST, LATEST

ROUNDS = scale(3, 12)
GONE = (ConnectionClosed, NoAnswer, OSError)
FLUSHED = {"flush.messages": "1", "internal.segment.bytes": "100000"}
LAZY = {"internal.segment.bytes": "100000", "segment.index.bytes": "4096", "index.interval.bytes": "200"}


class Tally:
    """Counts acknowledged records; `reached` is set when they are so many, and each writer has some."""

    def __init__(self, wanted: int, writers: int) -> None:
        self.reached = threading.Event()
        self._wanted = wanted
        self._silent = writers
        self._lock = threading.Lock()

    def add(self, records: int, *, first: bool) -> None:
        with self._lock:
            self._wanted -= records
            self._silent -= first
            if self._wanted <= 0 and self._silent <= 0:
                self.reached.set()


class Producer:
    """Writes until the broker is gone; remembers what was acknowledged, and what may or may not be there."""

    def __init__(self, topic: str, partition: int, acks: int, seed: int, *, idempotent: bool = False) -> None:
        self.topic = topic
        self.partition = partition
        self.acks = acks
        self.idempotent = idempotent
        self.acknowledged: dict[int, list[bytes]] = {}
        self.unsure: list[list[bytes]] = []
        self.tally: Tally | None = None
        self._chance = random.Random(seed)
        self._producer_id = -1
        self._sequence = 0
        self._next = 0

    def run(self, client: Client) -> None:
        while True:
            values = self.unsure[-1] if self.idempotent and self.unsure else self._values()
            try:
                if self.idempotent and self._producer_id < 0:
                    self._producer_id = client.producer_id()
                self._write(client, values)
            except GONE:
                if values not in self.unsure:
                    self.unsure.append(values)
                return

    def _write(self, client: Client, values: list[bytes]) -> None:
        producer = (self._producer_id, 0, self._sequence) if self.idempotent else (-1, -1, -1)
        answer = client.produce(self.topic, self.partition, batch_of(*values, producer=producer), self.acks)
        assert answer.error == 0
        assert answer.offset not in self.acknowledged
        self.acknowledged[answer.offset] = values
        if self.idempotent:
            self._sequence += len(values)
            self.unsure.clear()
        if self.tally is not None:
            self.tally.add(len(values), first=len(self.acknowledged) == 1)

    def _values(self) -> list[bytes]:
        """Mostly small batches, which are written on the loop, and some that a worker writes."""
        large = self._chance.random() < 0.05
        count = self._chance.randrange(1, 4)
        fill = 30_000 if large and count == 3 else self._chance.randrange(400)
        values = []
        for _ in range(count):
            self._next += 1
            values.append(b"%s-%d-%d:" % (self.topic.encode(), self.partition, self._next) + b"x" * fill)
        return values

    def check(self, found: list[Stored], start: int) -> None:
        by_offset = {stored.header.base_offset: stored.values for stored in found}
        for offset, values in self.acknowledged.items():
            if offset >= start:
                assert by_offset.get(offset) == values, f"the acknowledged batch at {offset} is not there"
        for offset, written in by_offset.items():
            if offset not in self.acknowledged:
                assert written in self.unsure, f"nobody wrote the batch at {offset}"
        if self.idempotent:
            seen = [values[0] for values in by_offset.values()]
            assert len(seen) == len(set(seen)), "a batch was stored twice"


class Administrator:
    """Makes, grows, configures and deletes topics until the broker is gone."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self.made: dict[str, int] = {}
        self.retention: dict[str, int] = {}
        self.deleted: set[str] = set()
        self.unsure: set[str] = set()
        self._next = 0

    def run(self, client: Client) -> None:
        name = ""
        try:
            while True:
                action = self._chance.choice(("make", "make", "delete", "grow", "configure"))
                if action == "make" or not self.made:
                    self._next += 1
                    name, partitions = f"made-{self._next}", self._chance.randrange(1, 5)
                    assert client.create_topic(name, partitions) == 0
                    self.made[name] = partitions
                    continue
                name = self._chance.choice(sorted(self.made))
                if action == "delete":
                    assert client.delete_topic(name) == 0
                    del self.made[name]
                    self.deleted.add(name)
                elif action == "grow":
                    assert client.grow_topic(name, self.made[name] + 2) == 0
                    self.made[name] += 2
                else:
                    wanted = self._chance.randrange(10**9, 10**10)
                    assert client.set_configs(TOPIC, name, {"retention.ms": str(wanted)}) == 0
                    self.retention[name] = wanted
        except GONE:
            self.unsure.add(name)

    def check(self, client: Client, folder: Path) -> None:
        found = {name: count for name, count in client.partitions().items() if name.startswith("made-")}
        for name, partitions in self.made.items():
            if name not in self.unsure:
                assert found.get(name) == partitions
                assert set(client.partition_errors(name).values()) == {0}
                if name in self.retention:
                    assert client.config(TOPIC, name, "retention.ms") == str(self.retention[name])
        assert not self.deleted & set(found)
        assert set(found) <= set(self.made) | self.unsure
        for name in self.deleted - self.unsure:
            assert not list(folder.glob(f"{name}-[0-9]"))
        # What was under way when the broker ended is known now.
        for name in self.unsure:
            self.made.pop(name, None)
            self.retention.pop(name, None)
            if name in found:
                self.made[name] = found[name]
            else:
                self.deleted.add(name)
        self.unsure.clear()


class Trimmer:
    """Deletes the older half of a partition's records again and again."""

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.start = 0

    def run(self, client: Client) -> None:
        try:
            while True:
                first = client.offset(self.topic, self.partition, EARLIEST)
                end = client.offset(self.topic, self.partition, LATEST)
                wanted = (first + end) // 2
                self.start = max(self.start, wanted)
                error, low = client.delete_records(self.topic, self.partition, wanted)
                assert (error, low) == (0, wanted)
        except GONE:
            pass


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    settings = {
        "log.flush.offset.checkpoint.interval.ms": "150",
        "log.flush.start.offset.checkpoint.interval.ms": "150",
        "replica.high.watermark.checkpoint.interval.ms": "100",
        "log.segment.delete.delay.ms": "50",
        "metrics.listener": "127.0.0.1:0",
    }
    with Broker(tmp_path, settings) as running:
        yield running


@pytest.mark.parametrize("seed", range(scale(2, 20)))
def test_what_was_acknowledged_survives_kills_at_any_moment(broker: Broker, seed: int) -> None:
    chance = random.Random(seed)
    producers = [
        Producer("flushed", 0, -1, seed),
        Producer("flushed", 1, -1, seed + 1, idempotent=True),
        Producer("lazy", 0, 1, seed + 2),
        Producer("lazy", 1, 1, seed + 3, idempotent=True),
        Producer("trimmed", 0, -1, seed + 4),
    ]
    administrator = Administrator(seed)
    trimmer = Trimmer("trimmed", 0)
    with Client(broker.address) as client:
        assert client.create_topic("flushed", 2, FLUSHED) == 0
        assert client.create_topic("lazy", 2, LAZY) == 0
        assert client.create_topic("trimmed", 1, LAZY) == 0
    for _ in range(ROUNDS):
        tally = Tally(chance.randrange(1, 2000), sum(not producer.acknowledged for producer in producers))
        for producer in producers:
            producer.tally = tally
        run_until_killed(broker, [*producers, administrator, trimmer], tally.reached)
        broker.start()
        with Client(broker.address) as client:
            for producer in producers:
                found = client.read_all(producer.topic, producer.partition)
                producer.check(found, trimmer.start if producer.topic == trimmer.topic else 0)
            administrator.check(client, broker.data)
        assert surprises(broker.log()) == []


def run_until_killed(
    broker: Broker, actors: list[Producer | Administrator | Trimmer], moment: threading.Event
) -> None:
    """Let everybody work at once, and kill the broker in the middle of it, when the moment has come."""
    failures: list[BaseException] = []

    def work(actor: Producer | Administrator | Trimmer, client: Client) -> None:
        try:
            actor.run(client)
        except BaseException as error:
            failures.append(error)
            moment.set()

    clients = [Client(broker.address) for _ in actors]
    threads = [
        threading.Thread(target=work, args=pair, daemon=True) for pair in zip(actors, clients, strict=True)
    ]
    for thread in threads:
        thread.start()
    in_time = moment.wait(60)
    broker.kill()
    for thread in threads:
        thread.join(30)
    for client in clients:
        client.close()
    if failures:
        raise failures[0]
    assert in_time, "the records that the kill waits for were not acknowledged within 60 s"


def test_a_stop_by_signal_keeps_records_topics_settings_and_sequences(broker: Broker) -> None:
    with Client(broker.address) as client:
        producer_id = client.producer_id()
        assert client.create_topic("t", 2, {"retention.ms": "123456789"}) == 0
        batches = [batch_of(b"%d" % at, b"x" * 500, producer=(producer_id, 0, at * 2)) for at in range(20)]
        offsets = [client.produce("t", 1, batch) for batch in batches]
        assert [answer.offset for answer in offsets] == list(range(0, 40, 2))
        assert client.delete_records("t", 1, 10) == (0, 10)
        before = client.read_all("t", 1)
    assert broker.terminate() == 0
    broker.start()
    assert "unclean" not in broker.log()
    with Client(broker.address) as client:
        assert client.partitions() == {"t": 2}
        assert client.offset("t", 1, EARLIEST) == 10
        assert client.read_all("t", 1) == before
        # The last batch again is the same batch, a gap is refused, the next one goes on.
        assert client.produce("t", 1, batches[-1]) == (0, 38)
        assert client.produce("t", 1, batch_of(b"gap", producer=(producer_id, 0, 50))).error == 45
        assert client.produce("t", 1, batch_of(b"next", producer=(producer_id, 0, 40))) == (0, 40)
        assert client.producer_id() != producer_id


def parked_fetches(broker: Broker) -> float:
    """How many fetches wait for records, as the broker's metrics tell it."""
    found = re.search(r"metrics at +(\S+)", broker.log())
    assert found is not None
    with urllib.request.urlopen(found[1], timeout=10) as page:
        text = page.read().decode()
    value = re.search(
        r'^kafka_server_delayedoperationpurgatory_numdelayedoperations\S*"Fetch"\S* (\S+)', text, re.M
    )
    assert value is not None
    return float(value[1])


def test_a_stop_answers_the_requests_that_are_under_way(broker: Broker) -> None:
    with Client(broker.address) as client, Client(broker.address) as waiting:
        assert client.create_topic("t", 2, FLUSHED) == 0
        producer = Producer("t", 0, -1, 7)
        thread = threading.Thread(target=producer.run, args=(client,), daemon=True)
        thread.start()
        answers: list[int] = []
        fetching = threading.Thread(
            target=lambda: answers.append(waiting.fetch("t", 1, 0, max_wait_ms=60_000).error_code)
        )
        fetching.start()
        eventually(lambda: parked_fetches(broker) == 1, "the fetch waits for records")
        assert broker.terminate() == 0
        thread.join(10)
        fetching.join(10)
        assert answers == [0]
    broker.start()
    with Client(broker.address) as client:
        producer.check(client.read_all("t", 0), 0)
    assert producer.acknowledged


def files_of(folder: Path) -> set[tuple[str, int, int]]:
    """The files below a folder, with their sizes and when each was last changed."""
    found = set()
    for path in folder.rglob("*"):
        try:
            status = path.stat()
        except FileNotFoundError:  # renamed at this moment
            continue
        if path.is_file():
            found.add((str(path), status.st_size, status.st_mtime_ns))
    return found


def launch_until_changed(broker: Broker, files: int) -> None:
    """Start the process, and come back when it has changed so many files, or answers."""
    before = files_of(broker.data)
    broker.launch()
    eventually(
        lambda: broker.is_ready() or len(files_of(broker.data) - before) >= files,
        f"a start changes {files} files",
        READY_SECONDS,
        interval=0.001,
    )


def test_a_broker_killed_while_it_starts_loses_nothing(broker: Broker) -> None:
    chance = random.Random(5)
    with Client(broker.address) as client:
        assert client.create_topic("t", 8, FLUSHED) == 0
        written = {
            index: [client.produce("t", index, batch_of(b"%d" % at * 300)).offset for at in range(30)]
            for index in range(8)
        }
    broker.kill()
    for _ in range(scale(4, 30)):
        # A start writes to the tree, and recovers two indexes for each of the eight partitions.
        launch_until_changed(broker, chance.randrange(1, 18))
        broker.kill()
    broker.start()
    with Client(broker.address) as client:
        for index, offsets in written.items():
            assert [stored.header.base_offset for stored in client.read_all("t", index)] == offsets


def test_a_topic_that_was_deleted_and_made_again_is_a_new_one_after_a_kill(broker: Broker) -> None:
    with Client(broker.address) as client:
        for generation in range(5):
            assert client.create_topic("again", 2) == 0
            assert client.produce("again", 1, batch_of(b"%d" % generation)) == (0, 0)
            if generation < 4:
                assert client.delete_topic("again") == 0
    broker.restart(kill=True)
    with Client(broker.address) as client:
        assert [stored.values for stored in client.read_all("again", 1)] == [[b"4"]]
    assert surprises(broker.log()) == []
