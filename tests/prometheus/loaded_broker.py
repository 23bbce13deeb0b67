"""A broker with the load that gives every panel of a dashboard something to show."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.broker import Broker
from tidelog.clients.admin.blocking import Admin
from tidelog.clients.consumer.blocking import Consumer
from tidelog.clients.producer.blocking import Producer

SETTINGS = {"metrics.listener": "127.0.0.1:0", "num.partitions": "2", "tidelog.canary.interval.ms": "200"}
QUOTAS = {"producer_byte_rate": 20_000.0, "consumer_byte_rate": 20_000.0, "request_percentage": 1.0}


class Load:
    """Clients of a broker that stay connected. `step` produces, reads, commits and uses a transaction."""

    def __init__(self, bootstrap: str) -> None:
        where = {"bootstrap.servers": bootstrap}
        self._producer = Producer(where)
        self._transactional = Producer({**where, "transactional.id": "payments"})
        self._consumer = Consumer({**where, "group.id": "billing", "auto.offset.reset": "earliest"})
        self._consumer.subscribe(["orders"])
        self._transactional.init_transactions()

    def step(self) -> None:
        for number in range(50):
            self._producer.send("orders", b"x" * 100, key=str(number).encode())
        self._producer.flush()
        self._transactional.begin_transaction()
        self._transactional.send("payments", b"y")
        self._transactional.commit_transaction()
        if self._consumer.poll(5.0):
            self._consumer.commit()
        self._producer.send_and_wait("orders", b"behind the group")

    def close(self) -> None:
        for client in (self._consumer, self._transactional, self._producer):
            client.close()


@contextmanager
def loaded_broker(folder: Path) -> Iterator[tuple[Broker, Load]]:
    with Broker(folder, SETTINGS) as broker:
        with Admin({"bootstrap.servers": broker.bootstrap}) as admin:
            admin.alter_client_quotas({(("client-id", None),): QUOTAS})
        load = Load(broker.bootstrap)
        try:
            load.step()
            yield broker, load
        finally:
            load.close()
