"""librdkafka's `send_offsets_to_transaction` while the coordinator of a group is not available.

The call of librdkafka 2.16 has no time limit while it looks for the coordinator. COORDINATOR_NOT_AVAILABLE is
the answer, as of Kafka, while a partition has no leader: librdkafka asks twice more. Then, and also when the
coordinator it connects to leaves the metadata, it waits until any broker connects or disconnects: a call with
a limit of 10 s did not return within 40 s. So stories whose coordinators move let others send offsets.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.faults.client import Client
from tests.faults.faulty_disk import faulty_broker
from tidelog.endpoints import Endpoint
from tidelog.errors import CoordinatorNotAvailable
from tidelog.network.request import Request
from tidelog.server.apis import groups
from tidelog.server.services import Services
from tidelog.storage.disk import RealDisk

SETTINGS = {"offsets.topic.num.partitions": "1", "transaction.state.log.num.partitions": "1"}
REFUSALS = 2
"""With three the call does not return."""


def test_librdkafka_asks_twice_more_while_the_coordinator_of_a_group_is_not_available(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, asked = groups._leader_of, 0

    async def leader_of(
        services: Services, request: Request, key_type: int, key: str
    ) -> tuple[int, Endpoint]:
        nonlocal asked
        if request.client_id == "copier" and key_type == groups.GROUP_KEY:
            asked += 1
            if asked <= REFUSALS:
                raise CoordinatorNotAvailable("lost")
        return await whole(services, request, key_type, key)

    monkeypatch.setattr(groups, "_leader_of", leader_of)
    settings = {"log.dirs": str(tmp_path / "data"), **SETTINGS}
    with faulty_broker(monkeypatch, RealDisk(), settings) as broker, Client(broker.address) as client:
        assert client.create_topic("t", 1) == 0
        bootstrap = "{}:{}".format(*broker.address)
        producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "client.id": "copier",
                "transactional.id": "copy",
                "retry.backoff.ms": 10,
                "topic.metadata.refresh.interval.ms": 100,
            }
        )
        reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "g"})
        producer.init_transactions(20)
        producer.begin_transaction()
        producer.send_offsets_to_transaction(
            [TopicPartition("t", 0, 1)], reader.consumer_group_metadata(), 20
        )
        producer.commit_transaction(20)
        assert asked > REFUSALS
        (committed,) = reader.committed([TopicPartition("t", 0)], 20)
        assert committed.offset == 1
        reader.close()
