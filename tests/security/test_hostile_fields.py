"""Every field of every request: null, empty, or at the ends of its range."""

from __future__ import annotations

import gzip
import json
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.cluster.controlled import leader_and_isr, stop_replica, topic_state, update_metadata
from tests.faults.client import resident_bytes, surprises
from tests.faults.corpus import GOLDEN
from tests.faults.test_fuzzed_requests import check_answer
from tests.security.honest import Honest
from tests.security.hostile_fields import Hostile, hostile_frames
from tests.server.cluster_broker import EPOCH, ClusterBroker
from tests.server.filled_requests import CASES, FilledRequests
from tests.support.broker import Broker
from tests.support.raw import ConnectionClosed, NoAnswer, RawConnection
from tests.support.scale import scale
from tests.support.wait import eventually
from tidelog.protocol.api import API, ApiKey
from tidelog.protocol.json import from_json
from tidelog.protocol.message import Message
from tidelog.protocol.messages.create_topics import CreateTopicsRequest
from tidelog.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tidelog.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from tidelog.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from tidelog.server.apis import served_apis

MEGABYTE = 1 << 20
# These wait for records, for acks or for other members if the request says so.
WAITING = {ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    settings = {"group.initial.rebalance.delay.ms": "0", "auto.create.topics.enable": "false"}
    with Broker(tmp_path_factory.mktemp("fields"), settings) as running:
        with RawConnection(running.address) as connection:
            topic = CreateTopicsRequest.CreatableTopic(name="t", num_partitions=2, replication_factor=1)
            connection.call(CreateTopicsRequest(topics=[topic]), 7)
            find = FindCoordinatorRequest(key="g")
            eventually(
                lambda: not connection.ask(find, FindCoordinatorResponse, 3).error_code,
                "a coordinator of groups",
            )
        yield running


class Sender:
    """Sends frames over a connection that is made anew when the broker closed the last one."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._connection = RawConnection(address)
        self.sent = 0
        self.closed: list[str] = []
        self.unanswered: list[str] = []

    def send(self, frame: Hostile, patience: float) -> None:
        self.sent += 1
        try:
            self._connection.send_frame(frame.payload)
            check_answer(frame.payload, self._connection.receive_frame(patience))
        except ConnectionClosed:
            self.closed.append(frame.fault)
            self._anew()
        except NoAnswer:
            self.unanswered.append(frame.fault)
            self._anew()

    def _anew(self) -> None:
        self._connection.close()
        self._connection = RawConnection(self._address)

    def close(self) -> None:
        self._connection.close()


def messages(broker: Broker, key: int, version: int) -> list[Message]:
    """A request that is answered without an error; of other APIs, such as logins, those that Kafka wrote."""
    if ApiKey(key) in CASES:
        with RawConnection(broker.address) as connection:
            return [FilledRequests(connection).of(key, version)]
    return [message for message, of_version in golden_requests([key]) if of_version == version]


def golden_requests(keys: Iterable[int]) -> Iterator[tuple[Message, int]]:
    """The requests that Kafka wrote, with their versions."""
    wanted = set(keys)
    with gzip.open(GOLDEN, "rt") as lines:
        for line in lines:
            case = json.loads(line)
            if case["name"].endswith("Request") and case["key"] in wanted:
                yield from_json(API[case["key"]].request, case["version"], case["json"]), case["version"]


def versions(low: int, high: int) -> list[int]:
    return list(range(low, high + 1)) if scale(0, 1) else sorted({low, high})


def test_every_field_of_every_request_is_answered_and_read_again_after_a_restart(broker: Broker) -> None:
    before = resident_bytes(broker.pid)
    sender = Sender(broker.address)
    with Honest(broker.address):
        for api in sorted(served_apis().values(), key=lambda api: api.key):
            for version in versions(api.min_version, api.max_version):
                for message in messages(broker, api.key, version):
                    for frame in hostile_frames(message, version):
                        sender.send(frame, 0.03 if api.key in WAITING else 20)
    sender.close()
    names = tuple(f"{API[key].request.__name__} " for key in WAITING)
    assert sender.sent > 2500
    assert sender.closed == []
    assert [fault for fault in sender.unanswered if not fault.startswith(names)] == []
    assert surprises(broker.log()) == []
    assert resident_bytes(broker.pid) - before < 80 * MEGABYTE
    # What the requests left in the logs and in the tree stops no start.
    broker.restart()
    with Honest(broker.address), RawConnection(broker.address) as connection:
        commit = FilledRequests(connection).of(ApiKey.OFFSET_COMMIT, 9)

        def committed() -> bool:
            answer = connection.ask(commit, OffsetCommitResponse, 9)
            return answer.topics[0].partitions[0].error_code == 0

        eventually(committed, "the group's coordinator has loaded what was committed")
    assert surprises(broker.log()) == []


def test_an_offset_with_the_longest_retention_time_is_kept(broker: Broker) -> None:
    """The time at which it expires does not fit into 64 bits."""
    partition = OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0, committed_offset=5)
    topic = OffsetCommitRequest.OffsetCommitRequestTopic(name="t", partitions=[partition])
    for retention in (2**63 - 1, 2**62):
        request = OffsetCommitRequest(group_id="kept", retention_time_ms=retention, topics=[topic])
        with RawConnection(broker.address) as connection:
            answer = connection.ask(request, OffsetCommitResponse, 2)
            assert answer.topics[0].partitions[0].error_code == 0


@pytest.mark.parametrize("length", [255, 32_767])
def test_a_member_with_the_longest_name_gets_an_id_that_fits_into_an_answer(
    broker: Broker, length: int
) -> None:
    """An id that did not fit kept the answers of all other members back."""
    name = "n" * length
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")
    for number, (client_id, instance_id) in enumerate([(name, None), ("c", name)]):
        request = JoinGroupRequest(
            group_id=f"long-{length}-{number}",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            group_instance_id=instance_id,
            protocol_type="consumer",
            protocols=[protocol],
        )
        with RawConnection(broker.address, client_id=client_id) as connection:
            answer = connection.ask(request, JoinGroupResponse, 9)
            assert answer.member_id.startswith("n" * 255 + "-")
            assert len(answer.member_id) == 255 + 1 + 36
    assert surprises(broker.log()) == []


def requests_between_brokers() -> Iterator[tuple[Message, int]]:
    """As Kafka wrote them, with the epochs of this broker; and some that it obeys."""
    apis = {key: api for key, api in served_apis(cluster=True).items() if api.from_brokers}
    right = {"broker_epoch": EPOCH, "controller_id": 1, "controller_epoch": 5, "is_kraft_controller": False}
    for message, version in golden_requests(apis):
        if not apis[message.KEY or 0].serves(version):
            continue
        for name, value in right.items():
            if hasattr(message, name):
                setattr(message, name, value)
        yield message, version
    for version in (5, 7):
        yield leader_and_isr(), version
    yield update_metadata(topic_state("t")), 8
    yield stop_replica(), 4


def test_every_field_of_requests_between_brokers_is_answered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sent = 0
    with caplog.at_level(logging.ERROR), ClusterBroker(tmp_path) as broker:
        for message, version in requests_between_brokers():
            connection = broker.connect()
            for frame in hostile_frames(message, version):
                connection.send_frame(frame.payload)
                try:
                    connection.receive_frame()
                except (ConnectionClosed, NoAnswer) as error:
                    pytest.fail(f"{frame.fault}: {type(error).__name__}")
                sent += 1
    assert sent > 1500
    failures = [record.getMessage() for record in caplog.records if record.exc_info]
    assert failures == []
