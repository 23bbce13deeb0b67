"""Fetches of any kind are answered alike on the short way and on the way that all fetches can take.

The broker checks access rules and keeps quotas. Its topics have aborted records, records that were deleted,
and one that nobody may read. A `cluster_id` sends a fetch the long way.
"""

from __future__ import annotations

import random
from base64 import urlsafe_b64decode
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.raw import RawConnection
from tidelog import AclBinding, AclOperation, AclPermissionType, AclResourceType, Admin, NewTopic, Producer
from tidelog.errors import ErrorCode
from tidelog.protocol.messages.fetch import FetchRequest, FetchResponse
from tidelog.records.loops import parse_one_fetch
from tidelog.testing import Broker

MOST = 1 << 20
LONG_WAY = "a cluster"
SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
Partition = tuple[str, int]


@dataclass
class Stage:
    address: str
    ids: dict[str, bytes]


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with Broker(SETTINGS) as broker, Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.create_topics([NewTopic("plain", 2), NewTopic("aborted", 1), NewTopic("secret", 1)])
        with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
            for topic in ("plain", "secret"):
                for number in range(6):
                    producer.send(topic, b"%d" % number * 50, partition=0).result(20)
        with Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id="t") as producer:
            producer.init_transactions()
            for number in range(4):
                producer.begin_transaction()
                producer.send("aborted", b"%d" % number * 50, partition=0).result(20)
                if number % 2:
                    producer.abort_transaction()
                else:
                    producer.commit_transaction()
        admin.delete_records({("plain", 0): 3})
        found = admin.describe_topics(["plain", "aborted", "secret"])
        ids = {name: urlsafe_b64decode(topic.topic_id + "==") for name, topic in found.items()}
        who, denied = "User:*", AclPermissionType.DENY
        admin.create_acls([AclBinding(AclResourceType.TOPIC, "secret", who, AclOperation.READ, denied)])
        admin.alter_client_quotas({(("user", None),): {"consumer_byte_rate": 1e12}})
        yield Stage(broker.bootstrap_servers, ids)


class Fetcher:
    """A connection whose fetches all take one of the ways."""

    def __init__(self, stage: Stage, version: int, *, is_short: bool) -> None:
        self._ids = stage.ids
        self.raw = RawConnection(stage.address)
        self._version = version
        self._is_short = is_short
        self._session, self._epoch = 0, 0

    def fetch(
        self,
        named: list[tuple[Partition, dict[str, int]]],
        *,
        replica_id: int,
        in_session: int | None,
        **how: Any,
    ) -> FetchResponse:
        """`in_session` is added to the right epoch; None means without a session."""
        topics = []
        for (topic, index), asked in named:
            partition = FetchRequest.FetchPartition(partition=index, **asked)
            entry = FetchRequest.FetchTopic(partitions=[partition])
            if self._version >= 13:
                entry.topic_id = self._ids.get(topic, b"?" * 16)
            else:
                entry.topic = topic
            topics.append(entry)
        request = FetchRequest(topics=topics, cluster_id=None if self._is_short else LONG_WAY, **how)
        if in_session is None:
            request.session_epoch = -1
        else:
            request.session_id, request.session_epoch = self._session, self._epoch + in_session
        if self._version >= 15 and replica_id != -1:
            request.replica_state = FetchRequest.ReplicaState(replica_id=replica_id, replica_epoch=7)
        elif self._version < 15:
            request.replica_id = replica_id
        is_read = parse_one_fetch(request.encode(self._version), 0, self._version) is not None
        assert is_read == (self._is_short and len(named) < 2)
        answer = self.raw.ask(request, FetchResponse, self._version)
        if in_session == 0 and not answer.error_code:
            self._session, self._epoch = answer.session_id, self._epoch + 1
        answer.session_id = 0
        return answer


def drawn(rng: random.Random) -> dict[str, int]:
    return {
        "fetch_offset": rng.choice((0, 2, 3, 5, 7, 12, 13, 99)),
        "current_leader_epoch": rng.choice((-1, -1, 0, 0, 4)),
        "last_fetched_epoch": rng.choice((-1, -1, -1, 0, 3)),
        "log_start_offset": rng.choice((-1, 0)),
        "partition_max_bytes": rng.choice((MOST, MOST, 200, 1, 0)),
    }


def test_drawn_fetches_are_answered_alike_on_both_ways(stage: Stage) -> None:
    seen: set[int] = set()
    places: list[Partition] = [("plain", 0), ("plain", 1), ("aborted", 0), ("secret", 0)]
    sizes = []
    for version in range(12, 19):
        rng = random.Random(version)
        fetchers = [Fetcher(stage, version, is_short=is_short) for is_short in (True, False)]
        every = [(place, drawn(rng)) for place in places]
        for number in range(80):
            in_session = rng.choice((0, 0, 0, 0, 3, None, None, None))
            strange: Partition = rng.choice((("plain", 9), ("unknown", 0)))
            named = [(rng.choice((*places, *places, strange)), drawn(rng))] if rng.random() < 0.8 else []
            how = {
                "replica_id": rng.choice((-1, -1, -1, -2, 1)),
                "max_wait_ms": rng.choice((0, 0, 0, 3)),
                "min_bytes": rng.choice((0, 1, MOST)),
                "max_bytes": rng.choice((MOST, MOST, 100, 0, -1)),
                "isolation_level": rng.choice((0, 1, 1)) if rng.random() < 0.95 else 7,
                "rack_id": rng.choice(("", "a", "b")),
            }
            if number == 0:
                in_session, named, how["replica_id"], how["isolation_level"] = 0, every, -1, 0
            answers = [fetcher.fetch(named, in_session=in_session, **how) for fetcher in fetchers]
            assert answers[0].encode(version) == answers[1].encode(version), (version, number, named, how)
            seen.add(answers[0].error_code)
            for topic in answers[0].responses:
                for partition in topic.partitions:
                    seen.add(partition.error_code)
                    sizes.append(len(bytes(partition.records or b"")))
                    if partition.aborted_transactions:
                        seen.add(-100)
                    if partition.diverging_epoch is not None and partition.diverging_epoch.epoch >= 0:
                        seen.add(-101)
        for fetcher in fetchers:
            fetcher.raw.close()
    assert seen >= {
        0,
        -100,
        -101,
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    }
    assert len(set(sizes)) > 3
