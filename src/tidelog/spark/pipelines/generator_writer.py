"""Writes generated events to their topics, at a given rate or as fast as possible. Creates missing topics."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from tidelog.clients.admin.blocking import Admin
from tidelog.clients.admin.topics import NewTopic
from tidelog.clients.producer.blocking import Producer
from tidelog.clients.producer.columns import SentColumns
from tidelog.errors import TopicAlreadyExists
from tidelog.spark.pipelines.days import DAY_MS
from tidelog.spark.pipelines.events import EVENTS
from tidelog.spark.pipelines.generator import Chunk, Generator, Plan, Truth

FAST = {"linger.ms": 20, "batch.size": 262_144, "compression.type": "lz4", "buffer.memory": 128 * 1024 * 1024}


class Writer:
    """Makes the events of a plan and writes them. `stop` ends it after the current chunk."""

    def __init__(self, plan: Plan, settings: Mapping[str, object], rate: float = 0.0) -> None:
        self._generator = Generator(plan)
        self._settings = {**FAST, **settings}
        self._rate = rate
        self._stopped = False
        self.written = 0
        self.seconds = 0.0

    def create_topics(self, partitions: int, replication: int = -1) -> list[str]:
        """Create missing topics and return their names; existing ones stay as they are.

        Topics for events of the past have no retention: it would delete the events as soon as they arrive.
        """
        old = self._generator.plan.start < time.time() * 1000 - DAY_MS
        configs = {"retention.ms": "-1"} if old else {}
        topics = [
            NewTopic(name, num_partitions=partitions, replication_factor=replication, configs=configs)
            for name in EVENTS
        ]
        clients = {name: value for name, value in self._settings.items() if name not in FAST}
        with Admin(clients) as admin:
            results = admin.create_topics(topics, partial=True)
            for error in results.errors.values():
                if not isinstance(error, TopicAlreadyExists):
                    raise error
            return list(results)

    def run(self, on_chunk: Callable[[Chunk], object] = lambda chunk: None) -> Truth:
        """Write everything. The next chunk is made while the previous one is sent."""
        started = time.monotonic()
        truth = self._generator.truth
        with Producer(self._settings) as producer:
            before: list[SentColumns] = []
            for chunk in self._generator.chunks():
                self._wait(started, chunk.rows)
                if self._stopped:
                    break
                sent = [producer.send_arrow(table, topic) for topic, table in chunk.tables.items()]
                _written(before)
                before = sent
                self.written += chunk.rows
                truth.end = chunk.until
                on_chunk(chunk)
            _written(before)
        self.seconds = time.monotonic() - started
        return truth

    def stop(self) -> None:
        self._stopped = True

    def _wait(self, started: float, rows: int) -> None:
        """Wait until the last of the next rows is due, or until `stop`."""
        due = started + (self.written + rows) / self._rate if self._rate else 0.0
        while not self._stopped and (ahead := due - time.monotonic()) > 0:
            time.sleep(min(ahead, 0.1))


def _written(sent: list[SentColumns]) -> None:
    for columns in sent:
        columns.result()


def write(plan: Plan, bootstrap: str, *, partitions: int = 4, rate: float = 0.0) -> Truth:
    """Create the topics, and write all events of a plan."""
    writer = Writer(plan, {"bootstrap.servers": bootstrap, "client.id": "tidelog-generate"}, rate)
    writer.create_topics(partitions)
    return writer.run()
