"""A broker in this process for tests of quotas: connections of any user, and its quota managers."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import cast

import pytest

from tests.support.raw import RawConnection
from tests.support.wait import eventually
from tidelog import Admin
from tidelog.clients.admin.users import QuotaEntity
from tidelog.network import server
from tidelog.network.channel import Channel
from tidelog.protocol.messages.api_versions import ApiVersionsRequest
from tidelog.protocol.messages.fetch import FetchRequest, FetchResponse
from tidelog.protocol.messages.produce import ProduceRequest, ProduceResponse
from tidelog.records.batch import Record, build_batch
from tidelog.server import broker_quotas
from tidelog.server.quota.quota_managers import QuotaManagers
from tidelog.testing import Broker

TOPIC = "t"
ANONYMOUS = "ANONYMOUS"


class QuotaBroker:
    """Windows are short, so that a test need not wait long: two of one second."""

    def __init__(self, broker: Broker, users: dict[str, str], managers: list[QuotaManagers]) -> None:
        self._users = users
        self._managers = managers
        self._connections: list[RawConnection] = []
        self.broker = broker
        self.bootstrap = broker.bootstrap_servers
        self.admin = Admin(bootstrap_servers=self.bootstrap, client_id="quota-admin")

    @property
    def managers(self) -> QuotaManagers:
        return self._managers[-1]

    def set_quota(self, entity: QuotaEntity, **quotas: float | None) -> None:
        self.admin.alter_client_quotas({entity: quotas})

    def connect(self, user: str = ANONYMOUS, client_id: str | None = "app") -> RawConnection:
        self._users["next"] = user
        connection = RawConnection(self.bootstrap, client_id=client_id, timeout=20.0)
        connection.call(ApiVersionsRequest(), 0)  # the broker has accepted it
        self._users["next"] = ANONYMOUS
        self._connections.append(connection)
        return connection

    def metrics(self) -> dict[tuple[str, str, str], float]:
        """The metrics of quotas by name, user and client id."""
        return {
            (cast("str", family.name), dict(labels).get("user", ""), dict(labels).get("client_id", "")): value
            for family in self.managers.families()
            for labels, value in family.samples
        }

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
        self.admin.close()


@contextmanager
def quota_broker(
    monkeypatch: pytest.MonkeyPatch, settings: Mapping[str, object] | None = None
) -> Iterator[QuotaBroker]:
    users, managers = {"next": ANONYMOUS}, list[QuotaManagers]()

    def channel_of_user(*args: object) -> Channel:
        channel = Channel(*args)  # type: ignore[arg-type]
        channel.principal = f"User:{users['next']}"
        return channel

    class KeptManagers(QuotaManagers):
        def __init__(self, *args: object) -> None:
            super().__init__(*args)  # type: ignore[arg-type]
            managers.append(self)

    monkeypatch.setattr(server, "Channel", channel_of_user)
    monkeypatch.setattr(broker_quotas, "QuotaManagers", KeptManagers)
    windows = {"quota.window.num": 2, "controller.quota.window.num": 2}
    with Broker({**windows, **(settings or {})}) as broker:
        broker.create_topic(TOPIC)
        made = QuotaBroker(broker, users, managers)
        try:
            yield made
        finally:
            made.close()


def produce_request(size: int, *, acks: int = 1, batches: int = 1) -> ProduceRequest:
    records = build_batch([Record(0, int(time.time() * 1000), None, b"v" * size)])
    data = ProduceRequest.PartitionProduceData(index=0, records=records)
    topics = [ProduceRequest.TopicProduceData(name=TOPIC, partition_data=[data] * batches)]
    return ProduceRequest(acks=acks, timeout_ms=10_000, topic_data=topics)


def produce(connection: RawConnection, size: int, version: int = 9) -> int:
    """Produce one record; returns the throttle time."""
    answer = connection.ask(produce_request(size), ProduceResponse, version)
    assert answer.responses[0].partition_responses[0].error_code == 0
    return answer.throttle_time_ms


def fetch(
    connection: RawConnection,
    *,
    session_id: int = 0,
    epoch: int = -1,
    max_bytes: int = 1 << 20,
    replica_id: int = -1,
    offset: int = 0,
    max_wait_ms: int = 0,
) -> FetchResponse:
    wanted = FetchRequest.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=max_bytes)
    topics = [FetchRequest.FetchTopic(topic=TOPIC, partitions=[wanted])] if epoch <= 0 else []
    request = FetchRequest(
        replica_id=replica_id,
        max_wait_ms=max_wait_ms,
        min_bytes=1 if max_wait_ms else 0,
        max_bytes=max_bytes,
        session_id=session_id,
        session_epoch=epoch,
        topics=topics,
    )
    return connection.ask(request, FetchResponse, 12)


def fetched_bytes(answer: FetchResponse) -> int:
    return sum(
        len(cast("bytes", partition.records or b""))
        for topic in answer.responses
        for partition in topic.partitions
    )


def until_throttled(connection: RawConnection, size: int) -> int:
    """Produce until the client is over its quota; returns the throttle time."""
    return eventually(lambda: produce(connection, size), "a throttle time")
